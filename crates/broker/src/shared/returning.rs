//! What a member gives back and has in the journal only: it is the group's at once, and goes to another member when it has been read.

use std::collections::VecDeque;

use mqtt::QoS;

use crate::durable::checkpoint::note;
use crate::durable::cold::publication_of;
use crate::durable::entry_list::{EntryList, Item};
use crate::durable::ledger::Waiting;
use crate::durable::record::{Position, Record, SessionKey};
use crate::effect::{DropReason, Effect, Now};
use crate::mail::Envelope;
use crate::message::Place;
use crate::outgoing::{GroupRef, Outgoing, Tag};
use crate::shard::Shard;

/// In place of a session: for messages that go back to their groups.
pub const RETURNER: u32 = u32::MAX - 1;

/// Messages asked for at a time.
const FETCH_MAX: usize = 256;

/// Messages in one step of a checkpoint.
const STEP_MAX: usize = 4096;

/// Oldest first.
#[derive(Default)]
pub(crate) struct Returning {
    waiting: VecDeque<Returned>,
    /// How many were before those.
    gone: usize,
    /// Asked for and not yet there, or waiting for the journal to have the first of them.
    is_fetching: bool,
}

struct Returned {
    message: Position,
    group: GroupRef,
    /// The journal has it as the group's.
    is_held: bool,
}

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
    pub(super) fn return_cold(&mut self, slot: u32, items: Vec<Item>) {
        for (entry, tag) in items {
            let Some(group) = tag.group() else { continue };
            self.member_acknowledged(slot, group);
            let message = entry.message();
            let is_held = self.keep_returned(slot, entry.seq(), entry.qos(), Place::at(message), group.key);
            self.returning.waiting.push_back(Returned {
                message,
                group,
                is_held,
            });
        }
        self.fetch_returning();
    }

    /// Asks for the oldest of them, once the journal has kept them.
    fn fetch_returning(&mut self) {
        let Some(ledger) = &mut self.core.ledger else { return };
        let returning = &mut self.returning;
        if returning.is_fetching || returning.waiting.is_empty() {
            return;
        }
        returning.is_fetching = true;
        let messages = returning.waiting.iter().map(|returned| returned.message);
        let kept = messages.take_while(|message| message.0 < ledger.committed);
        let positions: Vec<Position> = kept.take(FETCH_MAX).collect();
        match positions.is_empty() {
            true => ledger.wait(Waiting::Return),
            false => self.core.effects.push(Effect::Fetch {
                session: RETURNER,
                connects: 0,
                positions,
            }),
        }
    }

    /// The journal has more.
    pub(crate) fn fetch_returning_again(&mut self) {
        self.returning.is_fetching = false;
        self.fetch_returning();
    }

    pub(crate) fn fetched_to_return(&mut self, now: Now, records: &[Option<Vec<u8>>]) {
        for bytes in records {
            let Some(returned) = self.returning.waiting.pop_front() else {
                break;
            };
            self.returning.gone += 1;
            match bytes.as_deref().map(Record::read) {
                Some(Ok(Record::Message(record))) => {
                    let p = publication_of(now, &record, returned.message);
                    let Returned { group, is_held, .. } = returned;
                    if group.shard == self.core.id {
                        self.redispatch(now, group.index, group.epoch, &p, None, is_held);
                    } else {
                        let envelope = Envelope::Return {
                            index: group.index,
                            epoch: group.epoch,
                            is_held,
                        };
                        self.mail_out[usize::from(group.shard.0)].publication(envelope, &p);
                    }
                }
                _ => {
                    self.core.stats.drop_message(DropReason::Damaged);
                    self.keep_dropped(returned.group.key, Place::at(returned.message));
                }
            }
        }
        self.fetch_returning_again();
    }

    /// For a checkpoint: what is neither in a session's queue nor in a group's is the group's all the same. Writes some, from the one
    /// of this number on, and returns the number of the next.
    pub(crate) fn write_returning(&mut self, from: usize, oldest: &mut Option<Position>) -> Option<usize> {
        let ledger = self.core.ledger.as_mut()?;
        let returning = &self.returning;
        let from = from.saturating_sub(returning.gone).min(returning.waiting.len());
        let end = returning.waiting.len().min(from + STEP_MAX);
        for returned in returning.waiting.range(from..end) {
            note(oldest, returned.message);
            if returned.is_held {
                ledger.record(&Record::Returned {
                    session: SessionKey(0),
                    seq: 0,
                    group: returned.group.key,
                    message: returned.message,
                });
            }
        }
        (from < end).then_some(returning.gone + end)
    }
}
