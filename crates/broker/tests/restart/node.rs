//! A test node: one shard with a log, and MQTT 5 clients.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use journal::{FlushPolicy, LogConfig, Lsn, RecordLog, StorageDirectory};
use mqtt::{
    Connect, Decoded, Packet, PacketId, Properties, ProtocolVersion, Publish, QoS, Subscribe, SubscribeFilter,
    SubscribeFilters, SubscriptionOptions, Unsubscribe, UnsubscribeFilters, Will,
};
use tidewire_broker::durable::compaction::MovePart;
use tidewire_broker::durable::record::*;
use tidewire_broker::durable::recovery::{RecoveredState, Recovery};
use tidewire_broker::durable::restore::restore;
use tidewire_broker::*;

use super::NOW;

/// A shard whose records are written to a log.
pub struct Node {
    pub shard: Shard,
    pub state: Arc<NodeState>,
    /// Time of the start, or a later one that the test sets.
    pub now: Now,
    log: RecordLog,
    directory: PathBuf,
    connections: u32,
}

impl Node {
    pub fn new(name: &str, config: ShardConfig) -> Node {
        Node::with_access(name, config, Arc::new(OpenAccess))
    }

    pub fn with_access(name: &str, config: ShardConfig, access: Arc<dyn AccessControl>) -> Node {
        let directory = std::env::temp_dir().join(format!("tidewire-restart-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let log = open(&directory, &mut |_, _| ());
        let node = Arc::new(NodeState::new(1, 1));
        let mut shard = Shard::new(NOW, ShardId(0), Arc::new(config), access, node.clone(), 1);
        shard.start_journaling(0);
        Node {
            shard,
            state: node,
            now: NOW,
            log,
            directory,
            connections: 0,
        }
    }

    pub fn connect(&mut self, client_id: &str, clean_start: bool, expiry_s: u32) -> ConnSlot {
        self.connect_with_will(client_id, clean_start, expiry_s, None)
    }

    pub fn connect_with_will(
        &mut self,
        client_id: &str,
        clean_start: bool,
        expiry_s: u32,
        will: Option<Will<'_>>,
    ) -> ConnSlot {
        let conn = ConnSlot(self.connections);
        self.connections += 1;
        connect(&mut self.shard, conn, client_id, clean_start, expiry_s, will);
        conn
    }

    /// Connects a client with a user name and a session that continues.
    pub fn connect_as(&mut self, user: &str, client_id: &str, expiry_s: u32, will: Option<Will<'_>>) -> ConnSlot {
        let conn = ConnSlot(self.connections);
        self.connections += 1;
        let mut properties = Vec::new();
        mqtt::PropertyWriter::new(&mut properties).put(mqtt::Property::SessionExpiryInterval(expiry_s));
        let connect = Connect {
            user_name: Some(user),
            ..connect_packet(client_id, false, Properties::from_validated(&properties), will)
        };
        open_connection(&mut self.shard, conn, connect);
        conn
    }

    pub fn send(&mut self, conn: ConnSlot, packet: &Packet<'_>) {
        send(&mut self.shard, conn, packet);
    }

    /// Ends the tick and commits its records.
    pub fn end_tick(&mut self) {
        if let Some(batch) = self.shard.journal(self.now).batch() {
            let at = self.log.append(batch);
            self.shard.journal(self.now).appended(at.base.0, at.end.0);
        }
        self.log.flush().unwrap();
        self.shard.journal(self.now).committed(self.log.committed().0);
    }

    /// Returns the position of the next record.
    pub fn log_end(&self) -> RecordPosition {
        RecordPosition(self.log.committed().0)
    }

    /// Answers the shard's read requests. Returns false if there are none.
    pub fn read(&mut self) -> bool {
        let mut effects = Vec::new();
        self.shard.take_effects(&mut effects);
        let mut is_any = false;
        for effect in effects {
            if let Effect::Fetch { purpose, positions } = effect {
                let wanted: Vec<Lsn> = positions.iter().map(|position| Lsn(position.0)).collect();
                let mut records = vec![None; wanted.len()];
                self.log.reader().read_many(&wanted, |index, record| {
                    records[index] = record.ok().map(<[u8]>::to_vec)
                });
                self.shard.journal(self.now).fetched(purpose, &positions, records);
                is_any = true;
            }
        }
        is_any
    }

    pub fn publish(&mut self, publisher: ConnSlot, id: u16) {
        self.send(publisher, &publication("t", id, &id.to_be_bytes(), false));
    }

    /// Publishes a retained message and ends the tick.
    pub fn retain(&mut self, publisher: ConnSlot, topic: &str, payload: &[u8]) {
        self.send(publisher, &publication(topic, 1, payload, true));
        self.end_tick();
    }

    /// Returns the number of messages that the shard has requested from the journal.
    pub fn asked_for(&mut self) -> usize {
        let mut effects = Vec::new();
        self.shard.take_effects(&mut effects);
        let fetched = effects.iter().map(|effect| match effect {
            Effect::Fetch { positions, .. } => positions.len(),
            _ => 0,
        });
        fetched.sum()
    }

    /// Returns the messages that a client has been sent, by the Packet Identifiers of their publisher.
    pub fn sent(&mut self, conn: ConnSlot) -> Vec<u16> {
        publications(&self.written(conn))
            .into_iter()
            .map(|(_, id)| id)
            .collect()
    }

    /// Returns the topics of the messages that a client has been sent.
    pub fn topics_sent(&mut self, conn: ConnSlot) -> Vec<String> {
        let bytes = self.written(conn);
        let (mut at, mut topics) = (0, Vec::new());
        while let Decoded::Complete { packet, size } = mqtt::decode(&bytes[at..], ProtocolVersion::V5, 1 << 20).unwrap()
        {
            at += size;
            if let Packet::Publish(p) = packet {
                topics.push(p.topic.to_owned());
            }
        }
        topics
    }

    /// Returns the messages since the last call: their Packet Identifiers, and those of their publisher.
    pub fn received(&mut self, conn: ConnSlot) -> Vec<(PacketId, u16)> {
        let bytes = self.written(conn);
        self.shard.outbox().record_written(conn, bytes.len());
        publications(&bytes)
    }

    fn written(&mut self, conn: ConnSlot) -> Vec<u8> {
        let mut slices = Vec::new();
        self.shard.outbox().slices(conn, usize::MAX, &mut slices);
        slices.concat()
    }

    pub fn acknowledge(&mut self, conn: ConnSlot, packet_id: PacketId) {
        let puback = mqtt::Ack {
            packet_id,
            reason: mqtt::ReasonCode::Success,
            properties: Properties::EMPTY,
        };
        self.send(conn, &Packet::PubAck(puback));
    }

    /// Subscribes to `$share/g/t`.
    pub fn join(&mut self, conn: ConnSlot) {
        self.subscribe(conn, "$share/g/t");
    }

    pub fn subscribe(&mut self, conn: ConnSlot, filter: &str) {
        self.send(conn, &subscription(filter, &mut Vec::new()));
    }

    /// Unsubscribes from `$share/g/t`.
    pub fn leave(&mut self, conn: ConnSlot) {
        self.unsubscribe(conn, "$share/g/t");
    }

    pub fn unsubscribe(&mut self, conn: ConnSlot, filter: &str) {
        let mut bytes = Vec::new();
        let unsubscribe = Packet::Unsubscribe(Unsubscribe {
            packet_id: PacketId::new(1).unwrap(),
            properties: Properties::EMPTY,
            filters: UnsubscribeFilters::encode([filter], &mut bytes),
        });
        self.send(conn, &unsubscribe);
    }

    /// Returns the reason codes of the SUBACK packets that a client has received.
    pub fn sent_reasons(&mut self, conn: ConnSlot) -> Vec<u8> {
        self.end_tick();
        let bytes = self.written(conn);
        let (mut at, mut reasons) = (0, Vec::new());
        while let Decoded::Complete { packet, size } = mqtt::decode(&bytes[at..], ProtocolVersion::V5, 1 << 20).unwrap()
        {
            at += size;
            if let Packet::SubAck(suback) = packet {
                reasons.extend_from_slice(suback.reasons);
            }
        }
        reasons
    }

    /// Writes a checkpoint that rewrites all messages. Returns its position.
    pub fn checkpoint(&mut self) -> RecordPosition {
        let from = self.log_end();
        let part = MovePart {
            before: from,
            bytes: u64::MAX,
        };
        self.shard.journal(self.now).begin_checkpoint(part);
        self.end_tick();
        while self.shard.inspect().is_checkpoint_active() {
            let _ = self.shard.journal(self.now).continue_checkpoint();
            self.end_tick();
            self.read();
            self.end_tick();
        }
        from
    }

    /// Ends the process and starts another one with the same log, which replays the records from a position on.
    pub fn restart(self, config: ShardConfig, from: RecordPosition) -> Node {
        self.restart_with_access(config, from, Arc::new(OpenAccess))
    }

    pub fn restart_with_access(
        self,
        config: ShardConfig,
        from: RecordPosition,
        access: Arc<dyn AccessControl>,
    ) -> Node {
        self.restart_when(config, from, access, |_| NOW).0
    }

    /// Ends the process and starts another one when the system's clock shows this time. Returns the time of the start.
    /// As in the server, the journal's time continues behind all times in the journal.
    pub fn restart_at(self, unix_ms: u64) -> (Node, Now) {
        self.restart_from(RecordPosition(0), unix_ms)
    }

    /// As `restart_at`, but replays the records from a position on.
    pub fn restart_from(self, from: RecordPosition, unix_ms: u64) -> (Node, Now) {
        let access = Arc::new(OpenAccess);
        self.restart_when(ShardConfig::default(), from, access, |recovered| Now {
            unix_ms,
            journal_ms: recovered.journal_ms_at_start(unix_ms),
            ..NOW
        })
    }

    fn restart_when(
        self,
        config: ShardConfig,
        from: RecordPosition,
        access: Arc<dyn AccessControl>,
        start: impl FnOnce(&RecoveredState) -> Now,
    ) -> (Node, Now) {
        drop(self.log);
        let mut recovery = Recovery::new();
        let mut log = open(&self.directory, &mut |position, bytes| {
            if position >= from {
                recovery.record(position, bytes).unwrap();
            }
        });
        let recovered = recovery.finish();
        let now = start(&recovered);
        let node = Arc::new(NodeState::new(1, 1));
        let mut shard = Shard::new(now, ShardId(0), Arc::new(config), access, node.clone(), 1);
        shard.start_journaling(recovered.last_key);
        let reader = log.reader();
        let mut read = |positions: &[RecordPosition], each: &mut dyn FnMut(usize, Option<&[u8]>)| {
            let wanted: Vec<Lsn> = positions.iter().map(|position| Lsn(position.0)).collect();
            reader.read_many(&wanted, |index, record| each(index, record.ok()));
        };
        let shards = std::slice::from_mut(&mut shard);
        restore(now, shards, recovered, &mut read, &mut |batch| {
            let at = log.append(batch);
            (at.base.0, at.end.0)
        });
        let mut node = Node {
            shard,
            state: node,
            now,
            log,
            directory: self.directory,
            connections: self.connections,
        };
        node.end_tick();
        (node, now)
    }

    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Ends the process. Returns the directory of the log.
    pub fn crash(self) -> PathBuf {
        self.directory
    }

    pub fn recovered_after_a_crash(self) -> RecoveredState {
        drop(self.log);
        let mut recovery = Recovery::new();
        open(&self.directory, &mut |position, bytes| {
            recovery.record(position, bytes).unwrap();
        });
        std::fs::remove_dir_all(&self.directory).unwrap();
        recovery.finish()
    }
}

/// Connects a client with MQTT 5.
pub fn connect(
    shard: &mut Shard,
    conn: ConnSlot,
    client_id: &str,
    clean_start: bool,
    expiry_s: u32,
    will: Option<Will<'_>>,
) {
    let mut properties = Vec::new();
    mqtt::PropertyWriter::new(&mut properties).put(mqtt::Property::SessionExpiryInterval(expiry_s));
    let properties = Properties::from_validated(&properties);
    open_connection(shard, conn, connect_packet(client_id, clean_start, properties, will));
}

fn connect_packet<'a>(
    client_id: &'a str,
    clean_start: bool,
    properties: Properties<'a>,
    will: Option<Will<'a>>,
) -> Connect<'a> {
    Connect {
        version: ProtocolVersion::V5,
        clean_start,
        is_bridge: false,
        keep_alive: 0,
        properties,
        client_id,
        will,
        user_name: None,
        password: None,
    }
}

