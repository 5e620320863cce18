//! Shared code of the end-to-end suites: a raw MQTT peer, hand-written packets, and a guard around a server process.
//!
//! It uses neither an MQTT client library nor the project's codec. The packets are written independently from the
//! specification, so that tests do not share bugs with the code under test. All calls block, panic with a description
//! when an expectation fails, and wait for conditions instead of fixed times.
//!
//! ```ignore
//! let server = Server::shared();
//! let mut subscriber = server.session(&Connect::new(V5, "s"));
//! subscriber.subscribe("a/+", 1);
//! let mut publisher = server.session(&Connect::new(V4, "p"));
//! publisher.publish(&Publish::new("a/b", "hello").qos(1));
//! assert_eq!(subscriber.expect_publish().payload, b"hello");
//! ```

// No suite uses all of this code.
#![allow(dead_code, unused_imports, clippy::print_stderr)]

pub mod api;
pub mod http;
pub mod kafka;
pub mod kafka_log;
pub mod packet;
pub mod peer;
pub mod ports;
pub mod property;
pub mod reader;
pub mod scale;
pub mod server;
pub mod shared;
pub mod target;
pub mod websocket;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

pub use packet::{Connect, Publish, Will};
pub use peer::{Closed, Peer, Reading};
pub use ports::free_port;
pub use property as prop;
pub use reader::{Connack, Delivery, Packet, Properties, Value};
pub use scale::scaled;
pub use server::{Config, Server, is_running};
pub use websocket::{Frame, WebSocket};

pub use Version::{V3, V4, V5};

/// Timeout for an answer of the server. It is long because the machine may be busy. Passing tests do not wait for it.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// The protocol level of a CONNECT.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Version {
    /// MQTT 3.1, protocol name `MQIsdp`.
    V3 = 3,
    /// MQTT 3.1.1.
    V4 = 4,
    /// MQTT 5.0.
    V5 = 5,
}

pub const ALL_VERSIONS: [Version; 3] = [V3, V4, V5];

/// MQTT control packet types.
pub mod kind {
    pub const CONNECT: u8 = 1;
    pub const CONNACK: u8 = 2;
    pub const PUBLISH: u8 = 3;
    pub const PUBACK: u8 = 4;
    pub const PUBREC: u8 = 5;
    pub const PUBREL: u8 = 6;
    pub const PUBCOMP: u8 = 7;
    pub const SUBSCRIBE: u8 = 8;
    pub const SUBACK: u8 = 9;
    pub const UNSUBSCRIBE: u8 = 10;
    pub const UNSUBACK: u8 = 11;
    pub const PINGREQ: u8 = 12;
    pub const PINGRESP: u8 = 13;
    pub const DISCONNECT: u8 = 14;
    pub const AUTH: u8 = 15;

    pub const NAMES: [&str; 16] = [
        "reserved 0",
        "CONNECT",
        "CONNACK",
        "PUBLISH",
        "PUBACK",
        "PUBREC",
        "PUBREL",
        "PUBCOMP",
        "SUBSCRIBE",
        "SUBACK",
        "UNSUBSCRIBE",
        "UNSUBACK",
        "PINGREQ",
        "PINGRESP",
        "DISCONNECT",
        "AUTH",
    ];
}

/// Sets the flag when it is dropped, also by a panic. A thread scope waits for its threads, and those for the flag.
pub struct SetOnDrop<'f>(pub &'f AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Returns a name that is unique in this process. Tests share a server and need different client identifiers and
/// topics.
pub fn unique(prefix: &str) -> String {
    use std::sync::atomic::AtomicU32;
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("{prefix}-{}", NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Returns pseudo-random bytes (xorshift64*). The same seed gives the same bytes on every machine.
pub fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    (0..length)
        .map(|_| {
            state ^= state >> 12;
            state ^= state << 25;
            state ^= state >> 27;
            (state.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 56) as u8
        })
        .collect()
}
