//! Chooses the messages of a long log that compaction rewrites, so that one message that waits long does not retain the
//! whole log after it.
//!
//! Compaction works in passes. When the log has become long, each checkpoint rewrites a part of the oldest messages,
//! until everything that was there at the start of the pass is rewritten or delivered. The messages that remain are
//! still waited for, so the next pass starts when the log has twice that length. A remaining byte is thus rewritten at
//! most once per delivered byte. If the quota does not allow twice the length, a pass starts while there is still space
//! for the pass itself, and remaining bytes are rewritten more often.
//!
//! Space for a pass: rewritten messages exist twice until the old segments are removed, `REMOVAL_LAG` checkpoints
//! later. While remaining messages are rewritten, no space is gained, but more is appended. Larger parts need more
//! space for the former, smaller parts for the latter.
//!
//! If target disk space is left, a checkpoint rewrites only a part of what fits: delivery has to write as well, and an
//! append that does not fit blocks all later ones.

use ::journal::Lsn;

/// A log is never long up to this multiple of the checkpoint interval.
const SHORT_INTERVALS: u64 = 4;

/// Minimum bytes rewritten per checkpoint, as a multiple of the checkpoint interval.
const PART_INTERVALS: u64 = 2;

/// Number of checkpoints after which the original of a rewritten message is removed.
const REMOVAL_LAG: u64 = 3;

/// One checkpoint may rewrite the free space, less the part left for delivery, divided by this number: other processes
/// use space too.
const FREE_SPACE_DIVISOR: u64 = 4;

/// The messages that one checkpoint rewrites: those before a position, at most `bytes`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RewritePart {
    pub before: Lsn,
    pub bytes: u64,
}

/// Space for writing behind the appended records.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FreeSpace {
    pub bytes: u64,
    pub segment_bytes: u64,
    /// Size of a checkpoint, in bytes.
    pub snapshot_bytes: u64,
}

impl FreeSpace {
    /// Returns the number of bytes that may be rewritten. Half a segment is left for delivery, and space for the
    /// checkpoints until segments are removed.
    fn rewritable_bytes(self) -> u64 {
        let left = self.segment_bytes / 2 + REMOVAL_LAG * self.snapshot_bytes;
        self.bytes.saturating_sub(left) / FREE_SPACE_DIVISOR
    }
}

#[derive(Debug, Default)]
pub(crate) struct Compaction {
    pass: Option<CompactionPass>,
    /// Length of the log after the last pass.
    left_bytes: u64,
    grant: RewriteGrant,
}

/// Limits the bytes rewritten before a position while the log is full. If the grant is used up, the messages there are
/// still waited for, and rewriting more gains nothing until they are delivered. It is renewed at increasing intervals.
#[derive(Debug, Default)]
struct RewriteGrant {
    before: Lsn,
    bytes: u64,
    /// Age in checkpoints.
    age: u64,
    renewal_age: u64,
}

impl RewriteGrant {
    fn renew(&mut self, before: Lsn, bytes: u64) {
        self.age += 1;
        if before > self.before {
            *self = RewriteGrant {
                before,
                bytes,
                age: 0,
                renewal_age: 2 * REMOVAL_LAG,
            };
        } else if self.age >= self.renewal_age {
            self.bytes = bytes;
            self.age = 0;
            self.renewal_age = self.renewal_age.saturating_mul(2);
        }
        // There may be less space now.
        self.bytes = self.bytes.min(bytes);
    }
}

#[derive(Debug)]
struct CompactionPass {
    until: Lsn,
    /// Everything before this position is rewritten. The log begins there, or at its segment, some checkpoints later.
    rewritten_to: Lsn,
    part: u64,
    checkpoints: u64,
    /// Checkpoints since everything has been rewritten.
    removing: u64,
}

