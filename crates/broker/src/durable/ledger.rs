//! A tick's records on their way to the journal, and what is not said before the journal has them.
//!
//! Records gather in one batch per tick. Whoever drives the shard appends it and says where it stands (`Shard::appended`), and later
//! that it is kept (`Shard::committed`). What waits for that waits in the order in which it was asked for, so acknowledgements of
//! one client keep their order [MQTT-4.6.0-2]. Bounded by the driver, which reads nothing while the journal is far behind.

use std::collections::VecDeque;
use std::sync::Arc;

use mqtt::ReasonCode;

use crate::durable::ends::Ends;
use crate::durable::record::{GroupKey, Position, Record, SessionKey, Settled, SettledItems};
use crate::effect::{ConnSlot, DisconnectReason, Now};
use crate::fault::{Fault, is_planted};
use crate::interest::SHARDS_MAX;
use crate::message::{Message, Place};
use crate::parking::PendingAck;
use crate::shard::Shard;
use crate::tap::Receipt;
use journal::{Batch, Health};

pub struct Ledger {
    pub batch: Batch,
    /// Messages of the batch, by their offset in it.
    unplaced: Vec<(Arc<Message>, u32)>,
    /// `SettledItems` of the tick.
    settled: Vec<u8>,
    /// `Targets` of the message that is being routed.
    pub targets: Vec<u8>,
    /// Sessions whose messages need not stay in memory, once they have a position.
    pub cooling: Vec<u32>,
    /// Sessions whose queues have grown so long that some of them is to be written as pages.
    pub paging: Vec<u32>,
    /// Pages of the batch: the session's slot and the page's offset.
    pub unplaced_pages: Vec<(u32, Place)>,
    pub fetches: usize,
    pub fetch_queue: VecDeque<(u32, u32)>,
    waiting: VecDeque<Waiting>,
    marks: VecDeque<Mark>,
    /// How many of `waiting` are of this tick.
    unmarked: usize,
    /// Where this tick's batch was appended; mail refers to it.
    pub base: u64,
    /// The end of what has been appended, or is waited for, and of what is kept.
    end: u64,
    pub committed: u64,
    /// The oldest message that a record has spoken of since a checkpoint began: what goes from one owner to another meanwhile may be
    /// met with neither.
    pub oldest_mentioned: Option<Position>,
    ends: Ends,
    next_key: u64,
    /// Messages are being routed that another shard has recorded: that they were is recorded in this tick.
    pub is_routing: bool,
    pub health: Health,
}

/// How many of those that wait do so until the journal has kept what it had by then.
struct Mark {
    end: u64,
    count: usize,
}

/// What is done when the journal has what came before it.
pub enum Waiting {
    /// Then it may have to wait for the tap.
    Ack(PendingAck),
    /// The output of a connection is held back.
    Release { conn: ConnSlot, epoch: u32 },
    /// Somebody outside is told, when the tap has kept this too.
    Tell(Option<Receipt>, Box<dyn FnOnce() + Send>),
    /// Messages of a session up to this one may be sent at QoS 2; 0: its messages can be read from the journal.
    Send { slot: u32, epoch: u32, seq: u64 },
    /// What a group holds can be read from the journal.
    Give { index: u32, epoch: u32 },
}

impl Ledger {
    /// `last_key` is the highest that any shard has given in any run.
    pub fn new(shard: u16, last_key: u64) -> Ledger {
        let first = (last_key / SHARDS_MAX as u64 + 1) * SHARDS_MAX as u64;
        Ledger {
            batch: Batch::new(),
            unplaced: Vec::new(),
            settled: Vec::new(),
            targets: Vec::new(),
            cooling: Vec::new(),
            paging: Vec::new(),
            unplaced_pages: Vec::new(),
            fetches: 0,
            fetch_queue: VecDeque::new(),
            waiting: VecDeque::new(),
            marks: VecDeque::new(),
            unmarked: 0,
            base: 0,
            end: 0,
            committed: 0,
            oldest_mentioned: None,
            ends: Ends::default(),
            next_key: first + u64::from(shard),
            is_routing: false,
            health: Health::Ok,
        }
    }

    fn next_key(&mut self) -> u64 {
        let key = self.next_key;
        self.next_key += SHARDS_MAX as u64;
        key
    }

    pub fn last_key(&self) -> u64 {
        self.next_key - 1
    }

    pub fn next_session(&mut self) -> SessionKey {
        SessionKey(self.next_key())
    }

    pub fn next_group(&mut self) -> GroupKey {
        GroupKey(self.next_key())
    }

    /// Adds a record to the tick's batch; where it stands is known when that is appended.
    pub fn record(&mut self, record: &Record<'_>) -> Place {
        Place::pending(self.batch.record(|out| record.put(out)))
    }

    /// A message whose record is in the batch: it learns its place.
    pub fn place_later(&mut self, message: &Arc<Message>, place: Place) {
        message.set_place(place);
        if let Some(offset) = place.offset() {
            self.unplaced.push((message.clone(), offset));
        }
    }

