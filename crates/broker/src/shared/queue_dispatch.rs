//! Dispatches the queued messages of a group in parts, one part per tick, while a member is connected. Cold messages
//! are read first.
//!
//! Messages stay in the queue until they have been read. While the queue is not empty, live messages are appended to
//! it.

use std::collections::BTreeMap;

use crate::durable::cold::publication_of;
use crate::durable::journaled_queue::FetchStart;
use crate::durable::pending_records::CommitAction;
use crate::durable::record::{JournalRecord, RecordPosition, SessionKey, SizedMessage};
use crate::effect::{DropReason, Effect, FetchPurpose, Now};
use crate::encode::EncodedForms;
use crate::mail::ReturnedMessage;
use crate::message::RecordLocation;
use crate::shared::ShareGroups;
use crate::shared::group::ShareGroup;
use crate::shared::queue::RemovedMessages;
use crate::slots::{GroupEpoch, GroupIndex, SessionRef};
use crate::tick::Tick;
use crate::timers::ShardTimer;

/// Limit, in windows, of the messages published since the last part. Twice their number is dispatched in addition to
/// one window, so that the queue shrinks.
const PUBLISHED_WINDOWS: usize = 8;

/// Delay until a full member of this shard is checked again.
const SPACE_MS: u64 = 10;
/// Maximum delay for a member of another shard, because each check sends messages that may return.
const SPACE_MS_MAX: u64 = 160;

/// Number of groups that continue to dispatch messages from memory per tick.
const GROUPS_PER_TICK: usize = 8;

impl ShareGroups {
    /// A member of another shard has a full queue.
    pub fn member_is_full(&mut self, now: Now, index: GroupIndex, epoch: GroupEpoch, session: SessionRef) {
        let Some(member) = self.table.member_mut(index, epoch, session) else {
            return;
        };
        // Several messages may be in transit, and each of them reports the full queue when it returns.
        if member.full_until_ms <= now.monotonic_ms {
            let is_still = now.monotonic_ms < member.full_until_ms + 2 * SPACE_MS;
            let longer_ms = (2 * member.full_for_ms).min(SPACE_MS_MAX);
            member.full_for_ms = if is_still { longer_ms } else { SPACE_MS };
            member.full_until_ms = now.monotonic_ms + member.full_for_ms;
        }
    }

    /// Dispatches a part of a group's queue, and schedules the next part.
    pub(super) fn dispatch_queue(&mut self, tick: &mut Tick<'_>, index: GroupIndex) {
        let Some(group) = self.table.get_mut(index) else {
            return;
        };
        if !group.has_online() || group.queue.cold().is_fetching() || group.queue.is_empty() {
            return;
        }
        let window = tick.core.config.group_window.max(1);
        let published = std::mem::take(&mut group.queue.published).min(PUBLISHED_WINDOWS * window);
        let part = window + 2 * published;
        let (has_cold, bytes) = (
            !group.queue.cold().is_empty(),
            group.queue.front_bytes().unwrap_or_default(),
        );
        if !group.has_available_member(tick, bytes) {
            group.wait_for_space(tick, index);
        } else if has_cold {
            group.fetch(tick, index);
        } else {
            self.dispatch_warm(tick, index, part);
        }
    }

    pub(crate) fn retry_full_members(&mut self, tick: &mut Tick<'_>, index: GroupIndex, epoch: GroupEpoch) {
        if let Some(group) = self.table.get_current(index, epoch) {
            group.queue.waits_for_space = false;
            self.dispatch_queue(tick, index);
        }
    }

    fn dispatch_warm(&mut self, tick: &mut Tick<'_>, index: GroupIndex, part: usize) {
        for _ in 0..part {
            let Some(group) = self.table.get_mut(index).filter(|group| group.has_online()) else {
                return;
            };
            let is_held = group.is_durable();
            let bytes = group.queue.front_bytes().unwrap_or_default();
            if !group.has_available_member(tick, bytes) {
                break;
            }
            let Some(message) = group.pop_warm(&mut tick.core.stats) else {
                return;
            };
            let mut forms = EncodedForms::of(message.clone());
            self.dispatch_again(tick, index, &message.publication(), &mut forms, is_held);
        }
        if let Some(group) = self.table.get_mut(index)
            && !group.queue.is_empty()
            && !std::mem::replace(&mut group.queue.is_due, true)
        {
            self.dispatching.push_back(index);
        }
    }

    /// Continues with groups that did not finish in the last tick.
    pub(super) fn continue_dispatch(&mut self, tick: &mut Tick<'_>) {
        for _ in 0..self.dispatching.len().min(GROUPS_PER_TICK) {
            if tick.core.outbox.is_over_soft_limit() {
                return;
            }
            let Some(index) = self.dispatching.pop_front() else {
                return;
            };
            if let Some(group) = self.table.get_mut(index) {
                group.queue.is_due = false;
                self.dispatch_queue(tick, index);
            }
        }
    }

    /// The journal has committed more, or it is the group's turn.
    pub(crate) fn resume_fetch(&mut self, tick: &mut Tick<'_>, index: GroupIndex) {
        if let Some(group) = self.table.get_mut(index) {
            group.queue.cold_mut().end_fetch();
            self.dispatch_queue(tick, index);
        }
    }

    /// Like `resume_fetch`, if the group still exists.
    pub(crate) fn resume_current_fetch(&mut self, tick: &mut Tick<'_>, index: GroupIndex, epoch: GroupEpoch) {
        if self.table.get_current(index, epoch).is_some() {
            self.resume_fetch(tick, index);
        }
    }

