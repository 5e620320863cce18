//! Tests of the buffer: order, at-least-once delivery over restarts and crashes, quota and overflow policies, hybrid
//! mode.

use std::path::PathBuf;
use std::sync::atomic::AtomicU32;
use std::sync::mpsc::{Receiver, channel};
use std::time::Instant;
use std::{env, fs, process, thread};

use super::*;
use crate::record::Record;

const PATIENCE: Duration = Duration::from_secs(20);

struct BufferTestDirectory(PathBuf);

impl BufferTestDirectory {
    fn new() -> BufferTestDirectory {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("tidewire-buffer-{}-{}", process::id(), COUNT.fetch_add(1, Relaxed));
        let path = env::temp_dir().join(name);
        fs::create_dir_all(&path).unwrap();
        BufferTestDirectory(path)
    }
}

impl Drop for BufferTestDirectory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A buffer with its progress signals.
struct OpenedBuffer {
    buffer: ActionBuffer,
    progress: Receiver<()>,
    reader: Option<BufferReader>,
}

impl OpenedBuffer {
    fn new(scratch: &BufferTestDirectory, config: &BufferConfig) -> OpenedBuffer {
        OpenedBuffer::with_interval(scratch, config, Duration::ZERO)
    }

    fn with_interval(scratch: &BufferTestDirectory, config: &BufferConfig, interval: Duration) -> OpenedBuffer {
        let (signal, progress) = channel();
        let on_progress = move || {
            let _ = signal.send(());
        };
        let opened = ActionBuffer::open_after(None, &scratch.0, config, QueryMode::Async, interval, on_progress);
        let buffer = opened.unwrap();
        let reader = buffer.take_reader();
        OpenedBuffer {
            buffer,
            progress,
            reader,
        }
    }

    fn append(&self, numbers: std::ops::Range<u32>) -> Result<AppendTicket, BufferFull> {
        let mut records = Records::new();
        for number in numbers {
            records.push(u64::from(number), 0, &[Some(&number.to_le_bytes()), Some(&[7; 100])]);
        }
        self.buffer.append(&mut records)
    }

    /// Retries until the buffer has space.
    fn append_patiently(&self, numbers: std::ops::Range<u32>) -> AppendTicket {
        loop {
            match self.append(numbers.clone()) {
                Ok(ticket) => return ticket,
                Err(_) => self.progress.recv_timeout(PATIENCE).expect("space"),
            }
        }
    }

    fn wait(&self, ticket: AppendTicket) {
        while self.buffer.committed() < ticket {
            self.progress.recv_timeout(PATIENCE).expect("a commit");
        }
    }

    /// Reads all committed records.
    fn read(&mut self) -> Vec<(u32, Record, BlockStart)> {
        let reader = self.reader.as_mut().unwrap();
        let mut read = Vec::new();
        while let Some(chunk) = reader.next_chunk(&self.buffer).unwrap() {
            let mut each = |record: Record| read.push((number(&record), record, chunk.block));
            reader.records(&chunk, &mut each).unwrap();
        }
        read
    }

