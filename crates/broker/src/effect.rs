//! The interface between a shard and its driver: effects that the shard requests, and events that it reports.
//!
//! Bytes to send are in `Outbox`, and messages for other shards in `Shard::take_mail`.

use std::net::SocketAddr;

use mqtt::ReasonCode;

use crate::access::{AccessQuestion, ConnectCredentials};
use crate::durable::record::RecordPosition;
use crate::owners::ExceededLimit;
use crate::publish_limits::PublishLimit;
pub use crate::slots::ShardId;
use crate::slots::{AuthAttempt, ConnEpoch, ConnSlot, ConnectNumber, GroupIndex, SessionSlot};

/// The current time in milliseconds. Passed in with every input. The
/// monotonic clock starts at a large number, so that times before the start of the process can be expressed and
/// restored sessions can expire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Now {
    pub monotonic_ms: u64,
    /// Unix time of the system's clock, for display. It can jump. The journal records how far it is ahead.
    pub unix_ms: u64,
    /// Unix time of the journal, for deadlines. It advances with the monotonic clock, and a start continues it behind
    /// all times in the journal. So no expiry, delay or session becomes longer when the system's clock goes back.
    pub journal_ms: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    Tcp,
    Tls,
    WebSocket,
    SecureWebSocket,
    Quic,
}

/// Properties of a connection that the driver knows before the first packet.
#[derive(Clone, Debug)]
pub struct Peer {
    /// Address of the client, also behind a proxy that reports it (PROXY protocol).
    pub address: SocketAddr,
    pub transport: Transport,
    /// Index of the listener in the configuration with which the driver was started.
    pub listener: u16,
    /// Limit of the listener, if it is smaller than that of the shard.
    pub maximum_packet_size: Option<u32>,
    pub certificate_common_name: Option<Box<str>>,
    /// The verified client certificate, in DER. Removed when the authenticator is asked.
    pub certificate: Option<Box<[u8]>>,
}

/// Result of `Shard::receive`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceiveResult {
    /// Consumed bytes, always whole packets. The driver keeps the rest and passes it again with the bytes that follow.
    pub consumed: usize,
    pub next: NextAction,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextAction {
    /// No complete packet is left. `needed` is the minimum number of bytes, from the first unconsumed one, with which
    /// `receive` can make progress. It respects the packet size limit.
    Read { needed: usize },
    /// The outbox is full: flush it, call `end_tick`, and call again with the rest.
    Flush,
    /// Keep the rest and stop reading from the socket until the backlog has drained or `Effect::Resume` arrives.
    Pause,
    /// The connection is being closed (`Effect::Close`); further bytes are ignored [MQTT-3.14.4-2].
    Closed,
}

#[derive(Debug)]
pub enum Effect {
    /// Send the queued output within the linger time, then close.
    Close {
        conn: ConnSlot,
        /// The client has sent DISCONNECT and sends nothing more [MQTT-3.14.4-1], so the driver need not wait for its
        /// FIN.
        has_sent_disconnect: bool,
    },
    /// Call `receive` again with the rest.
    Resume {
        conn: ConnSlot,
    },
    /// Authenticate, and call `Shard::authenticated` with the same connection and `attempt`.
    Authenticate {
        conn: ConnSlot,
        attempt: AuthAttempt,
        credentials: Box<ConnectCredentials>,
    },
    /// Ask another system, and call `Shard::authorized` with the same connection and `epoch`.
    Authorize {
        conn: ConnSlot,
        epoch: ConnEpoch,
        question: AccessQuestion,
    },
    /// Read the first of these messages from the journal, and call `ShardJournal::fetched` with the same arguments.
    Fetch {
        purpose: FetchPurpose,
        positions: Vec<RecordPosition>,
    },
    Event(ConnectionEvent),
}

/// Receiver of the messages that `Effect::Fetch` reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FetchPurpose {
    /// A session, while this is its connection.
    Session {
        slot: SessionSlot,
        connect_number: ConnectNumber,
    },
    /// The members of a share group.
    Group(GroupIndex),
    /// The running checkpoint, which rewrites the messages.
    Move,
}

impl FetchPurpose {
    /// Returns whether the driver must call `Shard::retry_fetch` if it could not queue the request.
    pub fn is_retried(self) -> bool {
        !matches!(self, FetchPurpose::Session { .. })
    }
}

/// Why a network connection has closed, from the driver's view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloseCause {
    /// The peer closed the connection or reset it.
    Peer,
    /// Reading or writing failed.
    Network,
    /// The driver executed `Effect::Close`.
    Requested,
    /// TLS, WebSocket or PROXY framing was violated.
    Transport,
}

