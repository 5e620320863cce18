//! The half of the log that waits for the disk: writes the chunks of the tail, syncs, rolls to new segments, replaces
//! the checkpoint and removes old segments. Used by one thread at a time.
//!
//! Invariants:
//! - Bytes reach the file in the order of their positions.
//! - A segment is synced completely before anything is written to the next one.
//! - A failed sync ends the log, and so does a failed write unless the disk is full. Which pages the kernel still holds
//!   is then unknown, and a second sync may report success for lost data.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::time::Duration;
use std::{fmt, io};

use crate::checkpoint::{Checkpoint, CheckpointReplaceError};
use crate::config::{FlushPolicy, LogConfig};
use crate::layout::{BLOCK_HEADER_BYTES, BlockHeader, SEGMENT_HEADER_BYTES, SegmentHeader, u32_at};
use crate::lsn::Lsn;
use crate::segments::{LogSegment, SegmentList, newest_name, segment_name};
use crate::space::{DiskSpace, SPARE_NAME, Shortage, SpareSegment};
use crate::status::{LogState, LogStatus};
use crate::tail::{Appended, TailChunk};
use storage::{Storage, is_full, read_full, write_all};

/// Zeros are written behind the end of the log for commits of at most this size. The disk writes them in addition,
/// which is cheap only for small commits.
const SMALL_COMMIT_BYTES: usize = 16 << 10;

/// Zeros for the blocks behind the end of the log.
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// Why appended records are not committed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FlushError {
    /// No space. Unwritten chunks stay queued, and the next flush retries.
    Full { reason: String },
    /// The log has failed permanently.
    Failed { reason: String },
}

impl fmt::Display for FlushError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FlushError::Full { reason } => write!(f, "journal is full: {reason}"),
            FlushError::Failed { reason } => write!(f, "journal has failed: {reason}"),
        }
    }
}

impl std::error::Error for FlushError {}

pub(crate) struct LogWriter {
    storage: Arc<dyn Storage>,
    policy: FlushPolicy,
    commit_interval: Duration,
    checkpoint: Checkpoint,
    segments: Arc<SegmentList>,
    active: Arc<LogSegment>,
    space: DiskSpace,
    /// Chunks to write.
    queue: VecDeque<TailChunk>,
    /// Bytes of the first chunk that are written already.
    front_written_bytes: usize,
    written: Lsn,
    /// File offset in the active segment up to which zeros have been written.
    zeroed: u64,
    synced: Lsn,
    /// Buffers of written chunks, for reuse.
    free_buffers: Vec<Vec<u8>>,
    status: Arc<LogStatus>,
}

/// Initial state of a writer. All data in the segments is synced.
pub(crate) struct WriterStart {
    pub storage: Arc<dyn Storage>,
    pub config: LogConfig,
    pub checkpoint: Checkpoint,
    pub segments: Vec<Arc<LogSegment>>,
    pub next: Lsn,
    pub status: Arc<LogStatus>,
}

/// Why writing stopped before the end of the queue.
enum WriteStop {
    Full(Shortage),
    Failed(String),
}

impl LogWriter {
    pub fn new(start: WriterStart) -> LogWriter {
        let active = Arc::clone(start.segments.last().expect("a log has a segment"));
        let mut writer = LogWriter {
            space: DiskSpace::new(Arc::clone(&start.storage), &start.config),
            storage: start.storage,
            policy: start.config.policy,
            commit_interval: start.config.commit_interval,
            checkpoint: start.checkpoint,
            segments: Arc::new(SegmentList::new(start.segments)),
            active,
            queue: VecDeque::new(),
            front_written_bytes: 0,
            written: start.next,
            zeroed: 0,
            synced: start.next,
            free_buffers: Vec::new(),
            status: start.status,
        };
        writer.space.prepare(writer.segments.file_bytes());
        writer.space.measure();
        writer.publish(writer.space.shortage().cloned());
        writer
    }

    pub fn segments(&self) -> &Arc<SegmentList> {
        &self.segments
    }

    pub fn policy(&self) -> FlushPolicy {
        self.policy
    }

    pub fn commit_interval(&self) -> Duration {
        self.commit_interval
    }

    pub fn enqueue(&mut self, chunks: Vec<TailChunk>) {
        self.queue.extend(chunks);
    }

    pub fn has_queued(&self) -> bool {
        !self.queue.is_empty()
    }

    pub fn free_buffers(&mut self) -> &mut Vec<Vec<u8>> {
        &mut self.free_buffers
    }

