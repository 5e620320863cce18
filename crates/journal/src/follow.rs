//! Reads blocks sequentially behind the writer, for consumers that process a log while it grows.
//!
//! A follower reads ahead, and checks headers and records as replay does. It never passes the committed position, so
//! that a consumer never acts on records that a crash may still remove.

use crate::layout::{BLOCK_HEADER_BYTES, BlockHeader, Frame, split_frame, u32_at};
use crate::lsn::{Lsn, position};
use crate::reader::{LogReader, ReadError, SegmentWindow};

/// Bytes per read.
const READ_AHEAD_BYTES: u64 = 1 << 20;

/// The range of a block: `base` is the position of its header, `end` that of the next block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockRange {
    pub base: Lsn,
    pub end: Lsn,
}

/// A sequential reader of blocks. See the module documentation.
pub struct BlockFollower {
    reader: LogReader,
    next: Lsn,
    window: SegmentWindow,
}

impl BlockFollower {
    /// `from` is the start of a block or the end of the log.
    pub fn new(reader: LogReader, from: Lsn) -> BlockFollower {
        BlockFollower {
            reader,
            next: from,
            window: SegmentWindow::default(),
        }
    }

    /// Returns the position of the next block.
    pub fn next(&self) -> Lsn {
        self.next
    }

    /// Continues at `from`, which is the start of a block.
    pub fn seek(&mut self, from: Lsn) {
        self.next = from;
    }

    /// Returns whether the next block is in memory already, so that [`BlockFollower::read_block`] does not wait for the
    /// disk.
    pub fn is_read_ahead(&self) -> bool {
        let ahead = self.window.from(self.next);
        ahead.len() >= BLOCK_HEADER_BYTES && ahead.len() - BLOCK_HEADER_BYTES >= u32_at(ahead, 4) as usize
    }

    /// Reads the next block and calls `each` with the position and payload of its records. Returns `None` at the
    /// committed position. After an error the follower does not advance.
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
            let (frame, after) = split_frame(rest).map_err(|_| readable.damaged(position(base, at)))?;
            if let Frame::Record(payload) = frame {
                each(position(base, at), payload);
            }
            rest = after;
        }
        self.next = Lsn(base.0 + block_bytes);
        Ok(Some(BlockRange { base, end: self.next }))
    }
}
