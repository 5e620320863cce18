//! Limits and policies of a shard, resolved. Every bound of the broker is a field here.
//!
//! The binary converts its configuration file into this. Limits of the node count what all shards have together.

use std::collections::HashMap;

use mqtt::QoS;

use crate::effect::Now;
use crate::exchange_memory::EXCHANGE_BYTES_MAX;
use crate::owners::ShareLimits;
use crate::publish_limits::PublishLimits;

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
    pub max_packet_size: u32,
    pub max_client_id_length: usize,
    /// Topic, payload and properties of a will.
    pub max_will_bytes: usize,
    /// Memory of all large enhanced authentications that are not complete.
    pub max_exchange_bytes: usize,
    pub max_topic_levels: usize,
    /// Whether topic names and filters may contain control characters.
    pub control_characters: bool,
    /// Topic Alias Maximum that the server grants to MQTT 5 clients.
    pub max_topic_alias_in: u16,
    /// Maximum number of aliases that the server assigns per connection. The client's maximum applies as well.
    pub max_topic_alias_out: u16,
    pub max_qos: QoS,
    pub retain_available: bool,
    pub wildcard_subscription: bool,
    pub shared_subscription: bool,
    pub exclusive_subscription: bool,
    /// A session loses its exclusive subscriptions after it was offline for this time. `None`: it never does.
    pub exclusive_release_ms: Option<u64>,
    pub subscription_identifiers: bool,
    /// Publishes the will of a client that a ban disconnects.
    pub publish_will_of_banned: bool,
    /// Disconnects a client whose PUBLISH or SUBSCRIBE the access rules deny.
    pub disconnect_denied: bool,
    /// 150 means that a connection is closed after one and a half keep-alive intervals [MQTT-3.1.2-22].
    pub keep_alive_percent: u64,
    /// Server Keep Alive, which replaces the keep alive of MQTT 5 clients [MQTT-3.2.2-21].
    pub server_keep_alive_s: Option<u16>,
    /// Maximum keep alive, also for clients that request none. MQTT 5 clients learn it from CONNACK; it applies to
    /// others as well.
    pub max_keep_alive_s: Option<u16>,
    /// Maximum session expiry in seconds; `u32::MAX` allows sessions that never expire.
    pub max_session_expiry_s: u32,
    /// Session expiry of 3.1 and 3.1.1 clients with Clean Session 0.
    pub default_session_expiry_s: u32,
    /// Maximum Message Expiry Interval. Longer and absent intervals are set to it.
    pub max_message_expiry_s: Option<u32>,
    /// Message Expiry Interval of messages without one.
    pub default_message_expiry_s: Option<u32>,
    /// Receive Maximum of the server: unacknowledged QoS 2 messages per client.
    pub receive_maximum: u16,
    /// Maximum number of unacknowledged messages sent to one client. The client's Receive Maximum applies as well.
    pub max_inflight: u16,
    /// Interval for resending to connected 3.1 and 3.1.1 clients. MQTT 5 forbids it [MQTT-4.4.0-1].
    pub retry_interval_ms: Option<u64>,
    pub max_queued_messages: usize,
    pub max_queued_bytes: usize,
    /// Queue QoS 0 messages for disconnected clients.
    pub queue_qos0: bool,
    pub queue_drop: QueueDropPolicy,
    /// Entries per page. A queue longer than three pages stores its middle in the journal (`durable::pages`).
    pub page_entries: usize,
    /// Messages of a durable shared subscription's queue that stay in memory (at most twice as many), and that are
    /// dispatched at a time.
    pub group_window: usize,
    /// Record and acknowledge all QoS 1 and 2 messages through the journal, even without a durable recipient.
    pub journals_all_messages: bool,
    pub overlapping_subscriptions: OverlappingDelivery,
    pub shared_strategy: ShareStrategy,
    /// Strategies of individual share names.
    pub shared_strategies: HashMap<String, ShareStrategy>,
    pub max_subscriptions: usize,
    /// Limit of the node.
    pub max_sessions: usize,
    /// Limits of a user, and of a client, for the node.
    pub shares: ShareLimits,
    /// Limit of the node.
    pub max_delayed_messages: usize,
    pub max_delay_s: u32,
    /// Limit of the node.
    pub retained_max_messages: usize,
    /// Limit of the node.
    pub retained_max_bytes: usize,
    pub retained_max_payload: usize,
    /// Message Expiry Interval of retained messages without one.
    pub retained_default_expiry_s: Option<u32>,
    /// Bytes that may be queued for one connection's socket. Beyond it QoS 0 messages are dropped, and QoS 1 and 2
    /// messages stay in the queue.
    pub output_buffer_bytes: usize,
    /// Bytes of QoS 0 messages that may be queued for a socket that has accepted everything until a second ago. No
    /// effect if smaller than `output_buffer_bytes`.
    pub burst_buffer_bytes: usize,
    /// Rates at which clients may publish.
    pub publish_limits: PublishLimits,
    /// Only the user that created a session may use its client id.
    pub is_client_id_owned: bool,
    pub response_information: Option<String>,
    /// Server Reference for MQTT 5 clients that are redirected (0x9C, 0x9D).
    pub server_reference: Option<String>,
}

