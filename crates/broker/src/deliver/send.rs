//! Queues encoded packets for connections.

use mqtt::{Ack, Packet, PacketId, PacketType, Properties, Property, PropertyWriter, ProtocolVersion, QoS, ReasonCode};

use crate::deliver::{DeliverResult, OutgoingPublish, ShardCore};
use crate::delivery::{Delivery, DeliveryOptions, DeliveryTag};
use crate::durable::pending_records::CommitAction;
use crate::effect::{DropReason, Now};
use crate::encode::{EncodedForms, EncodedTemplate, SingleEncoder};
use crate::message::Publication;
use crate::outbox::Range;
use crate::outgoing::packet_id;
use crate::receipt_actions::PendingAck;
use crate::slots::{ConnSlot, SessionSlot};
use crate::tap::TapEventMask;

impl ShardCore {
    /// Queues a range of the arena for a connection, after all earlier output.
    #[inline]
    pub fn push(&mut self, conn: ConnSlot, range: Range) {
        self.end_broadcast_run();
        self.outbox.push(conn, range);
    }

    pub(super) fn send_qos0(
        &mut self,
        now: Now,
        slot: SessionSlot,
        p: &Publication<'_>,
        terms: DeliveryOptions<'_>,
        forms: &mut EncodedForms,
    ) -> DeliverResult {
        let link = self.sessions.link(slot);
        let conn = link.conn;
        let is_shared_form = terms.identifiers.is_empty() && !link.has_own_form();
        let encoded = if is_shared_form {
            let range = forms.plain(&mut self.outbox, now, p, link.is_v5(), terms.retain);
            match range.len() > link.maximum_packet_size as usize {
                true => Err(DropReason::TooLargeForClient),
                false => Ok(range),
            }
        } else {
            let encoded = SingleEncoder::of(self, now).encode(slot, p, terms, None);
            encoded.map(|encoded| encoded.range)
        };
        let range = match encoded {
            Ok(range) => range,
            Err(reason) => return self.drop_for(now, slot, reason, Some(&terms.applied_to(p))),
        };
        if is_shared_form {
            self.push(conn, range);
        } else {
            self.end_broadcast_run();
            self.outbox.push_single(conn, range, p.payload.len(), forms);
        }
        self.count_sent(slot, QoS::AtMostOnce, range.len(), p.payload.len());
        let terms = DeliveryOptions {
            qos: QoS::AtMostOnce,
            ..terms
        };
        if self.taps.wants(TapEventMask::DELIVERED) {
            self.taps.delivered(now, self.sessions.at(slot), p, terms);
        }
        DeliverResult::Sent
    }

    /// Sends a QoS 1 or 2 message for the first time.
    pub(super) fn send_new(
        &mut self,
        now: Now,
        slot: SessionSlot,
        outgoing: OutgoingPublish<'_>,
        forms: &mut EncodedForms,
    ) -> DeliverResult {
        let OutgoingPublish { p, terms, seq } = outgoing;
        let link = self.sessions.link(slot);
        let id = packet_id(seq);
        let conn = link.conn;
        let is_shared_form = terms.identifiers.is_empty() && !link.has_own_form();
        let template = forms.template_mut(link.is_v5(), terms.retain, terms.qos);
        let size = match (*template, is_shared_form) {
            (Some(have), true) => {
                if have.range.len() > link.maximum_packet_size as usize {
                    return self.drop_for(now, slot, DropReason::TooLargeForClient, Some(&terms.applied_to(p)));
                }
                self.end_broadcast_run();
                self.outbox.push_copy(conn, have, p.payload.len(), id);
                have.range.len()
            }
            _ => {
                let EncodedTemplate { range, id_offset } =
                    match SingleEncoder::of(self, now).encode(slot, p, terms, Some(id)) {
                        Ok(encoded) => encoded,
                        Err(reason) => return self.drop_for(now, slot, reason, Some(&terms.applied_to(p))),
                    };
                if is_shared_form {
                    *template = Some(EncodedTemplate { range, id_offset });
                    self.push(conn, range);
                } else {
                    self.end_broadcast_run();
                    self.outbox.push_single(conn, range, p.payload.len(), forms);
                }
                range.len()
            }
        };
        let delivery = Delivery {
            message: forms.message(p),
            qos: terms.qos,
            retain: terms.retain,
            seq,
            tag: DeliveryTag::new(terms.identifiers, terms.group),
        };
        self.count_sent(slot, terms.qos, size, p.payload.len());
        self.stats.inflight_messages += 1;
        self.taps.started(now, self.sessions.at(slot), &delivery);
        self.sessions.at_mut(slot).outgoing.start(delivery);
        DeliverResult::Sent
    }

