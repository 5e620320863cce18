//! The buffer of an action: what was published and is not yet confirmed by the sink.
//!
//! Threads of the data plane append the records of a tick at once; one reader, the pump's, takes them in the same order and moves
//! the cursor behind what is done. With `disk` every chunk goes to a journal of the action's own, and the newest ones stay in
//! memory too, so that a pump that keeps up reads no disk. With `hybrid` chunks go to memory first and to the disk
//! beyond a size; then all go there until the disk has been read empty, which keeps the order.
//!
//! What the overflow policy drops is gone, unless fallback actions are to get it: then the newest wait in memory (`dropped.rs`) and the
//! oldest where they are until the pump has handed them over. Tickets of such records are due when that is done.
//!
//! What the target turns away again and again is *set aside* by the pump, so that it does not hold what comes later (`aside.rs`).
//!
//! Appending takes one short mutex per call and never waits for the disk. Whoever was told [`Full`] is woken by the
//! callback of [`Buffer::open`], which also tells that more is committed.

mod aside;
mod disk;
mod dropped;
mod queue;
mod reader;

use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::{fmt, io};

use journal::{Appended, Batch, Health, Journal, Lsn, State};
use tokio::sync::Notify;

pub use disk::BufferError;
pub(crate) use dropped::DroppedChunk;
pub use dropped::NoRoom;
pub(crate) use queue::{Chunk, Cursor, Place};
pub(crate) use reader::{Reader, Returned};

use crate::config::{BufferConfig, BufferMode, Overflow, QueryMode};
use crate::record::{Record, Records};
use dropped::Dropped;
use queue::{FRAME_BYTES, Noted, Queue};

/// Appended and not yet written: beyond it appending waits for the disk.
const BACKLOG_BYTES_MAX: usize = 64 << 20;

/// What was given up in favour of what came later may take this, and an eighth of the quota, until the pump has got rid of it.
const GIVEN_UP_BYTES: u64 = 2 << 20;

/// Between two indexes, at least; with large segments it is half a segment.
const INDEX_EVERY_MIN: u64 = 256 << 10;

/// A publish that was appended may be acknowledged when [`Buffer::committed`] is at or above this.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket(pub u64);

/// Nothing was appended, because there is no room now. The callback tells when to try again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Full {
    Quota {
        max_bytes: u64,
    },
    /// The disk does not take what was appended fast enough.
    Behind,
    Disk {
        because: String,
    },
}

impl fmt::Display for Full {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Full::Quota { max_bytes } => write!(f, "the buffer has reached its limit of {max_bytes} bytes"),
            Full::Behind => f.write_str("the disk is slower than what is published"),
            Full::Disk { because } => write!(f, "the disk does not take more: {because}"),
        }
    }
}

impl std::error::Error for Full {}

/// Numbers of a buffer. All but `queued_*` count from its opening.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BufferStats {
    pub appended_records: u64,
    pub appended_bytes: u64,
    /// Not yet read by the pump.
    pub unread_records: u64,
    /// Not yet confirmed, with what they take beside.
    pub queued_bytes: u64,
    pub dropped_oldest: u64,
    pub dropped_newest: u64,
    pub dropped_disk: u64,
    /// Records for fallback actions for which there was no room either.
    pub undiverted: u64,
    /// Appends that were told [`Full`].
    pub refused_appends: u64,
    /// Of the files on the disk.
    pub file_bytes: u64,
}

/// Cheap to clone.
#[derive(Clone)]
pub struct Buffer {
    inner: Arc<Inner>,
}

struct Inner {
    config: BufferConfig,
    query_mode: QueryMode,
    queue: Mutex<Queue>,
    journal: Option<Journal>,
    /// Of `hybrid`: where in the queue and in the journal the part on the disk begins.
    spill: Mutex<Option<Spill>>,
    signals: Arc<Signals>,
    counters: Counters,
    /// Ends what is done with, for tickets of [`QueryMode::Sync`].
    confirmed: AtomicU64,
    appended: AtomicU64,
    /// Up to where the last index was written.
    indexed: AtomicU64,
    was_refused: AtomicBool,
    reader: Mutex<Option<Reader>>,
    /// Fallback actions are to get what is dropped.
    keeps_dropped: AtomicBool,
    dropped: Dropped,
    /// Where that is kept which was set aside, with [`BufferMode::Disk`].
    aside_path: Option<PathBuf>,
    has_aside: AtomicBool,
    /// Of what was set aside and is not done with.
    aside_bytes: AtomicU64,
}

