//! Random scripts: the actions of some clients, and the configuration of the node.

use std::fmt;

use mqtt::{ProtocolVersion, QoS, RetainHandling, SubscriptionOptions};
use proptest::prelude::*;
use proptest::sample::select;
use tidewire_broker::{OverlappingDelivery, ShardConfig, ShareStrategy};

pub const CLIENTS: usize = 4;

pub const TOPICS: [&str; 7] = ["a", "a/b", "a/c", "s/x", "s/y", "$d/a", "long/enough/for/an/alias"];

pub const FILTERS: [&str; 17] = [
    "a",
    "a/b",
    "a/+",
    "a/#",
    "#",
    "+/b",
    "s/#",
    "$d/#",
    "+/+/#",
    "w/+",
    "r0/#",
    "+/a",
    "long/enough/for/an/alias",
    "$share/g/s/#",
    "$share/g/s/x",
    "$share/h/s/+",
    "$share/g/a/b",
];

#[derive(Clone)]
pub struct Script {
    pub setup: Setup,
    pub ops: Vec<Op>,
}

/// Prints one line per step, also in the alternate form.
impl fmt::Debug for Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.setup)?;
        self.ops.iter().try_for_each(|op| write!(f, "\n{op:?}"))
    }
}

#[derive(Clone, Debug)]
pub struct Setup {
    pub shards: u16,
    pub strategy: ShareStrategy,
    pub overlapping: OverlappingDelivery,
    pub output_buffer_bytes: usize,
    pub max_inflight: u16,
}

impl Setup {
    pub fn config(&self) -> ShardConfig {
        ShardConfig {
            shared_strategy: self.strategy,
            overlapping_subscriptions: self.overlapping,
            output_buffer_bytes: self.output_buffer_bytes,
            max_inflight: self.max_inflight,
            max_topic_alias_out: 8,
            max_session_expiry_s: u32::MAX,
            default_session_expiry_s: u32::MAX,
            max_message_expiry_s: None,
            retained_default_expiry_s: None,
            ..ShardConfig::default()
        }
    }
}

#[derive(Clone, Debug)]
pub struct Terms {
    pub version: ProtocolVersion,
    pub clean_start: bool,
    pub expiry_s: u32,
    pub receive_maximum: u16,
    pub maximum_packet_size: Option<u32>,
    pub topic_alias_maximum: u16,
    pub will: Option<WillTerms>,
}

#[derive(Clone, Debug)]
pub struct WillTerms {
    pub delay_s: u32,
    pub qos: QoS,
    pub retain: bool,
}

#[derive(Clone, Debug)]
pub enum Op {
    Connect {
        client: usize,
        terms: Terms,
    },
    Subscribe {
        client: usize,
        filter: usize,
        options: SubscriptionOptions,
        identifier: Option<u32>,
    },
    Unsubscribe {
        client: usize,
        filter: usize,
    },
    Publish {
        client: usize,
        topic: usize,
        qos: QoS,
        retain: bool,
        expiry_s: Option<u32>,
        is_empty: bool,
        is_large: bool,
    },
    /// Resends the last unreleased QoS 2 message.
    Repeat {
        client: usize,
    },
    Release {
        client: usize,
    },
    /// Answers any one of the unanswered packets.
    Answer {
        client: usize,
        which: usize,
        with_failure: bool,
    },
    AnswerAll {
        client: usize,
    },
    Cut {
        client: usize,
    },
    Disconnect {
        client: usize,
        with_will: bool,
        expiry_s: Option<u32>,
    },
    Block {
        client: usize,
    },
    Unblock {
        client: usize,
    },
    /// The socket of a blocked client accepts some bytes.
    Trickle {
        client: usize,
        bytes: usize,
    },
    Pass {
        half_seconds: u64,
    },
}

fn client() -> std::ops::Range<usize> {
    0..CLIENTS
}

fn qos() -> impl Strategy<Value = QoS> {
    select(vec![QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce])
}

fn options() -> impl Strategy<Value = SubscriptionOptions> {
    let handling = select(vec![
        RetainHandling::SendAtSubscribe,
        RetainHandling::SendIfNew,
        RetainHandling::DoNotSend,
    ]);
    (qos(), any::<bool>(), any::<bool>(), handling).prop_map(
        |(maximum_qos, no_local, retain_as_published, retain_handling)| SubscriptionOptions {
            maximum_qos,
            no_local,
            retain_as_published,
            retain_handling,
        },
    )
}

