//! Options of the protocol, of sessions and of what they keep.

use std::time::Duration;

use mqtt::QoS;

use crate::config::key::Segment::Fixed;
use crate::config::option::{Apply, Kind, OptionDef, Section, section};
use crate::config::units::ByteSize;
use crate::config::value::{Limit, Switch, choice};

choice! {
    /// What goes when a session's queue is full.
    pub enum QueueDrop { Oldest = "oldest", Newest = "newest" }
}

choice! {
    /// How often a message reaches a session of MQTT 3.1 and 3.1.1 that has several subscriptions it matches.
    pub enum OverlappingSubscriptions { Once = "once", Each = "each" }
}

choice! {
    /// Who of a shared subscription gets the next message.
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
    /// The protocol and its sessions.
    pub struct Mqtt at [Fixed("mqtt")] {
        /// Largest packet that is read or, to MQTT 5 clients, announced. A connection keeps what held when it began.
        live max_packet_size: ByteSize = "1MiB" ["20B", "256MiB"];
        /// Longest client id. The standard asks for 23 at least.
        live max_client_id_length: u16 = "65535" ["23", "65535"] in "bytes";
        /// Levels of a topic name or filter.
        live max_topic_levels: u16 = "128" ["1", "65535"] in "levels";
        /// Topic aliases that a client may use towards the server (Topic Alias Maximum of CONNACK). Each may hold a topic of
        /// up to 64 KB, per connection.
        live max_topic_alias_in: u16 = "64" ["0", "65535"] in "aliases";
        /// Topic aliases that the server uses towards a client, if the client allows as many.
        live max_topic_alias_out: u16 = "32" ["0", "65535"] in "aliases";
        /// Highest QoS that clients may publish with.
        live max_qos: QoS = "2";
        /// Whether messages can be retained.
        live retain_available: bool = "true";
        /// Whether filters may hold `+` and `#`.
        live wildcard_subscription: bool = "true";
        /// Whether `$share/<group>/<filter>` and `$queue/<filter>` work.
        live shared_subscription: bool = "true";
        /// Whether `$exclusive/<topic>` works: one subscriber at a time, later ones are refused.
        live exclusive_subscription: bool = "true";
        /// Whether MQTT 5 clients may give their subscriptions an identifier.
        live subscription_identifiers: bool = "true";
        /// A client is gone when nothing came for so many keep alive intervals. The standard says 1.5.
        live keep_alive_multiplier: f64 = "1.5" ["1.0", "10.0"];
        /// Keep alive that MQTT 5 clients are told to use instead of their own. Whole seconds.
        live server_keep_alive: Switch<Duration> = "off" ["1s", "65535s"];
        /// Longest keep alive. MQTT 5 clients that ask for more, or for none, are told this one; others are held to it.
        live max_keep_alive: Limit<Duration> = "unlimited" ["1s", "65535s"];
        /// Longest Session Expiry Interval. Clients that ask for more are told this one.
        live max_session_expiry: Limit<Duration> = "unlimited" ["0s", "4294967294s"];
        /// How long a session of MQTT 3.1 or 3.1.1 with Clean Session 0 is kept after its client has gone. Those versions
        /// know no expiry, so that without one every client that never returns costs its queue for ever. A week survives
        /// a long weekend and a repair. "0s" ends it with the connection.
        live default_session_expiry: Limit<Duration> = "7d" ["0s", "4294967294s"];
        /// Longest Message Expiry Interval. Messages that ask for more, or for none, get this one.
        live max_message_expiry: Limit<Duration> = "unlimited" ["1s", "4294967295s"];
        /// Message Expiry Interval of messages that come without one.
        live default_message_expiry: Switch<Duration> = "off" ["1s", "4294967295s"];
        /// QoS 1 and 2 messages that a client may have unacknowledged towards the server (Receive Maximum of CONNACK).
        live receive_maximum: u16 = "1024" ["1", "65535"] in "messages";
        /// QoS 1 and 2 messages that the server sends to a client before it waits for an acknowledgement. An MQTT 5 client
        /// can ask for fewer with its Receive Maximum.
        live max_inflight: u16 = "128" ["1", "65535"] in "messages";
        /// Sends an unacknowledged message again on the same connection after this time. Only MQTT 3.1 and 3.1.1 allow
        /// it, and TCP makes it needless; it is for clients that lose packets themselves.
        live retry_interval: Switch<Duration> = "off" ["1s", "1h"];
        /// Messages that wait for one session beyond those in flight.
        live max_queued_messages: Limit<u32> = "1000" ["0", "100000000"] in "messages";
        /// Bytes of the messages that wait for one session.
        live max_queued_bytes: Limit<ByteSize> = "64MiB" ["1KiB", "1024GiB"];
        /// Whether QoS 0 messages are kept for a session whose client is away.
        live queue_qos0: bool = "false";
        /// What goes when a queue is full: the `oldest` message or the `newest`.
        live queue_drop: QueueDrop = "oldest";
        /// A message that several subscriptions of one MQTT 3 session match: delivered `once`, with the highest QoS, or for
        /// `each`. MQTT 5 sessions get it once, with all subscription identifiers.
        live overlapping_subscriptions: OverlappingSubscriptions = "once";
        /// Who of a shared subscription gets the next message. `sticky`: one member until it leaves; `hash_client` and
        /// `hash_topic`: the same member for the same publisher or topic; `least_inflight`: the least busy one.
        live shared_strategy: SharedStrategy = "round_robin";
        /// Subscriptions of one session.
        live max_subscriptions: Limit<u32> = "10000" ["1", "100000000"] in "subscriptions";
        /// Messages on `$delayed/<seconds>/<topic>` that may wait at the same time, of all clients. 0 turns them off.
        live max_delayed_messages: Limit<u32> = "100000" ["0", "100000000"] in "messages";
        /// Longest delay of such a message.
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
        /// Topics that can have one. New topics beyond it are refused, known ones can still change. Each worker has an equal
        /// share of this and of `max_bytes`.
        live max_messages: Limit<u64> = "unlimited" ["0", "1000000000"] in "messages";
        /// Bytes of all of them, topics and properties included.
        live max_bytes: Limit<ByteSize> = "unlimited" ["0B", "1024GiB"];
        /// Longest payload that is retained. A longer one is delivered but not kept.
        live max_payload: Limit<ByteSize> = "unlimited" ["0B", "256MiB"];
        /// Expiry of a retained message that comes without a Message Expiry Interval.
        live default_expiry: Switch<Duration> = "off" ["1s", "4294967295s"];
    }
}
