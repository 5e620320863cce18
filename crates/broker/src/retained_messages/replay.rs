//! Replays of retained messages for new subscriptions, sent in small batches as fast as the connection accepts them.
//!
//! A filter without wildcards asks the shard that owns the topic; one with wildcards asks all shards, one after the
//! other. A cursor stores the position in the store. So a replay of a million messages holds none of them in memory,
//! tolerates changes of the store, and continues when the client resumes its session.
//!
//! While another shard is asked, live messages on matching topics are held (`ShardCore::hold_for_replay`). The
//! retained message is older, and a subscriber that receives it last would take it for the current value.
//!
//! A request also asks about the next replays of the session. Those without messages skip the shard, so that a session
//! with 100,000 subscriptions does not wait 100,000 times for another shard.

use mqtt::{RetainHandling, SubscriptionOptions};

use crate::deliver::ShardCore;
use crate::delivery::DeliveryOptions;
use crate::durable::record_fields::RecordFields;
use crate::effect::{Now, ShardId};
use crate::encode::EncodedForms;
use crate::mail::{Envelope, FollowingReplay, MailRequest, ReplayRequest};
use crate::message::Publication;
use crate::retained::{ScanBudget, ScanCursor};
use crate::retained_messages::RetainedMessages;
use crate::session::RetainedReplay;
use crate::session_link::LinkFlag;
use crate::slots::{ReplayId, ReplayNumber, SessionSlot};
use crate::tick::Tick;

/// Messages per batch, and topics visited per batch.
const BATCH: ScanBudget = ScanBudget {
    matches_max: 64,
    steps_max: 1024,
};

/// Cost of starting a batch, in visited topics.
const BATCH_STEPS: usize = 8;

/// Topics that a shard visits per tick for all sessions. Bounds the time of filters that match nothing.
pub(super) const STEPS_PER_TICK: usize = 16 * 1024;

/// A batch for another shard ends with the message that exceeds this size, because it is sent regardless of the output
/// buffer.
const BATCH_BYTES: usize = 64 * 1024;

/// Replays about which a request asks in addition to the active one, and the length of their filters.
const FOLLOWING_MAX: usize = 256;
const FOLLOWING_BYTES: usize = 64 * 1024;

/// Topics that the other shard visits for them.
const FOLLOWING_STEPS: usize = 4096;

impl RetainedMessages {
    /// Begins a tick, which allows more steps of replays.
    pub fn begin_tick(&mut self) {
        self.replay_steps_left = STEPS_PER_TICK;
    }

    /// Returns whether replays may continue in this tick.
    pub fn has_replay_steps(&self) -> bool {
        self.replay_steps_left > 0
    }

    /// Returns whether any shard may have retained messages for a filter.
    pub fn has_messages(&self, filter: &str) -> bool {
        self.first_shard(filter, 0).is_some()
    }

    /// Returns a replay for a subscription of a session.
    pub fn replay_of(
        &self,
        number: ReplayNumber,
        filter: &str,
        options: SubscriptionOptions,
        identifier: Option<u32>,
    ) -> RetainedReplay {
        let shard = match mqtt::has_wildcards(filter) {
            true => self.first_shard(filter, 0).unwrap_or(ShardId(0)),
            false => self.owner_of(filter),
        };
        let options = SubscriptionOptions {
            retain_handling: RetainHandling::SendAtSubscribe,
            ..options
        };
        RetainedReplay {
            filter: filter.into(),
            options,
            identifier,
            shard,
            cursor: None,
            is_waiting: false,
            number,
        }
    }

    /// Returns the first shard, starting at `from`, that may have messages for the filter.
    fn first_shard(&self, filter: &str, from: u16) -> Option<ShardId> {
        let retaining = match self.node.shards() {
            1 => u64::from(self.store.count() > 0),
            _ => self.node.retaining(),
        };
        let asked = match mqtt::has_wildcards(filter) {
            true => u64::MAX.checked_shl(u32::from(from)).unwrap_or(0),
            false => {
                let owner = self.owner_of(filter).0;
                u64::from(owner >= from) << owner
            }
        };
        match retaining & asked {
            0 => None,
            shards => Some(ShardId(shards.trailing_zeros() as u16)),
        }
    }

    /// Sends what a session waits for: its queue, then retained messages for new subscriptions.
    pub fn pump(&mut self, tick: &mut Tick<'_>, slot: SessionSlot) {
        tick.core.pump(tick.now, slot);
        if !tick.core.sessions.at(slot).replays.is_done() {
            self.replay(tick, slot);
        }
    }

