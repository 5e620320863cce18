//! Settings of the server: listeners, their limits, and the limits of the event loop. These are resolved values; the
//! binary converts them from the configuration file.

use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU16;
use std::sync::Arc;
use std::time::Duration;

use broker::{TokenRate, Transport};

use crate::address_prefix::AddressPrefix;
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
    /// Maximum rate of new connections from an address, IPv6 by its /64, on all listeners with a socket.
    pub max_connection_rate_per_address: Option<TokenRate>,
    /// Number of connections for which the process has file descriptors (`descriptors.rs`). `usize::MAX`: unknown.
    pub descriptor_limit: usize,
    /// How long a closing connection may take to read its remaining output.
    pub linger_timeout: Duration,
    /// Maximum size of the incomplete packets of all connections together, beyond 4 KiB each. Further clients with
    /// large packets are disconnected.
    pub max_incomplete_packets: usize,
    /// Maximum size of the windows of all QUIC connections together, beyond 32 KiB each. Windows do not grow beyond it.
    pub max_quic_windows: usize,
    /// Maximum size of a CONNECT packet, which is read before the client is authenticated.
    pub maximum_connect_size: u32,
    /// Threads that run the `Authenticator`. `None`: the number of cores, at most 4.
    pub auth_threads: Option<NonZeroU16>,
    /// Maximum number of queued authentications. Further ones are answered with Server busy. Half of it is for any
    /// address, the other half for addresses with at most an eighth. This also holds for the memory.
    pub auth_queue_max: usize,
    /// Maximum memory of the credentials of queued authentications.
    pub auth_queue_bytes_max: usize,
    /// Idle time after which the kernel probes a connection. `None` disables probing.
    pub tcp_keep_alive: Option<Duration>,
    /// Seed of all random choices of the shards. The binary takes it from the operating system.
    pub seed: u64,
}

pub(crate) const AUTH_QUEUE_MAX: usize = 16_384;
pub(crate) const AUTH_QUEUE_BYTES_MAX: usize = 64 * 1024 * 1024;

impl Default for ServerConfig {
    fn default() -> ServerConfig {
        ServerConfig {
            listeners: Vec::new(),
            handed_over: None,
            workers: None,
            thread_sharing: ThreadSharingPolicy::default(),
            max_connections: 1_000_000,
            max_connection_rate_per_address: None,
            descriptor_limit: usize::MAX,
            linger_timeout: Duration::from_secs(5),
            max_incomplete_packets: usize::MAX,
            max_quic_windows: usize::MAX,
            maximum_connect_size: 512 * 1024,
            auth_threads: None,
            auth_queue_max: AUTH_QUEUE_MAX,
            auth_queue_bytes_max: AUTH_QUEUE_BYTES_MAX,
            tcp_keep_alive: Some(Duration::from_secs(300)),
            seed: 0,
        }
    }
}

/// Thresholds for sharing a thread.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ThreadSharingPolicy {
    /// Workers move to the shared thread if all threads together were busy for less than this share of one core …
    pub share_below: f64,
    /// … during this time.
    pub share_after: Duration,
    /// Workers return to their own threads if the shared thread was busy for more than this share …
    pub separate_above: f64,
    /// … of this time.
    pub separate_after: Duration,
}

impl Default for ThreadSharingPolicy {
    fn default() -> ThreadSharingPolicy {
        ThreadSharingPolicy {
            share_below: 0.6,
            share_after: Duration::from_millis(500),
            separate_above: 0.85,
            separate_after: Duration::from_millis(20),
        }
    }
}

#[derive(Clone)]
pub struct ListenerConfig {
    /// Name in the configuration key `listeners.<kind>.<name>`.
    pub name: Box<str>,
    pub bind: SocketAddr,
    pub transport: Transport,
    /// Present if and only if the transport is `Tls`, `SecureWebSocket` or `Quic`. Created by
    /// `tls::server_config`.
    pub tls: Option<Arc<rustls::ServerConfig>>,
    /// Secret of the stateless resets of QUIC, the same after each restart. `None`: random.
    pub stateless_reset_secret: Option<Box<[u8]>>,
    /// If set, connections must begin with a PROXY protocol header.
    pub proxy: Option<ProxyConfig>,
    /// Path and allowed origins of WebSocket upgrades.
    pub websocket: UpgradeRules,
    /// Time from accept to a complete CONNECT, including PROXY header, TLS and WebSocket handshake.
    pub handshake_timeout: Duration,
    pub max_connections: usize,
    /// Maximum rate of new connections.
    ///
    /// Excess connections are accepted, closed with a reset, and counted. If they stayed in the kernel's backlog, they
    /// would fill it with clients that have already timed out and reconnected, and live clients would not be accepted.
    pub max_connection_rate: Option<TokenRate>,
    /// Maximum number of connections that the kernel queues until they are accepted.
    pub backlog: u32,
    /// Overrides the shard's limit if it is smaller.
    pub max_packet_size: Option<u32>,
    /// Kernel buffers per connection (SO_SNDBUF, SO_RCVBUF), or the windows of a QUIC connection. `None` leaves the
    /// kernel's automatic tuning enabled.
    pub send_buffer_bytes: Option<u32>,
    pub receive_buffer_bytes: Option<u32>,
    /// Maximum number of data streams of a QUIC connection, in addition to the control stream. 0: no data streams.
    pub max_data_streams: u16,
}

impl ListenerConfig {
    pub fn new(name: &str, transport: Transport, bind: SocketAddr) -> ListenerConfig {
        ListenerConfig {
            name: name.into(),
            bind,
            transport,
            tls: None,
            stateless_reset_secret: None,
            proxy: None,
            websocket: UpgradeRules::default(),
            handshake_timeout: Duration::from_secs(10),
            max_connections: 1_000_000,
            max_connection_rate: None,
            backlog: 1024,
            max_packet_size: None,
            send_buffer_bytes: None,
            receive_buffer_bytes: None,
            max_data_streams: 0,
        }
    }

    /// Returns the configuration key of the address, for messages to the operator.
    pub fn bind_key(&self) -> String {
        format!("listeners.{}.{}.bind", transport_key(self.transport), self.name)
    }

    /// Returns whether the client connects from this address itself. The header of a trusted proxy names another one.
    pub(crate) fn is_address_of_client(&self, address: IpAddr) -> bool {
        let proxies = &self.websocket.trusted_proxies;
        !self.is_websocket() || !proxies.iter().any(|proxy| proxy.contains(address))
    }

    pub(crate) fn is_tls(&self) -> bool {
        matches!(self.transport, Transport::Tls | Transport::SecureWebSocket)
    }

    /// Returns whether the listener needs `tls`.
    pub(crate) fn has_certificate(&self) -> bool {
        self.is_tls() || self.transport == Transport::Quic
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
        Transport::Quic => "quic",
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProxyConfig {
    /// Networks that may send a PROXY header. Connections from other addresses are rejected: their header cannot be
    /// trusted, and without a header the proxy's address would be taken for the client's.
    pub trusted: Vec<AddressPrefix>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bind_key_matches_the_configuration() {
        let listener = ListenerConfig::new("internal", Transport::SecureWebSocket, "[::]:0".parse().unwrap());
        assert_eq!(listener.bind_key(), "listeners.wss.internal.bind");
    }
}
