//! Limits and policies of a shard, resolved. Every bound of the broker is a field here.
//!
//! The binary converts its configuration file into this. The caller divides limits of the whole node among the shards.

use std::collections::HashMap;

use mqtt::QoS;

/// How overlapping subscriptions of a 3.1 or 3.1.1 session are handled [MQTT-3.3.5-1]. MQTT 5 sessions always receive
/// one copy with all identifiers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OverlappingDelivery {
    DeliverOnce,
    DeliverEach,
}

/// Which message is dropped when a queue is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueDropPolicy {
    Oldest,
    Newest,
}

/// How the member of a shared subscription that receives a message is selected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShareStrategy {
    RoundRobin,
    Random,
    Sticky,
    HashClient,
    HashTopic,
    LeastInflight,
}

#[derive(Clone, Debug)]
pub struct ShardConfig {
    pub maximum_packet_size: u32,
    pub maximum_client_id_bytes: usize,
    pub maximum_topic_levels: usize,
    /// Whether topic names and filters may contain control characters.
    pub allows_control_characters: bool,
    /// Topic Alias Maximum that the server grants to MQTT 5 clients.
    pub topic_alias_maximum: u16,
    /// Maximum number of aliases that the server assigns per connection. The client's maximum applies as well.
    pub topic_alias_maximum_outgoing: u16,
    pub maximum_qos: QoS,
    pub is_retain_available: bool,
    pub is_wildcard_available: bool,
    pub is_shared_available: bool,
    pub is_exclusive_available: bool,
    pub is_identifier_available: bool,
    /// Publishes the will of a client that a ban disconnects.
    pub is_banned_will_published: bool,
    /// 150 means that a connection is closed after one and a half keep-alive intervals [MQTT-3.1.2-22].
    pub keep_alive_percent: u64,
    /// Server Keep Alive, which replaces the keep alive of MQTT 5 clients [MQTT-3.2.2-21].
    pub server_keep_alive_s: Option<u16>,
    /// Maximum keep alive, also for clients that request none. MQTT 5 clients learn it from CONNACK; it applies to
    /// others as well.
    pub keep_alive_max_s: Option<u16>,
    /// Maximum session expiry in seconds; `u32::MAX` allows sessions that never expire.
    pub session_expiry_max_s: u32,
    /// Session expiry of 3.1 and 3.1.1 clients with Clean Session 0.
    pub session_expiry_v3_s: u32,
    /// Maximum Message Expiry Interval. Longer and absent intervals are set to it.
    pub message_expiry_max_s: Option<u32>,
    /// Message Expiry Interval of messages without one.
    pub message_expiry_default_s: Option<u32>,
    /// Receive Maximum of the server: unacknowledged QoS 2 messages per client.
    pub receive_maximum: u16,
    /// Maximum number of unacknowledged messages sent to one client. The client's Receive Maximum applies as well.
    pub inflight_max: u16,
    /// Interval for resending to connected 3.1 and 3.1.1 clients. MQTT 5 forbids it [MQTT-4.4.0-1].
    pub retry_interval_ms: Option<u64>,
    pub queued_messages_max: usize,
    pub queued_bytes_max: usize,
    /// Queue QoS 0 messages for disconnected clients.
    pub is_qos0_queued: bool,
    pub queue_drop: QueueDropPolicy,
    /// Entries per page. A queue longer than three pages stores its middle in the journal (`durable::pages`).
    pub page_entries: usize,
    /// Messages of a durable shared subscription's queue that stay in memory (at most twice as many), and that are
    /// dispatched at a time.
    pub group_window: usize,
    /// Record and acknowledge all QoS 1 and 2 messages through the journal, even without a durable recipient.
    pub journals_all_messages: bool,
    pub overlapping: OverlappingDelivery,
    pub share_strategy: ShareStrategy,
    /// Strategies of individual share names.
    pub share_strategies: HashMap<String, ShareStrategy>,
    pub subscriptions_max: usize,
    pub sessions_max: usize,
    pub delayed_messages_max: usize,
    pub delayed_seconds_max: u32,
    pub retained_messages_max: usize,
    pub retained_bytes_max: usize,
    pub retained_payload_max: usize,
    /// Message Expiry Interval of retained messages without one.
    pub retained_expiry_default_s: Option<u32>,
    /// Bytes that may be queued for one connection's socket. Beyond it QoS 0 messages are dropped, and QoS 1 and 2
    /// messages stay in the queue.
    pub output_buffer_bytes: usize,
    /// Bytes of QoS 0 messages that may be queued for a socket that has accepted everything until a second ago. No
    /// effect if smaller than `output_buffer_bytes`.
    pub burst_buffer_bytes: usize,
    /// Messages that one client may publish.
    pub publish_rate: Option<PublishRate>,
    /// Bytes that one client may publish.
    pub publish_bytes: Option<PublishRate>,
    /// Only the user that created a session may use its client id.
    pub is_client_id_owned: bool,
    pub response_information: Option<String>,
    /// Server Reference for MQTT 5 clients that are redirected (0x9C, 0x9D).
    pub server_reference: Option<String>,
}

