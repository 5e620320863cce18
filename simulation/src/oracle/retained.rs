//! Retained messages: of each topic, which the node may tell a new subscriber.

use mqtt::QoS;

use super::{Message, Oracle};

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
