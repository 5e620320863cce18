//! What a target turns away again and again is set aside: it stops nothing else, keeps no space, and is neither lost nor sent twice.

use std::sync::atomic::AtomicBool;

use super::*;
use crate::buffer::BufferError;

const KEYS: u32 = 1000;
/// What is turned away is not waited for.
const SOON: Duration = Duration::from_millis(50);
/// Many times what a pump reads before one of them is done with.
const MESSAGES: u32 = 150_000;
/// Of this key all are turned away.
const POISON: u32 = 5;

/// Takes all but some, and these as well when `is_free`.
fn turning_away(
    is_turned_away: impl Fn(u32) -> bool + Send + Sync + 'static,
    is_free: &Arc<AtomicBool>,
) -> Arc<Script> {
    let is_free = Arc::clone(is_free);
    Arc::new(Script::new(move |number, _| match is_turned_away(number) {
        true if !is_free.load(Relaxed) => Err(Failure::Busy("locked".to_owned())),
        _ => Ok(()),
    }))
}

fn config() -> DeliveryConfig {
    let mut config = super::config();
    config.batch.records_max = 1000;
    config
}

/// Numbers from 0 on; waits while there is no room.
async fn append_patiently(buffer: &Buffer, messages: u32) {
    let mut records = Records::new();
    for number in 0..messages {
        let fields = [Some(&number.to_le_bytes()[..]), Some(&[9; 50][..])];
        records.push(crate::health::unix_ms(), u64::from(number % KEYS), &fields);
        if records.count() == 100 || number + 1 == messages {
            until("there is room", || buffer.append(&mut records).is_ok()).await;
        }
    }
}

