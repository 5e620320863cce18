//! Where the broker is and how it is reached. Not part of a scenario: the same scenario runs against any broker.

use std::net::IpAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Target {
    /// Host names or addresses; connections are spread over them in turn.
    pub hosts: Vec<String>,
    pub port: u16,
    pub transport: Transport,
    pub tls: Tls,
    /// Path of the WebSocket end point.
    pub path: String,
    /// Local addresses to connect from, in turn: one has some 28,000 ports (60,000 with a wider `ip_local_port_range`).
    pub source_addresses: Vec<IpAddr>,
    /// `SO_RCVBUF` of the connections; the kernel's own choice without.
    pub receive_buffer_bytes: Option<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Transport {
    Tcp,
    Tls,
    Ws,
    Wss,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Tls {
    pub ca_file: Option<PathBuf>,
    pub cert_file: Option<PathBuf>,
    pub key_file: Option<PathBuf>,
    /// Takes any certificate of the server.
    pub is_insecure: bool,
    /// Keeps session tickets, so that later connections resume.
    pub resumes: bool,
}

impl Default for Target {
    fn default() -> Target {
        Target {
            hosts: vec!["localhost".into()],
            port: 1883,
            transport: Transport::Tcp,
            tls: Tls::default(),
            path: "/mqtt".into(),
            source_addresses: Vec::new(),
            receive_buffer_bytes: None,
        }
    }
}
