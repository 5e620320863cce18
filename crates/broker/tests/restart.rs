//! What a start makes of a journal: a session is sent again what it had not finished, and says so.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use journal::{Batch, Directory, Log, LogConfig, Lsn, Policy};
use mqtt::{
    Connect, Decoded, Packet, PacketId, Properties, ProtocolVersion, Publish, QoS, Subscribe, SubscribeFilter,
    SubscribeFilters, SubscriptionOptions,
};
use tidewire_broker::durable::record::*;
use tidewire_broker::durable::recovery::{Recovered, Recovery};
use tidewire_broker::durable::restore::{Restored, restore};
use tidewire_broker::provenance::Provenance;
use tidewire_broker::*;

const C: SessionKey = SessionKey(64);
const CONN: ConnSlot = ConnSlot(0);
const NOW: Now = Now {
    monotonic_ms: 1 << 42,
    unix_ms: 1_700_000_000_000,
};

/// Records stand at positions 100, 101, and so on.
type Records = BTreeMap<Position, Vec<u8>>;

fn journal(list: &[Record<'_>]) -> Records {
    let bytes = |record: &Record<'_>| {
        let mut bytes = Vec::new();
        record.put(&mut bytes);
        bytes
    };
    (100..).map(Position).zip(list.iter().map(bytes)).collect()
}

fn append(end: &mut u64, batch: &mut Batch) -> (u64, u64) {
    let base = *end;
    *end += batch.len() as u64;
    batch.clear();
    (base, *end)
}

/// Starts a node of one shard, has the client connect, and says what it is sent.
fn sent_after_start(records: &Records) -> Vec<String> {
    let (mut shard, mut end, _) = started(records);
    connect(&mut shard);
    for _ in 0..10 {
        tick(&mut shard, &mut end, records);
    }
    packets(&mut shard)
}

