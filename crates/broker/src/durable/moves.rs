//! Writing old messages once more, so that one that waits for long does not keep all of the journal behind it.
//!
//! Part of the walk of a checkpoint: before a session or a group is written, what it has before `Moves::before` is appended again, from
//! memory or read back for it. The copies say nothing of recipients: what a session has of them is recorded with their new positions as
//! soon as they have one, so that what was moved stays moved if the checkpoint does not come to its end. Until it has, the old ones
//! are there too.
//!
//! A message that is held for a session has no number there, and the journal knows it by its position only. So what is old is not held any
//! longer before anything is moved.
//!
//! What is damaged is not given up here: `Record::Lost` is written in its place, and whoever waits for the message finds that, when it
//! comes to it, and counts it. Otherwise one damaged message of a client that never comes back would keep all of the journal behind it.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use mqtt::QoS;

use crate::deliver::Core;
use crate::durable::checkpoint::Walk;
use crate::durable::cold::MOVER;
use crate::durable::entry::StoredEntry;
use crate::durable::entry_list::{EntryList, entry_of};
use crate::durable::keep::put_group_target;
use crate::durable::ledger::Ledger;
use crate::durable::pages::Page;
use crate::durable::record::{Entry, MessageRecord, Position, Record, Seq, SessionKey, Targets};
use crate::effect::{Effect, Now};
use crate::fault::{Fault, is_planted};
use crate::message::{Message, Place};
use crate::outgoing::{Delivery, Outgoing, Tag};
use crate::shard::Shard;

/// Messages read at a time.
const READ_MAX: usize = 256;

/// Remembered, so that a message of many sessions is written once more and not many times; then forgotten.
const MOVED_MAX: usize = 1 << 18;

/// What a checkpoint writes once more: messages before a position, so many bytes at most. What finds no room stays where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MovePart {
    pub before: Position,
    pub bytes: u64,
}

impl MovePart {
    pub const NOTHING: MovePart = MovePart {
        before: Position(0),
        bytes: 0,
    };
}

pub struct Moves {
    before: Position,
    /// Bytes that may still be written once more.
    room: u64,
    /// That have been.
    pub written: u64,
    /// Written while walking, of messages that were in memory.
    pub bytes: u64,
    /// Where messages stand now.
    moved: HashMap<Position, Position, foldhash::quality::RandomState>,
    /// Written in this tick: they have no positions yet.
    fresh: Vec<(Position, Place)>,
    /// Something was written from memory in this tick.
    is_unplaced: bool,
    is_fetching: bool,
    /// The journal is needed from here for the page that was last read.
    page_needed: Position,
    page: Option<LoadedPage>,
}

/// A page whose messages are being moved.
struct LoadedPage {
    at: Position,
    entries: EntryList,
}

impl Moves {
    pub fn new(part: MovePart) -> Moves {
        Moves {
            before: part.before,
            room: part.bytes,
            written: 0,
            bytes: 0,
            moved: HashMap::default(),
            fresh: Vec::new(),
            is_unplaced: false,
            is_fetching: false,
            page_needed: Position(u64::MAX),
            page: None,
        }
    }

    /// What was written stands in the batch that has been appended.
    pub fn settle(&mut self, base: u64) {
        self.is_unplaced = false;
        if self.moved.len() > MOVED_MAX {
            self.moved.clear();
        }
        for (old, place) in self.fresh.drain(..) {
            if let Some(position) = place.placed(base).position() {
                self.moved.insert(old, position);
            }
        }
    }

    pub fn is_fetching(&self) -> bool {
        self.is_fetching
    }

    pub fn is_any_old(&self) -> bool {
        self.before > Position(0)
    }

    fn is_old(&self, position: Position) -> bool {
        position < self.before
    }

    /// What stands there, and what a page needs that does, is not moved.
    fn leave(&mut self, positions: &[Position]) {
        let oldest = positions.iter().min().copied();
        self.before = oldest
            .into_iter()
            .chain([self.before, self.page_needed])
            .min()
            .unwrap_or(self.before);
    }

    fn has_room(&self, bytes: usize) -> bool {
        bytes as u64 <= self.room
    }