fn terms() -> impl Strategy<Value = Terms> {
    let version = select(vec![
        ProtocolVersion::V5,
        ProtocolVersion::V5,
        ProtocolVersion::V3_1_1,
        ProtocolVersion::V3_1,
    ]);
    let will = (select(vec![0u32, 0, 1, 2, 5]), qos(), any::<bool>()).prop_map(|(delay_s, qos, retain)| WillTerms {
        delay_s,
        qos,
        retain,
    });
    (
        version,
        prop::bool::weighted(0.2),
        select(vec![0u32, 1, 3, 10, 1000, u32::MAX]),
        select(vec![1u16, 2, 3, 65535]),
        prop::option::weighted(0.2, 90u32..350),
        select(vec![0u16, 1, 5]),
        prop::option::weighted(0.4, will),
    )
        .prop_map(
            |(version, clean_start, expiry_s, receive_maximum, maximum_packet_size, topic_alias_maximum, will)| Terms {
                version,
                clean_start,
                expiry_s,
                receive_maximum,
                maximum_packet_size,
                topic_alias_maximum,
                will,
            },
        )
}

fn op() -> impl Strategy<Value = Op> {
    let filter = || 0..FILTERS.len();
    prop_oneof![
        4 => (client(), terms()).prop_map(|(client, terms)| Op::Connect { client, terms }),
        6 => (client(), filter(), options(), prop::option::of(1u32..5))
            .prop_map(|(client, filter, options, identifier)| Op::Subscribe { client, filter, options, identifier }),
        2 => (client(), filter()).prop_map(|(client, filter)| Op::Unsubscribe { client, filter }),
        12 => (
            client(), 0..TOPICS.len(), qos(), prop::bool::weighted(0.25), prop::option::weighted(0.2, 1u32..6),
            prop::bool::weighted(0.2), prop::bool::weighted(0.1),
        )
            .prop_map(|(client, topic, qos, retain, expiry_s, is_empty, is_large)| {
                Op::Publish { client, topic, qos, retain, expiry_s, is_empty, is_large }
            }),
        1 => client().prop_map(|client| Op::Repeat { client }),
        1 => client().prop_map(|client| Op::Release { client }),
        4 => (client(), 0usize..8, prop::bool::weighted(0.1))
            .prop_map(|(client, which, with_failure)| Op::Answer { client, which, with_failure }),
        4 => client().prop_map(|client| Op::AnswerAll { client }),
        2 => client().prop_map(|client| Op::Cut { client }),
        1 => (client(), any::<bool>(), prop::option::of(select(vec![0u32, 2, 100])))
            .prop_map(|(client, with_will, expiry_s)| Op::Disconnect { client, with_will, expiry_s }),
        1 => client().prop_map(|client| Op::Block { client }),
        1 => client().prop_map(|client| Op::Unblock { client }),
        1 => (client(), 1usize..200).prop_map(|(client, bytes)| Op::Trickle { client, bytes }),
        2 => (1u64..12).prop_map(|half_seconds| Op::Pass { half_seconds }),
    ]
}

fn setup() -> impl Strategy<Value = Setup> {
    use ShareStrategy::*;
    (
        1u16..=3,
        select(vec![RoundRobin, Random, Sticky, HashClient, HashTopic, LeastInflight]),
        select(vec![OverlappingDelivery::DeliverOnce, OverlappingDelivery::DeliverEach]),
        select(vec![200usize, 1024 * 1024]),
        select(vec![2u16, 128]),
    )
        .prop_map(
            |(shards, strategy, overlapping, output_buffer_bytes, max_inflight)| Setup {
                shards,
                strategy,
                overlapping,
                output_buffer_bytes,
                max_inflight,
            },
        )
}

pub fn script() -> impl Strategy<Value = Script> {
    (setup(), prop::collection::vec(op(), 1..70)).prop_map(|(setup, mut ops)| {
        // All clients connect at first, so that no script has clients that never connect.
        let begin = |client| {
            let version = if client % 2 == 0 {
                ProtocolVersion::V5
            } else {
                ProtocolVersion::V3_1_1
            };
            let terms = Terms {
                version,
                clean_start: false,
                expiry_s: 1000,
                receive_maximum: 3,
                maximum_packet_size: None,
                topic_alias_maximum: 2,
                will: None,
            };
            Op::Connect { client, terms }
        };
        ops.splice(0..0, (0..CLIENTS).map(begin));
        Script { setup, ops }
    })
}
