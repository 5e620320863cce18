//! Encodes messages: once per wire form, and separately for connections that need their own form.

use std::sync::Arc;

use mqtt::{PacketId, Properties, ProtocolVersion, Publish, PublishExtras, QoS};

use crate::deliver::ShardCore;
use crate::delivery::DeliveryOptions;
use crate::effect::Now;
use crate::message::{Message, Publication};
use crate::outbox::Range;
use crate::session_link::SessionLink;
use crate::slots::ConnSlot;

/// Shorter topics do not get an alias, because the alias itself takes three bytes.
const ALIAS_TOPIC_BYTES_MIN: usize = 4;

/// Marks an alias that the client already knows. The server assigns fewer aliases than this bit.
const KNOWN_ALIAS: u16 = 0x8000;

/// Encodings of one message made so far, and the message itself once it is stored.
#[derive(Default)]
pub struct EncodedForms {
    /// QoS 0, indexed by version class and retain flag.
    plain: [[Option<Range>; 2]; 2],
    /// QoS 1 and 2, indexed by version class, retain flag and QoS.
    pub(super) templates: [[[Option<EncodedTemplate>; 2]; 2]; 2],
    /// The payload in the first form that was encoded for a single connection.
    pub(super) payload: Option<Range>,
    message: Option<Arc<Message>>,
}

#[derive(Clone, Copy)]
pub(super) struct EncodedTemplate {
    pub(super) range: Range,
    pub(super) id_offset: u32,
}

/// Fields of a PUBLISH that depend on its receiver.
#[derive(Clone, Copy)]
pub struct PublishForm<'a> {
    pub is_v5: bool,
    pub qos: QoS,
    pub retain: bool,
    pub dup: bool,
    pub id: Option<PacketId>,
    pub extras: PublishExtras<'a>,
}

impl PublishForm<'_> {
    /// Returns the form that all QoS 0 subscribers of a protocol class share.
    pub fn qos0(is_v5: bool, retain: bool) -> Self {
        PublishForm {
            is_v5,
            qos: QoS::AtMostOnce,
            retain,
            dup: false,
            id: None,
            extras: PublishExtras::default(),
        }
    }
}

impl EncodedForms {
    /// Creates the forms of a stored message.
    pub fn of(message: Arc<Message>) -> EncodedForms {
        EncodedForms {
            message: Some(message),
            ..EncodedForms::default()
        }
    }

    /// Returns the message if it is stored.
    pub fn stored(&self) -> Option<&Arc<Message>> {
        self.message.as_ref()
    }

    pub fn message(&mut self, p: &Publication<'_>) -> Arc<Message> {
        self.message.get_or_insert_with(|| p.to_message()).clone()
    }
}

impl ShardCore {
    /// Returns the encoding that all subscribers of one form share.
    pub(super) fn plain_form(
        &mut self,
        now: Now,
        is_v5: bool,
        retain: bool,
        p: &Publication<'_>,
        forms: &mut EncodedForms,
    ) -> Range {
        if let Some(range) = forms.plain[usize::from(is_v5)][usize::from(retain)] {
            return range;
        }
        let (range, _) = self.encode(now, p, PublishForm::qos0(is_v5, retain));
        forms.plain[usize::from(is_v5)][usize::from(retain)] = Some(range);
        range
    }

    /// Encodes a PUBLISH. Returns its range and the offset of the packet identifier.
    pub fn encode(&mut self, now: Now, p: &Publication<'_>, form: PublishForm<'_>) -> (Range, u32) {
        let PublishForm {
            is_v5,
            qos,
            retain,
            dup,
            id,
            extras,
        } = form;
        let mark = self.outbox.mark();
        let topic = if extras.topic_alias.is_some_and(|alias| alias & KNOWN_ALIAS != 0) {
            ""
        } else {
            p.topic
        };
        let publish = Publish {
            dup,
            qos,
            retain,
            topic,
            packet_id: id,
            properties: Properties::from_validated(p.properties),
            payload: p.payload,
        };
        let extras = PublishExtras {
            message_expiry_interval: p.remaining_expiry_s(now),
            topic_alias: extras.topic_alias.map(|alias| alias & !KNOWN_ALIAS),
            ..extras
        };
        let version = if is_v5 {
            ProtocolVersion::V5
        } else {
            ProtocolVersion::V3_1_1
        };
        let id_offset = mqtt::encode_publish(&publish, extras, version, &mut self.outbox.arena);
        (self.outbox.range_from(mark), id_offset as u32)
    }

    /// Encodes for one connection, with subscription identifiers or a topic alias.
    pub(super) fn encode_for(
        &mut self,
        now: Now,
        link: SessionLink,
        p: &Publication<'_>,
        terms: DeliveryOptions<'_>,
        id: Option<PacketId>,
    ) -> (Range, u32) {
        let topic_alias = if link.uses_aliases {
            self.alias_for(link.conn, p.topic)
        } else {
            None
        };
        let identifiers = if link.is_v5 { terms.identifiers } else { &[] };
        let extras = PublishExtras {
            topic_alias,
            subscription_identifiers: identifiers,
            ..PublishExtras::default()
        };
        let form = PublishForm {
            is_v5: link.is_v5,
            qos: terms.qos,
            retain: terms.retain,
            dup: false,
            id,
            extras,
        };
        let (range, at) = self.encode(now, p, form);
        if range.len() > link.maximum_packet_size as usize
            && let Some(alias) = topic_alias
            && alias & KNOWN_ALIAS == 0
        {
            // With topic and alias the packet exceeds the client's maximum. It is sent without the alias.
            self.forget_alias(link.conn, p.topic);
            self.outbox.arena.truncate(range.start as usize);
            let extras = PublishExtras {
                topic_alias: None,
                ..extras
            };
            return self.encode(now, p, PublishForm { extras, ..form });
        }
        (range, at)
    }

    /// Returns an alias for the topic, marked with `KNOWN_ALIAS` if the client knows it already [MQTT-3.3.2-9].
    fn alias_for(&mut self, conn: ConnSlot, topic: &str) -> Option<u16> {
        let aliases = self.connections.get_mut(conn)?.aliases.as_mut()?;
        if let Some(alias) = aliases.outgoing.get(topic) {
            return Some(alias | KNOWN_ALIAS);
        }
        let next = aliases.outgoing.len() as u16 + 1;
        if next > aliases.outgoing_max || topic.len() < ALIAS_TOPIC_BYTES_MIN {
            return None;
        }
        aliases.outgoing.insert(topic.into(), next);
        Some(next)
    }

    fn forget_alias(&mut self, conn: ConnSlot, topic: &str) {
        if let Some(aliases) = self.connections.get_mut(conn).and_then(|c| c.aliases.as_mut()) {
            aliases.outgoing.remove(topic);
        }
    }
}
