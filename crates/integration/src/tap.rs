//! A shard's tap: evaluates rules as messages are published and things happen, on the shard's own thread.

use std::sync::Arc;

use broker::Now;
use broker::tap::{Happening, MadeMessage, Receipt, Tap, TapClient, TapMessage, Tapped, Wants};
use mqtt::QoS;

use crate::environment::{SharedStore, Surroundings};
use crate::event::{Happened, Published, Scene};
use crate::loops::bridges_of;
use crate::runner::{Cause, Runner, hash};
use crate::set::InForce;

pub struct RuleTap {
    runner: Runner,
    scene: Scene,
    rules: Vec<u32>,
}

impl RuleTap {
    pub fn new(scene: Scene, in_force: Arc<InForce>, store: SharedStore, seed: u64) -> RuleTap {
        RuleTap {
            runner: Runner::new(in_force, Surroundings::new(seed, store)),
            scene,
            rules: Vec::new(),
        }
    }
}

impl Tap for RuleTap {
    fn begin_tick(&mut self, now: Now) -> Wants {
        self.scene.unix_ms = now.unix_ms;
        self.runner.surroundings.unix_ms = now.unix_ms;
        self.runner.renew();
        match self.runner.append() {
            true => self.runner.set.wants | Wants::TO_BE_ASKED,
            false => self.runner.set.wants,
        }
    }

    fn is_full(&mut self, _: Now, message: &TapMessage<'_>) -> bool {
        self.runner.set.index.publish(message.topic, &mut self.rules);
        let event = Published {
            scene: &self.scene,
            message,
        };
        self.runner.would_be_held(&self.rules, &event)
    }

    fn message(&mut self, _: Now, message: &TapMessage<'_>) -> Tapped {
        self.runner.set.index.publish(message.topic, &mut self.rules);
        if self.rules.is_empty() {
            return Tapped::Passed;
        }
        let event = Published {
            scene: &self.scene,
            message,
        };
        let cause = Cause {
            bridges: &bridges_of(message.properties),
            is_waited_for: message.qos != QoS::AtMostOnce,
            key: hash(
                message
                    .client
                    .map_or(message.topic, |client| client.client_id)
                    .as_bytes(),
            ),
            ..Cause::of_mark(message.mark)
        };
        match self.runner.run(&self.rules, &event, cause) {
            Some(receipt) => Tapped::Kept(receipt),
            None => Tapped::Passed,
        }
    }

    fn happened(&mut self, _: Now, client: TapClient<'_>, what: &Happening<'_>) {
        let kind = Happened::kind_of(what);
        self.runner.set.index.event(kind, &mut self.rules);
        let event = Happened {
            scene: &self.scene,
            client,
            what,
        };
        let cause = Cause {
            bridges: &bridges_of(what.message().map_or(&[], |message| message.properties)),
            key: hash(client.client_id.as_bytes()),
            ..Cause::of_mark(what.message().map_or(0, |message| message.mark))
        };
        self.runner.run(&self.rules, &event, cause);
    }

    fn take_made(&mut self) -> Vec<MadeMessage> {
        std::mem::take(&mut self.runner.made)
    }

    fn join(&mut self, one: Receipt, other: Receipt) -> Receipt {
        self.runner.join(one, other)
    }

    fn end_tick(&mut self) {
        self.runner.flush();
    }

    fn kept(&mut self, lane: u16) -> u64 {
        self.runner.kept_in(lane)
    }
}
