//! Options of the protocol, of sessions and of retained messages.

use std::time::Duration;

use mqtt::QoS;

use crate::config::key::KeySegment::Fixed;
use crate::config::option::{Apply, Kind, OptionDef, Section, section};
use crate::config::units::ByteSize;
use crate::config::value::{Limit, Switch, Unset, choice};

choice! {
    /// Which message a full session queue drops.
    pub enum QueueDrop { Oldest = "oldest", Newest = "newest" }
}

choice! {
    /// How often a message reaches an MQTT 3 session with several matching subscriptions.
    pub enum OverlappingSubscriptions { Once = "once", Each = "each" }
}

choice! {
    /// How the server selects the member of a shared subscription that receives a message.
    pub enum SharedStrategy {
        RoundRobin = "round_robin",
        Random = "random",
        Sticky = "sticky",
        HashClient = "hash_client",
        HashTopic = "hash_topic",
        LeastInflight = "least_inflight",
    }
}

section! {
    /// MQTT protocol and sessions.
    pub struct Mqtt at [Fixed("mqtt")] {
        /// Maximum packet size. CONNACK announces it to MQTT 5 clients. A change applies to new connections. If it is
        /// more than an eighth of the memory that the process may use, the server uses this eighth and logs a warning.
        live max_packet_size: ByteSize = "1MiB" ["20B", "256MiB"];
        /// Maximum length of a client ID. The standard requires at least 23. Empty: 4 KiB per GiB of the memory that
        /// the process may use, between 1024 and 65535 bytes.
        live max_client_id_length: Unset<u16> = "" ["23", "65535"] in "bytes";
        /// Maximum size of a will: topic, payload and properties. The server rejects a CONNECT with a larger one with
        /// Quota exceeded. Empty: 64 KiB per GiB of the memory that the process may use, between 4 KiB and 1 MiB.
        live max_will_size: Unset<ByteSize> = "" ["1KiB", "256MiB"];
        /// Maximum number of levels in a topic name or topic filter.
        live max_topic_levels: u16 = "128" ["1", "65535"] in "levels";
        /// Accepts control characters (U+0001 to U+001F, U+007F to U+009F) in topic names and topic filters. The
        /// standard advises clients against them. If off, PUBLISH gets Topic Name invalid, SUBSCRIBE gets Topic Filter
        /// invalid, and a CONNECT with such a will is rejected.
        live control_characters: bool = "true";
        /// Maximum number of topic aliases that a client may use (Topic Alias Maximum in CONNACK). Each alias can use
        /// up to 64 KB of memory per connection.
        live max_topic_alias_in: u16 = "64" ["0", "65535"] in "aliases";
        /// Maximum number of topic aliases that the server uses per connection. The limit of the client applies as
        /// well.
        live max_topic_alias_out: u16 = "32" ["0", "65535"] in "aliases";
        /// Maximum QoS of a PUBLISH. The server disconnects clients that use a higher QoS.
        live max_qos: QoS = "2";
        /// Allows retained messages.
        live retain_available: bool = "true";
        /// Allows `+` and `#` in topic filters.
        live wildcard_subscription: bool = "true";
        /// Allows shared subscriptions: `$share/<group>/<filter>` and `$queue/<filter>`.
        live shared_subscription: bool = "true";
        /// Allows exclusive subscriptions, `$exclusive/<topic>`: only one client can subscribe, and the server
        /// rejects the others.
        live exclusive_subscription: bool = "true";
        /// A session loses its exclusive subscriptions when it has been offline for this time, so that another client
        /// can subscribe. It must subscribe again when it returns. `off`: it holds them until it ends or unsubscribes.
        live exclusive_subscription_release: Switch<Duration> = "1m" ["1s", "30d"];
        /// Allows MQTT 5 clients to set subscription identifiers.
        live subscription_identifiers: bool = "true";
        /// The server closes a connection if it receives nothing for this number of Keep Alive intervals. The
        /// standard requires 1.5.
        live keep_alive_multiplier: f64 = "1.5" ["1.0", "10.0"];
        /// Keep Alive that replaces the one of MQTT 5 clients (Server Keep Alive in CONNACK). In whole seconds.
        live server_keep_alive: Switch<Duration> = "off" ["1s", "65535s"];
        /// Maximum Keep Alive. The server tells MQTT 5 clients that request a longer one, or none, to use this value.
        /// For older clients it applies without notice.
        live max_keep_alive: Limit<Duration> = "unlimited" ["1s", "65535s"];
        /// Maximum Session Expiry Interval. CONNACK tells a client that requests a longer one that this value
        /// applies. Without a limit, a client that never returns occupies its client ID and its queue forever.
        live max_session_expiry: Limit<Duration> = "30d" ["0s", "4294967294s"];
        /// Expiry of a session of MQTT 3.1 or 3.1.1 with Clean Session 0, after its client has disconnected. These
        /// versions have no Session Expiry Interval: without a limit, the queue of a client that never returns is
        /// stored forever. The default survives a long weekend. "0s" ends the session with its connection.
        live default_session_expiry: Limit<Duration> = "7d" ["0s", "4294967294s"];
        /// Maximum Message Expiry Interval. Messages with a longer one, or none, get this value.
        live max_message_expiry: Limit<Duration> = "unlimited" ["1s", "4294967295s"];
        /// Message Expiry Interval of messages that have none.
        live default_message_expiry: Switch<Duration> = "off" ["1s", "4294967295s"];
        /// Maximum number of unacknowledged QoS 1 and QoS 2 messages from a client (Receive Maximum in CONNACK).
        live receive_maximum: u16 = "1024" ["1", "65535"] in "messages";
        /// Maximum number of unacknowledged QoS 1 and QoS 2 messages to a client. The Receive Maximum of an MQTT 5
        /// client applies as well.
        live max_inflight: u16 = "128" ["1", "65535"] in "messages";
        /// Resends a message on the same connection if the client has not acknowledged it after this time. Only MQTT
        /// 3.1 and 3.1.1 allow that. TCP makes it unnecessary, unless the client itself loses packets.
        live retry_interval: Switch<Duration> = "off" ["1s", "1h"];
        /// Maximum number of messages in the queue of a session, without those in flight.
        live max_queued_messages: Limit<u32> = "1000" ["0", "100000000"] in "messages";
        /// Maximum size of the queue of a session or share group, in memory and in the journal, without messages in
        /// flight. The size of each message is rounded up, by at most an eighth.
        live max_queued_bytes: Limit<ByteSize> = "64MiB" ["1KiB", "1024GiB"];
        /// Queues QoS 0 messages for offline sessions.
        live queue_qos0: bool = "false";
        /// Which message a full queue drops: the `oldest` or the `newest`.
        live queue_drop: QueueDrop = "oldest";
        /// How often the server delivers a message that matches several subscriptions of an MQTT 3 session: `once`
        /// with the highest QoS, or `each` subscription. MQTT 5 sessions receive it once, with all subscription
        /// identifiers.
        live overlapping_subscriptions: OverlappingSubscriptions = "once";
        /// How the server selects the member of a shared subscription that receives a message. `sticky` keeps one
        /// member until it disconnects. `hash_client` and `hash_topic` select the same member for the same publisher
        /// or topic. `least_inflight` selects the member with the fewest unacknowledged messages.
        live shared_strategy: SharedStrategy = "round_robin";
        /// Maximum number of subscriptions per session.
        live max_subscriptions: Limit<u32> = "10000" ["1", "100000000"] in "subscriptions";
        /// Maximum number of delayed messages (`$delayed/<seconds>/<topic>`) of all clients. 0 disables them. A user
        /// can use `limits.user_share` of it.
        live max_delayed_messages: Limit<u32> = "100000" ["0", "100000000"] in "messages";
        /// Maximum delay of a delayed message.
        live max_delay: Duration = "49d17h2m47s" ["1s", "49d17h2m47s"];
    }
}

