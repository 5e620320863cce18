//! A complete node in one thread on virtual time: shards, the mail between them, and clients that exchange packets.
//!
//! This is the driver of these tests. It works in the same order as the production driver: it passes received bytes to
//! the shards, delivers the messages between shards until there are none, and collects the output of each connection.
//! Time passes only when a test advances it.

#![allow(dead_code, clippy::unwrap_used)]

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;

use mqtt::*;
use tidewire_broker::*;

pub struct World {
    pub shards: Vec<Shard>,
    pub now: Now,
    connections: HashMap<usize, Wire>,
    slots: Vec<Vec<Option<usize>>>,
    next: usize,
    pub events: Vec<ConnectionEvent>,
    pub authentications: Vec<(usize, AuthAttempt, ConnectCredentials)>,
    /// Open questions about access rules: the client that waits, the connection, and the question.
    pub questions: Vec<(usize, ConnEpoch, AccessQuestion)>,
    /// Connections whose socket accepts no bytes.
    pub blocked: Vec<usize>,
    pub node: Arc<NodeState>,
    /// The maximum over all shards and ticks.
    pub largest_arena_bytes: usize,
    /// Mail between shards stays in `post` until a test delivers it.
    pub is_mail_held: bool,
    /// Number of mails that have been delivered.
    pub delivered_mails: usize,
    /// Sender, receiver and content of mail, oldest first.
    post: VecDeque<(usize, usize, Mail)>,
}

struct Wire {
    shard: Option<(usize, ConnSlot)>,
    unread: Vec<u8>,
    received: Vec<u8>,
    is_closed: bool,
    version: ProtocolVersion,
}

/// A received PUBLISH, as owned values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Got {
    pub topic: String,
    pub payload: String,
    pub qos: QoS,
    pub retain: bool,
    pub dup: bool,
    pub id: Option<u16>,
    pub identifiers: Vec<u32>,
}

/// Fields of a PUBLISH that most tests leave at their defaults.
#[derive(Clone, Copy)]
pub struct PublishFields<'a> {
    pub retain: bool,
    /// Ignored at QoS 0.
    pub id: u16,
    pub dup: bool,
    pub properties: &'a [Property<'a>],
}

impl PublishFields<'_> {
    const FIRST: Self = PublishFields {
        retain: false,
        id: 1,
        dup: false,
        properties: &[],
    };
    pub const RETAINED: Self = PublishFields {
        retain: true,
        ..PublishFields::FIRST
    };
}

impl Default for PublishFields<'_> {
    fn default() -> Self {
        PublishFields::FIRST
    }
}

impl World {
    pub fn new(shards: u16) -> World {
        World::with(shards, ShardConfig::default(), Arc::new(OpenAccess))
    }

    pub fn with(shards: u16, config: ShardConfig, access: Arc<dyn AccessControl>) -> World {
        let now = Now {
            monotonic_ms: 1_000_000,
            unix_ms: 1_700_000_000_000,
            journal_ms: 1_700_000_000_000,
        };
        let node = Arc::new(NodeState::new(shards, 7));
        let config = Arc::new(config);
        let make = |i| {
            Shard::new(
                now,
                ShardId(i),
                config.clone(),
                access.clone(),
                node.clone(),
                42 + u64::from(i),
            )
        };
        World {
            shards: (0..shards).map(make).collect(),
            now,
            connections: HashMap::new(),
            slots: (0..shards).map(|_| Vec::new()).collect(),
            next: 0,
            events: Vec::new(),
            authentications: Vec::new(),
            questions: Vec::new(),
            blocked: Vec::new(),
            largest_arena_bytes: 0,
            node,
            is_mail_held: false,
            delivered_mails: 0,
            post: VecDeque::new(),
        }
    }

    pub fn open(&mut self) -> usize {
        self.next += 1;
        let wire = Wire {
            shard: None,
            unread: Vec::new(),
            received: Vec::new(),
            is_closed: false,
            version: ProtocolVersion::V3_1_1,
        };
        self.connections.insert(self.next, wire);
        self.next
    }

