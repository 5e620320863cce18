//! The fields of a session that delivery reads first: half a cache line each, in one array.

use crate::slots::ConnSlot;

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
    /// Live messages may have to wait for retained messages (`hold_for_replay`).
    pub is_replaying: bool,
    /// PUBLISH packets are encoded for this session alone: it has topic aliases or a mountpoint.
    pub has_own_form: bool,
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
            has_own_form: false,
            is_durable: false,
            messages_sent: 0,
            bytes_sent: 0,
        }
    }
}