#[derive(Clone, Copy, Debug)]
struct Spill {
    queue_base: u64,
    log_base: u64,
}

struct Signals {
    /// There may be more to read.
    readable: Notify,
    /// The journal has been asked to give back space.
    is_releasing: AtomicBool,
    /// Where the index stands with which the next start begins.
    checkpoint: AtomicU64,
    on_progress: Box<dyn Fn() + Send + Sync>,
}

#[derive(Default)]
struct Counters {
    appended_records: AtomicU64,
    appended_bytes: AtomicU64,
    dropped_oldest: AtomicU64,
    dropped_newest: AtomicU64,
    dropped_disk: AtomicU64,
    undiverted: AtomicU64,
    refused_appends: AtomicU64,
}

impl Buffer {
    /// Opens what is in `directory`, or begins there; with [`BufferMode::Memory`] it is not touched. `on_progress` is called when
    /// [`Buffer::committed`] has grown and when there is room again for whoever was told [`Full`], on any thread; it should only wake others.
    pub fn open(
        directory: &Path,
        config: &BufferConfig,
        query_mode: QueryMode,
        on_progress: impl Fn() + Send + Sync + 'static,
    ) -> Result<Buffer, BufferError> {
        let signals = Arc::new(Signals {
            readable: Notify::new(),
            is_releasing: AtomicBool::new(false),
            checkpoint: AtomicU64::new(0),
            on_progress: Box::new(on_progress),
        });
        let aside_path = (config.mode == BufferMode::Disk).then(|| aside::path(directory));
        let mut aside = Vec::new();
        let (journal, queue) = match config.mode {
            BufferMode::Memory => (None, Queue::new(Place::default(), config.quota_bytes())),
            BufferMode::Disk => {
                let (log, queue) = disk::open(directory, config)?;
                let in_journal = queue.cursor.position..queue.next.base;
                aside = aside::load(&aside::path(directory), &in_journal)?;
                (Some(start(log, &signals)?), queue)
            }
            BufferMode::Hybrid => {
                disk::wipe(directory)?;
                let (log, _) = disk::open(directory, config)?;
                (
                    Some(start(log, &signals)?),
                    Queue::new(Place::default(), config.quota_bytes()),
                )
            }
        };
        let aside_bytes = aside.iter().map(|record| record.len() as u64).sum::<u64>();
        let reader = Reader::new(journal.as_ref().map(Journal::reader), queue.cursor, aside);
        let inner = Inner {
            config: config.clone(),
            query_mode,
            confirmed: AtomicU64::new(queue.cursor.position),
            appended: AtomicU64::new(queue.next.base),
            indexed: AtomicU64::new(queue.next.base),
            queue: Mutex::new(queue),
            journal,
            spill: Mutex::new(None),
            signals,
            counters: Counters::default(),
            was_refused: AtomicBool::new(false),
            reader: Mutex::new(Some(reader)),
            keeps_dropped: AtomicBool::new(false),
            dropped: Dropped::default(),
            aside_path,
            has_aside: AtomicBool::new(aside_bytes > 0),
            aside_bytes: AtomicU64::new(aside_bytes),
        };
        Ok(Buffer { inner: Arc::new(inner) })
    }

    /// Takes all of the records, leaving `records` empty, or none of them. What is dropped by the overflow policy counts as
    /// taken; when fallback actions are to get it and there is no room for what they have not taken yet, nothing is.
    pub fn append(&self, records: &mut Records) -> Result<Ticket, Full> {
        if records.is_empty() {
            return Ok(Ticket(self.inner.appended.load(Acquire)));
        }
        match self.inner.append(records) {
            Ok(ticket) => Ok(ticket),
            Err(full) => self.inner.overflow(records, full),
        }
    }

    /// All tickets up to this may be acknowledged.
    pub fn committed(&self) -> Ticket {
        let stored = self.stored();
        match self.inner.query_mode {
            QueryMode::Async => stored,
            QueryMode::Sync => stored.min(Ticket(self.inner.confirmed.load(Acquire))),
        }
    }

