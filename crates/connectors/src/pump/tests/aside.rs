//! Tests of records that the target rejects repeatedly: they do not block others, use no space in the buffer, and are
//! neither lost nor sent twice.

use std::sync::atomic::AtomicBool;

use journal::inspect::{InspectError, copy_around};

use super::*;
use crate::buffer::BufferError;

const KEYS: u32 = 1000;
/// Stop timeout that does not wait for rejected records.
const SOON: Duration = Duration::from_millis(50);
/// Many times the number of records that a pump reads before one of them is finished.
const MESSAGES: u32 = 150_000;
/// The target rejects all records of this key.
const POISON: u32 = 5;

/// Creates a sink that rejects some records until `is_free` is set.
fn rejecting(
    is_rejected: impl Fn(u32) -> bool + Send + Sync + 'static,
    is_free: &Arc<AtomicBool>,
) -> Arc<ScriptedSink> {
    let is_free = Arc::clone(is_free);
    Arc::new(ScriptedSink::new(move |number, _| match is_rejected(number) {
        true if !is_free.load(Relaxed) => Err(DeliveryFailure::Temporary("locked".to_owned())),
        _ => Ok(()),
    }))
}

fn config() -> DeliveryConfig {
    let mut config = super::config();
    config.batch.records_max = 1000;
    config
}

/// Appends numbers from 0, waiting for space.
async fn append_patiently(buffer: &ActionBuffer, messages: u32) {
    let mut records = Records::new();
    for number in 0..messages {
        let fields = [Some(&number.to_le_bytes()[..]), Some(&[9; 50][..])];
        records.push(crate::health::unix_ms(), u64::from(number % KEYS), &fields);
        if records.count() == 100 || number + 1 == messages {
            until("there is space", || buffer.append(&mut records).is_ok()).await;
        }
    }
}

