//! A client of the API of a running server, for commands: address, credentials, requests and responses.
//!
//! Blocking, with one connection per request, because a command sends only a few.

mod address;
mod api;
mod http;

pub use address::{ApiAddress, address_args, args};
pub use api::{ApiClient, ApiError, path_part};
pub use http::send;