/// Returns whether a log is longer than necessary, assuming that nothing waits for its messages.
pub(crate) fn is_long(length: u64, checkpoint_bytes: u64) -> bool {
    length > SHORT_INTERVALS * checkpoint_bytes
}

impl Compaction {
    /// Returns what the next checkpoint rewrites. Called once per checkpoint.
    pub(crate) fn next_part(
        &mut self,
        first: Lsn,
        next: Lsn,
        checkpoint_bytes: u64,
        quota_bytes: u64,
        space: FreeSpace,
    ) -> RewritePart {
        let length = next.0 - first.0;
        self.end_pass(length, checkpoint_bytes);
        // The space needed by a pass is minimal with parts of this length.
        let even = (u128::from(checkpoint_bytes) * u128::from(length) / u128::from(REMOVAL_LAG)).isqrt();
        let part = (PART_INTERVALS * checkpoint_bytes).max(even as u64);
        let needed = REMOVAL_LAG * (checkpoint_bytes + part) + checkpoint_bytes * self.left_bytes / part;
        // A log that must not double its length starts the pass earlier.
        let long = (2 * self.left_bytes).min(quota_bytes.saturating_sub(needed));
        if self.pass.is_none() && length > long.max(SHORT_INTERVALS * checkpoint_bytes) {
            self.pass = Some(CompactionPass {
                until: next,
                rewritten_to: first,
                part,
                checkpoints: 0,
                removing: 0,
            });
        }
        let Some(pass) = &mut self.pass else {
            return RewritePart::default();
        };
        pass.checkpoints += 1;
        let bytes = space.rewritable_bytes();
        pass.rewritten_to = Lsn(pass.rewritten_to.max(first).0 + pass.part.min(bytes)).min(pass.until);
        RewritePart {
            before: pass.rewritten_to,
            bytes,
        }
    }

    /// As `next_part`, while the log is full. Rewrites at most what fits beyond the quota and in the reserve, but
    /// always something, or the messages at the start would keep the log full forever. Rewrites more than the
    /// checkpoints add until segments are removed, or the checkpoints would make the log longer and longer.
    pub(crate) fn next_part_when_full(
        &mut self,
        first: Lsn,
        next: Lsn,
        checkpoint_bytes: u64,
        space: FreeSpace,
    ) -> RewritePart {
        self.end_pass(next.0 - first.0, checkpoint_bytes);
        let bytes = space.rewritable_bytes();
        // Enough to remove a segment: only a little of it may be waited for.
        let part = checkpoint_bytes
            .max(2 * REMOVAL_LAG * space.snapshot_bytes)
            .min(bytes.max(2 * space.segment_bytes));
        let target = Lsn(first.0 + part).min(next);
        let pass = self.pass.get_or_insert(CompactionPass {
            until: first,
            rewritten_to: first,
            part: 0,
            checkpoints: 0,
            removing: 0,
        });
        if target > pass.rewritten_to {
            pass.rewritten_to = target;
            pass.removing = 0;
        }
        pass.checkpoints += 1;
        pass.until = pass.rewritten_to;
        self.grant.renew(pass.rewritten_to, bytes);
        RewritePart {
            before: pass.rewritten_to,
            bytes: self.grant.bytes,
        }
    }

    /// Records how many bytes a checkpoint has rewritten.
    pub(crate) fn record_rewritten(&mut self, bytes: u64) {
        self.grant.bytes = self.grant.bytes.saturating_sub(bytes);
    }

