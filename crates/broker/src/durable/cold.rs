//! The part of a session's queue that is in the journal only: a few bytes a message, whatever its size.
//!
//! A session that is away, or has more to be sent than it takes, keeps positions instead of messages. When its connection wants
//! more, the first few are fetched (`Effect::Fetch`) and become ordinary deliveries again.

use std::collections::BTreeMap;
use std::sync::Arc;

use mqtt::QoS;

use crate::deliver::{Core, NO_CONN};
use crate::durable::entry::StoredEntry;
use crate::durable::entry_list::{EntryList, Item};
use crate::durable::ledger::{Ledger, Waiting};
use crate::durable::pages::Pages;
use crate::durable::record::{MessageRecord, Position, Record, Seq};
use crate::effect::{DropReason, Effect, Now};
use crate::fault::{Fault, is_planted};
use crate::lazy_deque::LazyDeque;
use crate::message::{Message, Origin, Place, Publication};
use crate::outgoing::{Delivery, Inflight, Outgoing, Tag};
use crate::shard::Shard;
use crate::shared::GIVER;

/// Messages that a connected session keeps in memory; more go cold.
const WARM_MAX: usize = 512;

/// A session with fewer messages in memory has the next ones fetched.
const WARM_LOW: usize = 128;

/// Messages asked for at a time.
const FETCH_MAX: usize = 256;

/// Fetches of all sessions and groups of a shard under way; the others wait their turn.
pub(crate) const FETCHES_MAX: usize = 64;

/// In place of a session: for messages that are written once more.
pub const MOVER: u32 = u32::MAX;

#[derive(Debug, Default)]
pub struct Cold {
    /// Sent before, oldest first.
    pub inflight: EntryList,
    pub queue: EntryList,
    /// What follows the queue, if that is long.
    pub pages: Option<Box<Pages>>,
    /// What came in this tick: it has no position before the batch is appended.
    pub fresh: LazyDeque<Delivery>,
    /// Asked for and not yet there.
    pub is_fetching: bool,
}

impl Cold {
    pub fn queued(&self) -> usize {
        self.queue.len() + self.pages.as_ref().map_or(0, |pages| pages.len()) + self.fresh.len()
    }

    fn is_empty(&self) -> bool {
        self.inflight.is_empty() && self.queue.is_empty() && self.pages.is_none()
    }

    /// Gives up the oldest of the queue that has a position; with how many fewer are at QoS 0. In pages nothing is of a group.
    pub fn pop_oldest(&mut self) -> Option<(Seq, u32, Tag)> {
        let oldest = match self.queue.pop_front() {
            Some((entry, tag)) => Some((entry.seq(), u32::from(entry.qos() == QoS::AtMostOnce), tag)),
            None => {
                let skipped = self.pages.as_mut().and_then(|pages| pages.skip());
                skipped.map(|(seq, queued_qos0)| (seq, queued_qos0, Tag::None))
            }
        };
        self.forget_empty_pages();
        oldest
    }

    /// Messages stand elsewhere now. Returns their entries.
    pub fn moved(&mut self, place_of: impl Fn(Position) -> Option<Position>) -> Vec<Item> {
        let mut change = |entry: &mut StoredEntry| {
            let position = place_of(entry.message()).filter(|_| !entry.is_released());
            position.is_some_and(|position| {
                entry.move_to(position);
                true
            })
        };
        self.lists_mut().flat_map(|list| list.change(&mut change)).collect()
    }
}

/// What is kept of a delivery: none if the journal does not have its message.
fn cool(delivery: Delivery) -> Option<Item> {
    let position = delivery.message.place().position()?;
    if is_planted(Fault::DropCold) && delivery.seq % 8 == 5 {
        return None;
    }
    let entry = StoredEntry::of(position, delivery.seq, delivery.qos, delivery.retain);
    Some((entry, delivery.tag))
}

fn cool_inflight(Inflight { seq, delivery }: Inflight) -> Option<Item> {
    delivery.map_or(Some((StoredEntry::released(seq), Tag::None)), cool)
}

