//! The buffer of an action: messages that the sink has not confirmed yet.
//!
//! Data-plane threads append the records of a tick together. The pump is the only reader: it reads chunks in the same
//! order and moves the cursor behind finished records.
//!
//! - `disk`: each chunk is written to the action's own journal. The newest chunks stay in memory as well, so that a
//!   pump that keeps up reads no disk.
//! - `hybrid`: chunks stay in memory up to a limit. Beyond it, all chunks go to the disk until the pump has read the
//!   disk part completely, which preserves the order.
//!
//! The overflow policy drops records. If fallback actions are to receive them, the newest wait in memory
//! (`dropped.rs`), and the oldest stay in the buffer until the pump has passed them on. Their tickets are due after
//! that.
//!
//! The pump *sets aside* records that the target rejects repeatedly, so that they do not block later ones (`aside.rs`).
//!
//! Appending takes one short mutex per call and never waits for the disk. After [`BufferFull`], the callback of
//! [`ActionBuffer::open`] signals when to retry. It also signals commits.

mod aside;
mod disk;
mod dropped;
mod queue;
mod reader;

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;
use std::{fmt, io};

use journal::{Appended, DIRECTORY_NAME, Journal, LogBatch, LogHealth, LogState, Lsn};
use tokio::sync::Notify;

pub use disk::BufferError;
pub(crate) use dropped::DroppedChunk;
pub use dropped::FallbackQueueFull;
pub(crate) use queue::{BlockStart, BufferCursor, RecordChunk};
pub(crate) use reader::{BufferReader, ReturnedRecord};

use crate::config::{BufferConfig, BufferMode, Overflow, QueryMode};
use crate::record::{Record, Records};
use dropped::FallbackQueue;
use queue::{BufferQueue, FRAME_BYTES, LastRecoveryRecord};

/// Maximum size of appended and unwritten data. Beyond it, appending fails with [`BufferFull::DiskTooSlow`].
const BACKLOG_BYTES_MAX: usize = 64 << 20;

/// Space for evicted records that the pump has not removed yet, in addition to an eighth of the quota.
const EVICTED_BYTES: u64 = 2 << 20;

/// Minimum distance of two indexes. With large segments it is half a segment.
const INDEX_EVERY_MIN: u64 = 256 << 10;

/// Ticket of an append. Its publish may be acknowledged when [`ActionBuffer::committed`] has reached it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct AppendTicket(pub u64);

/// The buffer has no space. Nothing was appended. The callback signals when to retry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BufferFull {
    Quota {
        max_bytes: u64,
    },
    /// The disk is slower than the appends.
    DiskTooSlow,
    Disk {
        reason: String,
    },
}

impl fmt::Display for BufferFull {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BufferFull::Quota { max_bytes } => write!(f, "the buffer has reached its limit of {max_bytes} bytes"),
            BufferFull::DiskTooSlow => f.write_str("the disk is slower than the incoming messages"),
            BufferFull::Disk { reason } => write!(f, "the disk accepts no more data: {reason}"),
        }
    }
}

impl std::error::Error for BufferFull {}

/// Counters and gauges of a buffer. Counters start when the buffer opens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BufferStats {
    pub appended_records: u64,
    pub appended_bytes: u64,
    /// Records that the pump has not read yet.
    pub unread_records: u64,
    /// Records that a pump has read and not finished.
    pub held_records: u64,
    /// Size of unconfirmed records, including their overhead.
    pub queued_bytes: u64,
    pub dropped_oldest: u64,
    pub dropped_newest: u64,
    pub dropped_disk: u64,
    /// Dropped records for which the queue of fallback actions was full.
    pub not_diverted: u64,
    /// Records that were refused, each counted once, and publishers that began to wait before their records.
    pub held_back: u64,
    /// Size of the files on the disk.
    pub file_bytes: u64,
}

/// A handle to the buffer. Cheap to clone.
#[derive(Clone)]
pub struct ActionBuffer {
    inner: Arc<BufferInner>,
}