/// All that one message holds up are those of its key.
fn held_up(messages: u32) -> u64 {
    u64::from(messages / KEYS)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_message_neither_stops_later_ones_nor_keeps_their_space() {
    for mode in [BufferMode::Disk, BufferMode::Memory, BufferMode::Hybrid] {
        let scratch = scratch();
        let limits = BufferConfig {
            mode,
            max_bytes: 4 << 20,
            segment_bytes: 256 << 10,
            ..BufferConfig::default()
        };
        let buffer = Buffer::open(&scratch.0, &limits, QueryMode::Async, || ()).unwrap();
        let is_free = Arc::default();
        let sink = turning_away(|number| number % KEYS == POISON, &is_free);
        let action = start(&buffer, &sink, &config());
        append_patiently(&buffer, MESSAGES).await;
        let others = u64::from(MESSAGES) - held_up(MESSAGES);
        until("all others are sent", || action.stats().sent == others).await;
        until("it is told what waits", || {
            action.stats().queued_messages == held_up(MESSAGES)
        })
        .await;
        until("the space of what was sent is free", || {
            action.stats().queued_bytes < limits.max_bytes / 2
        })
        .await;
        assert!(action.health().last_error.is_some_and(|error| error.contains("locked")));
        is_free.store(true, Relaxed);
        until("all is sent", || action.stats().queued_messages == 0).await;
        let taken = sink.taken();
        assert_eq!(taken.len(), MESSAGES as usize, "{mode:?}: nothing came twice");
        assert_order_per_key(&taken, KEYS);
        action.stop(SOON).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_stop_nothing_comes_again_that_was_sent_behind_it() {
    let scratch = scratch();
    let is_free = Arc::default();
    let sink = turning_away(|number| number % KEYS == POISON, &is_free);
    for round in 1..=3 {
        let buffer = open(&scratch, BufferMode::Disk);
        let action = start(&buffer, &sink, &config());
        append(&buffer, (round - 1) * 10_000..round * 10_000, KEYS);
        let others = u64::from(round * 10_000) - held_up(round * 10_000);
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
    until("the file goes", || !scratch.0.join("aside").exists()).await;
    action.stop(SOON).await;
    let mut taken = sink.taken();
    assert_order_per_key(&taken, KEYS);
    taken.sort_unstable();
    taken.dedup();
    assert_eq!(taken.len(), 30_000);
}

/// At any moment what is on the disk has all that was not taken.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_crash_nothing_is_missing_and_the_order_of_a_key_is_kept() {
    let scratch = scratch();
    let crashed = Scratch(scratch.0.with_extension("crashed"));
    let is_free = Arc::default();
    let sink = turning_away(|number| number % 100 == POISON, &is_free);
    let buffer = open(&scratch, BufferMode::Disk);
    let action = start(&buffer, &sink, &config());
    for round in 0..6 {
        append(&buffer, round * 20_000..(round + 1) * 20_000, KEYS);
        let others = (round as usize + 1) * 20_000 * 99 / 100;
        until("all others are sent", || sink.seen().taken.len() == others).await;
        until("some are set aside", || scratch.0.join("aside").exists()).await;
        // As they lie there while it goes on: the journal first, so that the file may be newer, but is never older.
        fs::create_dir_all(crashed.0.join("journal")).unwrap();
        let journal = fs::read_dir(scratch.0.join("journal")).unwrap();
        let mut files: Vec<_> = journal.map(|entry| entry.unwrap().file_name()).collect();
        files.sort();
        for file in files {
            // The oldest may go meanwhile.
            let _ = fs::copy(
                scratch.0.join("journal").join(&file),
                crashed.0.join("journal").join(&file),
            );
        }
        fs::copy(scratch.0.join("aside"), crashed.0.join("aside")).unwrap();
        let again = Arc::new(Script::taking());
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
async fn it_is_told_when_too_many_are_turned_away() {
    let scratch = scratch();
    let buffer = open(&scratch, BufferMode::Disk);
    let is_free = Arc::default();
    let sink = turning_away(|number| number % 10 != 0, &is_free);
    let action = start(&buffer, &sink, &config());
    append(&buffer, 0..100_000, KEYS);
    until("it is told", || {
        let health = action.health();
        let is_told = |told: String| told.contains("nothing more is read until it takes them: locked");
        health.state == HealthState::Disconnected && health.last_error.is_some_and(is_told)
    })
    .await;
    is_free.store(true, Relaxed);
    until("all is sent", || action.stats().sent == 100_000).await;
    until("it is over", || action.health().state == HealthState::Connected).await;
    assert_order_per_key(&sink.taken(), KEYS);
    action.stop(SOON).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_set_aside_is_told_and_tried_again() {
    let scratch = scratch();
    let buffer = open(&scratch, BufferMode::Disk);
    let obstacle = scratch.0.join("aside.new");
    fs::create_dir(&obstacle).unwrap();
    let is_free = Arc::default();
    let sink = turning_away(|number| number % KEYS == POISON, &is_free);
    let action = start(&buffer, &sink, &config());
    append(&buffer, 0..MESSAGES, KEYS);
    until("it is told", || {
        action
            .health()
            .last_error
            .is_some_and(|error| error.contains("cannot be set aside"))
    })
    .await;
    assert!(action.stats().queued_messages > held_up(MESSAGES));
    fs::remove_dir(&obstacle).unwrap();
    until("all others are sent", || {
        action.stats().queued_messages == held_up(MESSAGES)
    })
    .await;
    action.stop(SOON).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_set_aside_is_purged_with_the_rest() {
    let scratch = scratch();
    let is_free = Arc::default();
    let sink = turning_away(|number| number % KEYS == POISON, &is_free);
    for is_running in [true, false] {
        let buffer = open(&scratch, BufferMode::Disk);
        let action = start(&buffer, &sink, &config());
        append(&buffer, 0..10_000, KEYS);
        until("it waits", || action.stats().queued_messages == held_up(10_000)).await;
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
async fn what_was_on_its_way_when_the_buffer_was_purged_does_not_wait_again() {
    for failure in [Failure::Busy("no".to_owned()), Failure::Away("gone".to_owned())] {
        let scratch = scratch();
        let buffer = open(&scratch, BufferMode::Disk);
        let sink = Arc::new(Script::new(move |_, _| Err(failure.clone())).gated());
        let action = start(&buffer, &sink, &config());
        append(&buffer, 0..10_000, 1);
        until("a batch is on its way", || sink.seen().in_flight == 1).await;
        action.purge();
        until("the others are gone", || action.stats().dropped.purged > 0).await;
        sink.gate.add_permits(1);
        until("nothing waits", || action.stats().queued_messages == 0).await;
        assert_eq!(action.stats().dropped.purged, 10_000);
        action.stop(PATIENCE).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_file_is_told_and_nothing_is_thrown_away() {
    let scratch = scratch();
    let is_free = Arc::default();
    let sink = turning_away(|number| number % KEYS == POISON, &is_free);
    let buffer = open(&scratch, BufferMode::Disk);
    let action = start(&buffer, &sink, &config());
    append(&buffer, 0..10_000, KEYS);
    until("it waits", || action.stats().queued_messages == held_up(10_000)).await;
    action.stop(SOON).await;
    buffer.shut_down().unwrap();
    drop((action, buffer));
    let path = scratch.0.join("aside");
    let good = fs::read(&path).unwrap();
    let mut flipped = good.clone();
    flipped[20] ^= 1;
    for bad in [&flipped[..], &good[..good.len() - 1], &good[..10], &[]] {
        fs::write(&path, bad).unwrap();
        let opened = Buffer::open(&scratch.0, &BufferConfig::default(), QueryMode::Async, || ());
        let refused = opened.err();
        assert!(
            matches!(refused, Some(BufferError::AsideDamaged { .. })),
            "{} bytes: {refused:?}",
            bad.len()
        );
    }
    fs::write(&path, &good).unwrap();
    let buffer = open(&scratch, BufferMode::Disk);
    assert_eq!(buffer.take_reader().unwrap().returned.len() as u64, held_up(10_000));
    buffer.shut_down().unwrap();
}

/// As after a backup is restored, in which the file is newer than the journal.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_set_aside_of_a_later_journal_stays() {
    let scratch = scratch();
    let is_free = Arc::default();
    let sink = turning_away(|number| number < 10_000 && number % KEYS == POISON, &is_free);
    let buffer = open(&scratch, BufferMode::Disk);
    let action = start(&buffer, &sink, &config());
    append(&buffer, 0..10_000, KEYS);
    until("it waits", || action.stats().queued_messages == held_up(10_000)).await;
    action.stop(SOON).await;
    buffer.shut_down().unwrap();
    drop((action, buffer));
    fs::remove_dir_all(scratch.0.join("journal")).unwrap();
    for _ in 0..3 {
        let buffer = open(&scratch, BufferMode::Disk);
        let action = start(&buffer, &sink, &config());
        // What was set aside stood as far in the journal as this comes.
        append(&buffer, 20_000..30_000, POISON - 1);
        until("they wait", || action.stats().queued_messages == held_up(10_000)).await;
        action.stop(SOON).await;
        buffer.shut_down().unwrap();
    }
}
