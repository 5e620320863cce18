//! What a shard wants to send: one append-only arena per tick, and per connection a chain of ranges of it.
//!
//! A message to N connections is encoded once and its range is added to N chains; ranges that touch are joined, so that
//! a subscriber of a busy topic ends up with one long range. At the end of a tick the driver writes each dirty connection
//! once, then `end_tick` moves what a socket would not take to that connection's backlog and empties the arena.
//!
//! Invariants: bytes once queued are sent in order or the connection closes, never dropped (a packet cut in two would
//! corrupt the stream); limits are applied before queueing, by the caller, from `queued_bytes`. An idle connection costs
//! one 24-byte lane. Owned by the shard's thread; nothing here blocks.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::ConnSlot;

/// Bytes in the arena beyond which the driver is asked to flush before more is handled.
pub const ARENA_SOFT_LIMIT_BYTES: usize = 512 * 1024;

/// Bytes in the arena beyond which nothing that was just published is put there: one message to very many subscribers may go
/// far beyond the soft limit, but a `Range` has 32 bits.
const ARENA_HARD_LIMIT_BYTES: usize = 512 * 1024 * 1024;

/// An arena that one huge message made larger than this is given back to the allocator at the end of the tick.
const ARENA_KEEP_BYTES: usize = 2 * 1024 * 1024;

/// Backlog is copied into chunks of at least this size, so that a slow reader does not cost one allocation per tick.
const BACKLOG_CHUNK_BYTES: usize = 16 * 1024;

const NONE: u32 = u32::MAX;

/// A stretch of the arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    pub start: u32,
    pub end: u32,
}

impl Range {
    pub fn len(self) -> usize {
        (self.end - self.start) as usize
    }

    pub fn is_empty(self) -> bool {
        self.start == self.end
    }
}

#[derive(Default)]
pub struct Outbox {
    /// Everything encoded in this tick, for all connections.
    pub arena: Vec<u8>,
    links: Vec<RangeLink>,
    lanes: Vec<Lane>,
    dirty: Vec<ConnSlot>,
    backlog_bytes: usize,
}

struct RangeLink {
    range: Range,
    next: u32,
}

struct Lane {
    head: u32,
    tail: u32,
    /// Bytes in the chain, this tick only.
    chained: u32,
    is_dirty: bool,
    /// How many reasons there are not to write to it yet.
    holds: u16,
    backlog: Option<Box<Backlog>>,
}

#[derive(Default)]
struct Backlog {
    chunks: VecDeque<Chunk>,
    bytes: usize,
    /// The socket has taken some of it since this was last asked.
    has_advanced: bool,
}

enum Chunk {
    Owned {
        bytes: Vec<u8>,
        start: usize,
    },
    Shared {
        arena: Arc<Vec<u8>>,
        start: usize,
        end: usize,
    },
}

impl Chunk {
    fn as_slice(&self) -> &[u8] {
        match self {
            Chunk::Owned { bytes, start } => &bytes[*start..],
            Chunk::Shared { arena, start, end } => &arena[*start..*end],
        }
    }

    fn advance(&mut self, n: usize) {
        match self {
            Chunk::Owned { start, .. } | Chunk::Shared { start, .. } => *start += n,
        }
    }
}

impl Lane {
    const fn new() -> Lane {
        Lane {
            head: NONE,
            tail: NONE,
            chained: 0,
            is_dirty: false,
            holds: 0,
            backlog: None,
        }
    }
}

impl Outbox {
    /// Makes room for a connection; its lane is empty.
    pub fn open(&mut self, slot: ConnSlot) {
        let index = slot.0 as usize;
        if self.lanes.len() <= index {
            self.lanes.resize_with(index + 1, Lane::new);
        }
        self.close(slot);
    }

    /// Forgets all that was queued for a connection that is gone.
    pub fn close(&mut self, slot: ConnSlot) {
        let lane = &mut self.lanes[slot.0 as usize];
        let is_dirty = lane.is_dirty;
        if let Some(backlog) = lane.backlog.take() {
            self.backlog_bytes -= backlog.bytes;
        }
        *lane = Lane::new();
        lane.is_dirty = is_dirty;
    }