struct BufferInner {
    directory: PathBuf,
    /// Why the buffer could not be opened.
    unavailable: Option<String>,
    restored: OnceLock<Restored>,
    config: BufferConfig,
    query_mode: QueryMode,
    queue: Mutex<BufferQueue>,
    journal: Option<Journal>,
    /// For `hybrid`: where the part on the disk begins.
    spill: Mutex<Option<Spill>>,
    signals: Arc<Signals>,
    counters: BufferCounters,
    /// End of the confirmed records, for tickets of [`QueryMode::Sync`].
    confirmed: AtomicU64,
    appended: AtomicU64,
    /// End of the last index record.
    indexed: AtomicU64,
    /// Publishers have begun to wait for space since the cursor moved last.
    was_refused: AtomicBool,
    /// Refused lists of records that exist and were not appended since.
    waits: Arc<AtomicU64>,
    reader: Mutex<Option<BufferReader>>,
    /// Whether fallback actions receive dropped records.
    diverts_dropped: AtomicBool,
    dropped: FallbackQueue,
    /// Path of the side file with [`BufferMode::Disk`].
    aside_path: Option<PathBuf>,
    has_aside: AtomicBool,
    /// Size of the unfinished records that were set aside.
    aside_bytes: AtomicU64,
}

/// Records of a previous buffer with the same files, which that one had not committed.
struct Restored {
    /// Previous tickets up to this one were committed when this buffer was opened.
    opened_at: u64,
    /// The later ones are committed with this ticket.
    end: u64,
    /// Records that could not be appended, because this buffer could not be opened.
    waiting: Vec<RecordChunk>,
}

/// The part on the disk. Its start is a position in the queue and in the journal.
#[derive(Debug)]
struct Spill {
    queue_base: u64,
    log_base: u64,
    /// The newest chunks, which the journal has not committed yet.
    uncommitted: VecDeque<RecordChunk>,
}

impl Spill {
    /// Returns the position in the journal of one in the queue.
    fn in_log(&self, position: u64) -> Lsn {
        Lsn(self.log_base + (position - self.queue_base))
    }

    /// Adds an appended chunk and removes those that are committed now.
    fn add(&mut self, chunk: RecordChunk, committed: Lsn) {
        while self
            .uncommitted
            .front()
            .is_some_and(|first| self.in_log(first.end) <= committed)
        {
            self.uncommitted.pop_front();
        }
        self.uncommitted.push_back(chunk);
    }
}

struct Signals {
    /// There may be more to read.
    readable: Notify,
    /// A truncation of the journal is in progress.
    is_releasing: AtomicBool,
    /// Position of the index that recovery begins with.
    checkpoint: AtomicU64,
    on_progress: Box<dyn Fn() + Send + Sync>,
}

#[derive(Default)]
struct BufferCounters {
    appended_records: AtomicU64,
    appended_bytes: AtomicU64,
    dropped_oldest: AtomicU64,
    dropped_newest: AtomicU64,
    dropped_disk: AtomicU64,
    not_diverted: AtomicU64,
    held_back: AtomicU64,
}

impl ActionBuffer {
    /// Opens the buffer in `directory`, or creates it. With [`BufferMode::Memory`] the directory is not used.
    ///
    /// `on_progress` is called on any thread when [`ActionBuffer::committed`] has grown, and when there is space again
    /// after it was missing. It should only wake other tasks.
    pub fn open(
        directory: &Path,
        config: &BufferConfig,
        query_mode: QueryMode,
        on_progress: impl Fn() + Send + Sync + 'static,
    ) -> Result<ActionBuffer, BufferError> {
        ActionBuffer::open_after(None, directory, config, query_mode, Duration::ZERO, on_progress)
    }

    /// Opens the buffer like [`ActionBuffer::open`]. `previous` is the closed buffer with the same directory, to which
    /// [`ActionBuffer::restore`] will be applied. Without it, a hybrid buffer deletes its files. `commit_interval` is
    /// that of the journal.
    pub fn open_after(
        previous: Option<&ActionBuffer>,
        directory: &Path,
        config: &BufferConfig,
        query_mode: QueryMode,
        commit_interval: Duration,
        on_progress: impl Fn() + Send + Sync + 'static,
    ) -> Result<ActionBuffer, BufferError> {
        let signals = Signals::new(on_progress);
        let mut aside = Vec::new();
        let (journal, queue) = match config.mode {
            BufferMode::Memory => (None, BufferQueue::new(BlockStart::default(), config.quota_bytes())),
            BufferMode::Disk => {
                let (log, queue) = disk::open(directory, config, commit_interval)?;
                let in_journal = queue.cursor.position..queue.next.base;
                aside = aside::load(&aside::path(directory), &in_journal)?;
                (Some(start(log, &signals)?), queue)
            }
            BufferMode::Hybrid => {
                if previous.is_none_or(|it| it.inner.config.mode != BufferMode::Hybrid) {
                    disk::wipe(directory)?;
                }
                let (log, _) = disk::open(directory, config, commit_interval)?;
                (
                    Some(start(log, &signals)?),
                    BufferQueue::new(BlockStart::default(), config.quota_bytes()),
                )
            }
        };
        let content = Content { journal, queue, aside };
        Ok(ActionBuffer::new(directory, config, query_mode, signals, Ok(content)))
    }

