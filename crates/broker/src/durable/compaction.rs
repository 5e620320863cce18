//! Compaction: rewrites old messages that are still needed, so that their segments can be deleted.
//!
//! Runs as part of a checkpoint. Before a session or group is written, its messages below `CheckpointMoves::before` are
//! appended again, from memory or after a read. The copies have no recipients. As soon as a copy has a position, the
//! session's entries are recorded with it, so a move stays valid if the checkpoint does not finish. Until then the
//! originals are still referenced.
//!
//! A message that is held for a session has no number, and the journal identifies it by its position only. Therefore
//! old held messages are queued before anything is moved.
//!
//! A damaged record is replaced with `JournalRecord::Damaged`. The session or group that needs the message finds and
//! counts it on reading. Otherwise one damaged message of a client that never returns would keep all later segments.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use mqtt::QoS;

use crate::deliver::ShardCore;
use crate::delivery::{Delivery, DeliveryTag};
use crate::durable::entry::StoredEntry;
use crate::durable::entry_list::{EntryList, entry_of};
use crate::durable::journaling::put_group_recipient;
use crate::durable::pages::QueuePage;
use crate::durable::pending_records::PendingRecords;
use crate::durable::record::{JournalRecord, MessageRecord, RecordPosition, Seq, SessionEntry, SessionKey, Targets};
use crate::effect::{Effect, FetchPurpose, Now};
use crate::fault::{Fault, is_planted};
use crate::message::{Message, RecordLocation};
use crate::outgoing::OutgoingMessages;
use crate::shared::ShareGroup;
use crate::slots::SessionSlot;

/// Messages per read.
const READ_MAX: usize = 256;

/// Positions remembered, so that a message of many sessions is moved only once. The map is cleared when it is full.
const MOVED_MAX: usize = 1 << 18;

/// The part of the journal that a checkpoint may move: messages below a position, up to a number of bytes. Messages
/// beyond that stay in place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MovePart {
    pub before: RecordPosition,
    pub bytes: u64,
}

impl MovePart {
    pub const NOTHING: MovePart = MovePart {
        before: RecordPosition(0),
        bytes: 0,
    };
}

pub struct CheckpointMoves {
    before: RecordPosition,
    /// Remaining byte budget.
    remaining_bytes: u64,
    /// Bytes moved so far.
    pub written: u64,
    /// Bytes of moved messages that were in memory.
    pub bytes: u64,
    /// New position of each moved message.
    moved: HashMap<RecordPosition, RecordPosition, foldhash::quality::RandomState>,
    /// Moved in this tick, without a position yet.
    fresh: Vec<(RecordPosition, RecordLocation)>,
    /// A message was moved from memory in this tick.
    is_unplaced: bool,
    is_fetching: bool,
    /// Oldest position that the last visited page needs.
    page_needed: RecordPosition,
    page: Option<LoadedPage>,
}

/// A page whose messages are being moved.
struct LoadedPage {
    at: RecordPosition,
    entries: EntryList,
}

impl CheckpointMoves {
    pub fn new(part: MovePart) -> CheckpointMoves {
        CheckpointMoves {
            before: part.before,
            remaining_bytes: part.bytes,
            written: 0,
            bytes: 0,
            moved: HashMap::default(),
            fresh: Vec::new(),
            is_unplaced: false,
            is_fetching: false,
            page_needed: RecordPosition(u64::MAX),
            page: None,
        }
    }

