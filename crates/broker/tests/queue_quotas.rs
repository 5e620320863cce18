//! Tests the limit of the bytes in the queues of a user. After every step, the counted bytes of each owner equal the
//! sum over the queued messages of its sessions on all shards.

use std::collections::BTreeMap;
use std::sync::Arc;

use mqtt::ProtocolVersion::V5;
use mqtt::*;
use tidewire_broker::owners::{OwnerLimits, ShareLimits};
use tidewire_broker::*;

use crate::scale::scaled;
use crate::world::{PublishFields, World, connect_packet};

const SHARDS: u16 = 3;
const DAY_S: u32 = 86_400;
const OWNERS: [&str; 3] = ["user:a", "user:b", "address:10.0.0.1"];
const OFF: u64 = u64::MAX;

fn shares(queued_bytes: u64) -> ShareLimits {
    ShareLimits {
        user: OwnerLimits {
            queued_bytes,
            ..OwnerLimits::NONE
        },
        client: OwnerLimits::NONE,
    }
}

fn config(queued_bytes: u64) -> ShardConfig {
    ShardConfig {
        shares: shares(queued_bytes),
        ..ShardConfig::default()
    }
}

fn world(config: ShardConfig) -> World {
    World::with(SHARDS, config, Arc::new(OpenAccess))
}

fn reconfigure(w: &mut World, config: ShardConfig) {
    let config = Arc::new(config);
    for shard in &mut w.shards {
        shard.reconfigure(w.now, config.clone());
    }
}

/// Returns the bytes of the messages in the queues of each owner.
fn recounted(w: &World) -> [u64; OWNERS.len()] {
    let sum_of = |shard: &Shard, owner| shard.inspect().sum_of_queued_bytes_of(owner);
    OWNERS.map(|owner| w.shards.iter().map(|shard| sum_of(shard, owner)).sum())
}

/// Returns the counted bytes of each owner. They must be those of its messages.
fn counted(w: &World) -> [u64; OWNERS.len()] {
    let counted = OWNERS.map(|owner| w.node.owners.user(owner).queued_bytes());
    assert_eq!(counted, recounted(w));
    counted
}

fn refused(w: &World) -> u64 {
    w.stats().drops[DropReason::UserQueueFull as usize]
}

/// Connects a client whose session stays for a day. Its CONNACK and its messages are not read.
fn connect(w: &mut World, user: Option<&str>, client_id: &str, clean_start: bool) -> usize {
    let client = w.open();
    let mut properties = Vec::new();
    PropertyWriter::new(&mut properties).put(Property::SessionExpiryInterval(DAY_S));
    let properties = Properties::from_validated(&properties);
    let connect = Connect {
        user_name: user,
        ..connect_packet(V5, client_id, clean_start, properties, None)
    };
    w.send(client, &Packet::Connect(connect));
    client
}

fn offline(w: &mut World, user: Option<&str>, client_id: &str, filter: &str) {
    let client = connect(w, user, client_id, true);
    w.subscribe(client, filter, QoS::AtLeastOnce);
    w.cut(client);
}

/// Publishes messages of the same size to a topic.
fn publish(w: &mut World, topic: &str, payloads: std::ops::RangeInclusive<u32>) {
    let publisher = w.connect(V5, "publisher", true, &[]);
    for payload in payloads {
        w.publish(publisher, topic, &payload.to_string(), QoS::AtLeastOnce);
    }
    w.cut(publisher);
}

/// Connects an offline client, and acknowledges its messages. Returns their payloads.
fn drain(w: &mut World, user: Option<&str>, client_id: &str) -> Vec<String> {
    let client = connect(w, user, client_id, false);
    let mut payloads = Vec::new();
    loop {
        let messages = w.messages(client);
        if messages.is_empty() {
            break;
        }
        for message in messages {
            w.ack(client, PacketType::PubAck, message.id.unwrap());
            payloads.push(message.payload);
        }
    }
    w.cut(client);
    payloads
}

