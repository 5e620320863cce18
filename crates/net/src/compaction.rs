//! Which messages of a long log are written once more, so that one that waits for long does not keep all of the log behind it.
//!
//! In passes: when the log has become long, each checkpoint moves a part of what is oldest, until all that stood there when the
//! pass began has gone. What is left then is what somebody waits for; the next pass begins when the log has twice that length.
//! So a byte that stays is written once more for each byte that goes, at most, however much stays.

use ::journal::Lsn;

/// A log of so many times what is appended between two checkpoints is never long.
const SHORT: u64 = 4;

/// What one checkpoint moves, in the same measure.
const PART: u64 = 2;

#[derive(Debug, Default)]
pub(crate) struct Compaction {
    /// Where the pass ends.
    until: Option<Lsn>,
    /// What the last pass left.
    left_bytes: u64,
}

/// Whether a log is longer than it should be if nobody waits for what is in it.
pub(crate) fn is_long(length: u64, checkpoint_bytes: u64) -> bool {
    length > SHORT * checkpoint_bytes
}

impl Compaction {
    /// Called for each checkpoint: everything before the answer is to be moved.
    pub(crate) fn move_before(&mut self, first: Lsn, next: Lsn, checkpoint_bytes: u64, quota_bytes: u64) -> Lsn {
        let length = next.0 - first.0;
        if self.until.is_some_and(|until| first >= until) {
            self.until = None;
            self.left_bytes = length;
        }
        let short = SHORT * checkpoint_bytes;
        // A log that may not become twice as long must not wait for it.
        let long = (2 * self.left_bytes).min(quota_bytes / 4 * 3).max(short);
        if self.until.is_none() && length > long {
            self.until = Some(next);
        }
        match self.until {
            Some(until) => Lsn(first.0 + PART * checkpoint_bytes).min(until),
            None => Lsn(0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHECKPOINT: u64 = 100;

    /// A log with a queue of `waiting` bytes at its beginning, of which moved parts go to the end, and 100 bytes of what nobody waits
    /// for between two checkpoints. Returns how many bytes were moved during `checkpoints`, and how long the log was at most.
    fn run(waiting: u64, checkpoints: u64, quota: u64) -> (u64, u64) {
        let mut compaction = Compaction::default();
        // Stretches: whether somebody waits for it, and its length.
        let mut log = vec![(true, waiting)];
        let (mut first, mut moved_bytes, mut longest) = (0, 0, 0);
        for _ in 0..checkpoints {
            log.push((false, CHECKPOINT));
            let length: u64 = log.iter().map(|(_, bytes)| bytes).sum();
            longest = length.max(longest);
            let before = compaction
                .move_before(Lsn(first), Lsn(first + length), CHECKPOINT, quota)
                .0;
            let mut moved = 0;
            while let Some((is_waited_for, bytes)) = log.first_mut() {
                let part = match *is_waited_for {
                    true => before.saturating_sub(first).min(*bytes),
                    false => *bytes,
                };
                moved += if *is_waited_for { part } else { 0 };
                first += part;
                *bytes -= part;
                if *bytes > 0 {
                    break;
                }
                log.remove(0);
            }
            if moved > 0 {
                log.push((true, moved));
            }
            moved_bytes += moved;
        }
        (moved_bytes, longest)
    }

    #[test]
    fn a_straggler_is_moved_out_of_the_way() {
        let (moved, longest) = run(1, 1000, u64::MAX);
        assert!(moved <= 1000 / 4, "once in four checkpoints at most, not {moved} times");
        assert!(longest <= 6 * CHECKPOINT, "{longest}");
    }

    #[test]
    fn a_long_queue_is_not_moved_all_the_time() {
        let (moved, longest) = run(10_000, 1000, u64::MAX);
        let appended = 1000 * CHECKPOINT;
        assert!(moved <= appended * 5 / 4, "{moved} bytes moved for {appended} appended");
        assert!(longest <= 35_000, "{longest}");
    }

    #[test]
    fn a_log_that_may_not_become_twice_as_long_makes_room_before() {
        let (_, longest) = run(10_000, 1000, 16_000);
        assert!(longest < 16_000, "{longest}");
    }

    #[test]
    fn a_short_log_is_left_alone() {
        assert_eq!(run(50, 3, u64::MAX).0, 0);
    }
}
