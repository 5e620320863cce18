//! Giving out what a group holds, a part in each tick, once a member is connected. What is in the journal only is read first.
//!
//! What is being read stays in the queue until it has come. As long as anything is there, what is published goes behind it.

use std::collections::BTreeMap;

use crate::deliver::Forms;
use crate::durable::cold::{FETCHES_MAX, publication_of};
use crate::durable::ledger::Waiting;
use crate::durable::record::{GroupKey, Position, Record, SessionKey};
use crate::effect::{DropReason, Effect, Now};
use crate::mail::SessionRef;
use crate::message::Place;
use crate::shard::Shard;
use crate::shared::queue::Taken;
use crate::timers::Timer;

/// In place of a session: for what a group gives out; the group in place of the number of its connects.
pub const GIVER: u32 = u32::MAX - 1;

/// In windows of a group: as much as may have been published meanwhile is given out twice, and a window more.
const PUBLISHED_WINDOWS: usize = 8;

/// How long until somebody who had no space is asked again.
const SPACE_MS: u64 = 10;
/// The same of a member of another shard, to which a part goes each time and comes back.
const SPACE_MS_MAX: u64 = 160;

/// Groups that go on giving out what is in memory in one tick.
const GROUPS_PER_TICK: usize = 8;

/// What a member gives back and has in the journal only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GivenBack {
    pub message: Position,
    /// The group that the journal has it of; 0 if of none.
    pub held_by: GroupKey,
}

impl Shard {
    /// Gives out some of what a group holds, and sees to it that the rest follows.
    pub(crate) fn give_out(&mut self, now: Now, index: u32) {
        let Some(group) = self.groups.get_mut(index) else {
            return;
        };
        if !group.has_online() || group.queue.is_fetching || group.queue.is_empty() {
            return;
        }
        let window = self.core.config.group_window.max(1);
        let published = std::mem::take(&mut group.queue.published).min(PUBLISHED_WINDOWS * window);
        let part = window + 2 * published;
        let (has_cold, bytes) = (group.queue.has_cold(), group.queue.front_bytes().unwrap_or_default());
        if !self.has_taker(now, index, bytes) {
            self.wait_for_space(now, index);
        } else if has_cold {
            self.fetch_to_give(index);
        } else {
            self.give_warm(now, index, part);
        }
    }

    /// Members are full, of what this group or others have given them.
    pub(super) fn wait_for_space(&mut self, now: Now, index: u32) {
        if let Some(group) = self.groups.get_mut(index)
            && group.has_online()
            && !std::mem::replace(&mut group.queue.waits_for_space, true)
        {
            let epoch = group.epoch;
            let at_ms = now.monotonic_ms + SPACE_MS;
            self.core.wake(now, at_ms, Timer::Space { index, epoch });
        }
    }

    pub(crate) fn look_for_space(&mut self, now: Now, index: u32, epoch: u32) {
        if let Some(group) = self.groups.get_live(index, epoch) {
            group.queue.waits_for_space = false;
            self.give_out(now, index);
        }
    }

    /// A member of another shard had no space for a message.
    pub(crate) fn member_is_full(&mut self, now: Now, index: u32, epoch: u32, member: SessionRef) {
        if let Some(group) = self.groups.get_live(index, epoch)
            && let Some(at) = group.position(member)
        {
            let member = &mut group.members[at];
            // Of what was sent together each comes back by itself.
            if member.full_until_ms <= now.monotonic_ms {
                let is_still = now.monotonic_ms < member.full_until_ms + 2 * SPACE_MS;
                let longer_ms = (2 * member.full_for_ms).min(SPACE_MS_MAX);
                member.full_for_ms = if is_still { longer_ms } else { SPACE_MS };
                member.full_until_ms = now.monotonic_ms + member.full_for_ms;
            }
        }
    }

    fn give_warm(&mut self, now: Now, index: u32, part: usize) {
        for _ in 0..part {
            let Some(group) = self.groups.get_mut(index).filter(|group| group.has_online()) else {
                return;
            };
            let is_held = group.is_durable();
            let bytes = group.queue.front_bytes().unwrap_or_default();
            if !self.has_taker(now, index, bytes) {
                break;
            }
            let Some(message) = self.pop_warm(index) else {
                return;
            };
            let mut forms = Forms::of(message.clone());
            self.dispatch_again(now, index, &message.publication(), &mut forms, is_held);
        }
        if let Some(group) = self.groups.get_mut(index)
            && !group.queue.is_empty()
            && !std::mem::replace(&mut group.queue.is_due, true)
        {
            self.giving.push_back(index);
        }
    }

    /// The next part of what did not fit into the last tick.
    pub(crate) fn give_on(&mut self, now: Now) {
        for _ in 0..self.giving.len().min(GROUPS_PER_TICK) {
            if self.core.outbox.is_over_soft_limit() {
                return;
            }
            let Some(index) = self.giving.pop_front() else { return };
            if let Some(group) = self.groups.get_mut(index) {
                group.queue.is_due = false;
                self.give_out(now, index);
            }
        }
    }

