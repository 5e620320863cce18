//! Retained messages: which one the node may send to a new subscriber, per topic.

use mqtt::{QoS, filter_matches};

use super::subscription::OracleSubscription;
use super::{Oracle, OracleMessage, is_at_least_once};
use crate::client::ClientIndex;

/// Every topic has one publisher, so the order of its messages is known.
#[derive(Clone, Debug, Default)]
pub struct RetainedTopic {
    /// The message accepted last; `None` if there is none.
    last_acked: Option<u64>,
    /// All messages sent.
    sent: Vec<u64>,
}

impl Oracle {
    pub(super) fn retained_sent(&mut self, serial: u64) {
        let topic = self.message(serial).map(|m| m.topic.clone()).unwrap_or_default();
        self.retained.entry(topic).or_default().sent.push(serial);
        self.retained_may_change(serial);
    }

    /// The retained message of the topic may change, so the previous one is no longer owed.
    pub(super) fn retained_may_change(&mut self, serial: u64) {
        let Some(message) = self.message(serial).filter(|m| m.retain) else {
            return;
        };
        let topic = message.topic.clone();
        for session in &mut self.sessions {
            session.retained_owed.retain(|(owed, _)| *owed != topic);
        }
    }

    /// A subscription has been accepted. Messages that were certainly retained when it was sent are owed to a durable
    /// session.
    pub(super) fn expect_retained(&mut self, client: ClientIndex, sent: u64) {
        let session = &self.sessions[client.index()];
        let subscription = session.subscriptions.iter().find(|s| s.sent == sent);
        let Some(subscription) = subscription.filter(|s| s.wants_retained && s.unsent.is_none()) else {
            return;
        };
        if !session.is_sure || !session.outlives_connection() {
            return;
        }
        // A later SUBSCRIBE for the same filter may have replaced it. That one has its own replay.
        let is_last = |s: &OracleSubscription| s.filter != subscription.filter || s.sent <= sent;
        if !session.subscriptions.iter().all(is_last) {
            return;
        }
        let is_owed = |topic: &&String, known: &RetainedTopic| {
            filter_matches(subscription.topic_filter, topic)
                && session.last_received.get(*topic).is_none_or(|at| *at < sent)
                && self.is_surely_retained(known, sent)
        };
        let owed = self.retained.iter().filter(|(topic, known)| is_owed(topic, known));
        let owed: Vec<_> = owed.map(|(topic, _)| (topic.clone(), subscription.filter)).collect();
        self.sessions[client.index()].retained_owed.extend(owed);
    }

    /// Returns whether the message accepted last is certainly retained since before `when`.
    fn is_surely_retained(&self, known: &RetainedTopic, when: u64) -> bool {
        let is_last = |m: &OracleMessage| known.last_acked == Some(m.serial);
        let is_simple = |m: &OracleMessage| {
            let is_over = m.acked.is_some_and(|at| at < when) && m.repeated.is_none();
            let is_late = m.is_will || m.delay_ms.is_some() || m.expiry_ms.is_some();
            is_over && !is_late && (!is_last(m) || is_at_least_once(m.qos) && !m.is_empty)
        };
        known.last_acked.is_some()
            && known.last_acked == known.sent.last().copied()
            && known
                .sent
                .iter()
                .all(|serial| self.message(*serial).is_some_and(is_simple))
    }

    pub(super) fn retained_acked(&mut self, serial: u64) {
        let Some(message) = self.message(serial).filter(|m| m.retain).cloned() else {
            return;
        };
        let topic = self.retained.entry(message.topic).or_default();
        if topic.last_acked.is_none_or(|last| last < serial) {
            topic.last_acked = Some(serial);
        }
    }

    pub(super) fn check_retained_delivery(&mut self, client: ClientIndex, message: &OracleMessage) {
        if message.is_empty {
            self.violated(|| {
                format!("client {client} received a retained message with an empty payload [MQTT-3.3.1-11]")
            });
        }
    }

    /// All activity has settled. Checks the topics and serials that a new subscriber received.
    pub fn check_retained(&mut self, got: &[(String, u64)]) {
        let mut wrong = Vec::new();
        for (topic, known) in &self.retained {
            let mut reported = got.iter().filter(|(of, _)| of == topic).map(|(_, serial)| *serial);
            let serial = reported.next();
            if reported.next().is_some() {
                wrong.push(format!("two retained messages of {topic}"));
            }
            if !self.may_be_retained(known, serial) {
                wrong.push(format!("{topic} retains {serial:?}, expected {known:?}"));
            }
        }
        for (topic, serial) in got {
            if !self.retained.contains_key(topic) {
                wrong.push(format!("{topic} retains {serial}, which was cleared or replaced"));
            }
        }
        if let Some(wrong) = wrong.into_iter().next() {
            self.violated(|| wrong);
        }
    }

    fn may_be_retained(&self, known: &RetainedTopic, serial: Option<u64>) -> bool {
        let last = known.last_acked.and_then(|serial| self.message(serial));
        // Messages that may be the last one: sent later for the first time; repeated, because the node cannot recognise
        // an old QoS 1 message; or rejected when they were first sent.
        let may_be_last = |m: &&OracleMessage| {
            last.is_none_or(|last| {
                let is_again = m.qos == QoS::AtLeastOnce && m.repeated.is_some_and(|at| at > last.sent);
                m.serial >= last.serial || is_again || self.may_have_been_refused(m)
            })
        };
        let candidates = known.sent.iter().filter_map(|serial| self.message(*serial));
        let mut candidates = candidates.filter(may_be_last);
        match serial {
            Some(serial) => candidates.any(|m| m.serial == serial && !m.is_empty),
            None => {
                known.last_acked.is_none()
                    || candidates.any(|m| m.is_empty || m.may_be_expired(self.now_ms, self.may_expire_early))
            }
        }
    }
}
