//! Redis and Valkey: an action that runs a command for each message.
//!
//! The connector has one server, a cluster, or a master that sentinels know; one connection carries everything. A batch is
//! a pipeline. What the server's errors mean is in `error.rs`.

mod client;
mod config;
mod error;
mod sink;

pub use client::RedisConnector;
pub use config::{RedisActionConfig, RedisConnectorConfig, RedisMode};
pub use sink::RedisSink;