    /// The buffer has all up to this where it keeps it, whatever the target has confirmed.
    pub fn stored(&self) -> Ticket {
        let inner = &*self.inner;
        let stored = match &inner.journal {
            Some(journal) if inner.config.mode == BufferMode::Disk => journal.committed().0,
            _ => inner.appended.load(Acquire),
        };
        Ticket(stored.min(inner.dropped.due_before()))
    }

    /// So many bytes would be taken now, if nobody else gives it any.
    pub fn has_room_for(&self, bytes: u64) -> bool {
        let inner = &*self.inner;
        match inner.config.overflow {
            Overflow::BackPressure => inner.obstacle(&inner.queue(), bytes).is_none(),
            Overflow::DropOldest | Overflow::DropNewest => inner.dropped.has_room_for(bytes as usize),
        }
    }

    /// Records that will never be tried, and of which fallback actions are to get what they carry. Takes all of them, leaving
    /// `records` empty, or none.
    pub fn divert(&self, records: &mut Records) -> Result<Ticket, NoRoom> {
        let ticket = self.inner.appended.load(Acquire);
        self.inner.dropped.keep(records, ticket)?;
        self.inner.signals.readable.notify_one();
        Ok(Ticket(ticket))
    }

    /// There was no room for so many records that were to be diverted.
    pub fn could_not_divert(&self, records: u64) {
        self.inner.counters.undiverted.fetch_add(records, Relaxed);
    }

    pub fn stats(&self) -> BufferStats {
        let inner = &*self.inner;
        let counters = &inner.counters;
        let aside_bytes = inner.aside_bytes.load(Relaxed);
        let (unread_records, queued_bytes) = {
            let queue = inner.queue();
            (queue.unread_records(), queue.used_bytes() + aside_bytes)
        };
        BufferStats {
            appended_records: counters.appended_records.load(Relaxed),
            appended_bytes: counters.appended_bytes.load(Relaxed),
            unread_records,
            queued_bytes,
            dropped_oldest: counters.dropped_oldest.load(Relaxed),
            dropped_newest: counters.dropped_newest.load(Relaxed),
            dropped_disk: counters.dropped_disk.load(Relaxed),
            undiverted: counters.undiverted.load(Relaxed),
            refused_appends: counters.refused_appends.load(Relaxed),
            file_bytes: inner.journal.as_ref().map_or(0, |journal| journal.stats().file_bytes),
        }
    }

    /// Saves the cursor and, with `disk`, syncs all that was appended. What is appended later is lost.
    pub fn shut_down(&self) -> Result<(), BufferError> {
        self.could_not_divert(self.inner.dropped.clear());
        self.save_cursor();
        match &self.inner.journal {
            Some(journal) => journal.clone().shut_down().map_err(BufferError::Close),
            None => Ok(()),
        }
    }

