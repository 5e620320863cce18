//! Numbers of the connections, sessions, share groups and delayed messages of a shard.
//!
//! A shard reuses its slots. A reference that may outlive its object therefore also has an epoch, or the number of the
//! connection.

use crate::id_table::raw_ids;

/// Number of a shard of the node, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ShardId(pub u16);

/// Slot of a network connection. The driver assigns dense numbers and reuses a slot only after `Shard::closed`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnSlot(pub u32);

/// Slot of a session in its shard. Dense and reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionSlot(pub u32);

/// A session of any shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionRef {
    pub shard: ShardId,
    pub session: SessionSlot,
    pub epoch: SessionEpoch,
}

/// Index of a share group in the shard that owns it. Dense and reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GroupIndex(pub u32);

/// Index of a delayed message in its shard. Dense and reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DelayedIndex(pub u32);

/// Distinguishes a connection from earlier ones in the same slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnEpoch(pub u32);

/// Distinguishes a session from earlier ones in the same slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionEpoch(pub u32);

/// Distinguishes a share group from earlier ones with the same index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GroupEpoch(pub u32);

/// Number of a session's connection, unique in the shard.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnectNumber(pub u32);

/// Number of a request to the authenticator, unique in the shard.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AuthAttempt(pub u32);

/// Number of a SUBSCRIBE or UNSUBSCRIBE whose answer waits for share groups, unique in the shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SubscribeTicket(pub u32);

/// Number of a request for retained messages, unique in the shard.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ReplayNumber(pub u32);

/// A request for retained messages of a session. Invalid once the session or the request has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplayId {
    pub session: SessionSlot,
    pub epoch: SessionEpoch,
    pub number: ReplayNumber,
}

raw_ids!(SessionSlot);

/// Assigns the epochs and numbers of a shard.
#[derive(Default)]
pub struct NumberSequence {
    last: u32,
}

impl NumberSequence {
    pub fn next(&mut self) -> u32 {
        self.last = self.last.wrapping_add(1);
        self.last
    }

    /// Returns the last assigned number; 0 if there is none.
    pub fn last(&self) -> u32 {
        self.last
    }
}

impl SubscribeTicket {
    /// No answer waits.
    pub const NONE: SubscribeTicket = SubscribeTicket(0);
}

impl ConnSlot {
    /// Not a connection.
    pub const NONE: ConnSlot = ConnSlot(u32::MAX);

    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl SessionSlot {
    /// Not a session.
    pub const NONE: SessionSlot = SessionSlot(u32::MAX);
    pub const FIRST: SessionSlot = SessionSlot(0);

    pub fn from_index(index: usize) -> SessionSlot {
        SessionSlot(index as u32)
    }

    pub fn index(self) -> usize {
        self.0 as usize
    }

    pub fn next(self) -> SessionSlot {
        SessionSlot(self.0 + 1)
    }

    /// Returns the slots from `self` to `end`, without `end`.
    pub fn until(self, end: SessionSlot) -> impl Iterator<Item = SessionSlot> + use<> {
        (self.0..end.0).map(SessionSlot)
    }
}

impl DelayedIndex {
    pub const FIRST: DelayedIndex = DelayedIndex(0);

    pub fn from_index(index: usize) -> DelayedIndex {
        DelayedIndex(index as u32)
    }

    pub fn index(self) -> usize {
        self.0 as usize
    }

    pub fn next(self) -> DelayedIndex {
        DelayedIndex(self.0 + 1)
    }
}

impl GroupIndex {
    pub const FIRST: GroupIndex = GroupIndex(0);

    pub fn index(self) -> usize {
        self.0 as usize
    }

    pub fn next(self) -> GroupIndex {
        GroupIndex(self.0 + 1)
    }
}
