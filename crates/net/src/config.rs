//! What the server is started with: listeners, their limits, and the bounds of the loop. Resolved values, not the raw
//! configuration file; the binary translates.

use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU16;
use std::sync::Arc;
use std::time::Duration;

use broker::Transport;

use crate::crew::CrewPolicy;
use crate::websocket::handshake::UpgradeRules;

/// Everything that `Server::start` needs besides the broker's own limits.
#[derive(Clone)]
pub struct ServerConfig {
    /// `Peer::listener` and `Credentials::listener` are indices into this list.
    pub listeners: Vec<ListenerConfig>,
    /// One more, without a socket of its own, behind the others in every list: somebody else accepts and upgrades its connections
    /// and hands them over (`Handle::hand_over`). Its `bind`, `tls` and `websocket` are not looked at.
    pub handed_over: Option<ListenerConfig>,
    /// Worker threads, each with one shard, `broker::interest::SHARDS_MAX` at most. `None`: as many as the process may use
    /// cores.
    pub workers: Option<NonZeroU16>,
    /// When workers share a thread.
    pub crew: CrewPolicy,
    /// Connections of all listeners together, those in their handshake included.
    pub max_connections: usize,
    /// How long a connection that is being closed may take to read what was sent to it.
    pub linger_timeout: Duration,
    /// Limit of the CONNECT packet, read before anything is known about the peer.
    pub maximum_connect_size: u32,
    /// Threads that run the `Authenticator`. `None`: as many as cores, at most 4.
    pub auth_threads: Option<NonZeroU16>,
    /// Decisions that may wait for a thread; one more is answered with Server busy.
    pub auth_queue_max: usize,
    /// Idle time after which the kernel probes a connection. `None` leaves probing off.
    pub tcp_keep_alive: Option<Duration>,
    /// Feeds every random choice of the shards; the binary takes it from the operating system.
    pub seed: u64,
}

impl Default for ServerConfig {
    fn default() -> ServerConfig {
        ServerConfig {
            listeners: Vec::new(),
            handed_over: None,
            workers: None,
            crew: CrewPolicy::default(),
            max_connections: 1_000_000,
            linger_timeout: Duration::from_secs(5),
            maximum_connect_size: 512 * 1024,
            auth_threads: None,
            auth_queue_max: 1024,
            tcp_keep_alive: Some(Duration::from_secs(300)),
            seed: 0,
        }
    }
}

#[derive(Clone)]
pub struct ListenerConfig {
    /// As in the configuration key `listeners.<kind>.<name>`.
    pub name: Box<str>,
    pub bind: SocketAddr,
    pub transport: Transport,
    /// Present exactly for `Tls` and `SecureWebSocket`; `tls::server_config` makes one.
    pub tls: Option<Arc<rustls::ServerConfig>>,
    /// Expect a PROXY protocol header, and from whom.
    pub proxy: Option<ProxyConfig>,
    /// Path and origins of WebSocket upgrades.
    pub websocket: UpgradeRules,
    /// From accept to a complete CONNECT: PROXY header, TLS and WebSocket handshake included.
    pub handshake_timeout: Duration,
    pub max_connections: usize,
    pub max_connection_rate: Option<ConnectionRate>,
    /// Connections that the kernel holds until they are accepted.
    pub backlog: u32,
    /// When it is to be smaller than the shard's.
    pub maximum_packet_size: Option<u32>,
    /// Kernel buffers per connection (SO_SNDBUF, SO_RCVBUF); `None` leaves the kernel's own tuning on.
    pub send_buffer_bytes: Option<u32>,
    pub receive_buffer_bytes: Option<u32>,
}

impl ListenerConfig {
    pub fn new(name: &str, transport: Transport, bind: SocketAddr) -> ListenerConfig {
        ListenerConfig {
            name: name.into(),
            bind,
            transport,
            tls: None,
            proxy: None,
            websocket: UpgradeRules::default(),
            handshake_timeout: Duration::from_secs(10),
            max_connections: 1_000_000,
            max_connection_rate: None,
            backlog: 1024,
            maximum_packet_size: None,
            send_buffer_bytes: None,
            receive_buffer_bytes: None,
        }
    }

    /// Configuration key of the address, for messages to the operator.
    pub fn bind_key(&self) -> String {
        format!("listeners.{}.{}.bind", transport_key(self.transport), self.name)
    }

    pub(crate) fn is_tls(&self) -> bool {
        matches!(self.transport, Transport::Tls | Transport::SecureWebSocket)
    }

    pub(crate) fn is_websocket(&self) -> bool {
        matches!(self.transport, Transport::WebSocket | Transport::SecureWebSocket)
    }
}

/// The part of the configuration key that names the kind of listener.
pub fn transport_key(transport: Transport) -> &'static str {
    match transport {
        Transport::Tcp => "tcp",
        Transport::Tls => "tls",
        Transport::WebSocket => "ws",
        Transport::SecureWebSocket => "wss",
    }
}

/// A token bucket: `burst` connections at once, then one in every `interval`.
///
/// Excess connections are accepted, closed with a reset, and counted. Left in the kernel's backlog instead, they would
/// fill it with clients that have long given up and reconnected, so that a live one never gets its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionRate {
    pub interval: Duration,
    pub burst: u32,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProxyConfig {
    /// Who may send a PROXY header. A connection from anywhere else is refused: what it says of itself cannot be believed, and
    /// without a header its address would pass for the client's.
    pub trusted: Vec<Network>,
}

/// An address with the number of leading bits that count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    pub address: IpAddr,
    pub prefix_bits: u8,
}

impl Network {
    pub fn contains(&self, address: IpAddr) -> bool {
        match (self.address, address.to_canonical()) {
            (IpAddr::V4(net), IpAddr::V4(other)) => {
                same_prefix(net.to_bits().into(), other.to_bits().into(), 32, self.prefix_bits)
            }
            (IpAddr::V6(net), IpAddr::V6(other)) => same_prefix(net.to_bits(), other.to_bits(), 128, self.prefix_bits),
            _ => false,
        }
    }
}

fn same_prefix(a: u128, b: u128, width: u32, prefix_bits: u8) -> bool {
    let ignored = width.saturating_sub(u32::from(prefix_bits));
    (a ^ b).checked_shr(ignored).unwrap_or(0) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_contain_what_shares_their_prefix() {
        for (address, prefix_bits, other, expected) in [
            ("10.0.0.0", 8, "10.255.1.2", true),
            ("10.0.0.0", 8, "11.0.0.1", false),
            ("192.168.1.7", 32, "192.168.1.7", true),
            ("192.168.1.7", 32, "192.168.1.6", false),
            ("192.168.1.7", 32, "::ffff:192.168.1.7", true),
            ("0.0.0.0", 0, "8.8.8.8", true),
            ("0.0.0.0", 0, "::1", false),
            ("fd00::", 8, "fd12::1", true),
            ("::", 0, "2001:db8::1", true),
            ("::1", 128, "::2", false),
        ] {
            let network = Network {
                address: address.parse().unwrap(),
                prefix_bits,
            };
            assert_eq!(
                network.contains(other.parse().unwrap()),
                expected,
                "{address}/{prefix_bits} {other}"
            );
        }
    }

    #[test]
    fn the_bind_key_is_what_the_configuration_calls_it() {
        let listener = ListenerConfig::new("internal", Transport::SecureWebSocket, "[::]:0".parse().unwrap());
        assert_eq!(listener.bind_key(), "listeners.wss.internal.bind");
    }
}
