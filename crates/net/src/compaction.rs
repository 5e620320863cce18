//! Which messages of a long log are written once more, so that one that waits for long does not keep all of the log behind it.
//!
//! In passes: when the log has become long, each checkpoint moves a part of what is oldest, until all that stood there when the
//! pass began has gone. What is left then is what somebody waits for; the next pass begins when the log has twice that length.
//! So a byte that stays is written once more for each byte that goes, at most, however much stays; where the quota does not allow for
//! twice the length, a pass begins while there is still room for what it needs itself, and the bytes that stay are moved more often.
//!
//! What a pass needs: what it has moved is there twice until the old place is removed, `LAG` checkpoints later, and while it moves what
//! stays, nothing is gained, but more is appended. Long parts need more for the one, short ones for the other.
//!
//! Where the disk has little left, a checkpoint moves no more than a part of what it has: delivery has to write, too, and what is
//! appended and finds no room keeps all waiting that comes behind it.

use ::journal::Lsn;

/// A log of so many times what is appended between two checkpoints is never long.
const SHORT: u64 = 4;

/// What one checkpoint moves at least, in the same measure.
const PART: u64 = 2;

/// So many checkpoints later, what has been moved is removed.
const LAG: u64 = 3;

/// This part of the room that is not left for delivery may be written once more by one checkpoint: others take space meanwhile.
const ROOM_PART: u64 = 4;

/// What one checkpoint moves: messages before a position, so many bytes of them at most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Part {
    pub before: Lsn,
    pub bytes: u64,
}

/// What can be written behind all that has been appended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Room {
    pub bytes: u64,
    pub segment_bytes: u64,
    /// What a checkpoint takes itself.
    pub snapshot_bytes: u64,
}

impl Room {
    /// What may be written once more of it: half a segment is left for delivery, and what checkpoints take until anything is removed.
    fn to_move(self) -> u64 {
        let left = self.segment_bytes / 2 + LAG * self.snapshot_bytes;
        self.bytes.saturating_sub(left) / ROOM_PART
    }
}

#[derive(Debug, Default)]
pub(crate) struct Compaction {
    pass: Option<Pass>,
    /// What the last pass left.
    left_bytes: u64,
    grant: Grant,
}

/// What may be moved of what stands before a position while the log is full. If it is used up, what stands there is waited for: moving
/// more gains nothing until that has been delivered. So it is tried again, but more and more seldom.
#[derive(Debug, Default)]
struct Grant {
    before: Lsn,
    bytes: u64,
    /// In checkpoints.
    age: u64,
    lasts: u64,
}

impl Grant {
    fn renew(&mut self, before: Lsn, bytes: u64) {
        self.age += 1;
        if before > self.before {
            *self = Grant {
                before,
                bytes,
                age: 0,
                lasts: 2 * LAG,
            };
        } else if self.age >= self.lasts {
            self.bytes = bytes;
            self.age = 0;
            self.lasts = self.lasts.saturating_mul(2);
        }
        // There may be less room by now.
        self.bytes = self.bytes.min(bytes);
    }
}

#[derive(Debug)]
struct Pass {
    until: Lsn,
    /// Everything before it has been moved. The log begins there some checkpoints later, or with the segment that has it.
    moved_to: Lsn,
    part: u64,
    checkpoints: u64,
    /// Of them, since all has been moved.
    removing: u64,
}

/// Whether a log is longer than it should be if nobody waits for what is in it.
pub(crate) fn is_long(length: u64, checkpoint_bytes: u64) -> bool {
    length > SHORT * checkpoint_bytes
}

