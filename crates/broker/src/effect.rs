//! What a shard asks its driver to do, and what the driver tells the shard: the whole boundary of the state machine.
//!
//! Bytes to send are not here but in `Outbox`; messages for other shards are in `Shard::take_mail`.

use std::net::SocketAddr;

use mqtt::ReasonCode;

use crate::access::Credentials;
use crate::durable::record::Position;

/// Milliseconds on a clock that never goes back, and since the Unix epoch. Passed in with every input. The first begins with a number so
/// large that what was before the process has a time too: sessions that were away expire by it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Now {
    pub monotonic_ms: u64,
    pub unix_ms: u64,
}

/// Which of the driver's connections. The driver numbers them, densely, and reuses a slot only after `Shard::closed`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnSlot(pub u32);

/// Which shard of the node, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ShardId(pub u16);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    Tcp,
    Tls,
    WebSocket,
    SecureWebSocket,
}

/// What the driver knows of a connection before its first packet.
#[derive(Clone, Debug)]
pub struct Peer {
    /// Of the client itself, also behind a proxy that says so (PROXY protocol).
    pub address: SocketAddr,
    pub transport: Transport,
    /// Index of the listener in the configuration the driver was started with.
    pub listener: u16,
    /// Of the listener, when it is to be smaller than the shard's.
    pub maximum_packet_size: Option<u32>,
    pub certificate_common_name: Option<Box<str>>,
    /// The client certificate, verified, in DER; until the authenticator has been asked.
    pub certificate: Option<Box<[u8]>>,
}

/// How `Shard::receive` ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// Bytes used, always whole packets; the driver keeps the rest and offers it again with what follows.
    pub consumed: usize,
    pub next: Next,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// No whole packet is left. `needed` is the least number of bytes (from the first unused one) that will tell more:
    /// a hint for the driver's buffer, already checked against the packet size limit.
    Read { needed: usize },
    /// The outbox is full: flush, `end_tick`, and call again with the rest.
    Flush,
    /// Keep the rest and do not read from the socket until the backlog has drained or `Effect::Resume` comes.
    Pause,
    /// The connection is being closed (`Effect::Close`); bytes that follow are not looked at [MQTT-3.14.4-2].
    Closed,
}

#[derive(Debug)]
pub enum Effect {
    /// Flush what is queued for it if that is possible within the linger time, then close.
    Close {
        conn: ConnSlot,
        /// The client's DISCONNECT has come: it says nothing more [MQTT-3.14.4-1], so its own end need not be waited for.
        has_said_goodbye: bool,
    },
    /// Call `receive` again with the rest.
    Resume {
        conn: ConnSlot,
    },
    /// Decide and call `Shard::authenticated` with the same connection and `attempt`.
    Authenticate {
        conn: ConnSlot,
        attempt: u32,
        credentials: Box<Credentials>,
    },
    /// Read the first of these messages from the journal, and call `Shard::fetched` with the same numbers.
    Fetch {
        session: u32,
        connects: u32,
        positions: Vec<Position>,
    },
    Event(Event),
}

/// Why a network connection went away, as the driver saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloseCause {
    /// The peer closed its side, or the connection was reset.
    Peer,
    /// Reading or writing failed.
    Network,
    /// The driver did what `Effect::Close` asked.
    Requested,
    /// TLS, WebSocket or PROXY framing was violated.
    Transport,
}

/// What operators see of clients coming and going; for the log, traces and hooks. Never carries a secret.
#[derive(Clone, Debug)]
pub enum Event {
    Connected {
        client_id: Box<str>,
        user_name: Option<Box<str>>,
        address: SocketAddr,
        session_present: bool,
    },
    Refused {
        client_id: Box<str>,
        user_name: Option<Box<str>>,
        address: SocketAddr,
        reason: ReasonCode,
        because: Box<str>,
    },
    Disconnected {
        client_id: Box<str>,
        address: SocketAddr,
        reason: DisconnectReason,
        because: Box<str>,
    },
    SessionEnded {
        client_id: Box<str>,
        because: &'static str,
    },
    /// First drop of its kind for a session since it connected.
    Dropping {
        client_id: Box<str>,
        reason: DropReason,
    },
}

/// Why a connection that had been accepted ended. Each has a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum DisconnectReason {
    ByClient,
    ByClientWithWill,
    ConnectionLost,
    KeepAliveTimeout,
    TakenOver,
    ProtocolError,
    MalformedPacket,
    PacketTooLarge,
    ReceiveMaximumExceeded,
    TopicAliasInvalid,
    TopicNameInvalid,
    NotAuthorized,
    QuotaExceeded,
    ReAuthenticationFailed,
    Kicked,
    ServerShuttingDown,
    TransportError,
    /// It waited for the journal, or wanted something kept.
    JournalFailed,
}

impl DisconnectReason {
    pub const COUNT: usize = 18;

