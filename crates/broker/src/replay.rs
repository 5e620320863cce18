//! Replays of retained messages for new subscriptions, sent in small batches as fast as the connection accepts them.
//!
//! A filter without wildcards asks the shard that owns the topic; one with wildcards asks all shards, one after the
//! other. A cursor stores the position in the store. So a replay of a million messages holds none of them in memory,
//! tolerates changes of the store, and continues when the client resumes its session.
//!
//! While another shard is asked, live messages on matching topics are held (`ShardCore::hold`). The retained message is
//! older, and a subscriber that receives it last would take it for the current value.

use mqtt::{RetainHandling, SubscriptionOptions};

use crate::deliver::{DeliveryOptions, EncodedForms};
use crate::durable::journaling::RecordFields;
use crate::effect::{Now, ShardId};
use crate::lifecycle::granted;
use crate::mail::{Envelope, MailRequest, ReplayRequest};
use crate::message::Publication;
use crate::retained::{ScanBudget, ScanCursor};
use crate::session::RetainedReplay;
use crate::shard::Shard;
use crate::slots::{ReplayNumber, SessionEpoch, SessionSlot};

/// Messages per batch, and topics visited per batch.
const BATCH: ScanBudget = ScanBudget {
    matches_max: 64,
    steps_max: 1024,
};

/// Cost of starting a batch, in visited topics.
const BATCH_STEPS: usize = 8;

/// Topics that a shard visits per tick for all sessions. Bounds the time of filters that match nothing.
pub(crate) const STEPS_PER_TICK: usize = 16 * 1024;

/// A batch for another shard ends with the message that exceeds this size, because it is sent regardless of the output
/// buffer.
const BATCH_BYTES: usize = 64 * 1024;

impl Shard {
    /// Returns whether any shard may have retained messages for a filter.
    pub(crate) fn has_retained(&self, filter: &str) -> bool {
        self.replay_shard(filter, 0).is_some()
    }

    pub(crate) fn start_replay(
        &mut self,
        slot: SessionSlot,
        filter: &str,
        options: SubscriptionOptions,
        identifier: Option<u32>,
    ) {
        self.core.link_mut(slot).is_replaying = true;
        self.register_replay(slot, filter, options, identifier);
    }

    /// Registers a replay that starts when the client connects.
    pub(crate) fn register_replay(
        &mut self,
        slot: SessionSlot,
        filter: &str,
        options: SubscriptionOptions,
        identifier: Option<u32>,
    ) {
        let shard = match mqtt::has_wildcards(filter) {
            true => self.replay_shard(filter, 0).unwrap_or(ShardId(0)),
            false => self.retained_owner(filter),
        };
        let number = ReplayNumber(self.numbers.next());
        let replays = &mut self.core.sessions.at_mut(slot).replays;
        let options = SubscriptionOptions {
            retain_handling: RetainHandling::SendAtSubscribe,
            ..options
        };
        replays.push_back(RetainedReplay {
            filter: filter.into(),
            options,
            identifier,
            shard,
            cursor: None,
            is_waiting: false,
            number,
        });
    }

    /// Returns the first shard, starting at `from`, that may have messages for the filter.
    fn replay_shard(&self, filter: &str, from: u16) -> Option<ShardId> {
        let retaining = match self.core.shards {
            1 => u64::from(self.retained.store().count() > 0),
            _ => self.shared.retaining(),
        };
        let asked = match mqtt::has_wildcards(filter) {
            true => u64::MAX.checked_shl(u32::from(from)).unwrap_or(0),
            false => {
                let owner = self.retained_owner(filter).0;
                u64::from(owner >= from) << owner
            }
        };
        match retaining & asked {
            0 => None,
            shards => Some(ShardId(shards.trailing_zeros() as u16)),
        }
    }

    /// Continues the first replay of a session while its connection accepts more.
    pub(crate) fn replay(&mut self, now: Now, slot: SessionSlot) {
        loop {
            let Some(replay) = self.core.sessions.at(slot).replays.first().cloned() else {
                return self.core.release(now, slot);
            };
            if replay.is_waiting {
                return;
            }
            if !self.can_replay(slot) {
                // Live messages wait for the answer of another shard, but not for a slow client.
                return self.core.release(now, slot);
            }
            if replay.shard != self.core.id {
                return self.request_replay(slot, replay);
            }
            if self.replay_steps_left == 0 {
                return self.yield_replay(now, slot);
            }
            let cursor = self.replay_batch(now, slot, &replay);
            self.replay_advanced(slot, replay.number, cursor);
        }
    }

    /// Yields to other sessions. Live messages need not wait, because this shard's retained messages are always up to
    /// date.
    fn yield_replay(&mut self, now: Now, slot: SessionSlot) {
        self.core.release(now, slot);
        if let Some(conn) = self.core.sessions.at(slot).conn {
            self.core.continue_later(conn, slot);
        }
    }

    fn request_replay(&mut self, slot: SessionSlot, replay: RetainedReplay) {
        self.core.link_mut(slot).is_replaying = true;
        let session = self.core.sessions.at_mut(slot);
        if let Some(asked) = session.replays.first_mut() {
            asked.is_waiting = true;
        }
        let request = ReplayRequest {
            session: slot,
            epoch: session.epoch,
            number: replay.number,
            filter: replay.filter,
            cursor: replay.cursor,
            from: self.core.id,
        };
        self.mail.request(replay.shard, MailRequest::ReplayRequest(request));
    }