    /// Where the next encoded byte will stand; pair with `range_from`.
    #[inline]
    pub fn mark(&self) -> usize {
        self.arena.len()
    }

    #[inline]
    pub fn range_from(&self, mark: usize) -> Range {
        debug_assert!(self.arena.len() <= u32::MAX as usize);
        Range {
            start: mark as u32,
            end: self.arena.len() as u32,
        }
    }

    /// Queues a stretch of the arena for a connection.
    #[inline]
    pub fn push(&mut self, slot: ConnSlot, range: Range) {
        let lane = &mut self.lanes[slot.0 as usize];
        lane.chained += range.end - range.start;
        let next = self.links.len() as u32;
        if lane.tail != NONE {
            let last = &mut self.links[lane.tail as usize];
            if last.range.end == range.start {
                last.range.end = range.end;
                return;
            }
            last.next = next;
        } else {
            lane.head = next;
            if !lane.is_dirty {
                lane.is_dirty = true;
                self.dirty.push(slot);
            }
        }
        lane.tail = next;
        self.links.push(RangeLink { range, next: NONE });
    }

    /// Bytes queued and not yet written: backlog and this tick's.
    #[inline]
    pub fn queued_bytes(&self, slot: ConnSlot) -> usize {
        let lane = &self.lanes[slot.0 as usize];
        lane.chained as usize + lane.backlog.as_ref().map_or(0, |b| b.bytes)
    }

    /// The driver could not write everything in an earlier tick.
    #[inline]
    pub fn has_backlog(&self, slot: ConnSlot) -> bool {
        self.lanes[slot.0 as usize].backlog.is_some()
    }

    /// Whether a connection's socket has taken some of its backlog since this was last asked.
    pub fn take_progress(&mut self, slot: ConnSlot) -> bool {
        let backlog = self.lanes[slot.0 as usize].backlog.as_mut();
        backlog.is_some_and(|backlog| std::mem::take(&mut backlog.has_advanced))
    }

    pub fn is_over_soft_limit(&self) -> bool {
        self.arena.len() >= ARENA_SOFT_LIMIT_BYTES
    }

    #[inline]
    pub fn is_full(&self) -> bool {
        self.arena.len() >= ARENA_HARD_LIMIT_BYTES
    }

    /// Nothing more is written to a connection until it has been released as often.
    pub fn hold(&mut self, slot: ConnSlot) {
        self.lanes[slot.0 as usize].holds += 1;
    }

    pub fn release(&mut self, slot: ConnSlot) {
        let lane = &mut self.lanes[slot.0 as usize];
        lane.holds = lane.holds.saturating_sub(1);
        if lane.holds == 0 && !lane.is_dirty {
            lane.is_dirty = true;
            self.dirty.push(slot);
        }
    }

    /// Whether a connection is not to be written to.
    pub fn is_held(&self, slot: ConnSlot) -> bool {
        self.lanes[slot.0 as usize].holds > 0
    }

    /// Bytes in all backlogs of the shard.
    pub fn backlog_bytes(&self) -> usize {
        self.backlog_bytes
    }

    // --- the driver's side ---

    /// The connections that got something in this tick. A connection may have been closed since; it then has no bytes.
    pub fn dirty(&self) -> &[ConnSlot] {
        &self.dirty
    }