/// An amount per period. A client that was idle for a period may use the whole amount at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PublishRate {
    pub amount: u64,
    pub period_ms: u64,
}

impl PublishRate {
    pub(crate) fn per_ms(self) -> f64 {
        self.amount as f64 / self.period_ms.max(1) as f64
    }
}

impl ShardConfig {
    pub(crate) fn limits_publishers(&self) -> bool {
        self.publish_rate.is_some() || self.publish_bytes.is_some()
    }

    /// Returns whether any shared subscription must know its members' messages in flight.
    pub(crate) fn counts_inflight(&self) -> bool {
        let counts = |strategy: &ShareStrategy| *strategy == ShareStrategy::LeastInflight;
        counts(&self.share_strategy) || self.share_strategies.values().any(counts)
    }
}

impl ShardConfig {
    /// Returns whether the characters of a topic name or filter are allowed. A server may reject control characters
    /// [MQTT-1.5.4].
    pub fn allows_characters(&self, topic: &str) -> bool {
        self.allows_control_characters || !topic.contains(char::is_control)
    }
}

impl Default for ShardConfig {
    fn default() -> Self {
        ShardConfig {
            maximum_packet_size: 1024 * 1024,
            maximum_client_id_bytes: 65535,
            maximum_topic_levels: 128,
            allows_control_characters: true,
            topic_alias_maximum: 64,
            topic_alias_maximum_outgoing: 32,
            maximum_qos: QoS::ExactlyOnce,
            is_retain_available: true,
            is_wildcard_available: true,
            is_shared_available: true,
            is_exclusive_available: true,
            is_identifier_available: true,
            is_banned_will_published: false,
            keep_alive_percent: 150,
            server_keep_alive_s: None,
            keep_alive_max_s: None,
            session_expiry_max_s: u32::MAX,
            session_expiry_v3_s: u32::MAX,
            message_expiry_max_s: None,
            message_expiry_default_s: None,
            receive_maximum: 128,
            inflight_max: 128,
            retry_interval_ms: None,
            queued_messages_max: 1000,
            queued_bytes_max: 64 * 1024 * 1024,
            is_qos0_queued: false,
            queue_drop: QueueDropPolicy::Oldest,
            page_entries: 4096,
            group_window: 512,
            journals_all_messages: false,
            overlapping: OverlappingDelivery::DeliverOnce,
            share_strategy: ShareStrategy::RoundRobin,
            share_strategies: HashMap::new(),
            subscriptions_max: 100_000,
            sessions_max: 1_000_000,
            delayed_messages_max: 100_000,
            delayed_seconds_max: 4_294_967,
            retained_messages_max: 1_000_000,
            retained_bytes_max: 1024 * 1024 * 1024,
            retained_payload_max: 1024 * 1024,
            retained_expiry_default_s: None,
            output_buffer_bytes: 1024 * 1024,
            burst_buffer_bytes: 0,
            publish_rate: None,
            publish_bytes: None,
            is_client_id_owned: true,
            response_information: None,
            server_reference: None,
        }
    }
}
