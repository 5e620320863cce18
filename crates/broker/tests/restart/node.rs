//! One shard whose records go to a log, with clients of MQTT 5.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use journal::{Directory, Log, LogConfig, Lsn, Policy};
use mqtt::{
    Connect, Decoded, Packet, PacketId, Properties, ProtocolVersion, Publish, QoS, Subscribe, SubscribeFilter,
    SubscribeFilters, SubscriptionOptions, Unsubscribe, UnsubscribeFilters,
};
use tidewire_broker::durable::record::*;
use tidewire_broker::durable::recovery::{Recovered, Recovery};
use tidewire_broker::*;

use crate::NOW;

/// A shard whose records go to a log.
pub struct Node {
    pub shard: Shard,
    log: Log,
    directory: PathBuf,
    connections: u32,
}

impl Node {
    pub fn new(name: &str, config: ShardConfig) -> Node {
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

    pub fn connect(&mut self, client_id: &str, clean_start: bool, expiry_s: u32) -> ConnSlot {
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

    pub fn send(&mut self, conn: ConnSlot, packet: &Packet<'_>) {
        let mut bytes = Vec::new();
        packet.encode(ProtocolVersion::V5, &mut bytes);
        self.shard.receive(NOW, conn, &bytes);
    }

    /// The tick ends: what it has recorded is kept.
    pub fn end_tick(&mut self) {
        if let Some(batch) = self.shard.journal_batch() {
            let at = self.log.append(batch);
            self.shard.appended(at.base.0, at.end.0);
        }
        self.log.flush().unwrap();
        self.shard.committed(NOW, self.log.committed().0);
    }

    /// Reads what is asked for. False if nothing is.
    pub fn read(&mut self) -> bool {
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

    pub fn publish(&mut self, publisher: ConnSlot, id: u16) {
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
    pub fn asked_for(&mut self) -> usize {
        let mut effects = Vec::new();
        self.shard.take_effects(&mut effects);
        let fetched = effects.iter().map(|effect| match effect {
            Effect::Fetch { positions, .. } => positions.len(),
            _ => 0,
        });
        fetched.sum()
    }

    /// Identifiers with which those messages were published that a client has been sent.
    pub fn sent(&mut self, conn: ConnSlot) -> Vec<u16> {
        publications(&self.written(conn))
            .into_iter()
            .map(|(_, id)| id)
            .collect()
    }

    /// Since it was asked last: Packet Identifiers, and those with which the messages were published.
    pub fn received(&mut self, conn: ConnSlot) -> Vec<(PacketId, u16)> {
        let bytes = self.written(conn);
        self.shard.outbox().wrote(conn, bytes.len());
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

    /// To `$share/g/t`.
    pub fn join(&mut self, conn: ConnSlot) {
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

    /// From `$share/g/t`.
    pub fn leave(&mut self, conn: ConnSlot) {
        let mut bytes = Vec::new();
        let unsubscribe = Packet::Unsubscribe(Unsubscribe {
            packet_id: PacketId::new(1).unwrap(),
            properties: Properties::EMPTY,
            filters: UnsubscribeFilters::encode(["$share/g/t"], &mut bytes),
        });
        self.send(conn, &unsubscribe);
    }

    pub fn recovered_after_a_crash(self) -> Recovered {
        drop(self.log);
        let mut recovery = Recovery::new();
        open(&self.directory, &mut |position, bytes| {
            recovery.record(position, bytes).unwrap();
        });
        std::fs::remove_dir_all(&self.directory).unwrap();
        recovery.finish()
    }
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

pub fn open(directory: &Path, record: &mut dyn FnMut(Position, &[u8])) -> Log {
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
