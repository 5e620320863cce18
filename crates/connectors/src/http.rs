//! HTTP: an action that sends requests, such as webhooks.
//!
//! The connector has the server's address, the connection pool and TLS; the action has the templates of the request.
//! Requests use HTTP/1.1 with persistent connections. `status.rs` maps the response status to the result of a record.

mod ask;
mod client;
mod config;
mod fetch;
mod query;
mod request;
mod sink;
mod status;
mod url;

pub use ask::{HttpAnswer, HttpQuestion};
pub use client::HttpConnector;
pub use config::{HttpActionConfig, HttpBatch, HttpConnectorConfig, HttpMethod, HttpSignConfig};
pub use fetch::{FetchRequest, Fetcher};
pub use query::restore_query_values;
pub use sink::HttpSink;
pub use url::UrlPart;