    pub fn settle(&mut self, session: SessionKey, seq: u64, is_release: bool) {
        Settled {
            session,
            seq,
            is_release,
        }
        .put(&mut self.settled);
    }

    /// Adds a record that speaks of a message, wherever that stands. Nothing, if it stands nowhere.
    pub fn record_of<'r>(&mut self, place: Place, record: impl FnOnce(Position) -> Record<'r>) {
        if let Some(message) = place.position() {
            self.mention(message);
            self.record(&record(message));
        } else if let Some(offset) = place.offset() {
            let back = Position(self.batch.len() as u64 - u64::from(offset));
            let record = record(back);
            self.batch.record(|out| record.put_back(out));
        }
    }

    /// A record of this tick speaks of a message.
    pub fn mention(&mut self, message: Position) {
        let oldest = self.oldest_mentioned.get_or_insert(message);
        *oldest = message.min(*oldest);
    }

    /// A client's session has ended.
    pub fn record_end(&mut self, session: SessionKey, client_id: &str) {
        self.record(&Record::Ended { session });
        self.ends.note(client_id);
    }

    pub fn is_end_pending(&self, client_id: &str) -> bool {
        self.ends.is_pending(client_id, self.committed)
    }

    /// Whether something has been recorded that the journal has not kept yet.
    pub fn is_behind(&self) -> bool {
        self.has_recorded() || self.end > self.committed
    }

    /// In this tick, so far.
    fn has_recorded(&self) -> bool {
        self.is_routing || !self.batch.is_empty() || !self.settled.is_empty()
    }

    fn kept(&mut self, end: u64) {
        self.committed = self.committed.max(end);
        self.ends.kept(self.committed);
        // Mail of this tick may have come before the news, and what it made wait is for what was appended before. If the tick appends
        // nothing, nobody tells of a commit again.
        if !self.has_recorded() && !is_planted(Fault::ForgetWaiting) {
            self.mark();
        }
    }

    pub fn wait(&mut self, waiting: Waiting) {
        self.waiting.push_back(waiting);
        self.unmarked += 1;
    }

    /// Until the record there is kept, which another shard may have appended.
    pub fn wait_for(&mut self, record: Position, waiting: Waiting) {
        self.end = self.end.max(record.0 + 1);
        self.wait(waiting);
    }

    /// The end of a tick: what it recorded, if anything.
    fn close_batch(&mut self) -> Option<&mut Batch> {
        if !self.settled.is_empty() {
            let items = SettledItems::from_written(&self.settled);
            self.batch.record(|out| Record::Settled(items).put(out));
            self.settled.clear();
        }
        if self.batch.is_empty() {
            self.mark();
            return None;
        }
        Some(&mut self.batch)
    }

    fn mark(&mut self) {
        if self.unmarked > 0 {
            self.marks.push_back(Mark {
                end: self.end,
                count: std::mem::take(&mut self.unmarked),
            });
        }
    }

    fn appended(&mut self, base: u64, end: u64) {
        (self.base, self.end) = (base, end);
        self.ends.appended(end);
        self.mark();
        for (message, offset) in self.unplaced.drain(..) {
            message.set_place(Place::pending(offset).placed(base));
        }
    }

    /// The next thing that waits for no more than what is kept.
    fn next_due(&mut self) -> Option<Waiting> {
        let mark = self.marks.front_mut()?;
        if mark.end > self.committed {
            return None;
        }
        mark.count -= 1;
        if mark.count == 0 {
            self.marks.pop_front();
        }
        self.waiting.pop_front()
    }
}

impl Shard {
    /// What the tick has recorded, to be appended to the journal before mail is taken and anything is written to a socket.
    pub fn journal_batch(&mut self) -> Option<&mut Batch> {
        self.core.write_pages();
        self.core.ledger.as_mut()?.close_batch()
    }

    /// How far the journal must be before the next thing can be said or done that waits for it; `u64::MAX` if that is not appended yet. If
    /// nothing waits, the batch can be kept at leisure: that a client has acknowledged, left or been sent a message, say.
    pub fn waits_for_journal(&self) -> Option<u64> {
        let ledger = self.core.ledger.as_ref()?;
        ledger.waiting.front()?;
        Some(ledger.marks.front().map_or(u64::MAX, |mark| mark.end))
    }

    /// How far the journal must be before the last thing can be said or done that waits for what has been appended.
    pub fn waits_longest_for_journal(&self) -> Option<u64> {
        let ledger = self.core.ledger.as_ref()?;
        ledger.marks.back().map(|mark| mark.end)
    }

    /// Where the batch stands: its first byte and the byte after its last. The batch is empty again.
    pub fn appended(&mut self, base: u64, end: u64) {
        let Some(ledger) = &mut self.core.ledger else { return };
        ledger.appended(base, end);
        if let Some(walk) = &mut self.walk {
            walk.moves.settle(base);
        }
        for (slot, place) in std::mem::take(&mut ledger.unplaced_pages) {
            self.core.place_page(slot, place, place.placed(base));
        }
        let Some(ledger) = &mut self.core.ledger else { return };
        for slot in std::mem::take(&mut ledger.cooling) {
            self.core.cool(slot);
        }
    }

