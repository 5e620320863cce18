//! `tidewire pub` and `tidewire sub`: mosquitto_pub and mosquitto_sub, with WebSocket and QUIC besides.
//!
//! A few threads with blocking sockets feed one channel (`events.rs`). The main thread owns everything else and waits
//! only for that channel. Flags, output and exit codes are those of Mosquitto. Where Mosquitto 2.0.11 differs from its
//! manual, the manual is followed.

pub(crate) mod args;
mod connection;
mod events;
pub(crate) mod failure;
mod format;
mod properties;
mod publish;
#[cfg(feature = "quic")]
mod quic;
#[cfg(not(feature = "quic"))]
#[path = "quic_absent.rs"]
mod quic;
mod subscribe;
pub(crate) mod target;
mod tls;
pub(crate) mod transport;

pub use publish::{command as publish_command, run as publish};
pub use subscribe::{command as subscribe_command, run as subscribe};
