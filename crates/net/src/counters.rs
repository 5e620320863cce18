//! Counters of the network layer. Each worker counts locally and publishes once per tick with relaxed stores, so that
//! counting is free on the data plane and readers need no worker.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! early_close_reasons {
    ($($(#[$doc:meta])* $reason:ident $name:literal,)*) => {
        /// Why a connection was closed before its CONNECT reached a shard. Each reason has a counter per listener.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum EarlyCloseReason { $($(#[$doc])* $reason,)* }

        impl EarlyCloseReason {
            pub const ALL: [EarlyCloseReason; EarlyCloseReason::COUNT] = [$(EarlyCloseReason::$reason),*];
            pub const COUNT: usize = [$($name),*].len();

            /// Returns the metric label.
            pub const fn name(self) -> &'static str {
                match self { $(EarlyCloseReason::$reason => $name,)* }
            }
        }
    };
}

early_close_reasons! {
    /// `max_connections` of the server.
    ServerFull "server_full",
    /// The process may not open more files.
    DescriptorLimit "descriptor_limit",
    /// `max_connections` of the listener.
    ListenerFull "listener_full",
    ConnectionRate "connection_rate",
    /// `max_connection_rate_per_address` of the server.
    AddressRate "address_rate",
    /// The listener expects a PROXY header, and this address is not trusted to send one.
    ProxyUntrusted "proxy_untrusted",
    ProxyMalformed "proxy_malformed",
    TlsHandshake "tls_handshake",
    WebSocketHandshake "websocket_handshake",
    /// WebSocket framing was violated before the CONNECT was complete.
    WebSocketFraming "websocket_framing",
    /// TLS, HTTP or another protocol arrived instead of MQTT.
    OtherProtocol "other_protocol",
    HandshakeTimeout "handshake_timeout",
    /// The CONNECT exceeds `maximum_connect_size`.
    ConnectTooLarge "connect_too_large",
    /// Connections in their handshake hold too many bytes together, beyond 4 KiB each.
    HandshakeMemory "handshake_memory",
    /// Closed or reset by the peer.
    PeerClosed "peer_closed",
    ShuttingDown "shutting_down",
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
    /// Questions about the access rules of clients, which paused them.
    access_questions,
    /// Clients that were asked to show that they receive at their address before their QUIC connection was accepted.
    quic_retries,
    /// QUIC datagrams that were dropped because another worker's mailbox was full.
    quic_datagrams_dropped,
    /// Data streams of QUIC connections that were accepted.
    quic_streams,
    /// Data streams that were reset because a limit was reached, or because the listener allows none.
    quic_streams_rejected,
    /// Data streams that the server ended because of a forbidden packet, a limit, or its shutdown.
    quic_streams_ended,
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