    fn take_room(&mut self, bytes: usize) {
        self.room = self.room.saturating_sub(bytes as u64);
        self.written += bytes as u64;
    }

    /// Writes a message that is in memory once more, if it is old, for `targets`. Returns where it stood.
    pub fn message(
        &mut self,
        now: Now,
        ledger: &mut Ledger,
        message: &Arc<Message>,
        targets: Targets<'_>,
    ) -> Option<Position> {
        let old = message.place().position().filter(|position| self.is_old(*position))?;
        let p = message.publication();
        if !self.has_room(p.topic.len() + p.payload.len()) {
            self.leave(&[old]);
            return None;
        }
        let record = MessageRecord {
            topic: p.topic,
            payload: p.payload,
            properties: p.properties,
            qos: p.qos,
            retain: p.retain,
            expires_unix_ms: p.expires_at_ms.map(|at| now.unix_at(at)),
            publisher_hash: p.publisher_hash,
            shard: 0,
            others: 0,
            due_unix_ms: None,
            retained: None,
            publisher: None,
            provenance: p.provenance,
            targets,
        };
        let begin = ledger.batch.len();
        let place = Place::pending(ledger.batch.record(|out| record.put(out)));
        let bytes = ledger.batch.len() - begin;
        self.bytes += bytes as u64;
        self.take_room(bytes);
        ledger.place_later(message, place);
        self.is_unplaced = true;
        Some(old)
    }
}

impl Shard {
    /// Whether the walk has to wait for a tick, or for messages that are being read.
    pub(super) fn must_wait_for_moves(&self, walk: &mut Walk) -> bool {
        walk.moves.is_fetching || walk.moves.is_unplaced || !walk.moves.fresh.is_empty()
    }

    /// Has those of a group's old messages that are in memory written once more. False when there are none. A group knows its messages by their positions, so the
    /// batch that has the copies says too that it holds these and not the old ones.
    pub(super) fn move_group(&mut self, now: Now, index: u32, moves: &mut Moves) -> bool {
        let Some(ledger) = &mut self.core.ledger else {
            return false;
        };
        let Some(group) = self.groups.get_mut(index) else {
            return false;
        };
        let (key, is_durable) = (group.key, group.is_durable());
        let mut held = Vec::new();
        put_group_target(key, &mut held);
        for message in group.queue.warm_mut() {
            // Of others too: each group has to say where its own stands, and finds it old only as long as nobody has moved it.
            if Arc::strong_count(message) > 1 && message.place().position().is_some_and(|at| moves.is_old(at)) {
                *message = message.publication().to_message();
            }
            let old = moves.message(now, ledger, message, Targets::from_written(&held));
            if let Some(message) = old.filter(|_| is_durable) {
                ledger.record(&Record::GroupDropped { group: key, message });
            }
        }
        moves.is_unplaced
    }

    /// Has the old ones of so many messages that a group has in the journal only written once more, from behind a number on. False when
    /// none of them is left. The batch that says where the copies stand says too that the group does not hold the old ones.
    pub(super) fn move_held(&mut self, index: u32, behind: Seq, max: usize, moves: &mut Moves) -> bool {
        if !moves.is_any_old() {
            return false;
        }
        let (Some(group), Some(ledger)) = (self.groups.get_mut(index), &mut self.core.ledger) else {
            return false;
        };
        let part = group.queue.part(behind, max);
        let (Some((first, _)), Some((last, _))) = (part.first(), part.last()) else {
            return false;
        };
        let stands = |position| moves.moved.get(&position).copied().filter(|_| moves.is_old(position));
        let moved = group.queue.moved(*first..=*last, stands);
        let key = group.key;
        for (old, new) in moved.into_iter().filter(|_| key.0 != 0) {
            ledger.record(&Record::GroupDropped {
                group: key,
                message: old,
            });
            ledger.record(&Record::Returned {
                session: SessionKey(0),
                seq: 0,
                group: key,
                message: new,
            });
        }
        let old = part.iter().map(|(_, message)| *message);
        let old = old.filter(|position| moves.is_old(*position) && stands(*position).is_none());
        let positions: BTreeSet<Position> = old.take(READ_MAX).collect();
        if positions.is_empty() {
            return false;
        }
        self.core.fetch_to_move(moves, positions);
        true
    }

