//! The encodings of a message: one for each wire form, and one for each connection that needs a form of its own.

use std::sync::Arc;

use mqtt::{PacketId, Properties, ProtocolVersion, Publish, PublishExtras, QoS};

use crate::deliver::{Core, Link, Terms};
use crate::effect::{ConnSlot, Now};
use crate::message::{Message, Publication};
use crate::outbox::Range;

/// A topic this short is not worth the three bytes of an alias.
const ALIAS_TOPIC_BYTES_MIN: usize = 4;

/// Set on an alias that the client has been told already. The server hands out fewer aliases than this bit.
const KNOWN_ALIAS: u16 = 0x8000;

/// The encodings of one message made so far, and the message itself once someone had to keep it.
#[derive(Default)]
pub struct Forms {
    /// QoS 0, by version class and retain flag.
    plain: [[Option<Range>; 2]; 2],
    /// QoS 1 and 2 likewise.
    pub(super) templates: [[[Option<Template>; 2]; 2]; 2],
    /// The payload as it stands in the first form that one connection got for itself.
    pub(super) payload: Option<Range>,
    message: Option<Arc<Message>>,
}

#[derive(Clone, Copy)]
pub(super) struct Template {
    pub(super) range: Range,
    pub(super) id_offset: u32,
}

impl Forms {
    /// For a message that is kept already.
    pub fn of(message: Arc<Message>) -> Forms {
        Forms {
            message: Some(message),
            ..Forms::default()
        }
    }

    /// The message, if somebody keeps it.
    pub fn kept(&self) -> Option<&Arc<Message>> {
        self.message.as_ref()
    }

    pub fn message(&mut self, p: &Publication<'_>) -> Arc<Message> {
        self.message.get_or_insert_with(|| p.to_message()).clone()
    }
}

impl Core {
    /// The encoding that all subscribers of one form share.
    pub(super) fn plain_form(
        &mut self,
        now: Now,
        is_v5: bool,
        retain: bool,
        p: &Publication<'_>,
        forms: &mut Forms,
    ) -> Range {
        if let Some(range) = forms.plain[usize::from(is_v5)][usize::from(retain)] {
            return range;
        }
        let (range, _) = self.encode(
            now,
            is_v5,
            p,
            QoS::AtMostOnce,
            retain,
            false,
            None,
            PublishExtras::default(),
        );
        forms.plain[usize::from(is_v5)][usize::from(retain)] = Some(range);
        range
    }

    #[allow(clippy::too_many_arguments)]
    pub fn encode(
        &mut self,
        now: Now,
        is_v5: bool,
        p: &Publication<'_>,
        qos: QoS,
        retain: bool,
        dup: bool,
        id: Option<PacketId>,
        extras: PublishExtras<'_>,
    ) -> (Range, u32) {
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

    /// An encoding for one connection only: with subscription identifiers or a topic alias.
    pub(super) fn encode_for(
        &mut self,
        now: Now,
        link: Link,
        p: &Publication<'_>,
        terms: Terms<'_>,
        id: Option<PacketId>,
    ) -> (Range, u32) {
        let topic_alias = if link.uses_aliases {
            self.alias_for(ConnSlot(link.conn), p.topic)
        } else {
            None
        };
        let identifiers = if link.is_v5 { terms.identifiers } else { &[] };
        let extras = PublishExtras {
            topic_alias,
            subscription_identifiers: identifiers,
            ..PublishExtras::default()
        };
        let (range, at) = self.encode(now, link.is_v5, p, terms.qos, terms.retain, false, id, extras);
        if range.len() > link.maximum_packet_size as usize
            && let Some(alias) = topic_alias
            && alias & KNOWN_ALIAS == 0
        {
            // Topic and alias together are too much for the client: it goes without, and the client will not learn the alias.
            self.forget_alias(ConnSlot(link.conn), p.topic);
            self.outbox.arena.truncate(range.start as usize);
            return self.encode(
                now,
                link.is_v5,
                p,
                terms.qos,
                terms.retain,
                false,
                id,
                PublishExtras {
                    topic_alias: None,
                    ..extras
                },
            );
        }
        (range, at)
    }

    /// An alias for the topic; marked with `KNOWN_ALIAS` when the client knows it already [MQTT-3.3.2-9].
    fn alias_for(&mut self, conn: ConnSlot, topic: &str) -> Option<u16> {
        let aliases = self.connection_mut(conn)?.aliases.as_mut()?;
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
        if let Some(aliases) = self.connection_mut(conn).and_then(|c| c.aliases.as_mut()) {
            aliases.outgoing.remove(topic);
        }
    }
}