    /// Writes the queue and, under [`FlushPolicy::Fsync`], syncs it. Prepares space for the next segment.
    pub fn flush(&mut self) -> Result<(), FlushError> {
        self.check_failed()?;
        if self.has_queued() {
            self.status.flushes.fetch_add(1, Relaxed);
        }
        let mut stopped = self.write_zeros().and_then(|()| self.write_queue());
        if self.policy == FlushPolicy::Fsync && !matches!(stopped, Err(WriteStop::Failed(_))) {
            stopped = self.sync_active().and(stopped);
        }
        self.space.prepare(self.segments.file_bytes());
        self.space.measure();
        self.publish_result(stopped)
    }

    /// Syncs written chunks: in the background under [`FlushPolicy::Os`], and at shutdown.
    pub fn sync(&mut self) -> Result<(), FlushError> {
        self.check_failed()?;
        match self.sync_active() {
            Ok(()) => {
                self.publish_positions();
                Ok(())
            }
            stopped => self.publish_result(stopped),
        }
    }

    /// Sets the checkpoint. `replay_from` is the start of a block or the end of the committed log. Syncs all written
    /// data first, under any policy: records after `replay_from` may repeat the state of earlier records, which are
    /// removed afterwards.
    pub fn set_checkpoint(&mut self, replay_from: Lsn) -> io::Result<()> {
        self.check_failed().map_err(io::Error::other)?;
        self.check_boundary(replay_from)?;
        if self.synced < self.written {
            self.sync().map_err(io::Error::other)?;
        }
        self.replace_checkpoint(Checkpoint {
            replay_from,
            ..self.checkpoint
        })
    }

    /// Records in the checkpoint how far the log is synced, so that the next start detects a missing end. Part of a
    /// clean shutdown.
    pub fn record_end(&mut self) -> io::Result<()> {
        self.check_failed().map_err(io::Error::other)?;
        if self.checkpoint.reached == self.synced {
            return Ok(());
        }
        self.replace_checkpoint(self.checkpoint)
    }

    /// Sets the checkpoint to the start of a batch, after that batch is durable.
    pub fn set_checkpoint_at(&mut self, batch: Appended) -> io::Result<()> {
        if batch.end > self.synced {
            self.sync().map_err(io::Error::other)?;
        }
        if batch.end > self.synced {
            return Err(io::Error::other("the batch has not been written yet"));
        }
        self.set_checkpoint(batch.base)
    }

    /// Removes the segments that end at or before both `lsn` and the checkpoint. Returns how many.
    pub fn truncate_before(&mut self, lsn: Lsn) -> io::Result<u32> {
        self.check_failed().map_err(io::Error::other)?;
        let limit = lsn.min(self.checkpoint.replay_from);
        let Some((count, first)) = self.segments.ending_before(limit) else {
            return Ok(0);
        };
        self.replace_checkpoint(Checkpoint {
            first,
            ..self.checkpoint
        })?;
        let mut result = Ok(count as u32);
        for segment in self.segments.remove_first(count) {
            // The next start removes a file that remains.
            if let Err(error) = self.storage.remove(&segment.name) {
                result = Err(error);
            }
        }
        self.publish_positions();
        result
    }

    fn check_failed(&self) -> Result<(), FlushError> {
        match self.status.state() {
            LogState::Failed { reason } => Err(FlushError::Failed { reason }),
            _ => Ok(()),
        }
    }

    fn write_queue(&mut self) -> Result<(), WriteStop> {
        while let Some(chunk) = self.queue.front() {
            let bytes = &chunk.bytes[self.front_written_bytes..];
            let offset = self.active.offset(self.written);
            let room = self.active.file_bytes.load(Relaxed).saturating_sub(offset);
            let fitting = fitting_blocks_bytes(bytes, room);
            if fitting == 0 {
                let block_bytes = first_block_bytes(bytes);
                self.ensure_space(block_bytes)?;
                continue;
            }
            write_all(&*self.active.file, offset, &bytes[..fitting])
                .map_err(|error| stop_of_write(&self.active.name, error))?;
            self.advance(fitting);
        }
        Ok(())
    }