    /// Sets the positions of the messages in the batch that has been appended.
    pub fn set_positions(&mut self, base: u64) {
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

    pub fn has_old_entries(&self) -> bool {
        self.before > RecordPosition(0)
    }

    fn is_old(&self, position: RecordPosition) -> bool {
        position < self.before
    }

    /// Lowers the limit so that these messages, and a page that needs them, are not moved.
    fn exclude(&mut self, positions: &[RecordPosition]) {
        let oldest = positions.iter().min().copied();
        self.before = oldest
            .into_iter()
            .chain([self.before, self.page_needed])
            .min()
            .unwrap_or(self.before);
    }

    fn has_space(&self, bytes: usize) -> bool {
        bytes as u64 <= self.remaining_bytes
    }

    fn use_space(&mut self, bytes: usize) {
        self.remaining_bytes = self.remaining_bytes.saturating_sub(bytes as u64);
        self.written += bytes as u64;
    }

    /// Moves a message that is in memory, if it is old. `targets` are its recipients. Returns its old position.
    pub fn message(
        &mut self,
        now: Now,
        ledger: &mut PendingRecords,
        message: &Arc<Message>,
        targets: Targets<'_>,
    ) -> Option<RecordPosition> {
        let old = message.place().position().filter(|position| self.is_old(*position))?;
        let p = message.publication();
        if !self.has_space(p.topic.len() + p.payload.len()) {
            self.exclude(&[old]);
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
            owner: p.owner.map(|owner| owner.owner()),
            targets,
        };
        let begin = ledger.batch_bytes();
        let place = ledger.record_message(&record);
        let bytes = ledger.batch_bytes() - begin;
        self.bytes += bytes as u64;
        self.use_space(bytes);
        ledger.set_place_when_appended(message, place);
        self.is_unplaced = true;
        Some(old)
    }
}

impl CheckpointMoves {
    /// Returns whether the checkpoint must wait for a pending read or for the positions of this tick.
    pub(super) fn must_wait(&self) -> bool {
        self.is_fetching || self.is_unplaced || !self.fresh.is_empty()
    }

    /// Moves the old messages of a group that are in memory. Returns false if there are none. The journal identifies
    /// messages of a group by their positions, so the batch with the copies also replaces the old ones in the group.
    pub(super) fn group(&mut self, now: Now, ledger: &mut PendingRecords, group: &mut ShareGroup) -> bool {
        let (key, is_durable) = (group.key(), group.is_durable());
        let mut held = Vec::new();
        put_group_recipient(key, &mut held);
        for message in group.queue_mut().warm_mut() {
            // A message that other owners share is copied: each group must record the new position of its own messages,
            // and finds a message old only if nothing has moved it yet.
            if Arc::strong_count(message) > 1 && message.place().position().is_some_and(|at| self.is_old(at)) {
                *message = message.publication().to_message();
            }
            let old = self.message(now, ledger, message, Targets::from_written(&held));
            if let Some(message) = old.filter(|_| is_durable) {
                ledger.record(&JournalRecord::GroupDropped { group: key, message });
            }
        }
        self.is_unplaced
    }

    /// Moves up to `max` old cold messages of a group, starting after entry `behind`. Returns false if none is left.
    /// The batch that records the new positions also removes the old ones from the group.
    pub(super) fn group_entries(
        &mut self,
        core: &mut ShardCore,
        group: &mut ShareGroup,
        behind: Seq,
        max: usize,
    ) -> bool {
        if !self.has_old_entries() {
            return false;
        }
        let Some(ledger) = core.ledger.records_mut() else {
            return false;
        };
        let part = group.queue().part(behind, max);
        let (Some((first, _)), Some((last, _))) = (part.first(), part.last()) else {
            return false;
        };
        let new_position = |position| self.moved.get(&position).copied().filter(|_| self.is_old(position));
        let moved = group.queue_mut().moved(*first..=*last, new_position);
        let key = group.key();
        for (old, new) in moved.into_iter().filter(|_| key.0 != 0) {
            ledger.record(&JournalRecord::GroupDropped {
                group: key,
                message: old,
            });
            ledger.record(&JournalRecord::Returned {
                session: SessionKey(0),
                seq: 0,
                group: key,
                message: new.position,
                size: new.size,
            });
        }
        let old = part.iter().map(|(_, message)| message.position);
        let old = old.filter(|position| self.is_old(*position) && new_position(*position).is_none());
        let positions: BTreeSet<RecordPosition> = old.take(READ_MAX).collect();
        if positions.is_empty() {
            return false;
        }
        self.fetch(&mut core.effects, positions);
        true
    }

