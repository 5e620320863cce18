//! Actions of clients and of the server.

use std::sync::PoisonError;

use mqtt::{ProtocolVersion, QoS, RetainHandling, SubscriptionOptions};

use super::World;
use crate::client::{ClientIndex, ClientStage, PublishOrder};
use crate::mounted_clients::full_topic;
use crate::oracle::PublishDraft;
use crate::packets::{ConnectFields, WillTerms};
use crate::plan::{ACT_KINDS, ClientAction};
use crate::topics::{FILTERS, GROUP_FILTER, RETAINED, TOPICS};
use crate::worker::{InboxItem, ServerPublish};

/// Maximum delay of messages to `$delayed`.
pub(super) const DELAY_MAX_S: u32 = 8;

const QOS: [QoS; 5] = [
    QoS::AtMostOnce,
    QoS::AtLeastOnce,
    QoS::AtLeastOnce,
    QoS::ExactlyOnce,
    QoS::ExactlyOnce,
];

impl World {
    /// One client performs one action.
    pub(super) fn act(&mut self) {
        let client = ClientIndex(self.random.below(self.plan.clients));
        match self.clients[client.index()].stage {
            ClientStage::Offline => {
                let is_ending_session = self.clients[client.index()].is_ending_session(&self.network);
                // Even-numbered clients are mostly connected and publish. Odd-numbered ones may stay offline once they
                // have a subscription.
                let may_stay_away = client.is_odd() && !self.oracle.sessions[client.index()].subscriptions.is_empty();
                let returning = if may_stay_away { self.plan.returning } else { 75 };
                if self.random.percent(returning) && !is_ending_session {
                    self.connect(client);
                }
            }
            ClientStage::Connecting => {
                if self.random.one_in(40) {
                    self.with(client, |client, context| client.cut(true, context));
                }
            }
            ClientStage::Online => {
                let act = ACT_KINDS[self.random.weighted(&self.plan.acts)];
                let has_no_subscription = self.oracle.sessions[client.index()].subscriptions.is_empty();
                let act = if has_no_subscription && self.random.one_in(2) {
                    ClientAction::Subscribe
                } else {
                    act
                };
                self.trace.number(act as u64);
                self.perform_act(client, act);
            }
        }
    }

    fn perform_act(&mut self, client: ClientIndex, act: ClientAction) {
        let is_stuck = self.clients[client.index()].is_stuck(&self.network);
        match act {
            ClientAction::Publish | ClientAction::Subscribe | ClientAction::Unsubscribe | ClientAction::Ping
                if is_stuck => {}
            ClientAction::Publish => self.publish(client),
            ClientAction::Subscribe => self.subscribe(client),
            ClientAction::Unsubscribe => {
                let filter = self.filter_to_leave(client);
                self.with(client, |client, context| client.unsubscribe(filter, context));
            }
            ClientAction::Answer => {
                self.with(client, |client, context| client.answer(context));
            }
            ClientAction::Disconnect => {
                let expiry_s = self.random.one_in(4).then(|| *self.random.pick(&[0, 5, 1000]));
                let with_will = self.random.one_in(4);
                self.with(client, |client, context| {
                    client.disconnect(expiry_s, with_will, context)
                });
            }
            ClientAction::Cut => {
                let with_reset = self.random.one_in(2);
                self.with(client, |client, context| client.cut(with_reset, context));
            }
            ClientAction::TakeOver => {
                self.with(client, |client, context| client.abandon(context));
                self.connect(client);
            }
            ClientAction::PauseReading => {
                self.clients[client.index()].is_not_reading = !self.clients[client.index()].is_not_reading
            }
            ClientAction::Ping => self.with(client, |client, context| client.ping(context)),
        }
    }

    pub(super) fn connect(&mut self, client: ClientIndex) {
        let terms = self.terms(client);
        self.connect_with(client, terms);
    }

    pub(super) fn connect_with(&mut self, client: ClientIndex, terms: ConnectFields) {
        if self.node.is_none() {
            return;
        }
        let capacity = self.plan.link_capacity;
        let link = self.with(client, |client, context| client.connect(terms, capacity, context));
        if let Some(node) = &mut self.node {
            node.accept(link);
        }
    }

    fn terms(&mut self, client: ClientIndex) -> ConnectFields {
        let has_unknown_session = self.clients[client.index()].has_unknown_session;
        let random = &mut self.random;
        // Mostly constant per client.
        let is_v5 = client.is_odd() == random.one_in(12);
        let clean_start = random.percent(if has_unknown_session { 60 } else { 8 });
        let expiry_s = match (is_v5, clean_start) {
            (false, false) => u32::MAX,
            (false, true) => 0,
            (true, _) => *random.pick(&[0, 2, 30, 1000, 1000, 100_000, u32::MAX, u32::MAX]),
        };
        let receive_maximum = if is_v5 {
            *random.pick(&[1, 3, 20, 65535])
        } else {
            u16::MAX
        };
        let topic_alias_maximum = if is_v5 { *random.pick(&[0, 2, 10]) } else { 0 };
        // Mostly longer than a run.
        let keep_alive_s = *random.pick(&[0, 0, 2, 20, 60]);
        let will = random.one_in(4).then(|| self.will(client, is_v5));
        ConnectFields {
            version: if is_v5 {
                ProtocolVersion::V5
            } else {
                ProtocolVersion::V3_1_1
            },
            clean_start,
            keep_alive_s,
            expiry_s,
            receive_maximum,
            topic_alias_maximum,
            will,
        }
    }