impl Outgoing {
    /// Whether all that is in memory stands in the journal too, so that it need not stay in memory.
    fn may_cool(&self) -> bool {
        let is_kept = |d: &Delivery| d.message.place().position().is_some();
        self.inflight
            .iter()
            .filter_map(|entry| entry.delivery.as_ref())
            .all(is_kept)
            && self.queue.iter().all(is_kept)
    }

    /// Lets go of all messages in memory.
    fn cool_all(&mut self) {
        self.cooled = self.cooled.wrapping_add(1);
        let cold = self.cold.get_or_insert_default();
        cold.queue.prepend(self.queue.take().into_iter().filter_map(cool));
        cold.inflight
            .prepend(self.inflight.take().into_iter().filter_map(cool_inflight));
        self.sent = 0;
        self.queued_bytes = cold.fresh.iter().map(Delivery::kept_bytes).sum();
        self.cool_fresh();
    }

    /// What came in the last tick joins what is cold already.
    fn cool_fresh(&mut self) {
        let Some(cold) = &mut self.cold else { return };
        let fresh = cold.fresh.take();
        self.queued_bytes -= fresh.iter().map(Delivery::kept_bytes).sum::<usize>();
        cold.newest().extend(fresh.into_iter().filter_map(cool));
        self.forget_empty_cold();
    }

    fn cool_beyond(&mut self, warm_max: usize) {
        self.cooled = self.cooled.wrapping_add(1);
        let cold = self.cold.get_or_insert_default();
        let mut beyond = self.queue.take();
        self.queue.extend(beyond.drain(..warm_max.min(beyond.len())));
        self.queued_bytes -= beyond.iter().map(Delivery::kept_bytes).sum::<usize>();
        cold.queue.prepend(beyond.into_iter().filter_map(cool));
        self.forget_empty_cold();
    }

    /// Returns those that could not be had again.
    fn warm_inflight(&mut self, entries: Vec<Item>, revive: impl Fn(StoredEntry, Tag) -> Option<Delivery>) -> Vec<Seq> {
        let mut lost = Vec::new();
        for (entry, tag) in entries {
            let seq = entry.seq();
            let delivery = revive(entry, tag);
            match delivery.is_some() || entry.is_released() {
                true => self.inflight.push_back(Inflight { seq, delivery }),
                false => lost.push(seq),
            }
        }
        lost
    }

    fn warm_queue(&mut self, entries: Vec<Item>, revive: impl Fn(StoredEntry, Tag) -> Option<Delivery>) -> Vec<Seq> {
        let mut lost = Vec::new();
        for (entry, tag) in entries {
            match revive(entry, tag) {
                Some(delivery) => {
                    self.queued_bytes += delivery.kept_bytes();
                    self.queue.push_back(delivery);
                }
                None => {
                    self.queued_qos0 -= u32::from(entry.qos() == QoS::AtMostOnce);
                    lost.push(entry.seq());
                }
            }
        }
        lost
    }

    /// Once nothing is left in the journal only, what came meanwhile is next.
    pub fn forget_empty_cold(&mut self) {
        if let Some(mut cold) = self.cold.take_if(|cold| cold.is_empty()) {
            self.queue.extend(cold.fresh.take());
        }
    }

    fn wants_more(&self) -> bool {
        let is_low = self.inflight.len() - self.sent + self.queue.len() < WARM_LOW;
        is_low
            && self
                .cold
                .as_ref()
                .is_some_and(|cold| !(cold.is_fetching || cold.is_empty()))
    }

    /// What to fetch next: what was in flight comes before what waits, and is not fetched together with it.
    /// What the journal has not kept yet cannot be read: `None` where that is the first.
    fn next_positions(&self, kept: u64) -> Option<Vec<Position>> {
        let cold = self.cold.as_ref()?;
        if let Some(page) = cold.next_page() {
            let at = page.place.position().filter(|at| at.0 < kept);
            return at.map(|at| vec![at]);
        }
        let next = if cold.inflight.is_empty() {
            &cold.queue
        } else {
            &cold.inflight
        };
        let entries = next.iter().take(FETCH_MAX).map(|(entry, _)| entry);
        let is_kept = |entry: &StoredEntry| entry.is_released() || entry.message().0 < kept;
        let wanted: Vec<_> = entries.take_while(is_kept).collect();
        let positions = wanted.iter().filter(|entry| !entry.is_released());
        (!wanted.is_empty()).then(|| positions.map(StoredEntry::message).collect())
    }
}