    /// Opens a data stream of a connected client. Returns `None` if the shard rejects it.
    pub fn open_stream(&mut self, client: usize) -> Option<usize> {
        let wire = &self.connections[&client];
        let (version, (shard, control)) = (wire.version, wire.shard.unwrap());
        let slot = free_slot(&mut self.slots[shard]);
        let conn = ConnSlot(slot as u32);
        if !self.shards[shard].data_streams(self.now).open(conn, control) {
            return None;
        }
        let stream = self.open();
        self.slots[shard][slot] = Some(stream);
        let wire = self.connections.get_mut(&stream).unwrap();
        wire.shard = Some((shard, conn));
        wire.version = version;
        Some(stream)
    }

    /// Sends raw bytes from a client.
    pub fn send_bytes(&mut self, client: usize, bytes: &[u8]) {
        let shards = self.shards.len() as u16;
        let wire = self.connections.get_mut(&client).unwrap();
        wire.unread.extend_from_slice(bytes);
        if wire.shard.is_none() {
            let home = match decode_connect(&wire.unread, 1 << 20) {
                Ok(Decoded::Incomplete { .. }) => return,
                Ok(Decoded::Complete { packet, .. }) => {
                    wire.version = packet.version;
                    tidewire_broker::home_shard(packet.client_id, shards).unwrap_or(ShardId(0))
                }
                Err(_) => ShardId(0),
            };
            let home = usize::from(home.0);
            let slot = free_slot(&mut self.slots[home]);
            self.slots[home][slot] = Some(client);
            let conn = ConnSlot(slot as u32);
            wire.shard = Some((home, conn));
            let address: SocketAddr = format!("10.0.0.1:{}", 1000 + client).parse().unwrap();
            let peer = Peer {
                address,
                transport: Transport::Tcp,
                listener: 0,
                maximum_packet_size: None,
                certificate_common_name: None,
                certificate: None,
            };
            self.shards[home].open(self.now, conn, peer);
        }
        self.feed(client);
        self.settle();
    }

    fn feed(&mut self, client: usize) {
        loop {
            let Some(wire) = self.connections.get_mut(&client) else {
                return;
            };
            let Some((shard, conn)) = wire.shard else { return };
            if wire.is_closed {
                return;
            }
            let got = self.shards[shard].receive(self.now, conn, &wire.unread);
            wire.unread.drain(..got.consumed);
            match got.next {
                NextAction::Flush => self.flush(shard),
                NextAction::Read { .. } | NextAction::Pause | NextAction::Closed => return,
            }
        }
    }

    pub fn send(&mut self, client: usize, packet: &Packet<'_>) {
        if let Packet::Connect(connect) = packet {
            self.connections.get_mut(&client).unwrap().version = connect.version;
        }
        let mut bytes = Vec::new();
        packet.encode(self.connections[&client].version, &mut bytes);
        self.send_bytes(client, &bytes);
    }

    fn flush(&mut self, shard: usize) {
        let outbox = self.shards[shard].outbox();
        self.largest_arena_bytes = self.largest_arena_bytes.max(outbox.arena.len());
        let mut drained = Vec::new();
        for conn in outbox.dirty().to_vec() {
            let Some(client) = self.slots[shard].get(conn.0 as usize).copied().flatten() else {
                continue;
            };
            if self.blocked.contains(&client) {
                continue;
            }
            let mut slices = Vec::new();
            outbox.slices(conn, usize::MAX, &mut slices);
            let bytes = slices.concat();
            let had_backlog = outbox.has_backlog(conn);
            outbox.record_written(conn, bytes.len());
            self.connections
                .get_mut(&client)
                .unwrap()
                .received
                .extend_from_slice(&bytes);
            if had_backlog {
                drained.push(conn);
            }
        }
        outbox.end_tick();
        for conn in drained {
            self.shards[shard].drained(self.now, conn);
        }
    }

    /// The socket accepts bytes again.
    pub fn unblock(&mut self, client: usize) {
        self.blocked.retain(|c| *c != client);
        self.unblock_partly(client, usize::MAX);
    }

    /// The socket accepts up to `limit` of the buffered bytes.
    pub fn unblock_partly(&mut self, client: usize, limit: usize) {
        // Before CONNECT no shard has output for the connection.
        let Some((shard, conn)) = self.connections[&client].shard else {
            return;
        };
        let outbox = self.shards[shard].outbox();
        let mut slices = Vec::new();
        outbox.slices(conn, usize::MAX, &mut slices);
        let mut bytes = slices.concat();
        bytes.truncate(limit);
        outbox.record_written(conn, bytes.len());
        let wire = self.connections.get_mut(&client).unwrap();
        wire.received.extend_from_slice(&bytes);
        outbox.end_tick();
        if !outbox.has_backlog(conn) {
            self.shards[shard].drained(self.now, conn);
        }
        self.feed(client);
        self.settle();
    }