    /// Dispatches messages of a group that have been read. Messages that were moved in between are fetched again.
    pub(crate) fn fetched(
        &mut self,
        tick: &mut Tick<'_>,
        index: GroupIndex,
        records: &BTreeMap<RecordPosition, Option<Vec<u8>>>,
    ) {
        if let Some(group) = self.table.get_mut(index).filter(|group| group.has_online()) {
            let epoch = group.epoch;
            let mut taken = group.queue.take_cold(|position| records.contains_key(&position));
            tick.core.stats.queued_messages -= taken.messages.len() as u64;
            tick.core.stats.queued_bytes -= taken.bytes() as u64;
            let mut given = 0;
            while let Some(position) = taken.messages.get(given).map(|message| message.position)
                && self.table.get_current(index, epoch).is_some()
                && self.dispatch_read(tick, index, position, records.get(&position).and_then(Option::as_deref))
            {
                given += 1;
            }
            taken.messages.drain(..given);
            let is_any_left = !taken.messages.is_empty();
            self.put_back(tick, index, epoch, taken);
            if is_any_left && let Some(group) = self.table.get_current(index, epoch) {
                // The rest is read again when a member has space.
                group.queue.cold_mut().end_fetch();
                return group.wait_for_space(tick, index);
            }
        }
        self.resume_fetch(tick, index);
    }

    /// Dispatches one message. Returns false if no member has space.
    fn dispatch_read(
        &mut self,
        tick: &mut Tick<'_>,
        index: GroupIndex,
        position: RecordPosition,
        record: Option<&[u8]>,
    ) -> bool {
        let Some(group) = self.table.get_mut(index) else {
            return false;
        };
        let (key, is_held) = (group.key, group.is_durable());
        let Some(Ok(JournalRecord::Message(record))) = record.map(JournalRecord::read) else {
            tick.core.stats.drop_message(DropReason::Damaged);
            tick.core.ledger.record_group_dropped(key, RecordLocation::at(position));
            return true;
        };
        let p = publication_of(tick.now, &record, position);
        let has_available_member = group.has_available_member(tick, p.stored_bytes());
        if has_available_member {
            self.dispatch_again(tick, index, &p, &mut EncodedForms::default(), is_held);
        }
        has_available_member
    }

    /// Returns messages to the front of the queue because no member is connected or has space.
    fn put_back(&mut self, tick: &mut Tick<'_>, index: GroupIndex, epoch: GroupEpoch, taken: RemovedMessages) {
        let (count, bytes) = (taken.messages.len() as u64, taken.bytes() as u64);
        match self.table.get_current(index, epoch) {
            Some(group) => {
                group.queue.put_back(taken);
                tick.core.stats.queued_messages += count;
                tick.core.stats.queued_bytes += bytes;
            }
            None => tick.core.stats.drops[DropReason::NoSharedMember as usize] += count,
        }
    }

    /// Queues returned cold messages before all others, because they are older. During a checkpoint the group is
    /// recorded as their holder even if the journal names it already: that record may precede the checkpoint, the
    /// snapshot of the group may be written, and the member's snapshot may not contain the message.
    pub(crate) fn accept_returned(
        &mut self,
        tick: &mut Tick<'_>,
        index: GroupIndex,
        epoch: GroupEpoch,
        returned: &[ReturnedMessage],
    ) {
        let Some(group) = self.table.get_current(index, epoch) else {
            tick.core.stats.drops[DropReason::NoSharedMember as usize] += returned.len() as u64;
            return;
        };
        let key = group.key;
        let messages: Vec<SizedMessage> = returned.iter().map(|back| back.message).collect();
        let bytes: usize = messages.iter().map(|message| message.size.bytes()).sum();
        group.queue.push_returned(messages);
        tick.core.stats.queued_messages += returned.len() as u64;
        tick.core.stats.queued_bytes += bytes as u64;
        if let Some(ledger) = tick.core.ledger.records_mut() {
            for ReturnedMessage { message, held_by } in returned.iter().copied() {
                ledger.record_reference(message.position);
                if key.0 != 0 && (held_by != key || tick.is_checkpointing) {
                    ledger.record(&JournalRecord::Returned {
                        session: SessionKey(0),
                        seq: 0,
                        group: key,
                        message: message.position,
                        size: message.size,
                    });
                }
            }
        }
        self.dispatch_queue(tick, index);
    }
}

impl ShareGroup {
    /// Starts the timer for full members.
    pub(super) fn wait_for_space(&mut self, tick: &mut Tick<'_>, index: GroupIndex) {
        if self.has_online() && !std::mem::replace(&mut self.queue.waits_for_space, true) {
            let epoch = self.epoch;
            let at_ms = tick.now.monotonic_ms + SPACE_MS;
            tick.core
                .timers
                .wake(tick.now, at_ms, ShardTimer::Space { index, epoch });
        }
    }

    /// Fetches the first messages of the queue, or waits until they are committed or the fetch can start.
    fn fetch(&mut self, tick: &mut Tick<'_>, index: GroupIndex) {
        let (Some(ledger), Some(first)) = (tick.core.ledger.records_mut(), self.queue.cold().front()) else {
            return;
        };
        let (epoch, purpose) = (self.epoch, FetchPurpose::Group(index));
        let max = tick.core.config.group_window.max(1);
        match self.queue.cold_mut().start_fetch(max, ledger, purpose) {
            FetchStart::Fetch(positions) => tick.core.effects.push(Effect::Fetch { purpose, positions }),
            FetchStart::Uncommitted => ledger.wait_for(first.message(), CommitAction::FetchForGroup { index, epoch }),
            FetchStart::Queued => {}
        }
    }
}
