//! Output of a shard: one append-only arena per tick, and a chain of ranges of it per connection.
//!
//! A message to N connections is encoded once, and its range is added to N chains. Adjacent ranges are merged, so a
//! subscriber of a busy topic has one long range. At the end of a tick the driver writes each dirty connection once.
//! Then `end_tick` moves unsent bytes to the connection's backlog and empties the arena.
//!
//! Invariants: queued bytes are sent in order, or the connection closes; they are never dropped, because a partial
//! packet would corrupt the stream. The caller applies limits before queueing, using `queued_bytes`. An idle connection
//! costs 24 bytes. Owned by the shard's thread; nothing here blocks.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::ConnSlot;
use crate::config::ShardConfig;

/// If the arena is larger, the driver is asked to flush before it passes more input.
pub const ARENA_SOFT_LIMIT_BYTES: usize = 512 * 1024;

/// If the arena is larger, no live message is added to it. A message to very many subscribers may far exceed the soft
/// limit, but a `Range` has 32 bits.
const ARENA_HARD_LIMIT_BYTES: usize = 512 * 1024 * 1024;

/// An arena that has become larger than this is freed at the end of the tick.
const ARENA_RETAIN_BYTES: usize = 2 * 1024 * 1024;

/// Minimum size of backlog chunks, so that a slow reader does not cost one allocation per tick.
const BACKLOG_CHUNK_BYTES: usize = 16 * 1024;

/// How long a connection may have had a backlog for its output to count as a burst.
pub(crate) const BURST_MS: u64 = 1000;

/// If the backlogs of the shard are larger, no connection may exceed its limit for a burst.
pub(crate) const BURST_BACKLOGS_BYTES_MAX: usize = 64 * 1024 * 1024;

const NONE: u32 = u32::MAX;

/// A range of the arena.
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
    /// All bytes encoded in this tick, for all connections.
    pub arena: Vec<u8>,
    links: Vec<RangeLink>,
    lanes: Vec<LaneOutput>,
    dirty: Vec<ConnSlot>,
    backlog_bytes: usize,
    /// Monotonic time of the tick.
    now_ms: u64,
}

struct RangeLink {
    range: Range,
    next: u32,
}

struct LaneOutput {
    head: u32,
    tail: u32,
    /// Bytes in the chain (this tick only).
    chained: u32,
    is_dirty: bool,
    /// Number of reasons not to write to the connection yet.
    holds: u16,
    backlog: Option<Box<OutputBacklog>>,
}

#[derive(Default)]
struct OutputBacklog {
    chunks: VecDeque<OutboxChunk>,
    bytes: usize,
    /// The socket has accepted some of the backlog since the last `take_progress`.
    has_advanced: bool,
    /// Time since which the connection has had a backlog.
    since_ms: u64,
}

enum OutboxChunk {
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

impl OutboxChunk {
    fn as_slice(&self) -> &[u8] {
        match self {
            OutboxChunk::Owned { bytes, start } => &bytes[*start..],
            OutboxChunk::Shared { arena, start, end } => &arena[*start..*end],
        }
    }