    /// Has a session's old messages written once more. False when there are none.
    pub(super) fn move_session(&mut self, now: Now, slot: u32, moves: &mut Moves) -> bool {
        // A `$delayed` one may have come since.
        self.core.release_old(now, slot, moves);
        let Some(ledger) = &mut self.core.ledger else {
            return false;
        };
        let Some(session) = self.core.sessions[slot as usize].as_deref_mut() else {
            return false;
        };
        let is_lending = session.key.0 == 0;
        for delivery in session.outgoing.warm() {
            let lender = delivery
                .tag
                .group_key()
                .filter(|_| is_lending && delivery.qos == QoS::AtLeastOnce);
            let mut held = Vec::new();
            put_group_target(lender.unwrap_or_default(), &mut held);
            let old = moves.message(now, ledger, &delivery.message, Targets::from_written(&held));
            if let (Some(message), Some(group)) = (old, lender) {
                ledger.record(&Record::GroupDropped { group, message });
            }
        }
        let Some(cold) = &mut session.outgoing.cold else {
            return moves.is_unplaced;
        };
        if moves.before == Position(0) {
            return false;
        }
        let stands = |position| moves.moved.get(&position).copied();
        let moved = cold.moved(|position| Some(position).filter(|at| moves.is_old(*at)).and_then(stands));
        let key = session.key;
        let tail = cold.tail().into_iter().flat_map(EntryList::iter);
        let entries = cold
            .inflight
            .iter()
            .chain(cold.queue.iter())
            .chain(tail)
            .map(|(entry, _)| entry);
        let old = entries
            .filter(|entry| !entry.is_released())
            .map(|entry| entry.message())
            .filter(|position| moves.is_old(*position));
        let positions: BTreeSet<Position> = old.take(READ_MAX).collect();
        let moved: Vec<Entry> = moved.into_iter().map(entry_of).collect();
        self.core.record_entries(key, &moved);
        if !positions.is_empty() {
            self.core.fetch_to_move(moves, positions);
        }
        moves.is_fetching || moves.is_unplaced || self.core.move_page(slot, moves)
    }

    /// The driver had no room for this question.
    pub fn fetch_again(&mut self, session: u32, connects: u32, positions: Vec<Position>) {
        self.core.effects.push(Effect::Fetch {
            session,
            connects,
            positions,
        });
    }

    /// Old messages that were read: they are written once more, as far as there is room. None, if the disk cannot be read now: they
    /// stay where they are.
    pub(super) fn fetched_to_move(&mut self, positions: &[Position], records: &[Option<Vec<u8>>]) {
        let Some(walk) = &mut self.walk else { return };
        let Some(ledger) = &mut self.core.ledger else { return };
        walk.moves.is_fetching = false;
        if records.is_empty() {
            return walk.moves.leave(positions);
        }
        for (index, (old, bytes)) in positions.iter().zip(records).enumerate() {
            let length = bytes.as_deref().map_or(0, <[u8]>::len);
            match bytes.as_deref().map(Record::read) {
                Some(Ok(Record::Message(_))) if !walk.moves.has_room(length) => {
                    return walk.moves.leave(&positions[index..]);
                }
                Some(Ok(Record::Message(record))) => {
                    walk.moves.take_room(length);
                    let record = MessageRecord {
                        shard: 0,
                        others: 0,
                        due_unix_ms: None,
                        retained: None,
                        publisher: None,
                        targets: Targets::default(),
                        ..record
                    };
                    let offset = ledger.batch.record(|out| record.put(out));
                    walk.moves.fresh.push((*old, Place::pending(offset)));
                }
                Some(Ok(Record::Page { entries, .. })) if let Ok(items) = entries.items() => {
                    let mut entries = EntryList::default();
                    entries.extend(items);
                    walk.moves.page = Some(LoadedPage { at: *old, entries });
                }
                _ => walk.moves.fresh.push((*old, ledger.record(&Record::Lost))),
            }
        }
    }
}