impl Compaction {
    /// Called for each checkpoint.
    pub(crate) fn move_before(
        &mut self,
        first: Lsn,
        next: Lsn,
        checkpoint_bytes: u64,
        quota_bytes: u64,
        room: Room,
    ) -> Part {
        let length = next.0 - first.0;
        self.end_pass(length, checkpoint_bytes);
        // The least that a pass needs beside what is there is with parts of this length.
        let even = (u128::from(checkpoint_bytes) * u128::from(length) / u128::from(LAG)).isqrt();
        let part = (PART * checkpoint_bytes).max(even as u64);
        let needed = LAG * (checkpoint_bytes + part) + checkpoint_bytes * self.left_bytes / part;
        // A log that may not become twice as long must not wait for it.
        let long = (2 * self.left_bytes).min(quota_bytes.saturating_sub(needed));
        if self.pass.is_none() && length > long.max(SHORT * checkpoint_bytes) {
            self.pass = Some(Pass {
                until: next,
                moved_to: first,
                part,
                checkpoints: 0,
                removing: 0,
            });
        }
        let Some(pass) = &mut self.pass else {
            return Part::default();
        };
        pass.checkpoints += 1;
        let bytes = room.to_move();
        pass.moved_to = Lsn(pass.moved_to.max(first).0 + pass.part.min(bytes)).min(pass.until);
        Part {
            before: pass.moved_to,
            bytes,
        }
    }

    /// The same while the log is full: no more at a time than there is room for beyond the quota and in the reserve, but something, or what waits at its
    /// beginning would keep it full for ever; and more than checkpoints add until it is removed, or they would make it longer and longer.
    pub(crate) fn move_before_when_full(&mut self, first: Lsn, next: Lsn, checkpoint_bytes: u64, room: Room) -> Part {
        self.end_pass(next.0 - first.0, checkpoint_bytes);
        let bytes = room.to_move();
        // At least what removes a segment: little of it may be waited for.
        let part = checkpoint_bytes
            .max(2 * LAG * room.snapshot_bytes)
            .min(bytes.max(2 * room.segment_bytes));
        let little = Lsn(first.0 + part).min(next);
        let pass = self.pass.get_or_insert(Pass {
            until: first,
            moved_to: first,
            part: 0,
            checkpoints: 0,
            removing: 0,
        });
        if little > pass.moved_to {
            pass.moved_to = little;
            pass.removing = 0;
        }
        pass.checkpoints += 1;
        pass.until = pass.moved_to;
        self.grant.renew(pass.moved_to, bytes);
        Part {
            before: pass.moved_to,
            bytes: self.grant.bytes,
        }
    }

    /// What a checkpoint has moved.
    pub(crate) fn moved(&mut self, bytes: u64) {
        self.grant.bytes = self.grant.bytes.saturating_sub(bytes);
    }

