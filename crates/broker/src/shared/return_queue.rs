//! Returned messages that are only in the journal: the group adds their positions to its queue. A disconnected session
//! returns them in parts, one per tick.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::ShardId;
use crate::delivery::GroupRef;
use crate::durable::entry_list::TaggedEntry;
use crate::durable::record_fields::ReturnedEntry;
use crate::mail::{Envelope, GroupHold, MailRequest, ReturnedMessage};
use crate::message::RecordLocation;
use crate::shared::ShareGroups;
use crate::slots::{GroupEpoch, GroupIndex, SessionEpoch, SessionSlot};
use crate::tick::Tick;

/// Limit of returned cold messages per tick, in windows of a group.
const RETURNED_WINDOWS: usize = 8;

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
pub(super) struct ReturnQueue {
    queue: VecDeque<ReturningSession>,
    queued_keys: BTreeSet<ReturnKey>,
    /// Messages that may still be returned in this tick.
    left: usize,
}

impl ReturnQueue {
    pub fn new(group_window: usize) -> ReturnQueue {
        ReturnQueue {
            queue: VecDeque::new(),
            queued_keys: BTreeSet::new(),
            left: limit_per_tick(group_window),
        }
    }

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

fn limit_per_tick(group_window: usize) -> usize {
    group_window.max(1) * RETURNED_WINDOWS
}

impl ReturningSession {
    fn key(&self) -> ReturnKey {
        let GroupRef {
            shard, index, epoch, ..
        } = self.group;
        (self.slot, self.epoch, shard, index, epoch)
    }
}

impl ShareGroups {
    /// Returns messages of a session to their groups, at most `max` cold ones. Returns the number of cold ones.
    pub(crate) fn return_shared(
        &mut self,
        tick: &mut Tick<'_>,
        slot: SessionSlot,
        max: usize,
        wanted: impl Fn(GroupRef) -> bool,
    ) -> usize {
        let stats = &mut tick.core.stats;
        let session = tick.core.sessions.get_mut(slot).expect("the session exists");
        let (queued, inflight, bytes) = (
            session.outgoing.queued(),
            session.outgoing.unacknowledged(),
            session.outgoing.queued_bytes.get(),
        );
        let returned = session.outgoing.extract(|d| d.tag.group().is_some_and(&wanted));
        let cold = session.outgoing.extract_cold(max, wanted);
        let count = cold.len();
        let out = &session.outgoing;
        stats.queued_messages -= (queued - out.queued()) as u64;
        stats.queued_bytes -= (bytes - out.queued_bytes.get()) as u64;
        stats.inflight_messages -= (inflight - out.unacknowledged()) as u64;
        for delivery in returned {
            let Some(group) = delivery.tag.group() else { continue };
            self.member_acknowledged(tick, slot, group);
            let place = delivery.message.place();
            let held_by = tick.core.ledger.record_returned(
                &tick.core.sessions,
                slot,
                ReturnedEntry {
                    seq: delivery.seq,
                    qos: delivery.qos,
                    place,
                    size: delivery.message.size(),
                },
                group.key,
            );
            let hold = GroupHold::of(group, held_by);
            if group.shard == tick.core.id {
                let p = delivery.message.publication();
                self.redispatch(tick, hold, &p, Some(delivery.message.clone()));
            } else {
                let envelope = Envelope::Return(hold);
                tick.mail
                    .publication(group.shard, envelope, &delivery.message.publication());
            }
        }
        if !cold.is_empty() {
            self.return_cold(tick, slot, cold);
        }
        count
    }

    /// Starts immediately if the limit of this tick allows it.
    pub(crate) fn start_or_queue_return(
        &mut self,
        tick: &mut Tick<'_>,
        slot: SessionSlot,
        epoch: SessionEpoch,
        group: GroupRef,
    ) {
        let session = tick.core.sessions.live(slot, epoch);
        let is_offline = session.filter(|session| session.conn.is_none());
        let has_any =
            is_offline.is_some_and(|session| session.outgoing.queued() + session.outgoing.unacknowledged() > 0);
        if has_any {
            self.returns.push_back(ReturningSession { slot, epoch, group });
            self.continue_returns(tick);
        }
    }

    /// A new tick starts: continues with the rest of the last one.
    pub(super) fn start_return_tick(&mut self, tick: &mut Tick<'_>) {
        self.returns.left = limit_per_tick(tick.core.config.group_window);
        self.continue_returns(tick);
    }

    /// Continues with as many sessions as the limit of this tick allows.
    fn continue_returns(&mut self, tick: &mut Tick<'_>) {
        while self.returns.left > 0
            && let Some(ReturningSession { slot, epoch, group }) = self.returns.pop_front()
        {
            if tick.core.sessions.live(slot, epoch).is_none_or(|s| s.conn.is_some()) {
                continue;
            }
            let count = self.return_shared(tick, slot, self.returns.left, |from| from.is_same_group(group));
            if count == self.returns.left {
                // There may be more.
                self.returns.push_front(ReturningSession { slot, epoch, group });
            }
            // A visit without a match counts as well.
            self.returns.left -= count.max(1);
        }
    }

    fn return_cold(&mut self, tick: &mut Tick<'_>, slot: SessionSlot, items: Vec<TaggedEntry>) {
        let mut by_group = BTreeMap::<(u16, GroupIndex, GroupEpoch), Vec<ReturnedMessage>>::new();
        for (entry, tag) in items {
            let Some(group) = tag.group() else { continue };
            self.member_acknowledged(tick, slot, group);
            let message = entry.sized_message();
            let held_by = tick.core.ledger.record_returned(
                &tick.core.sessions,
                slot,
                ReturnedEntry {
                    seq: entry.seq(),
                    qos: entry.qos(),
                    place: RecordLocation::at(message.position),
                    size: message.size,
                },
                group.key,
            );
            by_group
                .entry((group.shard.0, group.index, group.epoch))
                .or_default()
                .push(ReturnedMessage { message, held_by });
        }
        for ((shard, index, epoch), returned) in by_group {
            if shard == tick.core.id.0 {
                self.accept_returned(tick, index, epoch, &returned);
            } else {
                tick.mail
                    .request(ShardId(shard), MailRequest::ReturnCold { index, epoch, returned });
            }
        }
    }
}