impl ShardConfig {
    /// Returns how long a client with this keep alive may be silent.
    pub(crate) fn keep_alive_ms(&self, keep_alive_s: u16) -> u64 {
        u64::from(keep_alive_s) * 10 * self.keep_alive_percent
    }

    /// Returns when a message with this Message Expiry Interval expires. Applies the default and the maximum.
    pub(crate) fn message_expiry_ms(&self, now: Now, interval_s: Option<u32>) -> Option<u64> {
        let interval_s = interval_s.or(self.default_message_expiry_s);
        let interval_s = match (interval_s, self.max_message_expiry_s) {
            (Some(asked), Some(max)) => Some(asked.min(max)),
            (asked, max) => asked.or(max),
        }?;
        Some(now.monotonic_ms + u64::from(interval_s) * 1000)
    }

    /// Returns whether the queues of a user have a limit, so that they are counted.
    pub(crate) fn limits_user_queues(&self) -> bool {
        self.shares.user.queued_bytes != u64::MAX
    }

    /// Returns whether any shared subscription must know its members' messages in flight.
    pub(crate) fn counts_inflight(&self) -> bool {
        let counts = |strategy: &ShareStrategy| *strategy == ShareStrategy::LeastInflight;
        counts(&self.shared_strategy) || self.shared_strategies.values().any(counts)
    }
}

impl ShardConfig {
    /// Returns whether the characters of a topic name or filter are allowed. A server may reject control characters
    /// [MQTT-1.5.4].
    pub fn allows_characters(&self, topic: &str) -> bool {
        self.control_characters || !topic.contains(char::is_control)
    }
}

impl Default for ShardConfig {
    fn default() -> Self {
        ShardConfig {
            max_packet_size: 1024 * 1024,
            max_client_id_length: 65535,
            max_will_bytes: usize::MAX,
            max_exchange_bytes: EXCHANGE_BYTES_MAX,
            max_topic_levels: 128,
            control_characters: true,
            max_topic_alias_in: 64,
            max_topic_alias_out: 32,
            max_qos: QoS::ExactlyOnce,
            retain_available: true,
            wildcard_subscription: true,
            shared_subscription: true,
            exclusive_subscription: true,
            exclusive_release_ms: None,
            subscription_identifiers: true,
            publish_will_of_banned: false,
            disconnect_denied: false,
            keep_alive_percent: 150,
            server_keep_alive_s: None,
            max_keep_alive_s: None,
            max_session_expiry_s: u32::MAX,
            default_session_expiry_s: u32::MAX,
            max_message_expiry_s: None,
            default_message_expiry_s: None,
            receive_maximum: 128,
            max_inflight: 128,
            retry_interval_ms: None,
            max_queued_messages: 1000,
            max_queued_bytes: 64 * 1024 * 1024,
            queue_qos0: false,
            queue_drop: QueueDropPolicy::Oldest,
            page_entries: 4096,
            group_window: 512,
            journals_all_messages: false,
            overlapping_subscriptions: OverlappingDelivery::DeliverOnce,
            shared_strategy: ShareStrategy::RoundRobin,
            shared_strategies: HashMap::new(),
            max_subscriptions: 100_000,
            max_sessions: 1_000_000,
            shares: ShareLimits::NONE,
            max_delayed_messages: 100_000,
            max_delay_s: 4_294_967,
            retained_max_messages: 1_000_000,
            retained_max_bytes: 1024 * 1024 * 1024,
            retained_max_payload: 1024 * 1024,
            retained_default_expiry_s: None,
            output_buffer_bytes: 1024 * 1024,
            burst_buffer_bytes: 0,
            publish_limits: PublishLimits::default(),
            is_client_id_owned: true,
            response_information: None,
            server_reference: None,
        }
    }
}
