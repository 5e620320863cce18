//! Messages from the publishers' view.

use std::collections::BTreeMap;

use mqtt::QoS;

use super::{Oracle, SLACK_MS};
use crate::client::ClientIndex;
use crate::plan::PlannedDurability;
use crate::tap::TapStore;
use crate::topics;

#[derive(Clone, Debug)]
pub struct OracleMessage {
    pub serial: u64,
    pub topic: String,
    pub bytes: usize,
    pub qos: QoS,
    pub retain: bool,
    pub publisher: ClientIndex,
    pub is_will: bool,
    /// A will that must not be published.
    pub is_void: bool,
    /// The payload is empty, which clears a retained message.
    pub is_empty: bool,
    /// Event at which its first byte was written.
    pub sent: u64,
    pub sent_ms: u64,
    pub acked: Option<u64>,
    /// Event at which the publisher sent it again. At QoS 1 there may then be two messages.
    pub repeated: Option<u64>,
    pub expiry_ms: Option<u64>,
    /// Delay between receipt and publication.
    pub delay_ms: Option<u64>,
    /// Number of the publisher's connection, for QoS 0.
    pub connection: u64,
    /// Number of group members that received it at QoS 2.
    pub group_exactly: u32,
    /// The last of these members.
    pub group_exactly_by: Option<ClientIndex>,
    pub has_group_got_it: bool,
    /// The publisher has received the acknowledgement, so the tap must have the message.
    pub is_due_in_tap: bool,
}

impl OracleMessage {
    /// The node cannot distinguish a repeated QoS 1 message from another one.
    pub fn may_be_repeated(&self) -> bool {
        self.qos == QoS::AtLeastOnce && self.repeated.is_some()
    }

    /// Returns whether the message may expire during its delay. A node that is down for a while publishes late.
    fn may_be_dropped_before_due(&self) -> bool {
        self.delay_ms.is_some() && self.expiry_ms.is_some()
    }

    /// Returns whether a delivery now would be before the delay has passed.
    pub fn is_early(&self, now_ms: u64) -> bool {
        self.delay_ms
            .is_some_and(|delay_ms| now_ms + SLACK_MS < self.sent_ms + delay_ms)
    }

    /// Returns whether the message may have expired. An expired message is not owed.
    pub fn may_be_expired(&self, now_ms: u64, may_expire_early: bool) -> bool {
        self.expiry_ms
            .is_some_and(|after| may_expire_early || now_ms >= self.sent_ms + after)
    }
}

/// A message that a client is about to publish.
pub struct PublishDraft<'a> {
    pub topic: &'a str,
    pub qos: QoS,
    pub retain: bool,
    pub publisher: ClientIndex,
    pub is_will: bool,
    pub is_empty: bool,
    pub expiry_s: Option<u32>,
    pub delay_s: Option<u32>,
    pub size: usize,
}

impl Oracle {
    /// Assigns serial number and payload to a message. A will is assigned at its CONNECT.
    pub fn sending(&mut self, draft: PublishDraft<'_>) -> (u64, Vec<u8>) {
        let serial = self.messages.len() as u64 + 1;
        let payload = if draft.is_empty {
            Vec::new()
        } else {
            topics::payload(serial, draft.size)
        };
        let message = OracleMessage {
            serial,
            topic: draft.topic.to_owned(),
            bytes: payload.len(),
            qos: draft.qos,
            retain: draft.retain,
            publisher: draft.publisher,
            is_will: draft.is_will,
            is_void: false,
            is_empty: draft.is_empty,
            sent: self.event(),
            sent_ms: self.now_ms,
            acked: None,
            repeated: None,
            expiry_ms: draft.expiry_s.map(|s| u64::from(s) * 1000),
            delay_ms: draft.delay_s.map(|s| u64::from(s) * 1000),
            connection: self.sessions[draft.publisher.index()].connection,
            group_exactly: 0,
            group_exactly_by: None,
            has_group_got_it: false,
            is_due_in_tap: false,
        };
        self.messages.push(message);
        if draft.retain {
            self.retained_sent(serial);
        }
        (serial, payload)
    }

    pub fn repeating(&mut self, serial: u64) {
        let at = self.event();
        if let Some(message) = self.message_mut(serial) {
            message.repeated = Some(at);
        }
        self.retained_may_change(serial);
    }

    /// Returns whether the node must store the message durably and only once. A will or a delayed message is published
    /// again if the process ends before the record that it was published is committed [MQTT-3.1.2-8].
    pub fn is_durable(&self, serial: u64) -> bool {
        self.message(serial).is_some_and(|m| {
            let is_published_once = !m.is_will && m.delay_ms.is_none();
            m.acked.is_some() && m.repeated.is_none() && is_published_once && self.durability != PlannedDurability::None
        })
    }

    /// The publisher has received PUBACK or PUBREC.
    pub fn acked(&mut self, serial: u64, is_accepted: bool) {
        let at = self.event();
        let Some(message) = self.message_mut(serial) else {
            return;
        };
        let publisher = message.publisher;
        if !is_accepted || message.acked.is_some() {
            return;
        }
        message.acked = Some(at);
        if !self.sessions[publisher.index()].is_sure {
            // The server may have taken it for another message with the same identifier.
            return;
        }
        let (crashed_at, durability) = (self.crashed_at, self.durability);
        if let Some(message) = self.message_mut(serial) {
            // The answer may have been in transit when the process that would have published it later ended.
            let is_forgotten =
                message.delay_ms.is_some() && durability == PlannedDurability::None && message.sent < crashed_at;
            message.is_due_in_tap = !message.is_empty && !is_forgotten;
        }
        self.expect_deliveries(serial);
        self.retained_acked(serial);
    }

    /// Checks the tap: it must have every acknowledged message, only once unless the message was sent again or its
    /// process ended, and in order.
    pub fn check_tap(&mut self, store: &TapStore) {
        let counts = store.counts();
        for at in 0..self.messages.len() {
            let message = &self.messages[at];
            let count = counts.get(&message.serial).copied().unwrap_or(0);
            // A delayed message is passed to the tap again if the process ends before it is stored.
            let is_again = message.delay_ms.is_some() && self.crashes > 0;
            let may_be_more = message.repeated.is_some() || message.is_will || is_again;
            let what = match count {
                0 if message.is_due_in_tap && !message.may_be_dropped_before_due() => "not in the tap",
                2.. if !may_be_more => "more than once in the tap",
                _ => continue,
            };
            let text = format!("{what}: {message:?}");
            self.violated(|| text);
        }
        self.check_order_in_tap(&store.stored);
    }

    /// After a crash that loses acknowledged messages, delayed messages are lost.
    pub(super) fn forget_delayed(&mut self) {
        for message in self.messages.iter_mut().filter(|message| message.delay_ms.is_some()) {
            message.is_due_in_tap = false;
        }
    }

    fn check_order_in_tap(&mut self, stored: &[u64]) {
        let mut last: BTreeMap<(ClientIndex, &str, QoS), u64> = BTreeMap::new();
        let mut problem = None;
        for message in stored.iter().filter_map(|serial| self.message(*serial)) {
            if message.repeated.is_some() || message.is_will || message.delay_ms.is_some() {
                continue;
            }
            let last = last
                .entry((message.publisher, &message.topic, message.qos))
                .or_default();
            if message.serial < *last {
                problem.get_or_insert_with(|| format!("the tap has {message:?} after {last} [MQTT-4.6.0-5]"));
            }
            *last = message.serial;
        }
        if let Some(problem) = problem {
            self.violated(|| problem);
        }
    }
}