/// Returns the bytes that a small message counts.
fn bytes_of_one() -> u64 {
    let mut w = world(config(OFF - 1));
    offline(&mut w, Some("a"), "a1", "t/1");
    publish(&mut w, "t/1", 1..=1);
    counted(&w)[0]
}

#[test]
fn sessions_of_a_user_share_the_limit() {
    let one = bytes_of_one();
    let mut w = world(config(4 * one));
    offline(&mut w, Some("a"), "a1", "t/1");
    offline(&mut w, Some("a"), "a2", "t/2");
    offline(&mut w, Some("a"), "a3", "t/3");
    offline(&mut w, Some("b"), "b1", "t/1");
    publish(&mut w, "t/1", 1..=3);
    publish(&mut w, "t/2", 4..=6);
    assert_eq!(counted(&w), [4 * one, 3 * one, 0]);
    assert_eq!(refused(&w), 2, "the second session has one message at a time");
    publish(&mut w, "t/3", 7..=8);
    assert_eq!(
        refused(&w),
        4,
        "the third session has no space, and drops no message of others"
    );
    assert!(w.events.iter().any(|event| match event {
        ConnectionEvent::Dropping { client_id, reason } => &**client_id == "a2" && *reason == DropReason::UserQueueFull,
        _ => false,
    }));
    assert_eq!(drain(&mut w, Some("a"), "a3"), [] as [&str; 0]);
    assert_eq!(drain(&mut w, Some("a"), "a2"), ["6"]);
    publish(&mut w, "t/3", 9..=9);
    assert_eq!(counted(&w), [4 * one, 3 * one, 0], "acknowledged messages make space");
    assert_eq!(drain(&mut w, Some("a"), "a3"), ["9"]);
    assert_eq!(drain(&mut w, Some("a"), "a1"), ["1", "2", "3"]);
    assert_eq!(drain(&mut w, Some("b"), "b1"), ["1", "2", "3"]);
    assert_eq!((counted(&w), refused(&w)), ([0; 3], 4));
}

#[test]
fn newest_message_is_dropped_if_so_configured() {
    let one = bytes_of_one();
    let mut w = world(ShardConfig {
        queue_drop: QueueDropPolicy::Newest,
        ..config(3 * one)
    });
    offline(&mut w, Some("a"), "a1", "t/1");
    publish(&mut w, "t/1", 1..=5);
    assert_eq!((counted(&w)[0], refused(&w)), (3 * one, 2));
    assert_eq!(drain(&mut w, Some("a"), "a1"), ["1", "2", "3"]);
}

#[test]
fn clients_without_user_name_count_by_address() {
    let one = bytes_of_one();
    let mut w = world(config(4 * one));
    offline(&mut w, None, "c1", "t/1");
    offline(&mut w, None, "c2", "t/2");
    publish(&mut w, "t/1", 1..=4);
    publish(&mut w, "t/2", 5..=6);
    assert_eq!((counted(&w), refused(&w)), ([0, 0, 4 * one], 2));
    assert_eq!(drain(&mut w, None, "c1"), ["1", "2", "3", "4"]);
}

#[test]
fn expired_messages_and_ended_sessions_free_the_limit() {
    let one = bytes_of_one();
    // The message that expires may be larger.
    let mut w = world(config(2 * one + one / 2));
    offline(&mut w, Some("a"), "a1", "t/1");
    offline(&mut w, Some("a"), "a2", "t/2");
    let publisher = w.connect(V5, "expiring", true, &[]);
    let fields = PublishFields {
        properties: &[Property::MessageExpiryInterval(5)],
        ..PublishFields::default()
    };
    w.publish_with(publisher, "t/1", "1", QoS::AtLeastOnce, fields);
    publish(&mut w, "t/1", 2..=2);
    w.pass(6000);
    publish(&mut w, "t/1", 3..=3);
    assert_eq!(
        (counted(&w)[0], refused(&w)),
        (2 * one, 0),
        "the expired message is dropped"
    );
    let now = w.now;
    for shard in &mut w.shards {
        shard.operator(now).kick("a1", true);
    }
    w.settle();
    assert_eq!(counted(&w)[0], 0);
    publish(&mut w, "t/2", 4..=5);
    assert_eq!((counted(&w)[0], refused(&w)), (2 * one, 0));
}

