//! Messages from the server, and the client's part of the QoS protocols.

use mqtt::{PacketId, PacketType, Publish, QoS};

use super::{ClientContext, HeldPublish, SimulatedClient};
use crate::oracle::ReceivedMessage;
use crate::packets;

impl SimulatedClient {
    pub(super) fn receive_publish(&mut self, publish: &Publish<'_>, context: &mut ClientContext<'_>) {
        let received = ReceivedMessage {
            topic: self.topic_of(publish, context),
            payload: publish.payload.to_vec(),
            qos: publish.qos,
            retain: publish.retain,
            dup: publish.dup,
        };
        let id = publish.packet_id.map_or(0, PacketId::get);
        context.trace.line(|| {
            let text = String::from_utf8_lossy(&received.payload[..received.payload.len().min(8)]).into_owned();
            let ReceivedMessage {
                topic,
                qos,
                retain,
                dup,
                ..
            } = &received;
            format!(
                "c{} receives {text} of {topic}, {qos:?}, id {id}, retain {retain}, dup {dup}",
                self.index
            )
        });
        if publish.qos == QoS::AtMostOnce {
            return self.deliver_to_application(&received, context);
        }
        self.check_window(id, context);
        let answer = if publish.qos == QoS::AtLeastOnce {
            PacketType::PubAck
        } else {
            PacketType::PubRec
        };
        self.exchange(id, &received, context);
        if !self.answers.contains(&(answer, id)) {
            self.answers.push_back((answer, id));
        }
    }

    /// Handles a message of a known or a new QoS 1 or 2 exchange.
    fn exchange(&mut self, id: u16, received: &ReceivedMessage, context: &mut ClientContext<'_>) {
        let serial = crate::topics::serial_of(&received.payload).unwrap_or(0);
        let known = self.held.get(&id).copied();
        if let Some(held) = known {
            self.check_repetition(id, held, serial, received, context);
        }
        let is_repetition = known.is_some_and(|held| held.qos == QoS::ExactlyOnce);
        if !is_repetition {
            self.deliver_to_application(received, context);
        }
        let held = HeldPublish {
            serial,
            qos: received.qos,
            is_bound: !received.retain && !received.topic.contains("/q/"),
            retain: received.retain,
            is_from_earlier_connection: false,
            crashes: context.oracle.crashes,
            number: self.received.len(),
        };
        self.held.insert(id, held);
        self.received.push(held);
    }

    fn check_repetition(
        &mut self,
        id: u16,
        held: HeldPublish,
        serial: u64,
        received: &ReceivedMessage,
        context: &mut ClientContext<'_>,
    ) {
        let index = self.index;
        // A message delivered once as retained and once as live counts as two deliveries. An earlier message may not
        // have been durable, and then the live one has its number.
        let is_another = held.serial == serial && held.retain != received.retain;
        // A preceding message of the same process that was not durable leaves its number to this one.
        let is_durable = |held: &HeldPublish| held.is_bound && context.oracle.is_durable(held.serial);
        let mut before = self.received[..held.number].iter().rev();
        let has_moved = before.any(|before| before.crashes == held.crashes && !is_durable(before));
        let may_be_forgotten = is_another || has_moved || !is_durable(&held);
        if held.qos == QoS::AtLeastOnce && held.crashes < context.oracle.crashes && may_be_forgotten {
            // The delivery, or the selection of the group member, was not durable and is lost with the process.
            return;
        }
        if (held.serial, held.qos) != (serial, received.qos) {
            let text =
                format!("client {index}: identifier {id} belongs to {held:?}, received {received:?} [MQTT-2.2.1-4]");
            return context.oracle.violated(|| text);
        }
        if !received.dup {
            context
                .oracle
                .violated(|| format!("client {index}: {received:?}, id {id}, repeated without DUP [MQTT-3.3.1-1]"));
        }
        if !held.is_from_earlier_connection {
            context.oracle.violated(|| {
                format!("client {index}: {received:?}, id {id}, sent twice on one connection [MQTT-4.4.0-1]")
            });
        }
    }

    fn deliver_to_application(&mut self, received: &ReceivedMessage, context: &mut ClientContext<'_>) {
        if let Some(serial) = context.oracle.received(self.index, received)
            && received.retain
        {
            self.retained.push((received.topic.clone(), serial));
        }
    }

    fn topic_of(&mut self, publish: &Publish<'_>, context: &mut ClientContext<'_>) -> String {
        let Some(alias) = publish.properties.topic_alias() else {
            return publish.topic.to_owned();
        };
        if !publish.topic.is_empty() {
            self.aliases.insert(alias, publish.topic.to_owned());
        }
        let known = self.aliases.get(&alias).cloned();
        let maximum = self.terms.as_ref().map_or(0, |terms| terms.topic_alias_maximum);
        if known.is_none() || alias > maximum {
            let index = self.index;
            context.oracle.violated(|| {
                format!("client {index}: topic alias {alias} (maximum {maximum}) was not announced [MQTT-3.1.2-26]")
            });
        }
        known.unwrap_or_default()
    }

    fn check_window(&mut self, id: u16, context: &mut ClientContext<'_>) {
        if !self.open.contains(&id) {
            self.open.push(id);
        }
        let window = self
            .terms
            .as_ref()
            .map_or(0, |terms| usize::from(terms.receive_maximum));
        if self.version().has_properties() && self.open.len() > window {
            let text = format!(
                "client {}: {} messages in flight, Receive Maximum {window} [MQTT-3.3.4-9]",
                self.index,
                self.open.len()
            );
            context.oracle.violated(|| text);
        }
    }

    pub(super) fn receive_pubrel(&mut self, id: u16, context: &mut ClientContext<'_>) {
        context.trace.line(|| format!("c{} received PUBREL {id}", self.index));
        if !self.open.contains(&id) {
            self.open.push(id);
        }
        self.held.remove(&id);
        if !self.answers.contains(&(PacketType::PubComp, id)) {
            self.answers.push_back((PacketType::PubComp, id));
        }
    }

    /// Sends the oldest pending answer.
    pub fn answer(&mut self, context: &mut ClientContext<'_>) -> bool {
        let Some((kind, id)) = self.answers.pop_front() else {
            return false;
        };
        context.trace.line(|| format!("c{} answers {kind} {id}", self.index));
        if kind == PacketType::PubAck {
            self.held.remove(&id);
        }
        if kind != PacketType::PubRec {
            self.open.retain(|open| *open != id);
        }
        self.write(&packets::answer(kind, id), context);
        true
    }

    /// Returns a message that was received on an earlier connection, never answered, and not sent again although the
    /// session continued.
    pub fn lost_message(&self, crashes: u64) -> Option<u64> {
        self.held
            .values()
            .find(|held| held.is_from_earlier_connection && held.is_bound && held.crashes == crashes)
            .map(|held| held.serial)
    }
}
