//! The address of the broker and the way to connect to it. Not part of a scenario: the same scenario runs against any
//! broker.

use std::net::IpAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LoadTarget {
    /// Host names or addresses; connections use them in turn.
    pub hosts: Vec<String>,
    pub port: u16,
    pub transport: TargetTransport,
    pub tls: TargetTls,
    /// The path of the WebSocket endpoint.
    pub path: String,
    /// Local addresses to connect from, used in turn: each has about 28,000 ports (60,000 with a wider
    /// `ip_local_port_range`).
    pub source_addresses: Vec<IpAddr>,
    /// `SO_RCVBUF` of the connections; if absent, the kernel chooses.
    pub receive_buffer_bytes: Option<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TargetTransport {
    Tcp,
    Tls,
    Ws,
    Wss,
    Quic,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TargetTls {
    pub ca_file: Option<PathBuf>,
    pub cert_file: Option<PathBuf>,
    pub key_file: Option<PathBuf>,
    /// Accepts any certificate of the server.
    pub is_insecure: bool,
    /// Keeps TLS session tickets, so that later connections resume a session.
    pub resumes: bool,
}

impl Default for LoadTarget {
    fn default() -> LoadTarget {
        LoadTarget {
            hosts: vec!["localhost".into()],
            port: 1883,
            transport: TargetTransport::Tcp,
            tls: TargetTls::default(),
            path: "/mqtt".into(),
            source_addresses: Vec::new(),
            receive_buffer_bytes: None,
        }
    }
}
