//! What the journal takes per second and how long a commit lasts, beside a bare loop of `pwrite` and `fdatasync`.
//!
//! `cargo run --release -p tidewire-journal --example append_rate -- DIRECTORY [BATCH_BYTES [BATCHES_PER_SECOND [SECONDS [fsync|os]]]]`
//!
//! Batches are due at a constant rate, whatever the journal does; latency counts from the time that a batch was due. Rate 0: as fast
//! as 8 MiB of backlog allow. The directory is left empty.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use tidewire_journal::{Batch, DIRECTORY_NAME, Directory, Journal, Log, LogConfig, Lsn, Policy, Replay};

const RECORD_BYTES: usize = 100;
const BACKLOG_BYTES_MAX: usize = 8 << 20;
const BARE_ROUNDS: u32 = 300;

struct Options {
    directory: PathBuf,
    batch_bytes: usize,
    batches_per_second: u64,
    seconds: u64,
    policy: Policy,
}

impl Options {
    fn parse() -> Option<Options> {
        let mut words = std::env::args().skip(1);
        let directory = PathBuf::from(words.next()?);
        let mut number = |default: u64| words.next().map_or(Some(default), |word| word.parse().ok());
        Some(Options {
            directory,
            batch_bytes: number(16 << 10)? as usize,
            batches_per_second: number(0)?,
            seconds: number(5)?,
            policy: match words.next().as_deref() {
                None | Some("fsync") => Policy::Fsync,
                Some("os") => Policy::Os,
                Some(_) => return None,
            },
        })
    }
}

/// Latencies of batches, as they are committed.
#[derive(Default)]
struct Meter {
    waiting: Mutex<VecDeque<(Lsn, Instant)>>,
    latencies: Mutex<Vec<Duration>>,
    journal: OnceLock<Journal>,
}

impl Meter {
    fn on_commit(&self) {
        let Some(journal) = self.journal.get() else { return };
        let (committed, now) = (journal.committed(), Instant::now());
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let mut latencies = self.latencies.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some((_, due)) = waiting.pop_front_if(|(end, _)| *end <= committed) {
            latencies.push(now.saturating_duration_since(due));
        }
    }
}

fn main() -> io::Result<()> {
    let mut out = io::stdout();
    let Some(options) = Options::parse() else {
        return writeln!(
            out,
            "append_rate DIRECTORY [BATCH_BYTES [BATCHES_PER_SECOND [SECONDS [fsync|os]]]]"
        );
    };
    fs::create_dir_all(&options.directory)?;
    let (bare, bare_us) = bare_loop(&options)?;
    writeln!(
        out,
        "bare loop   {bare:8.0} batches/s, latency {}",
        percentiles(bare_us)
    )?;
    run(&options, &mut out)?;
    replay(&options, &mut out)?;
    fs::remove_dir_all(options.directory.join(DIRECTORY_NAME))
}

/// One write and one sync per batch, into space that was preallocated as the journal does it.
fn bare_loop(options: &Options) -> io::Result<(f64, Vec<Duration>)> {
    let path = options.directory.join("bare");
    let file = File::create(&path)?;
    rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, 64 << 20)?;
    file.sync_all()?;
    let bytes = vec![0xA5; options.batch_bytes];
    let begin = Instant::now();
    let mut latencies = Vec::new();
    for round in 0..BARE_ROUNDS {
        let due = Instant::now();
        file.write_all_at(&bytes, u64::from(round) * bytes.len() as u64)?;
        file.sync_data()?;
        latencies.push(due.elapsed());
    }
    let rate = f64::from(BARE_ROUNDS) / begin.elapsed().as_secs_f64();
    fs::remove_file(path)?;
    Ok((rate, latencies))
}

