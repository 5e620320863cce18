//! The modules of the MongoDB client that decode and write. Its crate needs a runtime and TLS.

#[path = "../../../crates/connectors/src/mongodb/bson.rs"]
pub mod bson;
#[path = "../../../crates/connectors/src/mongodb/message.rs"]
pub mod message;
