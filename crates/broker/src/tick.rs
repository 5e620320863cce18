//! The context of a call in a tick: everything that a component needs besides its own state.
//!
//! `Shard` borrows its components apart from each other (`Shard::split`), and passes a `Tick` to the one that handles a
//! call. A component changes its own fields, and reaches everything else through the tick.

use crate::deliver::ShardCore;
use crate::effect::Now;
use crate::outgoing_mail::OutgoingMail;
use crate::slots::{NumberSequence, SessionRef, SessionSlot};

pub(crate) struct Tick<'a> {
    pub now: Now,
    /// Delivery to sessions, and the outputs of the tick: outbox, journal records, effects and counters.
    pub core: &'a mut ShardCore,
    /// For other shards.
    pub mail: &'a mut OutgoingMail,
    pub random: &'a mut RandomSequence,
    /// Numbers of connections, sessions and requests.
    pub numbers: &'a mut NumberSequence,
    /// A checkpoint is running. A message that changes its owner may be in the snapshot of neither.
    pub is_checkpointing: bool,
}

impl Tick<'_> {
    /// Returns the reference by which other shards know a session.
    pub fn session_ref(&self, slot: SessionSlot) -> SessionRef {
        SessionRef {
            shard: self.core.id,
            session: slot,
            epoch: self.core.sessions.at(slot).epoch,
        }
    }
}

/// The random choices of a shard (xorshift64*): sufficient for load distribution, and depends on the seed only.
pub(crate) struct RandomSequence(u64);

impl RandomSequence {
    pub fn new(seed: u64) -> RandomSequence {
        RandomSequence(seed | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }
}
