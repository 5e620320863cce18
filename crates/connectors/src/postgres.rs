//! PostgreSQL: an action that runs a statement for each message, or copies messages into a table.
//!
//! The connector has the server's address, a pool of connections and TLS. A batch is one transaction, sent without
//! waiting for answers in between; rows that the database refuses are found and left out (`isolate.rs`). What the database's error codes
//! mean is in `error.rs`.

mod client;
mod config;
mod copy;
mod error;
mod sink;
mod statement;
mod tls;

pub use client::PostgresConnector;
pub use config::{PostgresActionConfig, PostgresColumn, PostgresConnectorConfig, PostgresCopyConfig};
pub use sink::PostgresSink;
