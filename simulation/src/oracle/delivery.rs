//! Checks received messages against the messages that may be delivered.

use mqtt::QoS;

use super::subscription::OracleSubscription;
use super::{Oracle, OracleMessage};
use crate::client::ClientIndex;
use crate::topics;

/// A message as the client's application receives it, without repetitions that the client recognises.
#[derive(Clone, Debug)]
pub struct ReceivedMessage {
    pub topic: String,
    pub payload: Vec<u8>,
    pub qos: QoS,
    pub retain: bool,
    pub dup: bool,
}

/// How often a session has received a message, without replays of retained messages.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReceivedCounts {
    pub at_most_once: u32,
    pub exactly_once: u32,
}

impl Oracle {
    /// A client's application received a message. Returns its serial number.
    pub fn received(&mut self, client: ClientIndex, received: &ReceivedMessage) -> Option<u64> {
        let at = self.event();
        let session = &mut self.sessions[client.index()];
        session.retained_owed.retain(|(topic, _)| *topic != received.topic);
        session.last_received.insert(received.topic.clone(), at);
        if received.payload.is_empty() && !received.retain {
            // Subscribers also receive the message that clears a retained one. It has no serial number.
            return None;
        }
        let known = topics::serial_of(&received.payload).and_then(|serial| self.message(serial));
        let Some(message) = known.cloned() else {
            self.violated(|| format!("client {client} received a message that was not sent: {received:?}"));
            return None;
        };
        let is_intact = message.topic == received.topic
            && message.bytes == received.payload.len()
            && topics::payload(message.serial, message.bytes) == received.payload;
        if !is_intact {
            self.violated(|| format!("client {client} received {received:?}, which was sent as {message:?}"));
        }
        if !self.may_be_delivered(client, &message, received) {
            let session = &self.sessions[client.index()];
            let text = format!("client {client} has no subscription for {received:?}, {message:?}; {session:?}");
            self.violated(|| text);
        }
        if message.is_early(self.now_ms) {
            self.violated(|| format!("client {client} received a delayed message early: {message:?}"));
        }
        if received.retain {
            self.check_retained_delivery(client, &message);
            return Some(message.serial);
        }
        self.check_will_delivery(&message);
        if message.topic.contains("/q/") {
            self.check_shared_delivery(client, &message, received);
        } else {
            self.check_own_delivery(client, &message, received);
        }
        Some(message.serial)
    }

    fn may_be_delivered(&self, client: ClientIndex, message: &OracleMessage, received: &ReceivedMessage) -> bool {
        let session = &self.sessions[client.index()];
        if !session.is_sure {
            return true;
        }
        if received.retain {
            // No Local does not apply to replays of retained messages.
            let fits = |s: &OracleSubscription| {
                s.matches_topic(message) && s.share.is_none() && received.qos == s.qos.min(message.qos)
            };
            return message.retain && session.subscriptions.iter().any(fits);
        }
        // No Local refers to the publishing session. When a delayed message is due, the client may have another
        // session.
        let covers = |s: &&OracleSubscription| {
            s.covers(message, client) || message.delay_ms.is_some() && s.matches_topic(message)
        };
        let mut subscriptions = session.subscriptions.iter().filter(covers);
        let fits = |s: &OracleSubscription| s.may_have_been_active(message) && received.qos == s.qos.min(message.qos);
        subscriptions.any(fits)
    }

    fn check_own_delivery(&mut self, client: ClientIndex, message: &OracleMessage, received: &ReceivedMessage) {
        let is_exact = self.is_exact(client, received.qos);
        let session = &mut self.sessions[client.index()];
        session.owed.retain(|owed| *owed != message.serial);
        let is_first = !session.has_seen(message.serial);
        let seen = session.seen.entry(message.serial).or_default();
        match received.qos {
            QoS::AtMostOnce => seen.at_most_once += 1,
            QoS::ExactlyOnce => seen.exactly_once += 1,
            QoS::AtLeastOnce => {}
        }
        let seen = *seen;
        if is_exact && seen.exactly_once > 1 {
            self.violated(|| format!("client {client} received a QoS 2 message twice: {message:?} [MQTT-4.3.3-10]"));
        }
        // The process may forget that a will was published, or that a queued, delayed or non-durable message was sent.
        let had_waited = self.queue_qos0 || message.delay_ms.is_some();
        let was_open = message.is_will || had_waited || message.repeated.is_some();
        let is_forgotten = was_open && self.crashes > 0;
        let may_be_two = message.may_be_repeated() || is_forgotten;
        if seen.at_most_once > 1 && !may_be_two && self.sessions[client.index()].is_sure {
            self.violated(|| format!("client {client} received a QoS 0 message twice: {message:?}"));
        }
        if is_first && self.sessions[client.index()].is_sure {
            self.check_order(client, message, received);
        }
    }

    fn check_order(&mut self, client: ClientIndex, message: &OracleMessage, received: &ReceivedMessage) {
        // Wills and delayed messages are not part of the publisher's stream. A QoS 1 message that was sent twice may be
        // two messages, the first of them before the subscription. The process may forget that a message was dropped
        // from a full queue (MQTT 5, section 4.9, leaves the handling to the server) or because it was unreadable; then
        // it is delivered after newer ones. An expired message may be sent if its delivery began before [MQTT-3.3.2-5],
        // which is unknown after a crash.
        let was_dropped = self.may_drop || message.may_be_expired(self.now_ms, self.may_expire_early);
        let may_be_back = was_dropped && message.sent < self.crashed_at;
        // If the message was rejected at first, which its publisher did not learn, the order of its second receipt
        // counts [MQTT-4.6.0-5].
        let was_refused = self.may_have_been_refused(message);
        if message.is_will || message.delay_ms.is_some() || message.may_be_repeated() || may_be_back || was_refused {
            return;
        }
        let key = (message.publisher, message.topic.clone(), message.qos, received.qos);
        let last = self.sessions[client.index()].order.entry(key).or_default();
        let before = *last;
        *last = before.max(message.serial);
        if before > message.serial {
            self.violated(|| format!("client {client} received {message:?} after {before} [MQTT-4.6.0-5]"));
        }
    }

    fn check_shared_delivery(&mut self, client: ClientIndex, message: &OracleMessage, received: &ReceivedMessage) {
        self.record_group_delivery(message.serial);
        if !self.is_exact(client, received.qos) {
            return;
        }
        let Some(known) = self.message_mut(message.serial) else {
            return;
        };
        known.group_exactly += 1;
        known.group_exactly_by = Some(client);
        if known.group_exactly > 1 {
            self.violated(|| {
                format!("client {client} received a QoS 2 message that a member of its group has received: {message:?}")
            });
        }
    }
}
