//! Returned messages that are only in the journal: the group adds their positions to its queue. A disconnected session
//! returns them in parts, one per tick.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use mqtt::QoS;

use crate::ShardId;
use crate::durable::entry_list::{EntryList, TaggedEntry};
use crate::durable::journaling::ReturnedEntry;
use crate::effect::Now;
use crate::mail::MailRequest;
use crate::message::RecordLocation;
use crate::outgoing::{DeliveryTag, GroupRef, OutgoingMessages};
use crate::shard::Shard;
use crate::shared::queue_dispatch::ReturnedMessage;
use crate::slots::{GroupEpoch, GroupIndex, SessionEpoch, SessionSlot};

/// Limit of returned cold messages per tick, in windows of a group.
pub(crate) const RETURNED_WINDOWS: usize = 8;

impl OutgoingMessages {
    /// Removes up to `max` matching cold messages, as `extract` does for messages in memory.
    pub fn extract_cold(&mut self, max: usize, wanted: impl Fn(GroupRef) -> bool) -> Vec<TaggedEntry> {
        let is_wanted = |tag: &DeliveryTag| tag.group().is_some_and(&wanted);
        let Some(cold) = &mut self.cold else { return Vec::new() };
        let mut taken = take(&mut cold.inflight, max, |(entry, tag)| {
            entry.qos() == QoS::AtLeastOnce && !entry.is_released() && is_wanted(tag)
        });
        taken.extend(take(&mut cold.queue, max - taken.len(), |(_, tag)| is_wanted(tag)));
        if let Some(pages) = &mut cold.pages {
            taken.extend(take(&mut pages.tail, max - taken.len(), |(_, tag)| is_wanted(tag)));
        }
        cold.merge_tail_when_empty();
        self.merge_fresh_if_no_cold();
        taken
    }
}

/// Removes entries from the front until `max` match. Puts the others back.
fn take(list: &mut EntryList, max: usize, is_wanted: impl Fn(&TaggedEntry) -> bool) -> Vec<TaggedEntry> {
    if max == 0 || !list.iter().any(|item| is_wanted(&item)) {
        return Vec::new();
    }
    let mut left = max;
    let front = list.take_items_while(|item| {
        let is_more = left > 0;
        left -= usize::from(is_more && is_wanted(item));
        is_more
    });
    let (taken, others): (Vec<TaggedEntry>, Vec<TaggedEntry>) = front.into_iter().partition(is_wanted);
    list.prepend(others);
    taken
}

/// A disconnected session that has more messages to return to a group.
#[derive(Clone, Copy)]
struct ReturningSession {
    slot: SessionSlot,
    epoch: SessionEpoch,
    group: GroupRef,
}

/// A session and a group.
type ReturnKey = (SessionSlot, SessionEpoch, ShardId, GroupIndex, GroupEpoch);

/// Sessions that continue to return messages in the next tick. A group asks again whenever its first member connects;
/// `queued_keys` prevents duplicates.
#[derive(Default)]
pub(crate) struct ReturnQueue {
    queue: VecDeque<ReturningSession>,
    queued_keys: BTreeSet<ReturnKey>,
}

impl ReturnQueue {
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    fn push_back(&mut self, returning: ReturningSession) {
        if self.queued_keys.insert(returning.key()) {
            self.queue.push_back(returning);
        }
    }

    fn push_front(&mut self, returning: ReturningSession) {
        if self.queued_keys.insert(returning.key()) {
            self.queue.push_front(returning);
        }
    }

    fn pop_front(&mut self) -> Option<ReturningSession> {
        let first = self.queue.pop_front()?;
        self.queued_keys.remove(&first.key());
        Some(first)
    }
}

impl ReturningSession {
    fn key(&self) -> ReturnKey {
        let GroupRef {
            shard, index, epoch, ..
        } = self.group;
        (self.slot, self.epoch, shard, index, epoch)
    }
}

impl Shard {
    /// Starts immediately if the limit of this tick allows it.
    pub(crate) fn start_or_queue_reclaim(&mut self, now: Now, slot: SessionSlot, epoch: SessionEpoch, group: GroupRef) {
        let session = self.core.sessions.live(slot, epoch);
        let is_offline = session.filter(|session| session.conn.is_none());
        let has_any =
            is_offline.is_some_and(|session| session.outgoing.queued() + session.outgoing.unacknowledged() > 0);
        if has_any {
            self.return_queue.push_back(ReturningSession { slot, epoch, group });
            self.continue_returns(now);
        }
    }

    /// A new tick starts: continues with the rest of the last one.
    pub(crate) fn start_return_tick(&mut self, now: Now) {
        self.return_left = self.core.config.group_window.max(1) * RETURNED_WINDOWS;
        self.continue_returns(now);
    }

    /// Continues with as many sessions as the limit of this tick allows.
    pub(crate) fn continue_returns(&mut self, now: Now) {
        while self.return_left > 0
            && let Some(ReturningSession { slot, epoch, group }) = self.return_queue.pop_front()
        {
            if self.core.sessions.live(slot, epoch).is_none_or(|s| s.conn.is_some()) {
                continue;
            }
            let count = self.return_shared(now, slot, self.return_left, |from| from.is_same_group(group));
            if count == self.return_left {
                // There may be more.
                self.return_queue.push_front(ReturningSession { slot, epoch, group });
            }
            // A visit without a match counts as well.
            self.return_left -= count.max(1);
        }
    }

    pub(super) fn return_cold(&mut self, now: Now, slot: SessionSlot, items: Vec<TaggedEntry>) {
        let mut by_group = BTreeMap::<(u16, GroupIndex, GroupEpoch), Vec<ReturnedMessage>>::new();
        for (entry, tag) in items {
            let Some(group) = tag.group() else { continue };
            self.member_acknowledged(slot, group);
            let message = entry.message();
            let held_by = self.core.ledger.record_returned(
                &self.core.sessions,
                slot,
                ReturnedEntry {
                    seq: entry.seq(),
                    qos: entry.qos(),
                    place: RecordLocation::at(message),
                },
                group.key,
            );
            by_group
                .entry((group.shard.0, group.index, group.epoch))
                .or_default()
                .push(ReturnedMessage { message, held_by });
        }
        for ((shard, index, epoch), returned) in by_group {
            if shard == self.core.id.0 {
                self.accept_returned(now, index, epoch, &returned);
            } else {
                self.mail
                    .request(ShardId(shard), MailRequest::ReturnCold { index, epoch, returned });
            }
        }
    }
}