fn run(options: &Options, out: &mut impl Write) -> io::Result<()> {
    let journal = open(&options.directory, options.policy, &mut |_, _| Ok(()))?;
    let meter = Arc::new(Meter::default());
    let told = Arc::clone(&meter);
    let journal = Journal::start(journal, move || told.on_commit())?;
    // Set once, before anything is appended.
    let _ = meter.journal.set(journal.clone());
    let begin = Instant::now();
    let batches = append(options, &journal, &meter, begin);
    while journal.backlog_bytes() > 0 {
        thread::sleep(Duration::from_micros(200));
    }
    let elapsed = begin.elapsed().as_secs_f64();
    let stats = journal.stats();
    let latencies = std::mem::take(&mut *meter.latencies.lock().unwrap_or_else(PoisonError::into_inner));
    writeln!(
        out,
        "journal     {:8.0} batches/s, latency {}\n            {:8.1} MB/s, {:.0} records/s, {:.0} flushes/s, {:.1} batches per flush, {:?}",
        batches as f64 / elapsed,
        percentiles(latencies),
        stats.appended_bytes as f64 / elapsed / 1e6,
        batches as f64 * records_per_batch(options) as f64 / elapsed,
        stats.flushes as f64 / elapsed,
        batches as f64 / stats.flushes.max(1) as f64,
        journal.state(),
    )?;
    journal.shut_down().map_err(io::Error::other)
}

/// The start after that, with what the kernel still has of the files in memory.
fn replay(options: &Options, out: &mut impl Write) -> io::Result<()> {
    let (mut records, mut bytes) = (0_u64, 0_u64);
    let mut replay = |_, payload: &[u8]| {
        records += 1;
        bytes += payload.len() as u64;
        Ok(())
    };
    let begin = Instant::now();
    open(&options.directory, options.policy, &mut replay)?;
    let seconds = begin.elapsed().as_secs_f64();
    writeln!(
        out,
        "replay      {:.1} MB in {:.0} ms: {:.0} MB/s, {:.0} records/s",
        bytes as f64 / 1e6,
        seconds * 1e3,
        bytes as f64 / seconds / 1e6,
        records as f64 / seconds,
    )
}

fn open(directory: &Path, policy: Policy, replay: &mut Replay<'_>) -> io::Result<Log> {
    let storage = Directory::open(directory, DIRECTORY_NAME).map_err(io::Error::other)?;
    let config = LogConfig {
        policy,
        ..LogConfig::default()
    };
    let opened = Log::open(Arc::new(storage), config, replay, &mut |_, _| {});
    Ok(opened.map_err(io::Error::other)?.0)
}

/// Returns how many batches it appended.
fn append(options: &Options, journal: &Journal, meter: &Meter, begin: Instant) -> u64 {
    let (mut batch, mut batches) = (Batch::new(), 0);
    let length = Duration::from_secs(options.seconds);
    loop {
        let due = match options.batches_per_second {
            0 => wait_for_room(journal),
            rate => begin + Duration::from_nanos(batches * 1_000_000_000 / rate),
        };
        if due.saturating_duration_since(begin) >= length {
            return batches;
        }
        thread::sleep(due.saturating_duration_since(Instant::now()));
        for _ in 0..records_per_batch(options) {
            batch.record(|bytes| bytes.extend_from_slice(&[0xA5; RECORD_BYTES]));
        }
        let mut waiting = meter.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.push_back((journal.append(&mut batch).end, due));
        batches += 1;
    }
}

fn wait_for_room(journal: &Journal) -> Instant {
    while journal.backlog_bytes() > BACKLOG_BYTES_MAX {
        thread::sleep(Duration::from_micros(100));
    }
    Instant::now()
}

fn records_per_batch(options: &Options) -> usize {
    (options.batch_bytes / (RECORD_BYTES + tidewire_journal::RECORD_HEADER_BYTES)).max(1)
}

fn percentiles(mut latencies: Vec<Duration>) -> String {
    latencies.sort_unstable();
    let at = |share: f64| {
        let index = (latencies.len().saturating_sub(1) as f64 * share) as usize;
        latencies.get(index).map_or(0.0, |latency| latency.as_secs_f64() * 1e3)
    };
    format!(
        "p50 {:.2} p95 {:.2} p99 {:.2} max {:.2} ms",
        at(0.5),
        at(0.95),
        at(0.99),
        at(1.0)
    )
}
