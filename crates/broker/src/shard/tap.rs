//! The tap's side of a shard: ticks, results of its other threads, and messages of the server.

use crate::durable::record_fields::PendingCommits;
use crate::effect::Now;
use crate::inbox::Inbox;
use crate::message_limits::MessageLimits;
use crate::receipt_actions::ReceiptAction;
use crate::server_messages::ServerPublisher;
use crate::shard::Shard;
use crate::slots::SessionEpoch;
use crate::tap::Tap;
use crate::taps::Taps;

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

    /// Returns the state of the tap and the inbox.
    pub fn taps(&self) -> &Taps {
        &self.core.taps
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

    /// Ends a tick. Called before `journal_batch`.
    pub fn end_tap_tick(&mut self, now: Now) {
        if self.core.taps.is_used() {
            let (mut tick, parts) = self.split(now);
            let (router, mut to) = parts.routing();
            router.publish_tap_messages(&mut tick, &mut to);
            tick.core.taps.end_tick();
        }
    }

    /// Runs all actions whose receipts the tap has stored.
    pub fn run_stored_actions(&mut self) {
        loop {
            let due = self.core.taps.take_stored();
            let mut has_called_back = false;
            for action in due {
                match action {
                    ReceiptAction::Ack(ack) => self.core.acknowledge_stored(ack),
                    ReceiptAction::Call(done) => {
                        done();
                        has_called_back = true;
                    }
                    ReceiptAction::Open(id) => self.core.taps.remove_open(id),
                    ReceiptAction::Delayed(index) => self.delayed.delete(&mut self.core, index),
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
    pub fn take_offloaded(&mut self, now: Now) {
        let (mut tick, parts) = self.split(now);
        let (router, mut to) = parts.routing();
        while let Some(result) = tick.core.taps.take_offloaded(now) {
            let made = router.publish_tap_messages(&mut tick, &mut to);
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

    /// Returns the publisher of messages that no client sent.
    pub fn server_publisher(&mut self, now: Now) -> ServerPublisher<'_> {
        let (tick, parts) = self.split(now);
        let (router, to) = parts.routing();
        ServerPublisher { tick, router, to }
    }
}