    /// Waits for a committed chunk and reads it. Returns the number of its records.
    fn read_chunk(&mut self) -> u32 {
        let reader = self.reader.as_mut().unwrap();
        let chunk = loop {
            match reader.next_chunk(&self.buffer).unwrap() {
                Some(chunk) => break chunk,
                None => self.progress.recv_timeout(PATIENCE).expect("a commit"),
            }
        };
        let mut records = 0;
        reader.records(&chunk, &mut |_: Record| records += 1).unwrap();
        records
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
fn commits_within_the_interval_share_a_sync() {
    const INTERVAL: Duration = Duration::from_millis(300);
    let scratch = BufferTestDirectory::new();
    let begun = Instant::now();
    let opened = OpenedBuffer::with_interval(&scratch, &config(BufferMode::Disk), INTERVAL);
    opened.wait(opened.append(0..1).unwrap());
    let mut last = AppendTicket(0);
    for number in 1..50 {
        last = opened.append(number..number + 1).unwrap();
    }
    opened.wait(last);
    let elapsed = begun.elapsed();
    let syncs = opened.buffer.inner.journal.as_ref().unwrap().stats().syncs;
    assert!(elapsed >= INTERVAL, "the second sync came after {elapsed:?}");
    let syncs_max = 1 + elapsed.as_millis() / INTERVAL.as_millis();
    assert!(u128::from(syncs) <= syncs_max, "{syncs} syncs in {elapsed:?}");
}

#[test]
fn records_are_read_in_order_in_every_mode() {
    for mode in [BufferMode::Memory, BufferMode::Disk, BufferMode::Hybrid] {
        let scratch = BufferTestDirectory::new();
        let mut opened = OpenedBuffer::new(&scratch, &config(mode));
        let mut ticket = AppendTicket(0);
        for round in 0..4 {
            // With a disk, far more than the memory limit.
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
fn a_reopened_buffer_continues_at_the_cursor() {
    let scratch = BufferTestDirectory::new();
    let mut opened = OpenedBuffer::new(&scratch, &config(BufferMode::Disk));
    for part in 0..100 {
        opened.append(part * 10..part * 10 + 10).unwrap();
    }
    let ticket = opened.append(1000..1010).unwrap();
    opened.wait(ticket);
    let read = opened.read();
    let (_, record, block) = &read[456];
    opened.buffer.confirm(Some(BufferCursor {
        block: *block,
        position: record.position(),
    }));
    opened.buffer.shut_down().unwrap();
    drop(opened);
    for _ in 0..2 {
        let mut opened = OpenedBuffer::new(&scratch, &config(BufferMode::Disk));
        // A partly finished chunk counts with all of its records until it is read.
        assert_eq!(opened.buffer.stats().unread_records, 1010 - 450);
        assert_eq!(opened.numbers(), range(456..1010));
        assert_eq!(opened.buffer.stats().unread_records, 0);
        opened.buffer.shut_down().unwrap();
    }
}

/// After a crash, all committed records exist, without those before the last saved cursor.
// fault: Process killed; Action buffers
#[test]
fn committed_records_survive_a_crash() {
    let scratch = BufferTestDirectory::new();
    let copy = BufferTestDirectory::new();
    let mut opened = OpenedBuffer::new(&scratch, &config(BufferMode::Disk));
    let mut saved = 0;
    for part in 0..200 {
        let ticket = opened.append(part * 10..part * 10 + 10).unwrap();
        opened.wait(ticket);
        if part % 7 == 3 {
            let read = opened.read();
            let (number, record, block) = &read[read.len() / 2];
            opened.buffer.confirm(Some(BufferCursor {
                block: *block,
                position: record.position(),
            }));
            opened.buffer.save_cursor();
            opened.buffer.release();
            saved = *number;
        }
    }
    // The last saved cursor is on the disk once a later record is.
    let ticket = opened.append(2000..2001).unwrap();
    opened.wait(ticket);
    copy_directory(&scratch.0.join("journal"), &copy.0.join("journal"));
    let mut crashed = OpenedBuffer::new(&copy, &config(BufferMode::Disk));
    assert_eq!(crashed.numbers(), range(saved..2001));
}

/// The journal of the previous buffer failed before it committed its last records, and the first reopening failed.
#[test]
fn uncommitted_records_are_restored_after_a_reopen() {
    let (scratch, copy) = (BufferTestDirectory::new(), BufferTestDirectory::new());
    let config = config(BufferMode::Disk);
    let opened = OpenedBuffer::new(&scratch, &config);
    let committed = opened.append(0..10).unwrap();
    opened.wait(committed);
    copy_directory(&scratch.0.join("journal"), &copy.0.join("journal"));
    let uncommitted = opened.append(10..20).unwrap();
    let waiting: Vec<RecordChunk> = opened.buffer.inner.queue().in_memory.iter().cloned().collect();
    let failed = ActionBuffer::unavailable(&copy.0, &config, QueryMode::Async, "damaged".to_owned(), || ());
    let restored = Restored {
        opened_at: 0,
        end: 0,
        waiting,
    };
    assert!(failed.inner.restored.set(restored).is_ok());
    assert!(failed.failure().unwrap().contains("journal: damaged"));
    let mut records = Records::new();
    records.push(0, 0, &[Some(b"x")]);
    assert!(matches!(failed.append(&mut records), Err(BufferFull::Disk { .. })));
    let ticket = failed.ticket_of_previous(uncommitted).unwrap();
    assert!(ticket > failed.committed(), "its publisher waits");
    let mut reopened = OpenedBuffer::new(&copy, &config);
    reopened.buffer.restore(&failed);
    assert_eq!(reopened.buffer.ticket_of_previous(committed), Some(committed));
    reopened.wait(reopened.buffer.ticket_of_previous(uncommitted).unwrap());
    assert_eq!(reopened.numbers(), range(0..20));
}

/// The journal of the previous hybrid buffer failed before it committed its last records, and the first reopening
/// failed.
#[test]
fn a_hybrid_buffer_continues_after_a_reopen() {
    let (scratch, copy) = (BufferTestDirectory::new(), BufferTestDirectory::new());
    let config = config(BufferMode::Hybrid);
    let mut opened = OpenedBuffer::new(&scratch, &config);
    for number in 0..2_000 {
        opened.append(number..number + 1).unwrap();
    }
    let journal = opened.buffer.inner.journal.as_ref().expect("the mode has a journal");
    let spilled = opened
        .buffer
        .inner
        .spill()
        .as_ref()
        .expect("memory is full")
        .in_log(opened.buffer.stored().0);
    while journal.committed() < spilled {
        opened.progress.recv_timeout(PATIENCE).expect("the journal commits");
    }
    copy_directory(&scratch.0.join("journal"), &copy.0.join("journal"));
    // One chunk: with a second one, the buffer would forget the first if it were committed by then.
    opened.append(2_000..2_100).unwrap();
    let chunk = opened
        .reader
        .as_mut()
        .unwrap()
        .next_chunk(&opened.buffer)
        .unwrap()
        .expect("a chunk");
    let mut reader = opened.reader.take().unwrap();
    let block = Some(chunk.block);
    let mut returned = Vec::new();
    reader
        .records(&chunk, &mut |record| returned.push(ReturnedRecord { record, block }))
        .unwrap();
    reader.returned = returned;
    opened.buffer.return_reader(reader);
    let failed = ActionBuffer::unavailable(&copy.0, &config, QueryMode::Async, "damaged".to_owned(), || ());
    failed.restore(&opened.buffer);
    assert_eq!(failed.stats().unread_records, 2_099);
    let on_progress = || ();
    let reopened = ActionBuffer::open_after(
        Some(&failed),
        &copy.0,
        &config,
        QueryMode::Async,
        Duration::ZERO,
        on_progress,
    );
    let reopened = reopened.unwrap();
    reopened.restore(&failed);
    let mut reader = reopened.take_reader().unwrap();
    let returned: Vec<u32> = reader.returned.iter().map(|it| number(&it.record)).collect();
    assert_eq!(returned, [0]);
    let mut numbers = Vec::new();
    let deadline = Instant::now() + PATIENCE;
    while numbers.len() < 2_099 && Instant::now() < deadline {
        match reader.next_chunk(&reopened).unwrap() {
            Some(chunk) => reader
                .records(&chunk, &mut |record| numbers.push(number(&record)))
                .unwrap(),
            None => thread::yield_now(),
        }
    }
    assert_eq!(numbers, range(1..2_100));
}

/// The cursor is written with the next appended records, without an explicit save.
#[test]
fn records_confirmed_before_a_commit_are_not_sent_again() {
    let scratch = BufferTestDirectory::new();
    let mut opened = OpenedBuffer::new(&scratch, &config(BufferMode::Disk));
    for part in 0..50 {
        let ticket = opened.append(part * 10..part * 10 + 10).unwrap();
        opened.wait(ticket);
        let copy = BufferTestDirectory::new();
        copy_directory(&scratch.0.join("journal"), &copy.0.join("journal"));
        let mut crashed = OpenedBuffer::new(&copy, &config(BufferMode::Disk));
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
fn refused_records_count_once_and_wait_until_there_is_space() {
    for mode in [BufferMode::Memory, BufferMode::Disk, BufferMode::Hybrid] {
        let scratch = BufferTestDirectory::new();
        let config = config(mode);
        let mut opened = OpenedBuffer::new(&scratch, &config);
        let mut taken = 0;
        while opened.append(taken..taken + 50).is_ok() {
            taken += 50;
        }
        let before = opened.buffer.stats().held_back;
        // It needs three quarters of the buffer.
        let bytes = vec![7_u8; config.quota_bytes() as usize / 4 * 3];
        let mut large = Records::new();
        large.push(0, 0, &[Some(&bytes)]);
        for _ in 0..3 {
            opened.buffer.append(&mut large).unwrap_err();
            assert!(!opened.buffer.has_space_for(1 << 20), "{mode:?}");
        }
        assert_eq!(opened.buffer.stats().held_back, before + 1, "{mode:?}");
        // Retries count the records that were added since.
        large.push(0, 0, &[Some(b"small")]);
        opened.buffer.append(&mut large).unwrap_err();
        assert_eq!(opened.buffer.stats().held_back, before + 2, "{mode:?}");

        // Half of the space is not enough for the large record.
        let mut read = 0;
        while read < taken / 2 {
            read += opened.read_chunk();
        }
        opened.buffer.confirm(None);
        assert_eq!(opened.buffer.full_reason(1000), None, "{mode:?}");
        assert!(opened.buffer.wait_reason(1000).unwrap().contains("more space"));
        opened.buffer.append(&mut large).unwrap_err();

        while read < taken {
            read += opened.read_chunk();
        }
        opened.buffer.confirm(None);
        opened.buffer.append(&mut large).unwrap();
        assert_eq!(opened.buffer.wait_reason(1000), None, "{mode:?}");
        assert_eq!(opened.buffer.stats().held_back, before + 2, "{mode:?}");
    }
}

// fault: Disk full; Action buffers
#[test]
fn a_full_buffer_signals_when_it_has_space() {
    for mode in [BufferMode::Memory, BufferMode::Disk, BufferMode::Hybrid] {
        let scratch = BufferTestDirectory::new();
        let mut opened = OpenedBuffer::new(&scratch, &config(mode));
        let mut taken = 0;
        let full = loop {
            match opened.append(taken..taken + 50) {
                Ok(_) => taken += 50,
                Err(full) => break full,
            }
        };
        assert!(matches!(full, BufferFull::Quota { .. }), "{mode:?}: {full}");
        assert_eq!(opened.buffer.stats().held_back, 50);
        assert_eq!(opened.buffer.wait_reason(1), opened.buffer.full_reason(1), "{mode:?}");
        assert!(opened.buffer.full_reason(1 << 20).unwrap().contains("limit"));
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
            .expect("a signal that there is space");
        opened.append(taken..taken + 50).unwrap();
    }
}

#[test]
fn overflow_policies_drop_and_count_records() {
    for mode in [BufferMode::Memory, BufferMode::Disk, BufferMode::Hybrid] {
        for overflow in [Overflow::DropOldest, Overflow::DropNewest] {
            let scratch = BufferTestDirectory::new();
            let mut opened = OpenedBuffer::new(
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
                // Otherwise the disk would be the limit instead of the quota.
                opened.wait(ticket);
            }
            let stats = opened.buffer.stats();
            let mut numbers = opened.numbers();
            while (numbers.len() as u64) < stats.unread_records {
                opened.progress.recv_timeout(PATIENCE).expect("a commit");
                numbers.extend(opened.numbers());
            }
            let dropped = stats.dropped_oldest + stats.dropped_newest;
            assert_eq!(
                numbers.len() as u64 + dropped,
                u64::from(total),
                "{mode:?} {overflow:?} {stats:?}"
            );
            assert!(dropped > 0 && !numbers.is_empty());
            assert!(numbers.is_sorted());
            match overflow {
                Overflow::DropOldest => assert_eq!(numbers.last(), Some(&(total - 1)), "{mode:?}"),
                _ => assert_eq!(numbers, range(0..numbers.len() as u32), "{mode:?}"),
            }
        }
    }
}

#[test]
fn a_small_buffer_evicts_only_a_part_of_its_records() {
    for mode in [BufferMode::Memory, BufferMode::Disk, BufferMode::Hybrid] {
        let scratch = BufferTestDirectory::new();
        let small = BufferConfig {
            overflow: Overflow::DropOldest,
            max_bytes: 256 << 10,
            memory_bytes: 256 << 10,
            ..config(mode)
        };
        let opened = OpenedBuffer::new(&scratch, &small);
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
fn sync_tickets_are_due_after_the_sink_confirms() {
    let scratch = BufferTestDirectory::new();
    let (signal, progress) = channel();
    let on_progress = move || {
        let _ = signal.send(());
    };
    let buffer = ActionBuffer::open(&scratch.0, &config(BufferMode::Disk), QueryMode::Sync, on_progress).unwrap();
    let reader = buffer.take_reader();
    let mut opened = OpenedBuffer {
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

/// Fills segments of 64 KiB. Returns the number of records.
fn fill(scratch: &BufferTestDirectory, bytes: u64) -> u32 {
    let config = BufferConfig {
        max_bytes: 1 << 30,
        ..config(BufferMode::Disk)
    };
    let opened = OpenedBuffer::new(scratch, &config);
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
fn recovery_reads_only_the_end_of_a_long_buffer() {
    let scratch = BufferTestDirectory::new();
    let count = fill(&scratch, 8 << 20);
    let config = BufferConfig {
        max_bytes: 1 << 30,
        ..config(BufferMode::Disk)
    };
    let mut opened = OpenedBuffer::new(&scratch, &config);
    assert_eq!(opened.buffer.stats().unread_records, u64::from(count));
    assert_eq!(opened.numbers(), range(0..count));
    opened.buffer.confirm(None);
    opened.buffer.save_cursor();
    opened.buffer.release();
    opened.buffer.shut_down().unwrap();
    drop(opened);
    let mut opened = OpenedBuffer::new(&scratch, &config);
    assert_eq!(opened.buffer.stats().unread_records, 0);
    assert!(opened.numbers().is_empty());
    assert!(opened.buffer.stats().file_bytes < 1 << 20, "space was freed");
}

/// Segments that recovery skips are checked when they are read.
// fault: Damaged bytes; Action buffers
#[test]
fn damage_in_an_old_segment_is_reported_when_read() {
    let scratch = BufferTestDirectory::new();
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
    let mut opened = OpenedBuffer::new(&scratch, &config(BufferMode::Disk));
    assert_eq!(opened.buffer.stats().unread_records, u64::from(count));
    let reader = opened.reader.as_mut().unwrap();
    let error = loop {
        match reader.next_chunk(&opened.buffer) {
            Ok(chunk) => assert!(chunk.is_some(), "the damaged chunk is not skipped"),
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
fn marks_are_bounded_and_count_evicted_records() {
    const BLOCK: u64 = 1 << 20;
    let mut queue = BufferQueue::new(BlockStart::default(), u64::MAX);
    for number in 1..=100_000 {
        queue.extend(number * BLOCK, 10);
    }
    assert!((1000..5000).contains(&queue.marks().len()), "{}", queue.marks().len());
    queue.evict_oldest(50_000 * BLOCK);
    let dropped = queue.skip_evicted();
    assert!((500_000..510_000).contains(&dropped), "{dropped}");
    assert_eq!(queue.read.base, dropped / 10 * BLOCK);
    assert_eq!(queue.unread_records() + dropped, 1_000_000);
}

#[test]
fn purge_drops_unread_records() {
    let scratch = BufferTestDirectory::new();
    let mut opened = OpenedBuffer::new(&scratch, &config(BufferMode::Disk));
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
fn concurrent_appends_keep_the_order_of_each_thread() {
    let scratch = BufferTestDirectory::new();
    let config = BufferConfig {
        max_bytes: 1 << 30,
        ..config(BufferMode::Disk)
    };
    let mut opened = OpenedBuffer::new(&scratch, &config);
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
    let ticket = AppendTicket(opened.buffer.inner.appended.load(Acquire));
    opened.wait(ticket);
    let read = opened.numbers();
    for thread in 0..4 {
        let of_thread: Vec<u32> = read.iter().copied().filter(|number| number / EACH == thread).collect();
        assert_eq!(of_thread, range(thread * EACH..(thread + 1) * EACH));
    }
}
