//! The tap's side of a shard: ticks, results of its other threads, and messages of the server.

use crate::delayed::DelayedMessages;
use crate::durable::record_fields::PendingCommits;
use crate::effect::Now;
use crate::inbox::Inbox;
use crate::message_limits::MessageLimits;
use crate::receipt_actions::ReceiptAction;
use crate::router::{Destinations, Router};
use crate::server_messages::ServerPublisher;
use crate::shard::Shard;
use crate::slots::SessionEpoch;
use crate::tap::Tap;
use crate::tick::Tick;

impl Shard {
    /// Attaches a tap to this shard. It receives no earlier events.
    pub fn set_tap(&mut self, tap: Box<dyn Tap>) {
        self.core.taps.attach(tap, SessionEpoch(self.numbers.last()));
        self.core.taps.set_message_limits(MessageLimits::of(&self.core.config));
    }

    /// Attaches an inbox to this shard.
    pub fn set_inbox(&mut self, inbox: Box<dyn Inbox>) {
        self.core.taps.attach_inbox(inbox);
    }

    /// Begins a tick. Called before anything else of it.
    pub fn begin_tick(&mut self, now: Now) {
        let core = &mut self.core;
        core.outbox.begin_tick(now.monotonic_ms);
        if let Some(ledger) = core.ledger.records_mut() {
            ledger.begin_tick(now);
        }
        if core.taps.begin_tick(now) {
            core.connections.resume_paused(&mut core.effects);
        }
    }

    /// Returns the publisher of messages that no client sent.
    pub fn server_publisher(&mut self, now: Now) -> ServerPublisher<'_> {
        let (tick, parts) = self.split(now);
        let (router, to) = parts.routing();
        ServerPublisher { tick, router, to }
    }

    /// Returns the components that the tap reports to.
    pub fn tap(&mut self, now: Now) -> ShardTap<'_> {
        let (tick, parts) = self.split(now);
        ShardTap {
            tick,
            router: parts.router,
            to: Destinations {
                groups: parts.groups,
                retained: parts.retained,
            },
            delayed: parts.delayed,
        }
    }
}

/// Handles reports of the tap: messages that it has created, and receipts of messages that it has stored.
pub struct ShardTap<'a> {
    tick: Tick<'a>,
    router: &'a mut Router,
    to: Destinations<'a>,
    delayed: &'a mut DelayedMessages,
}

impl ShardTap<'_> {
    /// Ends a tick. Called before `ShardJournal::batch`.
    pub fn end_tick(&mut self) {
        if self.tick.core.taps.is_used() {
            self.router.publish_tap_messages(&mut self.tick, &mut self.to);
            self.tick.core.taps.end_tick();
        }
    }

    /// Runs all actions whose receipts the tap has stored.
    pub fn run_stored_actions(&mut self) {
        loop {
            let due = self.tick.core.taps.take_stored();
            let mut has_called_back = false;
            for action in due {
                match action {
                    ReceiptAction::Ack(ack) => self.tick.core.acknowledge_stored(ack),
                    ReceiptAction::Call(done) => {
                        done();
                        has_called_back = true;
                    }
                    ReceiptAction::Open(id) => self.tick.core.taps.remove_open(id),
                    ReceiptAction::Delayed(index) => self.delayed.delete(self.tick.core, index),
                }
            }
            // A callback of the tap may complete a result of its other threads, and with it the receipt of an
            // acknowledgement.
            if !has_called_back {
                return;
            }
        }
    }

    /// Publishes the results of the tap's other threads. Calls back to the tap when a result is durable.
    pub fn take_offloaded(&mut self) {
        let tick = &mut self.tick;
        while let Some(result) = tick.core.taps.take_offloaded(tick.now) {
            let made = self.router.publish_tap_messages(tick, &mut self.to);
            let core = &mut *tick.core;
            let commits = PendingCommits {
                journal: made.journal,
                tap: core.taps.join(result.receipt, made.tap),
            };
            if let Some(done) = result.on_durable {
                core.ledger.call_when_stored(&mut core.taps, commits, done);
            }
        }
    }
}