#[test]
fn lower_limit_deletes_nothing() {
    let one = bytes_of_one();
    let mut w = world(config(OFF));
    offline(&mut w, Some("a"), "a1", "t/1");
    publish(&mut w, "t/1", 1..=6);
    let user = w.node.owners.user("user:a");
    assert_eq!(user.queued_bytes(), 0, "without a limit nothing is counted");
    reconfigure(&mut w, config(4 * one));
    assert_eq!(counted(&w)[0], 6 * one);
    publish(&mut w, "t/1", 7..=7);
    assert_eq!((counted(&w)[0], refused(&w)), (6 * one, 1));
    assert_eq!(drain(&mut w, Some("a"), "a1"), ["1", "2", "3", "4", "5", "6"]);
    publish(&mut w, "t/1", 8..=8);
    assert_eq!(counted(&w)[0], one);
    reconfigure(&mut w, config(OFF));
    assert_eq!(user.queued_bytes(), 0);
    publish(&mut w, "t/1", 9..=15);
    assert_eq!((drain(&mut w, Some("a"), "a1").len(), refused(&w)), (8, 1));
}

#[test]
fn session_counts_for_the_user_that_resumes_it() {
    let mut w = world(ShardConfig {
        is_client_id_owned: false,
        max_inflight: 1,
        ..config(OFF - 1)
    });
    offline(&mut w, Some("a"), "c", "t/1");
    publish(&mut w, "t/1", 1..=4);
    let before = counted(&w);
    assert!(before[0] > 0 && before[1] == 0);
    connect(&mut w, Some("b"), "c", false);
    let after = counted(&w);
    assert!(after[0] == 0 && after[1] > 0, "{after:?}");
}

/// A member that has no space waits, and loses no message.
#[test]
fn shared_messages_go_to_members_whose_user_has_space() {
    let one = bytes_of_one();
    let mut w = world(ShardConfig {
        max_inflight: 1,
        ..config(4 * one)
    });
    offline(&mut w, Some("a"), "a1", "t/1");
    publish(&mut w, "t/1", 1..=4);
    let members = [("a", "a2"), ("b", "b2")].map(|(user, id)| connect(&mut w, Some(user), id, true));
    for member in members {
        w.subscribe(member, "$share/g/s", QoS::AtLeastOnce);
        w.take(member);
    }
    publish(&mut w, "s", 1..=9);
    assert_eq!(counted(&w)[0], 4 * one);
    let mut received = Vec::new();
    for _ in 0..100 {
        for member in members {
            for message in w.messages(member) {
                w.ack(member, PacketType::PubAck, message.id.unwrap());
                received.push(message.payload);
            }
        }
        w.pass(100);
        counted(&w);
    }
    received.sort();
    assert_eq!(received, ["1", "2", "3", "4", "5", "6", "7", "8", "9"]);
    assert_eq!(refused(&w), 0);
}

