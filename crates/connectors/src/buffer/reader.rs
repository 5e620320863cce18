//! The one reader of a buffer: chunks in the order in which they were appended, from memory while it keeps up, otherwise
//! from the disk. It may wait for the disk.

use std::sync::Arc;

use journal::{BlockRange, Follower, LogReader, Lsn, ReadError};

use super::{Buffer, BufferError, BufferMode, Chunk, Cursor, Place, disk};
use crate::record::{self, Record};

/// Belongs to a buffer, which lends it to one pump after the other.
pub(crate) struct Reader {
    follower: Option<Follower>,
    /// Records before it are done with, though the chunk is not.
    done_before: u64,
    /// What a pump had read and did not get rid of, in order: comes before all else.
    pub returned: Vec<Returned>,
}

pub(crate) struct Returned {
    pub record: Record,
    /// `None`: it was set aside.
    pub place: Option<Place>,
}

/// What stands where the reader is.
enum Step {
    Chunk(Chunk),
    /// Nothing that concerns a reader, or it was dropped meanwhile.
    Skipped,
    End,
}

impl Reader {
    pub fn new(log: Option<LogReader>, cursor: Cursor, aside: Vec<Record>) -> Reader {
        let returned = aside.into_iter().map(|record| Returned { record, place: None });
        Reader {
            follower: log.map(|log| Follower::new(log, Lsn(cursor.place.base))),
            done_before: cursor.position,
            returned: returned.collect(),
        }
    }

    /// The next chunk that is committed.
    pub fn next_chunk(&mut self, buffer: &Buffer) -> Result<Option<Chunk>, BufferError> {
        loop {
            let committed = match &buffer.inner.journal {
                Some(journal) if buffer.inner.config.mode == BufferMode::Disk => journal.committed().0,
                _ => u64::MAX,
            };
            let from = {
                let mut queue = buffer.inner.queue();
                match queue.take_hot(committed) {
                    // A note for the next start.
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
                Step::Chunk(chunk) => return Ok(Some(chunk)),
                Step::Skipped => {}
                Step::End => return Ok(None),
            }
        }
    }

    /// The records of a chunk that are not done with.
    pub fn records(&self, chunk: &Chunk, each: &mut dyn FnMut(Record)) -> Result<(), BufferError> {
        let position = chunk.position();
        let read = record::records(&chunk.bytes, position, &mut |record| {
            if record.position() >= self.done_before {
                each(record);
            }
        });
        read.ok_or(BufferError::Unknown { position })
    }

    /// Reads the block at `from` from the disk.
    fn step(&mut self, buffer: &Buffer, place: Place) -> Result<Step, BufferError> {
        let Some(follower) = &mut self.follower else {
            return Ok(Step::End);
        };
        let inner = &buffer.inner;
        let from = place.base;
        let at = match *inner.spill() {
            Some(spill) => spill.log_base + (from - spill.queue_base),
            None => from,
        };
        if follower.next().0 != at {
            follower.seek(Lsn(at));
        }
        let mut payload = None;
        let is_read_ahead = follower.is_read_ahead();
        let mut read_block = || follower_read(follower, &mut payload);
        let read = match is_read_ahead {
            true => read_block(),
            // Other tasks of this thread go on meanwhile.
            false => tokio::task::block_in_place(read_block),
        };
        let mut queue = inner.queue();
        if queue.read.base != from {
            return Ok(Step::Skipped);
        }
        let range = match read {
            Ok(Some(range)) => range,
            Ok(None) | Err(ReadError::NotWritten { .. }) => return Ok(Step::End),
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
            Some(bytes) if records > 0 => Step::Chunk(Chunk {
                place,
                end,
                records,
                bytes: Arc::new(bytes),
            }),
            _ => Step::Skipped,
        })
    }
}

fn follower_read(follower: &mut Follower, payload: &mut Option<Vec<u8>>) -> Result<Option<BlockRange>, ReadError> {
    follower.read_block(|_, bytes| *payload = Some(bytes.to_vec()))
}

/// `None`: neither a chunk nor a note for the next start.
fn records_in(payload: &[u8]) -> Option<u32> {
    match disk::is_note(payload) {
        true => Some(0),
        false => record::count(payload),
    }
}