    /// Creates a replacement for a buffer that cannot be opened for this reason. Every append fails with
    /// [`BufferFull::Disk`], so that the overflow policy applies. The files are not touched.
    pub fn unavailable(
        directory: &Path,
        config: &BufferConfig,
        query_mode: QueryMode,
        reason: String,
        on_progress: impl Fn() + Send + Sync + 'static,
    ) -> ActionBuffer {
        let signals = Signals::new(on_progress);
        ActionBuffer::new(directory, config, query_mode, signals, Err(reason))
    }

    fn new(
        directory: &Path,
        config: &BufferConfig,
        query_mode: QueryMode,
        signals: Arc<Signals>,
        content: Result<Content, String>,
    ) -> ActionBuffer {
        let aside_path = (content.is_ok() && config.mode == BufferMode::Disk).then(|| aside::path(directory));
        let (content, unavailable) = match content {
            Ok(content) => (content, None),
            Err(reason) => (Content::empty(config), Some(reason)),
        };
        let Content {
            journal,
            mut queue,
            aside,
        } = content;
        queue.held_records = aside.len() as u64;
        let aside_bytes = aside.iter().map(|record| record.len() as u64).sum::<u64>();
        let reader = BufferReader::new(journal.as_ref().map(Journal::reader), queue.cursor, aside);
        let inner = BufferInner {
            directory: directory.to_owned(),
            unavailable,
            restored: OnceLock::new(),
            config: config.clone(),
            query_mode,
            confirmed: AtomicU64::new(queue.cursor.position),
            appended: AtomicU64::new(queue.next.base),
            indexed: AtomicU64::new(queue.next.base),
            queue: Mutex::new(queue),
            journal,
            spill: Mutex::new(None),
            signals,
            counters: BufferCounters::default(),
            was_refused: AtomicBool::new(false),
            waits: Arc::default(),
            reader: Mutex::new(Some(reader)),
            diverts_dropped: AtomicBool::new(false),
            dropped: FallbackQueue::default(),
            aside_path,
            has_aside: AtomicBool::new(aside_bytes > 0),
            aside_bytes: AtomicU64::new(aside_bytes),
        };
        ActionBuffer { inner: Arc::new(inner) }
    }

    /// Appends all of the records and empties `records`, or appends none. Records that the overflow policy drops count
    /// as accepted. If fallback actions are to receive them and their queue is full, the append fails.
    pub fn append(&self, records: &mut Records) -> Result<AppendTicket, BufferFull> {
        if records.is_empty() {
            return Ok(AppendTicket(self.inner.appended.load(Acquire)));
        }
        match self.inner.append(records) {
            Ok(ticket) => Ok(ticket),
            Err(full) => self.inner.overflow(records, full),
        }
    }

    /// Returns the highest ticket that may be acknowledged.
    pub fn committed(&self) -> AppendTicket {
        let stored = self.stored();
        match self.inner.query_mode {
            QueryMode::Async => stored,
            QueryMode::Sync => stored.min(AppendTicket(self.inner.confirmed.load(Acquire))),
        }
    }

    /// Returns the highest ticket whose records are stored, whether or not the target has confirmed them. After a
    /// failure, a buffer that may drop records does not make publishers wait for those that it could not store.
    pub fn stored(&self) -> AppendTicket {
        let inner = &*self.inner;
        let stored = match &inner.journal {
            Some(journal) if inner.config.mode == BufferMode::Disk && !inner.has_failed_and_drops(journal) => {
                journal.committed().0
            }
            _ => inner.appended.load(Acquire),
        };
        AppendTicket(stored.min(inner.dropped.due_before()))
    }

    /// Returns why the buffer accepts no records until it is opened again: it could not be opened, or its journal has
    /// failed. The text names the files.
    pub fn failure(&self) -> Option<String> {
        let inner = &*self.inner;
        let reason = match (&inner.unavailable, &inner.journal) {
            (Some(reason), _) => reason.clone(),
            (None, Some(journal)) if journal.health() == LogHealth::Failed => match journal.state() {
                LogState::Failed { reason } => reason,
                LogState::Ok | LogState::Full { .. } => return None,
            },
            (None, _) => return None,
        };
        Some(format!("{}: {reason}", inner.directory.join(DIRECTORY_NAME).display()))
    }

    /// Continues with the records of `previous`, a closed buffer of the same mode and with the same files, that these
    /// files do not contain. Call it once, before anything is appended or read. Opening the files has rewritten and
    /// synced their content.
    pub fn restore(&self, previous: &ActionBuffer) {
        match self.inner.config.mode {
            mode if mode != previous.inner.config.mode => {}
            BufferMode::Disk => self.append_uncommitted(previous),
            BufferMode::Memory | BufferMode::Hybrid => self.take_over(previous),
        }
    }