/// Connection events for operators: log, traces and hooks. Contain no secrets.
#[derive(Clone, Debug)]
pub enum ConnectionEvent {
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
        detail: Box<str>,
    },
    Disconnected {
        client_id: Box<str>,
        address: SocketAddr,
        reason: DisconnectReason,
        detail: Box<str>,
    },
    /// The client has moved to another address, and receives there.
    AddressChanged {
        client_id: Box<str>,
        from: SocketAddr,
        address: SocketAddr,
    },
    /// The server has ended or rejected a data stream of the client, which stays connected.
    StreamEnded {
        client_id: Box<str>,
        address: SocketAddr,
        reason: DisconnectReason,
        detail: Box<str>,
    },
    SessionEnded {
        client_id: Box<str>,
        detail: &'static str,
    },
    /// First drop for this reason since the session was created.
    Dropping {
        client_id: Box<str>,
        reason: DropReason,
    },
    /// Messages or subscriptions of the client are rejected, because its user or itself has reached a limit. At most
    /// once per second and owner.
    OverLimit {
        client_id: Box<str>,
        /// `owners::owner_name`.
        owner: Box<str>,
        exceeded: ExceededLimit,
    },
    /// The server has stopped reading from the client until its rate is below a limit. At most once per minute and
    /// owner.
    Throttled {
        client_id: Box<str>,
        user_name: Option<Box<str>>,
        /// User, address or listener whose connections together exceed the limit: `user:alice`. Empty for a limit of
        /// the client.
        owner: Box<str>,
        limit: PublishLimit,
    },
}

/// Why an accepted connection ended. Each reason has a counter.
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
    /// The login of the client has expired.
    LoginExpired,
    Kicked,
    ServerShuttingDown,
    TransportError,
    /// The connection waited for the journal, or needed it, after it failed.
    JournalFailed,
}

impl DisconnectReason {
    pub const COUNT: usize = 19;

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
        DisconnectReason::LoginExpired,
        DisconnectReason::Kicked,
        DisconnectReason::ServerShuttingDown,
        DisconnectReason::TransportError,
        DisconnectReason::JournalFailed,
    ];

    /// Name in metrics, logs and the API.
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
            DisconnectReason::LoginExpired => "login_expired",
            DisconnectReason::Kicked => "kicked",
            DisconnectReason::ServerShuttingDown => "server_shutting_down",
            DisconnectReason::TransportError => "transport_error",
            DisconnectReason::JournalFailed => "journal_failed",
        }
    }
}

/// Why a message was not delivered to a session or not stored. Each reason has a counter per node and one per session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum DropReason {
    /// QoS 0 message for a disconnected session.
    OfflineQoS0,
    /// QoS 0 message for a connection whose output buffer is full.
    SlowConsumer,
    QueueFullByCount,
    QueueFullByBytes,
    /// The queues of the user's sessions together are full.
    UserQueueFull,
    Expired,
    /// Larger than the client's Maximum Packet Size [MQTT-3.1.2-25].
    TooLargeForClient,
    /// An access rule forbids the client to read the topic.
    NotAuthorizedToReceive,
    /// An access rule forbids the publisher to write to the topic.
    NotAuthorizedToPublish,
    /// The session ended with messages in its queue.
    SessionEnded,
    /// The retained store is full, or the message is too large for it.
    RetainedFull,
    /// The store of delayed messages is full.
    DelayedFull,
    /// No member of the shared subscription could receive it.
    NoSharedMember,
    /// The message has no subscriber (counted per node only).
    NoSubscriber,
    /// The journal is full or has failed, and the message needs it.
    JournalFull,
    /// The record in the journal is damaged.
    Damaged,
    /// The buffer of an action that must store the message is full.
    BufferFull,
    /// An inbox client exceeds one of its limits.
    OverLimit,
    /// The message of an inbox client is not valid.
    NotUnderstood,
    /// The topic has too many levels, its `$delayed/<seconds>/` is malformed, or a message of the server exceeds a
    /// limit of clients.
    TopicInvalid,
    /// The user or the client has used its share of the retained or delayed messages, or of the journal.
    OverShare,
}

impl DropReason {
    pub const COUNT: usize = 21;

    pub const ALL: [DropReason; Self::COUNT] = [
        DropReason::OfflineQoS0,
        DropReason::SlowConsumer,
        DropReason::QueueFullByCount,
        DropReason::QueueFullByBytes,
        DropReason::UserQueueFull,
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
        DropReason::TopicInvalid,
        DropReason::OverShare,
    ];

    /// Name in metrics and the API.
    pub const fn name(self) -> &'static str {
        match self {
            DropReason::OfflineQoS0 => "offline_qos0",
            DropReason::SlowConsumer => "slow_consumer",
            DropReason::QueueFullByCount => "queue_full_by_count",
            DropReason::QueueFullByBytes => "queue_full_by_bytes",
            DropReason::UserQueueFull => "user_queue_full",
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
            DropReason::TopicInvalid => "topic_invalid",
            DropReason::OverShare => "over_share",
        }
    }
}
