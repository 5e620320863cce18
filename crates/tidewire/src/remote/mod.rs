//! The API of a running server, as commands use it: where it is, who asks, one call and its answer.
//!
//! Blocking, and a connection for each call: a command makes a handful of them.

mod address;
mod api;
mod http;

pub use address::args;
pub use api::{Api, ApiError, path_part};
pub use http::{Request, ask};
