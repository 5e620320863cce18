//! Tests of the pump with a scripted sink: failures, order per key, rejected records, quota, stops.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::AtomicU32;
use std::time::Instant;
use std::{env, fs, process};

use tokio::sync::Semaphore;

use super::*;
use crate::buffer::BufferFull;
use crate::config::{BatchConfig, BufferConfig, BufferMode, Overflow, QueryMode, RetryConfig};
use crate::fallback::{Fallback, FallbackOutcome};
use crate::health::HealthState;
use crate::record::{Record, Records};
use crate::sink::{BatchOutcome, BoxFuture, DeliveryFailure, OrderGuarantee};

mod aside;

const PATIENCE: Duration = Duration::from_secs(30);

type AnswerFunction = Box<dyn Fn(u32, u32) -> Result<(), DeliveryFailure> + Send + Sync>;

/// A sink that answers each record by its number and attempt.
struct ScriptedSink {
    answer: AnswerFunction,
    order: OrderGuarantee,
    /// Holds a permit for each batch that may be answered.
    gate: Semaphore,
    seen: Mutex<SinkObservations>,
    is_reachable: std::sync::atomic::AtomicBool,
    rejection: Mutex<Option<String>>,
}

#[derive(Default)]
struct SinkObservations {
    tries: BTreeMap<u32, u32>,
    /// Accepted numbers in order.
    taken: Vec<u32>,
    /// Received numbers in order, including repetitions.
    came: Vec<u32>,
    in_flight: u32,
    in_flight_max: u32,
    checks: u32,
    largest_batch: usize,
}

impl ScriptedSink {
    fn new(answer: impl Fn(u32, u32) -> Result<(), DeliveryFailure> + Send + Sync + 'static) -> ScriptedSink {
        ScriptedSink {
            answer: Box::new(answer),
            order: OrderGuarantee::ByPump,
            gate: Semaphore::new(Semaphore::MAX_PERMITS),
            seen: Mutex::default(),
            is_reachable: true.into(),
            rejection: Mutex::default(),
        }
    }

    fn accepting() -> ScriptedSink {
        ScriptedSink::new(|_, _| Ok(()))
    }

    fn gated(self) -> ScriptedSink {
        let gate = Semaphore::new(0);
        ScriptedSink { gate, ..self }
    }

    fn seen(&self) -> MutexGuard<'_, SinkObservations> {
        self.seen.lock().unwrap()
    }

    fn taken(&self) -> Vec<u32> {
        self.seen().taken.clone()
    }

    fn answer(&self, batch: &[Record]) -> BatchOutcome {
        let mut seen = self.seen();
        let answered = batch.iter().map(|record| {
            let number = number(record);
            let tries = seen.tries.entry(number).or_default();
            *tries += 1;
            let answer = (self.answer)(number, *tries);
            if answer.is_ok() {
                seen.taken.push(number);
            }
            answer
        });
        answered.collect()
    }
}

impl Sink for ScriptedSink {
    fn send<'a>(&'a self, batch: &'a [Record]) -> BoxFuture<'a, BatchOutcome> {
        Box::pin(async move {
            {
                let mut seen = self.seen();
                seen.in_flight += 1;
                seen.in_flight_max = seen.in_flight_max.max(seen.in_flight);
                seen.largest_batch = seen.largest_batch.max(batch.len());
                seen.came.extend(batch.iter().map(number));
            }
            tokio::task::yield_now().await;
            self.gate.acquire().await.unwrap().forget();
            let outcome = self.answer(batch);
            self.seen().in_flight -= 1;
            outcome
        })
    }

    fn check(&self) -> BoxFuture<'_, Result<(), String>> {
        self.seen().checks += 1;
        let is_reachable = self.is_reachable.load(Relaxed);
        Box::pin(async move {
            if is_reachable {
                Ok(())
            } else {
                Err("connection refused".to_owned())
            }
        })
    }

    fn rejection(&self) -> Option<String> {
        self.rejection.lock().unwrap().clone()
    }

    fn order(&self) -> OrderGuarantee {
        self.order
    }
}