/// The window of the member is open, but its socket is blocked. The message that the group has sent to it waits above
/// the limit of the user, and the others wait in the group.
#[test]
fn shared_message_for_a_blocked_member_is_not_dropped() {
    let one = bytes_of_one();
    let mut w = world(ShardConfig {
        output_buffer_bytes: 30,
        ..config(4 * one)
    });
    offline(&mut w, Some("a"), "a1", "t/1");
    publish(&mut w, "t/1", 1..=4);
    let member = connect(&mut w, Some("a"), "a2", true);
    w.subscribe(member, "$share/g/s", QoS::AtLeastOnce);
    w.take(member);
    w.blocked.push(member);
    publish(&mut w, "s", 1..=9);
    let bytes = counted(&w)[0];
    assert!(bytes > 4 * one && bytes < 6 * one, "{bytes} bytes, {one} of a message");
    w.unblock(member);
    let mut received = Vec::new();
    for _ in 0..100 {
        for message in w.messages(member) {
            w.ack(member, PacketType::PubAck, message.id.unwrap());
            received.push(message.payload);
        }
        w.pass(100);
        counted(&w);
    }
    received.sort();
    assert_eq!(received, ["1", "2", "3", "4", "5", "6", "7", "8", "9"]);
    assert_eq!(refused(&w), 0);
}

/// Random clients and messages. The node has queues of all kinds: behind those in flight, of blocked sockets, held for
/// retained messages, of share groups and of data streams.
struct RandomRun {
    random: u64,
    w: World,
    config: ShardConfig,
    publisher: usize,
    next_id: u16,
    /// Connections by client id.
    connections: BTreeMap<String, usize>,
    /// Data streams, with the connection of their client.
    streams: Vec<(usize, usize)>,
}

impl RandomRun {
    fn new(seed: u64) -> RandomRun {
        let config = ShardConfig {
            max_inflight: 2,
            max_queued_messages: 30,
            max_queued_bytes: 20_000,
            output_buffer_bytes: 4000,
            queue_qos0: true,
            is_client_id_owned: false,
            queue_drop: match seed.is_multiple_of(2) {
                true => QueueDropPolicy::Oldest,
                false => QueueDropPolicy::Newest,
            },
            ..config(8000)
        };
        let mut w = world(config.clone());
        let publisher = w.connect(V5, "publisher", true, &[]);
        RandomRun {
            random: seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1,
            w,
            config,
            publisher,
            next_id: 0,
            connections: BTreeMap::new(),
            streams: Vec::new(),
        }
    }

    /// xorshift64*
    fn below(&mut self, n: u64) -> u64 {
        self.random ^= self.random >> 12;
        self.random ^= self.random << 25;
        self.random ^= self.random >> 27;
        (self.random.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 16) % n
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }

    /// Returns the open connections and data streams.
    fn open(&self) -> Vec<usize> {
        let streams = self.streams.iter().map(|(_, stream)| *stream);
        let all = self.connections.values().copied().chain(streams);
        all.filter(|client| !self.w.is_closed(*client)).collect()
    }

    /// Closes the data streams whose client has disconnected, as a driver does.
    fn close_streams(&mut self) {
        for (client, stream) in self.streams.clone() {
            if self.w.is_closed(client) && !self.w.is_closed(stream) {
                self.w.cut(stream);
            }
        }
    }

    fn step(&mut self) {
        match self.below(20) {
            0..8 => self.publish(),
            8..11 => self.connect(),
            11..15 => {
                let open = self.open();
                if !open.is_empty() {
                    let client = self.pick(&open);
                    self.act(client);
                }
            }
            15 => {
                let ms = self.pick(&[10, 1500, 20_000]);
                self.w.pass(ms);
            }
            16 => {
                let limit = self.pick(&[2000, 8000, 8000, 30_000, OFF]);
                self.config.shares = shares(limit);
                reconfigure(&mut self.w, self.config.clone());
            }
            17 => {
                let id = format!("c{}", self.below(6));
                let ends = self.below(2) == 0;
                let now = self.w.now;
                for shard in &mut self.w.shards {
                    shard.operator(now).kick(&id, ends);
                }
                self.w.settle();
            }
            _ => self.read_all(),
        }
        self.close_streams();
    }

