//! The state of a client: packet identifiers, receive windows and topic aliases. Each received packet is checked
//! against it.

use std::collections::HashMap;

use mqtt::*;

use super::node::Source;

/// A connection as its client sees it.
pub struct Conn {
    /// Index of the client in `World`.
    pub wire: usize,
    pub version: ProtocolVersion,
    pub window: usize,
    pub maximum_packet_size: usize,
    pub alias_max: u16,
    pub is_blocked: bool,
    /// Bytes of an incomplete packet.
    pub unread: Vec<u8>,
    aliases: HashMap<u16, String>,
    /// Identifiers of PUBLISH packets of this connection that are not completed.
    open: Vec<u16>,
    /// Answers that the client owes, oldest first.
    pub answers: Vec<Answer>,
    /// Received packets other than PUBLISH and the server's QoS exchanges. The test that expects them reads them here.
    pub said: Vec<Said>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    pub kind: PacketType,
    pub id: u16,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Said {
    ConnAck { session_present: bool, reason: ReasonCode },
    Ack(PacketType, u16),
    SubAck(Vec<u8>),
    UnsubAck,
    Disconnect(ReasonCode),
}

/// A received message.
#[derive(Clone, Debug)]
pub struct Came {
    pub topic: String,
    pub payload: Vec<u8>,
    pub qos: QoS,
    pub retain: bool,
    pub dup: bool,
    pub id: Option<u16>,
    pub identifiers: Vec<u32>,
    pub expiry_s: Option<u32>,
}

/// A message that the client holds. It outlives the connection.
#[derive(Clone, Copy, Debug)]
pub struct Held {
    pub serial: u64,
    pub qos: QoS,
    pub source: Source,
    pub is_received: bool,
}

impl Conn {
    pub fn new(
        wire: usize,
        version: ProtocolVersion,
        window: usize,
        maximum_packet_size: usize,
        alias_max: u16,
    ) -> Conn {
        Conn {
            wire,
            version,
            window,
            maximum_packet_size,
            alias_max,
            is_blocked: false,
            unread: Vec::new(),
            aliases: HashMap::new(),
            open: Vec::new(),
            answers: Vec::new(),
            said: Vec::new(),
        }
    }

    /// Returns a connection without limits.
    pub fn is_idle(&self) -> bool {
        !self.is_blocked && self.answers.is_empty()
    }

    /// Reads bytes and returns the messages in them.
    pub fn take(&mut self, bytes: &[u8]) -> Vec<Came> {
        self.unread.extend_from_slice(bytes);
        let whole = std::mem::take(&mut self.unread);
        let mut rest = &whole[..];
        let mut came = Vec::new();
        loop {
            match decode(rest, self.version, 1 << 24) {
                Ok(Decoded::Complete { packet, size }) => {
                    assert!(
                        size <= self.maximum_packet_size,
                        "[MQTT-3.1.2-24] {size} bytes of {}",
                        self.maximum_packet_size
                    );
                    came.extend(self.packet(&packet));
                    rest = &rest[size..];
                }
                Ok(Decoded::Incomplete { .. }) => break,
                Err(error) => panic!("the server sent a malformed packet: {error:?} in {rest:02x?}"),
            }
        }
        self.unread = rest.to_vec();
        came
    }

    fn packet(&mut self, packet: &Packet<'_>) -> Option<Came> {
        match packet {
            Packet::Publish(publish) => return Some(self.publish(publish)),
            Packet::PubRel(ack) => self.answer_later(PacketType::PubComp, ack.packet_id.get()),
            Packet::ConnAck(p) => self.said.push(Said::ConnAck {
                session_present: p.session_present,
                reason: p.reason,
            }),
            Packet::PubAck(ack) => self.said.push(Said::Ack(PacketType::PubAck, ack.packet_id.get())),
            Packet::PubRec(ack) => self.said.push(Said::Ack(PacketType::PubRec, ack.packet_id.get())),
            Packet::PubComp(ack) => self.said.push(Said::Ack(PacketType::PubComp, ack.packet_id.get())),
            Packet::SubAck(p) => self.said.push(Said::SubAck(p.reasons.to_vec())),
            Packet::UnsubAck(_) => self.said.push(Said::UnsubAck),
            Packet::Disconnect(p) => self.said.push(Said::Disconnect(p.reason)),
            other => panic!("a client must not receive {other:?}"),
        }
        None
    }

    fn publish(&mut self, publish: &Publish<'_>) -> Came {
        if let Some(alias) = publish.properties.topic_alias() {
            assert!(alias > 0 && alias <= self.alias_max, "[MQTT-3.1.2-26], [MQTT-3.1.2-27]");
            if !publish.topic.is_empty() {
                self.aliases.insert(alias, publish.topic.into());
            }
        }
        let topic = match publish.properties.topic_alias() {
            Some(alias) if publish.topic.is_empty() => self
                .aliases
                .get(&alias)
                .expect("the server has defined the topic alias")
                .clone(),
            _ => publish.topic.to_owned(),
        };
        let id = publish.packet_id.map(PacketId::get);
        assert_eq!(id.is_some(), publish.qos != QoS::AtMostOnce);
        if let Some(id) = id {
            if !self.open.contains(&id) {
                self.open.push(id);
            }
            assert!(
                self.open.len() <= self.window,
                "[MQTT-3.3.4-9] {} of {}",
                self.open.len(),
                self.window
            );
            let kind = if publish.qos == QoS::AtLeastOnce {
                PacketType::PubAck
            } else {
                PacketType::PubRec
            };
            self.answer_later(kind, id);
        }
        let identifiers = publish.properties.iter().filter_map(|p| match p {
            Property::SubscriptionIdentifier(id) => Some(id),
            _ => None,
        });
        let mut identifiers: Vec<u32> = identifiers.collect();
        identifiers.sort_unstable();
        Came {
            topic,
            payload: publish.payload.to_vec(),
            qos: publish.qos,
            retain: publish.retain,
            dup: publish.dup,
            id,
            identifiers,
            expiry_s: publish.properties.message_expiry_interval(),
        }
    }

    fn answer_later(&mut self, kind: PacketType, id: u16) {
        let answer = Answer { kind, id };
        if !self.answers.contains(&answer) {
            self.answers.push(answer);
        }
    }

    /// The exchange with this identifier is complete.
    pub fn completed(&mut self, id: u16) {
        self.open.retain(|open| *open != id);
    }
}
