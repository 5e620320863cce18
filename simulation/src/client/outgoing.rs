//! What a client asks and publishes, and the answers to it.

use mqtt::{PacketType, QoS, ReasonCode, SubscriptionOptions};

use super::{Client, Outgoing, Request, Scene, Stage};
use crate::oracle::Draft;
use crate::speak;

/// What a client is to publish.
pub struct Order<'a> {
    pub topic: &'a str,
    pub qos: QoS,
    pub retain: bool,
    pub is_empty: bool,
    pub expiry_s: Option<u32>,
    /// To `$delayed`.
    pub delay_s: Option<u32>,
    pub size: usize,
}

impl Client {
    pub fn publish(&mut self, order: &Order<'_>, scene: &mut Scene<'_>) {
        if order.qos != QoS::AtMostOnce && self.outgoing.len() >= self.window {
            return;
        }
        let expiry_s = order.expiry_s.filter(|_| self.version().has_properties());
        let (serial, payload) = scene.oracle.sending(Draft {
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
        scene.trace.line(|| {
            let Order {
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
        let outgoing = Outgoing {
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
        self.write_publish(&outgoing, false, scene);
        if order.qos != QoS::AtMostOnce {
            self.outgoing.push(outgoing);
        }
    }

    fn write_publish(&mut self, outgoing: &Outgoing, dup: bool, scene: &mut Scene<'_>) {
        let bytes = speak::publish(
            self.version(),
            speak::Message {
                topic: &outgoing.topic,
                payload: &outgoing.payload,
                qos: outgoing.qos,
                retain: outgoing.retain,
                dup,
                id: outgoing.id,
                expiry_s: outgoing.expiry_s.filter(|_| self.version().has_properties()),
            },
        );
        self.write(&bytes, scene);
    }

    /// The session goes on: what was not acknowledged is sent again, in order [MQTT-4.4.0-1].
    pub(super) fn resend(&mut self, scene: &mut Scene<'_>) {
        let mut sent = self.outgoing.iter().filter(|o| o.is_sent_here).count();
        for at in 0..self.outgoing.len() {
            let outgoing = self.outgoing[at].clone();
            if sent >= self.window || outgoing.is_sent_here {
                continue;
            }
            sent += 1;
            self.outgoing[at].is_sent_here = true;
            scene.trace.line(|| {
                let Outgoing {
                    serial, is_received, ..
                } = outgoing;
                format!("c{} sends {serial} again, received {is_received}", self.index)
            });
            if outgoing.is_received {
                self.write(&speak::answer(PacketType::PubRel, outgoing.id), scene);
            } else {
                scene.oracle.repeating(outgoing.serial);
                self.write_publish(&outgoing, true, scene);
            }
        }
    }

    /// One that is not in use, also not by requests: they share the numbers.
    fn free_id(&mut self) -> u16 {
        if self.index % 3 == 1 {
            // As some libraries do: the lowest, used again at once.
            self.next_id = 0;
        }
        loop {
            // Few, so that they are used again soon.
            self.next_id = self.next_id % 40 + 1;
            let id = self.next_id;
            let is_asked = self.requests.iter().any(|request| match request {
                Request::Subscribe { id: other, .. } | Request::Unsubscribe { id: other, .. } => *other == id,
            });
            if !is_asked && self.outgoing.iter().all(|outgoing| outgoing.id != id) {
                return id;
            }
        }
    }

    pub fn subscribe(&mut self, filter: &'static str, options: SubscriptionOptions, scene: &mut Scene<'_>) {
        if self.requests.len() > 8 {
            return;
        }
        let id = self.free_id();
        scene
            .trace
            .line(|| format!("c{} subscribes to {filter}, {options:?}, id {id}", self.index));
        let sent = scene.oracle.subscribing(self.index, filter, options);
        self.requests.push(Request::Subscribe { id, sent });
        self.write(&speak::subscribe(self.version(), id, filter, options), scene);
    }

    pub fn unsubscribe(&mut self, filter: &'static str, scene: &mut Scene<'_>) {
        if self.requests.len() > 8 {
            return;
        }
        let id = self.free_id();
        scene
            .trace
            .line(|| format!("c{} unsubscribes from {filter}, id {id}", self.index));
        let sent = scene.oracle.unsubscribing(self.index, filter);
        self.requests.push(Request::Unsubscribe { id, sent, filter });
        self.write(&speak::unsubscribe(self.version(), id, filter), scene);
    }

    /// Sends PINGREQ before the Keep Alive has passed [MQTT-3.1.2-20].
    pub fn stay_alive(&mut self, scene: &mut Scene<'_>) {
        let keep_alive_s = self.terms.as_ref().map_or(0, |terms| u64::from(terms.keep_alive_s));
        let is_due = keep_alive_s > 0 && scene.oracle.now_ms >= self.sent_ms + keep_alive_s * 500;
        if is_due && self.stage == Stage::Online {
            self.ping(scene);
        }
    }

    pub fn ping(&mut self, scene: &mut Scene<'_>) {
        self.is_ping_pending = true;
        self.write(&speak::ping(self.version()), scene);
    }

    // --- answers ---

    pub(super) fn puback_came(&mut self, id: u16, reason: ReasonCode, scene: &mut Scene<'_>) {
        let Some(at) = self.position(id, QoS::AtLeastOnce, false) else {
            return self.unasked("PUBACK", id, scene);
        };
        let outgoing = self.outgoing.remove(at);
        self.accepted(&outgoing, reason, scene);
        self.resend(scene);
    }

    pub(super) fn pubrec_came(&mut self, id: u16, reason: ReasonCode, scene: &mut Scene<'_>) {
        let Some(at) = self.position(id, QoS::ExactlyOnce, false) else {
            return self.unasked("PUBREC", id, scene);
        };
        let outgoing = self.outgoing[at].clone();
        self.accepted(&outgoing, reason, scene);
        if reason as u8 >= 0x80 {
            self.outgoing.remove(at);
            return self.resend(scene);
        }
        self.outgoing[at].is_received = true;
        self.write(&speak::answer(PacketType::PubRel, id), scene);
    }

    pub(super) fn pubcomp_came(&mut self, id: u16, scene: &mut Scene<'_>) {
        let Some(at) = self.position(id, QoS::ExactlyOnce, true) else {
            return self.unasked("PUBCOMP", id, scene);
        };
        self.outgoing.remove(at);
        self.resend(scene);
    }

    fn position(&self, id: u16, qos: QoS, is_received: bool) -> Option<usize> {
        self.outgoing
            .iter()
            .position(|o| o.id == id && o.qos == qos && o.is_received == is_received && o.is_sent_here)
    }

    fn accepted(&mut self, outgoing: &Outgoing, reason: ReasonCode, scene: &mut Scene<'_>) {
        scene
            .trace
            .line(|| format!("c{} has {} accepted: {reason:?}", self.index, outgoing.serial));
        scene.oracle.acked(outgoing.serial, (reason as u8) < 0x80);
    }

    fn unasked(&mut self, what: &str, id: u16, scene: &mut Scene<'_>) {
        let text = format!("client {} got {what} {id} for nothing: {:?}", self.index, self.outgoing);
        scene.oracle.violated(|| text);
    }

    pub(super) fn suback_came(&mut self, id: u16, reasons: &[u8], scene: &mut Scene<'_>) {
        let is_it = |request: &Request| matches!(request, Request::Subscribe { id: asked, .. } if *asked == id);
        match self.requests.iter().position(is_it).map(|at| self.requests.remove(at)) {
            Some(Request::Subscribe { sent, .. }) if reasons.iter().all(|reason| *reason < 0x80) => {
                scene.trace.line(|| format!("c{} got SUBACK {id}", self.index));
                scene.oracle.subscribed(self.index, sent);
            }
            _ => self.unasked("SUBACK", id, scene),
        }
    }

    pub(super) fn unsuback_came(&mut self, id: u16, scene: &mut Scene<'_>) {
        let is_it = |request: &Request| matches!(request, Request::Unsubscribe { id: asked, .. } if *asked == id);
        match self.requests.iter().position(is_it).map(|at| self.requests.remove(at)) {
            Some(Request::Unsubscribe { sent, filter, .. }) => {
                scene.trace.line(|| format!("c{} got UNSUBACK {id}", self.index));
                scene.oracle.unsubscribed(self.index, filter, sent);
            }
            _ => self.unasked("UNSUBACK", id, scene),
        }
    }
}
