//! Retained messages: of each topic, which the node may tell a new subscriber.

use mqtt::{QoS, filter_matches};

use super::subscription::Subscription;
use super::{Message, Oracle, is_at_least_once};

/// Every topic has one publisher, so that what it sends is kept in this order.
#[derive(Clone, Debug, Default)]
pub struct RetainedTopic {
    /// What has been accepted last; `None` for nothing yet.
    last_acked: Option<u64>,
    /// What was sent, ever.
    sent: Vec<u64>,
}

impl Oracle {
    pub(super) fn retained_sent(&mut self, serial: u64) {
        let topic = self.message(serial).map(|m| m.topic.clone()).unwrap_or_default();
        self.retained.entry(topic).or_default().sent.push(serial);
        self.retained_may_change(serial);
    }

    /// Of its topic, nobody is owed any more what was retained before.
    pub(super) fn retained_may_change(&mut self, serial: u64) {
        let Some(message) = self.message(serial).filter(|m| m.retain) else {
            return;
        };
        let topic = message.topic.clone();
        for session in &mut self.sessions {
            session.retained_owed.retain(|(owed, _)| *owed != topic);
        }
    }

    /// A subscription has been accepted: what was surely retained when it was asked for is owed to a session that outlives its connection,
    /// and its process.
    pub(super) fn owe_retained(&mut self, client: usize, sent: u64) {
        let session = &self.sessions[client];
        let subscription = session.subscriptions.iter().find(|s| s.sent == sent);
        let Some(subscription) = subscription.filter(|s| s.wants_retained && s.unsent.is_none()) else {
            return;
        };
        if !session.is_sure || !session.is_mortal_only_by_time() {
            return;
        }
        // One for the same filter that is on its way may have taken its place, and asks for its own.
        let is_last = |s: &Subscription| s.filter != subscription.filter || s.sent <= sent;
        if !session.subscriptions.iter().all(is_last) {
            return;
        }
        let is_owed = |topic: &&String, known: &RetainedTopic| {
            filter_matches(subscription.bare, topic)
                && session.heard.get(*topic).is_none_or(|at| *at < sent)
                && self.is_surely_kept(known, sent)
        };
        let owed = self.retained.iter().filter(|(topic, known)| is_owed(topic, known));
        let owed: Vec<_> = owed.map(|(topic, _)| (topic.clone(), subscription.filter)).collect();
        self.sessions[client].retained_owed.extend(owed);
    }

    /// Whether what was accepted last is there to stay, from before `when` on.
    fn is_surely_kept(&self, known: &RetainedTopic, when: u64) -> bool {
        let is_last = |m: &Message| known.last_acked == Some(m.serial);
        let is_simple = |m: &Message| {
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

    pub(super) fn retained_came(&mut self, client: usize, message: &Message) {
        if message.is_empty {
            self.violated(|| format!("client {client} got a retained message without payload [MQTT-3.3.1-11]"));
        }
    }

    /// Everything has settled, and a new subscriber got these, as topic and serial.
    pub fn check_retained(&mut self, got: &[(String, u64)]) {
        let mut wrong = Vec::new();
        for (topic, known) in &self.retained {
            let mut told = got.iter().filter(|(of, _)| of == topic).map(|(_, serial)| *serial);
            let serial = told.next();
            if told.next().is_some() {
                wrong.push(format!("two retained messages of {topic}"));
            }
            if !self.may_be_kept(known, serial) {
                wrong.push(format!("{topic} keeps {serial:?}, known is {known:?}"));
            }
        }
        for (topic, serial) in got {
            if !self.retained.contains_key(topic) {
                wrong.push(format!("{topic} keeps {serial}, which is not retained any more"));
            }
        }
        if let Some(wrong) = wrong.into_iter().next() {
            self.violated(|| wrong);
        }
    }

    fn may_be_kept(&self, known: &RetainedTopic, serial: Option<u64>) -> bool {
        let last = known.last_acked.and_then(|serial| self.message(serial));
        // After the last: sent for the first time, or again, as a QoS 1 message that the node cannot know for an old one, or as one that
        // was refused when it first came.
        let may_be_last = |m: &&Message| {
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
                    || candidates.any(|m| m.is_empty || m.may_be_expired(self.now_ms, self.has_jumps))
            }
        }
    }
}