    /// Continues the first replay of a session while its connection accepts more.
    pub fn replay(&mut self, tick: &mut Tick<'_>, slot: SessionSlot) {
        let now = tick.now;
        loop {
            let core = &mut *tick.core;
            let Some(replay) = core.sessions.at(slot).replays.first().cloned() else {
                return core.release(now, slot);
            };
            if replay.is_waiting {
                return;
            }
            if !can_replay(core, slot) {
                // Live messages wait for the answer of another shard, but not for a slow client.
                return core.release(now, slot);
            }
            if replay.shard != self.shard {
                return self.request(tick, slot, replay);
            }
            if self.replay_steps_left == 0 {
                return yield_replay(now, core, slot);
            }
            let cursor = self.send_batch(now, core, slot, &replay);
            self.advance(core, slot, (&replay.filter, replay.number), cursor);
        }
    }

    fn request(&mut self, tick: &mut Tick<'_>, slot: SessionSlot, replay: RetainedReplay) {
        tick.core.link_mut(slot).set(LinkFlag::Replaying, true);
        self.skip_own_messages(tick, slot);
        let following = following(tick.core, slot, |next| next.shard == replay.shard);
        let session = tick.core.sessions.at_mut(slot);
        session.replays.await_answer();
        let request = ReplayRequest {
            session: slot,
            epoch: session.epoch,
            number: replay.number,
            filter: replay.filter,
            cursor: replay.cursor,
            following,
            from: self.shard,
        };
        tick.mail.request(replay.shard, MailRequest::ReplayRequest(request));
    }

    /// The replays that wait for the active one skip this shard if it has no messages for them.
    fn skip_own_messages(&mut self, tick: &mut Tick<'_>, slot: SessionSlot) {
        for next in following(tick.core, slot, |next| next.shard == self.shard) {
            let mut steps_left = self.replay_steps_left;
            if steps_left == 0 {
                return;
            }
            if self.is_empty(&next.filter, tick.now, &mut steps_left) {
                self.advance(tick.core, slot, (&next.filter, next.number), None);
            }
            self.replay_steps_left = steps_left;
        }
    }

    /// Returns whether this shard has no message for a filter. Returns false if the steps do not suffice to know.
    fn is_empty(&self, filter: &str, now: Now, steps_left: &mut usize) -> bool {
        let budget = ScanBudget {
            matches_max: 1,
            steps_max: *steps_left,
        };
        let mut is_empty = true;
        let scan = self.store.scan_counted(filter, None, now.monotonic_ms, budget, |_, _| {
            is_empty = false;
            false
        });
        *steps_left = steps_left.saturating_sub(scan.steps + BATCH_STEPS);
        is_empty && scan.cursor.is_none()
    }

    fn send_batch(
        &mut self,
        now: Now,
        core: &mut ShardCore,
        slot: SessionSlot,
        replay: &RetainedReplay,
    ) -> Option<ScanCursor> {
        let scan = self.store.scan_counted(
            &replay.filter,
            replay.cursor.clone(),
            now.monotonic_ms,
            BATCH,
            |_, message| {
                let mut forms = EncodedForms::of(message.clone());
                deliver_retained(core, now, slot, replay, &message.publication(), &mut forms);
                let session = core.sessions.at(slot);
                session.outgoing.is_idle()
                    && session
                        .conn
                        .is_some_and(|conn| core.outbox.has_tick_capacity(conn, &core.config))
            },
        );
        self.replay_steps_left = self.replay_steps_left.saturating_sub(scan.steps + BATCH_STEPS);
        scan.cursor
    }

    /// A batch is complete. Continues with the rest of this shard, the next shard, or the next replay.
    fn advance(
        &self,
        core: &mut ShardCore,
        slot: SessionSlot,
        (filter, number): (&str, ReplayNumber),
        cursor: Option<ScanCursor>,
    ) {
        let replays = &mut core.sessions.at_mut(slot).replays;
        let Some(replay) = replays.numbered_mut(filter, number) else {
            return;
        };
        let shard = match cursor {
            Some(_) => Some(replay.shard),
            None => self.first_shard(&replay.filter, replay.shard.0 + 1),
        };
        match shard {
            Some(shard) => replay.advance(shard, cursor),
            None => {
                if let Some(replay) = replays.remove(filter) {
                    core.ledger.record_replayed(core.sessions.at(slot), &replay);
                }
            }
        }
    }