    /// What to write next, in order: backlog first. At most `limit` slices.
    pub fn slices<'a>(&'a self, slot: ConnSlot, limit: usize, out: &mut Vec<&'a [u8]>) {
        let lane = &self.lanes[slot.0 as usize];
        if let Some(backlog) = &lane.backlog {
            out.extend(backlog.chunks.iter().take(limit).map(Chunk::as_slice));
        }
        let mut at = lane.head;
        while at != NONE && out.len() < limit {
            let link = &self.links[at as usize];
            out.push(&self.arena[link.range.start as usize..link.range.end as usize]);
            at = link.next;
        }
    }

    /// What this tick has queued, without the backlog: whole packets, as long as nothing of it has been written.
    pub fn fresh(&self, slot: ConnSlot) -> impl Iterator<Item = &[u8]> {
        let mut at = self.lanes[slot.0 as usize].head;
        std::iter::from_fn(move || {
            let link = self.links.get(at as usize)?;
            at = link.next;
            Some(&self.arena[link.range.start as usize..link.range.end as usize])
        })
    }

    /// The socket took the first `n` bytes of what `slices` showed.
    pub fn wrote(&mut self, slot: ConnSlot, n: usize) {
        let lane = &mut self.lanes[slot.0 as usize];
        let mut left = n;
        if let Some(backlog) = &mut lane.backlog {
            let taken = backlog.advance(left);
            left -= taken;
            self.backlog_bytes -= taken;
            if backlog.bytes == 0 {
                lane.backlog = None;
            }
        }
        lane.chained -= left as u32;
        while left > 0 {
            let link = &mut self.links[lane.head as usize];
            if left < link.range.len() {
                link.range.start += left as u32;
                return;
            }
            left -= link.range.len();
            lane.head = link.next;
        }
        if lane.head == NONE {
            lane.tail = NONE;
        }
    }

    /// Ends the tick: what is left of each chain becomes backlog; the arena is empty afterwards.
    pub fn end_tick(&mut self) {
        let dirty = std::mem::take(&mut self.dirty);
        let unsent: usize = dirty
            .iter()
            .map(|slot| self.lanes[slot.0 as usize].chained as usize)
            .sum();
        // Sharing pays when many connections wait for the same bytes; otherwise a few bytes would pin a whole arena.
        let shared = (unsent > self.arena.len()).then(|| Arc::new(std::mem::take(&mut self.arena)));
        for slot in &dirty {
            self.keep_unsent(*slot, shared.as_ref());
        }
        self.dirty = dirty;
        self.dirty.clear();
        self.links.clear();
        self.arena.clear();
        if self.arena.capacity() > ARENA_KEEP_BYTES {
            self.arena = Vec::new();
        }
    }

    fn keep_unsent(&mut self, slot: ConnSlot, shared: Option<&Arc<Vec<u8>>>) {
        let lane = &mut self.lanes[slot.0 as usize];
        let mut at = lane.head;
        if at != NONE {
            let backlog = lane.backlog.get_or_insert_default();
            self.backlog_bytes += lane.chained as usize;
            while at != NONE {
                let RangeLink { range, next } = self.links[at as usize];
                let (start, end) = (range.start as usize, range.end as usize);
                match shared {
                    Some(arena) if (end - start) * 4 >= arena.len() => backlog.share(arena, start, end),
                    Some(arena) => backlog.copy(&arena[start..end]),
                    None => backlog.copy(&self.arena[start..end]),
                }
                at = next;
            }
        }
        lane.head = NONE;
        lane.tail = NONE;
        lane.chained = 0;
        lane.is_dirty = false;
    }
}

impl Backlog {
    fn share(&mut self, arena: &Arc<Vec<u8>>, start: usize, end: usize) {
        self.chunks.push_back(Chunk::Shared {
            arena: arena.clone(),
            start,
            end,
        });
        self.bytes += end - start;
    }

    fn copy(&mut self, bytes: &[u8]) {
        self.bytes += bytes.len();
        if let Some(Chunk::Owned { bytes: last, .. }) = self.chunks.back_mut()
            && last.capacity() - last.len() >= bytes.len()
        {
            last.extend_from_slice(bytes);
            return;
        }
        let mut chunk = Vec::with_capacity(if self.chunks.is_empty() {
            bytes.len()
        } else {
            bytes.len().max(BACKLOG_CHUNK_BYTES)
        });
        chunk.extend_from_slice(bytes);
        self.chunks.push_back(Chunk::Owned { bytes: chunk, start: 0 });
    }