impl Core {
    /// After a batch was appended: who has messages in memory that can wait in the journal.
    pub fn cool(&mut self, slot: u32) {
        if !self.links[slot as usize].is_durable {
            return;
        }
        let is_away = self.links[slot as usize].conn == NO_CONN;
        let Some(session) = self.sessions[slot as usize].as_deref_mut() else {
            return;
        };
        session.is_cooling = false;
        let out = &mut session.outgoing;
        let before = out.queued_bytes;
        if is_away && out.may_cool() {
            out.cool_all();
        } else if out.cold.is_some() {
            out.cool_fresh();
        } else if out.queue.len() > WARM_MAX && out.may_cool() {
            out.cool_beyond(WARM_MAX / 2);
        }
        self.stats.queued_bytes -= (before - out.queued_bytes) as u64;
        let is_long = |cold: &Cold| cold.is_long(self.config.page_entries.max(1));
        if out.cold.as_deref().is_some_and(is_long)
            && let Some(ledger) = &mut self.ledger
        {
            ledger.paging.push(slot);
        }
    }

    /// Has a session looked at when the tick's batch has been appended.
    pub fn cool_later(&mut self, slot: u32) {
        let Some(ledger) = &mut self.ledger else { return };
        let session = self.sessions[slot as usize].as_deref_mut().expect("the caller has it");
        if session.key.0 != 0 && !session.is_cooling {
            session.is_cooling = true;
            ledger.cooling.push(slot);
        }
    }

    /// Asks for what a session is to be sent next, if it is not in memory.
    pub fn fetch_more(&mut self, slot: u32) {
        let Some(session) = self.sessions[slot as usize].as_deref_mut() else {
            return;
        };
        if session.conn.is_none() || !session.outgoing.wants_more() {
            return;
        }
        let Some(ledger) = &mut self.ledger else { return };
        let positions = session.outgoing.next_positions(ledger.committed);
        if let Some(cold) = &mut session.outgoing.cold {
            cold.is_fetching = true;
        }
        let (connects, epoch) = (session.connects, session.epoch);
        match positions {
            None => ledger.wait(Waiting::Send { slot, epoch, seq: 0 }),
            Some(_) if ledger.fetches >= FETCHES_MAX => ledger.fetch_queue.push_back((slot, connects)),
            Some(positions) => {
                ledger.fetches += 1;
                self.effects.push(Effect::Fetch {
                    session: slot,
                    connects,
                    positions,
                });
            }
        }
    }
}

impl Shard {
    /// The answer to `Effect::Fetch`: the first of the records asked for, as many as the driver cared to read at once and at least
    /// one; `None` where the journal could not give it.
    pub fn fetched(
        &mut self,
        now: Now,
        slot: u32,
        connects: u32,
        positions: &[Position],
        records: Vec<Option<Vec<u8>>>,
    ) {
        if slot == MOVER {
            return self.fetched_to_move(positions, &records);
        }
        if let Some(ledger) = &mut self.core.ledger {
            ledger.fetches = ledger.fetches.saturating_sub(1);
        }
        if slot == GIVER {
            self.fetched_to_give(now, connects, positions, records);
            return self.fetch_in_turn(now);
        }
        let is_current = self.core.sessions.get(slot as usize).and_then(Option::as_deref);
        if is_current.is_some_and(|session| session.connects == connects && session.conn.is_some()) {
            let records: BTreeMap<Position, Option<Vec<u8>>> = positions.iter().copied().zip(records).collect();
            self.warm(now, slot, &records);
            self.pump(now, slot);
        }
        self.fetch_in_turn(now);
    }

    /// Fetches for those that wait for their turn.
    fn fetch_in_turn(&mut self, now: Now) {
        let next = |ledger: &mut Ledger| match ledger.fetches < FETCHES_MAX {
            true => ledger.fetch_queue.pop_front(),
            false => None,
        };
        while let Some((slot, connects)) = self.core.ledger.as_deref_mut().and_then(next) {
            if slot == GIVER {
                self.fetch_to_give_again(now, connects);
                continue;
            }
            let session = self.core.sessions[slot as usize].as_deref_mut();
            if let Some(session) = session.filter(|session| session.connects == connects) {
                if let Some(cold) = &mut session.outgoing.cold {
                    cold.is_fetching = false;
                }
                self.core.fetch_more(slot);
            }
        }
    }