/// A node of one shard, where its journal ends, and what it was started with.
fn started(records: &Records) -> (Shard, u64, Restored) {
    let mut recovery = Recovery::new();
    for (position, bytes) in records {
        recovery.record(*position, bytes).unwrap();
    }
    let recovered = recovery.finish();
    let config = Arc::new(ShardConfig::default());
    let node = Arc::new(NodeState::new(1, 1));
    let mut shard = Shard::new(NOW, ShardId(0), 1, config, Arc::new(OpenAccess), node, 1);
    shard.keep_journal(recovered.last_key);
    let mut end = 1000;
    let mut read = |positions: &[Position], each: &mut dyn FnMut(usize, Option<&[u8]>)| {
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

/// Appends and commits what is recorded, and reads back what is asked for.
fn tick(shard: &mut Shard, end: &mut u64, records: &Records) {
    shard.run_timers(NOW);
    if let Some(batch) = shard.journal_batch() {
        let (base, end) = append(end, batch);
        shard.appended(base, end);
    }
    shard.committed(NOW, *end);
    let mut effects = Vec::new();
    shard.take_effects(&mut effects);
    for effect in effects {
        if let Effect::Fetch {
            session,
            connects,
            positions,
        } = effect
        {
            let found = positions
                .iter()
                .map(|position| records.get(position).cloned())
                .collect();
            shard.fetched(NOW, session, connects, &positions, found);
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

fn session(next_seq: Seq, filter: &str) -> Record<'_> {
    Record::Session(SessionRecord {
        session: C,
        client_id: "c",
        created_unix_ms: 0,
        left_unix_ms: None,
        terms: Terms {
            expiry_s: u32::MAX,
            version: 4,
            ..Terms::default()
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

fn message(qos: QoS, others: u64, targets: &[u8]) -> Record<'_> {
    Record::Message(MessageRecord {
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
        targets: Targets::from_written(targets),
    })
}

fn target(seq: Seq, qos: QoS) -> Vec<u8> {
    let mut bytes = Vec::new();
    Target {
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
fn a_released_message_does_not_come_again_with_another_entry_of_the_same_message() {
    let mut settled = Vec::new();
    Settled {
        session: C,
        seq: 1,
        is_release: true,
    }
    .put(&mut settled);
    let (first, second) = (target(1, QoS::ExactlyOnce), target(2, QoS::ExactlyOnce));
    let records = journal(&[
        session(1, "other"),
        message(QoS::ExactlyOnce, 0, &first),
        Record::Queued {
            message: Position(101),
            targets: Targets::from_written(&second),
        },
        Record::Settled(SettledItems::from_written(&settled)),
    ]);
    assert_eq!(sent_after_start(&records), ["PUBREL 1", "PUBLISH 2 dup true"]);
}

#[test]
fn what_a_start_routes_to_who_was_connected_may_have_been_sent_before() {
    let boot = Record::Boot {
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
    // What is sent at QoS 2 only after it is kept has not been sent, and nothing has passed it.
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

/// A subscription to "t" that was being sent retained messages, one of which is there.
fn interrupted(more: &[Record<'_>]) -> Records {
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
        Record::Retained {
            message: Position(101),
            expires_unix_ms: None,
            topic: "t",
        },
        Record::Subscribed {
            session: C,
            subscription: owed,
        },
    ];
    list.extend_from_slice(more);
    journal(&list)
}

#[test]
fn retained_messages_that_a_crash_kept_from_a_new_subscription_come_after_it() {
    assert_eq!(sent_after_start(&interrupted(&[])), ["PUBLISH 1 dup false"]);
}

#[test]
fn retained_messages_that_were_queued_before_a_crash_come_from_the_queue_alone() {
    let (queued, filter) = (target(1, QoS::AtLeastOnce), "t");
    let all = [
        Record::Queued {
            message: Position(101),
            targets: Targets::from_written(&queued),
        },
        Record::Replayed { session: C, filter },
    ];
    let from_queue = ["PUBLISH 1 dup true"];
    assert_eq!(sent_after_start(&interrupted(&all)), from_queue);
}

#[test]
fn a_subscription_that_ended_is_owed_no_retained_messages() {
    let gone = Record::Unsubscribed {
        session: C,
        filter: "t",
    };
    assert!(sent_after_start(&interrupted(&[gone])).is_empty());
}

/// Replay may begin where a checkpoint before the last one had it begin: what expired since may have been removed.
#[test]
fn an_expired_retained_message_is_not_looked_for() {
    let retained = |topic, ago_ms| Record::Retained {
        message: Position(7),
        expires_unix_ms: Some(NOW.unix_ms - ago_ms),
        topic,
    };
    let (_, _, restored) = started(&journal(&[retained("gone", 1), retained("now", 0)]));
    assert_eq!(restored, Restored::default());
}

/// A shard whose records go to a log.
struct Node {
    shard: Shard,
    log: Log,
    directory: PathBuf,
    connections: u32,
}

impl Node {
    fn new(name: &str, config: ShardConfig) -> Node {
        let directory = std::env::temp_dir().join(format!("tidewire-restart-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let log = open(&directory, &mut |_, _| ());
        let node = Arc::new(NodeState::new(1, 1));
        let mut shard = Shard::new(NOW, ShardId(0), 1, Arc::new(config), Arc::new(OpenAccess), node, 1);
        shard.keep_journal(0);
        Node {
            shard,
            log,
            directory,
            connections: 0,
        }
    }

    fn connect(&mut self, client_id: &str, clean_start: bool, expiry_s: u32) -> ConnSlot {
        let conn = ConnSlot(self.connections);
        self.connections += 1;
        let mut properties = Vec::new();
        mqtt::PropertyWriter::new(&mut properties).put(mqtt::Property::SessionExpiryInterval(expiry_s));
        let connect = Connect {
            version: ProtocolVersion::V5,
            clean_start,
            is_bridge: false,
            keep_alive: 0,
            properties: Properties::from_validated(&properties),
            client_id,
            will: None,
            user_name: None,
            password: None,
        };
        let peer = Peer {
            address: SocketAddr::from((Ipv4Addr::LOCALHOST, 1)),
            transport: Transport::Tcp,
            listener: 0,
            maximum_packet_size: None,
            certificate_common_name: None,
            certificate: None,
        };
        self.shard.open(NOW, conn, peer);
        self.send(conn, &Packet::Connect(connect));
        conn
    }

    fn send(&mut self, conn: ConnSlot, packet: &Packet<'_>) {
        let mut bytes = Vec::new();
        packet.encode(ProtocolVersion::V5, &mut bytes);
        self.shard.receive(NOW, conn, &bytes);
    }

    /// The tick ends: what it has recorded is kept.
    fn end_tick(&mut self) {
        if let Some(batch) = self.shard.journal_batch() {
            let at = self.log.append(batch);
            self.shard.appended(at.base.0, at.end.0);
        }
        self.log.flush().unwrap();
        self.shard.committed(NOW, self.log.committed().0);
    }

    /// Reads what is asked for. False if nothing is.
    fn read(&mut self) -> bool {
        let mut effects = Vec::new();
        self.shard.take_effects(&mut effects);
        let mut is_any = false;
        for effect in effects {
            if let Effect::Fetch {
                session,
                connects,
                positions,
            } = effect
            {
                let wanted: Vec<Lsn> = positions.iter().map(|position| Lsn(position.0)).collect();
                let mut records = vec![None; wanted.len()];
                self.log.reader().read_many(&wanted, |index, record| {
                    records[index] = record.ok().map(<[u8]>::to_vec)
                });
                self.shard.fetched(NOW, session, connects, &positions, records);
                is_any = true;
            }
        }
        is_any
    }

    fn publish(&mut self, publisher: ConnSlot, id: u16) {
        let message = Publish {
            dup: false,
            qos: QoS::AtLeastOnce,
            retain: false,
            topic: "t",
            packet_id: PacketId::new(id),
            properties: Properties::EMPTY,
            payload: &id.to_be_bytes(),
        };
        self.send(publisher, &Packet::Publish(message));
    }

    /// Messages that the shard wants to read.
    fn asked_for(&mut self) -> usize {
        let mut effects = Vec::new();
        self.shard.take_effects(&mut effects);
        let fetched = effects.iter().map(|effect| match effect {
            Effect::Fetch { positions, .. } => positions.len(),
            _ => 0,
        });
        fetched.sum()
    }

    /// Identifiers with which those messages were published that a client has been sent.
    fn sent(&mut self, conn: ConnSlot) -> Vec<u16> {
        let mut slices = Vec::new();
        self.shard.outbox().slices(conn, usize::MAX, &mut slices);
        let bytes = slices.concat();
        let (mut at, mut sent) = (0, Vec::new());
        while let Decoded::Complete { packet, size } = mqtt::decode(&bytes[at..], ProtocolVersion::V5, 1 << 20).unwrap()
        {
            at += size;
            if let Packet::Publish(p) = packet {
                sent.push(u16::from_be_bytes(p.payload.try_into().unwrap()));
            }
        }
        sent
    }

    /// To `$share/g/t`.
    fn join(&mut self, conn: ConnSlot) {
        let mut bytes = Vec::new();
        let filter = SubscribeFilter {
            filter: "$share/g/t",
            options: SubscriptionOptions {
                maximum_qos: QoS::AtLeastOnce,
                ..SubscriptionOptions::default()
            },
        };
        let subscribe = Packet::Subscribe(Subscribe {
            packet_id: PacketId::new(1).unwrap(),
            properties: Properties::EMPTY,
            filters: SubscribeFilters::encode([filter], ProtocolVersion::V5, &mut bytes),
        });
        self.send(conn, &subscribe);
    }

    fn recovered_after_a_crash(self) -> Recovered {
        drop(self.log);
        let mut recovery = Recovery::new();
        open(&self.directory, &mut |position, bytes| {
            recovery.record(position, bytes).unwrap();
        });
        std::fs::remove_dir_all(&self.directory).unwrap();
        recovery.finish()
    }
}

fn open(directory: &Path, record: &mut dyn FnMut(Position, &[u8])) -> Log {
    let config = LogConfig {
        policy: Policy::Fsync,
        segment_bytes: 1 << 20,
        max_bytes: 64 << 20,
        reserve_bytes: 0,
    };
    let mut replay = |position: Lsn, bytes: &[u8]| {
        record(Position(position.0), bytes);
        Ok(())
    };
    let directory = Directory::open(directory, journal::DIRECTORY_NAME).unwrap();
    Log::open(Arc::new(directory), config, &mut replay, &mut |_, _| {})
        .unwrap()
        .0
}

#[test]
fn what_a_group_gives_to_a_member_that_is_to_end_with_its_connection_is_there_after_a_crash() {
    let mut node = Node::new("lent", ShardConfig::default());
    let away = node.connect("away", true, 1000);
    node.join(away);
    node.shard.closed(NOW, away, CloseCause::Network);
    let member = node.connect("member", true, 1000);
    node.join(member);
    let publisher = node.connect("publisher", true, 0);
    node.end_tick();
    node.publish(publisher, 1);
    node.connect("member", false, 0);
    node.end_tick();
    let recovered = node.recovered_after_a_crash();
    let held: usize = recovered.groups.iter().map(|group| group.messages.len()).sum();
    // The member's session ends when the node starts, and gives back what it has.
    let given = recovered.sessions.iter().filter(|session| session.terms.expiry_s == 0);
    let given: usize = given.map(|session| session.entries.len()).sum();
    assert_eq!(
        (held, given),
        (0, 1),
        "the publisher has its PUBACK, and nobody else has the message"
    );
}

/// One message is in flight to a member that leaves, two wait; the session keeps their positions only. Then another member comes.
/// Returns how many messages the group and the other member have after a crash.
fn left_behind(name: &str, is_read: bool) -> (usize, usize) {
    let config = ShardConfig {
        inflight_max: 1,
        ..ShardConfig::default()
    };
    let mut node = Node::new(name, config);
    let first = node.connect("first", true, 1000);
    node.join(first);
    let publisher = node.connect("publisher", true, 0);
    (1..=3).for_each(|id| node.publish(publisher, id));
    node.shard.closed(NOW, first, CloseCause::Network);
    node.end_tick();
    let other = node.connect("other", true, 1000);
    node.join(other);
    while is_read && node.read() {
        node.end_tick();
    }
    node.end_tick();
    let recovered = node.recovered_after_a_crash();
    let held: usize = recovered.groups.iter().map(|group| group.messages.len()).sum();
    let entries = |name: &str| {
        let sessions = recovered.sessions.iter().filter(|session| &*session.client_id == name);
        sessions.map(|session| session.entries.len()).sum::<usize>()
    };
    assert_eq!(entries("first"), 0);
    (held, entries("other"))
}

#[test]
fn what_a_member_has_in_the_journal_only_goes_to_the_member_that_comes() {
    assert_eq!(left_behind("comes", true), (0, 3));
}

#[test]
fn what_a_member_gives_back_is_the_groups_before_it_has_been_read() {
    assert_eq!(left_behind("unread", false), (3, 0));
}

/// Nine messages wait for a group whose member is away, in a queue with a window of two.
fn long_queue(name: &str) -> (Node, ConnSlot) {
    let config = ShardConfig {
        group_window: 2,
        ..ShardConfig::default()
    };
    let mut node = Node::new(name, config);
    let member = node.connect("member", true, 1000);
    node.join(member);
    node.shard.closed(NOW, member, CloseCause::Network);
    let publisher = node.connect("publisher", true, 0);
    for id in 1..=9 {
        node.publish(publisher, id);
        node.end_tick();
    }
    (node, publisher)
}

#[test]
fn the_queue_of_a_group_is_in_the_journal_but_for_the_newest_few() {
    let (mut node, _) = long_queue("held");
    let views = node.shard.shared_groups(1);
    let bytes_of_one = views[0].queued_bytes / 3;
    assert_eq!((views[0].queued, views[0].queued_bytes), (9, 3 * bytes_of_one));
    assert!(bytes_of_one > 0);
    let stats = node.shard.stats();
    assert_eq!(
        (stats.queued_messages, stats.queued_bytes),
        (9, 3 * bytes_of_one as u64)
    );
    assert_eq!(node.asked_for(), 0, "nobody is there to get it");
    let recovered = node.recovered_after_a_crash();
    assert_eq!(recovered.groups[0].messages.len(), 9);
}

#[test]
fn a_group_gives_out_its_queue_in_parts_and_what_is_published_meanwhile_comes_behind_it() {
    let (mut node, publisher) = long_queue("parts");
    let member = node.connect("member", false, 1000);
    let mut left = Vec::new();
    for step in 0.. {
        let queued = node.shard.shared_groups(1)[0].queued;
        left.push(queued);
        if queued == 0 {
            break;
        }
        if step == 1 {
            node.publish(publisher, 10);
            assert_eq!(
                node.shard.shared_groups(1)[0].queued,
                queued + 1,
                "not to the member yet"
            );
        }
        node.read();
        node.shard.run_timers(NOW);
        node.end_tick();
    }
    // What has been read, and then what is in memory.
    assert!(left.windows(2).all(|pair| pair[0] <= pair[1] + 2 + 2), "{left:?}");
    let sent = node.sent(member);
    assert_eq!(sent, (1..=10).collect::<Vec<_>>());
    assert_eq!(node.shard.stats().queued_messages, 0);
}

#[test]
fn what_a_group_has_left_when_its_member_goes_waits_for_it_in_order() {
    let (mut node, _) = long_queue("goes");
    let member = node.connect("member", false, 1000);
    node.read();
    assert_eq!(node.sent(member), [1, 2]);
    // The next two are being read.
    node.shard.closed(NOW, member, CloseCause::Network);
    node.read();
    node.end_tick();
    assert_eq!(node.shard.shared_groups(1)[0].queued, 7);
    let member = node.connect("member", false, 1000);
    while node.read() || node.shard.shared_groups(1)[0].queued > 0 {
        node.shard.run_timers(NOW);
        node.end_tick();
    }
    assert_eq!(node.sent(member), (1..=9).collect::<Vec<_>>());
}

#[test]
fn a_member_that_is_away_gives_back_what_it_has_in_parts() {
    let config = ShardConfig {
        inflight_max: 1,
        group_window: 1,
        ..ShardConfig::default()
    };
    let mut node = Node::new("gives", config);
    let first = node.connect("first", true, 1000);
    node.join(first);
    let publisher = node.connect("publisher", true, 0);
    (1..=20).for_each(|id| node.publish(publisher, id));
    node.shard.closed(NOW, first, CloseCause::Network);
    node.end_tick();
    let other = node.connect("other", true, 1000);
    node.join(other);
    assert_eq!(
        node.shard.shared_groups(1)[0].queued,
        8,
        "of a member's queue in one tick"
    );
    while node.read() || node.shard.next_deadline() == Some(0) {
        node.shard.run_timers(NOW);
        node.end_tick();
    }
    assert_eq!(node.sent(other), [1]);
    let recovered = node.recovered_after_a_crash();
    assert!(recovered.groups[0].messages.is_empty());
    let entries = |name: &str| {
        let session = recovered
            .sessions
            .iter()
            .find(|session| &*session.client_id == name)
            .unwrap();
        session.entries.iter().map(|entry| entry.message()).collect::<Vec<_>>()
    };
    assert!(entries("first").is_empty());
    assert_eq!(entries("other").len(), 20);
    assert!(
        entries("other").is_sorted(),
        "in the order in which they were published"
    );
}

/// Starts a node of so many shards from its log, of which only the first batches that it writes thereby are kept. Returns how many topics
/// are retained then.
fn start(directory: &Path, shards: u16, kept_batches: usize) -> u64 {
    let mut recovery = Recovery::new();
    let mut log = open(directory, &mut |position, bytes| {
        recovery.record(position, bytes).unwrap();
    });
    let recovered = recovery.finish();
    let node = Arc::new(NodeState::new(shards, 1));
    let config = Arc::new(ShardConfig::default());
    let new = |id| {
        Shard::new(
            NOW,
            ShardId(id),
            shards,
            config.clone(),
            Arc::new(OpenAccess),
            node.clone(),
            1,
        )
    };
    let mut started: Vec<Shard> = (0..shards).map(new).collect();
    for shard in &mut started {
        shard.keep_journal(recovered.last_key);
    }
    let reader = log.reader();
    let mut read = |positions: &[Position], each: &mut dyn FnMut(usize, Option<&[u8]>)| {
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
    started.iter().map(|shard| shard.stats().retained_messages).sum()
}

/// The message of the will names the shards that have still to route it, by numbers that mean something only with how many there are.
#[test]
fn a_will_that_a_start_publishes_survives_a_crash_of_that_start_and_another_number_of_shards() {
    let directory = std::env::temp_dir().join(format!("tidewire-restart-will-{}", std::process::id()));
    for topic in ["a", "b", "c", "d", "e", "f", "g", "h"] {
        for kept_batches in 0..12 {
            std::fs::create_dir_all(&directory).unwrap();
            let mut log = open(&directory, &mut |_, _| ());
            let mut batch = Batch::default();
            let Record::Session(mut session) = session(1, "t") else {
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
            let boot = Record::Boot {
                unix_ms: NOW.unix_ms,
                shards: 1,
                last_key: C.0,
            };
            batch.record(|out| boot.put(out));
            batch.record(|out| Record::Session(session.clone()).put(out));
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
