//! Tests recovery from the journal: a restored session receives its unacknowledged messages again, and CONNACK reports
//! Session Present.

#![allow(clippy::unwrap_used)]

mod clock;
mod deadlines;
mod groups;
mod logins;
mod many_subscriptions;
mod node;
mod owners;
mod pair;
mod queue_bytes;
mod retained;

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;

use journal::{LogBatch, Lsn};
use mqtt::{Connect, Decoded, Packet, Properties, ProtocolVersion, QoS, SubscriptionOptions};
use tidewire_broker::durable::record::*;
use tidewire_broker::durable::recovery::Recovery;
use tidewire_broker::durable::restore::{RestoreCounts, restore};
use tidewire_broker::provenance::Provenance;
use tidewire_broker::*;

use self::node::open;

const C: SessionKey = SessionKey(64);
const CONN: ConnSlot = ConnSlot(0);
const NOW: Now = Now {
    monotonic_ms: 1 << 42,
    unix_ms: 1_700_000_000_000,
    journal_ms: 1_700_000_000_000,
};

/// The records have the positions 100, 101, and so on.
type Records = BTreeMap<RecordPosition, Vec<u8>>;

fn journal(list: &[JournalRecord<'_>]) -> Records {
    let bytes = |record: &JournalRecord<'_>| {
        let mut bytes = Vec::new();
        record.put(&mut bytes);
        bytes
    };
    (100..).map(RecordPosition).zip(list.iter().map(bytes)).collect()
}

fn append(end: &mut u64, batch: &mut LogBatch) -> (u64, u64) {
    let base = *end;
    *end += batch.len() as u64;
    batch.clear();
    (base, *end)
}

/// Starts a node with one shard, connects the client, and returns the packets that it receives.
fn sent_after_start(records: &Records) -> Vec<String> {
    let (mut shard, mut end, _) = started(records);
    connect(&mut shard);
    for _ in 0..10 {
        tick(&mut shard, &mut end, records);
    }
    packets(&mut shard)
}

/// Returns a node with one shard, the end of its journal, and the restored state.
fn started(records: &Records) -> (Shard, u64, RestoreCounts) {
    let mut recovery = Recovery::new();
    for (position, bytes) in records {
        recovery.record(*position, bytes).unwrap();
    }
    let recovered = recovery.finish();
    let config = Arc::new(ShardConfig::default());
    let node = Arc::new(NodeState::new(1, 1));
    let mut shard = Shard::new(NOW, ShardId(0), config, Arc::new(OpenAccess), node, 1);
    shard.start_journaling(recovered.last_key);
    let mut end = 1000;
    let mut read = |positions: &[RecordPosition], each: &mut dyn FnMut(usize, Option<&[u8]>)| {
        let bytes = positions.iter().map(|position| records.get(position));
        bytes
            .enumerate()
            .for_each(|(at, bytes)| each(at, bytes.map(Vec::as_slice)));
    };
    let shards = std::slice::from_mut(&mut shard);
    let restored = restore(NOW, shards, recovered, &mut read, &mut |batch| append(&mut end, batch));
    (shard, end, restored)
}

fn connect(shard: &mut Shard) {
    let connect = Packet::Connect(Connect {
        version: ProtocolVersion::V3_1_1,
        clean_start: false,
        is_bridge: false,
        keep_alive: 0,
        properties: Properties::EMPTY,
        client_id: "c",
        will: None,
        user_name: None,
        password: None,
    });
    let mut bytes = Vec::new();
    connect.encode(ProtocolVersion::V3_1_1, &mut bytes);
    let peer = Peer {
        address: SocketAddr::from((Ipv4Addr::LOCALHOST, 1)),
        transport: Transport::Tcp,
        listener: 0,
        maximum_packet_size: None,
        certificate_common_name: None,
        certificate: None,
    };
    shard.open(NOW, CONN, peer);
    shard.receive(NOW, CONN, &bytes);
}