    /// Returns whether the connection accepts more now. If only this tick is full, the session continues in the next
    /// one.
    fn can_replay(&mut self, slot: SessionSlot) -> bool {
        let session = self.core.sessions.at(slot);
        let Some(conn) = session.conn else { return false };
        if !session.outgoing.is_idle() {
            return false;
        }
        if self.core.has_tick_capacity(conn) {
            return true;
        }
        self.core.continue_later(conn, slot);
        false
    }

    fn replay_batch(&mut self, now: Now, slot: SessionSlot, replay: &RetainedReplay) -> Option<ScanCursor> {
        let (core, retained) = (&mut self.core, self.retained.store());
        let scan = retained.scan_counted(
            &replay.filter,
            replay.cursor.clone(),
            now.monotonic_ms,
            BATCH,
            |_, message| {
                let mut forms = EncodedForms::of(message.clone());
                deliver_retained(core, now, slot, replay, &message.publication(), &mut forms);
                let session = core.sessions.at(slot);
                session.outgoing.is_idle() && session.conn.is_some_and(|conn| core.has_tick_capacity(conn))
            },
        );
        self.replay_steps_left = self.replay_steps_left.saturating_sub(scan.steps + BATCH_STEPS);
        scan.cursor
    }

    /// A batch is complete. Continues with the rest of this shard, the next shard, or the next replay.
    fn replay_advanced(&mut self, slot: SessionSlot, number: ReplayNumber, cursor: Option<ScanCursor>) {
        let first = self.core.sessions.at(slot).replays.first();
        let Some(replay) = first.filter(|r| r.number == number) else {
            return;
        };
        let shard = match cursor {
            Some(_) => Some(replay.shard),
            None => self.replay_shard(&replay.filter, replay.shard.0 + 1),
        };
        let Some(shard) = shard else {
            let replay = replay.clone();
            self.core.sessions.at_mut(slot).replays.remove_first();
            return self.core.ledger.record_replayed(self.core.sessions.at(slot), &replay);
        };
        if let Some(replay) = self.core.sessions.at_mut(slot).replays.first_mut() {
            replay.is_waiting = false;
            replay.cursor = cursor;
            replay.shard = shard;
        }
    }

    /// Sends a batch to a session of another shard.
    pub(crate) fn replay_for(&mut self, now: Now, request: ReplayRequest) {
        let ReplayRequest {
            session,
            epoch,
            number,
            filter,
            cursor,
            from,
        } = request;
        let mail = self.mail.to(from);
        // The batch must fit into the session's queue in case the connection does not accept it.
        let config = &self.core.config;
        let budget = ScanBudget {
            matches_max: BATCH.matches_max.min(config.max_queued_messages).max(1),
            ..BATCH
        };
        let bytes_max = BATCH_BYTES.min(config.max_queued_bytes / 2);
        let mut bytes = 0;
        let cursor = self
            .retained
            .store()
            .scan_while(&filter, cursor, now.monotonic_ms, budget, |_, message| {
                mail.publication(Envelope::Replay { session, epoch, number }, &message.publication());
                bytes += message.stored_bytes();
                bytes <= bytes_max
            });
        mail.request(MailRequest::ReplayEnd {
            session,
            epoch,
            number,
            cursor,
        });
    }

    /// Delivers a message of a batch that this session requested from another shard.
    pub(crate) fn replayed(
        &mut self,
        now: Now,
        slot: SessionSlot,
        epoch: SessionEpoch,
        number: ReplayNumber,
        p: &Publication<'_>,
    ) {
        let Some(session) = self.core.sessions.live(slot, epoch) else {
            return;
        };
        let Some(replay) = session.replays.numbered_mut(number).filter(|r| r.is_waiting).cloned() else {
            return;
        };
        let mut forms = EncodedForms::default();
        deliver_retained(&mut self.core, now, slot, &replay, p, &mut forms);
    }

    pub(crate) fn replay_ended(
        &mut self,
        now: Now,
        slot: SessionSlot,
        epoch: SessionEpoch,
        number: ReplayNumber,
        cursor: Option<ScanCursor>,
    ) {
        let Some(session) = self.core.sessions.live(slot, epoch) else {
            return;
        };
        if session.replays.numbered_mut(number).is_some_and(|r| r.is_waiting) {
            self.replay_advanced(slot, number, cursor);
        }
        // Also if this replay has been removed: others may have waited for it.
        self.replay(now, slot);
    }
}

/// The retain flag is always set in a replay [MQTT-3.3.1-8].
fn deliver_retained(
    core: &mut crate::deliver::ShardCore,
    now: Now,
    slot: SessionSlot,
    replay: &RetainedReplay,
    p: &Publication<'_>,
    forms: &mut EncodedForms,
) {
    let identifiers = replay.identifier.as_slice();
    let terms = DeliveryOptions {
        qos: granted(p.qos, replay.options.maximum_qos),
        retain: true,
        identifiers,
        group: None,
    };
    if !p.is_expired(now) {
        core.deliver_retained(now, slot, p, terms, forms);
        core.ledger
            .record_message(now, p, forms.stored(), RecordFields::default());
    }
}
