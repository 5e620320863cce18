//! Measures the memory of a disconnected durable session, including its queue: `cargo run --release -p tidewire-broker
//! --example session_memory [sessions] [messages]`.
//!
//! One shard, driven like a worker drives it. Clients connect, subscribe or not, disconnect, and receive messages in
//! turn. With one session it measures a long queue. The journal is only a counter, because its bytes are on disk.
//! "resident" is the growth of the process, "asked" the memory requested from the allocator, both divided by the number
//! of sessions.

#![allow(unsafe_code)]
#![allow(clippy::print_stdout, clippy::unwrap_used)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use mqtt::{
    Connect, Packet, PacketId, Properties, ProtocolVersion, Publish, QoS, Subscribe, SubscribeFilter, SubscribeFilters,
    SubscriptionOptions,
};
use tidewire_broker::*;

struct Counting;

static ASKED: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is forwarded to the system allocator unchanged; counting does not allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ASKED.fetch_add(layout.size(), Relaxed);
        // SAFETY: the caller upholds the contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        ASKED.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the caller upholds the contract.
        unsafe { System.dealloc(block, layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        ASKED.fetch_add(bytes.wrapping_sub(layout.size()), Relaxed);
        // SAFETY: the caller upholds the contract.
        unsafe { System.realloc(block, layout, bytes) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn main() {
    let mut arguments = std::env::args().skip(1).map(|n| n.parse::<u32>().unwrap());
    let (sessions, messages) = (arguments.next().unwrap_or(100_000), arguments.next().unwrap_or(10));
    println!("{sessions} disconnected sessions, {messages} QoS 1 messages each; bytes per session:");
    let mut node = Node::new();
    let start = Memory::now();
    for number in 0..sessions {
        node.visit(number, false);
    }
    start.print("without a subscription", sessions);
    for number in 0..sessions {
        node.visit(number, true);
    }
    start.print("with a subscription", sessions);
    let subscribed = Memory::now();
    for _ in 0..messages {
        for number in 0..sessions {
            node.publish(number);
        }
    }
    subscribed.print("messages only", sessions);
    start.print("all", sessions);
    assert_eq!(
        node.shard.inspect().stats().queued_messages,
        u64::from(sessions) * u64::from(messages)
    );
}

struct Node {
    shard: Shard,
    now: Now,
    journal_end: u64,
    published: u64,
}

const DEVICE: ConnSlot = ConnSlot(0);
const PUBLISHER: ConnSlot = ConnSlot(1);

/// Messages per tick.
const BATCH: u64 = 32;

impl Node {
    fn new() -> Node {
        let now = Now {
            monotonic_ms: 1_000_000,
            unix_ms: 1_700_000_000_000,
            journal_ms: 1_700_000_000_000,
        };
        let config = Arc::new(ShardConfig {
            max_queued_messages: usize::MAX,
            ..ShardConfig::default()
        });
        let state = Arc::new(NodeState::new(1, 7));
        let mut shard = Shard::new(now, ShardId(0), config, Arc::new(OpenAccess), state, 42);
        shard.start_journaling(0);
        Node {
            shard,
            now,
            journal_end: 3_000_000_000,
            published: 0,
        }
    }

    /// A device connects, subscribes or not, and loses its connection.
    fn visit(&mut self, number: u32, subscribes: bool) {
        self.connect(DEVICE, &format!("device-{number:07}"));
        if subscribes {
            let mut bytes = Vec::new();
            let filter = SubscribeFilter {
                filter: &topic(number),
                options: SubscriptionOptions {
                    maximum_qos: QoS::AtLeastOnce,
                    ..SubscriptionOptions::default()
                },
            };
            let filters = SubscribeFilters::encode([filter], ProtocolVersion::V3_1_1, &mut bytes);
            let packet_id = PacketId::new(1).unwrap();
            let properties = Properties::EMPTY;
            self.send(
                DEVICE,
                &Packet::Subscribe(Subscribe {
                    packet_id,
                    properties,
                    filters,
                }),
            );
        }
        self.tick();
        self.shard.closed(self.now, DEVICE, CloseCause::Network);
        self.tick();
    }

    fn publish(&mut self, number: u32) {
        if self.published == 0 {
            self.connect(PUBLISHER, "publisher");
        }
        let publish = Publish {
            dup: false,
            qos: QoS::AtLeastOnce,
            retain: false,
            topic: &topic(number),
            packet_id: PacketId::new(1),
            properties: Properties::EMPTY,
            payload: &[b'x'; 62],
        };
        self.send(PUBLISHER, &Packet::Publish(publish));
        self.published += 1;
        if self.published.is_multiple_of(BATCH) {
            self.tick();
        }
    }

    fn connect(&mut self, conn: ConnSlot, client_id: &str) {
        let peer = Peer {
            address: ([192, 0, 2, 1], 1883).into(),
            transport: Transport::Tcp,
            listener: 0,
            maximum_packet_size: None,
            certificate_common_name: None,
            certificate: None,
        };
        self.shard.open(self.now, conn, peer);
        let connect = Connect {
            version: ProtocolVersion::V3_1_1,
            clean_start: false,
            is_bridge: false,
            keep_alive: 0,
            properties: Properties::EMPTY,
            client_id,
            will: None,
            user_name: None,
            password: None,
        };
        self.send(conn, &Packet::Connect(connect));
    }

    fn send(&mut self, conn: ConnSlot, packet: &Packet<'_>) {
        let mut bytes = Vec::new();
        packet.encode(ProtocolVersion::V3_1_1, &mut bytes);
        let received = self.shard.receive(self.now, conn, &bytes);
        assert_eq!(received.consumed, bytes.len());
    }

    /// Appends and commits the records, and discards the output of the clients.
    fn tick(&mut self) {
        let mut effects = Vec::new();
        self.shard.take_effects(&mut effects);
        if let Some(batch) = self.shard.journal(self.now).batch() {
            let base = self.journal_end;
            self.journal_end += batch.len() as u64;
            batch.clear();
            self.shard.journal(self.now).appended(base, self.journal_end);
        }
        self.shard.journal(self.now).committed(self.journal_end);
        let outbox = self.shard.outbox();
        for conn in outbox.dirty().to_vec() {
            let queued = outbox.queued_bytes(conn);
            outbox.record_written(conn, queued);
        }
        outbox.end_tick();
    }
}

fn topic(number: u32) -> String {
    format!("fleet/{number:07}/command")
}

struct Memory {
    resident: usize,
    asked: usize,
}

impl Memory {
    fn now() -> Memory {
        let status = std::fs::read_to_string("/proc/self/statm").unwrap();
        let pages: usize = status.split(' ').nth(1).unwrap().parse().unwrap();
        Memory {
            resident: pages * 4096,
            asked: ASKED.load(Relaxed),
        }
    }

    fn print(&self, what: &str, sessions: u32) {
        let (now, sessions) = (Memory::now(), sessions as usize);
        let resident = (now.resident - self.resident) / sessions;
        println!(
            "{what:>24}: resident {resident}, asked {}",
            (now.asked - self.asked) / sessions
        );
    }
}