impl Core {
    /// What a session holds has its place in the queue, if any of it is to be moved.
    pub(super) fn release_old(&mut self, now: Now, slot: u32, moves: &Moves) {
        if !self.links[slot as usize].is_replaying {
            return;
        }
        let is_old = |delivery: &Delivery| {
            let position = delivery.message.place().position();
            position.is_some_and(|position| moves.is_old(position))
        };
        if self.session(slot).replays.held_messages().any(is_old) {
            self.release(now, slot);
        }
    }

    fn fetch_to_move(&mut self, moves: &mut Moves, positions: impl IntoIterator<Item = Position>) {
        moves.is_fetching = true;
        self.effects.push(Effect::Fetch {
            session: MOVER,
            connects: 0,
            positions: positions.into_iter().collect(),
        });
    }

    /// Has the old messages of a session's pages written once more, and then each of the pages. False when there are none.
    fn move_page(&mut self, slot: u32, moves: &mut Moves) -> bool {
        let session = self.sessions[slot as usize].as_deref_mut();
        let pages = session.and_then(|session| session.outgoing.cold.as_deref_mut()?.pages.as_deref_mut());
        moves.page_needed = Position(u64::MAX);
        let Some(pages) = pages else {
            moves.page = None;
            return false;
        };
        let loaded = moves.page.take();
        let old = pages.list.iter().find(|page| moves.is_old(page.needed()));
        let old = old.and_then(|page| Some((page, page.place.position()?)));
        let lost = old.and_then(|(page, at)| Some(page.lost(at, *moves.moved.get(&at)?)));
        if let Some((page, _)) = old {
            moves.page_needed = page.needed();
        }
        let Some(mut loaded) = loaded.or(lost) else {
            let Some((_, at)) = old else { return false };
            self.fetch_to_move(moves, [at]);
            return true;
        };
        loaded.entries.change(|entry| {
            let moved = moves
                .moved
                .get(&entry.message())
                .filter(|_| moves.is_old(entry.message()));
            moved.is_some_and(|position| {
                entry.move_to(*position);
                true
            })
        });
        let messages = loaded.entries.iter().map(|(entry, _)| entry.message());
        let old: BTreeSet<Position> = messages.filter(|at| moves.is_old(*at)).take(READ_MAX).collect();
        if !old.is_empty() {
            moves.page = Some(loaded);
            self.fetch_to_move(moves, old);
            return true;
        }
        moves.is_unplaced |= self.rewrite_page(slot, loaded);
        true
    }

    /// The page stands where it is written now. False if the session does not have it any more.
    fn rewrite_page(&mut self, slot: u32, loaded: LoadedPage) -> bool {
        let (Some(session), Some(ledger)) = (self.sessions[slot as usize].as_deref_mut(), &mut self.ledger) else {
            return false;
        };
        let pages = session
            .outgoing
            .cold
            .as_deref_mut()
            .and_then(|cold| cold.pages.as_deref_mut());
        let pages = pages.into_iter().flat_map(|pages| &mut pages.list);
        let Some(page) = { pages }.find(|page| page.place == Place::at(loaded.at)) else {
            return false;
        };
        let dropped = usize::from(is_planted(Fault::MoveDropsPosition));
        let left = loaded.entries.iter().skip(page.skipped as usize + dropped).collect();
        let written = ledger.put_page(slot, session.key, left);
        *page = Page {
            queued_qos0: page.queued_qos0,
            ..written
        };
        true
    }
}

impl Page {
    /// Its record was damaged, and `Record::Lost` is in its place: so are all its messages.
    fn lost(&self, at: Position, lost: Position) -> LoadedPage {
        let given_up = self.first - u64::from(self.skipped);
        let numbers = given_up..self.first + u64::from(self.count);
        let mut entries = EntryList::default();
        entries.extend(numbers.map(|seq| (StoredEntry::of(lost, seq, QoS::AtLeastOnce, false), Tag::None)));
        LoadedPage { at, entries }
    }
}

impl Outgoing {
    /// What is in memory.
    fn warm(&self) -> impl Iterator<Item = &Delivery> {
        let inflight = self.inflight.iter().filter_map(|entry| entry.delivery.as_ref());
        let fresh = self.cold.iter().flat_map(|cold| cold.fresh.iter());
        inflight.chain(self.queue.iter()).chain(fresh)
    }
}
