//! A buffer whose target is away for long: how much memory it takes while it grows, how fast it opens, and how fast it is drained
//! beside live traffic, in order.
//!
//! ```text
//! backlog GIB [DIRECTORY]    messages of 1 KB of 15,000 clients; the target takes everything at once
//! ```
//!
//! The order of each client's messages is checked where they arrive.
#![allow(clippy::print_stdout, reason = "a program for people")]

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use connectors::{Action, BoxFuture, Buffer, BufferConfig, DeliveryConfig, Outcome, QueryMode, Record, Records, Sink};

const CLIENTS: u64 = 15_000;
const BATCH: u64 = 100;
/// One batch this often while the backlog is drained.
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
    buffer.shut_down().expect("the disk is there");
    let _ = std::fs::remove_dir_all(&directory);
}

fn open(directory: &Path) -> Buffer {
    let config = BufferConfig {
        max_bytes: 1 << 40,
        ..BufferConfig::default()
    };
    Buffer::open(directory, &config, QueryMode::Async, || ()).expect("a directory")
}

/// Returns how many messages wait.
fn grow(directory: &Path, bytes: u64) -> u64 {
    let buffer = open(directory);
    let (started, mut next, mut told) = (Instant::now(), 0, 0);
    while buffer.stats().queued_bytes < bytes {
        append(&buffer, next);
        next += BATCH;
        let eighth = buffer.stats().queued_bytes * 8 / bytes;
        if eighth > told {
            told = eighth;
            println!("{next} messages: {} MiB resident", resident_mib());
        }
    }
    let rate = next as f64 / started.elapsed().as_secs_f64();
    println!("appended at {rate:.0} messages/s");
    buffer.shut_down().expect("the disk is there");
    next
}

/// Numbers from `first` on.
fn append(buffer: &Buffer, first: u64) {
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

fn drain(buffer: &Buffer, waiting: u64) {
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
            "meanwhile {} live batches of {BATCH}: committed after {:.1?} (p50), {:.1?} (p99)",
            waits.len(),
            at(0.5),
            at(0.99)
        );
    });
    runtime.block_on(action.stop(Duration::from_secs(5)));
}

/// Publishers who go on: how long each batch waited for its commit.
fn live(buffer: &Buffer, mut next: u64, is_over: &AtomicBool) -> Vec<Duration> {
    let mut waits = Vec::new();
    while !is_over.load(Ordering::Relaxed) {
        let began = Instant::now();
        append(buffer, next);
        next += BATCH;
        let ticket = buffer.append(&mut Records::new()).expect("nothing is always taken");
        while buffer.committed() < ticket {
            std::thread::sleep(Duration::from_micros(50));
        }
        waits.push(began.elapsed());
        std::thread::sleep(LIVE_EVERY.saturating_sub(began.elapsed()));
    }
    waits
}

/// Takes everything, and fails when a client's message comes before an earlier one.
#[derive(Default)]
struct InOrder {
    next: Mutex<Vec<Option<u64>>>,
}

impl Sink for InOrder {
    fn send<'a>(&'a self, batch: &'a [Record]) -> BoxFuture<'a, Outcome> {
        Box::pin(async move {
            let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
            next.resize(CLIENTS as usize, None);
            for record in batch {
                let number = record.field(0).and_then(|value| value.first_chunk());
                let number = u64::from_le_bytes(*number.expect("a number"));
                let last = next[(number % CLIENTS) as usize].replace(number);
                assert!(last.is_none_or(|last| last < number), "{number} came behind {last:?}");
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