    /// Writes zeros where the queue and the next small commits will be written. A preallocated block that was never
    /// written is marked as such, and the sync of its first write changes the metadata of the file system too. This
    /// doubles the time of a small commit.
    fn write_zeros(&mut self) -> Result<(), WriteStop> {
        let queued_bytes: usize = self.queue.iter().map(|chunk| chunk.bytes.len()).sum();
        if self.policy != FlushPolicy::Fsync || !(1..=SMALL_COMMIT_BYTES).contains(&queued_bytes) {
            return Ok(());
        }
        let begin = self.active.offset(self.written);
        let end = begin + queued_bytes as u64;
        let file_bytes = self.active.file_bytes.load(Relaxed);
        if end <= self.zeroed || end > file_bytes {
            return Ok(());
        }
        let end = (end + ZEROS.len() as u64).min(file_bytes);
        // Written data must not be overwritten. The rest of a chunk that a full disk has stopped is behind it.
        let begin = begin.max(self.zeroed);
        let mut at = begin;
        while at < end {
            let zeros = &ZEROS[..ZEROS.len().min((end - at) as usize)];
            match write_all(&*self.active.file, at, zeros) {
                // Only on a file system that cannot reserve space. Zeros are not needed.
                Err(error) if is_full(&error) => return Ok(()),
                result => result.map_err(|error| stop_of_write(&self.active.name, error))?,
            }
            at += zeros.len() as u64;
        }
        self.zeroed = end;
        Ok(())
    }

    fn advance(&mut self, bytes: usize) {
        self.written.0 += bytes as u64;
        self.status.written_bytes.fetch_add(bytes as u64, Relaxed);
        self.front_written_bytes += bytes;
        let is_done = |chunk: &mut TailChunk| self.front_written_bytes == chunk.bytes.len();
        if let Some(chunk) = self.queue.pop_front_if(is_done) {
            self.front_written_bytes = 0;
            self.free_buffers.push(chunk.bytes);
        }
    }

    fn ensure_space(&mut self, block_bytes: u64) -> Result<(), WriteStop> {
        let bytes = SEGMENT_HEADER_BYTES as u64 + block_bytes;
        if self.written == self.active.base {
            // A new segment would have the same position and therefore the same name.
            return self.enlarge_active(bytes);
        }
        self.seal_active()?;
        self.space
            .obtain_spare(bytes, self.segments.file_bytes())
            .map_err(WriteStop::Full)?;
        let spare = self.space.take().expect("`obtain` left a spare");
        self.roll(spare)
    }

    /// Enlarges the empty active segment, even beyond the quota (see `DiskSpace::obtain_spare`). The length is synced
    /// before the block is written, so that a crash never leaves a file that ends within a block.
    fn enlarge_active(&mut self, bytes: u64) -> Result<(), WriteStop> {
        self.active
            .file
            .allocate(bytes)
            .map_err(|error| WriteStop::Full(Shortage::disk(error)))?;
        self.status.syncs.fetch_add(1, Relaxed);
        self.active
            .file
            .sync()
            .map_err(|error| stop_of_sync(&self.active.name, error))?;
        self.active.file_bytes.store(bytes, Relaxed);
        Ok(())
    }

    /// Truncates the preallocated rest of a full segment and syncs the segment.
    fn seal_active(&mut self) -> Result<(), WriteStop> {
        let end = self.active.offset(self.written);
        if self.active.file_bytes.load(Relaxed) > end {
            self.active
                .file
                .set_len(end)
                .map_err(|error| stop_of_write(&self.active.name, error))?;
            self.active.file_bytes.store(end, Relaxed);
        }
        self.sync_active()
    }

    /// Starts a new segment. The header is durable before the file gets its name, and the name before the first block
    /// is written.
    fn roll(&mut self, spare: SpareSegment) -> Result<(), WriteStop> {
        let base = self.written;
        let header = SegmentHeader {
            base,
            journal_id: self.checkpoint.journal_id,
            created_unix_ms: self.storage.unix_ms(),
        };
        if let Err(error) = write_all(&*spare.file, 0, &header.encode()) {
            self.space.put_back(spare);
            return Err(stop_of_write(SPARE_NAME, error));
        }
        self.status.syncs.fetch_add(1, Relaxed);
        spare.file.sync().map_err(|error| stop_of_sync(SPARE_NAME, error))?;
        let name = segment_name(base);
        if let Err(error) = self.storage.rename(SPARE_NAME, &name) {
            self.space.put_back(spare);
            return Err(stop_of_write(&name, error));
        }
        self.storage
            .sync_directory()
            .map_err(|error| stop_of_sync("the directory", error))?;
        // The next sync of the directory makes it durable. A failure only weakens the detection of a missing segment.
        let _ = self.storage.rename(&newest_name(self.active.base), &newest_name(base));
        self.active = Arc::new(LogSegment::new(base, spare.file, spare.bytes));
        self.zeroed = 0;
        self.segments.push(Arc::clone(&self.active));
        self.space.prepare(self.segments.file_bytes());
        Ok(())
    }

