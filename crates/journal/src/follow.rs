//! Reading blocks one after the other, behind the writer: for whoever works through a log while it grows.
//!
//! A follower reads far ahead, and checks headers and records like replay does. It never passes what is committed, so
//! that nothing is acted upon that a crash may still take back.

use crate::layout::{BLOCK_HEADER_BYTES, BlockHeader, split_record, u32_at};
use crate::lsn::{Lsn, position};
use crate::reader::{LogReader, ReadError, Window};

/// Read at once.
const READ_AHEAD_BYTES: u64 = 1 << 20;

/// Where a block stands: from its header to the header of the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockRange {
    pub base: Lsn,
    pub end: Lsn,
}

pub struct Follower {
    reader: LogReader,
    next: Lsn,
    window: Window,
}

impl Follower {
    /// `from`: where a block begins, or the end of the log.
    pub fn new(reader: LogReader, from: Lsn) -> Follower {
        Follower {
            reader,
            next: from,
            window: Window::default(),
        }
    }

    /// Where the block stands that will be read next.
    pub fn next(&self) -> Lsn {
        self.next
    }

    /// Goes on at `from`, where a block begins.
    pub fn seek(&mut self, from: Lsn) {
        self.next = from;
    }

    /// The next block has been read from the disk already: [`Follower::read_block`] will not wait for it.
    pub fn is_read_ahead(&self) -> bool {
        let ahead = self.window.from(self.next);
        ahead.len() >= BLOCK_HEADER_BYTES && ahead.len() - BLOCK_HEADER_BYTES >= u32_at(ahead, 4) as usize
    }

    /// Reads the next block and calls `each` with position and payload of its records. `None`: all that is committed has
    /// been read. After an error the follower stands where it stood.
    pub fn read_block(&mut self, mut each: impl FnMut(Lsn, &[u8])) -> Result<Option<BlockRange>, ReadError> {
        let base = self.next;
        if base >= self.reader.committed() {
            return Ok(None);
        }
        let readable = self.reader.readable(base)?;
        let damaged = || readable.damaged(base);
        readable.load(base, BLOCK_HEADER_BYTES as u64, READ_AHEAD_BYTES, &mut self.window)?;
        let header = self.window.from(base);
        let header = BlockHeader::decode(header, self.reader.journal_id(), base).map_err(|_| damaged())?;
        let block_bytes = header.block_bytes();
        readable.load(base, block_bytes, READ_AHEAD_BYTES, &mut self.window)?;
        let block = self.window.from(base).get(..block_bytes as usize).ok_or_else(damaged)?;
        let mut rest = &block[BLOCK_HEADER_BYTES..];
        while !rest.is_empty() {
            let at = (block.len() - rest.len()) as u32;
            let (payload, after) = split_record(rest).map_err(|_| readable.damaged(position(base, at)))?;
            each(position(base, at), payload);
            rest = after;
        }
        self.next = Lsn(base.0 + block_bytes);
        Ok(Some(BlockRange { base, end: self.next }))
    }
}
