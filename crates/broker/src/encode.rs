//! Encodes messages: once per wire form, and separately for connections that need their own form.

use std::sync::Arc;

use mqtt::{PacketId, Properties, ProtocolVersion, Publish, PublishExtras, QoS};

use crate::connection::KNOWN_ALIAS;
use crate::connections::Connections;
use crate::delivery::DeliveryOptions;
use crate::effect::{DropReason, Now};
use crate::message::{Message, Publication};
use crate::outbox::{Outbox, Range};
use crate::sessions::Sessions;
use crate::slots::{ConnSlot, SessionSlot};

/// At QoS 1 and 2, payloads up to this size are copied with their header for each subscriber; larger ones are
/// referenced.
const COPY_PAYLOAD_BYTES: usize = 512;

/// Encodings of one message made so far, and the message itself once it is stored.
#[derive(Default)]
pub struct EncodedForms {
    /// QoS 0, indexed by version class and retain flag.
    plain: [[Option<Range>; 2]; 2],
    /// QoS 1 and 2, indexed by version class, retain flag and QoS.
    templates: [[[Option<EncodedTemplate>; 2]; 2]; 2],
    /// The payload in the first form that was encoded for a single connection.
    payload: Option<Range>,
    message: Option<Arc<Message>>,
}

#[derive(Clone, Copy)]
pub struct EncodedTemplate {
    pub range: Range,
    pub id_offset: u32,
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

    /// Returns the encoding that all QoS 0 subscribers of one form share.
    pub fn plain(&mut self, outbox: &mut Outbox, now: Now, p: &Publication<'_>, is_v5: bool, retain: bool) -> Range {
        let known = &mut self.plain[usize::from(is_v5)][usize::from(retain)];
        *known.get_or_insert_with(|| outbox.encode_publish(now, p, PublishForm::qos0(is_v5, retain)).0)
    }

    /// Returns the encoding that is copied for the QoS 1 or 2 subscribers of one form, if there is one.
    #[inline]
    pub fn template_mut(&mut self, is_v5: bool, retain: bool, qos: QoS) -> &mut Option<EncodedTemplate> {
        &mut self.templates[usize::from(is_v5)][usize::from(retain)][qos as usize - 1]
    }

    /// Returns the message if it is stored.
    pub fn stored(&self) -> Option<&Arc<Message>> {
        self.message.as_ref()
    }

    pub fn message(&mut self, p: &Publication<'_>) -> Arc<Message> {
        self.message.get_or_insert_with(|| p.to_message()).clone()
    }
}

impl Outbox {
    /// Encodes a PUBLISH. Returns its range and the offset of the packet identifier.
    pub fn encode_publish(&mut self, now: Now, p: &Publication<'_>, form: PublishForm<'_>) -> (Range, u32) {
        let PublishForm {
            is_v5,
            qos,
            retain,
            dup,
            id,
            extras,
        } = form;
        let mark = self.mark();
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
        let id_offset = mqtt::encode_publish(&publish, extras, version, &mut self.arena);
        (self.range_from(mark), id_offset as u32)
    }

    /// Queues a packet that was encoded for this connection only and is the last of the arena. Connections share a
    /// large payload.
    pub fn push_single(&mut self, conn: ConnSlot, range: Range, payload_bytes: usize, forms: &mut EncodedForms) {
        if payload_bytes <= COPY_PAYLOAD_BYTES {
            return self.push(conn, range);
        }
        let header = Range {
            start: range.start,
            end: range.end - payload_bytes as u32,
        };
        let Some(payload) = forms.payload else {
            forms.payload = Some(Range {
                start: header.end,
                end: range.end,
            });
            return self.push(conn, range);
        };
        self.arena.truncate(header.end as usize);
        self.push(conn, header);
        self.push(conn, payload);
    }

    /// Queues a copy of an encoded PUBLISH with another packet identifier.
    pub fn push_copy(&mut self, conn: ConnSlot, template: EncodedTemplate, payload_bytes: usize, id: PacketId) {
        let mark = self.mark();
        let whole = template.range.start as usize..template.range.end as usize;
        let is_copied = payload_bytes <= COPY_PAYLOAD_BYTES;
        let copied = if is_copied {
            whole.clone()
        } else {
            whole.start..whole.end - payload_bytes
        };
        self.arena.extend_from_within(copied.clone());
        let at = mark + template.id_offset as usize;
        self.arena[at..at + 2].copy_from_slice(&id.get().to_be_bytes());
        let range = self.range_from(mark);
        self.push(conn, range);
        if !is_copied {
            self.push(
                conn,
                Range {
                    start: copied.end as u32,
                    end: whole.end as u32,
                },
            );
        }
    }
}

/// Encodes for one connection, with subscription identifiers, a topic alias, or a topic without its prefix.
pub struct SingleEncoder<'a> {
    pub now: Now,
    pub outbox: &'a mut Outbox,
    pub connections: &'a mut Connections,
    pub sessions: &'a Sessions,
}

impl SingleEncoder<'_> {
    /// Encodes a message for a connected session, at the end of the arena. Returns the reason if the client cannot
    /// receive it.
    #[inline]
    pub fn encode(
        self,
        slot: SessionSlot,
        p: &Publication<'_>,
        terms: DeliveryOptions<'_>,
        id: Option<PacketId>,
    ) -> Result<EncodedTemplate, DropReason> {
        let link = self.sessions.link(slot);
        let shown = self.sessions.shown(slot, p);
        let p = &*shown.ok_or(DropReason::NotAuthorizedToReceive)?;
        let topic_alias = if link.has_own_form() {
            self.connections.alias_for(link.conn, p.topic)
        } else {
            None
        };
        let identifiers = if link.is_v5() { terms.identifiers } else { &[] };
        let extras = PublishExtras {
            topic_alias,
            subscription_identifiers: identifiers,
            ..PublishExtras::default()
        };
        let form = PublishForm {
            is_v5: link.is_v5(),
            qos: terms.qos,
            retain: terms.retain,
            dup: false,
            id,
            extras,
        };
        let maximum = link.maximum_packet_size as usize;
        let (mut range, mut id_offset) = self.outbox.encode_publish(self.now, p, form);
        if range.len() > maximum
            && let Some(alias) = topic_alias
            && alias & KNOWN_ALIAS == 0
        {
            // With topic and alias the packet exceeds the client's maximum. It is sent without the alias.
            self.connections.forget_alias(link.conn, p.topic);
            self.outbox.arena.truncate(range.start as usize);
            let extras = PublishExtras {
                topic_alias: None,
                ..extras
            };
            let form = PublishForm { extras, ..form };
            (range, id_offset) = self.outbox.encode_publish(self.now, p, form);
        }
        if range.len() > maximum {
            self.outbox.arena.truncate(range.start as usize);
            return Err(DropReason::TooLargeForClient);
        }
        Ok(EncodedTemplate { range, id_offset })
    }
}