    fn will(&mut self, client: ClientIndex, is_v5: bool) -> WillTerms {
        let qos = *self.random.pick(&QOS);
        let delay_s = *self.random.pick(&[0, 0, 1, 5, 60]);
        // Retained wills have topics of their own, to which no other client publishes, so the last one stays.
        let retain = self.random.one_in(3);
        let topic = if retain {
            format!("w{client}/x")
        } else {
            format!("w/c{client}")
        };
        let (serial, payload) = self.oracle.sending(PublishDraft {
            topic: &topic,
            qos,
            retain,
            publisher: client,
            is_will: true,
            is_empty: false,
            expiry_s: None,
            delay_s: None,
            size: 12,
        });
        WillTerms {
            topic,
            payload,
            qos,
            retain,
            delay_s: if is_v5 { delay_s } else { 0 },
            serial,
        }
    }

    fn publish(&mut self, client: ClientIndex) {
        let random = &mut self.random;
        let qos = *random.pick(&QOS);
        let retain = random.one_in(5);
        let topic = if retain {
            format!("r{client}/{}", random.pick(&RETAINED))
        } else {
            (*random.pick(&TOPICS[..self.plan.topics])).to_owned()
        };
        let size = match random.below(12) {
            0 => random.between(300, 3_000) as usize,
            1..=3 => random.between(20, 120) as usize,
            _ => 0,
        };
        let may_be_late = self.plan.has_delays && !retain;
        let order = PublishOrder {
            topic: &topic,
            qos,
            retain,
            is_empty: retain && random.one_in(6),
            expiry_s: random.one_in(8).then(|| random.between(1, 20) as u32),
            delay_s: (may_be_late && random.one_in(3)).then(|| random.between(0, u64::from(DELAY_MAX_S)) as u32),
            size,
        };
        self.with(client, |client, context| client.publish(&order, context));
    }

    /// An operator or a source publishes. It uses the common topics, and its own retained topics. It always uses the
    /// same shard, so that the order is defined.
    pub(super) fn publish_as_server(&mut self) {
        let server = ClientIndex(self.plan.clients + 1);
        let Some(node) = &mut self.node else { return };
        let random = &mut self.random;
        let qos = *random.pick(&QOS);
        let retain = random.one_in(5);
        let topic = if retain {
            format!("r{server}/{}", random.pick(&RETAINED))
        } else {
            (*random.pick(&TOPICS[..self.plan.topics])).to_owned()
        };
        let expiry_s = random.one_in(8).then(|| random.between(1, 20) as u32);
        let (serial, payload) = self.oracle.sending(PublishDraft {
            topic: &topic,
            qos,
            retain,
            publisher: server,
            is_will: false,
            is_empty: retain && random.one_in(6),
            expiry_s,
            delay_s: None,
            size: 0,
        });
        self.trace.line(|| {
            format!("the server will publish {serial} to {topic}, {qos:?}, retain {retain}, expiry {expiry_s:?}")
        });
        let at = self.plan.seed as usize % node.workers.len();
        node.workers[at].inbox.push_back(InboxItem::Publish(ServerPublish {
            serial,
            topic: full_topic(topic, self.plan.has_mountpoint),
            payload,
            qos,
            retain,
            expiry_s,
        }));
    }

    /// Reports messages of the server that are stored now.
    pub(super) fn report_server_messages(&mut self, worker: usize) {
        let Some(node) = &self.node else { return };
        let stored = std::mem::take(
            &mut *node.workers[worker]
                .stored_serials
                .lock()
                .unwrap_or_else(PoisonError::into_inner),
        );
        for serial in stored {
            self.trace.line(|| format!("message of the server stored: {serial}"));
            self.oracle.acked(serial, true);
        }
    }

    /// Mostly returns a filter to which the client has subscribed.
    fn filter_to_leave(&mut self, client: ClientIndex) -> &'static str {
        let subscriptions = &self.oracle.sessions[client.index()].subscriptions;
        if subscriptions.is_empty() || self.random.one_in(5) {
            let filter: &&str = self.random.pick(&FILTERS);
            return filter;
        }
        self.random.pick(subscriptions).filter
    }

    fn subscribe(&mut self, client: ClientIndex) {
        let random = &mut self.random;
        let filter = match self.plan.are_members_apart && client.is_odd() {
            true => GROUP_FILTER,
            false => *random.pick(&FILTERS[..self.plan.filters]),
        };
        let is_v5 = self.clients[client.index()].version() == ProtocolVersion::V5;
        let qos: &[QoS] = if self.plan.is_surely_shared {
            &[QoS::AtLeastOnce]
        } else {
            &QOS
        };
        let mut options = SubscriptionOptions {
            maximum_qos: *random.pick(qos),
            ..SubscriptionOptions::default()
        };
        if is_v5 {
            options.no_local = random.one_in(8) && !filter.starts_with('$');
            options.retain_handling = *random.pick(&[
                RetainHandling::SendAtSubscribe,
                RetainHandling::SendAtSubscribe,
                RetainHandling::SendIfNew,
                RetainHandling::DoNotSend,
            ]);
        }
        self.with(client, |client, context| client.subscribe(filter, options, context));
    }
}
