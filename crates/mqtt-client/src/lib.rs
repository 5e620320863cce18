//! The client side of MQTT and of the protocols around it, without I/O: the connectors, `tidewire pub` and `sub`, the
//! demo and the load tool share it, each with sockets of its own.
//!
//! - `websocket.rs`: upgrade and frames of a WebSocket (RFC 6455).
//! - `http.rs`: one HTTP/1.1 request and its response, as bytes.
//!
//! Nothing here blocks, reads a clock or creates randomness: callers pass in bytes, times and masks.

pub mod http;
pub mod websocket;

pub use http::{HttpRequest, HttpResponse};
pub use websocket::{ClientWebSocket, Masks, Upgrade, WebSocketContent};
