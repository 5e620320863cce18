//! Redis and Valkey: an action that runs a command per message.
//!
//! The connector has one server, a cluster, or a master known to sentinels. One connection carries all commands. A
//! batch is a pipeline. `error.rs` classifies the server's errors. `lookup.rs` reads a
//! hash, for the authentication of clients.

mod client;
mod config;
mod error;
mod lookup;
mod sink;

pub use client::RedisConnector;
pub use config::{RedisActionConfig, RedisConnectorConfig, RedisMode};
pub use lookup::{RedisLookup, RedisLookupError};
pub use sink::RedisSink;
