//! The only reader of a buffer. It reads chunks in the order of appending: from memory while it keeps up, otherwise
//! from the disk. Reading may wait for the disk.

use std::sync::Arc;

use journal::{BlockFollower, BlockRange, LogReader, Lsn, ReadError};

use super::{ActionBuffer, BlockStart, BufferCursor, BufferError, BufferMode, RecordChunk, disk};
use crate::record::{self, Record};

/// Belongs to a buffer, which lends it to one pump at a time.
pub(crate) struct BufferReader {
    follower: Option<BlockFollower>,
    /// Records before it are finished, although their chunk is not.
    finished_before: u64,
    /// Records that the previous pump read and did not finish, in order. They precede everything else.
    pub returned: Vec<ReturnedRecord>,
}

pub(crate) struct ReturnedRecord {
    pub record: Record,
    /// `None` if the record is set aside.
    pub block: Option<BlockStart>,
}

/// Result of reading one block.
enum BlockRead {
    Chunk(RecordChunk),
    /// A block without waiting records, or one that was dropped during the read.
    Skipped,
    End,
}

impl BufferReader {
    pub fn new(log: Option<LogReader>, cursor: BufferCursor, aside: Vec<Record>) -> BufferReader {
        let returned = aside.into_iter().map(|record| ReturnedRecord { record, block: None });
        BufferReader {
            follower: log.map(|log| BlockFollower::new(log, Lsn(cursor.block.base))),
            finished_before: cursor.position,
            returned: returned.collect(),
        }
    }

    /// Continues with the unfinished records of the previous reader.
    pub fn continue_after(&mut self, previous: BufferReader) {
        self.finished_before = previous.finished_before;
        self.returned = previous.returned;
    }

    /// Reads the next committed chunk.
    pub fn next_chunk(&mut self, buffer: &ActionBuffer) -> Result<Option<RecordChunk>, BufferError> {
        loop {
            let committed = match &buffer.inner.journal {
                Some(journal) if buffer.inner.config.mode == BufferMode::Disk => journal.committed().0,
                _ => u64::MAX,
            };
            let from = {
                let mut queue = buffer.inner.queue();
                match queue.take_hot(committed) {
                    // A recovery record.
                    Some(chunk) if chunk.records == 0 => continue,
                    Some(chunk) => return Ok(Some(chunk)),
                    None => {}
                }
                if queue.read.base == queue.next.base {
                    return Ok(None);
                }
                queue.read
            };
            match self.step(buffer, from)? {
                BlockRead::Chunk(chunk) => return Ok(Some(chunk)),
                BlockRead::Skipped => {}
                BlockRead::End => return Ok(None),
            }
        }
    }

    /// Calls `each` for the unfinished records of a chunk.
    pub fn records(&self, chunk: &RecordChunk, each: &mut dyn FnMut(Record)) -> Result<(), BufferError> {
        let position = chunk.position();
        let read = record::records(&chunk.bytes, position, &mut |record| {
            if record.position() >= self.finished_before {
                each(record);
            }
        });
        read.ok_or(BufferError::Unknown { position })
    }

    /// Reads the block at `block` from the disk.
    fn step(&mut self, buffer: &ActionBuffer, block: BlockStart) -> Result<BlockRead, BufferError> {
        let Some(follower) = &mut self.follower else {
            return Ok(BlockRead::End);
        };
        let inner = &buffer.inner;
        let from = block.base;
        let at = inner.spill().as_ref().map_or(from, |spill| spill.in_log(from).0);
        if follower.next().0 != at {
            follower.seek(Lsn(at));
        }
        let mut payload = None;
        let is_read_ahead = follower.is_read_ahead();
        let mut read_block = || follower_read(follower, &mut payload);
        let read = match is_read_ahead {
            true => read_block(),
            // Other tasks of this thread continue on another thread.
            false => tokio::task::block_in_place(read_block),
        };
        let mut queue = inner.queue();
        if queue.read.base != from {
            return Ok(BlockRead::Skipped);
        }
        let range = match read {
            Ok(Some(range)) => range,
            Ok(None) | Err(ReadError::NotWritten { .. }) => return Ok(BlockRead::End),
            Err(error) => return Err(BufferError::Read(error)),
        };
        let end = from + (range.end.0 - range.base.0);
        let records = payload.as_deref().map_or(Some(0), records_in);
        let records = records.ok_or(BufferError::Unknown { position: at })?;
        queue.advance(end, u64::from(records));
        if queue.read.base == queue.next.base {
            *inner.spill() = None;
        }
        Ok(match payload {
            Some(bytes) if records > 0 => BlockRead::Chunk(RecordChunk {
                block,
                end,
                records,
                bytes: Arc::new(bytes),
            }),
            _ => BlockRead::Skipped,
        })
    }
}

fn follower_read(follower: &mut BlockFollower, payload: &mut Option<Vec<u8>>) -> Result<Option<BlockRange>, ReadError> {
    follower.read_block(|_, bytes| *payload = Some(bytes.to_vec()))
}

/// Returns the number of records in the payload; 0 for a recovery record, `None` for any other data.
fn records_in(payload: &[u8]) -> Option<u32> {
    match disk::is_recovery_record(payload) {
        true => Some(0),
        false => record::count(payload),
    }
}