    /// Runs until all work at the current time is done.
    pub fn settle(&mut self) {
        loop {
            let mut has_moved = false;
            for shard in 0..self.shards.len() {
                self.shards[shard].run_timers(self.now);
                let mut effects = Vec::new();
                self.shards[shard].take_effects(&mut effects);
                for effect in effects {
                    has_moved = true;
                    self.perform(shard, effect);
                }
                for to in 0..self.shards.len() {
                    if let Some(mail) = self.shards[shard].take_mail(ShardId(to as u16)) {
                        assert_ne!(to, shard, "a shard sends no mail to itself");
                        self.post.push_back((shard, to, mail));
                    }
                }
                while !self.is_mail_held && self.hand_over(0) {
                    has_moved = true;
                }
                has_moved |= !self.shards[shard].outbox().dirty().is_empty();
                self.flush(shard);
            }
            if !has_moved
                && self
                    .shards
                    .iter()
                    .all(|s| s.inspect().next_deadline().is_none_or(|at| at > self.now.monotonic_ms))
            {
                return;
            }
        }
    }

    /// Returns the amount of undelivered mail.
    pub fn mail_waiting(&self) -> usize {
        self.post.len()
    }

    /// Delivers one message between shards: the oldest of the pair of shards that message `choice` belongs to, because
    /// the messages of a pair stay in order. Returns false if there is none.
    fn hand_over(&mut self, choice: usize) -> bool {
        if self.post.is_empty() {
            return false;
        }
        let (from, to, _) = self.post[choice % self.post.len()];
        let at = self
            .post
            .iter()
            .position(|mail| (mail.0, mail.1) == (from, to))
            .unwrap();
        let (_, to, mail) = self.post.remove(at).unwrap();
        self.delivered_mails += 1;
        self.shards[to].mail(self.now, mail);
        true
    }

    /// Delivers one piece of held mail and runs the resulting work of the shards.
    pub fn deliver_mail(&mut self, choice: usize) -> bool {
        let is_any = self.hand_over(choice);
        self.settle();
        is_any
    }

    /// Delivers all mail, and stops holding it.
    pub fn release_mail(&mut self) {
        self.is_mail_held = false;
        self.settle();
    }

    fn perform(&mut self, shard: usize, effect: Effect) {
        let client_of = |world: &World, conn: ConnSlot| world.slots[shard].get(conn.0 as usize).copied().flatten();
        match effect {
            Effect::Close { conn, .. } => {
                self.flush(shard);
                if let Some(client) = client_of(self, conn) {
                    self.end(client, CloseCause::Requested);
                }
            }
            Effect::Fetch { .. } => panic!("this node has no journal"),
            Effect::Resume { conn } => {
                if let Some(client) = client_of(self, conn) {
                    self.feed(client);
                }
            }
            Effect::Authenticate {
                conn,
                attempt,
                credentials,
            } => {
                if let Some(client) = client_of(self, conn) {
                    self.authentications.push((client, attempt, *credentials));
                }
            }
            Effect::Authorize { conn, epoch, question } => {
                if let Some(client) = client_of(self, conn) {
                    self.questions.push((client, epoch, question));
                }
            }
            Effect::Event(event) => self.events.push(event),
        }
    }

    pub fn decide(&mut self, client: usize, attempt: AuthAttempt, outcome: AuthOutcome) {
        let (shard, conn) = self.connections[&client].shard.unwrap();
        self.shards[shard].authenticated(self.now, conn, attempt, outcome);
        self.settle();
    }

    /// Reports that a question is answered, or that there will be no answer.
    pub fn answered(&mut self, client: usize, epoch: ConnEpoch, is_answered: bool) {
        let (shard, conn) = self.connections[&client].shard.unwrap();
        self.shards[shard].authorized(self.now, conn, epoch, is_answered);
        self.settle();
    }

    fn end(&mut self, client: usize, cause: CloseCause) {
        let wire = self.connections.get_mut(&client).unwrap();
        if wire.is_closed {
            return;
        }
        wire.is_closed = true;
        if let Some((shard, conn)) = wire.shard {
            self.slots[shard][conn.0 as usize] = None;
            self.shards[shard].closed(self.now, conn, cause);
        }
    }