/// Appends and commits the records of the tick, and answers the shard's read requests.
fn tick(shard: &mut Shard, end: &mut u64, records: &Records) {
    shard.run_timers(NOW);
    if let Some(batch) = shard.journal(NOW).batch() {
        let (base, end) = append(end, batch);
        shard.journal(NOW).appended(base, end);
    }
    shard.journal(NOW).committed(*end);
    let mut effects = Vec::new();
    shard.take_effects(&mut effects);
    for effect in effects {
        if let Effect::Fetch { purpose, positions } = effect {
            let found = positions
                .iter()
                .map(|position| records.get(position).cloned())
                .collect();
            shard.journal(NOW).fetched(purpose, &positions, found);
        }
    }
}

fn packets(shard: &mut Shard) -> Vec<String> {
    let mut slices = Vec::new();
    shard.outbox().slices(CONN, usize::MAX, &mut slices);
    let bytes = slices.concat();
    let (mut at, mut packets) = (0, Vec::new());
    while let Decoded::Complete { packet, size } = mqtt::decode(&bytes[at..], ProtocolVersion::V3_1_1, 1 << 20).unwrap()
    {
        at += size;
        packets.extend(match packet {
            Packet::Publish(p) => Some(format!("PUBLISH {} dup {}", p.packet_id.unwrap().get(), p.dup)),
            Packet::PubRel(ack) => Some(format!("PUBREL {}", ack.packet_id.get())),
            _ => None,
        });
    }
    packets
}

fn session(next_seq: Seq, filter: &str) -> JournalRecord<'_> {
    JournalRecord::Session(SessionRecord {
        session: C,
        client_id: "c",
        created_unix_ms: 0,
        left_unix_ms: None,
        terms: ConnectSettings {
            expiry_s: u32::MAX,
            version: 4,
            ..ConnectSettings::default()
        },
        next_seq,
        started: 0,
        subscriptions: vec![SubscriptionRecord {
            filter,
            options: SubscriptionOptions {
                maximum_qos: QoS::ExactlyOnce,
                ..SubscriptionOptions::default()
            },
            identifier: None,
            is_replaying: false,
        }],
        received: Vec::new(),
    })
}

fn message(qos: QoS, others: u64, targets: &[u8]) -> JournalRecord<'_> {
    JournalRecord::Message(MessageRecord {
        topic: "t",
        payload: b"p",
        properties: b"",
        qos,
        retain: false,
        expires_unix_ms: None,
        publisher_hash: 0,
        shard: 0,
        others,
        due_unix_ms: None,
        retained: None,
        publisher: None,
        provenance: Provenance::NONE,
        owner: None,
        targets: Targets::from_written(targets),
    })
}

fn target(seq: Seq, qos: QoS) -> Vec<u8> {
    let mut bytes = Vec::new();
    RecordTarget {
        to: Recipient::Session(C),
        seq,
        qos,
        retain: false,
        group: None,
        identifiers: Vec::new(),
    }
    .put(&mut bytes);
    bytes
}

#[test]
fn released_message_is_not_resent_with_its_duplicate() {
    let mut settled = Vec::new();
    AcknowledgedEntry {
        session: C,
        seq: 1,
        is_release: true,
    }
    .put(&mut settled);
    let (first, second) = (target(1, QoS::ExactlyOnce), target(2, QoS::ExactlyOnce));
    let records = journal(&[
        session(1, "other"),
        message(QoS::ExactlyOnce, 0, &first),
        JournalRecord::Queued {
            message: RecordPosition(101),
            size: MessageSize::UNKNOWN,
            targets: Targets::from_written(&second),
        },
        JournalRecord::Settled(SettledItems::from_written(&settled)),
    ]);
    assert_eq!(sent_after_start(&records), ["PUBREL 1", "PUBLISH 2 dup true"]);
}