    /// Sends a QoS 1 or 2 message from the queue of a session for the first time.
    pub(super) fn start_queued(&mut self, now: Now, slot: SessionSlot, delivery: Delivery) -> DeliverResult {
        let conn = self.sessions.link(slot).conn;
        let p = delivery.message.publication();
        let id = packet_id(delivery.seq);
        match SingleEncoder::of(self, now).encode(slot, &p, delivery.options(), Some(id)) {
            Err(reason) => self.drop_for(now, slot, reason, Some(&delivery.publication())),
            Ok(EncodedTemplate { range, .. }) => {
                self.push(conn, range);
                self.count_sent(slot, delivery.qos, range.len(), p.payload.len());
                self.stats.inflight_messages += 1;
                self.taps.started(now, self.sessions.at(slot), &delivery);
                self.sessions.at_mut(slot).outgoing.start(delivery);
                DeliverResult::Sent
            }
        }
    }

    /// Queues a packet for a connection. Returns false, without sending it, if it exceeds the client's Maximum Packet
    /// Size [MQTT-3.1.2-24].
    pub fn send(&mut self, conn: ConnSlot, packet: &Packet<'_>) -> bool {
        let Some(connection) = self.connections.get(conn) else {
            return true;
        };
        let (version, room) = (connection.version, connection.maximum_packet_size as usize);
        let mark = self.outbox.mark();
        packet.encode(version, &mut self.outbox.arena);
        let range = self.outbox.range_from(mark);
        if range.len() > room {
            self.outbox.arena.truncate(mark);
            return false;
        }
        self.push(conn, range);
        self.stats.packets_sent[packet.packet_type() as usize] += 1;
        self.stats.bytes_sent += range.len() as u64;
        true
    }

    /// Queues an acknowledgement of four bytes, which is the same in all versions.
    #[inline]
    pub fn send_ack(&mut self, conn: ConnSlot, kind: PacketType, id: PacketId) {
        let mark = self.outbox.mark();
        mqtt::encode_bare_ack(kind, id, &mut self.outbox.arena);
        let range = self.outbox.range_from(mark);
        self.push(conn, range);
        self.stats.packets_sent[kind as usize] += 1;
        self.stats.bytes_sent += 4;
    }

    /// Sends an acknowledgement. Success takes four bytes in every version. A failure has a reason code in MQTT 5;
    /// before that it looks like success [MQTT-3.3.5-2].
    pub fn send_acknowledgement(&mut self, ack: PendingAck) {
        let PendingAck {
            conn, kind, id, reason, ..
        } = ack;
        let Some(connection) = self.connections.get_mut(conn) else {
            return;
        };
        if reason == ReasonCode::Success || connection.version != ProtocolVersion::V5 {
            return self.send_ack(conn, kind, id);
        }
        let slot = connection.session;
        let wants_text = self.sessions.get(slot).is_some_and(|s| s.wants_problem_information);
        let mut bytes = Vec::new();
        if wants_text && reason.is_error() && self.sessions.link(slot).maximum_packet_size > 256 {
            PropertyWriter::new(&mut bytes).put(Property::ReasonString(reason.name()));
        }
        let ack = Ack {
            packet_id: id,
            reason,
            properties: Properties::from_validated(&bytes),
        };
        let packet = match kind {
            PacketType::PubAck => Packet::PubAck(ack),
            PacketType::PubRec => Packet::PubRec(ack),
            PacketType::PubRel => Packet::PubRel(ack),
            _ => Packet::PubComp(ack),
        };
        self.send(conn, &packet);
    }

    /// Holds back all further output of a connection until the records written so far are committed.
    pub fn hold_until_committed(&mut self, conn: ConnSlot) {
        let Some(epoch) = self.connections.get_mut(conn).map(|c| c.epoch) else {
            return;
        };
        if let Some(ledger) = self.ledger.records_mut()
            && ledger.has_uncommitted()
        {
            self.outbox.hold(conn);
            ledger.wait(CommitAction::Release { conn, epoch });
        }
    }
}

impl<'a> SingleEncoder<'a> {
    fn of(core: &'a mut ShardCore, now: Now) -> SingleEncoder<'a> {
        SingleEncoder {
            now,
            outbox: &mut core.outbox,
            connections: &mut core.connections,
            sessions: &core.sessions,
        }
    }
}
