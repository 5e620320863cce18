//! Latency of acknowledgements to publishers: from the start of the tick that read a PUBLISH of QoS 1 or 2 to the end
//! of the tick that wrote its acknowledgement, including the commit to the journal between them. Not included is the
//! time in the kernel before the message was read. Ticks that wait for a rule's action or for the storage of a device's
//! message are not measured.
//!
//! A tick of which nothing waits for the journal is recorded at its end, even if earlier ticks still wait: no event
//! would follow.
//!
//! The clock is read once per tick, at its end, and only if there is something to record. All messages of a tick get
//! the time of the last one, so that the figure is rather too high than too low.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use broker::Shard;
use journal::{AtomicHistogram, Lsn};

/// Upper bounds of the buckets, in microseconds.
pub const PUBLISH_ACK_BOUNDS_US: [u64; 14] = [
    50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 1_000_000, 5_000_000,
];

/// Maximum number of ticks that wait for the journal. Beyond it, further ticks are merged into the last one.
const WAITING_MAX: usize = 1024;

#[derive(Default)]
pub(crate) struct AckLatency {
    /// QoS 1 and 2 messages received up to the end of the last tick.
    received_messages: u64,
    waiting: VecDeque<WaitingTick>,
}

/// A tick at its end.
pub(crate) struct EndedTick {
    pub(crate) began: Instant,
    /// Ends of the log before and after the tick.
    pub(crate) appended_before: Lsn,
    pub(crate) appended: Lsn,
    pub(crate) committed: Lsn,
    pub(crate) has_journal_failed: bool,
}

/// A tick whose acknowledgements wait for a commit.
struct WaitingTick {
    end: Lsn,
    began: Instant,
    messages: u64,
}

impl AckLatency {
    /// Records the latency at the end of a tick.
    pub(crate) fn record(&mut self, tick: &EndedTick, shard: &Shard, histogram: &AtomicHistogram) {
        if tick.has_journal_failed {
            // These messages are never acknowledged.
            self.waiting.clear();
        }
        let seen = shard.inspect().acknowledged_messages();
        let messages = seen - std::mem::replace(&mut self.received_messages, seen);
        if messages == 0 && !self.has_committed(tick.committed) {
            return;
        }
        let now = Instant::now();
        while let Some(waiting) = self.take_committed(tick.committed) {
            histogram.add_many(micros(now - waiting.began), waiting.messages);
        }
        if messages == 0 || shard.inspect().taps().is_waiting() {
            return;
        }
        let last = shard.inspect().ledger().last_awaited().map(Lsn);
        match required_commit(last, tick.appended_before, tick.appended) {
            Some(_) if tick.has_journal_failed => {}
            Some(end) => self.wait(end, tick.began, messages),
            None => histogram.add_many(micros(now - tick.began), messages),
        }
    }

    fn has_committed(&self, committed: Lsn) -> bool {
        self.waiting.front().is_some_and(|first| first.end <= committed)
    }

    fn take_committed(&mut self, committed: Lsn) -> Option<WaitingTick> {
        self.waiting.pop_front_if(|first| first.end <= committed)
    }

    fn wait(&mut self, end: Lsn, began: Instant, messages: u64) {
        let is_full = self.waiting.len() >= WAITING_MAX;
        match self.waiting.back_mut().filter(|_| is_full) {
            Some(last) => {
                last.end = end;
                last.messages += messages;
            }
            None => self.waiting.push_back(WaitingTick { end, began, messages }),
        }
    }
}

/// Returns the journal position that must be committed before all acknowledgements of a tick are written. `None` if
/// they have been written. `last` is the end of the records that are waited for; `before` and `appended` are the ends
/// of the log before and after the tick. Records that wait behind those of an earlier tick are not distinguished from
/// them.
fn required_commit(last: Option<Lsn>, before: Lsn, appended: Lsn) -> Option<Lsn> {
    last.filter(|last| *last > before || *last == appended)
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

pub(crate) fn histogram() -> AtomicHistogram {
    AtomicHistogram::new(&PUBLISH_ACK_BOUNDS_US)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tick_waits_for_its_own_journal_records() {
        let until = |last, before, appended| required_commit(last, Lsn(before), Lsn(appended));
        assert_eq!(until(None, 100, 200), None, "nothing waits");
        assert_eq!(
            until(Some(Lsn(100)), 100, 200),
            None,
            "the wait belongs to an earlier tick"
        );
        assert_eq!(until(Some(Lsn(200)), 100, 200), Some(Lsn(200)));
        // Only the first of two batches is waited for.
        assert_eq!(until(Some(Lsn(150)), 100, 200), Some(Lsn(150)));
        // The tick has appended nothing, and waits behind an earlier one.
        assert_eq!(until(Some(Lsn(200)), 200, 200), Some(Lsn(200)));
        assert_eq!(until(Some(Lsn(100)), 200, 200), None);
    }

    #[test]
    fn waiting_ticks_are_bounded_and_complete_in_order() {
        let (mut latency, began) = (AckLatency::default(), Instant::now());
        for n in 1..=WAITING_MAX as u64 + 10 {
            latency.wait(Lsn(n), began, 2);
        }
        assert_eq!(latency.waiting.len(), WAITING_MAX);
        assert!(!latency.has_committed(Lsn(0)) && latency.has_committed(Lsn(1)));
        let all: u64 = std::iter::from_fn(|| latency.take_committed(Lsn(u64::MAX)))
            .map(|one| one.messages)
            .sum();
        assert_eq!(all, 2 * (WAITING_MAX as u64 + 10));
    }
}