    fn advance(&mut self, n: usize) {
        match self {
            OutboxChunk::Owned { start, .. } | OutboxChunk::Shared { start, .. } => *start += n,
        }
    }
}

impl LaneOutput {
    const fn new() -> LaneOutput {
        LaneOutput {
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
    /// Prepares the slot of a new connection.
    pub fn open(&mut self, slot: ConnSlot) {
        let index = slot.0 as usize;
        if self.lanes.len() <= index {
            self.lanes.resize_with(index + 1, LaneOutput::new);
        }
        self.close(slot);
    }

    /// Discards all output of a closed connection.
    pub fn close(&mut self, slot: ConnSlot) {
        let lane = &mut self.lanes[slot.0 as usize];
        let is_dirty = lane.is_dirty;
        if let Some(backlog) = lane.backlog.take() {
            self.backlog_bytes -= backlog.bytes;
        }
        *lane = LaneOutput::new();
        lane.is_dirty = is_dirty;
    }

    /// Returns the position of the next encoded byte; used with `range_from`.
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

    /// Queues a range of the arena for a connection.
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

    /// Returns the bytes that are queued and not written: backlog and this tick's output.
    #[inline]
    pub fn queued_bytes(&self, slot: ConnSlot) -> usize {
        let lane = &self.lanes[slot.0 as usize];
        lane.chained as usize + lane.backlog.as_ref().map_or(0, |b| b.bytes)
    }

    /// Returns whether the driver could not write everything in an earlier tick.
    #[inline]
    pub fn has_backlog(&self, slot: ConnSlot) -> bool {
        self.lanes[slot.0 as usize].backlog.is_some()
    }

    /// Returns whether the socket has accepted some of the backlog since the last call.
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

    /// Returns whether a connection above its output limit may have more output, because it is the target of a burst:
    /// its socket has only just stopped accepting data. A client that reads gets the burst; of one that does not, the
    /// server has at most `burst_bytes`.
    #[cold]
    pub fn accepts_burst(&self, slot: ConnSlot, burst_bytes: usize) -> bool {
        let backlog = self.lanes[slot.0 as usize].backlog.as_ref();
        self.queued_bytes(slot) <= burst_bytes
            && self.backlog_bytes <= BURST_BACKLOGS_BYTES_MAX
            && backlog.is_none_or(|backlog| self.now_ms.saturating_sub(backlog.since_ms) < BURST_MS)
    }

    /// Returns whether a live message may be queued for a connection.
    #[inline]
    pub(crate) fn accepts_live(&self, slot: ConnSlot, config: &ShardConfig) -> bool {
        let has_space = self.queued_bytes(slot) <= config.output_buffer_bytes
            || self.accepts_burst(slot, config.burst_buffer_bytes);
        has_space && !self.is_full()
    }

    /// Returns whether more output of a queue or a replay may be queued for a connection in this tick.
    pub(crate) fn has_tick_capacity(&self, slot: ConnSlot, config: &ShardConfig) -> bool {
        self.queued_bytes(slot) <= config.output_buffer_bytes && !self.is_over_soft_limit()
    }

    /// Stops writing to a connection until `release` has been called as often.
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

    /// Returns whether writing to a connection is stopped.
    pub fn is_held(&self, slot: ConnSlot) -> bool {
        self.lanes[slot.0 as usize].holds > 0
    }

    /// Returns the bytes in all backlogs of the shard.
    pub fn backlog_bytes(&self) -> usize {
        self.backlog_bytes
    }

    // --- called by the driver ---

    pub fn begin_tick(&mut self, now_ms: u64) {
        self.now_ms = now_ms;
    }

    /// Returns the connections with output from this tick. A connection that was closed since has no bytes.
    pub fn dirty(&self) -> &[ConnSlot] {
        &self.dirty
    }

    /// Returns what to write next, backlog first. At most `limit` slices.
    pub fn slices<'a>(&'a self, slot: ConnSlot, limit: usize, out: &mut Vec<&'a [u8]>) {
        let lane = &self.lanes[slot.0 as usize];
        if let Some(backlog) = &lane.backlog {
            out.extend(backlog.chunks.iter().take(limit).map(OutboxChunk::as_slice));
        }
        let mut at = lane.head;
        while at != NONE && out.len() < limit {
            let link = &self.links[at as usize];
            out.push(&self.arena[link.range.start as usize..link.range.end as usize]);
            at = link.next;
        }
    }

    /// Returns the output of this tick without the backlog. Consists of whole packets until some of it is written.
    pub fn tick_output(&self, slot: ConnSlot) -> impl Iterator<Item = &[u8]> {
        let mut at = self.lanes[slot.0 as usize].head;
        std::iter::from_fn(move || {
            let link = self.links.get(at as usize)?;
            at = link.next;
            Some(&self.arena[link.range.start as usize..link.range.end as usize])
        })
    }

    /// Reports that the socket accepted the first `n` bytes of `slices`.
    pub fn record_written(&mut self, slot: ConnSlot, n: usize) {
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

    /// Ends the tick: unsent bytes move to the backlog, and the arena is emptied.
    pub fn end_tick(&mut self) {
        let dirty = std::mem::take(&mut self.dirty);
        let unsent: usize = dirty
            .iter()
            .map(|slot| self.lanes[slot.0 as usize].chained as usize)
            .sum();
        // Sharing saves memory if many connections wait for the same bytes. Otherwise a few bytes would keep a whole
        // arena alive.
        let shared = (unsent > self.arena.len()).then(|| Arc::new(std::mem::take(&mut self.arena)));
        for slot in &dirty {
            self.save_unsent(*slot, shared.as_ref());
        }
        self.dirty = dirty;
        self.dirty.clear();
        self.links.clear();
        self.arena.clear();
        if self.arena.capacity() > ARENA_RETAIN_BYTES {
            self.arena = Vec::new();
        }
    }

    fn save_unsent(&mut self, slot: ConnSlot, shared: Option<&Arc<Vec<u8>>>) {
        let lane = &mut self.lanes[slot.0 as usize];
        let mut at = lane.head;
        if at != NONE {
            let backlog = lane.backlog.get_or_insert_with(|| {
                Box::new(OutputBacklog {
                    since_ms: self.now_ms,
                    ..OutputBacklog::default()
                })
            });
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

impl OutputBacklog {
    fn share(&mut self, arena: &Arc<Vec<u8>>, start: usize, end: usize) {
        self.chunks.push_back(OutboxChunk::Shared {
            arena: arena.clone(),
            start,
            end,
        });
        self.bytes += end - start;
    }

    fn copy(&mut self, bytes: &[u8]) {
        self.bytes += bytes.len();
        if let Some(OutboxChunk::Owned { bytes: last, .. }) = self.chunks.back_mut()
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
        self.chunks.push_back(OutboxChunk::Owned { bytes: chunk, start: 0 });
    }

    /// Removes up to `n` bytes from the front. Returns the number of removed bytes.
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
    fn unsent_bytes_come_first_in_the_next_tick() {
        let mut outbox = outbox();
        send(&mut outbox, &[A, B], b"hello");
        outbox.record_written(A, 2);
        outbox.record_written(B, 5);
        outbox.end_tick();
        assert!(outbox.has_backlog(A) && !outbox.has_backlog(B));
        send(&mut outbox, &[A], b"world");
        assert_eq!(outbox.queued_bytes(A), 8);
        assert_eq!(pending(&outbox, A), b"lloworld");
        outbox.record_written(A, 4);
        assert_eq!(pending(&outbox, A), b"orld");
        outbox.record_written(A, 4);
        outbox.end_tick();
        assert_eq!((outbox.queued_bytes(A), outbox.backlog_bytes()), (0, 0));
    }

    #[test]
    fn slow_readers_of_one_message_share_its_bytes() {
        let mut outbox = outbox();
        send(&mut outbox, &[A, B], &[7; 100]);
        outbox.end_tick();
        assert!(matches!(
            outbox.lanes[0].backlog.as_ref().unwrap().chunks[0],
            OutboxChunk::Shared { start: 0, end: 100, .. }
        ));
        assert_eq!(pending(&outbox, A), [7; 100]);
        outbox.close(A);
        outbox.record_written(B, 100);
        assert_eq!(outbox.backlog_bytes(), 0);
    }

    #[test]
    fn closed_connection_has_no_output() {
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

    #[test]
    fn burst_ends_after_a_second_or_with_the_space() {
        let mut outbox = outbox();
        outbox.begin_tick(5_000);
        send(&mut outbox, &[A], &[7; 100]);
        assert!(outbox.accepts_burst(A, 100) && !outbox.accepts_burst(A, 99));
        outbox.end_tick();
        outbox.begin_tick(5_000 + BURST_MS - 1);
        send(&mut outbox, &[A], &[8; 100]);
        outbox.end_tick();
        assert!(outbox.accepts_burst(A, 200) && !outbox.accepts_burst(A, 199));
        outbox.begin_tick(5_000 + BURST_MS);
        assert!(!outbox.accepts_burst(A, 200), "the client reads too slowly");
        outbox.record_written(A, 200);
        send(&mut outbox, &[A], &[9; 100]);
        outbox.end_tick();
        assert!(outbox.accepts_burst(A, 100), "the client has read everything");
        outbox.backlog_bytes = BURST_BACKLOGS_BYTES_MAX + 1;
        assert!(!outbox.accepts_burst(A, 100), "the backlogs of the shard are too large");
    }
}
