//! `tidewire pub` and `tidewire sub`: mosquitto_pub and mosquitto_sub, with WebSocket besides.
//!
//! Blocking sockets and a few threads that feed one channel (`events.rs`); the main thread owns everything else and never
//! waits for anything but that channel. Flags, output and exit codes are Mosquitto's where it has them; where its 2.0.11
//! differs from its own manual, the manual is followed.

pub(crate) mod args;
mod connection;
mod events;
pub(crate) mod failure;
mod format;
mod properties;
mod publish;
mod subscribe;
pub(crate) mod target;
mod tls;
pub(crate) mod transport;
pub(crate) mod websocket;

pub use publish::{command as publish_command, run as publish};
pub use subscribe::{command as subscribe_command, run as subscribe};