fn number(record: &Record) -> u32 {
    u32::from_le_bytes(record.field(0).unwrap().try_into().unwrap())
}

struct PumpTestDirectory(PathBuf);

impl Drop for PumpTestDirectory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn scratch() -> PumpTestDirectory {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let name = format!("tidewire-pump-{}-{}", process::id(), COUNT.fetch_add(1, Relaxed));
    PumpTestDirectory(env::temp_dir().join(name))
}

fn open(scratch: &PumpTestDirectory, mode: BufferMode) -> ActionBuffer {
    let config = BufferConfig {
        mode,
        segment_bytes: 1 << 20,
        ..BufferConfig::default()
    };
    ActionBuffer::open(&scratch.0, &config, QueryMode::Async, || ()).unwrap()
}

fn config() -> DeliveryConfig {
    DeliveryConfig {
        batch: BatchConfig {
            records_max: 10,
            ..BatchConfig::default()
        },
        retry: RetryConfig {
            first_ms: 1,
            longest_ms: 20,
            tries_max: None,
        },
        in_flight: 8,
        health_check_interval_ms: 100,
        ..DeliveryConfig::default()
    }
}

/// Appends numbers as records of `keys` keys, in batches of 25.
fn append(buffer: &ActionBuffer, numbers: std::ops::Range<u32>, keys: u32) {
    let mut records = Records::new();
    for number in numbers {
        let payload = [9; 50];
        records.push(
            crate::health::unix_ms(),
            u64::from(number % keys),
            &[Some(&number.to_le_bytes()), Some(&payload)],
        );
        if records.count() == 25 {
            buffer.append(&mut records).unwrap();
        }
    }
    buffer.append(&mut records).unwrap();
}

fn start(buffer: &ActionBuffer, sink: &Arc<ScriptedSink>, config: &DeliveryConfig) -> Action {
    let action = Action::new("test", buffer.clone());
    action.start(Arc::clone(sink) as Arc<dyn Sink>, config, &Handle::current());
    action
}