    /// Breaks the network connection.
    pub fn cut(&mut self, client: usize) {
        self.end(client, CloseCause::Network);
        self.settle();
    }

    pub fn is_closed(&self, client: usize) -> bool {
        self.connections[&client].is_closed
    }

    pub fn pass(&mut self, ms: u64) {
        let end = self.now.monotonic_ms + ms;
        while self.now.monotonic_ms < end {
            let step = (end - self.now.monotonic_ms).min(50);
            self.now.monotonic_ms += step;
            self.now.unix_ms += step;
            self.settle();
        }
    }

    /// Returns the raw bytes sent to a client since the last call.
    pub fn take_bytes(&mut self, client: usize) -> Vec<u8> {
        std::mem::take(&mut self.connections.get_mut(&client).unwrap().received)
    }

    /// Returns the packets that a client has received, one line per packet in debug form.
    pub fn take(&mut self, client: usize) -> Vec<String> {
        let bytes = self.take_bytes(client);
        let version = self.connections[&client].version;
        let mut rest = &bytes[..];
        let mut packets = Vec::new();
        while !rest.is_empty() {
            match decode(rest, version, usize::MAX) {
                Ok(Decoded::Complete { packet, size }) => {
                    packets.push(describe(&packet));
                    rest = &rest[size..];
                }
                other => panic!("the server sent a malformed packet: {other:?} in {rest:02x?}"),
            }
        }
        packets
    }

    /// Returns the PUBLISH packets sent to a client, and discards all other packets.
    pub fn messages(&mut self, client: usize) -> Vec<Got> {
        let bytes = self.take_bytes(client);
        let version = self.connections[&client].version;
        let mut rest = &bytes[..];
        let mut messages = Vec::new();
        while !rest.is_empty() {
            let Ok(Decoded::Complete { packet, size }) = decode(rest, version, usize::MAX) else {
                panic!("the server sent a malformed packet: {rest:02x?}");
            };
            if let Packet::Publish(p) = packet {
                let identifiers = p.properties.iter().filter_map(|p| match p {
                    Property::SubscriptionIdentifier(id) => Some(id),
                    _ => None,
                });
                messages.push(Got {
                    topic: p.topic.into(),
                    payload: String::from_utf8_lossy(p.payload).into_owned(),
                    qos: p.qos,
                    retain: p.retain,
                    dup: p.dup,
                    id: p.packet_id.map(PacketId::get),
                    identifiers: identifiers.collect(),
                });
            }
            rest = &rest[size..];
        }
        messages
    }

    pub fn payloads(&mut self, client: usize) -> Vec<String> {
        self.messages(client).into_iter().map(|m| m.payload).collect()
    }

    // --- shorthands ---

