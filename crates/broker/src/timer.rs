//! A hierarchical timer wheel for keep-alives, expiries, will delays and retries of one shard.
//!
//! Times are milliseconds of the caller's clock. Deadlines are rounded up to ticks of [`TICK_MS`], so a timer fires up
//! to one tick late and never early. Level n contains the timers whose tick differs from the current one in the n-th
//! group of six bits. So a timer moves down at most once per level, and a jump of the clock costs time per occupied
//! slot, not per tick. Timers are not cancelled: the receiver of a fired timer checks whether it still applies.
//!
//! An entry takes the deadline and `T`. A slot grows by a quarter and frees its memory when it is due. Invariants:
//! every timer in a level is later than the current tick; a bit of `occupied` says whether its slot has timers; all
//! timers of a level are earlier than those of the next.

#[cfg(test)]
mod tests;

/// Maximum delay of a timer.
pub const TICK_MS: u64 = 16;

const SLOT_BITS: u32 = 6;
const SLOTS: usize = 1 << SLOT_BITS;
/// 60 bits of ticks cover all `u64` milliseconds.
const LEVELS: usize = 10;
const TICK_MAX: u64 = (1 << (LEVELS as u32 * SLOT_BITS)) - 1;

pub struct TimerWheel<T> {
    levels: Box<[WheelLevel<T>]>,
    /// Timers that were due when they were inserted.
    due: Vec<WheelTimer<T>>,
    tick: u64,
    len: usize,
}

struct WheelLevel<T> {
    occupied: u64,
    slots: [Vec<WheelTimer<T>>; SLOTS],
}

#[derive(Clone, Copy)]
struct WheelTimer<T> {
    deadline_ms: u64,
    value: T,
}

/// An occupied slot and the first tick of its span.
struct EarliestSlot {
    level: usize,
    slot: usize,
    tick: u64,
}

impl<T: Copy> TimerWheel<T> {
    /// Creates a wheel at time `now_ms`.
    pub fn new(now_ms: u64) -> Self {
        let levels = (0..LEVELS).map(|_| WheelLevel {
            occupied: 0,
            slots: std::array::from_fn(|_| Vec::new()),
        });
        Self {
            levels: levels.collect(),
            due: Vec::new(),
            tick: now_ms / TICK_MS,
            len: 0,
        }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Inserts a timer. If `deadline_ms` has passed, the next [`TimerWheel::advance`] fires it.
    pub fn insert(&mut self, deadline_ms: u64, value: T) {
        self.len += 1;
        self.place(WheelTimer { deadline_ms, value });
    }

    /// Advances the clock and pushes due timers, in the order of deadlines and, for equal ones, of insertion. A clock
    /// that goes back changes nothing.
    pub fn advance(&mut self, now_ms: u64, fired: &mut Vec<T>) {
        let now_tick = now_ms / TICK_MS;
        if now_tick < self.tick {
            return;
        }
        if !self.due.is_empty() {
            let due = std::mem::take(&mut self.due);
            self.fire(due, fired);
        }
        while let Some(EarliestSlot { level, slot, tick }) =
            self.earliest().filter(|earliest| earliest.tick <= now_tick)
        {
            self.tick = tick;
            let timers = self.levels[level].take(slot);
            if level == 0 {
                self.fire(timers, fired);
            } else {
                self.move_down(timers, fired);
            }
        }
        self.tick = now_tick;
    }

    /// Returns when to call [`TimerWheel::advance`] next: at most a tick after the first deadline, and possibly before
    /// it if that is far away.
    pub fn next_deadline(&self) -> Option<u64> {
        if !self.due.is_empty() {
            return Some(self.tick * TICK_MS);
        }
        self.earliest().map(|earliest| earliest.tick * TICK_MS)
    }

    fn place(&mut self, timer: WheelTimer<T>) {
        let tick = timer.deadline_ms.div_ceil(TICK_MS).min(TICK_MAX);
        if tick <= self.tick {
            push(&mut self.due, timer);
            return;
        }
        let level = ((tick ^ self.tick).ilog2() / SLOT_BITS) as usize;
        let slot = (tick >> (level as u32 * SLOT_BITS)) as usize % SLOTS;
        self.levels[level].occupied |= 1 << slot;
        push(&mut self.levels[level].slots[slot], timer);
    }

    fn earliest(&self) -> Option<EarliestSlot> {
        let level = self.levels.iter().position(|level| level.occupied != 0)?;
        let slot = self.levels[level].occupied.trailing_zeros() as usize;
        let shift = level as u32 * SLOT_BITS;
        let above = self.tick >> (shift + SLOT_BITS) << SLOT_BITS;
        Some(EarliestSlot {
            level,
            slot,
            tick: (above | slot as u64) << shift,
        })
    }

    /// Moves the timers of a slot whose span has begun to lower levels. Timers that are due at this tick fire.
    fn move_down(&mut self, timers: Vec<WheelTimer<T>>, fired: &mut Vec<T>) {
        for timer in timers {
            self.place(timer);
        }
        if !self.due.is_empty() {
            let due = std::mem::take(&mut self.due);
            self.fire(due, fired);
        }
    }

    fn fire(&mut self, mut timers: Vec<WheelTimer<T>>, fired: &mut Vec<T>) {
        timers.sort_by_key(|timer| timer.deadline_ms);
        self.len -= timers.len();
        fired.extend(timers.into_iter().map(|timer| timer.value));
    }
}

impl<T> WheelLevel<T> {
    fn take(&mut self, slot: usize) -> Vec<WheelTimer<T>> {
        self.occupied &= !(1 << slot);
        std::mem::take(&mut self.slots[slot])
    }
}

/// Grows by a quarter, because doubling would leave a third of the wheel's memory unused.
fn push<T>(timers: &mut Vec<WheelTimer<T>>, timer: WheelTimer<T>) {
    if timers.len() == timers.capacity() {
        timers.reserve_exact((timers.len() / 4).max(4));
    }
    timers.push(timer);
}
