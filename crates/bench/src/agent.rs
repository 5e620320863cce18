//! Load from several machines: `tidewire bench agent` waits for an orchestrator and does what it says; [`remote::Remote`] is the
//! driver that speaks with one.
//!
//! ```text
//! agent        {"hello":{"version":…,"nonce":…,"cores":…,"host":…}}
//! orchestrator {"join":{"version":…,"proof":…}}                      HMAC-SHA256 of the nonce with the token
//! agent        {"welcome":null} or {"refused":"why"}
//! orchestrator {"ping":n} … {"command":…}      agent {"pong":{"ping":n,"clock_ns":…}} … {"event":…}
//! ```
//! One line of JSON each, of bounded length. The token itself never travels. An agent serves one orchestrator at a time, and a run is
//! over when its connection ends. Loads travel in the clear: this is for networks in which load is generated, not for the open Internet.

pub mod clock;
pub mod line;
pub mod proof;
pub mod remote;
pub mod server;

use serde::{Deserialize, Serialize};

use crate::driver::{Command, Event};

/// Changes when messages change their meaning; both sides must have the same.
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
    Event(Event),
    /// Now and then while there is nothing else to say.
    Alive,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToAgent {
    Join { version: u32, proof: String },
    Ping { ping: u32 },
    Command(Command),
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Hello {
    pub version: u32,
    /// To be proven with; another for every connection.
    pub nonce: String,
    pub cores: u16,
    pub host: String,
}