    /// There is one; `None` while somebody has it.
    pub(crate) fn take_reader(&self) -> Option<Reader> {
        self.inner.reader.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    pub(crate) fn put_back(&self, reader: Reader) {
        *self.inner.reader.lock().unwrap_or_else(PoisonError::into_inner) = Some(reader);
    }

    pub(crate) async fn readable(&self) {
        self.inner.signals.readable.notified().await;
    }

    /// All before the cursor is done with; `None`: all that was read. In memory only, until [`Buffer::save_cursor`].
    pub(crate) fn confirm(&self, cursor: Option<Cursor>) {
        let inner = &*self.inner;
        {
            let mut queue = inner.queue();
            let cursor = cursor.unwrap_or(queue.at_read());
            if cursor.position <= queue.cursor.position {
                return;
            }
            queue.set_cursor(cursor);
            inner.confirmed.store(cursor.position, Release);
        }
        if inner.was_refused.swap(false, AcqRel) || inner.query_mode == QueryMode::Sync {
            (inner.signals.on_progress)();
        }
    }

    /// Leaves the cursor in the journal, if it is not there: at a crash from now on nothing before it is sent again.
    pub(crate) fn save_cursor(&self) {
        let inner = &*self.inner;
        if let (Some(journal), BufferMode::Disk) = (&inner.journal, inner.config.mode) {
            let mut queue = inner.queue();
            if queue.cursor.position > queue.noted.position {
                inner.note_cursor(&mut queue, journal);
            }
        }
    }

    pub(crate) fn quota_bytes(&self) -> u64 {
        self.inner.config.quota_bytes()
    }

    /// A ticket of [`QueryMode::Sync`] is due when all before it is confirmed: nothing can be set aside.
    pub(crate) fn can_set_aside(&self) -> bool {
        self.inner.query_mode == QueryMode::Async
    }

    /// The cursor may move beyond these, in their order, and beyond nothing else that was set aside before. Returns them without what else
    /// their chunks have. Waits for the disk.
    pub(crate) fn set_aside(&self, records: &[Record]) -> io::Result<Vec<Record>> {
        let inner = &*self.inner;
        let copy = aside::copy(records);
        if let Some(path) = &inner.aside_path {
            match records.is_empty() {
                true => aside::remove(path)?,
                false => aside::save(path, &copy)?,
            }
        }
        inner.has_aside.store(!records.is_empty(), Relaxed);
        aside::read(&copy).ok_or_else(|| io::Error::other("what was written is no copy of the records"))
    }

    /// So many bytes of what was set aside are not done with.
    pub(crate) fn count_aside(&self, bytes: usize) {
        self.inner.aside_bytes.store(bytes as u64, Relaxed);
    }

    /// Nothing that was set aside is left.
    pub(crate) fn forget_aside(&self) {
        self.count_aside(0);
        if !self.inner.has_aside.load(Relaxed) {
            return;
        }
        if let Err(error) = self.set_aside(&[]) {
            tracing::warn!(%error, "messages that were set aside and are done with may come once more after a restart");
        }
    }

    /// Gives back the space of what is done with.
    pub(crate) fn release(&self) {
        self.inner.release();
    }

    /// Drops all that nobody has read yet, or that nobody has any more who had read it. Returns how many records it was.
    pub(crate) fn purge(&self) -> u64 {
        let unread = self.inner.queue().skip_unread();
        let mut reader = self.inner.reader.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(reader) = reader.as_mut() else {
            return unread;
        };
        let returned = std::mem::take(&mut reader.returned).len();
        if returned > 0 {
            self.confirm(None);
            self.forget_aside();
        }
        unread + returned as u64
    }

    /// From now on fallback actions are to get what is dropped.
    pub(crate) fn keep_dropped(&self) {
        self.inner.keeps_dropped.store(true, Release);
    }

    /// What stands before this was given up in favour of what came later.
    pub(crate) fn given_up_before(&self) -> u64 {
        self.inner.queue().given_up.base
    }

    /// The pump has got rid of so many that were given up.
    pub(crate) fn count_given_up(&self, records: u64) {
        self.inner.counters.dropped_oldest.fetch_add(records, Relaxed);
    }

    pub(crate) fn has_dropped(&self) -> bool {
        self.inner.dropped.due_before() < u64::MAX
    }

    /// What fallback actions are to get of what there was no room for. Say [`Buffer::took_dropped`] or [`Buffer::return_dropped`] before
    /// the next ones.
    pub(crate) fn take_dropped(&self) -> Vec<DroppedChunk> {
        self.inner.dropped.take()
    }

    /// They have it, or nothing can be done with it.
    pub(crate) fn took_dropped(&self) {
        self.inner.dropped.took();
        (self.inner.signals.on_progress)();
    }

    pub(crate) fn return_dropped(&self) {
        self.inner.dropped.put_back();
    }
}

/// Above the quota, when the oldest are dropped: for what was given up and is still there.
fn given_up_bytes_max(max_bytes: u64) -> u64 {
    max_bytes / 8 + GIVEN_UP_BYTES
}

fn start(log: journal::Log, signals: &Arc<Signals>) -> Result<Journal, BufferError> {
    let signals = Arc::clone(signals);
    disk::start(log, move || {
        signals.readable.notify_one();
        (signals.on_progress)();
    })
}

impl Inner {
    fn append(&self, records: &mut Records) -> Result<Ticket, Full> {
        let log_bytes = FRAME_BYTES + records.len() as u64;
        let count = u64::from(records.count());
        let mut batch = self.batch(records);
        let mut queue = self.queue();
        if let Some(full) = self.obstacle(&queue, log_bytes) {
            return Err(full);
        }
        let mut chunk = Chunk {
            place: queue.next,
            end: queue.next.base + log_bytes,
            records: records.count(),
            bytes: Arc::new(records.take()),
        };
        let end = match &self.journal {
            Some(journal) if self.config.mode == BufferMode::Disk => {
                self.note_cursor_if_due(&mut queue, journal);
                chunk.place = queue.next;
                let appended = journal.append(&mut batch);
                self.keep_hot(&mut queue, chunk, appended.end.0);
                self.index_if_due(&mut queue, journal);
                appended.end.0
            }
            Some(journal) => self.keep_or_spill(&mut queue, chunk, journal),
            None => {
                queue.extend(chunk.end, count);
                let end = chunk.end;
                queue.keep(chunk);
                end
            }
        };
        self.appended.store(end, Release);
        drop(queue);
        self.counters.appended_records.fetch_add(count, Relaxed);
        self.counters.appended_bytes.fetch_add(log_bytes, Relaxed);
        if self.config.mode != BufferMode::Disk {
            self.signals.readable.notify_one();
        }
        Ok(Ticket(end))
    }

