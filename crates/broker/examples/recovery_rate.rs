//! Measures recovery: records a second and bytes of memory, for a million sessions with one subscription and five messages each.
//!
//! `cargo run --release -p tidewire-broker --example recovery_rate [sessions] [messages]`. Records are made beforehand, so that only
//! reading them is timed, on one thread and as the time that it has a core. "asked" is what the result asks of the allocator, "malloc" what glibc makes of that (8 bytes
//! of header, rounded up to 16, at least 32), without the records themselves.

#![allow(unsafe_code)]
#![allow(clippy::print_stdout)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use mqtt::{QoS, SubscriptionOptions};
use tidewire_broker::durable::record::{
    Position, Recipient, Record, SessionKey, SessionRecord, Settled, SettledItems, SubscriptionRecord, Target, Targets,
    Terms,
};
use tidewire_broker::durable::recovery::{Recovered, Recovery};

struct Counting;

static ASKED: AtomicUsize = AtomicUsize::new(0);
static TAKEN: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(0);

fn malloc_bytes(bytes: usize) -> usize {
    (bytes + 8).next_multiple_of(16).max(32)
}

// SAFETY: every call goes to the system's allocator as it came; counting does not allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ASKED.fetch_add(layout.size(), Relaxed);
        let taken = malloc_bytes(layout.size());
        MOST.fetch_max(TAKEN.fetch_add(taken, Relaxed) + taken, Relaxed);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        ASKED.fetch_sub(layout.size(), Relaxed);
        TAKEN.fetch_sub(malloc_bytes(layout.size()), Relaxed);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(block, layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        ASKED.fetch_add(bytes.wrapping_sub(layout.size()), Relaxed);
        let more = malloc_bytes(bytes).wrapping_sub(malloc_bytes(layout.size()));
        MOST.fetch_max(TAKEN.fetch_add(more, Relaxed).wrapping_add(more), Relaxed);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.realloc(block, layout, bytes) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Records one after the other, each after its length.
#[derive(Default)]
struct Log {
    bytes: Vec<u8>,
    records: usize,
}

impl Log {
    fn put(&mut self, record: &Record<'_>) {
        let at = self.bytes.len();
        self.bytes.extend_from_slice(&[0; 4]);
        record.put(&mut self.bytes);
        let length = (self.bytes.len() - at - 4) as u32;
        self.bytes[at..at + 4].copy_from_slice(&length.to_le_bytes());
        self.records += 1;
    }

    fn replay(&self, recovery: &mut Recovery) {
        let mut at = 0;
        while let Some((length, rest)) = self.bytes[at..].split_first_chunk() {
            let length = u32::from_le_bytes(*length) as usize;
            let position = Position(1 + at as u64);
            recovery
                .record(position, &rest[..length])
                .expect("it was written as one");
            at += 4 + length;
        }
    }
}

fn main() {
    let mut arguments = std::env::args().skip(1).map(|n| n.parse::<u64>().expect("a number"));
    let sessions = arguments.next().unwrap_or(1_000_000);
    let messages = arguments.next().unwrap_or(5_000_000);
    let (mut recovery, before) = (Recovery::new(), TAKEN.load(Relaxed));
    let log = session_log(sessions);
    timed("Session", &log, &mut recovery);
    drop(log);
    let log = queued_log(sessions, messages);
    timed("Queued", &log, &mut recovery);
    drop(log);
    let log = settled_log(sessions, messages / sessions.max(1));
    timed("Settled, one in five", &log, &mut recovery);
    drop(log);
    MOST.store(TAKEN.load(Relaxed), Relaxed);
    let start = time_on_core();
    let recovered = recovery.finish();
    println!("finish: {:.2} s", (time_on_core() - start).as_secs_f64());
    report(&recovered, before);
}

fn timed(what: &str, log: &Log, recovery: &mut Recovery) {
    let start = time_on_core();
    log.replay(recovery);
    let seconds = (time_on_core() - start).as_secs_f64();
    let rate = log.records as f64 / seconds / 1e6;
    let bytes = log.bytes.len() as f64 / log.records.max(1) as f64;
    let records = log.records;
    println!("{what}: {records} records of {bytes:.0} bytes in {seconds:.2} s, {rate:.2} million/s");
}

/// The time this thread has had a core, which other load disturbs less than the wall clock.
fn time_on_core() -> Duration {
    std::thread::yield_now();
    let schedstat = std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux");
    let nanoseconds = schedstat.split(' ').next().and_then(|n| n.parse().ok());
    Duration::from_nanos(nanoseconds.expect("it begins with a number"))
}

fn report(recovered: &Recovered, before: usize) {
    let sessions = recovered.sessions.len().max(1);
    let entries: usize = recovered.sessions.iter().map(|session| session.entries.len()).sum();
    let taken = TAKEN.load(Relaxed) - before;
    println!("{sessions} sessions, {entries} entries");
    println!(
        "malloc: {} bytes a session with its queue and names; most while finishing {}",
        taken / sessions,
        (MOST.load(Relaxed) - before) / sessions
    );
    println!("asked: {} bytes a session", ASKED.load(Relaxed) / sessions);
}

/// Keys as the broker gives them: every 64th.
fn key(n: u64) -> SessionKey {
    SessionKey(64 * (n + 1))
}

fn session_log(sessions: u64) -> Log {
    let mut log = Log::default();
    for n in 0..sessions {
        let (client_id, filter) = (format!("device-{n:08}"), format!("devices/{n:08}/command"));
        let subscription = SubscriptionRecord {
            filter: &filter,
            options: SubscriptionOptions::default(),
            identifier: None,
            is_replaying: false,
        };
        log.put(&Record::Session(SessionRecord {
            session: key(n),
            client_id: &client_id,
            created_unix_ms: 1_700_000_000_000,
            left_unix_ms: Some(1_700_000_000_000),
            terms: Terms {
                version: 5,
                expiry_s: 3600,
                ..Terms::default()
            },
            next_seq: 1,
            started: 0,
            subscriptions: vec![subscription],
            received: Vec::new(),
        }));
    }
    log
}

/// Messages for one session each, in an order that memory caches do not like.
fn queued_log(sessions: u64, messages: u64) -> Log {
    let mut log = Log::default();
    let mut targets = Vec::new();
    for n in 0..messages {
        let (round, at) = (n / sessions.max(1), n % sessions.max(1));
        targets.clear();
        let target = Target {
            to: Recipient::Session(key(at * 7_919 % sessions)),
            seq: round + 1,
            qos: QoS::AtLeastOnce,
            retain: false,
            group: None,
            identifiers: Vec::new(),
        };
        target.put(&mut targets);
        log.put(&Record::Queued {
            message: Position(1_000_000_000 + n * 200),
            targets: Targets::from_written(&targets),
        });
    }
    log
}

/// Every fifth session has had all its messages.
fn settled_log(sessions: u64, each: u64) -> Log {
    let mut log = Log::default();
    let mut items = Vec::new();
    for n in (0..sessions).step_by(5) {
        for seq in 1..=each {
            items.clear();
            let (session, is_release) = (key(n * 7_919 % sessions), false);
            Settled {
                session,
                seq,
                is_release,
            }
            .put(&mut items);
            log.put(&Record::Settled(SettledItems::from_written(&items)));
        }
    }
    log
}