fn open_connection(shard: &mut Shard, conn: ConnSlot, connect: Connect<'_>) {
    let peer = Peer {
        address: SocketAddr::from((Ipv4Addr::LOCALHOST, 1)),
        transport: Transport::Tcp,
        listener: 0,
        maximum_packet_size: None,
        certificate_common_name: None,
        certificate: None,
    };
    shard.open(NOW, conn, peer);
    send(shard, conn, &Packet::Connect(connect));
}

pub fn send(shard: &mut Shard, conn: ConnSlot, packet: &Packet<'_>) {
    let mut bytes = Vec::new();
    packet.encode(ProtocolVersion::V5, &mut bytes);
    shard.receive(NOW, conn, &bytes);
}

/// Uses QoS 1.
pub fn publication<'a>(topic: &'a str, id: u16, payload: &'a [u8], retain: bool) -> Packet<'a> {
    Packet::Publish(Publish {
        dup: false,
        qos: QoS::AtLeastOnce,
        retain,
        topic,
        packet_id: PacketId::new(id),
        properties: Properties::EMPTY,
        payload,
    })
}

/// Uses QoS 1.
pub fn subscription<'a>(filter: &str, bytes: &'a mut Vec<u8>) -> Packet<'a> {
    let filter = SubscribeFilter {
        filter,
        options: SubscriptionOptions {
            maximum_qos: QoS::AtLeastOnce,
            ..SubscriptionOptions::default()
        },
    };
    Packet::Subscribe(Subscribe {
        packet_id: PacketId::new(1).unwrap(),
        properties: Properties::EMPTY,
        filters: SubscribeFilters::encode([filter], ProtocolVersion::V5, bytes),
    })
}

fn publications(bytes: &[u8]) -> Vec<(PacketId, u16)> {
    let (mut at, mut found) = (0, Vec::new());
    while let Decoded::Complete { packet, size } = mqtt::decode(&bytes[at..], ProtocolVersion::V5, 1 << 20).unwrap() {
        at += size;
        if let Packet::Publish(p) = packet {
            found.push((p.packet_id.unwrap(), u16::from_be_bytes(p.payload.try_into().unwrap())));
        }
    }
    found
}

pub fn open(directory: &Path, record: &mut dyn FnMut(RecordPosition, &[u8])) -> RecordLog {
    let config = LogConfig {
        policy: FlushPolicy::Fsync,
        segment_bytes: 1 << 20,
        max_bytes: 64 << 20,
        reserve_bytes: 0,
        record_version: RECORD_VERSION,
        ..LogConfig::default()
    };
    let mut replay = |position: Lsn, bytes: &[u8]| {
        record(RecordPosition(position.0), bytes);
        Ok(())
    };
    let directory = StorageDirectory::open(directory, journal::DIRECTORY_NAME).unwrap();
    RecordLog::open(Arc::new(directory), config, &mut replay, &mut |_, _| {})
        .unwrap()
        .0
}
