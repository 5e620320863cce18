//! Counters of the network layer. Each worker counts locally and publishes once per tick with relaxed stores, so that
//! counting is free on the data plane and readers need no worker.

use std::sync::atomic::{AtomicU64, Ordering};

/// Why a connection was closed before its CONNECT reached a shard. Each reason has a counter per listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum EarlyCloseReason {
    /// `max_connections` of the server.
    ServerFull,
    /// The process may not open more files.
    DescriptorLimit,
    /// `max_connections` of the listener.
    ListenerFull,
    ConnectionRate,
    /// The listener expects a PROXY header, and this address is not trusted to send one.
    ProxyUntrusted,
    ProxyMalformed,
    TlsHandshake,
    WebSocketHandshake,
    /// WebSocket framing was violated before the CONNECT was complete.
    WebSocketFraming,
    /// TLS, HTTP or another protocol arrived instead of MQTT.
    OtherProtocol,
    HandshakeTimeout,
    /// The CONNECT exceeds `maximum_connect_size`.
    ConnectTooLarge,
    /// Connections in their handshake hold too many bytes together, beyond 4 KiB each.
    HandshakeMemory,
    /// Closed or reset by the peer.
    PeerClosed,
    ShuttingDown,
}

impl EarlyCloseReason {
    pub const COUNT: usize = 15;

    pub const ALL: [EarlyCloseReason; EarlyCloseReason::COUNT] = [
        EarlyCloseReason::ServerFull,
        EarlyCloseReason::DescriptorLimit,
        EarlyCloseReason::ListenerFull,
        EarlyCloseReason::ConnectionRate,
        EarlyCloseReason::ProxyUntrusted,
        EarlyCloseReason::ProxyMalformed,
        EarlyCloseReason::TlsHandshake,
        EarlyCloseReason::WebSocketHandshake,
        EarlyCloseReason::WebSocketFraming,
        EarlyCloseReason::OtherProtocol,
        EarlyCloseReason::HandshakeTimeout,
        EarlyCloseReason::ConnectTooLarge,
        EarlyCloseReason::HandshakeMemory,
        EarlyCloseReason::PeerClosed,
        EarlyCloseReason::ShuttingDown,
    ];

    /// Returns the metric label.
    pub const fn name(self) -> &'static str {
        match self {
            EarlyCloseReason::ServerFull => "server_full",
            EarlyCloseReason::DescriptorLimit => "descriptor_limit",
            EarlyCloseReason::ListenerFull => "listener_full",
            EarlyCloseReason::ConnectionRate => "connection_rate",
            EarlyCloseReason::ProxyUntrusted => "proxy_untrusted",
            EarlyCloseReason::ProxyMalformed => "proxy_malformed",
            EarlyCloseReason::TlsHandshake => "tls_handshake",
            EarlyCloseReason::WebSocketHandshake => "websocket_handshake",
            EarlyCloseReason::WebSocketFraming => "websocket_framing",
            EarlyCloseReason::OtherProtocol => "other_protocol",
            EarlyCloseReason::HandshakeTimeout => "handshake_timeout",
            EarlyCloseReason::ConnectTooLarge => "connect_too_large",
            EarlyCloseReason::HandshakeMemory => "handshake_memory",
            EarlyCloseReason::PeerClosed => "peer_closed",
            EarlyCloseReason::ShuttingDown => "shutting_down",
        }
    }
}

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// Totals since the start. `bytes` are on the wire, including TLS and WebSocket framing.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct NetCounters {
            $($(#[$doc])* pub $name: u64,)*
        }

        /// Published `NetCounters` of one worker, on cache lines of their own.
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
    /// Connections that moved to the worker that owns their client id, after CONNECT.
    moved,
    closed,
    bytes_in,
    bytes_out,
    reads,
    writes,
    /// Writes that the socket accepted only in part.
    writes_blocked,
    /// Violations of WebSocket or TLS framing after CONNECT.
    transport_errors,
    /// Connections closed because the peer did not read the remaining output within the linger timeout.
    linger_timeouts,
    /// Authentications submitted to the thread pool.
    auth_submitted,
    /// Authentications answered with Server busy because the queue was full.
    auth_queue_full,
    /// Iterations of the event loops.
    ticks,
    /// Times that a worker moved to the shared thread.
    worker_moves,
    /// Mailbox items that had to wait because another worker's mailbox was full.
    mail_held,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_of_workers_add_up() {
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
    fn refusals_have_distinct_indexes_and_names() {
        for (index, refusal) in EarlyCloseReason::ALL.into_iter().enumerate() {
            assert_eq!(refusal as usize, index);
        }
        let names: std::collections::BTreeSet<_> = EarlyCloseReason::ALL.iter().map(|r| r.name()).collect();
        assert_eq!(names.len(), EarlyCloseReason::COUNT);
    }
}