    /// Sends a batch to a session of another shard.
    pub fn answer(&self, tick: &mut Tick<'_>, request: ReplayRequest) {
        let ReplayRequest {
            session,
            epoch,
            number,
            filter,
            cursor,
            mut following,
            from,
        } = request;
        let (mail, config) = (tick.mail.to(from), &tick.core.config);
        // The batch must fit into the session's queue in case the connection does not accept it.
        let budget = ScanBudget {
            matches_max: BATCH.matches_max.min(config.max_queued_messages).max(1),
            ..BATCH
        };
        let bytes_max = BATCH_BYTES.min(config.max_queued_bytes / 2);
        let mut bytes = 0;
        let cursor = self
            .store
            .scan_while(&filter, cursor, tick.now.monotonic_ms, budget, |_, message| {
                mail.publication(Envelope::Replay { session, epoch, number }, &message.publication());
                bytes += message.stored_bytes();
                bytes <= bytes_max
            });
        let mut steps_left = FOLLOWING_STEPS;
        following.retain(|next| steps_left > 0 && self.is_empty(&next.filter, tick.now, &mut steps_left));
        mail.request(MailRequest::ReplayEnd {
            session,
            epoch,
            number,
            cursor,
            empty: following,
        });
    }

    /// Delivers a message of a batch that a session requested from another shard.
    pub fn deliver_answer(&self, tick: &mut Tick<'_>, id: ReplayId, p: &Publication<'_>) {
        let Some(session) = tick.core.sessions.live(id.session, id.epoch) else {
            return;
        };
        let Some(replay) = session.replays.awaiting(id.number).cloned() else {
            return;
        };
        let mut forms = EncodedForms::default();
        deliver_retained(tick.core, tick.now, id.session, &replay, p, &mut forms);
    }

    /// A batch that a session requested from another shard is complete. That shard has no messages for `empty`.
    pub fn answer_ended(
        &mut self,
        tick: &mut Tick<'_>,
        id: ReplayId,
        cursor: Option<ScanCursor>,
        empty: &[FollowingReplay],
    ) {
        let Some(session) = tick.core.sessions.live(id.session, id.epoch) else {
            return;
        };
        if let Some(filter) = session.replays.awaiting(id.number).map(|replay| replay.filter.clone()) {
            self.advance(tick.core, id.session, (&filter, id.number), cursor);
            for next in empty {
                self.advance(tick.core, id.session, (&next.filter, next.number), None);
            }
        }
        // Also if this replay has been removed: others may have waited for it.
        self.replay(tick, id.session);
    }
}

/// Returns the next replays of a session that have not begun and to which `is_meant` applies.
fn following(core: &ShardCore, slot: SessionSlot, is_meant: impl Fn(&RetainedReplay) -> bool) -> Vec<FollowingReplay> {
    let mut bytes = 0;
    let replays = core.sessions.at(slot).replays.following().take(FOLLOWING_MAX);
    let meant = replays.filter(|next| next.cursor.is_none() && is_meant(next));
    let bounded = meant.take_while(|next| {
        bytes += next.filter.len();
        bytes <= FOLLOWING_BYTES
    });
    let following = bounded.map(|next| FollowingReplay {
        filter: next.filter.clone(),
        number: next.number,
    });
    following.collect()
}

/// Yields to other sessions. Live messages need not wait, because this shard's retained messages are always up to date.
fn yield_replay(now: Now, core: &mut ShardCore, slot: SessionSlot) {
    core.release(now, slot);
    if let Some(conn) = core.sessions.at(slot).conn {
        core.continue_later(conn, slot);
    }
}

/// Returns whether the connection accepts more now. If only this tick is full, the session continues in the next one.
fn can_replay(core: &mut ShardCore, slot: SessionSlot) -> bool {
    let session = core.sessions.at(slot);
    let Some(conn) = session.conn else { return false };
    if !session.outgoing.is_idle() {
        return false;
    }
    if core.outbox.has_tick_capacity(conn, &core.config) {
        return true;
    }
    core.continue_later(conn, slot);
    false
}

/// The retain flag is always set in a replay [MQTT-3.3.1-8].
fn deliver_retained(
    core: &mut ShardCore,
    now: Now,
    slot: SessionSlot,
    replay: &RetainedReplay,
    p: &Publication<'_>,
    forms: &mut EncodedForms,
) {
    let identifiers = replay.identifier.as_slice();
    let terms = DeliveryOptions {
        qos: p.qos.min(replay.options.maximum_qos),
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
