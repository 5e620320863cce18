//! A hierarchical timer wheel: keep-alives, expiries, will delays and retries of one shard.
//!
//! Time is milliseconds of the caller's clock. Deadlines are rounded up to ticks of [`TICK_MS`], so an entry fires up to
//! one tick late and never early. Level n holds what differs from the present tick in its n-th group of six bits, so a far
//! entry moves down at most once per level on its way, and a jump of the clock costs the occupied slots, not the ticks.
//! There is no cancelling: a fired entry says "look again", and whoever no longer waits ignores it.
//!
//! An entry takes the deadline and `T`; a slot grows by a quarter and gives its memory back when it is due.
//! Invariants: every entry in a level is later than the present tick; a slot's bit in `occupied` says whether it has any;
//! all entries of a level are earlier than those of the next.

#[cfg(test)]
mod tests;

/// How late an entry may fire.
pub const TICK_MS: u64 = 16;

const SLOT_BITS: u32 = 6;
const SLOTS: usize = 1 << SLOT_BITS;
/// 60 bits of ticks: all of `u64` milliseconds.
const LEVELS: usize = 10;
const TICK_MAX: u64 = (1 << (LEVELS as u32 * SLOT_BITS)) - 1;

pub struct TimerWheel<T> {
    levels: Box<[Level<T>]>,
    /// Was due when it was inserted.
    due: Vec<Timer<T>>,
    tick: u64,
    len: usize,
}

struct Level<T> {
    occupied: u64,
    slots: [Vec<Timer<T>>; SLOTS],
}

#[derive(Clone, Copy)]
struct Timer<T> {
    deadline_ms: u64,
    value: T,
}

/// An occupied slot and the first tick of its span.
struct Earliest {
    level: usize,
    slot: usize,
    tick: u64,
}

impl<T: Copy> TimerWheel<T> {
    /// A wheel whose clock stands at `now_ms`.
    pub fn new(now_ms: u64) -> Self {
        let levels = (0..LEVELS).map(|_| Level {
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

    /// `deadline_ms` may have passed: then the next [`TimerWheel::advance`] fires it.
    pub fn insert(&mut self, deadline_ms: u64, value: T) {
        self.len += 1;
        self.place(Timer { deadline_ms, value });
    }

    /// Moves the clock and pushes what is due, in the order of deadlines and, among equal ones, of insertion.
    /// A clock that went back changes nothing.
    pub fn advance(&mut self, now_ms: u64, fired: &mut Vec<T>) {
        let now_tick = now_ms / TICK_MS;
        if now_tick < self.tick {
            return;
        }
        if !self.due.is_empty() {
            let due = std::mem::take(&mut self.due);
            self.fire(due, fired);
        }
        while let Some(Earliest { level, slot, tick }) = self.earliest().filter(|earliest| earliest.tick <= now_tick) {
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

    /// When to call [`TimerWheel::advance`] next. Earlier than the first deadline if that is far away, at most a tick later.
    pub fn next_deadline(&self) -> Option<u64> {
        if !self.due.is_empty() {
            return Some(self.tick * TICK_MS);
        }
        self.earliest().map(|earliest| earliest.tick * TICK_MS)
    }

    fn place(&mut self, timer: Timer<T>) {
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

    fn earliest(&self) -> Option<Earliest> {
        let level = self.levels.iter().position(|level| level.occupied != 0)?;
        let slot = self.levels[level].occupied.trailing_zeros() as usize;
        let shift = level as u32 * SLOT_BITS;
        let above = self.tick >> (shift + SLOT_BITS) << SLOT_BITS;
        Some(Earliest {
            level,
            slot,
            tick: (above | slot as u64) << shift,
        })
    }

    /// Spreads a slot whose span has begun over the levels below. What is due at this very tick fires.
    fn move_down(&mut self, timers: Vec<Timer<T>>, fired: &mut Vec<T>) {
        for timer in timers {
            self.place(timer);
        }
        if !self.due.is_empty() {
            let due = std::mem::take(&mut self.due);
            self.fire(due, fired);
        }
    }

    fn fire(&mut self, mut timers: Vec<Timer<T>>, fired: &mut Vec<T>) {
        timers.sort_by_key(|timer| timer.deadline_ms);
        self.len -= timers.len();
        fired.extend(timers.into_iter().map(|timer| timer.value));
    }
}

impl<T> Level<T> {
    fn take(&mut self, slot: usize) -> Vec<Timer<T>> {
        self.occupied &= !(1 << slot);
        std::mem::take(&mut self.slots[slot])
    }
}

/// Grows by a quarter: doubling would leave a third of the wheel's memory unused.
fn push<T>(timers: &mut Vec<Timer<T>>, timer: Timer<T>) {
    if timers.len() == timers.capacity() {
        timers.reserve_exact((timers.len() / 4).max(4));
    }
    timers.push(timer);
}
