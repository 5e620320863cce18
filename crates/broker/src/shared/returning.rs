//! What a member gives back and has in the journal only: positions, which the group takes into its queue. Of a session that goes on a
//! part in each tick, as long as it is away.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use mqtt::QoS;

use crate::durable::entry_list::{EntryList, Item};
use crate::effect::Now;
use crate::mail::Letter;
use crate::message::Place;
use crate::outgoing::{GroupRef, Outgoing, Tag};
use crate::shard::Shard;
use crate::shared::giving::GivenBack;

/// In windows of a group: what members give back of what is in the journal only, in one tick.
pub(crate) const RETURNED_WINDOWS: usize = 8;

impl Outgoing {
    /// Takes out so much of what `wanted` says of what is in the journal only, as `extract` does of what is in memory.
    pub fn extract_cold(&mut self, max: usize, wanted: impl Fn(GroupRef) -> bool) -> Vec<Item> {
        let is_wanted = |tag: &Tag| tag.group().is_some_and(&wanted);
        let Some(cold) = &mut self.cold else { return Vec::new() };
        let mut taken = take(&mut cold.inflight, max, |(entry, tag)| {
            entry.qos() == QoS::AtLeastOnce && !entry.is_released() && is_wanted(tag)
        });
        taken.extend(take(&mut cold.queue, max - taken.len(), |(_, tag)| is_wanted(tag)));
        if let Some(pages) = &mut cold.pages {
            taken.extend(take(&mut pages.tail, max - taken.len(), |(_, tag)| is_wanted(tag)));
        }
        cold.forget_empty_pages();
        self.forget_empty_cold();
        taken
    }
}

/// Takes off the front as much as has so many that are wanted, and puts back the others.
fn take(list: &mut EntryList, max: usize, is_wanted: impl Fn(&Item) -> bool) -> Vec<Item> {
    if max == 0 || !list.iter().any(|item| is_wanted(&item)) {
        return Vec::new();
    }
    let mut left = max;
    let front = list.take_items_while(|item| {
        let is_more = left > 0;
        left -= usize::from(is_more && is_wanted(item));
        is_more
    });
    let (taken, others): (Vec<Item>, Vec<Item>) = front.into_iter().partition(is_wanted);
    list.prepend(others);
    taken
}

/// A session that is away has more to give back to a group.
#[derive(Clone, Copy)]
struct Returning {
    slot: u32,
    epoch: u32,
    group: GroupRef,
}

/// Sessions that go on giving back to groups in the next tick. A group asks anew each time that it has its first member: nobody stands
/// here twice for the same.
#[derive(Default)]
pub(crate) struct Returns {
    line: VecDeque<Returning>,
    standing: BTreeSet<[u32; 5]>,
}

impl Returns {
    pub fn is_empty(&self) -> bool {
        self.line.is_empty()
    }

    fn push_back(&mut self, returning: Returning) {
        if self.standing.insert(returning.key()) {
            self.line.push_back(returning);
        }
    }

    fn push_front(&mut self, returning: Returning) {
        if self.standing.insert(returning.key()) {
            self.line.push_front(returning);
        }
    }

    fn pop_front(&mut self) -> Option<Returning> {
        let first = self.line.pop_front()?;
        self.standing.remove(&first.key());
        Some(first)
    }
}

impl Returning {
    fn key(&self) -> [u32; 5] {
        let GroupRef {
            shard, index, epoch, ..
        } = self.group;
        [self.slot, self.epoch, u32::from(shard.0), index, epoch]
    }
}

impl Shard {
    /// At once, as far as nobody else has been at it in this tick.
    pub(crate) fn reclaim_in_turn(&mut self, now: Now, slot: u32, epoch: u32, group: GroupRef) {
        let session = self.core.live_session(slot, epoch);
        let is_away = session.filter(|session| session.conn.is_none());
        let has_any = is_away.is_some_and(|session| session.outgoing.queued() + session.outgoing.unacknowledged() > 0);
        if has_any {
            self.returning.push_back(Returning { slot, epoch, group });
            self.return_on(now);
        }
    }

    /// A new tick: the next part of what did not fit into the last one.
    pub(crate) fn return_more(&mut self, now: Now) {
        self.return_left = self.core.config.group_window.max(1) * RETURNED_WINDOWS;
        self.return_on(now);
    }

    /// Of as many sessions as what is left of the tick's part is of.
    pub(crate) fn return_on(&mut self, now: Now) {
        while self.return_left > 0
            && let Some(Returning { slot, epoch, group }) = self.returning.pop_front()
        {
            if self.core.live_session(slot, epoch).is_none_or(|s| s.conn.is_some()) {
                continue;
            }
            let count = self.return_shared(now, slot, self.return_left, |from| from.is_same(group));
            if count == self.return_left {
                // There may be more.
                self.returning.push_front(Returning { slot, epoch, group });
            }
            // Looking is work, too.
            self.return_left -= count.max(1);
        }
    }

    pub(super) fn return_cold(&mut self, now: Now, slot: u32, items: Vec<Item>) {
        let mut by_group = BTreeMap::<(u16, u32, u32), Vec<GivenBack>>::new();
        for (entry, tag) in items {
            let Some(group) = tag.group() else { continue };
            self.member_acknowledged(slot, group);
            let message = entry.message();
            let held_by = self.keep_returned(slot, entry.seq(), entry.qos(), Place::at(message), group.key);
            by_group
                .entry((group.shard.0, group.index, group.epoch))
                .or_default()
                .push(GivenBack { message, held_by });
        }
        for ((shard, index, epoch), given_back) in by_group {
            if shard == self.core.id.0 {
                self.take_back(now, index, epoch, &given_back);
            } else {
                self.mail_out[usize::from(shard)].letter(Letter::TakeBack {
                    index,
                    epoch,
                    given_back,
                });
            }
        }
    }
}