    fn fetch_to_give(&mut self, index: u32) {
        let (Some(ledger), Some(group)) = (&mut self.core.ledger, self.groups.get_mut(index)) else {
            return;
        };
        let Some(first) = group.queue.first_cold() else { return };
        group.queue.is_fetching = true;
        let max = self.core.config.group_window.max(1);
        let positions = group.queue.next_positions(max, ledger.committed);
        if positions.is_empty() {
            let epoch = group.epoch;
            ledger.wait_for(first, Waiting::Give { index, epoch });
        } else if ledger.fetches >= FETCHES_MAX {
            ledger.fetch_queue.push_back((GIVER, index));
        } else {
            ledger.fetches += 1;
            self.core.effects.push(Effect::Fetch {
                session: GIVER,
                connects: index,
                positions,
            });
        }
    }

    /// The journal has more, or it is the group's turn.
    pub(crate) fn fetch_to_give_again(&mut self, now: Now, index: u32) {
        if let Some(group) = self.groups.get_mut(index) {
            group.queue.is_fetching = false;
            self.give_out(now, index);
        }
    }

    /// Messages of a group have been read, if it has them still. What has been moved meanwhile is asked for again.
    pub(crate) fn fetched_to_give(
        &mut self,
        now: Now,
        index: u32,
        positions: &[Position],
        records: Vec<Option<Vec<u8>>>,
    ) {
        let records: BTreeMap<Position, Option<Vec<u8>>> = positions.iter().copied().zip(records).collect();
        if let Some(group) = self.groups.get_mut(index).filter(|group| group.has_online()) {
            let epoch = group.epoch;
            let mut taken = group.queue.take_cold(|position| records.contains_key(&position));
            self.core.stats.queued_messages -= taken.positions.len() as u64;
            let mut given = 0;
            while let Some(position) = taken.positions.get(given).copied()
                && self.groups.get_live(index, epoch).is_some()
                && self.give_read(now, index, position, records.get(&position).and_then(Option::as_deref))
            {
                given += 1;
            }
            taken.positions.drain(..given);
            let is_any_left = !taken.positions.is_empty();
            self.put_back(index, epoch, taken);
            if is_any_left && let Some(group) = self.groups.get_live(index, epoch) {
                // Read again when there may be space for these.
                group.queue.is_fetching = false;
                return self.wait_for_space(now, index);
            }
        }
        self.fetch_to_give_again(now, index);
    }

    /// False if nobody has space for it.
    fn give_read(&mut self, now: Now, index: u32, position: Position, record: Option<&[u8]>) -> bool {
        let Some(group) = self.groups.get_mut(index) else {
            return false;
        };
        let (key, is_held) = (group.key, group.is_durable());
        let Some(Ok(Record::Message(record))) = record.map(Record::read) else {
            self.core.stats.drop_message(DropReason::Damaged);
            self.keep_dropped(key, Place::at(position));
            return true;
        };
        let p = publication_of(now, &record, position);
        let has_taker = self.has_taker(now, index, p.kept_bytes());
        if has_taker {
            self.dispatch_again(now, index, &p, &mut Forms::default(), is_held);
        }
        has_taker
    }

    /// Nobody is there any more who could take what is left, or has space for it.
    fn put_back(&mut self, index: u32, epoch: u32, taken: Taken) {
        let count = taken.positions.len() as u64;
        match self.groups.get_live(index, epoch) {
            Some(group) => {
                group.queue.put_back(taken);
                self.core.stats.queued_messages += count;
            }
            None => self.core.stats.drops[DropReason::NoSharedMember as usize] += count,
        }
    }

    /// Takes back what a member had in the journal only: before all else that the group has, because it is older. That the group has it is
    /// recorded while a checkpoint is written also of what the journal has as the group's: that may say so before the checkpoint only,
    /// the group has been written, and the member never had it.
    pub(crate) fn take_back(&mut self, now: Now, index: u32, epoch: u32, given_back: &[GivenBack]) {
        let Some(group) = self.groups.get_live(index, epoch) else {
            self.core.stats.drops[DropReason::NoSharedMember as usize] += given_back.len() as u64;
            return;
        };
        let key = group.key;
        let is_walking = self.walk.is_some();
        group
            .queue
            .give_back(given_back.iter().map(|back| back.message).collect());
        self.core.stats.queued_messages += given_back.len() as u64;
        if let Some(ledger) = &mut self.core.ledger {
            for GivenBack { message, held_by } in given_back.iter().copied() {
                ledger.mention(message);
                if key.0 != 0 && (held_by != key || is_walking) {
                    ledger.record(&Record::Returned {
                        session: SessionKey(0),
                        seq: 0,
                        group: key,
                        message,
                    });
                }
            }
        }
        self.give_out(now, index);
    }
}