    /// Connects and drops the CONNACK.
    pub fn connect(
        &mut self,
        version: ProtocolVersion,
        client_id: &str,
        clean_start: bool,
        properties: &[Property<'_>],
    ) -> usize {
        let client = self.open();
        let mut bytes = Vec::new();
        let mut writer = PropertyWriter::new(&mut bytes);
        for property in properties {
            writer.put(*property);
        }
        let properties = writer.finish();
        self.send(
            client,
            &Packet::Connect(connect_packet(version, client_id, clean_start, properties, None)),
        );
        let got = self.take(client);
        assert!(
            got.first()
                .is_some_and(|first| first.starts_with("CONNACK") && first.contains("Success")),
            "{got:?}"
        );
        client
    }

    pub fn subscribe(&mut self, client: usize, filter: &str, qos: QoS) {
        self.subscribe_with(
            client,
            filter,
            SubscriptionOptions {
                maximum_qos: qos,
                ..Default::default()
            },
            None,
        );
    }

    pub fn unsubscribe(&mut self, client: usize, filter: &str) {
        let mut filters = Vec::new();
        let packet = Packet::Unsubscribe(Unsubscribe {
            packet_id: PacketId::new(8).unwrap(),
            properties: Properties::EMPTY,
            filters: UnsubscribeFilters::encode([filter], &mut filters),
        });
        self.send(client, &packet);
    }

    pub fn subscribe_with(
        &mut self,
        client: usize,
        filter: &str,
        options: SubscriptionOptions,
        identifier: Option<u32>,
    ) {
        let version = self.connections[&client].version;
        let mut properties = Vec::new();
        if let Some(identifier) = identifier {
            PropertyWriter::new(&mut properties).put(Property::SubscriptionIdentifier(identifier));
        }
        let mut bytes = Vec::new();
        let filters = SubscribeFilters::encode([SubscribeFilter { filter, options }], version, &mut bytes);
        let packet = Subscribe {
            packet_id: PacketId::new(7).unwrap(),
            properties: Properties::from_validated(&properties),
            filters,
        };
        self.send(client, &Packet::Subscribe(packet));
    }

    pub fn publish(&mut self, client: usize, topic: &str, payload: &str, qos: QoS) {
        self.publish_with(client, topic, payload, qos, PublishFields::default());
    }

    pub fn publish_with(&mut self, client: usize, topic: &str, payload: &str, qos: QoS, fields: PublishFields<'_>) {
        let PublishFields {
            retain,
            id,
            dup,
            properties,
        } = fields;
        let mut bytes = Vec::new();
        let mut writer = PropertyWriter::new(&mut bytes);
        for property in properties {
            writer.put(*property);
        }
        let properties = writer.finish();
        let packet_id = (qos != QoS::AtMostOnce).then(|| PacketId::new(id).unwrap());
        let packet = Publish {
            dup,
            qos,
            retain,
            topic,
            packet_id,
            properties,
            payload: payload.as_bytes(),
        };
        self.send(client, &Packet::Publish(packet));
    }

    pub fn ack(&mut self, client: usize, kind: PacketType, id: u16) {
        let mut bytes = Vec::new();
        encode_bare_ack(kind, PacketId::new(id).unwrap(), &mut bytes);
        self.send_bytes(client, &bytes);
    }

    pub fn disconnect(&mut self, client: usize) {
        self.send(
            client,
            &Packet::Disconnect(Disconnect {
                reason: ReasonCode::Success,
                properties: Properties::EMPTY,
            }),
        );
    }

    pub fn stats(&self) -> ShardStats {
        let mut sum = ShardStats::default();
        for shard in &self.shards {
            sum.add(&shard.inspect().stats());
        }
        sum
    }
}

pub fn connect_packet<'a>(
    version: ProtocolVersion,
    client_id: &'a str,
    clean_start: bool,
    properties: Properties<'a>,
    will: Option<Will<'a>>,
) -> Connect<'a> {
    Connect {
        version,
        clean_start,
        is_bridge: false,
        keep_alive: 60,
        properties,
        client_id,
        will,
        user_name: None,
        password: None,
    }
}

fn free_slot(slots: &mut Vec<Option<usize>>) -> usize {
    slots.iter().position(Option::is_none).unwrap_or_else(|| {
        slots.push(None);
        slots.len() - 1
    })
}

fn describe(packet: &Packet<'_>) -> String {
    let properties = |p: Properties<'_>| p.iter().map(|p| format!(" {p:?}")).collect::<String>();
    match packet {
        Packet::ConnAck(p) => format!(
            "CONNACK {:?} present={}{}",
            p.reason,
            p.session_present,
            properties(p.properties)
        ),
        Packet::Publish(p) => format!(
            "PUBLISH {} {} q{} id={}{}{}{}",
            p.topic,
            String::from_utf8_lossy(p.payload),
            p.qos as u8,
            p.packet_id.map_or(0, PacketId::get),
            if p.dup { " dup" } else { "" },
            if p.retain { " retain" } else { "" },
            properties(p.properties)
        ),
        Packet::PubAck(p) => format!("PUBACK {} {:?}", p.packet_id.get(), p.reason),
        Packet::PubRec(p) => format!("PUBREC {} {:?}", p.packet_id.get(), p.reason),
        Packet::PubRel(p) => format!("PUBREL {} {:?}", p.packet_id.get(), p.reason),
        Packet::PubComp(p) => format!("PUBCOMP {} {:?}", p.packet_id.get(), p.reason),
        Packet::SubAck(p) => format!("SUBACK {} {:02x?}", p.packet_id.get(), p.reasons),
        Packet::UnsubAck(p) => format!("UNSUBACK {} {:02x?}", p.packet_id.get(), p.reasons),
        Packet::Disconnect(p) => format!("DISCONNECT {:?}", p.reason),
        Packet::PingResp => "PINGRESP".into(),
        other => format!("{other:?}"),
    }
}