#[test]
fn message_routed_by_recovery_has_dup_if_possibly_sent() {
    let boot = JournalRecord::Boot {
        unix_ms: 0,
        shards: 2,
        last_key: 64,
    };
    let all = 0b11;
    let records = journal(&[
        boot.clone(),
        session(1, "t"),
        message(QoS::AtLeastOnce, all, &[]),
        message(QoS::AtLeastOnce, all, &[]),
    ]);
    let again = ["PUBLISH 1 dup true", "PUBLISH 2 dup true"];
    assert_eq!(sent_after_start(&records), again);
    // A QoS 2 message is sent only after its commit. It has not been sent, and no later message has overtaken it.
    let records = journal(&[
        boot,
        session(1, "t"),
        message(QoS::AtLeastOnce, all, &[]),
        message(QoS::ExactlyOnce, all, &[]),
        message(QoS::AtLeastOnce, all, &[]),
    ]);
    let first = ["PUBLISH 1 dup true", "PUBLISH 2 dup false", "PUBLISH 3 dup false"];
    assert_eq!(sent_after_start(&records), first);
}

/// Returns the records of a subscription to "t" whose retained replay was interrupted, with one retained message.
fn interrupted(more: &[JournalRecord<'_>]) -> Records {
    let owed = SubscriptionRecord {
        filter: "t",
        options: SubscriptionOptions {
            maximum_qos: QoS::ExactlyOnce,
            ..SubscriptionOptions::default()
        },
        identifier: None,
        is_replaying: true,
    };
    let mut list = vec![
        session(1, "other"),
        message(QoS::AtLeastOnce, 0, &[]),
        JournalRecord::Retained {
            message: RecordPosition(101),
            expires_unix_ms: None,
            topic: "t",
        },
        JournalRecord::Subscribed {
            session: C,
            subscription: owed,
        },
    ];
    list.extend_from_slice(more);
    journal(&list)
}

#[test]
fn interrupted_retained_replay_is_repeated_after_a_crash() {
    assert_eq!(sent_after_start(&interrupted(&[])), ["PUBLISH 1 dup false"]);
}

#[test]
fn retained_message_queued_before_a_crash_is_sent_once() {
    let (queued, filter) = (target(1, QoS::AtLeastOnce), "t");
    let all = [
        JournalRecord::Queued {
            message: RecordPosition(101),
            size: MessageSize::UNKNOWN,
            targets: Targets::from_written(&queued),
        },
        JournalRecord::Replayed { session: C, filter },
    ];
    let from_queue = ["PUBLISH 1 dup true"];
    assert_eq!(sent_after_start(&interrupted(&all)), from_queue);
}

#[test]
fn ended_subscription_gets_no_retained_messages() {
    let gone = JournalRecord::Unsubscribed {
        session: C,
        filter: "t",
    };
    assert!(sent_after_start(&interrupted(&[gone])).is_empty());
}

/// Replay may begin at an earlier checkpoint than the last one. Messages that expired since may have been removed.
#[test]
fn expired_retained_message_is_not_read() {
    let retained = |topic, ago_ms| JournalRecord::Retained {
        message: RecordPosition(7),
        expires_unix_ms: Some(NOW.unix_ms - ago_ms),
        topic,
    };
    let (_, _, restored) = started(&journal(&[retained("gone", 1), retained("now", 0)]));
    assert_eq!(restored, RestoreCounts::default());
}

#[test]
fn group_without_members_is_deleted_at_the_start() {
    let group = JournalRecord::Group {
        group: GroupKey(70),
        share_name: "g",
        filter: "t",
    };
    let mut held = Vec::new();
    RecordTarget {
        to: Recipient::Group(GroupKey(70)),
        seq: 0,
        qos: QoS::AtLeastOnce,
        retain: false,
        group: None,
        identifiers: Vec::new(),
    }
    .put(&mut held);
    let (shard, ..) = started(&journal(&[group, message(QoS::AtLeastOnce, 0, &held)]));
    assert!(shard.inspect().shared_groups(9).is_empty());
    assert_eq!(shard.inspect().stats().queued_messages, 0);
}

/// Starts a node with `shards` shards from its log. Only the first `kept_batches` batches that the start writes
/// survive. Returns the number of retained topics.
fn start(directory: &Path, shards: u16, kept_batches: usize) -> u64 {
    let started = start_with(directory, shards, kept_batches, ShardConfig::default());
    started
        .iter()
        .map(|shard| shard.inspect().stats().retained_messages)
        .sum()
}

fn start_with(directory: &Path, shards: u16, kept_batches: usize, config: ShardConfig) -> Vec<Shard> {
    start_on(directory, &Arc::new(NodeState::new(shards, 1)), kept_batches, config)
}

fn start_on(directory: &Path, node: &Arc<NodeState>, kept_batches: usize, config: ShardConfig) -> Vec<Shard> {
    let new = |id| {
        Shard::new(
            NOW,
            ShardId(id),
            Arc::new(config.clone()),
            Arc::new(OpenAccess),
            node.clone(),
            1,
        )
    };
    restored(directory, (0..node.shards()).map(new).collect(), kept_batches)
}

/// Starts one shard that asks `access` for rights.
fn start_with_access(directory: &Path, access: Arc<dyn AccessControl>) -> Vec<Shard> {
    let node = Arc::new(NodeState::new(1, 1));
    let shard = Shard::new(NOW, ShardId(0), Arc::default(), access, node, 1);
    restored(directory, vec![shard], usize::MAX)
}

fn restored(directory: &Path, mut started: Vec<Shard>, kept_batches: usize) -> Vec<Shard> {
    let mut recovery = Recovery::new();
    let mut log = open(directory, &mut |position, bytes| {
        recovery.record(position, bytes).unwrap();
    });
    let recovered = recovery.finish();
    for shard in &mut started {
        shard.start_journaling(recovered.last_key);
    }
    let reader = log.reader();
    let mut read = |positions: &[RecordPosition], each: &mut dyn FnMut(usize, Option<&[u8]>)| {
        let positions: Vec<Lsn> = positions.iter().map(|position| Lsn(position.0)).collect();
        reader.read_many(&positions, |index, record| each(index, record.ok()));
    };
    let mut appended = 0;
    restore(NOW, &mut started, recovered, &mut read, &mut |batch| {
        let at = log.append(batch);
        appended += 1;
        if appended <= kept_batches {
            log.flush().unwrap();
        }
        (at.base.0, at.end.0)
    });
    started
}

/// The record of the will has the numbers of the shards that must still route it. The numbers depend on the shard
/// count.
#[test]
fn will_published_by_recovery_survives_another_crash() {
    let directory = std::env::temp_dir().join(format!("tidewire-restart-will-{}", std::process::id()));
    for topic in ["a", "b", "c", "d", "e", "f", "g", "h"] {
        for kept_batches in 0..12 {
            std::fs::create_dir_all(&directory).unwrap();
            let mut log = open(&directory, &mut |_, _| ());
            let mut batch = LogBatch::default();
            let JournalRecord::Session(mut session) = session(1, "t") else {
                unreachable!()
            };
            session.terms.will = Some(WillRecord {
                topic,
                payload: b"p",
                properties: b"",
                qos: QoS::AtLeastOnce,
                retain: true,
                delay_s: 0,
                message_expiry_s: None,
            });
            let boot = JournalRecord::Boot {
                unix_ms: NOW.unix_ms,
                shards: 1,
                last_key: C.0,
            };
            batch.record(|out| boot.put(out));
            batch.record(|out| JournalRecord::Session(session.clone()).put(out));
            log.append(&mut batch);
            log.flush().unwrap();
            drop(log);
            assert_eq!(start(&directory, 4, kept_batches), 1);
            assert_eq!(
                start(&directory, 2, usize::MAX),
                1,
                "{topic}, of {kept_batches} batches"
            );
            std::fs::remove_dir_all(&directory).unwrap();
        }
    }
}