async fn until(condition: &str, mut is_so: impl FnMut() -> bool) {
    let started = Instant::now();
    while !is_so() {
        assert!(started.elapsed() < PATIENCE, "timed out waiting until {condition}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

fn assert_order_per_key(taken: &[u32], keys: u32) {
    for key in 0..keys {
        let of_key: Vec<u32> = taken.iter().copied().filter(|number| number % keys == key).collect();
        assert!(of_key.is_sorted(), "key {key}: {of_key:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_are_sent_once_in_order_per_key() {
    for mode in [BufferMode::Disk, BufferMode::Memory, BufferMode::Hybrid] {
        let scratch = scratch();
        let buffer = open(&scratch, mode);
        let sink = Arc::new(ScriptedSink::accepting());
        let action = start(&buffer, &sink, &config());
        append(&buffer, 0..20_000, 100);
        until("all is sent", || action.stats().sent == 20_000).await;
        let taken = sink.taken();
        assert_order_per_key(&taken, 100);
        assert_eq!(taken.len(), 20_000);
        let seen_max = sink.seen().in_flight_max;
        assert!((2..=8).contains(&seen_max), "{seen_max} batches in flight");
        assert!(sink.seen().largest_batch <= 10);
        let stats = action.stats();
        assert_eq!(
            (stats.matched, stats.failed, stats.queued_messages, stats.in_flight),
            (20_000, 0, 0, 0)
        );
        assert_eq!(stats.latency.iter().map(|bucket| bucket.messages).sum::<u64>(), 20_000);
        assert_eq!(action.health().state, HealthState::Connected);
        action.stop(PATIENCE).await;
        buffer.shut_down().unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rejected_records_are_counted_and_do_not_block() {
    let scratch = scratch();
    let buffer = open(&scratch, BufferMode::Disk);
    let sink = Arc::new(ScriptedSink::new(|number, _| match number % 1000 {
        13 => Err(DeliveryFailure::Refused("value out of range".to_owned())),
        _ => Ok(()),
    }));
    let action = start(&buffer, &sink, &config());
    append(&buffer, 0..5000, 7);
    until("all is done", || action.stats().sent + action.stats().failed == 5000).await;
    assert_eq!(action.stats().failed, 5);
    assert_eq!(action.health().last_error.as_deref(), Some("value out of range"));
    assert_eq!(action.health().state, HealthState::Connected);
    action.stop(PATIENCE).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn untried_records_count_no_attempt_and_do_not_block() {
    let scratch = scratch();
    let buffer = open(&scratch, BufferMode::Disk);
    let is_free = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let is_taken = Arc::clone(&is_free);
    let sink = Arc::new(ScriptedSink::new(move |number, tries| match (number, number % 10) {
        (13, _) if tries < 6 => Err(DeliveryFailure::Temporary("locked".to_owned())),
        (13, _) => {
            is_taken.store(true, Relaxed);
            Ok(())
        }
        (14.., 3) if !is_taken.load(Relaxed) => Err(DeliveryFailure::NotSent),
        _ => Ok(()),
    }));
    let config = DeliveryConfig {
        retry: RetryConfig {
            first_ms: 50,
            longest_ms: 50,
            tries_max: Some(6),
        },
        in_flight: 1,
        ..config()
    };
    let action = start(&buffer, &sink, &config);
    append(&buffer, 0..2000, 10);
    until("others are sent", || action.stats().sent >= 1800).await;
    assert!(!is_free.load(Relaxed), "they did not wait for it");
    assert_eq!(action.health().state, HealthState::Connected);
    until("all is sent", || action.stats().sent == 2000).await;
    assert_order_per_key(&sink.taken(), 10);
    assert_eq!(action.stats().failed, 0);
    assert_eq!(sink.seen().tries[&13], 6);
    action.stop(PATIENCE).await;
}

/// A fallback that accepts as many batches as its gate permits.
struct Collector {
    gate: Semaphore,
    taken: Mutex<Vec<u32>>,
}

impl Collector {
    fn new(permits: usize) -> Arc<Collector> {
        Arc::new(Collector {
            gate: Semaphore::new(permits),
            taken: Mutex::default(),
        })
    }

    fn taken(&self) -> Vec<u32> {
        let mut taken = self.taken.lock().unwrap().clone();
        taken.sort_unstable();
        taken.dedup();
        taken
    }
}

impl Fallback for Collector {
    fn take<'a>(&'a self, given_up: &'a [Record]) -> BoxFuture<'a, FallbackOutcome> {
        Box::pin(async move {
            self.gate.acquire().await.unwrap().forget();
            self.taken.lock().unwrap().extend(given_up.iter().map(number));
            FallbackOutcome {
                taken: given_up.len() as u64,
                ..FallbackOutcome::default()
            }
        })
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failed_records_finish_after_the_fallback_has_them() {
    let scratch = scratch();
    let refuse_thirteens = || {
        Arc::new(ScriptedSink::new(|number, tries| match (number % 1000, tries) {
            (13, _) => Err(DeliveryFailure::Refused("value out of range".to_owned())),
            (14, _) => Err(DeliveryFailure::Temporary("locked".to_owned())),
            _ => Ok(()),
        }))
    };
    let mut config = config();
    config.retry.tries_max = Some(3);
    let expected: Vec<u32> = (0..5).flat_map(|n| [n * 1000 + 13, n * 1000 + 14]).collect();
    for (permits, taken, queued) in [(0, vec![], 10), (usize::MAX >> 4, expected, 0)] {
        let buffer = open(&scratch, BufferMode::Disk);
        let (sink, collector) = (refuse_thirteens(), Collector::new(permits));
        let fallback: Arc<dyn Fallback> = collector.clone();
        let action = Action::with_fallback("test", buffer.clone(), Some(fallback), ActionStats::default());
        action.start(Arc::clone(&sink) as Arc<dyn Sink>, &config, &Handle::current());
        if permits == 0 {
            append(&buffer, 0..5000, 7);
        }
        until("all is given up", || action.stats().failed == 10).await;
        until("the fallback has received its batches", || {
            action.stats().queued_messages <= queued
        })
        .await;
        action.stop(Duration::from_millis(100)).await;
        assert_eq!(collector.taken(), taken);
        assert_eq!(action.stats().fallback_stored, taken.len() as u64);
        buffer.shut_down().unwrap();
    }
    let buffer = open(&scratch, BufferMode::Disk);
    assert_eq!(buffer.stats().unread_records, 0, "nothing is left");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rejected_records_are_overtaken_by_other_keys_only() {
    let scratch = scratch();
    let buffer = open(&scratch, BufferMode::Disk);
    let sink = Arc::new(ScriptedSink::new(|number, tries| match (number, tries) {
        (40, 1..=30) => Err(DeliveryFailure::Temporary("locked".to_owned())),
        _ => Ok(()),
    }));
    let one_lane = DeliveryConfig {
        in_flight: 1,
        ..config()
    };
    let action = start(&buffer, &sink, &one_lane);
    append(&buffer, 0..2000, 10);
    until("all is sent", || action.stats().sent == 2000).await;
    let taken = sink.taken();
    assert_order_per_key(&taken, 10);
    let at = taken.iter().position(|number| *number == 40).unwrap();
    assert!(at > 200, "the others do not wait for it: it came as number {at}");
    assert!(action.stats().retried >= 30);
    action.stop(PATIENCE).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tries_max_limits_the_attempts() {
    let scratch = scratch();
    let buffer = open(&scratch, BufferMode::Disk);
    let sink = Arc::new(ScriptedSink::new(|number, _| match number {
        5 => Err(DeliveryFailure::Temporary("locked".to_owned())),
        _ => Ok(()),
    }));
    let mut config = config();
    config.retry.tries_max = Some(3);
    let action = start(&buffer, &sink, &config);
    append(&buffer, 0..100, 10);
    until("all is done", || action.stats().sent + action.stats().failed == 100).await;
    assert_eq!((action.stats().failed, sink.seen().tries[&5]), (1, 3));
    let error = action.health().last_error.unwrap();
    assert!(error.contains("3 attempts") && error.contains("locked"), "{error}");
    action.stop(PATIENCE).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_record_is_lost_while_the_target_is_unreachable() {
    for order in [OrderGuarantee::ByPump, OrderGuarantee::BySink] {
        let scratch = scratch();
        let buffer = open(&scratch, BufferMode::Disk);
        let sink = Arc::new(ScriptedSink {
            order,
            ..ScriptedSink::new(|number, tries| match tries {
                1 if number >= 500 => Err(DeliveryFailure::Unreachable("connection refused".to_owned())),
                _ => Ok(()),
            })
        });
        sink.is_reachable.store(false, Relaxed);
        let action = start(&buffer, &sink, &config());
        until("it is disconnected", || {
            action.health().state == HealthState::Disconnected
        })
        .await;
        append(&buffer, 0..1000, 10);
        let checks = sink.seen().checks;
        until("it was checked several times", || sink.seen().checks > checks + 3).await;
        assert_eq!(action.stats().sent, 0);
        sink.is_reachable.store(true, Relaxed);
        until("all is sent", || action.stats().sent == 1000).await;
        assert_order_per_key(&sink.taken(), 10);
        assert_eq!(
            (action.stats().failed, action.health().state),
            (0, HealthState::Connected)
        );
        action.stop(PATIENCE).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rejecting_target_is_reported_and_sending_continues() {
    let scratch = scratch();
    let buffer = open(&scratch, BufferMode::Disk);
    let sink = Arc::new(ScriptedSink {
        order: OrderGuarantee::BySink,
        ..ScriptedSink::accepting().gated()
    });
    let action = start(&buffer, &sink, &config());
    append(&buffer, 0..10, 1);
    until("the first batch is in flight", || sink.seen().in_flight == 1).await;
    *sink.rejection.lock().unwrap() = Some("too few replicas".to_owned());
    until("it is reported", || {
        let health = action.health();
        health.state == HealthState::Disconnected && health.last_error.as_deref() == Some("too few replicas")
    })
    .await;
    append(&buffer, 10..20, 1);
    until("the second batch is in flight", || sink.seen().in_flight == 2).await;
    *sink.rejection.lock().unwrap() = None;
    sink.gate.add_permits(2);
    until("all is sent", || action.stats().sent == 20).await;
    assert_eq!(action.health().state, HealthState::Connected);
    action.stop(PATIENCE).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_ordered_sink_receives_several_batches_in_order() {
    let scratch = scratch();
    let buffer = open(&scratch, BufferMode::Disk);
    let sink = Arc::new(ScriptedSink {
        order: OrderGuarantee::BySink,
        ..ScriptedSink::accepting().gated()
    });
    let action = start(&buffer, &sink, &config());
    append(&buffer, 0..500, 500);
    until("eight are in flight", || sink.seen().in_flight == 8).await;
    sink.gate.add_permits(1 << 20);
    until("all is sent", || action.stats().sent == 500).await;
    assert_eq!(sink.seen().came, (0..500).collect::<Vec<u32>>());
    assert_eq!(sink.seen().in_flight_max, 8);
    action.stop(PATIENCE).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unconfirmed_records_are_sent_after_a_restart() {
    for mode in [BufferMode::Disk, BufferMode::Memory] {
        let scratch = scratch();
        let mut buffer = open(&scratch, mode);
        let stuck = Arc::new(ScriptedSink::accepting().gated());
        let action = start(&buffer, &stuck, &config());
        append(&buffer, 0..1000, 10);
        until("batches are in flight", || stuck.seen().in_flight == 8).await;
        stuck.gate.add_permits(3);
        until("three batches are through", || {
            action.stats().latency_sum_us > 0 && stuck.gate.available_permits() == 0
        })
        .await;
        action.stop(Duration::ZERO).await;
        assert!(!action.is_running());
        if mode == BufferMode::Disk {
            buffer.shut_down().unwrap();
            drop(action);
            drop(buffer);
            buffer = open(&scratch, mode);
        }
        let sink = Arc::new(ScriptedSink::accepting());
        let mut all = stuck.taken();
        let unsent = 1000 - all.len() as u64;
        let waiting = buffer.stats();
        assert!(
            waiting.unread_records + waiting.held_records >= unsent,
            "{mode:?}: {waiting:?}"
        );
        let action = start(&buffer, &sink, &config());
        until("the rest is sent", || {
            let stats = action.stats();
            stats.sent > 900 && stats.queued_messages == 0
        })
        .await;
        assert_order_per_key(&sink.taken(), 10);
        all.extend(sink.taken());
        all.sort_unstable();
        all.dedup();
        assert_eq!(all, (0..1000).collect::<Vec<u32>>(), "{mode:?}");
        action.stop(PATIENCE).await;
        buffer.shut_down().unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clean_stop_causes_no_duplicates() {
    let scratch = scratch();
    let sink = Arc::new(ScriptedSink::accepting());
    for round in 0..5 {
        let buffer = open(&scratch, BufferMode::Disk);
        let action = start(&buffer, &sink, &config());
        append(&buffer, round * 333..round * 333 + 333, 10);
        until("some are sent", || action.stats().sent > 0).await;
        action.stop(PATIENCE).await;
        buffer.shut_down().unwrap();
    }
    let buffer = open(&scratch, BufferMode::Disk);
    let action = start(&buffer, &sink, &config());
    until("all is sent", || sink.taken().len() >= 5 * 333).await;
    action.stop(PATIENCE).await;
    let mut taken = sink.taken();
    taken.sort_unstable();
    assert_eq!(taken, (0..5 * 333).collect::<Vec<u32>>());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_is_repeated_after_its_timeout() {
    let scratch = scratch();
    let buffer = open(&scratch, BufferMode::Disk);
    let sink = Arc::new(ScriptedSink::accepting().gated());
    let impatient = DeliveryConfig {
        request_timeout_ms: 30,
        ..config()
    };
    let action = start(&buffer, &sink, &impatient);
    append(&buffer, 0..5, 1);
    until("it was received twice", || sink.seen().came.len() >= 10).await;
    sink.gate.add_permits(1 << 20);
    until("all is sent", || action.stats().sent == 5).await;
    let error = action.health().last_error.unwrap();
    assert!(error.contains("30 ms"), "{error}");
    action.stop(PATIENCE).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pause_stops_sending_and_purge_drops_records() {
    let scratch = scratch();
    let buffer = open(&scratch, BufferMode::Disk);
    let sink = Arc::new(ScriptedSink::accepting());
    let action = start(&buffer, &sink, &config());
    action.pause();
    append(&buffer, 0..1000, 10);
    until("it has read them", || action.stats().queued_messages == 1000).await;
    assert_eq!(action.stats().sent, 0);
    action.purge();
    until("they are dropped", || action.stats().dropped.purged == 1000).await;
    action.resume();
    append(&buffer, 1000..1100, 10);
    until("the new ones are sent", || action.stats().sent == 100).await;
    assert!(sink.taken().iter().all(|number| *number >= 1000));
    // The cursor is updated after the `sent` counter.
    until("nothing waits", || action.stats().queued_messages == 0).await;
    action.stop(PATIENCE).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_older_than_the_ttl_are_dropped() {
    let scratch = scratch();
    let buffer = open(&scratch, BufferMode::Disk);
    let mut records = Records::new();
    for number in 0..10_u32 {
        records.push(1000, 0, &[Some(&number.to_le_bytes())]);
    }
    buffer.append(&mut records).unwrap();
    append(&buffer, 10..20, 10);
    let sink = Arc::new(ScriptedSink::accepting());
    let with_ttl = DeliveryConfig {
        request_ttl_ms: Some(3_600_000),
        ..config()
    };
    let action = start(&buffer, &sink, &with_ttl);
    until("all is done", || {
        action.stats().sent + action.stats().dropped.expired == 20
    })
    .await;
    assert_eq!(action.stats().dropped.expired, 10);
    action.stop(PATIENCE).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_is_bounded_while_the_target_hangs() {
    let scratch = scratch();
    let buffer = open(&scratch, BufferMode::Disk);
    let sink = Arc::new(ScriptedSink::accepting().gated());
    let action = start(&buffer, &sink, &config());
    append(&buffer, 0..200_000, 10);
    until("the window is full", || buffer.stats().held_records >= 64 << 10).await;
    assert!(buffer.stats().held_records < (64 << 10) + 100);
    until("all is counted", || action.stats().queued_messages == 200_000).await;
    sink.gate.add_permits(1 << 20);
    until("all is sent", || action.stats().sent == 200_000).await;
    assert_order_per_key(&sink.taken(), 10);
    action.stop(PATIENCE).await;
}

/// A small buffer holds fewer records than this.
const FIT: u64 = 40_000;

/// Opens a buffer that a few ten thousand records fill.
fn open_small(scratch: &PumpTestDirectory, mode: BufferMode, overflow: Overflow) -> ActionBuffer {
    let config = BufferConfig {
        mode,
        overflow,
        max_bytes: 3 << 20,
        memory_bytes: 3 << 20,
        segment_bytes: 256 << 10,
        ..BufferConfig::default()
    };
    ActionBuffer::open(&scratch.0, &config, QueryMode::Async, || ()).unwrap()
}

/// Appends records and waits for each commit, and for space.
async fn append_slowly(buffer: &ActionBuffer, numbers: std::ops::Range<u32>) {
    for first in numbers.clone().step_by(25) {
        let mut records = Records::new();
        for number in first..(first + 25).min(numbers.end) {
            records.push(
                crate::health::unix_ms(),
                u64::from(number % 7),
                &[Some(&number.to_le_bytes()), Some(&[9; 50])],
            );
        }
        let mut ticket = None;
        until("there is space", || {
            ticket = buffer.append(&mut records).ok();
            ticket.is_some()
        })
        .await;
        // Otherwise the disk would be the limit instead of the quota.
        until("it is committed", || Some(buffer.committed()) >= ticket).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_dropped_by_a_full_buffer_reach_the_fallback() {
    const TOTAL: u32 = 60_000;
    for mode in [BufferMode::Disk, BufferMode::Memory, BufferMode::Hybrid] {
        for overflow in [Overflow::DropOldest, Overflow::DropNewest] {
            let scratch = scratch();
            let buffer = open_small(&scratch, mode, overflow);
            let sink = Arc::new(ScriptedSink::accepting());
            sink.is_reachable.store(false, Relaxed);
            let (unreachable, collector) = (
                Arc::new(UnreachableAtFirst(sink.clone())),
                Collector::new(usize::MAX >> 4),
            );
            let fallback: Arc<dyn Fallback> = collector.clone();
            let action = Action::with_fallback("test", buffer.clone(), Some(fallback), ActionStats::default());
            action.start(unreachable, &config(), &Handle::current());
            append_slowly(&buffer, 0..TOTAL).await;
            until("all dropped records are counted", || {
                let stats = action.stats();
                stats.queued_messages < FIT
                    && stats.queued_messages + stats.dropped.total() == u64::from(TOTAL)
                    && stats.fallback_stored == stats.dropped.total()
            })
            .await;
            let (dropped, queued) = (collector.taken(), action.stats().queued_messages);
            assert!(
                dropped.len() > 10_000 && queued > 1000,
                "{mode:?} {overflow:?} {} {queued}",
                dropped.len()
            );
            match overflow {
                Overflow::DropOldest => assert_eq!(dropped, (0..dropped.len() as u32).collect::<Vec<_>>()),
                _ => assert_eq!(dropped.last(), Some(&(TOTAL - 1))),
            }
            sink.is_reachable.store(true, Relaxed);
            let has_all = || collector.taken().len() + sink.taken().len() >= TOTAL as usize;
            until("the rest is sent", || action.stats().queued_messages == 0 && has_all()).await;
            let mut all = [collector.taken(), sink.taken()].concat();
            all.sort_unstable();
            assert_eq!(all, (0..TOTAL).collect::<Vec<_>>(), "{mode:?} {overflow:?}");
            assert_eq!(action.stats().fallback_lost, 0);
            action.stop(PATIENCE).await;
            buffer.shut_down().unwrap();
        }
    }
}

/// Without a fallback, a full buffer drops the oldest records, including those that the pump has read.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_buffer_drops_the_oldest_and_keeps_the_newest() {
    const TOTAL: u32 = 100_000;
    let scratch = scratch();
    let buffer = open_small(&scratch, BufferMode::Disk, Overflow::DropOldest);
    let sink = Arc::new(ScriptedSink::accepting());
    sink.is_reachable.store(false, Relaxed);
    let action = Action::new("test", buffer.clone());
    action.start(
        Arc::new(UnreachableAtFirst(sink.clone())),
        &config(),
        &Handle::current(),
    );
    append_slowly(&buffer, 0..TOTAL).await;
    until("all dropped records are counted", || {
        let stats = action.stats();
        stats.queued_messages < FIT && stats.queued_messages + stats.dropped.total() == u64::from(TOTAL)
    })
    .await;
    let stats = action.stats();
    assert_eq!(stats.dropped.overflow_newest, 0);
    assert!(stats.queued_bytes > 1 << 20, "{stats:?}");
    sink.is_reachable.store(true, Relaxed);
    let has_all = || sink.taken().len() as u64 >= stats.queued_messages;
    until("the rest is sent", || action.stats().queued_messages == 0 && has_all()).await;
    let mut taken = sink.taken();
    taken.sort_unstable();
    let first = taken.first().copied().unwrap_or(TOTAL);
    assert_eq!(taken, (first..TOTAL).collect::<Vec<_>>());
    // Records that were in flight when the buffer evicted them are sent as well.
    let oldest_queued = TOTAL - stats.queued_messages as u32;
    let in_flight_max = config().in_flight * config().batch.records_max;
    assert!(
        (oldest_queued.saturating_sub(in_flight_max)..=oldest_queued).contains(&first),
        "{first} {oldest_queued}"
    );
    action.stop(PATIENCE).await;
}

/// The publisher of a dropped record waits until the fallback has it. Others wait while the queue of the fallback is
/// full.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropped_records_are_due_after_the_fallback_has_them() {
    let scratch = scratch();
    let buffer = open_small(&scratch, BufferMode::Disk, Overflow::DropNewest);
    let sink = Arc::new(ScriptedSink::accepting());
    sink.is_reachable.store(false, Relaxed);
    let collector = Collector::new(0);
    let fallback: Arc<dyn Fallback> = collector.clone();
    let action = Action::with_fallback("test", buffer.clone(), Some(fallback), ActionStats::default());
    action.start(
        Arc::new(UnreachableAtFirst(sink.clone())),
        &config(),
        &Handle::current(),
    );
    let (mut number, mut records) = (0_u32, Records::new());
    let full = loop {
        records.clear();
        for _ in 0..100 {
            records.push(1, 1, &[Some(&number.to_le_bytes()), Some(&[9; 1000])]);
            number += 1;
        }
        match buffer.append(&mut records) {
            Ok(ticket) if action.stats().dropped.total() == 0 => {
                until("it is committed", || buffer.committed() >= ticket).await;
            }
            Ok(ticket) => assert!(buffer.committed() < ticket, "the fallback does not have it yet"),
            Err(full) => break full,
        }
        assert!(number < 1_000_000, "the queue of the fallback is not bounded");
    };
    assert!(matches!(full, BufferFull::Quota { .. }) && !buffer.has_space_for(1 << 20));
    let ticket = buffer.append(&mut Records::new()).unwrap();
    assert!(buffer.committed() < ticket);
    collector.gate.add_permits(1 << 20);
    until("the fallback has it", || buffer.committed() >= ticket).await;
    let dropped = action.stats().dropped.overflow_newest;
    until("all of it is counted", || action.stats().fallback_stored == dropped).await;
    buffer.append(&mut records).expect("there is space again");
    action.stop(PATIENCE).await;
    assert_eq!(
        action.stats().fallback_stored,
        dropped + 100,
        "a stop waits for records that are in memory only"
    );
}

/// The script's sink, unreachable until `is_reachable` is set.
struct UnreachableAtFirst(Arc<ScriptedSink>);

impl Sink for UnreachableAtFirst {
    fn send<'a>(&'a self, batch: &'a [Record]) -> BoxFuture<'a, BatchOutcome> {
        match self.0.is_reachable.load(Relaxed) {
            true => self.0.send(batch),
            false => Box::pin(async move {
                crate::sink::all(
                    batch,
                    Err(DeliveryFailure::Unreachable("connection refused".to_owned())),
                )
            }),
        }
    }

    fn check(&self) -> BoxFuture<'_, Result<(), String>> {
        self.0.check()
    }
}
