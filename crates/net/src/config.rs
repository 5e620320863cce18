//! Settings of the server: listeners, their limits, and the limits of the event loop. These are resolved values; the
//! binary converts them from the configuration file.

use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU16;
use std::sync::Arc;
use std::time::Duration;

use broker::Transport;

use crate::thread_sharing::ThreadSharingPolicy;
use crate::websocket::handshake::UpgradeRules;

/// Settings of `Server::start`, without the broker's own limits.
#[derive(Clone)]
pub struct ServerConfig {
    /// `Peer::listener` and `Credentials::listener` are indices into this list.
    pub listeners: Vec<ListenerConfig>,
    /// A listener without a socket, after the others in every list. Another server accepts and upgrades its connections
    /// and hands them over (`Handle::hand_over`). `bind`, `tls` and `websocket` are ignored.
    pub handed_over: Option<ListenerConfig>,
    /// Worker threads, each with one shard, at most `broker::interest::SHARDS_MAX`. `None`: the number of cores
    /// available to the process.
    pub workers: Option<NonZeroU16>,
    /// Thresholds for workers sharing a thread.
    pub thread_sharing: ThreadSharingPolicy,
    /// Maximum number of connections of all listeners together, including those in their handshake.
    pub max_connections: usize,
    /// Number of connections for which the process has file descriptors (`descriptors.rs`). `usize::MAX`: unknown.
    pub descriptor_limit: usize,
    /// How long a closing connection may take to read its remaining output.
    pub linger_timeout: Duration,
    /// Maximum size of the incomplete packets of all connections together, beyond 4 KiB each. Further clients with
    /// large packets are disconnected.
    pub max_incomplete_packets: usize,
    /// Maximum size of a CONNECT packet, which is read before the client is authenticated.
    pub maximum_connect_size: u32,
    /// Threads that run the `Authenticator`. `None`: the number of cores, at most 4.
    pub auth_threads: Option<NonZeroU16>,
    /// Maximum number of queued authentications. Further ones are answered with Server busy.
    pub auth_queue_max: usize,
    /// Idle time after which the kernel probes a connection. `None` disables probing.
    pub tcp_keep_alive: Option<Duration>,
    /// Seed of all random choices of the shards. The binary takes it from the operating system.
    pub seed: u64,
}

impl Default for ServerConfig {
    fn default() -> ServerConfig {
        ServerConfig {
            listeners: Vec::new(),
            handed_over: None,
            workers: None,
            thread_sharing: ThreadSharingPolicy::default(),
            max_connections: 1_000_000,
            descriptor_limit: usize::MAX,
            linger_timeout: Duration::from_secs(5),
            max_incomplete_packets: usize::MAX,
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
    /// Name in the configuration key `listeners.<kind>.<name>`.
    pub name: Box<str>,
    pub bind: SocketAddr,
    pub transport: Transport,
    /// Present if and only if the transport is `Tls` or `SecureWebSocket`. Created by `tls::server_config`.
    pub tls: Option<Arc<rustls::ServerConfig>>,
    /// If set, connections must begin with a PROXY protocol header.
    pub proxy: Option<ProxyConfig>,
    /// Path and allowed origins of WebSocket upgrades.
    pub websocket: UpgradeRules,
    /// Time from accept to a complete CONNECT, including PROXY header, TLS and WebSocket handshake.
    pub handshake_timeout: Duration,
    pub max_connections: usize,
    pub max_connection_rate: Option<ConnectionRate>,
    /// Maximum number of connections that the kernel queues until they are accepted.
    pub backlog: u32,
    /// Overrides the shard's limit if it is smaller.
    pub max_packet_size: Option<u32>,
    /// Kernel buffers per connection (SO_SNDBUF, SO_RCVBUF). `None` leaves the kernel's automatic tuning enabled.
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
            max_packet_size: None,
            send_buffer_bytes: None,
            receive_buffer_bytes: None,
        }
    }

    /// Returns the configuration key of the address, for messages to the operator.
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

/// Returns the part of the configuration key that names the kind of listener.
pub fn transport_key(transport: Transport) -> &'static str {
    match transport {
        Transport::Tcp => "tcp",
        Transport::Tls => "tls",
        Transport::WebSocket => "ws",
        Transport::SecureWebSocket => "wss",
    }
}

/// A token bucket: `burst` connections at once, then one per `interval`.
///
/// Excess connections are accepted, closed with a reset, and counted. If they stayed in the kernel's backlog, they
/// would fill it with clients that have already timed out and reconnected, and live clients would not be accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionRate {
    pub interval: Duration,
    pub burst: u32,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProxyConfig {
    /// Networks that may send a PROXY header. Connections from other addresses are rejected: their header cannot be
    /// trusted, and without a header the proxy's address would be taken for the client's.
    pub trusted: Vec<AddressPrefix>,
}

/// An address and the number of leading bits that are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressPrefix {
    pub address: IpAddr,
    pub prefix_bits: u8,
}

impl AddressPrefix {
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
    fn network_contains_addresses_with_its_prefix() {
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
            let network = AddressPrefix {
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
    fn bind_key_matches_the_configuration() {
        let listener = ListenerConfig::new("internal", Transport::SecureWebSocket, "[::]:0".parse().unwrap());
        assert_eq!(listener.bind_key(), "listeners.wss.internal.bind");
    }
}
