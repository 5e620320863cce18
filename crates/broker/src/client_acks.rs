//! PUBACK, PUBREC, PUBREL and PUBCOMP from clients.

use mqtt::{Ack, Packet, PacketType, ReasonCode};

use crate::delivery::Delivery;
use crate::durable::record_fields::PendingCommits;
use crate::outgoing::AckResult;
use crate::retained_messages::RetainedMessages;
use crate::shared::ShareGroups;
use crate::slots::{ConnSlot, SessionSlot};
use crate::tick::Tick;

/// Handles the acknowledgements of one client.
pub(crate) struct ClientAcks<'a> {
    pub tick: Tick<'a>,
    pub groups: &'a mut ShareGroups,
    pub retained: &'a mut RetainedMessages,
    pub conn: ConnSlot,
    pub slot: SessionSlot,
}

impl ClientAcks<'_> {
    /// Handles an acknowledgement; ignores other packets.
    #[inline]
    pub fn received(mut self, packet: &Packet<'_>) {
        match packet {
            Packet::PubAck(ack) => self.puback(ack),
            Packet::PubRec(ack) => self.pubrec(ack),
            Packet::PubRel(ack) => self.pubrel(ack),
            Packet::PubComp(ack) => self.pubcomp(ack),
            _ => {}
        }
    }

    fn puback(&mut self, ack: &Ack<'_>) {
        self.count(PacketType::PubAck);
        let out = &mut self.tick.core.sessions.at_mut(self.slot).outgoing;
        let seq = out.seq_of(ack.packet_id);
        let result = out.puback(ack.packet_id);
        self.report(&result, ack);
        self.finished(seq, result);
    }

    fn pubrec(&mut self, ack: &Ack<'_>) {
        self.count(PacketType::PubRec);
        let core = &mut *self.tick.core;
        let out = &mut core.sessions.at_mut(self.slot).outgoing;
        let seq = out.seq_of(ack.packet_id);
        if ack.reason.is_error() {
            let result = out.pubrec_failed(ack.packet_id);
            self.report(&result, ack);
            return self.finished(seq, result);
        }
        let (result, delivery) = out.pubrec(ack.packet_id);
        let reason = match result {
            AckResult::Release => ReasonCode::Success,
            _ => ReasonCode::PacketIdentifierNotFound,
        };
        if let Some(delivery) = delivery {
            core.ledger.record_acknowledged(&core.sessions, self.slot, seq, true);
            let session = core.sessions.at(self.slot);
            core.taps
                .acked(self.tick.now, session, &delivery, ack.properties.as_bytes());
            self.inform_group(&delivery);
        }
        // The client forgets the identifier on PUBREL, so the journal must have committed PUBREC by then.
        let is_durable = self.tick.core.sessions.link(self.slot).is_durable();
        let commits = PendingCommits::for_journal(reason == ReasonCode::Success && is_durable);
        // An unknown identifier is answered as well, so that the client can release it [MQTT-4.3.3-4].
        self.answer(PacketType::PubRel, ack, reason, commits);
    }

    fn pubrel(&mut self, ack: &Ack<'_>) {
        self.count(PacketType::PubRel);
        let core = &mut *self.tick.core;
        let was_open = core.sessions.at_mut(self.slot).received.remove(ack.packet_id.get());
        if let Some(connection) = core.connections.get_mut(self.conn).filter(|_| was_open) {
            connection.open_exactly_once = connection.open_exactly_once.saturating_sub(1);
        }
        let reason = if was_open {
            ReasonCode::Success
        } else {
            ReasonCode::PacketIdentifierNotFound
        };
        // The client may reuse the identifier after PUBCOMP.
        let session = core.sessions.at(self.slot);
        let is_recorded = was_open && core.ledger.record_packet_id_freed(session, ack.packet_id.get());
        // [MQTT-4.3.3-11]
        self.answer(
            PacketType::PubComp,
            ack,
            reason,
            PendingCommits::for_journal(is_recorded),
        );
    }

    fn pubcomp(&mut self, ack: &Ack<'_>) {
        self.count(PacketType::PubComp);
        let out = &mut self.tick.core.sessions.at_mut(self.slot).outgoing;
        let seq = out.seq_of(ack.packet_id);
        let result = out.pubcomp(ack.packet_id);
        self.finished(seq, result);
    }

    fn count(&mut self, packet: PacketType) {
        self.tick.core.stats.packets_received[packet as usize] += 1;
    }

    fn answer(&mut self, kind: PacketType, ack: &Ack<'_>, reason: ReasonCode, commits: PendingCommits) {
        self.tick
            .core
            .acknowledge(self.conn, kind, ack.packet_id, reason, commits);
    }

    /// Reports a completed exchange to the tap and the inbox.
    fn report(&mut self, result: &AckResult, ack: &Ack<'_>) {
        if let AckResult::Done(Some(delivery)) = result {
            let core = &mut *self.tick.core;
            let session = core.sessions.at(self.slot);
            core.taps
                .acked(self.tick.now, session, delivery, ack.properties.as_bytes());
            core.taps.inbox_acked(session, delivery);
        }
    }

    /// Records a completed exchange, and continues with the queue of the session.
    fn finished(&mut self, seq: u64, result: AckResult) {
        let AckResult::Done(delivery) = result else { return };
        let core = &mut *self.tick.core;
        core.ledger.record_acknowledged(&core.sessions, self.slot, seq, false);
        core.stats.inflight_messages -= 1;
        core.stats.messages_acknowledged += 1;
        if let Some(delivery) = delivery {
            self.inform_group(&delivery);
        }
        self.retained.pump(&mut self.tick, self.slot);
    }

    /// Informs the group of a message that its member has received it.
    fn inform_group(&mut self, delivery: &Delivery) {
        let Some(group) = delivery.tag.group() else { return };
        let core = &mut *self.tick.core;
        let link = core.sessions.link(self.slot);
        if core.ledger.group_retains(link, delivery.qos, group.key) {
            core.ledger.record_group_dropped(group.key, delivery.message.place());
        }
        self.groups.member_acknowledged(&mut self.tick, self.slot, group);
    }
}