    /// Moves the old messages of a session. Returns false if there are none.
    pub(super) fn session(&mut self, now: Now, core: &mut ShardCore, slot: SessionSlot) -> bool {
        // A `$delayed` message may have been published to it since the first pass.
        self.release_held_messages(now, core, slot);
        let Some(ledger) = core.ledger.records_mut() else {
            return false;
        };
        let Some(session) = core.sessions.get_mut(slot) else {
            return false;
        };
        let is_retained_by_group = session.key.0 == 0;
        for delivery in session.outgoing.warm() {
            let retaining_group = delivery
                .tag
                .group_key()
                .filter(|_| is_retained_by_group && delivery.qos == QoS::AtLeastOnce);
            let mut held = Vec::new();
            put_group_recipient(retaining_group.unwrap_or_default(), &mut held);
            let old = self.message(now, ledger, &delivery.message, Targets::from_written(&held));
            if let (Some(message), Some(group)) = (old, retaining_group) {
                ledger.record(&JournalRecord::GroupDropped { group, message });
            }
        }
        let Some(cold) = &mut session.outgoing.cold else {
            return self.is_unplaced;
        };
        if self.before == RecordPosition(0) {
            return false;
        }
        let new_position = |position| self.moved.get(&position).copied();
        let cold = &mut cold.entries;
        let moved = cold.moved(|position| Some(position).filter(|at| self.is_old(*at)).and_then(new_position));
        let key = session.key;
        let old = cold
            .iter()
            .map(|(entry, _)| entry)
            .filter(|entry| !entry.is_released())
            .map(|entry| entry.message())
            .filter(|position| self.is_old(*position));
        let positions: BTreeSet<RecordPosition> = old.take(READ_MAX).collect();
        let moved: Vec<SessionEntry> = moved.into_iter().map(entry_of).collect();
        ledger.record_entries(key, &moved);
        if !positions.is_empty() {
            self.fetch(&mut core.effects, positions);
        }
        self.is_fetching || self.is_unplaced || self.move_page(core, slot)
    }

    /// Moves the messages that were read, within the byte budget. `records` is empty if the journal cannot be read now;
    /// then the messages stay in place.
    pub(super) fn fetched(
        &mut self,
        ledger: &mut PendingRecords,
        positions: &[RecordPosition],
        records: &[Option<Vec<u8>>],
    ) {
        self.is_fetching = false;
        if records.is_empty() {
            return self.exclude(positions);
        }
        for (index, (old, bytes)) in positions.iter().zip(records).enumerate() {
            let length = bytes.as_deref().map_or(0, <[u8]>::len);
            match bytes.as_deref().map(JournalRecord::read) {
                Some(Ok(JournalRecord::Message(_))) if !self.has_space(length) => {
                    return self.exclude(&positions[index..]);
                }
                Some(Ok(JournalRecord::Message(record))) => {
                    self.use_space(length);
                    let record = MessageRecord {
                        shard: 0,
                        others: 0,
                        due_unix_ms: None,
                        retained: None,
                        publisher: None,
                        targets: Targets::default(),
                        ..record
                    };
                    self.fresh.push((*old, ledger.record_message(&record)));
                }
                Some(Ok(JournalRecord::Page { entries, .. })) if let Ok(items) = entries.items() => {
                    let mut entries = EntryList::default();
                    entries.extend(items);
                    self.page = Some(LoadedPage { at: *old, entries });
                }
                _ => self.fresh.push((*old, ledger.record(&JournalRecord::Damaged))),
            }
        }
    }
}

impl CheckpointMoves {
    /// Queues the held messages of a session if any of them must be moved.
    pub(super) fn release_held_messages(&self, now: Now, core: &mut ShardCore, slot: SessionSlot) {
        if !core.sessions.link(slot).is_replaying() {
            return;
        }
        let is_old = |delivery: &Delivery| {
            let position = delivery.message.place().position();
            position.is_some_and(|position| self.is_old(position))
        };
        if core.sessions.at(slot).replays.held_messages().any(is_old) {
            core.release(now, slot);
        }
    }

