//! Limits and choices of a shard, resolved: every bound of the broker has a name here.
//!
//! The binary translates its configuration file into this. Limits that are meant for the whole node are divided among the
//! shards by whoever builds this.

use std::collections::HashMap;

use mqtt::QoS;

/// What to do with overlapping subscriptions of one 3.1 or 3.1.1 session [MQTT-3.3.5-1]. MQTT 5 sessions always get
/// one copy with all identifiers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overlapping {
    DeliverOnce,
    DeliverEach,
}

/// Which message goes when a queue is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueDrop {
    Oldest,
    Newest,
}

/// Which member of a shared subscription gets a message.
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
    /// What the server accepts, told to MQTT 5 clients in CONNACK.
    pub topic_alias_maximum: u16,
    /// How many aliases the server assigns at most, whatever the client allows.
    pub topic_alias_maximum_outgoing: u16,
    pub maximum_qos: QoS,
    pub is_retain_available: bool,
    pub is_wildcard_available: bool,
    pub is_shared_available: bool,
    pub is_exclusive_available: bool,
    pub is_identifier_available: bool,
    /// 150 closes a connection after one and a half keep-alive intervals [MQTT-3.1.2-22].
    pub keep_alive_percent: u64,
    /// What MQTT 5 clients are told to use instead of their own keep alive [MQTT-3.2.2-21].
    pub server_keep_alive_s: Option<u16>,
    /// Longest keep alive, also for those who want none. MQTT 5 clients are told, others held to it.
    pub keep_alive_max_s: Option<u16>,
    /// Longest session expiry granted, in seconds; `u32::MAX` allows sessions that never expire.
    pub session_expiry_max_s: u32,
    /// For 3.1 and 3.1.1 sessions with Clean Session 0, which know no expiry.
    pub session_expiry_v3_s: u32,
    /// Longest Message Expiry Interval; longer or absent ones are shortened to it.
    pub message_expiry_max_s: Option<u32>,
    /// For messages that come without one.
    pub message_expiry_default_s: Option<u32>,
    /// Unacknowledged QoS 2 messages accepted from one client (Receive Maximum).
    pub receive_maximum: u16,
    /// Unacknowledged messages sent to one client, whatever its Receive Maximum allows.
    pub inflight_max: u16,
    /// Resends to 3.1 and 3.1.1 clients while connected; MQTT 5 forbids it [MQTT-4.4.0-1].
    pub retry_interval_ms: Option<u64>,
    pub queued_messages_max: usize,
    pub queued_bytes_max: usize,
    /// Keep QoS 0 messages too for clients that are away.
    pub is_qos0_queued: bool,
    pub queue_drop: QueueDrop,
    /// Of a queue that is longer than three times this, parts of so many messages are in the journal alone (`durable::pages`).
    pub page_entries: usize,
    /// Of the queue of a durable shared subscription, so many messages are in memory, or twice as many. So many are given out at a time.
    pub group_window: usize,
    /// Messages of QoS 1 and 2 are recorded, and acknowledged after that, also if nobody gets them who outlives a connection.
    pub is_all_kept: bool,
    pub overlapping: Overlapping,
    pub share_strategy: ShareStrategy,
    /// By share name.
    pub share_strategies: HashMap<String, ShareStrategy>,
    pub subscriptions_max: usize,
    pub sessions_max: usize,
    pub delayed_messages_max: usize,
    pub delayed_seconds_max: u32,
    pub retained_messages_max: usize,
    pub retained_bytes_max: usize,
    pub retained_payload_max: usize,
    /// For retained messages that come without an expiry interval.
    pub retained_expiry_default_s: Option<u32>,
    /// Bytes that may wait for one connection's socket; beyond it QoS 0 is dropped and QoS 1 and 2 stay in the queue.
    pub output_buffer_bytes: usize,
    /// Messages that one client may publish.
    pub publish_rate: Option<PublishRate>,
    /// Bytes that one client may publish.
    pub publish_bytes: Option<PublishRate>,
    /// A client id belongs to the user that created the session.
    pub is_client_id_owned: bool,
    pub response_information: Option<String>,
    /// Told to MQTT 5 clients that are sent away (0x9C, 0x9D).
    pub server_reference: Option<String>,
}

/// So much in every period. Whoever was silent for a period may use all of it at once.
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

    /// Whether any shared subscription has to know what its members have in flight.
    pub(crate) fn counts_inflight(&self) -> bool {
        let counts = |strategy: &ShareStrategy| *strategy == ShareStrategy::LeastInflight;
        counts(&self.share_strategy) || self.share_strategies.values().any(counts)
    }
}

impl Default for ShardConfig {
    fn default() -> Self {
        ShardConfig {
            maximum_packet_size: 1024 * 1024,
            maximum_client_id_bytes: 65535,
            maximum_topic_levels: 128,
            topic_alias_maximum: 64,
            topic_alias_maximum_outgoing: 32,
            maximum_qos: QoS::ExactlyOnce,
            is_retain_available: true,
            is_wildcard_available: true,
            is_shared_available: true,
            is_exclusive_available: true,
            is_identifier_available: true,
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
            queue_drop: QueueDrop::Oldest,
            page_entries: 4096,
            group_window: 512,
            is_all_kept: false,
            overlapping: Overlapping::DeliverOnce,
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
            publish_rate: None,
            publish_bytes: None,
            is_client_id_owned: true,
            response_information: None,
            server_reference: None,
        }
    }
}