    /// Drops up to `n` bytes from the front and says how many.
    fn advance(&mut self, n: usize) -> usize {
        let taken = n.min(self.bytes);
        let mut left = taken;
        while left > 0 {
            let chunk = self.chunks.front_mut().expect("`bytes` is the sum of the chunks");
            let available = chunk.as_slice().len();
            if left < available {
                chunk.advance(left);
                break;
            }
            left -= available;
            self.chunks.pop_front();
        }
        self.bytes -= taken;
        self.has_advanced |= taken > 0;
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: ConnSlot = ConnSlot(0);
    const B: ConnSlot = ConnSlot(3);

    fn outbox() -> Outbox {
        let mut outbox = Outbox::default();
        outbox.open(A);
        outbox.open(B);
        outbox
    }

    fn send(outbox: &mut Outbox, to: &[ConnSlot], bytes: &[u8]) {
        let mark = outbox.mark();
        outbox.arena.extend_from_slice(bytes);
        let range = outbox.range_from(mark);
        for slot in to {
            outbox.push(*slot, range);
        }
    }

    fn pending(outbox: &Outbox, slot: ConnSlot) -> Vec<u8> {
        let mut slices = Vec::new();
        outbox.slices(slot, 1024, &mut slices);
        slices.concat()
    }

    #[test]
    fn adjacent_ranges_become_one_slice() {
        let mut outbox = outbox();
        send(&mut outbox, &[A, B], b"one");
        send(&mut outbox, &[A, B], b"two");
        let mut slices = Vec::new();
        outbox.slices(A, 1024, &mut slices);
        assert_eq!(slices, [b"onetwo"]);
    }

    #[test]
    fn interleaved_connections_keep_their_order() {
        let mut outbox = outbox();
        send(&mut outbox, &[A], b"a1");
        send(&mut outbox, &[B], b"b1");
        send(&mut outbox, &[A], b"a2");
        assert_eq!(pending(&outbox, A), b"a1a2");
        assert_eq!(pending(&outbox, B), b"b1");
        assert_eq!(outbox.dirty(), [A, B]);
    }

    #[test]
    fn what_the_socket_refused_comes_first_in_the_next_tick() {
        let mut outbox = outbox();
        send(&mut outbox, &[A, B], b"hello");
        outbox.wrote(A, 2);
        outbox.wrote(B, 5);
        outbox.end_tick();
        assert!(outbox.has_backlog(A) && !outbox.has_backlog(B));
        send(&mut outbox, &[A], b"world");
        assert_eq!(outbox.queued_bytes(A), 8);
        assert_eq!(pending(&outbox, A), b"lloworld");
        outbox.wrote(A, 4);
        assert_eq!(pending(&outbox, A), b"orld");
        outbox.wrote(A, 4);
        outbox.end_tick();
        assert_eq!((outbox.queued_bytes(A), outbox.backlog_bytes()), (0, 0));
    }

    #[test]
    fn many_slow_readers_of_one_message_share_its_bytes() {
        let mut outbox = outbox();
        send(&mut outbox, &[A, B], &[7; 100]);
        outbox.end_tick();
        assert!(matches!(
            outbox.lanes[0].backlog.as_ref().unwrap().chunks[0],
            Chunk::Shared { start: 0, end: 100, .. }
        ));
        assert_eq!(pending(&outbox, A), [7; 100]);
        outbox.close(A);
        outbox.wrote(B, 100);
        assert_eq!(outbox.backlog_bytes(), 0);
    }

    #[test]
    fn a_closed_connection_leaves_nothing_behind() {
        let mut outbox = outbox();
        send(&mut outbox, &[A], b"late");
        outbox.close(A);
        assert_eq!(pending(&outbox, A), b"");
        outbox.end_tick();
        assert_eq!(outbox.backlog_bytes(), 0);
        send(&mut outbox, &[A], b"new");
        assert_eq!(outbox.dirty(), [A]);
        assert_eq!(pending(&outbox, A), b"new");
    }
}
