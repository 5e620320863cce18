//! Requests and publications of a client, and the answers to them.

use mqtt::{PacketType, QoS, ReasonCode, SubscriptionOptions};

use super::{ClientContext, ClientStage, OutgoingPublish, SimulatedClient, UnansweredRequest};
use crate::oracle::PublishDraft;
use crate::packets;

/// A message to publish.
pub struct PublishOrder<'a> {
    pub topic: &'a str,
    pub qos: QoS,
    pub retain: bool,
    pub is_empty: bool,
    pub expiry_s: Option<u32>,
    /// Delay in seconds, for `$delayed`.
    pub delay_s: Option<u32>,
    pub size: usize,
}

impl SimulatedClient {
    pub fn publish(&mut self, order: &PublishOrder<'_>, context: &mut ClientContext<'_>) {
        if order.qos != QoS::AtMostOnce && self.outgoing.len() >= self.window {
            return;
        }
        let expiry_s = order.expiry_s.filter(|_| self.version().has_properties());
        let (serial, payload) = context.oracle.sending(PublishDraft {
            topic: order.topic,
            qos: order.qos,
            retain: order.retain,
            publisher: self.index,
            is_will: false,
            is_empty: order.is_empty,
            expiry_s,
            delay_s: order.delay_s,
            size: order.size,
        });
        let id = self.free_id();
        context.trace.line(|| {
            let PublishOrder {
                topic,
                qos,
                retain,
                delay_s,
                ..
            } = order;
            format!(
                "c{} publishes {serial} to {topic}, {qos:?}, id {id}, retain {retain}, delay {delay_s:?}",
                self.index
            )
        });
        let outgoing = OutgoingPublish {
            id,
            serial,
            topic: match order.delay_s {
                Some(delay_s) => format!("$delayed/{delay_s}/{}", order.topic),
                None => order.topic.to_owned(),
            },
            payload,
            qos: order.qos,
            retain: order.retain,
            expiry_s,
            is_received: false,
            is_sent_here: true,
        };
        self.write_publish(&outgoing, false, context);
        if order.qos != QoS::AtMostOnce {
            self.outgoing.push(outgoing);
        }
    }

    fn write_publish(&mut self, outgoing: &OutgoingPublish, dup: bool, context: &mut ClientContext<'_>) {
        let bytes = packets::publish(
            self.version(),
            packets::PublishFields {
                topic: &outgoing.topic,
                payload: &outgoing.payload,
                qos: outgoing.qos,
                retain: outgoing.retain,
                dup,
                id: outgoing.id,
                expiry_s: outgoing.expiry_s.filter(|_| self.version().has_properties()),
            },
        );
        self.write(&bytes, context);
    }

    /// Resends unacknowledged messages in order, because the session continues [MQTT-4.4.0-1].
    pub(super) fn resend(&mut self, context: &mut ClientContext<'_>) {
        let mut sent = self.outgoing.iter().filter(|o| o.is_sent_here).count();
        for at in 0..self.outgoing.len() {
            let outgoing = self.outgoing[at].clone();
            if sent >= self.window || outgoing.is_sent_here {
                continue;
            }
            sent += 1;
            self.outgoing[at].is_sent_here = true;
            context.trace.line(|| {
                let OutgoingPublish {
                    serial, is_received, ..
                } = outgoing;
                format!("c{} resends {serial}, PUBREC received {is_received}", self.index)
            });
            if outgoing.is_received {
                self.write(&packets::answer(PacketType::PubRel, outgoing.id), context);
            } else {
                context.oracle.repeating(outgoing.serial);
                self.write_publish(&outgoing, true, context);
            }
        }
    }

    /// Returns a packet identifier that neither messages nor requests use.
    fn free_id(&mut self) -> u16 {
        if self.index.index() % 3 == 1 {
            // Like some libraries: the lowest free identifier, reused immediately.
            self.next_id = 0;
        }
        loop {
            // A small range, so that identifiers are reused soon.
            self.next_id = self.next_id % 40 + 1;
            let id = self.next_id;
            let is_asked = self.requests.iter().any(|request| match request {
                UnansweredRequest::Subscribe { id: other, .. } | UnansweredRequest::Unsubscribe { id: other, .. } => {
                    *other == id
                }
            });
            if !is_asked && self.outgoing.iter().all(|outgoing| outgoing.id != id) {
                return id;
            }
        }
    }

    pub fn subscribe(&mut self, filter: &'static str, options: SubscriptionOptions, context: &mut ClientContext<'_>) {
        if self.requests.len() > 8 {
            return;
        }
        let id = self.free_id();
        context
            .trace
            .line(|| format!("c{} subscribes to {filter}, {options:?}, id {id}", self.index));
        let sent = context.oracle.subscribing(self.index, filter, options);
        self.requests.push(UnansweredRequest::Subscribe { id, sent });
        self.write(&packets::subscribe(self.version(), id, filter, options), context);
    }