    /// The chunk as the journal gets it, made before the mutex is taken.
    fn batch(&self, records: &Records) -> Batch {
        let mut batch = Batch::new();
        if self.config.mode == BufferMode::Disk {
            batch.record(|bytes| bytes.extend_from_slice(records.bytes()));
        }
        batch
    }

    fn keep_hot(&self, queue: &mut Queue, mut chunk: Chunk, end: u64) {
        chunk.end = end;
        queue.extend(end, u64::from(chunk.records));
        queue.keep(chunk);
        queue.shrink_hot(self.config.memory_bytes as usize);
    }

    fn keep_or_spill(&self, queue: &mut Queue, chunk: Chunk, journal: &Journal) -> u64 {
        let mut spill = self.spill();
        let end = chunk.end;
        queue.extend(end, u64::from(chunk.records));
        if spill.is_none() && queue.hot_bytes + chunk.bytes.capacity() <= self.config.memory_bytes as usize {
            queue.keep(chunk);
            return end;
        }
        let mut batch = Batch::new();
        batch.record(|bytes| bytes.extend_from_slice(&chunk.bytes));
        let appended = journal.append(&mut batch);
        spill.get_or_insert(Spill {
            queue_base: chunk.place.base,
            log_base: appended.base.0,
        });
        end
    }

    /// Why `bytes` more cannot be taken.
    fn obstacle(&self, queue: &Queue, bytes: u64) -> Option<Full> {
        let max_bytes = self.config.quota_bytes();
        let (used, kept) = (queue.used_bytes(), queue.kept_bytes());
        // A buffer that is empty takes anything: otherwise a long message would wait for ever.
        let is_above = used >= max_bytes || (used > 0 && used + bytes > max_bytes);
        if is_above || (kept > used && kept + bytes > max_bytes + given_up_bytes_max(max_bytes)) {
            return Some(Full::Quota { max_bytes });
        }
        let journal = self.journal.as_ref()?;
        if journal.health() != Health::Ok {
            return match journal.state() {
                State::Ok => None,
                State::Full { because } | State::Failed { because } => Some(Full::Disk { because }),
            };
        }
        (journal.backlog_bytes() > BACKLOG_BYTES_MAX).then_some(Full::Behind)
    }

    fn overflow(&self, records: &mut Records, full: Full) -> Result<Ticket, Full> {
        let counters = &self.counters;
        let counter = match (self.config.overflow, &full) {
            (Overflow::BackPressure, _) => return self.refuse(full),
            (Overflow::DropOldest, Full::Quota { .. }) => {
                self.give_up_oldest(FRAME_BYTES + records.len() as u64);
                if let Ok(ticket) = self.append(records) {
                    return Ok(ticket);
                }
                &counters.dropped_newest
            }
            (Overflow::DropNewest, Full::Quota { .. }) => &counters.dropped_newest,
            (_, Full::Behind | Full::Disk { .. }) => &counters.dropped_disk,
        };
        let (count, ticket) = (u64::from(records.count()), self.appended.load(Acquire));
        if self.keeps_dropped.load(Acquire) {
            if self.dropped.keep(records, ticket).is_err() {
                return self.refuse(full);
            }
            self.signals.readable.notify_one();
        }
        counter.fetch_add(count, Relaxed);
        records.clear();
        Ok(Ticket(ticket))
    }

    fn refuse(&self, full: Full) -> Result<Ticket, Full> {
        self.counters.refused_appends.fetch_add(1, Relaxed);
        self.was_refused.store(true, Release);
        Err(full)
    }

