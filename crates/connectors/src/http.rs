//! HTTP: an action that makes requests, or a webhook.
//!
//! The connector has the server's address, the pool of connections and TLS; the action has the request's templates. Requests
//! go over HTTP/1.1 with connections that are kept. What the server's status means for a record is in `status.rs`.

mod ask;
mod client;
mod config;
mod request;
mod sink;
mod status;

pub use ask::{HttpAnswer, HttpQuestion};
pub use client::HttpConnector;
pub use config::{HttpActionConfig, HttpBatch, HttpConnectorConfig, HttpMethod, HttpSignConfig};
pub use sink::HttpSink;