    fn publish(&mut self) {
        let qos = self.pick(&[QoS::AtMostOnce, QoS::AtLeastOnce, QoS::AtLeastOnce, QoS::ExactlyOnce]);
        let topic = format!("t/{}", self.below(3));
        let payload = "x".repeat(self.pick(&[1, 1, 300, 1500]));
        let expiry = [Property::MessageExpiryInterval(1)];
        self.next_id = self.next_id % 60_000 + 1;
        let fields = PublishFields {
            retain: self.below(4) == 0,
            id: self.next_id,
            properties: if self.below(4) == 0 { &expiry } else { &[] },
            ..PublishFields::default()
        };
        self.w.publish_with(self.publisher, &topic, &payload, qos, fields);
        if qos == QoS::ExactlyOnce {
            self.w.ack(self.publisher, PacketType::PubRel, self.next_id);
        }
        self.w.take_bytes(self.publisher);
    }

    fn connect(&mut self) {
        let id = format!("c{}", self.below(6));
        let user = self.pick(&[Some("a"), Some("a"), Some("b"), None]);
        let clean_start = self.below(6) == 0;
        let client = connect(&mut self.w, user, &id, clean_start);
        self.connections.insert(id, client);
    }

    fn act(&mut self, client: usize) {
        match self.below(9) {
            0..3 => {
                let filter = self.pick(&["t/#", "t/0", "t/1", "t/2", "$share/g/t/#", "$share/h/t/1"]);
                let qos = self.pick(&[QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce]);
                let identifier = (self.below(3) == 0).then_some(7);
                let options = SubscriptionOptions {
                    maximum_qos: qos,
                    ..SubscriptionOptions::default()
                };
                self.w.subscribe_with(client, filter, options, identifier);
            }
            3 => {
                let filter = self.pick(&["t/#", "t/0", "$share/g/t/#"]);
                self.w.unsubscribe(client, filter);
            }
            4 => self.w.cut(client),
            5 => self.w.disconnect(client),
            6 => {
                if !self.w.blocked.contains(&client) {
                    self.w.blocked.push(client);
                }
            }
            7 => {
                let is_stream = self.streams.iter().any(|(_, stream)| *stream == client);
                if !is_stream && let Some(stream) = self.w.open_stream(client) {
                    self.streams.push((client, stream));
                }
            }
            _ => self.read(client),
        }
    }

    fn read_all(&mut self) {
        for client in self.open() {
            if !self.w.is_closed(client) {
                self.read(client);
            }
        }
    }

    /// Reads from a connection, and acknowledges all messages.
    fn read(&mut self, client: usize) {
        self.w.unblock(client);
        for message in self.w.messages(client) {
            let Some(id) = message.id else { continue };
            if message.qos == QoS::AtLeastOnce {
                self.w.ack(client, PacketType::PubAck, id);
            } else {
                self.w.ack(client, PacketType::PubRec, id);
                self.w.ack(client, PacketType::PubComp, id);
            }
        }
    }

    fn check(&self) {
        match self.config.shares.user.queued_bytes {
            OFF => {
                let users = OWNERS.map(|owner| self.w.node.owners.user(owner).queued_bytes());
                assert_eq!(users, [0; OWNERS.len()]);
            }
            _ => _ = counted(&self.w),
        }
    }
}

#[test]
fn counted_bytes_equal_a_recount_after_random_steps() {
    let mut refusals = 0;
    for seed in 1..=scaled(30) {
        let mut run = RandomRun::new(seed);
        for _ in 0..300 {
            run.step();
            run.check();
        }
        refusals += refused(&run.w);
        run.config.shares = shares(OFF - 1);
        reconfigure(&mut run.w, run.config.clone());
        run.check();
        let now = run.w.now;
        for shard in &mut run.w.shards {
            for id in 0..6 {
                shard.operator(now).kick(&format!("c{id}"), true);
            }
        }
        run.w.settle();
        run.close_streams();
        assert_eq!(counted(&run.w), [0; OWNERS.len()], "seed {seed}");
    }
    assert!(refusals > 100, "the limit is reached: {refusals}");
}
