//! What comes, held against what may come.

use mqtt::QoS;

use super::subscription::Subscription;
use super::{Message, Oracle};
use crate::words;

/// A message as the application of a client gets it: repetitions that the client itself recognizes are left out.
#[derive(Clone, Debug)]
pub struct Came {
    pub topic: String,
    pub payload: Vec<u8>,
    pub qos: QoS,
    pub retain: bool,
    pub dup: bool,
}

/// How often a message has come to a session, not counting retained ones for new subscriptions.
#[derive(Clone, Copy, Debug, Default)]
pub struct Seen {
    pub at_most_once: u32,
    pub exactly_once: u32,
}

impl Oracle {
    /// A client's application got a message. Returns its serial number.
    pub fn came(&mut self, client: usize, came: &Came) -> Option<u64> {
        let at = self.event();
        let session = &mut self.sessions[client];
        session.retained_owed.retain(|(topic, _)| *topic != came.topic);
        session.heard.insert(came.topic.clone(), at);
        if came.payload.is_empty() && !came.retain {
            // What clears a retained message also goes to subscribers; it has no number.
            return None;
        }
        let known = words::serial_of(&came.payload).and_then(|serial| self.message(serial));
        let Some(message) = known.cloned() else {
            self.violated(|| format!("client {client} got what nobody has sent: {came:?}"));
            return None;
        };
        let is_intact = message.topic == came.topic
            && message.bytes == came.payload.len()
            && words::payload(message.serial, message.bytes) == came.payload;
        if !is_intact {
            self.violated(|| format!("client {client} got {came:?}, which was sent as {message:?}"));
        }
        if !self.may_come(client, &message, came) {
            let session = &self.sessions[client];
            let text = format!("client {client} has not asked for {came:?}, {message:?}; {session:?}");
            self.violated(|| text);
        }
        if message.is_early(self.now_ms) {
            self.violated(|| format!("client {client} got before it was due {message:?}"));
        }
        if came.retain {
            self.retained_came(client, &message);
            return Some(message.serial);
        }
        self.will_came(&message);
        if message.topic.contains("/q/") {
            self.shared_came(client, &message, came);
        } else {
            self.own_came(client, &message, came);
        }
        Some(message.serial)
    }

    fn may_come(&self, client: usize, message: &Message, came: &Came) -> bool {
        let session = &self.sessions[client];
        if !session.is_sure {
            return true;
        }
        if came.retain {
            // No Local says nothing of these.
            let fits =
                |s: &Subscription| s.is_about(message) && s.share.is_none() && came.qos == s.qos.min(message.qos);
            return message.retain && session.subscriptions.iter().any(fits);
        }
        // No Local is about the session that published; by the time that a delayed message is due, the client may have another.
        let covers = |s: &&Subscription| s.covers(message, client) || message.delay_ms.is_some() && s.is_about(message);
        let mut subscriptions = session.subscriptions.iter().filter(covers);
        let fits = |s: &Subscription| s.may_have_been_there(message) && came.qos == s.qos.min(message.qos);
        subscriptions.any(fits)
    }

    fn own_came(&mut self, client: usize, message: &Message, came: &Came) {
        let is_exact = self.is_exact(client, came.qos);
        let session = &mut self.sessions[client];
        session.owed.retain(|owed| *owed != message.serial);
        let is_first = !session.has_seen(message.serial);
        let seen = session.seen.entry(message.serial).or_default();
        match came.qos {
            QoS::AtMostOnce => seen.at_most_once += 1,
            QoS::ExactlyOnce => seen.exactly_once += 1,
            QoS::AtLeastOnce => {}
        }
        let seen = *seen;
        if is_exact && seen.exactly_once > 1 {
            self.violated(|| format!("client {client} got at QoS 2 and twice: {message:?} [MQTT-4.3.3-10]"));
        }
        // That a will was published, or a message sent that had waited or was not kept yet, may be forgotten with the process.
        let had_waited = self.is_qos0_queued || message.delay_ms.is_some();
        let was_open = message.is_will || had_waited || message.repeated.is_some();
        let is_forgotten = was_open && self.crashes > 0;
        let may_be_two = message.may_be_two() || is_forgotten;
        if seen.at_most_once > 1 && !may_be_two && self.sessions[client].is_sure {
            self.violated(|| format!("client {client} got at QoS 0 and twice: {message:?}"));
        }
        if is_first && self.sessions[client].is_sure {
            self.check_order(client, message, came);
        }
    }

    fn check_order(&mut self, client: usize, message: &Message, came: &Came) {
        // A will is not part of its client's stream, nor is what was delayed. What was sent twice at QoS 1 may be two, and the first before anybody asked.
        // That a message was dropped by a full queue (MQTT 5, 4.9, leaves to the server what to do then), or because it could not be read,
        // may be forgotten with the process: it comes when newer ones have come.
        // One that has expired may be sent if that was begun before [MQTT-3.3.2-5], which nobody knows after a crash.
        let was_dropped = self.may_drop || message.may_be_expired(self.now_ms, self.has_jumps);
        let may_be_back = was_dropped && message.sent < self.crashed_at;
        // Refused at first, which its publisher never heard: what counts is when it came again and was received [MQTT-4.6.0-5].
        let was_refused = self.may_have_been_refused(message);
        if message.is_will || message.delay_ms.is_some() || message.may_be_two() || may_be_back || was_refused {
            return;
        }
        let key = (message.publisher, message.topic.clone(), message.qos, came.qos);
        let last = self.sessions[client].order.entry(key).or_default();
        let before = *last;
        *last = before.max(message.serial);
        if before > message.serial {
            self.violated(|| format!("client {client} got {message:?} after {before} [MQTT-4.6.0-5]"));
        }
    }

    fn shared_came(&mut self, client: usize, message: &Message, came: &Came) {
        self.group_got(message.serial);
        if !self.is_exact(client, came.qos) {
            return;
        }
        let Some(known) = self.message_mut(message.serial) else {
            return;
        };
        known.group_exactly += 1;
        known.group_exactly_by = Some(client);
        if known.group_exactly > 1 {
            self.violated(|| format!("client {client} got at QoS 2 what a member of its group got: {message:?}"));
        }
    }
}
