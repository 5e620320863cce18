//! The machinery of an HTTP API: the server with its limits, endpoints and their OpenAPI document, console users with
//! logins and API keys, the guard of requests, the audit log, bodies, pages and errors.
//!
//! It knows no endpoint. Begin with `endpoint.rs`: an endpoint is a route, its description and the access that it
//! requires. `server.rs` handles connections, and `guard.rs` checks each request before its handler runs. All resources
//! that a client can occupy are limited: connections, requests, memory for answers,
//! time for headers, bodies and writes, logins.

// A request creates at most one `Problem`. Boxing it everywhere would cost readability and save little.
#![allow(clippy::result_large_err)]

mod access_changes;
pub mod admins;
pub mod answer_memory;
pub mod api_keys;
pub mod audit;
pub mod audit_body;
pub mod audit_state;
mod blocking;
pub mod body;
mod connection_slots;
pub mod endpoint;
pub mod guard;
pub mod guarded_login;
pub mod if_match;
pub mod limits;
pub mod logins;
pub mod openapi;
pub mod paging;
pub mod pending_logins;
pub mod problem;
pub mod query;
mod request_shares;
pub mod role;
pub mod scope;
pub mod server;
pub mod stall;
pub mod strict;
mod sub_protocols;
mod tls_handshake;
pub mod websocket;

use std::time::{SystemTime, UNIX_EPOCH};

pub use blocking::{PasswordHashing, block};
pub use connection_slots::RESERVED_MAX;

/// Returns the time in milliseconds since 1970.
pub fn unix_ms(at: SystemTime) -> u64 {
    at.duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_millis() as u64)
}
