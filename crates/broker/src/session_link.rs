//! The fields of a session that delivery reads first: half a cache line each, in one array.

use crate::slots::ConnSlot;

/// Hot fields of a session. Aligned, so that reading one link never costs two cache lines.
#[derive(Clone, Copy, Debug)]
#[repr(align(32))]
pub struct SessionLink {
    /// Connection slot, or `ConnSlot::NONE`.
    pub conn: ConnSlot,
    /// The client's Maximum Packet Size.
    pub maximum_packet_size: u32,
    /// Set to the current route's stamp once the session has received the message.
    pub stamp: u32,
    /// Bits of `LinkFlag`.
    flags: u32,
    pub messages_sent: u64,
    pub bytes_sent: u64,
}

const _: () = assert!(size_of::<SessionLink>() == 32);

#[derive(Clone, Copy, Debug)]
#[repr(u32)]
pub enum LinkFlag {
    V5 = 1,
    /// New messages must be checked with `Session::can_receive`.
    Filtered = 1 << 1,
    /// The access rules may have changed since the present messages were queued, so these must be checked as well.
    MustCheckQueue = 1 << 2,
    /// Live messages may have to wait for retained messages (`hold_for_replay`).
    Replaying = 1 << 3,
    /// PUBLISH packets are encoded for this session alone: it has topic aliases or a mountpoint.
    OwnForm = 1 << 4,
    /// Messages at QoS 1 and 2 are recorded in the journal.
    Durable = 1 << 5,
}

impl Default for SessionLink {
    fn default() -> Self {
        SessionLink {
            conn: ConnSlot::NONE,
            maximum_packet_size: u32::MAX,
            stamp: 0,
            flags: 0,
            messages_sent: 0,
            bytes_sent: 0,
        }
    }
}

impl SessionLink {
    #[inline]
    fn has(&self, flag: LinkFlag) -> bool {
        self.flags & flag as u32 != 0
    }

    pub fn set(&mut self, flag: LinkFlag, is_set: bool) {
        match is_set {
            true => self.flags |= flag as u32,
            false => self.flags &= !(flag as u32),
        }
    }

    #[inline]
    pub fn is_v5(&self) -> bool {
        self.has(LinkFlag::V5)
    }

    #[inline]
    pub fn is_filtered(&self) -> bool {
        self.has(LinkFlag::Filtered)
    }

    #[inline]
    pub fn must_check_queue(&self) -> bool {
        self.has(LinkFlag::MustCheckQueue)
    }

    #[inline]
    pub fn is_replaying(&self) -> bool {
        self.has(LinkFlag::Replaying)
    }

    #[inline]
    pub fn has_own_form(&self) -> bool {
        self.has(LinkFlag::OwnForm)
    }

    #[inline]
    pub fn is_durable(&self) -> bool {
        self.has(LinkFlag::Durable)
    }
}