    /// Takes the queue and the unfinished records of the previous buffer, and appends those that its journal has not
    /// committed.
    fn take_over(&self, previous: &ActionBuffer) {
        let (inner, previous) = (&*self.inner, &*previous.inner);
        let mut queue = inner.queue();
        std::mem::swap(&mut *queue, &mut *previous.queue());
        inner.appended.store(queue.next.base, Release);
        inner.confirmed.store(queue.cursor.position, Release);
        let spill = previous.spill().take();
        if let (Some(journal), Some(spill)) = (&inner.journal, &spill) {
            let opened_at = journal.committed();
            for chunk in spill
                .uncommitted
                .iter()
                .filter(|chunk| spill.in_log(chunk.end) > opened_at)
            {
                append_chunk(journal, chunk);
            }
        }
        *inner.spill() = spill;
        let unfinished = previous.reader().take();
        if let (Some(reader), Some(unfinished)) = (inner.reader().as_mut(), unfinished) {
            reader.continue_after(unfinished);
        }
    }

    fn append_uncommitted(&self, previous: &ActionBuffer) {
        let inner = &*self.inner;
        let mut queue = inner.queue();
        let opened_at = queue.next.base;
        let mut waiting = previous.uncommitted();
        if inner.unavailable.is_none() {
            for chunk in waiting.drain(..).filter(|chunk| chunk.end > opened_at) {
                inner.put(&mut queue, inner.batch(&chunk.bytes), (chunk.records, chunk.bytes));
            }
        }
        let end = queue.next.base;
        let restored = Restored {
            opened_at,
            end,
            waiting,
        };
        // A second call has no effect.
        let _ = inner.restored.set(restored);
    }

    fn uncommitted(&self) -> Vec<RecordChunk> {
        let inner = &*self.inner;
        let Some(journal) = inner.journal.as_ref().filter(|_| inner.config.mode == BufferMode::Disk) else {
            return inner.restored.get().map(|it| it.waiting.clone()).unwrap_or_default();
        };
        let committed = journal.committed().0;
        let queue = inner.queue();
        let chunks = queue
            .in_memory
            .iter()
            .filter(|chunk| chunk.records > 0 && chunk.end > committed);
        chunks.cloned().collect()
    }

    /// Returns the ticket here for one of the previous buffer with the same files. `None` if its records are lost, as
    /// in memory.
    pub fn ticket_of_previous(&self, ticket: AppendTicket) -> Option<AppendTicket> {
        let inner = &*self.inner;
        let is_closed = inner.unavailable.is_some() && inner.config.mode == BufferMode::Disk;
        match inner.restored.get() {
            _ if is_closed && inner.config.overflow == Overflow::BackPressure => Some(ticket),
            _ if is_closed => Some(self.stored()),
            Some(restored) if ticket.0 > restored.opened_at => Some(AppendTicket(restored.end)),
            _ => (ticket <= self.stored()).then_some(ticket),
        }
    }

    /// Returns whether an append of this size would succeed now, if no other thread appends before. Without space,
    /// publishers have to wait, as after [`BufferFull`].
    pub fn has_space_for(&self, bytes: u64) -> bool {
        let has_space = self.full_reason(bytes).is_none();
        if !has_space {
            self.inner.was_refused.store(true, Release);
        }
        has_space
    }

    /// Counts a publisher that begins to wait before the buffer has received its records.
    pub fn count_held_back(&self) {
        self.inner.counters.held_back.fetch_add(1, Relaxed);
    }

    /// Returns why publishers wait: records of this size have no space, or refused records are larger and still wait.
    pub fn wait_reason(&self, bytes: u64) -> Option<String> {
        let has_waits = self.inner.waits.load(Relaxed) > 0;
        let larger = || has_waits.then(|| "a message needs more space than is free".to_owned());
        self.full_reason(bytes).or_else(larger)
    }

    /// Returns why publishers of records of this size have to wait.
    pub fn full_reason(&self, bytes: u64) -> Option<String> {
        let inner = &*self.inner;
        match inner.config.overflow {
            Overflow::BackPressure => Some(inner.obstacle(&inner.queue(), bytes)?.to_string()),
            Overflow::DropOldest | Overflow::DropNewest if inner.dropped.has_space_for(bytes as usize) => None,
            Overflow::DropOldest | Overflow::DropNewest => {
                Some("the fallback actions are slower than the incoming messages".to_owned())
            }
        }
    }