/// `mqtt.shared_strategies.<group>`: a table with free keys, so not a struct.
pub const SHARED_STRATEGIES: Section = Section {
    path: &[Fixed("mqtt"), Fixed("shared_strategies")],
    doc: &[" The strategy of single shared subscriptions, by share name. Others use `mqtt.shared_strategy`."],
    options: &[OptionDef {
        name: "<group>",
        doc: &[" Strategy of `$share/<group>/...`."],
        default: "",
        range: None,
        unit: None,
        apply: Apply::Live,
        kind: Kind::of::<SharedStrategy>(),
    }],
};

section! {
    /// Retained messages.
    pub struct Retained at [Fixed("retained")] {
        /// Maximum number of retained messages. Beyond it, the server does not store new topics, but still replaces
        /// messages of known ones. A user can use `limits.user_share` of it.
        live max_messages: Limit<u64> = "unlimited" ["0", "1000000000"] in "messages";
        /// Maximum size of all retained messages, including topics and properties. They are in memory. A user can use
        /// `limits.user_share` of it. Empty: a quarter of the memory that the process may use: the smallest of the
        /// machine's memory, the limit of the control group and `ulimit -v`.
        live max_bytes: Unset<Limit<ByteSize>> = "" ["0B", "1024GiB"];
        /// Maximum payload of a retained message. The server delivers a larger one to subscribers but does not store
        /// it.
        live max_payload: Limit<ByteSize> = "unlimited" ["0B", "256MiB"];
        /// Expiry of a retained message without a Message Expiry Interval.
        live default_expiry: Switch<Duration> = "off" ["1s", "4294967295s"];
    }
}
