//! PostgreSQL: an action that runs a statement per message, or copies messages into a table.
//!
//! The connector has the server's address, a connection pool and TLS. A batch is one transaction whose statements are
//! pipelined. `isolate.rs` finds and excludes rows that the database rejects. `error.rs` classifies the database's
//! error codes. `lookup.rs` reads rows, for logins and access rules of clients.

mod client;
mod config;
mod copy;
mod error;
mod lookup;
mod sink;
mod tls;

pub use client::PostgresConnector;
pub use config::{PostgresActionConfig, PostgresColumn, PostgresConnectorConfig, PostgresCopyConfig};
pub use lookup::PostgresLookup;
pub use sink::PostgresSink;