    /// Passes records to fallback actions without sending them. Accepts all of them and empties `records`, or none.
    pub fn divert(&self, records: &mut Records) -> Result<AppendTicket, FallbackQueueFull> {
        let ticket = self.inner.appended.load(Acquire);
        self.inner.dropped.push(records, ticket)?;
        self.inner.signals.readable.notify_one();
        Ok(AppendTicket(ticket))
    }

    /// Counts records that could not be diverted because the queue was full.
    pub fn count_rejected_diversions(&self, records: u64) {
        self.inner.counters.not_diverted.fetch_add(records, Relaxed);
    }

    pub fn stats(&self) -> BufferStats {
        let inner = &*self.inner;
        let counters = &inner.counters;
        let aside_bytes = inner.aside_bytes.load(Relaxed);
        let (unread_records, held_records, queued_bytes) = {
            let queue = inner.queue();
            let queued_bytes = queue.used_bytes() + aside_bytes;
            (queue.unread_records(), queue.held_records, queued_bytes)
        };
        BufferStats {
            appended_records: counters.appended_records.load(Relaxed),
            appended_bytes: counters.appended_bytes.load(Relaxed),
            unread_records,
            held_records,
            queued_bytes,
            dropped_oldest: counters.dropped_oldest.load(Relaxed),
            dropped_newest: counters.dropped_newest.load(Relaxed),
            dropped_disk: counters.dropped_disk.load(Relaxed),
            not_diverted: counters.not_diverted.load(Relaxed),
            held_back: counters.held_back.load(Relaxed),
            file_bytes: inner.journal.as_ref().map_or(0, |journal| journal.stats().file_bytes),
        }
    }

    /// Saves the cursor and, with `disk`, syncs all appended records. Records appended later are lost.
    pub fn shut_down(&self) -> Result<(), BufferError> {
        self.count_rejected_diversions(self.inner.dropped.clear());
        self.save_cursor();
        match &self.inner.journal {
            Some(journal) => journal.clone().shut_down().map_err(BufferError::Close),
            None => Ok(()),
        }
    }

    /// Takes the only reader. Returns `None` while another pump has it.
    pub(crate) fn take_reader(&self) -> Option<BufferReader> {
        self.inner.reader().take()
    }

    pub(crate) fn return_reader(&self, reader: BufferReader) {
        *self.inner.reader() = Some(reader);
    }

    pub(crate) async fn readable(&self) {
        self.inner.signals.readable.notified().await;
    }

    /// Marks everything before the cursor as finished; with `None`, everything that was read. The mark is in memory
    /// until [`ActionBuffer::save_cursor`].
    pub(crate) fn confirm(&self, cursor: Option<BufferCursor>) {
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

    /// Writes the cursor to the journal if it has moved. After a crash, records before it are not sent again.
    pub(crate) fn save_cursor(&self) {
        let inner = &*self.inner;
        if let (Some(journal), BufferMode::Disk) = (&inner.journal, inner.config.mode) {
            let mut queue = inner.queue();
            if queue.cursor.position > queue.last_recovery_record.position {
                inner.append_cursor(&mut queue, journal);
            }
        }
    }

    pub(crate) fn quota_bytes(&self) -> u64 {
        self.inner.config.quota_bytes()
    }

    /// Returns false for [`QueryMode::Sync`]: its tickets are due in order, so that no record may be passed over.
    pub(crate) fn can_set_aside(&self) -> bool {
        self.inner.query_mode == QueryMode::Async
    }

    /// Replaces the set of records that are set aside. The cursor may then pass them. Returns copies that do not share
    /// the memory of their chunks. Waits for the disk.
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
        aside::read(&copy).ok_or_else(|| io::Error::other("the written copy of the records is invalid"))
    }

    /// Sets the number of records that the pump has read and not finished.
    pub(crate) fn count_held(&self, records: u64) {
        self.inner.queue().held_records = records;
    }

    /// Sets the size of the unfinished records that are set aside.
    pub(crate) fn count_aside(&self, bytes: usize) {
        self.inner.aside_bytes.store(bytes as u64, Relaxed);
    }

    /// Deletes the side file after its last record is finished.
    pub(crate) fn clear_aside(&self) {
        self.count_aside(0);
        if !self.inner.has_aside.load(Relaxed) {
            return;
        }
        if let Err(error) = self.set_aside(&[]) {
            tracing::warn!(%error, "deleting the side file failed; its messages may be sent again after a restart");
        }
    }

    /// Frees the space of finished records.
    pub(crate) fn release(&self) {
        self.inner.release();
    }

