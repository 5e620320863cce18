//! What delivery looks at first of a session: half a cache line each, side by side.

use mqtt::{PacketType, QoS};

use crate::deliver::Core;

pub const NO_CONN: u32 = u32::MAX;

/// The hot part of a session: half a cache line.
#[derive(Clone, Copy, Debug)]
pub struct Link {
    /// Connection slot, or `NO_CONN`.
    pub conn: u32,
    /// The client's Maximum Packet Size.
    pub maximum_packet_size: u32,
    /// Marks sessions already met while one message is routed.
    pub stamp: u32,
    pub is_v5: bool,
    /// Some deliveries must be checked with `may_receive`.
    pub is_filtered: bool,
    /// Some deliveries must wait for retained messages (`hold`).
    pub is_replaying: bool,
    /// The server may use topic aliases.
    pub uses_aliases: bool,
    /// What it is sent at QoS 1 and 2 is recorded in the journal.
    pub is_durable: bool,
    pub messages_sent: u64,
    pub bytes_sent: u64,
}

impl Default for Link {
    fn default() -> Self {
        Link {
            conn: NO_CONN,
            maximum_packet_size: u32::MAX,
            stamp: 0,
            is_v5: false,
            is_filtered: false,
            is_replaying: false,
            uses_aliases: false,
            is_durable: false,
            messages_sent: 0,
            bytes_sent: 0,
        }
    }
}

impl Core {
    #[inline]
    pub fn link(&self, slot: u32) -> Link {
        self.links[slot as usize]
    }

    /// To change what delivery depends on.
    pub fn link_mut(&mut self, slot: u32) -> &mut Link {
        self.forget_audience();
        &mut self.links[slot as usize]
    }

    #[inline]
    pub fn stamp_mut(&mut self, slot: u32) -> &mut u32 {
        &mut self.links[slot as usize].stamp
    }

    /// Room for one more session; its slot.
    pub fn add_session_slot(&mut self) -> u32 {
        self.sessions.push(None);
        self.links.push(Link::default());
        self.sessions.len() as u32 - 1
    }

    #[inline]
    pub fn count_sent(&mut self, slot: u32, qos: QoS, packet_bytes: usize, payload_bytes: usize) {
        let link = &mut self.links[slot as usize];
        link.messages_sent += 1;
        link.bytes_sent += packet_bytes as u64;
        self.stats.messages_sent[qos as usize] += 1;
        self.stats.packets_sent[PacketType::Publish as usize] += 1;
        self.stats.bytes_sent += packet_bytes as u64;
        self.stats.publish_bytes_sent += payload_bytes as u64;
    }

    #[inline]
    pub fn count_broadcast(&mut self, slot: u32, messages: u64, bytes: usize) {
        let link = &mut self.links[slot as usize];
        link.messages_sent += messages;
        link.bytes_sent += bytes as u64;
    }
}