    /// What the pump has, it gives up itself; also what it has not read, if that goes to fallback actions.
    fn give_up_oldest(&self, bytes: u64) {
        {
            let mut queue = self.queue();
            queue.give_up_oldest(bytes);
            if !self.keeps_dropped.load(Acquire) {
                let skipped = queue.skip_given_up();
                self.counters.dropped_oldest.fetch_add(skipped, Relaxed);
            }
        }
        self.signals.readable.notify_one();
        self.release();
    }

    /// Gives back the space of what is done with.
    fn release(&self) {
        let Some(journal) = &self.journal else {
            return;
        };
        let Some(done) = self.done_in_log() else {
            return;
        };
        let signals = Arc::clone(&self.signals);
        if done.0 < journal.stats().first.0 + self.config.file_bytes() || signals.is_releasing.swap(true, AcqRel) {
            return;
        }
        match self.config.mode {
            // A start finds the records and the cursor by an index, which therefore stays.
            BufferMode::Disk if signals.checkpoint.load(Acquire) < done.0 => self.index(&mut self.queue(), journal),
            BufferMode::Disk => {}
            BufferMode::Memory | BufferMode::Hybrid => journal.set_checkpoint(done, |_| ()),
        }
        journal.truncate_before(done, move |result| {
            if let Err(error) = result {
                tracing::warn!(position = done.0, %error, "space of an action's buffer could not be given back; it is tried again");
            }
            signals.is_releasing.store(false, Release);
            (signals.on_progress)();
        });
    }

    /// Keeps short what a start has to read, however much waits.
    fn index_if_due(&self, queue: &mut Queue, journal: &Journal) {
        let every = (self.config.file_bytes() / 2).max(INDEX_EVERY_MIN);
        if queue.next.base - self.indexed.load(Relaxed) >= every {
            self.index(queue, journal);
        }
    }

    /// Writes an index into the journal, with which the next start begins as soon as it is on the disk.
    fn index(&self, queue: &mut Queue, journal: &Journal) {
        let batch = disk::index_batch(queue);
        let appended = self.append_note(queue, journal, batch);
        self.indexed.store(appended.end.0, Relaxed);
        let signals = Arc::clone(&self.signals);
        // While the disk is full it fails; the one before is good enough.
        journal.set_checkpoint_at(appended, move |result| {
            if result.is_ok() {
                signals.checkpoint.store(appended.base.0, Release);
            }
        });
    }

    /// With what is appended, once per commit: so it costs neither a sync nor a clock.
    fn note_cursor_if_due(&self, queue: &mut Queue, journal: &Journal) {
        if queue.cursor.position > queue.noted.position && queue.noted.end <= journal.committed().0 {
            self.note_cursor(queue, journal);
        }
    }

    fn note_cursor(&self, queue: &mut Queue, journal: &Journal) {
        let batch = disk::cursor_batch(queue.cursor);
        self.append_note(queue, journal, batch);
    }

    /// What stands in the log for the next start, the cursor among it, and of which nothing waits.
    fn append_note(&self, queue: &mut Queue, journal: &Journal, mut batch: Batch) -> Appended {
        let appended = journal.append(&mut batch);
        let (place, end) = (queue.next, appended.end.0);
        queue.extend(end, 0);
        if queue.read.base < place.base {
            queue.keep(Chunk {
                place,
                end,
                records: 0,
                bytes: Arc::default(),
            });
        } else {
            queue.advance(end, 0);
            if queue.cursor.place == place {
                queue.set_cursor(queue.at_read());
            }
        }
        queue.noted = Noted {
            position: queue.cursor.position,
            end,
        };
        self.appended.store(end, Release);
        appended
    }

    /// Where the journal may be cut.
    fn done_in_log(&self) -> Option<Lsn> {
        let queue = self.queue();
        match (self.config.mode, *self.spill()) {
            (BufferMode::Disk, _) => Some(Lsn(queue.cursor.place.base)),
            // Nothing of it is left to be read: what is being sent is in memory.
            (_, None) => self.journal.as_ref().map(Journal::committed),
            (_, Some(spill)) => queue
                .read
                .base
                .checked_sub(spill.queue_base)
                .map(|read| Lsn(spill.log_base + read)),
        }
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn spill(&self) -> MutexGuard<'_, Option<Spill>> {
        self.spill.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
