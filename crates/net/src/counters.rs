//! What the network side counts. Per worker, published once per tick with relaxed stores, so that counting costs the data plane
//! nothing and reading needs no worker.

use std::sync::atomic::{AtomicU64, Ordering};

/// Why a connection ended before its CONNECT reached a shard. Each has a counter per listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Refusal {
    /// `max_connections` of the server.
    ServerFull,
    /// `max_connections` of the listener.
    ListenerFull,
    ConnectionRate,
    /// A PROXY header is expected, and this address may not send one.
    ProxyUntrusted,
    ProxyMalformed,
    TlsHandshake,
    WebSocketHandshake,
    /// WebSocket framing was violated before the CONNECT was complete.
    WebSocketFraming,
    HandshakeTimeout,
    /// CONNECT above `maximum_connect_size`.
    ConnectTooLarge,
    /// Too many peers in their handshake hold more than their 4 KiB.
    HandshakeMemory,
    /// Closed or reset by the peer.
    PeerClosed,
    ShuttingDown,
}

impl Refusal {
    pub const COUNT: usize = 13;

    pub const ALL: [Refusal; Refusal::COUNT] = [
        Refusal::ServerFull,
        Refusal::ListenerFull,
        Refusal::ConnectionRate,
        Refusal::ProxyUntrusted,
        Refusal::ProxyMalformed,
        Refusal::TlsHandshake,
        Refusal::WebSocketHandshake,
        Refusal::WebSocketFraming,
        Refusal::HandshakeTimeout,
        Refusal::ConnectTooLarge,
        Refusal::HandshakeMemory,
        Refusal::PeerClosed,
        Refusal::ShuttingDown,
    ];

    /// As a metric label.
    pub const fn name(self) -> &'static str {
        match self {
            Refusal::ServerFull => "server_full",
            Refusal::ListenerFull => "listener_full",
            Refusal::ConnectionRate => "connection_rate",
            Refusal::ProxyUntrusted => "proxy_untrusted",
            Refusal::ProxyMalformed => "proxy_malformed",
            Refusal::TlsHandshake => "tls_handshake",
            Refusal::WebSocketHandshake => "websocket_handshake",
            Refusal::WebSocketFraming => "websocket_framing",
            Refusal::HandshakeTimeout => "handshake_timeout",
            Refusal::ConnectTooLarge => "connect_too_large",
            Refusal::HandshakeMemory => "handshake_memory",
            Refusal::PeerClosed => "peer_closed",
            Refusal::ShuttingDown => "shutting_down",
        }
    }
}

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// Totals since the start; `bytes` are those on the wire, TLS and WebSocket framing included.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct NetCounters {
            $($(#[$doc])* pub $name: u64,)*
        }

        /// Where a worker publishes its own `NetCounters`; on cache lines of its own.
        #[derive(Debug, Default)]
        #[repr(align(128))]
        pub(crate) struct PublishedCounters {
            $($name: AtomicU64,)*
        }

        impl PublishedCounters {
            pub(crate) fn publish(&self, counters: &NetCounters) {
                $(self.$name.store(counters.$name, Ordering::Relaxed);)*
            }

            pub(crate) fn add_to(&self, sum: &mut NetCounters) {
                $(sum.$name += self.$name.load(Ordering::Relaxed);)*
            }
        }
    };
}

counters! {
    accepted,
    /// accept(2) failed; accepting pauses when the process has no file descriptor left.
    accept_errors,
    /// Connections that moved to their home worker after CONNECT.
    moved,
    closed,
    bytes_in,
    bytes_out,
    reads,
    writes,
    /// Writes that the socket did not take in full.
    writes_blocked,
    /// Violations of WebSocket or TLS framing after CONNECT.
    transport_errors,
    /// Connections cut because the peer did not read what was left within the linger time.
    linger_timeouts,
    /// Authentications that a thread of the pool has to decide.
    auth_submitted,
    /// Authentications answered with Server busy because the queue was full.
    auth_queue_full,
    /// Turns of the event loops.
    ticks,
    /// Times that the worker moved in with the first one's thread.
    lodgings,
    /// Times that mail had to wait for another worker.
    mail_held,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_counters_of_workers_add_up() {
        let (a, b) = (PublishedCounters::default(), PublishedCounters::default());
        a.publish(&NetCounters {
            accepted: 3,
            bytes_in: 10,
            ..NetCounters::default()
        });
        b.publish(&NetCounters {
            accepted: 4,
            ..NetCounters::default()
        });
        b.publish(&NetCounters {
            accepted: 5,
            ..NetCounters::default()
        });
        let mut sum = NetCounters::default();
        a.add_to(&mut sum);
        b.add_to(&mut sum);
        assert_eq!((sum.accepted, sum.bytes_in), (8, 10));
    }

    #[test]
    fn every_refusal_has_its_own_index_and_name() {
        for (index, refusal) in Refusal::ALL.into_iter().enumerate() {
            assert_eq!(refusal as usize, index);
        }
        let names: std::collections::BTreeSet<_> = Refusal::ALL.iter().map(|r| r.name()).collect();
        assert_eq!(names.len(), Refusal::COUNT);
    }
}