    fn sync_active(&mut self) -> Result<(), WriteStop> {
        if self.synced < self.written {
            self.status.syncs.fetch_add(1, Relaxed);
            self.active
                .file
                .sync()
                .map_err(|error| stop_of_sync(&self.active.name, error))?;
            self.synced = self.written;
        }
        Ok(())
    }

    fn check_boundary(&self, lsn: Lsn) -> io::Result<()> {
        let invalid = |reason: &str| {
            let message = format!("cannot set the checkpoint to position {lsn}: {reason}");
            Err(io::Error::new(io::ErrorKind::InvalidInput, message))
        };
        let committed = self.committed();
        if lsn < self.checkpoint.first || lsn > committed {
            return invalid("it is outside of the committed log");
        }
        if lsn == self.written {
            return Ok(());
        }
        let Some(located) = self.segments.locate(lsn) else {
            return invalid("its segment was removed");
        };
        let mut header = [0; BLOCK_HEADER_BYTES];
        let segment = located.segment;
        read_full(&*segment.file, segment.offset(lsn), &mut header)?;
        match BlockHeader::decode(&header, self.checkpoint.journal_id, lsn) {
            Ok(_) => Ok(()),
            Err(_) => invalid("it is not the start of a batch"),
        }
    }

    fn replace_checkpoint(&mut self, checkpoint: Checkpoint) -> io::Result<()> {
        let checkpoint = Checkpoint {
            reached: self.synced,
            ..checkpoint
        };
        match checkpoint.replace(&*self.storage) {
            Ok(()) => {
                self.checkpoint = checkpoint;
                self.publish_positions();
                Ok(())
            }
            Err(CheckpointReplaceError { error, is_sync }) => {
                if is_sync {
                    let reason = format!("syncing the checkpoint: {error}");
                    self.status.set_state(LogState::Failed { reason });
                }
                Err(error)
            }
        }
    }

    /// Publishes the positions and the state that results from `stopped`.
    fn publish_result(&mut self, stopped: Result<(), WriteStop>) -> Result<(), FlushError> {
        match stopped {
            Ok(()) => {
                self.publish(self.space.shortage().cloned());
                Ok(())
            }
            Err(WriteStop::Full(shortage)) => {
                let reason = shortage.to_string();
                self.publish(Some(shortage));
                Err(FlushError::Full { reason })
            }
            Err(WriteStop::Failed(reason)) => {
                self.status.set_state(LogState::Failed { reason: reason.clone() });
                self.queue.clear();
                Err(FlushError::Failed { reason })
            }
        }
    }

    fn publish(&self, shortage: Option<Shortage>) {
        self.publish_positions();
        self.status.set_state(match shortage {
            None => LogState::Ok,
            Some(shortage) => LogState::Full {
                reason: shortage.to_string(),
            },
        });
    }

    fn publish_positions(&self) {
        let status = &self.status;
        status.written.store(self.written.0, Release);
        status.synced.store(self.synced.0, Release);
        status.committed.store(self.committed().0, Release);
        status.first.store(self.checkpoint.first.0, Release);
        status.replay_from.store(self.checkpoint.replay_from.0, Release);
        status.segments.store(self.segments.len() as u64, Relaxed);
        let file_bytes = self.segments.file_bytes() + self.space.spare_bytes();
        status.file_bytes.store(file_bytes, Relaxed);
        let active = self.active.file_bytes.load(Relaxed);
        let rest = active.saturating_sub(self.active.offset(self.written));
        status
            .available_bytes
            .store(rest.saturating_add(self.space.available_bytes()), Relaxed);
    }

    fn committed(&self) -> Lsn {
        match self.policy {
            FlushPolicy::Fsync => self.synced,
            FlushPolicy::Os => self.written,
        }
    }
}

/// Returns the size of the leading whole blocks that fit into `room` bytes.
fn fitting_blocks_bytes(bytes: &[u8], room: u64) -> usize {
    if bytes.len() as u64 <= room {
        return bytes.len();
    }
    let mut end = 0;
    loop {
        let next = end + first_block_bytes(&bytes[end..]) as usize;
        if next as u64 > room {
            return end;
        }
        end = next;
    }
}

fn first_block_bytes(bytes: &[u8]) -> u64 {
    BLOCK_HEADER_BYTES as u64 + u64::from(u32_at(bytes, 4))
}

fn stop_of_write(name: &str, error: io::Error) -> WriteStop {
    if is_full(&error) {
        return WriteStop::Full(Shortage::disk(error));
    }
    WriteStop::Failed(format!("writing {name}: {error}"))
}

fn stop_of_sync(name: &str, error: io::Error) -> WriteStop {
    WriteStop::Failed(format!("syncing {name}: {error}"))
}
