//! The half of the log that waits for the disk: writes what the tail gathered, syncs, rolls to new segments, moves the
//! checkpoint and removes old segments. One thread at a time.
//!
//! Invariants: bytes reach the file in the order of their positions; a segment is synced as a whole before anything is
//! written to the next; a failed sync, and a write that failed for another reason than a full disk, end the log:
//! what the kernel kept of it is unknown, and a second sync may report success for bytes that are lost.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::{fmt, io};

use crate::checkpoint::{Checkpoint, ReplaceError};
use crate::config::{LogConfig, Policy};
use crate::layout::{BLOCK_HEADER_BYTES, BlockHeader, SEGMENT_HEADER_BYTES, SegmentHeader, u32_at};
use crate::lsn::Lsn;
use crate::segments::{Segment, Segments, segment_name};
use crate::space::{SPARE_NAME, Shortage, Space, Spare};
use crate::status::{State, Status};
use crate::tail::{Appended, Chunk};
use storage::{Storage, is_full, read_full, write_all};

/// Why not everything that was appended is committed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FlushError {
    /// No space: what was not written waits, and the next flush tries again.
    Full { because: String },
    /// The log has failed for good.
    Failed { because: String },
}

impl fmt::Display for FlushError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FlushError::Full { because } => write!(f, "the journal is full: {because}"),
            FlushError::Failed { because } => write!(f, "the journal has failed: {because}"),
        }
    }
}

impl std::error::Error for FlushError {}

pub(crate) struct Writer {
    storage: Arc<dyn Storage>,
    policy: Policy,
    checkpoint: Checkpoint,
    segments: Arc<Segments>,
    active: Arc<Segment>,
    space: Space,
    /// To be written.
    queue: VecDeque<Chunk>,
    /// So much of the first chunk has been written.
    front_done: usize,
    written: Lsn,
    synced: Lsn,
    /// Chunks that were written, for use again.
    spent: Vec<Vec<u8>>,
    status: Arc<Status>,
}

/// What a writer begins with: all that is in the segments is synced.
pub(crate) struct Start {
    pub storage: Arc<dyn Storage>,
    pub config: LogConfig,
    pub checkpoint: Checkpoint,
    pub segments: Vec<Arc<Segment>>,
    pub next: Lsn,
    pub status: Arc<Status>,
}

/// Why writing stopped before the end of the queue.
enum Stop {
    Full(Shortage),
    Failed(String),
}

impl Writer {
    pub fn new(start: Start) -> Writer {
        let active = Arc::clone(start.segments.last().expect("a log has a segment"));
        let mut writer = Writer {
            space: Space::new(Arc::clone(&start.storage), &start.config),
            storage: start.storage,
            policy: start.config.policy,
            checkpoint: start.checkpoint,
            segments: Arc::new(Segments::new(start.segments)),
            active,
            queue: VecDeque::new(),
            front_done: 0,
            written: start.next,
            synced: start.next,
            spent: Vec::new(),
            status: start.status,
        };
        writer.space.prepare(writer.segments.file_bytes());
        writer.space.measure();
        writer.publish(writer.space.shortage().cloned());
        writer
    }

    pub fn segments(&self) -> &Arc<Segments> {
        &self.segments
    }

    pub fn policy(&self) -> Policy {
        self.policy
    }

    pub fn enqueue(&mut self, chunks: Vec<Chunk>) {
        self.queue.extend(chunks);
    }

    pub fn has_queued(&self) -> bool {
        !self.queue.is_empty()
    }

    pub fn spent(&mut self) -> &mut Vec<Vec<u8>> {
        &mut self.spent
    }

    /// Writes the queue and, if the policy says so, syncs. Sees to space for the next segment.
    pub fn flush(&mut self) -> Result<(), FlushError> {
        self.check_failed()?;
        if self.has_queued() {
            self.status.flushes.fetch_add(1, Relaxed);
        }
        let mut stopped = self.write_queue();
        if self.policy == Policy::Fsync && !matches!(stopped, Err(Stop::Failed(_))) {
            stopped = self.sync_active().and(stopped);
        }
        self.space.prepare(self.segments.file_bytes());
        self.space.measure();
        self.settle(stopped)
    }

    /// Syncs what was written: under [`Policy::Os`] now and then, and at the end.
    pub fn sync(&mut self) -> Result<(), FlushError> {
        self.check_failed()?;
        match self.sync_active() {
            Ok(()) => {
                self.publish_positions();
                Ok(())
            }
            stopped => self.settle(stopped),
        }
    }

    /// `replay_from`: the beginning of a block, or the end of what is committed. All that has been written is synced first,
    /// whatever the policy: what stands behind `replay_from` may repeat what stands before it, which goes.
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

    /// At the beginning of a batch, once that is durable.
    pub fn set_checkpoint_at(&mut self, batch: Appended) -> io::Result<()> {
        if batch.end > self.synced {
            self.sync().map_err(io::Error::other)?;
        }
        if batch.end > self.synced {
            return Err(io::Error::other("the batch has not been written yet"));
        }
        self.set_checkpoint(batch.base)
    }