    /// The journal has all that was appended before `end`: what waited for it is done now.
    pub fn committed(&mut self, now: Now, end: u64) {
        let Some(ledger) = &mut self.core.ledger else { return };
        ledger.kept(end);
        self.do_due(now);
    }

    /// What waited for no more than what is kept.
    pub(crate) fn do_due(&mut self, now: Now) {
        while let Some(waiting) = self.core.ledger.as_mut().and_then(|ledger| ledger.next_due()) {
            self.is_due(now, waiting);
        }
    }

    fn is_due(&mut self, now: Now, waiting: Waiting) {
        match waiting {
            Waiting::Ack(ack) => {
                let connection = self.core.connection_mut(ack.conn).filter(|c| c.epoch == ack.epoch);
                if let Some(connection) = connection {
                    connection.waiting_acks -= 1;
                    self.acknowledge_or_park(ack);
                }
            }
            Waiting::Release { conn, epoch } => {
                if self.core.connection_mut(conn).is_some_and(|c| c.epoch == epoch) {
                    self.core.outbox.release(conn);
                }
            }
            Waiting::Tell(receipt, done) => self.tell_when_tapped(receipt, done),
            Waiting::Give { index, epoch } => {
                if self.groups.get_live(index, epoch).is_some() {
                    self.fetch_to_give_again(now, index);
                }
            }
            Waiting::Send { slot, epoch, seq } => {
                let Some(session) = self.core.live_session(slot, epoch) else {
                    return;
                };
                session.outgoing.kept_seq = session.outgoing.kept_seq.max(seq);
                if seq == 0
                    && let Some(cold) = &mut session.outgoing.cold
                {
                    cold.is_fetching = false;
                }
                if session.conn.is_some() {
                    self.pump(now, slot);
                }
            }
        }
    }

    /// The journal has got into another state. While it is full, what needs it is refused.
    pub fn journal_health(&mut self, health: Health) {
        let Some(ledger) = &mut self.core.ledger else { return };
        let before = std::mem::replace(&mut ledger.health, health);
        if before != Health::Ok && before != health {
            // If it has failed, those that are held are sent away with what they say.
            self.resume_held_publishers();
        }
    }

    /// The journal has failed, after all that has been `committed`: who waits for it would wait for ever, and is sent away. What is held back
    /// from a connection is not written, and so it is closed without a word.
    pub fn give_up_waiting(&mut self, now: Now) {
        let Some(ledger) = &mut self.core.ledger else { return };
        ledger.marks.clear();
        ledger.unmarked = 0;
        for waiting in std::mem::take(&mut ledger.waiting) {
            let (conn, epoch, is_held) = match waiting {
                Waiting::Ack(PendingAck { conn, epoch, .. }) => (conn, epoch, false),
                Waiting::Release { conn, epoch } => (conn, epoch, true),
                // Nobody outside is told that it is kept; at QoS 2 nothing is sent that is not.
                Waiting::Tell(..) | Waiting::Send { .. } | Waiting::Give { .. } => continue,
            };
            if self.core.connection_mut(conn).is_some_and(|c| c.epoch == epoch) {
                self.end_without_journal(now, conn);
                if is_held {
                    self.core.outbox.close(conn);
                }
            }
        }
    }

    pub(crate) fn end_without_journal(&mut self, now: Now, conn: ConnSlot) {
        let because = "the journal has failed: nothing can be kept before the server is started again";
        let (reason, code) = (DisconnectReason::JournalFailed, ReasonCode::ImplementationSpecificError);
        self.end_connection(now, conn, reason, code, because);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wait(ledger: &mut Ledger) {
        ledger.wait(Waiting::Send {
            slot: 0,
            epoch: 0,
            seq: 1,
        });
    }

    #[test]
    fn what_begins_to_wait_in_the_tick_that_hears_of_the_commit_does_not_wait_for_another() {
        let mut ledger = Ledger::new(0, 0);
        ledger.appended(0, 100);
        assert!(ledger.is_behind());
        wait(&mut ledger);
        ledger.kept(100);
        assert!(ledger.next_due().is_some());
        assert!(ledger.close_batch().is_none() && ledger.next_due().is_none());
    }

    #[test]
    fn what_waits_for_a_record_of_its_tick_waits_until_that_is_kept() {
        let mut ledger = Ledger::new(0, 0);
        ledger.appended(0, 100);
        ledger.record_end(SessionKey(1), "client");
        wait(&mut ledger);
        ledger.kept(100);
        assert!(ledger.next_due().is_none());
        ledger.appended(100, 200);
        assert!(ledger.next_due().is_none());
        ledger.kept(200);
        assert!(ledger.next_due().is_some());
    }
}
