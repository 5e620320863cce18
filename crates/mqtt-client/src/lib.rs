//! The client side of MQTT and of the protocols around it, without I/O: the connectors, `tidewire pub` and `sub`, the
//! demo and the load tool share it, each with sockets of its own.
//!
//! - `session.rs`: what each packet of the server means, and the packets that must follow it.
//! - `in_flight.rs`: messages of QoS 1 and 2 that are not acknowledged. `keep_alive.rs`: when to send PINGREQ.
//! - `websocket.rs`: upgrade and frames of a WebSocket (RFC 6455).
//! - `quic.rs`: a QUIC connection with one stream, with the feature `quic`.
//! - `http.rs`: one HTTP/1.1 request and its response, as bytes.
//!
//! Nothing here blocks, reads a clock or creates randomness: callers pass in bytes, times and masks.

mod http;
mod in_flight;
mod keep_alive;
#[cfg(feature = "quic")]
mod quic;
mod session;
mod websocket;

pub use http::{HttpRequest, HttpResponse};
pub use in_flight::{InFlight, Unacknowledged};
pub use keep_alive::KeepAlive;
#[cfg(feature = "quic")]
pub use quic::{ClientQuic, DATAGRAM_BYTES, QuicStartError};
pub use session::{ClientSession, ProtocolViolation, ServerLimits, SessionEvent};
pub use websocket::{ClientWebSocket, Masks, Upgrade, WebSocketContent};