    fn fetch(&mut self, effects: &mut Vec<Effect>, positions: impl IntoIterator<Item = RecordPosition>) {
        self.is_fetching = true;
        effects.push(Effect::Fetch {
            purpose: FetchPurpose::Move,
            positions: positions.into_iter().collect(),
        });
    }

    /// Moves the old messages of a session's pages, then rewrites each page. Returns false if there are none.
    fn move_page(&mut self, core: &mut ShardCore, slot: SessionSlot) -> bool {
        let moves = self;
        let session = core.sessions.get_mut(slot);
        let pages = session.and_then(|session| session.outgoing.cold.as_deref_mut()?.entries.pages.as_deref_mut());
        moves.page_needed = RecordPosition(u64::MAX);
        let Some(pages) = pages else {
            moves.page = None;
            return false;
        };
        let loaded = moves.page.take();
        let old = pages.list.iter().find(|page| moves.is_old(page.needed()));
        let old = old.and_then(|page| Some((page, page.place.position()?)));
        let lost = old.and_then(|(page, at)| Some(page.lost_page(at, *moves.moved.get(&at)?)));
        if let Some((page, _)) = old {
            moves.page_needed = page.needed();
        }
        let Some(mut loaded) = loaded.or(lost) else {
            let Some((_, at)) = old else { return false };
            moves.fetch(&mut core.effects, [at]);
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
        let old: BTreeSet<RecordPosition> = messages.filter(|at| moves.is_old(*at)).take(READ_MAX).collect();
        if !old.is_empty() {
            moves.page = Some(loaded);
            moves.fetch(&mut core.effects, old);
            return true;
        }
        moves.is_unplaced |= loaded.rewrite(core, slot);
        true
    }
}

impl LoadedPage {
    /// Records the page at its new position. Returns false if the session no longer has the page.
    fn rewrite(self, core: &mut ShardCore, slot: SessionSlot) -> bool {
        let (Some(session), Some(ledger)) = (core.sessions.get_mut(slot), core.ledger.records_mut()) else {
            return false;
        };
        let loaded = self;
        let pages = session
            .outgoing
            .cold
            .as_deref_mut()
            .and_then(|cold| cold.entries.pages.as_deref_mut());
        let pages = pages.into_iter().flat_map(|pages| &mut pages.list);
        let Some(page) = { pages }.find(|page| page.place == RecordLocation::at(loaded.at)) else {
            return false;
        };
        let dropped = usize::from(is_planted(Fault::MoveDropsPosition));
        let left = loaded.entries.iter().skip(page.skipped as usize + dropped).collect();
        let written = ledger.put_page(slot, session.key, left);
        let before = page.bytes;
        *page = QueuePage {
            queued_qos0: page.queued_qos0,
            ..written
        };
        // Drops from the page had changed its bytes by their mean.
        let out = &mut session.outgoing;
        out.queued_bytes.resize(before as usize, written.bytes as usize);
        core.stats.queued_bytes = core.stats.queued_bytes + written.bytes - before;
        true
    }
}

impl QueuePage {
    /// Stand-in for a page whose record was damaged and replaced with `JournalRecord::Damaged`. All its messages are
    /// lost.
    fn lost_page(&self, at: RecordPosition, lost: RecordPosition) -> LoadedPage {
        let dropped = self.first - u64::from(self.skipped);
        let numbers = dropped..self.first + u64::from(self.count);
        let mut entries = EntryList::default();
        entries.extend(numbers.map(|seq| (StoredEntry::of(lost, seq, QoS::AtLeastOnce, false), DeliveryTag::None)));
        LoadedPage { at, entries }
    }
}

impl OutgoingMessages {
    /// Returns the messages in memory.
    fn warm(&self) -> impl Iterator<Item = &Delivery> {
        let inflight = self.inflight.iter().filter_map(|entry| entry.delivery.as_ref());
        let fresh = self.cold.iter().flat_map(|cold| cold.fresh.iter());
        inflight.chain(self.queue.iter()).chain(fresh)
    }
}
