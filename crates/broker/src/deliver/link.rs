//! The fields of a session that delivery reads first: half a cache line each, in one array.

use mqtt::{PacketType, QoS};

use crate::deliver::ShardCore;
use crate::slots::{ConnSlot, SessionSlot};

/// Hot fields of a session: half a cache line.
#[derive(Clone, Copy, Debug)]
pub struct SessionLink {
    /// Connection slot, or `ConnSlot::NONE`.
    pub conn: ConnSlot,
    /// The client's Maximum Packet Size.
    pub maximum_packet_size: u32,
    /// Set to the current route's stamp once the session has received the message.
    pub stamp: u32,
    pub is_v5: bool,
    /// New messages must be checked with `Session::can_receive`.
    pub is_filtered: bool,
    /// The access rules may have changed since the present messages were queued, so these must be checked as well.
    pub must_check_queue: bool,
    /// Live messages may have to wait for retained messages (`hold`).
    pub is_replaying: bool,
    /// The server may use topic aliases.
    pub uses_aliases: bool,
    /// Messages at QoS 1 and 2 are recorded in the journal.
    pub is_durable: bool,
    pub messages_sent: u64,
    pub bytes_sent: u64,
}

impl Default for SessionLink {
    fn default() -> Self {
        SessionLink {
            conn: ConnSlot::NONE,
            maximum_packet_size: u32::MAX,
            stamp: 0,
            is_v5: false,
            is_filtered: false,
            must_check_queue: false,
            is_replaying: false,
            uses_aliases: false,
            is_durable: false,
            messages_sent: 0,
            bytes_sent: 0,
        }
    }
}

impl ShardCore {
    /// Returns the fields for modification. Invalidates cached broadcasts.
    pub fn link_mut(&mut self, slot: SessionSlot) -> &mut SessionLink {
        self.invalidate_recipients();
        self.sessions.link_mut(slot)
    }

    #[inline]
    pub fn count_sent(&mut self, slot: SessionSlot, qos: QoS, packet_bytes: usize, payload_bytes: usize) {
        let link = self.sessions.link_mut(slot);
        link.messages_sent += 1;
        link.bytes_sent += packet_bytes as u64;
        self.stats.messages_sent[qos as usize] += 1;
        self.stats.packets_sent[PacketType::Publish as usize] += 1;
        self.stats.bytes_sent += packet_bytes as u64;
        self.stats.publish_bytes_sent += payload_bytes as u64;
    }

    #[inline]
    pub fn count_broadcast(&mut self, slot: SessionSlot, messages: u64, bytes: usize) {
        let link = self.sessions.link_mut(slot);
        link.messages_sent += messages;
        link.bytes_sent += bytes as u64;
    }
}