/// Returns the number of records with the same key as a rejected one.
fn waiting_with_rejected(messages: u32) -> u64 {
    u64::from(messages / KEYS)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rejected_message_does_not_block_or_fill_the_buffer() {
    for mode in [BufferMode::Disk, BufferMode::Memory, BufferMode::Hybrid] {
        let scratch = scratch();
        let limits = BufferConfig {
            mode,
            max_bytes: 4 << 20,
            segment_bytes: 256 << 10,
            ..BufferConfig::default()
        };
        let buffer = ActionBuffer::open(&scratch.0, &limits, QueryMode::Async, || ()).unwrap();
        let is_free = Arc::default();
        let sink = rejecting(|number| number % KEYS == POISON, &is_free);
        let action = start(&buffer, &sink, &config());
        append_patiently(&buffer, MESSAGES).await;
        let others = u64::from(MESSAGES) - waiting_with_rejected(MESSAGES);
        until("all others are sent", || action.stats().sent == others).await;
        until("the waiting records are counted", || {
            action.stats().queued_messages == waiting_with_rejected(MESSAGES)
        })
        .await;
        until("the space of the sent records is free", || {
            action.stats().queued_bytes < limits.max_bytes / 2
        })
        .await;
        assert!(action.health().last_error.is_some_and(|error| error.contains("locked")));
        is_free.store(true, Relaxed);
        until("all is sent", || action.stats().queued_messages == 0).await;
        let taken = sink.taken();
        assert_eq!(taken.len(), MESSAGES as usize, "{mode:?}: no duplicates");
        assert_order_per_key(&taken, KEYS);
        action.stop(SOON).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_sent_behind_a_rejected_one_are_not_repeated() {
    let scratch = scratch();
    let is_free = Arc::default();
    let sink = rejecting(|number| number % KEYS == POISON, &is_free);
    for round in 1..=3 {
        let buffer = open(&scratch, BufferMode::Disk);
        let action = start(&buffer, &sink, &config());
        append(&buffer, (round - 1) * 10_000..round * 10_000, KEYS);
        let others = u64::from(round * 10_000) - waiting_with_rejected(round * 10_000);
        until("all others are sent", || sink.seen().taken.len() as u64 == others).await;
        action.stop(SOON).await;
        buffer.shut_down().unwrap();
    }
    assert!(scratch.0.join("aside").exists());
    is_free.store(true, Relaxed);
    let buffer = open(&scratch, BufferMode::Disk);
    assert_eq!(buffer.stats().unread_records, 0);
    let action = start(&buffer, &sink, &config());
    until("all is sent", || sink.seen().taken.len() == 30_000).await;
    until("the file is deleted", || !scratch.0.join("aside").exists()).await;
    action.stop(SOON).await;
    let mut taken = sink.taken();
    assert_order_per_key(&taken, KEYS);
    taken.sort_unstable();
    taken.dedup();
    assert_eq!(taken.len(), 30_000);
}

/// At any time, all unsent records are on the disk.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_and_key_order_survive_a_crash() {
    let scratch = scratch();
    let crashed = PumpTestDirectory(scratch.0.with_extension("crashed"));
    let is_free = Arc::default();
    let sink = rejecting(|number| number % 100 == POISON, &is_free);
    let buffer = open(&scratch, BufferMode::Disk);
    let action = start(&buffer, &sink, &config());
    for round in 0..6 {
        append(&buffer, round * 20_000..(round + 1) * 20_000, KEYS);
        let others = (round as usize + 1) * 20_000 * 99 / 100;
        until("all others are sent", || sink.seen().taken.len() == others).await;
        until("some are set aside", || scratch.0.join("aside").exists()).await;
        // Copy the files while the action runs. The journal is copied first, so that the side file is not older than
        // it.
        let copied = copy_around(&scratch.0, journal::DIRECTORY_NAME, &crashed.0, || {
            Ok::<_, InspectError>(())
        });
        copied.unwrap();
        fs::copy(scratch.0.join("aside"), crashed.0.join("aside")).unwrap();
        let again = Arc::new(ScriptedSink::accepting());
        let reopened = open(&crashed, BufferMode::Disk);
        let second = start(&reopened, &again, &config());
        let appended = (round + 1) * 20_000;
        until("all is sent", || second.stats().queued_messages == 0).await;
        second.stop(PATIENCE).await;
        reopened.shut_down().unwrap();
        let mut there = vec![false; appended as usize];
        let mut firsts = [sink.taken(), again.taken()].concat();
        firsts.retain(|number| !std::mem::replace(&mut there[*number as usize], true));
        assert_eq!(firsts.len(), appended as usize, "round {round}");
        assert_order_per_key(&firsts, KEYS);
        fs::remove_dir_all(&crashed.0).unwrap();
    }
    action.stop(SOON).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn too_many_rejected_records_are_reported() {
    let scratch = scratch();
    let buffer = open(&scratch, BufferMode::Disk);
    let is_free = Arc::default();
    let sink = rejecting(|number| number % 10 != 0, &is_free);
    let action = start(&buffer, &sink, &config());
    append(&buffer, 0..100_000, KEYS);
    until("it is reported", || {
        let health = action.health();
        let is_stuck = |error: String| error.contains("some of which the target rejects repeatedly: locked");
        health.state == HealthState::Disconnected && health.last_error.is_some_and(is_stuck)
    })
    .await;
    is_free.store(true, Relaxed);
    until("all is sent", || action.stats().sent == 100_000).await;
    until("the target is connected again", || {
        action.health().state == HealthState::Connected
    })
    .await;
    assert_order_per_key(&sink.taken(), KEYS);
    action.stop(SOON).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failing_to_set_aside_is_reported_and_retried() {
    let scratch = scratch();
    let buffer = open(&scratch, BufferMode::Disk);
    let obstacle = scratch.0.join("aside.new");
    fs::create_dir(&obstacle).unwrap();
    let is_free = Arc::default();
    let sink = rejecting(|number| number % KEYS == POISON, &is_free);
    let action = start(&buffer, &sink, &config());
    append(&buffer, 0..MESSAGES, KEYS);
    until("it is reported", || {
        action
            .health()
            .last_error
            .is_some_and(|error| error.contains("cannot set aside"))
    })
    .await;
    assert!(action.stats().queued_messages > waiting_with_rejected(MESSAGES));
    fs::remove_dir(&obstacle).unwrap();
    until("all others are sent", || {
        action.stats().queued_messages == waiting_with_rejected(MESSAGES)
    })
    .await;
    action.stop(SOON).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn purge_drops_records_that_were_set_aside() {
    let scratch = scratch();
    let is_free = Arc::default();
    let sink = rejecting(|number| number % KEYS == POISON, &is_free);
    for is_running in [true, false] {
        let buffer = open(&scratch, BufferMode::Disk);
        let action = start(&buffer, &sink, &config());
        append(&buffer, 0..10_000, KEYS);
        until("it waits", || {
            action.stats().queued_messages == waiting_with_rejected(10_000)
        })
        .await;
        if is_running {
            action.purge();
        } else {
            action.stop(SOON).await;
            assert!(scratch.0.join("aside").exists());
            action.purge();
        }
        until("nothing waits", || action.stats().dropped.purged > 0).await;
        action.stop(SOON).await;
        buffer.shut_down().unwrap();
        assert!(!scratch.0.join("aside").exists());
        let buffer = open(&scratch, BufferMode::Disk);
        assert!(buffer.take_reader().unwrap().returned.is_empty());
        buffer.shut_down().unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_in_flight_during_a_purge_are_not_retried() {
    for failure in [
        DeliveryFailure::Temporary("no".to_owned()),
        DeliveryFailure::Unreachable("gone".to_owned()),
    ] {
        let scratch = scratch();
        let buffer = open(&scratch, BufferMode::Disk);
        let sink = Arc::new(ScriptedSink::new(move |_, _| Err(failure.clone())).gated());
        let action = start(&buffer, &sink, &config());
        append(&buffer, 0..10_000, 1);
        until("a batch is in flight", || sink.seen().in_flight == 1).await;
        action.purge();
        until("the others are dropped", || action.stats().dropped.purged > 0).await;
        sink.gate.add_permits(1);
        until("nothing waits", || action.stats().queued_messages == 0).await;
        assert_eq!(action.stats().dropped.purged, 10_000);
        action.stop(PATIENCE).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_side_file_is_an_error_and_stays() {
    let scratch = scratch();
    let is_free = Arc::default();
    let sink = rejecting(|number| number % KEYS == POISON, &is_free);
    let buffer = open(&scratch, BufferMode::Disk);
    let action = start(&buffer, &sink, &config());
    append(&buffer, 0..10_000, KEYS);
    until("it waits", || {
        action.stats().queued_messages == waiting_with_rejected(10_000)
    })
    .await;
    action.stop(SOON).await;
    buffer.shut_down().unwrap();
    drop((action, buffer));
    let path = scratch.0.join("aside");
    let good = fs::read(&path).unwrap();
    let mut flipped = good.clone();
    flipped[20] ^= 1;
    for bad in [&flipped[..], &good[..good.len() - 1], &good[..10], &[]] {
        fs::write(&path, bad).unwrap();
        let opened = ActionBuffer::open(&scratch.0, &BufferConfig::default(), QueryMode::Async, || ());
        let refused = opened.err();
        assert!(
            matches!(refused, Some(BufferError::AsideDamaged { .. })),
            "{} bytes: {refused:?}",
            bad.len()
        );
    }
    let mut later = good.clone();
    later[15] = b'2';
    fs::write(&path, later).unwrap();
    let opened = ActionBuffer::open(&scratch.0, &BufferConfig::default(), QueryMode::Async, || ());
    let refused = opened.err();
    assert!(
        matches!(refused, Some(BufferError::AsideTooNew { version: '2', .. })),
        "{refused:?}"
    );
    fs::write(&path, &good).unwrap();
    let buffer = open(&scratch, BufferMode::Disk);
    assert_eq!(
        buffer.take_reader().unwrap().returned.len() as u64,
        waiting_with_rejected(10_000)
    );
    buffer.shut_down().unwrap();
}

/// As after the restore of a backup whose side file is newer than the journal.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn set_aside_records_survive_an_older_journal() {
    let scratch = scratch();
    let is_free = Arc::default();
    let sink = rejecting(|number| number < 10_000 && number % KEYS == POISON, &is_free);
    let buffer = open(&scratch, BufferMode::Disk);
    let action = start(&buffer, &sink, &config());
    append(&buffer, 0..10_000, KEYS);
    until("it waits", || {
        action.stats().queued_messages == waiting_with_rejected(10_000)
    })
    .await;
    action.stop(SOON).await;
    buffer.shut_down().unwrap();
    drop((action, buffer));
    fs::remove_dir_all(scratch.0.join("journal")).unwrap();
    for _ in 0..3 {
        let buffer = open(&scratch, BufferMode::Disk);
        let action = start(&buffer, &sink, &config());
        // Appends up to the positions of the records that were set aside.
        append(&buffer, 20_000..30_000, POISON - 1);
        until("they wait", || {
            action.stats().queued_messages == waiting_with_rejected(10_000)
        })
        .await;
        action.stop(SOON).await;
        buffer.shut_down().unwrap();
    }
}