    pub fn unsubscribe(&mut self, filter: &'static str, context: &mut ClientContext<'_>) {
        if self.requests.len() > 8 {
            return;
        }
        let id = self.free_id();
        context
            .trace
            .line(|| format!("c{} unsubscribes from {filter}, id {id}", self.index));
        let sent = context.oracle.unsubscribing(self.index, filter);
        self.requests.push(UnansweredRequest::Unsubscribe { id, sent, filter });
        self.write(&packets::unsubscribe(self.version(), id, filter), context);
    }

    /// Sends PINGREQ before the Keep Alive has passed [MQTT-3.1.2-20].
    pub fn stay_alive(&mut self, context: &mut ClientContext<'_>) {
        let keep_alive_s = self.terms.as_ref().map_or(0, |terms| u64::from(terms.keep_alive_s));
        let is_due = keep_alive_s > 0 && context.oracle.now_ms >= self.sent_ms + keep_alive_s * 500;
        if is_due && self.stage == ClientStage::Online {
            self.ping(context);
        }
    }

    pub fn ping(&mut self, context: &mut ClientContext<'_>) {
        self.is_ping_pending = true;
        self.write(&packets::ping(self.version()), context);
    }

    // --- answers ---

    pub(super) fn receive_puback(&mut self, id: u16, reason: ReasonCode, context: &mut ClientContext<'_>) {
        let Some(at) = self.position(id, QoS::AtLeastOnce, false) else {
            return self.unexpected("PUBACK", id, context);
        };
        let outgoing = self.outgoing.remove(at);
        self.accepted(&outgoing, reason, context);
        self.resend(context);
    }

    pub(super) fn receive_pubrec(&mut self, id: u16, reason: ReasonCode, context: &mut ClientContext<'_>) {
        let Some(at) = self.position(id, QoS::ExactlyOnce, false) else {
            return self.unexpected("PUBREC", id, context);
        };
        let outgoing = self.outgoing[at].clone();
        self.accepted(&outgoing, reason, context);
        if reason as u8 >= 0x80 {
            self.outgoing.remove(at);
            return self.resend(context);
        }
        self.outgoing[at].is_received = true;
        self.write(&packets::answer(PacketType::PubRel, id), context);
    }

    pub(super) fn receive_pubcomp(&mut self, id: u16, context: &mut ClientContext<'_>) {
        let Some(at) = self.position(id, QoS::ExactlyOnce, true) else {
            return self.unexpected("PUBCOMP", id, context);
        };
        self.outgoing.remove(at);
        self.resend(context);
    }

    fn position(&self, id: u16, qos: QoS, is_received: bool) -> Option<usize> {
        self.outgoing
            .iter()
            .position(|o| o.id == id && o.qos == qos && o.is_received == is_received && o.is_sent_here)
    }

    fn accepted(&mut self, outgoing: &OutgoingPublish, reason: ReasonCode, context: &mut ClientContext<'_>) {
        context.trace.line(|| {
            format!(
                "c{} receives the acknowledgement of {}: {reason:?}",
                self.index, outgoing.serial
            )
        });
        context.oracle.acked(outgoing.serial, (reason as u8) < 0x80);
    }

    fn unexpected(&mut self, what: &str, id: u16, context: &mut ClientContext<'_>) {
        let text = format!(
            "client {} received an unexpected {what} {id}: {:?}",
            self.index, self.outgoing
        );
        context.oracle.violated(|| text);
    }

    pub(super) fn receive_suback(&mut self, id: u16, reasons: &[u8], context: &mut ClientContext<'_>) {
        let is_it = |request: &UnansweredRequest| matches!(request, UnansweredRequest::Subscribe { id: asked, .. } if *asked == id);
        match self.requests.iter().position(is_it).map(|at| self.requests.remove(at)) {
            Some(UnansweredRequest::Subscribe { sent, .. }) if reasons.iter().all(|reason| *reason < 0x80) => {
                context.trace.line(|| format!("c{} received SUBACK {id}", self.index));
                context.oracle.subscribed(self.index, sent);
            }
            _ => self.unexpected("SUBACK", id, context),
        }
    }

    pub(super) fn receive_unsuback(&mut self, id: u16, context: &mut ClientContext<'_>) {
        let is_it = |request: &UnansweredRequest| matches!(request, UnansweredRequest::Unsubscribe { id: asked, .. } if *asked == id);
        match self.requests.iter().position(is_it).map(|at| self.requests.remove(at)) {
            Some(UnansweredRequest::Unsubscribe { sent, filter, .. }) => {
                context.trace.line(|| format!("c{} received UNSUBACK {id}", self.index));
                context.oracle.unsubscribed(self.index, filter, sent);
            }
            _ => self.unexpected("UNSUBACK", id, context),
        }
    }
}