    /// Drops all records that are unread, or that a stopped pump has returned. Returns their number.
    pub(crate) fn purge(&self) -> u64 {
        let unread = self.inner.queue().skip_unread();
        let mut reader = self.inner.reader();
        let Some(reader) = reader.as_mut() else {
            return unread;
        };
        let returned = std::mem::take(&mut reader.returned).len();
        self.count_held(0);
        if returned > 0 {
            self.confirm(None);
            self.clear_aside();
        }
        unread + returned as u64
    }

    /// Passes dropped records to fallback actions from now on.
    pub(crate) fn divert_dropped(&self) {
        self.inner.diverts_dropped.store(true, Release);
    }

    /// Returns the position before which records are evicted in favour of later ones.
    pub(crate) fn evicted_before(&self) -> u64 {
        self.inner.queue().evicted.base
    }

    /// Counts evicted records that the pump has removed.
    pub(crate) fn count_evicted(&self, records: u64) {
        self.inner.counters.dropped_oldest.fetch_add(records, Relaxed);
    }

    pub(crate) fn has_dropped(&self) -> bool {
        self.inner.dropped.due_before() < u64::MAX
    }

    /// Returns the dropped records for fallback actions. Call [`ActionBuffer::finish_dropped`] or
    /// [`ActionBuffer::return_dropped`] before the next call.
    pub(crate) fn take_dropped(&self) -> Vec<DroppedChunk> {
        self.inner.dropped.take()
    }

    /// Removes the records that [`ActionBuffer::take_dropped`] returned.
    pub(crate) fn finish_dropped(&self) {
        self.inner.dropped.remove_taken();
        (self.inner.signals.on_progress)();
    }

    pub(crate) fn return_dropped(&self) {
        self.inner.dropped.return_taken();
    }
}

/// Returns the space above the quota for evicted records that are not removed yet.
fn evicted_bytes_max(max_bytes: u64) -> u64 {
    max_bytes / 8 + EVICTED_BYTES
}

/// The stored records that opening a buffer has found.
struct Content {
    journal: Option<Journal>,
    queue: BufferQueue,
    /// Records that were set aside.
    aside: Vec<Record>,
}

impl Content {
    fn empty(config: &BufferConfig) -> Content {
        Content {
            journal: None,
            queue: BufferQueue::new(BlockStart::default(), config.quota_bytes()),
            aside: Vec::new(),
        }
    }
}

impl Signals {
    fn new(on_progress: impl Fn() + Send + Sync + 'static) -> Arc<Signals> {
        Arc::new(Signals {
            readable: Notify::new(),
            is_releasing: AtomicBool::new(false),
            checkpoint: AtomicU64::new(0),
            on_progress: Box::new(on_progress),
        })
    }
}

fn start(log: journal::RecordLog, signals: &Arc<Signals>) -> Result<Journal, BufferError> {
    let signals = Arc::clone(signals);
    disk::start(log, move || {
        signals.readable.notify_one();
        (signals.on_progress)();
    })
}

impl BufferInner {
    fn append(&self, records: &mut Records) -> Result<AppendTicket, BufferFull> {
        let log_bytes = FRAME_BYTES + records.len() as u64;
        let count = u64::from(records.count());
        let batch = self.batch(records.bytes());
        let mut queue = self.queue();
        if let Some(full) = self.obstacle(&queue, log_bytes) {
            return Err(full);
        }
        if let (Some(journal), BufferMode::Disk) = (&self.journal, self.config.mode) {
            self.append_cursor_if_due(&mut queue, journal);
        }
        let records = (records.count(), Arc::new(records.take()));
        let end = self.put(&mut queue, batch, records);
        drop(queue);
        self.counters.appended_records.fetch_add(count, Relaxed);
        self.counters.appended_bytes.fetch_add(log_bytes, Relaxed);
        if self.config.mode != BufferMode::Disk {
            self.signals.readable.notify_one();
        }
        Ok(AppendTicket(end))
    }

    /// Appends a chunk without checking for space. Returns its end.
    fn put(&self, queue: &mut BufferQueue, mut batch: LogBatch, (records, bytes): (u32, Arc<Vec<u8>>)) -> u64 {
        let chunk = RecordChunk {
            block: queue.next,
            end: queue.next.base + FRAME_BYTES + bytes.len() as u64,
            records,
            bytes,
        };
        let end = match &self.journal {
            Some(journal) if self.config.mode == BufferMode::Disk => {
                let appended = journal.append(&mut batch);
                self.store_hot(queue, chunk, appended.end.0, journal.committed().0);
                self.index_if_due(queue, journal);
                appended.end.0
            }
            Some(journal) => self.store_or_spill(queue, chunk, journal),
            None => {
                queue.extend(chunk.end, u64::from(records));
                let end = chunk.end;
                queue.push_hot(chunk);
                end
            }
        };
        self.appended.store(end, Release);
        end
    }

