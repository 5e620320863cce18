//! Measures a buffer whose target is unreachable for a long time: memory while it grows, time to open it, and the rate
//! at which it is drained next to live traffic.
//!
//! ```text
//! backlog GIB [DIRECTORY]    messages of 1 KB from 15,000 clients; the target accepts everything
//! ```
//!
//! Checks the order of each client's messages at the target.
#![allow(clippy::print_stdout, reason = "a program for people")]

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use connectors::{
    Action, ActionBuffer, BatchOutcome, BoxFuture, BufferConfig, DeliveryConfig, QueryMode, Record, Records, Sink,
};

const CLIENTS: u64 = 15_000;
const BATCH: u64 = 100;
/// Interval of live batches while the backlog is drained.
const LIVE_EVERY: Duration = Duration::from_millis(10);

fn main() {
    let mut arguments = std::env::args().skip(1);
    let gib: u64 = arguments.next().and_then(|text| text.parse().ok()).unwrap_or(3);
    let default = || std::env::temp_dir().join(format!("tidewire-backlog-{}", std::process::id()));
    let directory = arguments.next().map_or_else(default, PathBuf::from);
    let waiting = grow(&directory, gib << 30);
    let started = Instant::now();
    let buffer = open(&directory);
    println!(
        "opened in {:.1?}: {} messages wait",
        started.elapsed(),
        buffer.stats().unread_records
    );
    assert_eq!(buffer.stats().unread_records, waiting);
    drain(&buffer, waiting);
    buffer.shut_down().expect("the disk works");
    let _ = std::fs::remove_dir_all(&directory);
}

fn open(directory: &Path) -> ActionBuffer {
    let config = BufferConfig {
        max_bytes: 1 << 40,
        ..BufferConfig::default()
    };
    ActionBuffer::open(directory, &config, QueryMode::Async, || ()).expect("a directory")
}

/// Fills the buffer. Returns the number of messages.
fn grow(directory: &Path, bytes: u64) -> u64 {
    let buffer = open(directory);
    let (started, mut next, mut reported) = (Instant::now(), 0, 0);
    while buffer.stats().queued_bytes < bytes {
        append(&buffer, next);
        next += BATCH;
        let eighth = buffer.stats().queued_bytes * 8 / bytes;
        if eighth > reported {
            reported = eighth;
            println!("{next} messages: {} MiB resident", resident_mib());
        }
    }
    let rate = next as f64 / started.elapsed().as_secs_f64();
    println!("appended at {rate:.0} messages/s");
    buffer.shut_down().expect("the disk works");
    next
}

/// Appends a batch of numbers beginning at `first`.
fn append(buffer: &ActionBuffer, first: u64) {
    let mut records = Records::new();
    let mut value = [b'x'; 1000];
    for number in first..first + BATCH {
        value[..8].copy_from_slice(&number.to_le_bytes());
        let client = number % CLIENTS;
        records.push(1, client, &[Some(&value), Some(format!("client-{client}").as_bytes())]);
    }
    while buffer.append(&mut records).is_err() {
        std::thread::sleep(Duration::from_micros(200));
    }
}

fn drain(buffer: &ActionBuffer, waiting: u64) {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.expect("threads");
    let action = Action::new("backlog", buffer.clone());
    let sink = Arc::new(InOrder::default());
    let (started, is_over) = (Instant::now(), AtomicBool::new(false));
    action.start(sink, &DeliveryConfig::default(), runtime.handle());
    std::thread::scope(|scope| {
        let live = scope.spawn(|| live(buffer, waiting, &is_over));
        while action.stats().sent < waiting {
            std::thread::sleep(Duration::from_millis(1));
        }
        let rate = waiting as f64 / started.elapsed().as_secs_f64();
        println!(
            "drained {waiting} at {rate:.0} messages/s, {} MiB resident",
            resident_mib()
        );
        is_over.store(true, Ordering::Relaxed);
        let mut waits = live.join().expect("no panic");
        waits.sort_unstable();
        let at = |share: f64| waits[(waits.len() as f64 * share) as usize];
        println!(
            "{} live batches of {BATCH} during the drain: committed after {:.1?} (p50), {:.1?} (p99)",
            waits.len(),
            at(0.5),
            at(0.99)
        );
    });
    runtime.block_on(action.stop(Duration::from_secs(5)));
}

/// Publishes while the backlog is drained. Returns the commit latency of each batch.
fn live(buffer: &ActionBuffer, mut next: u64, is_over: &AtomicBool) -> Vec<Duration> {
    let mut waits = Vec::new();
    while !is_over.load(Ordering::Relaxed) {
        let began = Instant::now();
        append(buffer, next);
        next += BATCH;
        let ticket = buffer.append(&mut Records::new()).expect("an empty append succeeds");
        while buffer.committed() < ticket {
            std::thread::sleep(Duration::from_micros(50));
        }
        waits.push(began.elapsed());
        std::thread::sleep(LIVE_EVERY.saturating_sub(began.elapsed()));
    }
    waits
}

/// Accepts everything. Panics if a client's messages are out of order.
#[derive(Default)]
struct InOrder {
    next: Mutex<Vec<Option<u64>>>,
}

impl Sink for InOrder {
    fn send<'a>(&'a self, batch: &'a [Record]) -> BoxFuture<'a, BatchOutcome> {
        Box::pin(async move {
            let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
            next.resize(CLIENTS as usize, None);
            for record in batch {
                let number = record.field(0).and_then(|value| value.first_chunk());
                let number = u64::from_le_bytes(*number.expect("a number"));
                let last = next[(number % CLIENTS) as usize].replace(number);
                assert!(last.is_none_or(|last| last < number), "{number} arrived after {last:?}");
            }
            connectors::all(batch, Ok(()))
        })
    }

    fn check(&self) -> BoxFuture<'_, Result<(), String>> {
        Box::pin(async { Ok(()) })
    }
}

fn resident_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok())
        .unwrap_or(0)
        / 1024
}
