//! A MongoDB client for lookups of clients: `find` over TCP or TLS.
//!
//! The protocol is written here: docs/dependencies.md has the alternatives. `bson.rs` reads and writes documents,
//! `message.rs` the messages around them, `scram.rs` the login. `connection.rs` is one connection, `client.rs` the pool
//! and the choice of a server.
//!
//! Limits: MongoDB 3.6 or later, no compression, no `mongodb+srv` addresses, a message has at most 4 MiB.

mod bson;
mod client;
mod connection;
mod error;
mod message;
mod scram;

pub use bson::{Bson, BsonDocument, MalformedBson};
pub use client::{MongoClient, MongoConnectorConfig, MongoFind, MongoKind, MongoReadMode};
pub use error::MongoError;
pub use message::{MESSAGE_BYTES_MAX, decode_message, message_length};

#[cfg(test)]
mod tests;