    /// Removes the segments that end at or before `lsn` and the checkpoint. Returns how many.
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
            // One that stays is removed at the next start.
            if let Err(error) = self.storage.remove(&segment.name) {
                result = Err(error);
            }
        }
        self.publish_positions();
        result
    }

    fn check_failed(&self) -> Result<(), FlushError> {
        match self.status.state() {
            State::Failed { because } => Err(FlushError::Failed { because }),
            _ => Ok(()),
        }
    }

    fn write_queue(&mut self) -> Result<(), Stop> {
        while let Some(chunk) = self.queue.front() {
            let bytes = &chunk.bytes[self.front_done..];
            let offset = self.active.offset(self.written);
            let room = self.active.file_bytes.load(Relaxed).saturating_sub(offset);
            let fitting = blocks_that_fit(bytes, room);
            if fitting == 0 {
                let block_bytes = first_block_bytes(bytes);
                self.make_room(block_bytes)?;
                continue;
            }
            write_all(&*self.active.file, offset, &bytes[..fitting])
                .map_err(|error| stop_of_write(&self.active.name, error))?;
            self.advance(fitting);
        }
        Ok(())
    }

    fn advance(&mut self, bytes: usize) {
        self.written.0 += bytes as u64;
        self.status.written_bytes.fetch_add(bytes as u64, Relaxed);
        self.front_done += bytes;
        let is_done = |chunk: &mut Chunk| self.front_done == chunk.bytes.len();
        if let Some(chunk) = self.queue.pop_front_if(is_done) {
            self.front_done = 0;
            self.spent.push(chunk.bytes);
        }
    }

    fn make_room(&mut self, block_bytes: u64) -> Result<(), Stop> {
        let bytes = SEGMENT_HEADER_BYTES as u64 + block_bytes;
        if self.written == self.active.base {
            // The next segment would have the same position, and the same name.
            return self.enlarge_active(bytes);
        }
        self.seal_active()?;
        self.space
            .obtain(bytes, self.segments.file_bytes())
            .map_err(Stop::Full)?;
        let spare = self.space.take().expect("one was obtained");
        self.roll(spare)
    }

    /// Also beyond what the log may have, as with `Space::obtain`. The length is durable before the block is written, so that
    /// no crash leaves a file that ends within one.
    fn enlarge_active(&mut self, bytes: u64) -> Result<(), Stop> {
        self.active
            .file
            .allocate(bytes)
            .map_err(|error| Stop::Full(Shortage::disk(error)))?;
        self.status.syncs.fetch_add(1, Relaxed);
        self.active
            .file
            .sync()
            .map_err(|error| stop_of_sync(&self.active.name, error))?;
        self.active.file_bytes.store(bytes, Relaxed);
        Ok(())
    }

    /// Nothing will be added: gives back what was preallocated, and makes the rest durable.
    fn seal_active(&mut self) -> Result<(), Stop> {
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

    /// The header is durable before the name says that this is a segment, and the name before a block is written.
    fn roll(&mut self, spare: Spare) -> Result<(), Stop> {
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
        self.active = Arc::new(Segment::new(base, spare.file, spare.bytes));
        self.segments.push(Arc::clone(&self.active));
        self.space.prepare(self.segments.file_bytes());
        Ok(())
    }

    fn sync_active(&mut self) -> Result<(), Stop> {
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
        let refused = |what: &str| {
            let message = format!("no checkpoint at {lsn}: {what}");
            Err(io::Error::new(io::ErrorKind::InvalidInput, message))
        };
        let committed = self.committed();
        if lsn < self.checkpoint.first || lsn > committed {
            return refused("it is not within what is committed and kept");
        }
        if lsn == self.written {
            return Ok(());
        }
        let Some(located) = self.segments.locate(lsn) else {
            return refused("its segment was removed");
        };
        let mut header = [0; BLOCK_HEADER_BYTES];
        let segment = located.segment;
        read_full(&*segment.file, segment.offset(lsn), &mut header)?;
        match BlockHeader::decode(&header, self.checkpoint.journal_id, lsn) {
            Ok(_) => Ok(()),
            Err(_) => refused("no batch begins there"),
        }
    }

    fn replace_checkpoint(&mut self, checkpoint: Checkpoint) -> io::Result<()> {
        match checkpoint.replace(&*self.storage) {
            Ok(()) => {
                self.checkpoint = checkpoint;
                self.publish_positions();
                Ok(())
            }
            Err(ReplaceError { error, is_sync }) => {
                if is_sync {
                    let because = format!("syncing the checkpoint: {error}");
                    self.status.set_state(State::Failed { because });
                }
                Err(error)
            }
        }
    }

    /// Publishes how far it went, and the state that follows from how it ended.
    fn settle(&mut self, stopped: Result<(), Stop>) -> Result<(), FlushError> {
        match stopped {
            Ok(()) => {
                self.publish(self.space.shortage().cloned());
                Ok(())
            }
            Err(Stop::Full(shortage)) => {
                let because = shortage.to_string();
                self.publish(Some(shortage));
                Err(FlushError::Full { because })
            }
            Err(Stop::Failed(because)) => {
                self.status.set_state(State::Failed {
                    because: because.clone(),
                });
                self.queue.clear();
                Err(FlushError::Failed { because })
            }
        }
    }

    fn publish(&self, shortage: Option<Shortage>) {
        self.publish_positions();
        self.status.set_state(match shortage {
            None => State::Ok,
            Some(shortage) => State::Full {
                because: shortage.to_string(),
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
            .room_bytes
            .store(rest.saturating_add(self.space.room_bytes()), Relaxed);
    }

    fn committed(&self) -> Lsn {
        match self.policy {
            Policy::Fsync => self.synced,
            Policy::Os => self.written,
        }
    }
}

/// Bytes of as many whole blocks as there is room for.
fn blocks_that_fit(bytes: &[u8], room: u64) -> usize {
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

fn stop_of_write(name: &str, error: io::Error) -> Stop {
    if is_full(&error) {
        return Stop::Full(Shortage::disk(error));
    }
    Stop::Failed(format!("writing {name}: {error}"))
}

fn stop_of_sync(name: &str, error: io::Error) -> Stop {
    Stop::Failed(format!("syncing {name}: {error}"))
}