    /// Builds the journal record of a chunk, before the mutex is taken.
    fn batch(&self, records: &[u8]) -> LogBatch {
        let mut batch = LogBatch::new();
        if self.config.mode == BufferMode::Disk {
            batch.record(|bytes| bytes.extend_from_slice(records));
        }
        batch
    }

    /// Chunks stay in memory until they are committed, for [`ActionBuffer::restore`].
    fn store_hot(&self, queue: &mut BufferQueue, mut chunk: RecordChunk, end: u64, committed: u64) {
        chunk.end = end;
        queue.extend(end, u64::from(chunk.records));
        queue.push_hot(chunk);
        queue.shrink_hot(self.config.memory_bytes as usize, committed);
    }

    fn store_or_spill(&self, queue: &mut BufferQueue, chunk: RecordChunk, journal: &Journal) -> u64 {
        let mut spill = self.spill();
        let end = chunk.end;
        queue.extend(end, u64::from(chunk.records));
        if spill.is_none() && queue.hot_bytes + chunk.bytes.capacity() <= self.config.memory_bytes as usize {
            queue.push_hot(chunk);
            return end;
        }
        let appended = append_chunk(journal, &chunk);
        let spill = spill.get_or_insert_with(|| Spill {
            queue_base: chunk.block.base,
            log_base: appended.base.0,
            uncommitted: VecDeque::new(),
        });
        spill.add(chunk, journal.committed());
        end
    }

    /// Returns why `bytes` more cannot be appended.
    fn obstacle(&self, queue: &BufferQueue, bytes: u64) -> Option<BufferFull> {
        if let Some(reason) = &self.unavailable {
            return Some(BufferFull::Disk { reason: reason.clone() });
        }
        let max_bytes = self.config.quota_bytes();
        let (used, stored) = (queue.used_bytes(), queue.stored_bytes());
        // An empty buffer accepts a chunk of any size. Otherwise a long message would wait for ever.
        let is_above = used >= max_bytes || (used > 0 && used + bytes > max_bytes);
        if is_above || (stored > used && stored + bytes > max_bytes + evicted_bytes_max(max_bytes)) {
            return Some(BufferFull::Quota { max_bytes });
        }
        let journal = self.journal.as_ref()?;
        if journal.health() != LogHealth::Ok {
            return match journal.state() {
                LogState::Ok => None,
                LogState::Full { reason } | LogState::Failed { reason } => Some(BufferFull::Disk { reason }),
            };
        }
        (journal.backlog_bytes() > BACKLOG_BYTES_MAX).then_some(BufferFull::DiskTooSlow)
    }

    fn has_failed_and_drops(&self, journal: &Journal) -> bool {
        self.config.overflow != Overflow::BackPressure && journal.health() == LogHealth::Failed
    }

    fn overflow(&self, records: &mut Records, full: BufferFull) -> Result<AppendTicket, BufferFull> {
        let counters = &self.counters;
        let counter = match (self.config.overflow, &full) {
            (Overflow::BackPressure, _) => return self.refuse(records, full),
            (Overflow::DropOldest, BufferFull::Quota { .. }) => {
                self.evict_oldest(FRAME_BYTES + records.len() as u64);
                if let Ok(ticket) = self.append(records) {
                    return Ok(ticket);
                }
                &counters.dropped_newest
            }
            (Overflow::DropNewest, BufferFull::Quota { .. }) => &counters.dropped_newest,
            (_, BufferFull::DiskTooSlow | BufferFull::Disk { .. }) => &counters.dropped_disk,
        };
        let (count, ticket) = (u64::from(records.count()), self.appended.load(Acquire));
        if self.diverts_dropped.load(Acquire) {
            if self.dropped.push(records, ticket).is_err() {
                return self.refuse(records, full);
            }
            self.signals.readable.notify_one();
        }
        counter.fetch_add(count, Relaxed);
        records.clear();
        // Their publishers need not wait, and no commit may follow that would wake them.
        (self.signals.on_progress)();
        Ok(AppendTicket(ticket))
    }

    fn refuse(&self, records: &mut Records, full: BufferFull) -> Result<AppendTicket, BufferFull> {
        // A retry counts only the records that were added since.
        let new = records.refuse(&self.waits);
        self.counters.held_back.fetch_add(u64::from(new), Relaxed);
        self.was_refused.store(true, Release);
        Err(full)
    }

