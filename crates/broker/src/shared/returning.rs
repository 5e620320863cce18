//! What a member gives back and has in the journal only: positions, which the group takes into its queue.

use std::collections::BTreeMap;

use mqtt::QoS;

use crate::durable::entry_list::{EntryList, Item};
use crate::durable::record::GroupKey;
use crate::effect::Now;
use crate::mail::Letter;
use crate::message::Place;
use crate::outgoing::{GroupRef, Outgoing, Tag};
use crate::shard::Shard;
use crate::shared::giving::GivenBack;

impl Outgoing {
    /// Takes out what `wanted` says of what is in the journal only, as `extract` does of what is in memory.
    pub fn extract_cold(&mut self, wanted: impl Fn(GroupRef) -> bool) -> Vec<Item> {
        let is_wanted = |tag: &Tag| tag.group().is_some_and(&wanted);
        let Some(cold) = &mut self.cold else { return Vec::new() };
        let mut taken = take(&mut cold.inflight, |(entry, tag)| {
            entry.qos() == QoS::AtLeastOnce && !entry.is_released() && is_wanted(tag)
        });
        taken.extend(take(&mut cold.queue, |(_, tag)| is_wanted(tag)));
        if let Some(pages) = &mut cold.pages {
            taken.extend(take(&mut pages.tail, |(_, tag)| is_wanted(tag)));
        }
        cold.forget_empty_pages();
        self.forget_empty_cold();
        taken
    }
}

fn take(list: &mut EntryList, is_wanted: impl Fn(&Item) -> bool) -> Vec<Item> {
    if !list.iter().any(|item| is_wanted(&item)) {
        return Vec::new();
    }
    let (taken, left): (Vec<Item>, Vec<Item>) = list.take_while(|_| true).into_iter().partition(is_wanted);
    list.extend(left);
    taken
}

impl Shard {
    pub(super) fn return_cold(&mut self, now: Now, slot: u32, items: Vec<Item>) {
        let mut by_group = BTreeMap::<(u16, u32, u32), Vec<GivenBack>>::new();
        for (entry, tag) in items {
            let Some(group) = tag.group() else { continue };
            self.member_acknowledged(slot, group);
            let message = entry.message();
            let is_held = self.keep_returned(slot, entry.seq(), entry.qos(), Place::at(message), group.key);
            let held_by = if is_held { group.key } else { GroupKey::default() };
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
