//! A shard's tap: evaluates rules for published messages and events on the shard's own thread. Slow rules are evaluated
//! in the slow lane (`slow_lane.rs`).

use std::sync::Arc;

use broker::tap::{
    OffloadedResult, Receipt, Tap, TapClient, TapEvent, TapEventMask, TapMessage, TapPublication, TapResult,
};
use broker::{MessageLimits, Now};
use mqtt::QoS;

use crate::cause::{EventCause, hash};
use crate::environment::{LiveEnvironment, SharedStore};
use crate::event::{EventContext, LifecycleEvent, PublishedEvent};
use crate::loops::bridges_of;
use crate::offload::Offload;
use crate::runner::RuleRunner;
use crate::set::ActiveRules;
use crate::slow_lane::SlowLane;

pub struct RuleTap {
    runner: RuleRunner,
    context: EventContext,
    rules: Vec<u32>,
}

impl RuleTap {
    pub fn new(
        context: EventContext,
        active_rules: Arc<ActiveRules>,
        store: SharedStore,
        lane: Arc<SlowLane>,
        seed: u64,
    ) -> RuleTap {
        let runner = RuleRunner::new(active_rules, LiveEnvironment::new(seed, store));
        RuleTap {
            runner: runner.with_offload(Offload::new(lane)),
            context,
            rules: Vec::new(),
        }
    }
}

impl Tap for RuleTap {
    fn set_message_limits(&mut self, limits: MessageLimits) {
        self.runner.message_limits = Some(limits);
    }

    fn begin_tick(&mut self, now: Now) -> TapEventMask {
        self.context.unix_ms = now.unix_ms;
        self.runner.environment.unix_ms = now.unix_ms;
        self.runner.update();
        match self.runner.begin_tick() {
            true => self.runner.set.wants | TapEventMask::CHECK_FULL,
            false => self.runner.set.wants,
        }
    }

    fn is_full(&mut self, _: Now, message: &TapMessage<'_>) -> bool {
        self.runner.set.index.publish(message.topic, &mut self.rules);
        let event = PublishedEvent {
            context: &self.context,
            message,
        };
        self.runner.is_full_for(&self.rules, &event)
    }

    fn message(&mut self, _: Now, message: &TapMessage<'_>) -> TapResult {
        self.runner.set.index.publish(message.topic, &mut self.rules);
        if self.rules.is_empty() {
            return TapResult::AckNow;
        }
        let event = PublishedEvent {
            context: &self.context,
            message,
        };
        let cause = EventCause {
            bridges: &bridges_of(message.properties),
            delays_acknowledgement: message.qos != QoS::AtMostOnce,
            key: hash(
                message
                    .client
                    .map_or(message.topic, |client| client.client_id)
                    .as_bytes(),
            ),
            ..EventCause::of_mark(message.mark)
        };
        match self.runner.run(&self.rules, &event, cause) {
            Some(receipt) => TapResult::AckWhenStored(receipt),
            None => TapResult::AckNow,
        }
    }

    fn client_event(&mut self, _: Now, client: TapClient<'_>, happening: &TapEvent<'_>) {
        let kind = LifecycleEvent::kind_of(happening);
        self.runner.set.index.event(kind, &mut self.rules);
        let event = LifecycleEvent {
            context: &self.context,
            client,
            event: happening,
        };
        let cause = EventCause {
            bridges: &bridges_of(happening.message().map_or(&[], |message| message.properties)),
            key: hash(client.client_id.as_bytes()),
            ..EventCause::of_mark(happening.message().map_or(0, |message| message.mark))
        };
        self.runner.run(&self.rules, &event, cause);
    }

    fn take_publications(&mut self) -> Vec<TapPublication> {
        std::mem::take(&mut self.runner.republished)
    }

    fn join(&mut self, one: Receipt, other: Receipt) -> Receipt {
        self.runner.join(one, other)
    }

    fn is_offloading(&self) -> bool {
        self.runner.is_offloading()
    }

    fn take_offloaded(&mut self, _: Now) -> Option<OffloadedResult> {
        self.runner.take_offloaded()
    }

    fn end_tick(&mut self) {
        self.runner.flush();
    }

    fn stored_up_to(&mut self, lane: u16) -> u64 {
        self.runner.committed_tick_in(lane)
    }
}