    /// Evicts the oldest records. The pump removes the evicted records that it has read, and all evicted records if
    /// fallback actions receive them.
    fn evict_oldest(&self, bytes: u64) {
        {
            let mut queue = self.queue();
            queue.evict_oldest(bytes);
            if !self.diverts_dropped.load(Acquire) {
                let skipped = queue.skip_evicted();
                self.counters.dropped_oldest.fetch_add(skipped, Relaxed);
            }
        }
        self.signals.readable.notify_one();
        self.release();
    }

    /// Frees the space of finished records.
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
            // Recovery needs an index before the oldest record, so that this index must not be deleted.
            BufferMode::Disk if signals.checkpoint.load(Acquire) < done.0 => self.index(&mut self.queue(), journal),
            BufferMode::Disk => {}
            BufferMode::Memory | BufferMode::Hybrid => journal.set_checkpoint(done, |_| ()),
        }
        journal.truncate_before(done, move |result| {
            if let Err(error) = result {
                tracing::warn!(position = done.0, %error, "freeing space of the action's buffer failed, retrying");
            }
            signals.is_releasing.store(false, Release);
            (signals.on_progress)();
        });
    }

    /// Writes an index at regular distances, which bounds the data that recovery reads.
    fn index_if_due(&self, queue: &mut BufferQueue, journal: &Journal) {
        let every = (self.config.file_bytes() / 2).max(INDEX_EVERY_MIN);
        if queue.next.base - self.indexed.load(Relaxed) >= every {
            self.index(queue, journal);
        }
    }

    /// Appends an index. Recovery begins there once it is committed.
    fn index(&self, queue: &mut BufferQueue, journal: &Journal) {
        let batch = disk::index_batch(queue);
        let appended = self.append_recovery_record(queue, journal, batch);
        self.indexed.store(appended.end.0, Relaxed);
        let signals = Arc::clone(&self.signals);
        // This fails while the disk is full. The previous index remains valid.
        journal.set_checkpoint_at(appended, move |result| {
            if result.is_ok() {
                signals.checkpoint.store(appended.base.0, Release);
            }
        });
    }

    /// Saves the cursor with the appended records, at most once per commit. This costs neither a sync nor a clock.
    fn append_cursor_if_due(&self, queue: &mut BufferQueue, journal: &Journal) {
        if queue.cursor.position > queue.last_recovery_record.position
            && queue.last_recovery_record.end <= journal.committed().0
        {
            self.append_cursor(queue, journal);
        }
    }

    fn append_cursor(&self, queue: &mut BufferQueue, journal: &Journal) {
        let batch = disk::cursor_batch(queue.cursor);
        self.append_recovery_record(queue, journal, batch);
    }

    /// Appends a recovery record, which contains the cursor and no waiting records.
    fn append_recovery_record(&self, queue: &mut BufferQueue, journal: &Journal, mut batch: LogBatch) -> Appended {
        let appended = journal.append(&mut batch);
        let (block, end) = (queue.next, appended.end.0);
        queue.extend(end, 0);
        if queue.read.base < block.base {
            queue.push_hot(RecordChunk {
                block,
                end,
                records: 0,
                bytes: Arc::default(),
            });
        } else {
            queue.advance(end, 0);
            if queue.cursor.block == block {
                queue.set_cursor(queue.at_read());
            }
        }
        queue.last_recovery_record = LastRecoveryRecord {
            position: queue.cursor.position,
            end,
        };
        self.appended.store(end, Release);
        appended
    }

    /// Returns the position before which the journal may be truncated.
    fn done_in_log(&self) -> Option<Lsn> {
        let queue = self.queue();
        match (self.config.mode, &*self.spill()) {
            (BufferMode::Disk, _) => Some(Lsn(queue.cursor.block.base)),
            // No record in the journal is unread; records in flight are in memory.
            (_, None) => self.journal.as_ref().map(Journal::committed),
            (_, Some(spill)) => queue
                .read
                .base
                .checked_sub(spill.queue_base)
                .map(|read| Lsn(spill.log_base + read)),
        }
    }

    fn queue(&self) -> MutexGuard<'_, BufferQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn spill(&self) -> MutexGuard<'_, Option<Spill>> {
        self.spill.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn reader(&self) -> MutexGuard<'_, Option<BufferReader>> {
        self.reader.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn append_chunk(journal: &Journal, chunk: &RecordChunk) -> Appended {
    let mut batch = LogBatch::new();
    batch.record(|bytes| bytes.extend_from_slice(&chunk.bytes));
    journal.append(&mut batch)
}

#[cfg(test)]
mod tests;