    fn end_pass(&mut self, length: u64, checkpoint_bytes: u64) {
        if let Some(pass) = self.pass.as_mut().filter(|pass| pass.rewritten_to >= pass.until) {
            pass.removing += 1;
            if pass.removing > REMOVAL_LAG {
                // The rest of the log was appended during the pass.
                self.left_bytes = length.saturating_sub(pass.checkpoints * checkpoint_bytes);
                self.pass = None;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHECKPOINT: u64 = 100;

    const SEGMENT: u64 = 70;

    /// Disk with `bytes` free.
    fn space(bytes: u64, snapshot_bytes: u64) -> FreeSpace {
        FreeSpace {
            bytes,
            segment_bytes: SEGMENT,
            snapshot_bytes,
        }
    }

    /// Simulates a log with a queue of `waiting` bytes at its start, whose rewritten parts go to the end, and 100 bytes
    /// of other records between two checkpoints. As in the journal, only whole segments are removed that two
    /// consecutive checkpoints did not need. Returns the rewritten bytes and the maximum length of the log.
    fn run(waiting: u64, checkpoints: u64, quota: u64) -> (u64, u64) {
        let (moved_bytes, longest, _) = run_with(waiting, checkpoints, quota, 0);
        (moved_bytes, longest)
    }

    /// As `run`, with checkpoints that take `snapshot` bytes themselves. Also returns the number of checkpoints of a
    /// full log, to which nothing else is appended.
    fn run_with(waiting: u64, checkpoints: u64, quota: u64, snapshot: u64) -> (u64, u64, u64) {
        let mut compaction = Compaction::default();
        // Ranges of messages that are waited for.
        let mut waited = vec![(0, waiting)];
        let (mut first, mut next) = (0, waiting);
        let (mut moved_bytes, mut longest, mut needed_before, mut full) = (0, 0, 0, 0);
        for _ in 0..checkpoints {
            let is_full = next - first > quota;
            full += u64::from(is_full);
            next += if is_full { 0 } else { CHECKPOINT };
            longest = (next - first).max(longest);
            let replay_from = next;
            let before = match next - first > quota {
                true => {
                    let space = space(u64::MAX, snapshot);
                    compaction.next_part_when_full(Lsn(first), Lsn(next), CHECKPOINT, space)
                }
                false => {
                    let space = space(u64::MAX, snapshot);
                    compaction.next_part(Lsn(first), Lsn(next), CHECKPOINT, quota, space)
                }
            };
            let before = before.before.0;
            let mut moved = 0;
            for (from, to) in &mut waited {
                let until = before.clamp(*from, *to);
                moved += until - *from;
                *from = until;
            }
            waited.retain(|(from, to)| from < to);
            if moved > 0 {
                waited.push((next, next + moved));
                next += moved;
            }
            moved_bytes += moved;
            next += snapshot;
            let oldest = waited.iter().map(|(from, _)| *from).min();
            let needed = oldest.unwrap_or(replay_from).min(replay_from);
            first = first.max(needed.min(needed_before) / SEGMENT * SEGMENT);
            needed_before = needed;
        }
        (moved_bytes, longest, full)
    }

    #[test]
    fn single_waiting_message_is_rewritten() {
        let (moved, longest) = run(1, 1000, u64::MAX);
        assert!(moved <= 1000 / 4, "once in four checkpoints at most, not {moved} times");
        assert!(longest <= 12 * CHECKPOINT, "{longest}");
    }

    #[test]
    fn long_queue_is_rewritten_rarely() {
        let (moved, longest) = run(10_000, 1000, u64::MAX);
        let appended = 1000 * CHECKPOINT;
        assert!(moved <= appended * 5 / 4, "{moved} bytes moved for {appended} appended");
        assert!(longest <= 35_000, "{longest}");
    }

    #[test]
    fn log_near_its_quota_is_compacted_early() {
        let (_, longest) = run(10_000, 1000, 16_000);
        assert!(longest < 16_000, "{longest}");
    }

    #[test]
    fn single_waiting_message_does_not_fill_the_log() {
        // The smallest possible quota is 64 checkpoints.
        let (_, longest) = run(1, 10_000, 64 * CHECKPOINT);
        assert!(longest <= 12 * CHECKPOINT, "{longest}");
    }

    #[test]
    fn queue_of_half_the_quota_does_not_fill_the_log() {
        // The smallest quota in checkpoints, and one of a log whose checkpoints are far apart.
        for quota in [64 * CHECKPOINT, 160 * CHECKPOINT] {
            for percent in [1, 20, 40, 50, 60] {
                let (moved, longest, full) = run_with(quota * percent / 100, 4000, quota, 0);
                assert_eq!(full, 0, "{percent} % of {quota}: {longest} bytes");
                let appended = 4000 * CHECKPOINT;
                assert!(
                    moved < 4 * appended,
                    "{percent} % of {quota}: {moved} bytes moved for {appended}"
                );
            }
        }
    }

    #[test]
    fn checkpoints_of_a_full_log_do_not_lengthen_it() {
        let quota = 64 * CHECKPOINT;
        // Everything is waited for, except what the checkpoints write.
        let (_, longest, _) = run_with(1, 10_000, quota, 6 * CHECKPOINT);
        assert!(longest < 2 * quota, "{longest}");
    }

    #[test]
    fn full_log_is_compacted_step_by_step() {
        let mut compaction = Compaction::default();
        let (first, next) = (Lsn(1_000), Lsn(1_000 + 16 * CHECKPOINT));
        let target = Lsn(1_000 + CHECKPOINT);
        for _ in 0..10 {
            assert_eq!(
                compaction
                    .next_part_when_full(first, next, CHECKPOINT, space(u64::MAX, 0))
                    .before,
                target,
                "not more until that is removed"
            );
        }
        let after = Lsn(target.0 + CHECKPOINT);
        let part = compaction.next_part_when_full(target, next, CHECKPOINT, space(u64::MAX, 0));
        assert_eq!(part.before, after);
    }

    /// Everything that is requested is rewritten: the waiting messages take the whole log.
    #[test]
    fn full_disk_is_not_filled_by_useless_rewrites() {
        let mut compaction = Compaction::default();
        let mut free = 1_000;
        for checkpoint in 0..10_000 {
            let part = compaction.next_part_when_full(Lsn(0), Lsn(1 << 40), 1 << 30, space(free, 0));
            if checkpoint == 0 {
                assert_eq!(part.bytes, (1_000 - SEGMENT / 2) / FREE_SPACE_DIVISOR);
            }
            free -= part.bytes;
            compaction.record_rewritten(part.bytes);
            if checkpoint == REMOVAL_LAG {
                assert!(free > 700, "rewritten once, then waits: {free}");
            }
        }
        assert!(free >= SEGMENT / 2, "space is left for delivery: {free}");
    }

    #[test]
    fn waiting_message_is_rewritten_with_little_space() {
        let mut compaction = Compaction::default();
        let space = space(SEGMENT * 3 / 4, 0);
        let part = compaction.next_part_when_full(Lsn(0), Lsn(1_000), CHECKPOINT, space);
        assert!(part.before.0 >= SEGMENT, "{part:?}");
        assert!(part.bytes > 0, "{part:?}");
        compaction.record_rewritten(1);
        let again = compaction.next_part_when_full(Lsn(0), Lsn(1_000), CHECKPOINT, space);
        assert_eq!(again.bytes, part.bytes - 1, "the rest of the grant");
        compaction.record_rewritten(again.bytes);
        let after = Lsn(2 * SEGMENT);
        let part = compaction.next_part_when_full(after, Lsn(1_000), CHECKPOINT, space);
        assert!(part.bytes > 0, "the start has advanced: {part:?}");
    }

    #[test]
    fn pass_uses_only_a_part_of_the_disk() {
        let mut compaction = Compaction::default();
        let part = compaction.next_part(Lsn(0), Lsn(10_000), CHECKPOINT, u64::MAX, space(435, 0));
        assert_eq!((part.before, part.bytes), (Lsn(100), 100));
    }

    #[test]
    fn short_log_is_not_rewritten() {
        assert_eq!(run(50, 3, u64::MAX).0, 0);
    }
}