    /// Loads the page that is next, if it has come. Returns what could not be had.
    fn warm_page(&mut self, slot: u32, records: &BTreeMap<Position, Option<Vec<u8>>>) -> Vec<Seq> {
        let cold = self.core.session(slot).outgoing.cold.as_deref();
        let next = cold.and_then(Cold::next_page).and_then(|page| page.place.position());
        match next.and_then(|at| records.get(&at)) {
            None => Vec::new(),
            Some(record) => self.core.load_page(slot, record.as_deref()),
        }
    }

    /// Turns cold messages into deliveries again, in their order, as far as they have come.
    pub(super) fn warm(&mut self, now: Now, slot: u32, records: &BTreeMap<Position, Option<Vec<u8>>>) {
        let lost_page = self.warm_page(slot, records);
        let out = &mut self.core.session_mut(slot).outgoing;
        let Some(cold) = &mut out.cold else { return };
        cold.is_fetching = false;
        let has_come = |entry: &StoredEntry| entry.is_released() || records.contains_key(&entry.message());
        let inflight = cold.inflight.take_while(has_come);
        // What was in flight comes first, all of it.
        let queue = match cold.inflight.is_empty() {
            true => cold.queue.take_while(has_come),
            false => Vec::new(),
        };
        cold.forget_empty_pages();
        let bytes_before = out.queued_bytes;
        let lost_inflight = out.warm_inflight(inflight, |entry, tag| revive(now, entry, tag, records));
        let mut lost = out.warm_queue(queue, |entry, tag| revive(now, entry, tag, records));
        lost.extend(lost_page);
        let more_bytes = (out.queued_bytes - bytes_before) as u64;
        out.forget_empty_cold();
        let stats = &mut self.core.stats;
        stats.queued_bytes += more_bytes;
        stats.inflight_messages -= lost_inflight.len() as u64;
        stats.queued_messages -= lost.len() as u64;
        for seq in lost_inflight.into_iter().chain(lost) {
            self.core.keep_settled(slot, seq, false);
            self.core.drop_cold(now, slot, DropReason::Damaged);
        }
    }
}

/// A delivery again, from the record of its message. Of a released one only the identifier is left, also if the session has another entry
/// of the same message.
fn revive(now: Now, entry: StoredEntry, tag: Tag, records: &BTreeMap<Position, Option<Vec<u8>>>) -> Option<Delivery> {
    if entry.is_released() {
        return None;
    }
    let bytes = records.get(&entry.message())?.as_deref()?;
    let Ok(Record::Message(record)) = Record::read(bytes) else {
        return None;
    };
    Some(Delivery {
        message: message_of(now, &record, entry.message()),
        qos: entry.qos(),
        retain: entry.retain(),
        seq: entry.seq(),
        tag,
    })
}

/// The message that a record holds. The session that published it is not known any more.
pub(crate) fn message_of(now: Now, record: &MessageRecord<'_>, position: Position) -> Arc<Message> {
    publication_of(now, record, position).to_message()
}

pub(crate) fn publication_of<'a>(now: Now, record: &MessageRecord<'a>, position: Position) -> Publication<'a> {
    Publication {
        topic: record.topic,
        payload: record.payload,
        properties: record.properties,
        qos: record.qos,
        retain: record.retain,
        expires_at_ms: record.expires_unix_ms.map(|at| now.monotonic_at(at)),
        origin: Origin::NONE,
        publisher_hash: record.publisher_hash,
        place: Place::at(position),
        provenance: record.provenance,
    }
}

impl Now {
    /// When it is this time of day on the monotonic clock: 0 for what is long past.
    pub fn monotonic_at(self, unix_ms: u64) -> u64 {
        (self.monotonic_ms + unix_ms).saturating_sub(self.unix_ms)
    }

    /// The time of day at a moment of the monotonic clock.
    pub fn unix_at(self, monotonic_ms: u64) -> u64 {
        (self.unix_ms + monotonic_ms).saturating_sub(self.monotonic_ms)
    }
}
