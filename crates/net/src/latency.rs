//! How long publishers wait: from the beginning of the tick that read a PUBLISH of QoS 1 or 2 to the end of the tick that wrote its
//! acknowledgement, the commit to the journal between them included. What a message waited in the kernel before it was read is not in it,
//! nor are ticks at whose end anything waits for a rule's action or a device's message to be kept, with all their messages.
//!
//! A tick of which nothing waits for the journal counts at its end, although others wait: nobody would be woken for it.
//!
//! The clock is read once per tick, at its end, and only if there is something to note. All messages of a tick count with the time of the last of
//! them, so that what is told is rather too long than too short.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use journal::{Health, Histogram, Lsn};

use crate::worker::Worker;

/// Upper bounds, in microseconds.
pub const PUBLISH_ACK_BOUNDS_US: [u64; 14] = [
    25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 1_000_000,
];

/// Ticks that wait for the journal; beyond them, the youngest takes along what comes.
const WAITING_MAX: usize = 1024;

#[derive(Default)]
pub(crate) struct AckLatency {
    /// Messages of QoS 1 and 2 that had been received at the end of the last tick.
    seen: u64,
    waiting: VecDeque<Waiting>,
}

/// A tick, until the journal has what its acknowledgements wait for.
struct Waiting {
    end: Lsn,
    began: Instant,
    messages: u64,
}

impl AckLatency {
    fn is_kept(&self, committed: Lsn) -> bool {
        self.waiting.front().is_some_and(|first| first.end <= committed)
    }

    fn take_kept(&mut self, committed: Lsn) -> Option<Waiting> {
        self.waiting.pop_front_if(|first| first.end <= committed)
    }

    fn wait(&mut self, end: Lsn, began: Instant, messages: u64) {
        let is_full = self.waiting.len() >= WAITING_MAX;
        match self.waiting.back_mut().filter(|_| is_full) {
            Some(last) => {
                last.end = end;
                last.messages += messages;
            }
            None => self.waiting.push_back(Waiting { end, began, messages }),
        }
    }
}

/// Up to where the journal must be before all that a tick acknowledges has been written; none if it has been. `last` is the end of
/// what is waited for, `before` and `appended` that of what had been appended before the tick and after it. What waits behind an
/// earlier tick's is not told apart from that.
fn waits_until(last: Option<Lsn>, before: Lsn, appended: Lsn) -> Option<Lsn> {
    last.filter(|last| *last > before || *last == appended)
}

impl Worker {
    /// The end of a tick that began then, with so much in the journal.
    pub(crate) fn note_latency(&mut self, began: Instant, appended_before: Lsn) {
        let has_failed = self.journal_health == Health::Failed;
        if has_failed {
            // They are never acknowledged.
            self.latency.waiting.clear();
        }
        let seen = self.shard.acknowledged_messages();
        let messages = seen - std::mem::replace(&mut self.latency.seen, seen);
        if messages == 0 && !self.latency.is_kept(self.committed) {
            return;
        }
        let histogram = &self.common.ack_latency_us[usize::from(self.id.0)];
        let now = Instant::now();
        while let Some(kept) = self.latency.take_kept(self.committed) {
            histogram.add_many(micros(now - kept.began), kept.messages);
        }
        if messages == 0 || self.shard.is_waiting_for_tap() {
            return;
        }
        let last = self.shard.waits_longest_for_journal().map(Lsn);
        match waits_until(last, appended_before, self.appended) {
            Some(_) if has_failed => {}
            Some(end) => self.latency.wait(end, began, messages),
            None => histogram.add_many(micros(now - began), messages),
        }
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

pub(crate) fn histogram() -> Histogram {
    Histogram::new(&PUBLISH_ACK_BOUNDS_US)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tick_waits_for_the_journal_if_anything_of_its_own_does() {
        let until = |last, before, appended| waits_until(last, Lsn(before), Lsn(appended));
        assert_eq!(until(None, 100, 200), None, "nobody waits");
        assert_eq!(
            until(Some(Lsn(100)), 100, 200),
            None,
            "what waits is of an earlier tick"
        );
        assert_eq!(until(Some(Lsn(200)), 100, 200), Some(Lsn(200)));
        // Of two batches only the first is waited for.
        assert_eq!(until(Some(Lsn(150)), 100, 200), Some(Lsn(150)));
        // It has appended nothing, and is behind an earlier one.
        assert_eq!(until(Some(Lsn(200)), 200, 200), Some(Lsn(200)));
        assert_eq!(until(Some(Lsn(100)), 200, 200), None);
    }

    #[test]
    fn what_waits_for_the_journal_is_bounded_and_leaves_in_order() {
        let (mut latency, began) = (AckLatency::default(), Instant::now());
        for n in 1..=WAITING_MAX as u64 + 10 {
            latency.wait(Lsn(n), began, 2);
        }
        assert_eq!(latency.waiting.len(), WAITING_MAX);
        assert!(!latency.is_kept(Lsn(0)) && latency.is_kept(Lsn(1)));
        let all: u64 = std::iter::from_fn(|| latency.take_kept(Lsn(u64::MAX)))
            .map(|one| one.messages)
            .sum();
        assert_eq!(all, 2 * (WAITING_MAX as u64 + 10));
    }
}
