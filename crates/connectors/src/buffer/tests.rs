//! The buffer: order, at least once over restarts and crashes, quota and its policies, hybrid.

use std::path::PathBuf;
use std::sync::atomic::AtomicU32;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;
use std::{env, fs, process};

use super::*;
use crate::record::Record;

const PATIENCE: Duration = Duration::from_secs(20);

struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Scratch {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("tidewire-buffer-{}-{}", process::id(), COUNT.fetch_add(1, Relaxed));
        let path = env::temp_dir().join(name);
        fs::create_dir_all(&path).unwrap();
        Scratch(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A buffer, and what tells that it went on.
struct Opened {
    buffer: Buffer,
    progress: Receiver<()>,
    reader: Option<Reader>,
}

impl Opened {
    fn new(scratch: &Scratch, config: &BufferConfig) -> Opened {
        let (told, progress) = channel();
        let on_progress = move || {
            let _ = told.send(());
        };
        let buffer = Buffer::open(&scratch.0, config, QueryMode::Async, on_progress).unwrap();
        let reader = buffer.take_reader();
        Opened {
            buffer,
            progress,
            reader,
        }
    }

    fn append(&self, numbers: std::ops::Range<u32>) -> Result<Ticket, Full> {
        let mut records = Records::new();
        for number in numbers {
            records.push(u64::from(number), 0, &[Some(&number.to_le_bytes()), Some(&[7; 100])]);
        }
        self.buffer.append(&mut records)
    }

    /// Waits while there is no room.
    fn append_patiently(&self, numbers: std::ops::Range<u32>) -> Ticket {
        loop {
            match self.append(numbers.clone()) {
                Ok(ticket) => return ticket,
                Err(_) => self.progress.recv_timeout(PATIENCE).expect("room"),
            }
        }
    }

    fn wait(&self, ticket: Ticket) {
        while self.buffer.committed() < ticket {
            self.progress.recv_timeout(PATIENCE).expect("a commit");
        }
    }

    /// All that can be read now, as numbers and records.
    fn read(&mut self) -> Vec<(u32, Record, Place)> {
        let reader = self.reader.as_mut().unwrap();
        let mut read = Vec::new();
        while let Some(chunk) = reader.next_chunk(&self.buffer).unwrap() {
            let mut each = |record: Record| read.push((number(&record), record, chunk.place));
            reader.records(&chunk, &mut each).unwrap();
        }
        read
    }

    fn numbers(&mut self) -> Vec<u32> {
        self.read().into_iter().map(|(number, ..)| number).collect()
    }
}

fn number(record: &Record) -> u32 {
    u32::from_le_bytes(record.field(0).unwrap().try_into().unwrap())
}

fn config(mode: BufferMode) -> BufferConfig {
    BufferConfig {
        mode,
        max_bytes: 1 << 20,
        memory_bytes: 64 << 10,
        segment_bytes: 64 << 10,
        ..BufferConfig::default()
    }
}

fn range(numbers: std::ops::Range<u32>) -> Vec<u32> {
    numbers.collect()
}

#[test]
fn what_is_appended_is_read_in_order_from_memory_and_from_the_disk() {
    for mode in [BufferMode::Memory, BufferMode::Disk, BufferMode::Hybrid] {
        let scratch = Scratch::new();
        let mut opened = Opened::new(&scratch, &config(mode));
        let mut ticket = Ticket(0);
        for round in 0..4 {
            // Far more than memory holds, where there is a disk.
            let rounds = if mode == BufferMode::Memory { 10 } else { 100 };
            let mut expected = Vec::new();
            for part in 0..rounds {
                let first = (round * rounds + part) * 40;
                ticket = opened.append_patiently(first..first + 40);
                expected.extend(first..first + 40);
            }
            opened.wait(ticket);
            let mut read = opened.numbers();
            while read.len() < expected.len() {
                opened.progress.recv_timeout(PATIENCE).expect("a commit");
                read.extend(opened.numbers());
            }
            assert_eq!(read, expected, "{mode:?}, round {round}");
            opened.buffer.confirm(None);
            opened.buffer.save_cursor();
            opened.buffer.release();
            assert_eq!(opened.buffer.stats().unread_records, 0);
        }
    }
}

#[test]
fn a_reopened_buffer_goes_on_at_the_cursor() {
    let scratch = Scratch::new();
    let mut opened = Opened::new(&scratch, &config(BufferMode::Disk));
    for part in 0..100 {
        opened.append(part * 10..part * 10 + 10).unwrap();
    }
    let ticket = opened.append(1000..1010).unwrap();
    opened.wait(ticket);
    let read = opened.read();
    let (_, record, place) = &read[456];
    opened.buffer.confirm(Some(Cursor {
        place: *place,
        position: record.position(),
    }));
    opened.buffer.shut_down().unwrap();
    drop(opened);
    for _ in 0..2 {
        let mut opened = Opened::new(&scratch, &config(BufferMode::Disk));
        // The chunk of which a part is done counts as a whole until it is read.
        assert_eq!(opened.buffer.stats().unread_records, 1010 - 450);
        assert_eq!(opened.numbers(), range(456..1010));
        assert_eq!(opened.buffer.stats().unread_records, 0);
        opened.buffer.shut_down().unwrap();
    }
}

/// The process ends without a word: what was committed is there, what the last saved cursor says is done is not.
#[test]
fn after_a_crash_nothing_committed_is_missing() {
    let scratch = Scratch::new();
    let copy = Scratch::new();
    let mut opened = Opened::new(&scratch, &config(BufferMode::Disk));
    let mut saved = 0;
    for part in 0..200 {
        let ticket = opened.append(part * 10..part * 10 + 10).unwrap();
        opened.wait(ticket);
        if part % 7 == 3 {
            let read = opened.read();
            let (number, record, place) = &read[read.len() / 2];
            opened.buffer.confirm(Some(Cursor {
                place: *place,
                position: record.position(),
            }));
            opened.buffer.save_cursor();
            opened.buffer.release();
            saved = *number;
        }
    }
    // The last saved cursor is on the disk too once something after it is.
    let ticket = opened.append(2000..2001).unwrap();
    opened.wait(ticket);
    copy_directory(&scratch.0.join("journal"), &copy.0.join("journal"));
    let mut crashed = Opened::new(&copy, &config(BufferMode::Disk));
    assert_eq!(crashed.numbers(), range(saved..2001));
}

/// What the target has confirmed goes to the disk with what is appended next, without being asked to.
#[test]
fn after_a_crash_only_what_was_not_confirmed_at_the_last_commit_comes_again() {
    let scratch = Scratch::new();
    let mut opened = Opened::new(&scratch, &config(BufferMode::Disk));
    for part in 0..50 {
        let ticket = opened.append(part * 10..part * 10 + 10).unwrap();
        opened.wait(ticket);
        let copy = Scratch::new();
        copy_directory(&scratch.0.join("journal"), &copy.0.join("journal"));
        let mut crashed = Opened::new(&copy, &config(BufferMode::Disk));
        assert_eq!(crashed.numbers(), range(part * 10..part * 10 + 10));
        opened.numbers();
        opened.buffer.confirm(None);
    }
}

fn copy_directory(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

#[test]
fn a_full_buffer_holds_back_and_tells_when_there_is_room() {
    for mode in [BufferMode::Memory, BufferMode::Disk, BufferMode::Hybrid] {
        let scratch = Scratch::new();
        let mut opened = Opened::new(&scratch, &config(mode));
        let mut taken = 0;
        let full = loop {
            match opened.append(taken..taken + 50) {
                Ok(_) => taken += 50,
                Err(full) => break full,
            }
        };
        assert!(matches!(full, Full::Quota { .. }), "{mode:?}: {full}");
        assert_eq!(opened.buffer.stats().refused_appends, 1);
        let mut read = opened.numbers();
        while read.len() < taken as usize {
            opened.progress.recv_timeout(PATIENCE).expect("a commit");
            read.extend(opened.numbers());
        }
        assert_eq!(read, range(0..taken), "{mode:?}: nothing is dropped");
        while opened.progress.try_recv().is_ok() {}
        opened.buffer.confirm(None);
        opened
            .progress
            .recv_timeout(PATIENCE)
            .expect("a word that there is room");
        opened.append(taken..taken + 50).unwrap();
    }
}

#[test]
fn the_policies_drop_what_they_say_and_count_it() {
    for mode in [BufferMode::Memory, BufferMode::Disk, BufferMode::Hybrid] {
        for overflow in [Overflow::DropOldest, Overflow::DropNewest] {
            let scratch = Scratch::new();
            let mut opened = Opened::new(
                &scratch,
                &BufferConfig {
                    overflow,
                    max_bytes: 3 << 20,
                    ..config(mode)
                },
            );
            let total = 60_000;
            for first in (0..total).step_by(50) {
                let ticket = opened.append(first..first + 50).unwrap();
                // Otherwise the disk, not the quota, decides.
                opened.wait(ticket);
            }
            let stats = opened.buffer.stats();
            let mut kept = opened.numbers();
            while (kept.len() as u64) < stats.unread_records {
                opened.progress.recv_timeout(PATIENCE).expect("a commit");
                kept.extend(opened.numbers());
            }
            let dropped = stats.dropped_oldest + stats.dropped_newest;
            assert_eq!(
                kept.len() as u64 + dropped,
                u64::from(total),
                "{mode:?} {overflow:?} {stats:?}"
            );
            assert!(dropped > 0 && !kept.is_empty());
            assert!(kept.is_sorted());
            match overflow {
                Overflow::DropOldest => assert_eq!(kept.last(), Some(&(total - 1)), "{mode:?}"),
                _ => assert_eq!(kept, range(0..kept.len() as u32), "{mode:?}"),
            }
        }
    }
}

#[test]
fn a_small_buffer_drops_a_part_of_what_it_has_not_all() {
    for mode in [BufferMode::Memory, BufferMode::Disk, BufferMode::Hybrid] {
        let scratch = Scratch::new();
        let small = BufferConfig {
            overflow: Overflow::DropOldest,
            max_bytes: 256 << 10,
            memory_bytes: 256 << 10,
            ..config(mode)
        };
        let opened = Opened::new(&scratch, &small);
        let before = loop {
            let unread = opened.buffer.stats().unread_records;
            let ticket = opened.append(0..50).unwrap();
            opened.wait(ticket);
            if opened.buffer.stats().dropped_oldest > 0 {
                break unread;
            }
        };
        let dropped = opened.buffer.stats().dropped_oldest;
        assert!(dropped <= before / 8, "{mode:?}: {dropped} of {before} were dropped");
    }
}

#[test]
fn with_sync_a_ticket_is_due_when_the_sink_has_confirmed() {
    let scratch = Scratch::new();
    let (told, progress) = channel();
    let on_progress = move || {
        let _ = told.send(());
    };
    let buffer = Buffer::open(&scratch.0, &config(BufferMode::Disk), QueryMode::Sync, on_progress).unwrap();
    let reader = buffer.take_reader();
    let mut opened = Opened {
        buffer,
        progress,
        reader,
    };
    let ticket = opened.append(0..10).unwrap();
    let mut read = opened.numbers();
    while read.is_empty() {
        opened.progress.recv_timeout(PATIENCE).expect("a commit");
        read = opened.numbers();
    }
    assert!(opened.buffer.committed() < ticket);
    opened.buffer.confirm(None);
    assert!(opened.buffer.committed() >= ticket);
}

/// Fills segments of 64 KiB, and returns how many numbers are in them.
fn fill(scratch: &Scratch, bytes: u64) -> u32 {
    let config = BufferConfig {
        max_bytes: 1 << 30,
        ..config(BufferMode::Disk)
    };
    let opened = Opened::new(scratch, &config);
    let mut next = 0;
    while opened.buffer.stats().appended_bytes < bytes {
        let ticket = opened.append(next..next + 100).unwrap();
        opened.wait(ticket);
        next += 100;
    }
    opened.buffer.shut_down().unwrap();
    next
}

#[test]
fn a_start_reads_the_newest_of_what_waits_and_knows_the_rest() {
    let scratch = Scratch::new();
    let count = fill(&scratch, 8 << 20);
    let config = BufferConfig {
        max_bytes: 1 << 30,
        ..config(BufferMode::Disk)
    };
    let mut opened = Opened::new(&scratch, &config);
    assert_eq!(opened.buffer.stats().unread_records, u64::from(count));
    assert_eq!(opened.numbers(), range(0..count));
    opened.buffer.confirm(None);
    opened.buffer.save_cursor();
    opened.buffer.release();
    opened.buffer.shut_down().unwrap();
    drop(opened);
    let mut opened = Opened::new(&scratch, &config);
    assert_eq!(opened.buffer.stats().unread_records, 0);
    assert!(opened.numbers().is_empty());
    assert!(opened.buffer.stats().file_bytes < 1 << 20, "space was given back");
}

/// What is not read at the start is checked when it is read.
#[test]
fn damage_far_behind_is_told_when_it_is_read() {
    let scratch = Scratch::new();
    let count = fill(&scratch, 4 << 20);
    let mut segments: Vec<PathBuf> = fs::read_dir(scratch.0.join("journal"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "log"))
        .collect();
    segments.sort();
    let damaged = &segments[segments.len() / 2];
    let mut bytes = fs::read(damaged).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(damaged, bytes).unwrap();
    let mut opened = Opened::new(&scratch, &config(BufferMode::Disk));
    assert_eq!(opened.buffer.stats().unread_records, u64::from(count));
    let reader = opened.reader.as_mut().unwrap();
    let error = loop {
        match reader.next_chunk(&opened.buffer) {
            Ok(chunk) => assert!(chunk.is_some(), "it is not skipped"),
            Err(error) => break error,
        }
    };
    let BufferError::Read(error) = error else {
        panic!("{error}")
    };
    let name = damaged.file_name().unwrap().to_string_lossy().into_owned();
    assert!(error.to_string().contains(&name), "{error}");
}

#[test]
fn marks_are_no_more_than_some_thousands_and_still_tell_what_is_dropped() {
    const BLOCK: u64 = 1 << 20;
    let mut queue = Queue::new(Place::default(), u64::MAX);
    for number in 1..=100_000 {
        queue.extend(number * BLOCK, 10);
    }
    assert!((1000..5000).contains(&queue.marks().len()), "{}", queue.marks().len());
    queue.give_up_oldest(50_000 * BLOCK);
    let dropped = queue.skip_given_up();
    assert!((500_000..510_000).contains(&dropped), "{dropped}");
    assert_eq!(queue.read.base, dropped / 10 * BLOCK);
    assert_eq!(queue.unread_records() + dropped, 1_000_000);
}

#[test]
fn purging_drops_what_nobody_has_read() {
    let scratch = Scratch::new();
    let mut opened = Opened::new(&scratch, &config(BufferMode::Disk));
    let ticket = opened.append(0..10).unwrap();
    opened.wait(ticket);
    assert_eq!(opened.numbers().len(), 10);
    opened.append(10..30).unwrap();
    assert_eq!(opened.buffer.purge(), 20);
    let ticket = opened.append(30..35).unwrap();
    opened.wait(ticket);
    assert_eq!(opened.numbers(), range(30..35));
}

#[test]
fn threads_append_side_by_side_and_each_keeps_its_order() {
    let scratch = Scratch::new();
    let config = BufferConfig {
        max_bytes: 1 << 30,
        ..config(BufferMode::Disk)
    };
    let mut opened = Opened::new(&scratch, &config);
    const EACH: u32 = 5000;
    let buffer = &opened.buffer;
    std::thread::scope(|scope| {
        for thread in 0..4 {
            scope.spawn(move || {
                let mut records = Records::new();
                for number in 0..EACH {
                    let number = thread * EACH + number;
                    records.push(0, 0, &[Some(&number.to_le_bytes())]);
                    if number.is_multiple_of(9) {
                        buffer.append(&mut records).unwrap();
                    }
                }
                buffer.append(&mut records).unwrap();
            });
        }
    });
    let ticket = Ticket(opened.buffer.inner.appended.load(Acquire));
    opened.wait(ticket);
    let read = opened.numbers();
    for thread in 0..4 {
        let of_thread: Vec<u32> = read.iter().copied().filter(|number| number / EACH == thread).collect();
        assert_eq!(of_thread, range(thread * EACH..(thread + 1) * EACH));
    }
}
