//! Load from several machines: `tidewire bench agent` waits for an orchestrator and executes its commands;
//! [`remote::Remote`] is the driver that talks to an agent.
//!
//! ```text
//! agent        {"hello":{"version":…,"nonce":…,"cores":…,"host":…}}
//! orchestrator {"join":{"version":…,"proof":…}}                      HMAC-SHA256 of the nonce with the token
//! agent        {"welcome":null} or {"refused":"why"}
//! orchestrator {"ping":n} … {"command":…}      agent {"pong":{"ping":n,"clock_ns":…}} … {"event":…}
//! ```
//! Each message is one line of JSON of bounded length. The token itself is never sent. An agent serves one orchestrator
//! at a time, and a run ends with its connection. The connection is not encrypted: use it in test networks, not over
//! the open Internet.

pub mod clock;
pub mod line;
pub mod proof;
pub mod remote;
pub mod server;

use serde::{Deserialize, Serialize};

use crate::driver::{DriverCommand, DriverEvent};

/// Version of the protocol; it changes when a message changes its meaning. Both sides must have the same.
pub const VERSION: u32 = 1;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FromAgent {
    Hello(Hello),
    Welcome,
    Refused(String),
    Pong {
        ping: u32,
        clock_ns: u64,
    },
    Event(DriverEvent),
    /// Sent at intervals when there is nothing else to send.
    Alive,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToAgent {
    Join { version: u32, proof: String },
    Ping { ping: u32 },
    Command(DriverCommand),
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Hello {
    pub version: u32,
    /// The challenge to prove the token with; different for every connection.
    pub nonce: String,
    pub cores: u16,
    pub host: String,
}