    fn end_pass(&mut self, length: u64, checkpoint_bytes: u64) {
        if let Some(pass) = self.pass.as_mut().filter(|pass| pass.moved_to >= pass.until) {
            pass.removing += 1;
            if pass.removing > LAG {
                // The rest has come since the pass began.
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

    /// On a disk with so many bytes free.
    fn room(bytes: u64, snapshot_bytes: u64) -> Room {
        Room {
            bytes,
            segment_bytes: SEGMENT,
            snapshot_bytes,
        }
    }

    /// A log with a queue of `waiting` bytes at its beginning, of which moved parts go to the end, and 100 bytes of what nobody waits
    /// for between two checkpoints. As in the journal, whole segments are removed, and only those that two checkpoints in a row did not
    /// need. Returns how many bytes were moved during `checkpoints`, and how long the log was at most.
    fn run(waiting: u64, checkpoints: u64, quota: u64) -> (u64, u64) {
        let (moved_bytes, longest, _) = run_with(waiting, checkpoints, quota, 0);
        (moved_bytes, longest)
    }

    /// The same with checkpoints that take some bytes themselves. Also returns how many checkpoints were made of a full log, to which
    /// nothing else is appended.
    fn run_with(waiting: u64, checkpoints: u64, quota: u64, snapshot: u64) -> (u64, u64, u64) {
        let mut compaction = Compaction::default();
        // Where somebody waits for something.
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
                    let room = room(u64::MAX, snapshot);
                    compaction.move_before_when_full(Lsn(first), Lsn(next), CHECKPOINT, room)
                }
                false => {
                    let room = room(u64::MAX, snapshot);
                    compaction.move_before(Lsn(first), Lsn(next), CHECKPOINT, quota, room)
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
    fn a_straggler_is_moved_out_of_the_way() {
        let (moved, longest) = run(1, 1000, u64::MAX);
        assert!(moved <= 1000 / 4, "once in four checkpoints at most, not {moved} times");
        assert!(longest <= 12 * CHECKPOINT, "{longest}");
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
    fn a_straggler_does_not_fill_the_log() {
        // The quota of 64 checkpoints is the smallest that there is.
        let (_, longest) = run(1, 10_000, 64 * CHECKPOINT);
        assert!(longest <= 12 * CHECKPOINT, "{longest}");
    }

    #[test]
    fn a_queue_of_half_the_quota_does_not_fill_the_log() {
        // The least quota in checkpoints, and one of a log whose checkpoints are far apart.
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
    fn the_checkpoints_of_a_full_log_do_not_make_it_longer_and_longer() {
        let quota = 64 * CHECKPOINT;
        // All of it is waited for, but for what the checkpoints write.
        let (_, longest, _) = run_with(1, 10_000, quota, 6 * CHECKPOINT);
        assert!(longest < 2 * quota, "{longest}");
    }

    #[test]
    fn a_full_log_makes_room_for_what_comes_after_a_straggler() {
        let mut compaction = Compaction::default();
        let (first, next) = (Lsn(1_000), Lsn(1_000 + 16 * CHECKPOINT));
        let little = Lsn(1_000 + CHECKPOINT);
        for _ in 0..10 {
            assert_eq!(
                compaction
                    .move_before_when_full(first, next, CHECKPOINT, room(u64::MAX, 0))
                    .before,
                little,
                "and no more until that is removed"
            );
        }
        let after = Lsn(little.0 + CHECKPOINT);
        let part = compaction.move_before_when_full(little, next, CHECKPOINT, room(u64::MAX, 0));
        assert_eq!(part.before, after);
    }

    /// Whatever is asked for, all of it is written: what waits takes all of the log.
    #[test]
    fn a_full_disk_is_not_filled_further_with_what_gains_nothing() {
        let mut compaction = Compaction::default();
        let mut free = 1_000;
        for checkpoint in 0..10_000 {
            let part = compaction.move_before_when_full(Lsn(0), Lsn(1 << 40), 1 << 30, room(free, 0));
            if checkpoint == 0 {
                assert_eq!(part.bytes, (1_000 - SEGMENT / 2) / ROOM_PART);
            }
            free -= part.bytes;
            compaction.moved(part.bytes);
            if checkpoint == LAG {
                assert!(free > 700, "once, and then it waits: {free}");
            }
        }
        assert!(free >= SEGMENT / 2, "delivery has to write, too: {free}");
    }

    #[test]
    fn a_straggler_is_moved_on_a_full_disk_with_less_than_a_segment() {
        let mut compaction = Compaction::default();
        let room = room(SEGMENT * 3 / 4, 0);
        let part = compaction.move_before_when_full(Lsn(0), Lsn(1_000), CHECKPOINT, room);
        assert!(part.before.0 >= SEGMENT, "{part:?}");
        assert!(part.bytes > 0, "{part:?}");
        compaction.moved(1);
        let again = compaction.move_before_when_full(Lsn(0), Lsn(1_000), CHECKPOINT, room);
        assert_eq!(again.bytes, part.bytes - 1, "what is left of it");
        compaction.moved(again.bytes);
        let after = Lsn(2 * SEGMENT);
        let part = compaction.move_before_when_full(after, Lsn(1_000), CHECKPOINT, room);
        assert!(part.bytes > 0, "that has gone: {part:?}");
    }

    #[test]
    fn a_pass_takes_no_more_than_a_part_of_the_disk() {
        let mut compaction = Compaction::default();
        let part = compaction.move_before(Lsn(0), Lsn(10_000), CHECKPOINT, u64::MAX, room(435, 0));
        assert_eq!((part.before, part.bytes), (Lsn(100), 100));
    }

    #[test]
    fn a_short_log_is_left_alone() {
        assert_eq!(run(50, 3, u64::MAX).0, 0);
    }
}
