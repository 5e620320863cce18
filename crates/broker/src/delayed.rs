//! Delayed messages: `$delayed/{seconds}/{topic}` is published after a number of seconds.
//!
//! A due message is routed and passed to the tap. The journal keeps the message until the tap has stored it, and
//! records that it has been routed. After a crash only the tap receives it again.

use std::sync::Arc;

use crate::deliver::ShardCore;
use crate::durable::record::{JournalRecord, SessionKey, WITH_TAP};
use crate::durable::record_fields::{PendingCommits, RecordFields};
use crate::effect::DropReason;
use crate::message::{Message, Publication, RecordLocation};
use crate::owners::{ClientAccount, Holding, Owners};
use crate::receipt_actions::ReceiptAction;
use crate::router::{Destinations, Router};
use crate::slots::DelayedIndex;
use crate::tick::Tick;
use crate::timers::ShardTimer;

/// Memory limit for the delayed messages of the node, per shard. A limit on their number is not enough, because each
/// may be a megabyte.
pub const DELAYED_BYTES_MAX: usize = 64 * 1024 * 1024;

pub struct DelayedMessage {
    pub message: Arc<Message>,
    /// Due time in monotonic milliseconds.
    pub due_ms: u64,
    /// The message has been routed, but the tap has not stored it yet.
    pub is_routed: bool,
}

impl DelayedMessage {
    /// The account for which the message counts as delayed.
    fn owner(&self) -> Option<&Arc<ClientAccount>> {
        self.message.owner().filter(|_| !self.is_routed)
    }
}

/// The delayed messages of a shard. An index is reused after its message was removed.
pub(crate) struct DelayedMessages {
    slots: Vec<Option<DelayedMessage>>,
    free: Vec<DelayedIndex>,
    owners: Owners,
}

impl DelayedMessages {
    pub fn new(owners: Owners) -> DelayedMessages {
        DelayedMessages {
            slots: Vec::new(),
            free: Vec::new(),
            owners,
        }
    }

    /// Returns whether another message of `bytes` is within the limits of the node. They count the messages of all
    /// shards: one shard has all messages of a client.
    fn has_space(&self, bytes: usize, messages_max: usize, shards: u16) -> bool {
        let total = self.owners.total();
        let bytes_max = DELAYED_BYTES_MAX as u64 * u64::from(shards);
        total.count(Holding::Delayed) < messages_max as u64 && total.bytes(Holding::Delayed) + bytes as u64 <= bytes_max
    }

    /// Returns the index after the highest one.
    pub fn end(&self) -> DelayedIndex {
        DelayedIndex::from_index(self.slots.len())
    }

    pub fn get(&self, index: DelayedIndex) -> Option<&DelayedMessage> {
        self.slots.get(index.index())?.as_ref()
    }

    fn add(&mut self, delayed: DelayedMessage) -> DelayedIndex {
        self.owners
            .add(Holding::Delayed, delayed.owner(), delayed.message.stored_bytes() as u64);
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            DelayedIndex::from_index(self.slots.len() - 1)
        });
        self.slots[index.index()] = Some(delayed);
        index
    }

    /// Marks a message as routed. Returns the message, and whether it was routed before. From now on it counts for its
    /// owner only if it is retained.
    fn set_routed(&mut self, index: DelayedIndex) -> Option<(Arc<Message>, bool)> {
        let delayed = self.slots.get_mut(index.index())?.as_mut()?;
        self.owners
            .release(Holding::Delayed, delayed.owner(), delayed.message.stored_bytes() as u64);
        let was_routed = std::mem::replace(&mut delayed.is_routed, true);
        Some((delayed.message.clone(), was_routed))
    }

    fn remove(&mut self, index: DelayedIndex) -> Option<DelayedMessage> {
        let delayed = self.slots.get_mut(index.index())?.take()?;
        self.free.push(index);
        self.owners
            .remove(Holding::Delayed, delayed.owner(), delayed.message.stored_bytes() as u64);
        Some(delayed)
    }
}

impl DelayedMessages {
    /// Stores a message that is due after some seconds. Returns the commits that its acknowledgement waits for, or
    /// `None` if the limits of the node are reached.
    pub fn delay(
        &mut self,
        tick: &mut Tick<'_>,
        p: &Publication<'_>,
        seconds: u32,
        publisher: Option<(SessionKey, u16)>,
    ) -> Option<PendingCommits> {
        let core = &mut *tick.core;
        if !self.has_space(p.stored_bytes(), core.config.max_delayed_messages, core.shards) {
            return None;
        }
        let due_ms = tick.now.monotonic_ms + u64::from(seconds) * 1000;
        let message = p.to_message();
        let record_fields = RecordFields {
            due_unix_ms: Some(tick.now.unix_at(due_ms)),
            publisher,
            is_required: true,
            ..RecordFields::default()
        };
        let place = core.ledger.record_message(tick.now, p, Some(&message), record_fields);
        self.delay_until(
            core,
            DelayedMessage {
                message,
                due_ms,
                is_routed: false,
            },
        );
        Some(PendingCommits::for_journal(!place.is_none()))
    }

    pub fn delay_until(&mut self, core: &mut ShardCore, delayed: DelayedMessage) {
        let due_ms = delayed.due_ms;
        let index = self.add(delayed);
        core.stats.delayed_messages += 1;
        core.timers.insert(due_ms, ShardTimer::Delayed { index });
    }

    /// Routes a message that is due, and deletes it when the tap has stored it.
    pub fn due(&mut self, tick: &mut Tick<'_>, router: &mut Router, to: &mut Destinations<'_>, index: DelayedIndex) {
        let Some((message, was_routed)) = self.set_routed(index) else {
            return;
        };
        if !was_routed && message.is_expired(tick.now) {
            tick.core.stats.drop_message(DropReason::Expired);
            return self.delete(tick.core, index);
        }
        let p = Publication {
            place: RecordLocation::NONE,
            ..message.publication()
        };
        let mut receipt = tick.core.taps.message(tick.now, None, &p, false);
        if !was_routed {
            router.publish(tick, to, &p, None);
        }
        if tick.core.taps.is_used() {
            let made = router.publish_tap_messages(tick, to);
            receipt = tick.core.taps.join(receipt, made.tap);
        }
        let Some(receipt) = receipt else {
            return self.delete(tick.core, index);
        };
        tick.core
            .ledger
            .record_of(message.place(), |message| JournalRecord::Delayed {
                message,
                due_unix_ms: WITH_TAP,
            });
        tick.core.taps.run_when_stored(receipt, ReceiptAction::Delayed(index));
    }

    /// Deletes a message that has been published and stored by the tap.
    pub fn delete(&mut self, core: &mut ShardCore, index: DelayedIndex) {
        let Some(delayed) = self.remove(index) else {
            return;
        };
        core.stats.delayed_messages -= 1;
        core.ledger
            .record_of(delayed.message.place(), |message| JournalRecord::DelayedDone {
                message,
            });
    }
}