    pub const ALL: [DisconnectReason; Self::COUNT] = [
        DisconnectReason::ByClient,
        DisconnectReason::ByClientWithWill,
        DisconnectReason::ConnectionLost,
        DisconnectReason::KeepAliveTimeout,
        DisconnectReason::TakenOver,
        DisconnectReason::ProtocolError,
        DisconnectReason::MalformedPacket,
        DisconnectReason::PacketTooLarge,
        DisconnectReason::ReceiveMaximumExceeded,
        DisconnectReason::TopicAliasInvalid,
        DisconnectReason::TopicNameInvalid,
        DisconnectReason::NotAuthorized,
        DisconnectReason::QuotaExceeded,
        DisconnectReason::ReAuthenticationFailed,
        DisconnectReason::Kicked,
        DisconnectReason::ServerShuttingDown,
        DisconnectReason::TransportError,
        DisconnectReason::JournalFailed,
    ];

    /// As it stands in metrics, logs and the API.
    pub const fn name(self) -> &'static str {
        match self {
            DisconnectReason::ByClient => "by_client",
            DisconnectReason::ByClientWithWill => "by_client_with_will",
            DisconnectReason::ConnectionLost => "connection_lost",
            DisconnectReason::KeepAliveTimeout => "keep_alive_timeout",
            DisconnectReason::TakenOver => "taken_over",
            DisconnectReason::ProtocolError => "protocol_error",
            DisconnectReason::MalformedPacket => "malformed_packet",
            DisconnectReason::PacketTooLarge => "packet_too_large",
            DisconnectReason::ReceiveMaximumExceeded => "receive_maximum_exceeded",
            DisconnectReason::TopicAliasInvalid => "topic_alias_invalid",
            DisconnectReason::TopicNameInvalid => "topic_name_invalid",
            DisconnectReason::NotAuthorized => "not_authorized",
            DisconnectReason::QuotaExceeded => "quota_exceeded",
            DisconnectReason::ReAuthenticationFailed => "re_authentication_failed",
            DisconnectReason::Kicked => "kicked",
            DisconnectReason::ServerShuttingDown => "server_shutting_down",
            DisconnectReason::TransportError => "transport_error",
            DisconnectReason::JournalFailed => "journal_failed",
        }
    }
}

/// Why a message was not delivered to a session (or not kept). Each has a counter, and per session another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum DropReason {
    /// QoS 0 for a session that is not connected.
    OfflineQoS0,
    /// QoS 0 for a connection whose output buffer is full.
    SlowConsumer,
    QueueFullByCount,
    QueueFullByBytes,
    Expired,
    /// Larger than the client's Maximum Packet Size [MQTT-3.1.2-25].
    TooLargeForClient,
    /// A rule forbids this client to read the topic.
    NotAuthorizedToReceive,
    /// The publisher may not write to the topic.
    NotAuthorizedToPublish,
    /// The session ended with messages in its queue.
    SessionEnded,
    /// Retained store is full, or the message is too large for it.
    RetainedFull,
    /// `$delayed` store is full.
    DelayedFull,
    /// A shared subscription has no member that could take it.
    NoSharedMember,
    /// Nobody subscribed (counted per node only).
    NoSubscriber,
    /// The journal is full or has failed, and the message would have to be kept.
    JournalFull,
    /// The journal could not give it back.
    Damaged,
    /// The buffer of an action that would have to keep it is full.
    BufferFull,
    /// A device is over a limit of its tenant.
    OverLimit,
    /// What a device says has not the form that it has to have.
    NotUnderstood,
}

impl DropReason {
    pub const COUNT: usize = 18;

    pub const ALL: [DropReason; Self::COUNT] = [
        DropReason::OfflineQoS0,
        DropReason::SlowConsumer,
        DropReason::QueueFullByCount,
        DropReason::QueueFullByBytes,
        DropReason::Expired,
        DropReason::TooLargeForClient,
        DropReason::NotAuthorizedToReceive,
        DropReason::NotAuthorizedToPublish,
        DropReason::SessionEnded,
        DropReason::RetainedFull,
        DropReason::DelayedFull,
        DropReason::NoSharedMember,
        DropReason::NoSubscriber,
        DropReason::JournalFull,
        DropReason::Damaged,
        DropReason::BufferFull,
        DropReason::OverLimit,
        DropReason::NotUnderstood,
    ];

    /// As it stands in metrics and the API.
    pub const fn name(self) -> &'static str {
        match self {
            DropReason::OfflineQoS0 => "offline_qos0",
            DropReason::SlowConsumer => "slow_consumer",
            DropReason::QueueFullByCount => "queue_full_by_count",
            DropReason::QueueFullByBytes => "queue_full_by_bytes",
            DropReason::Expired => "expired",
            DropReason::TooLargeForClient => "too_large_for_client",
            DropReason::NotAuthorizedToReceive => "not_authorized_to_receive",
            DropReason::NotAuthorizedToPublish => "not_authorized_to_publish",
            DropReason::SessionEnded => "session_ended",
            DropReason::RetainedFull => "retained_full",
            DropReason::DelayedFull => "delayed_full",
            DropReason::NoSharedMember => "no_shared_member",
            DropReason::NoSubscriber => "no_subscriber",
            DropReason::JournalFull => "journal_full",
            DropReason::Damaged => "damaged",
            DropReason::BufferFull => "buffer_full",
            DropReason::OverLimit => "over_limit",
            DropReason::NotUnderstood => "not_understood",
        }
    }
}
