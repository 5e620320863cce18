//! One core's share of the broker.

use std::sync::Arc;

use crate::access::{Access, AuthOutcome};
use crate::effect::{CloseCause, ConnSlot, Effect, Now, Peer, Received, ShardId};
use crate::interest::Interest;
use crate::outbox::Outbox;

/// Messages for another shard, gathered over a tick. Opaque to the driver; `Send`.
pub struct Mail {
    pub(crate) bytes: Vec<u8>,
}

impl Mail {
    pub fn size_bytes(&self) -> usize {
        self.bytes.len()
    }
}

/// Limits and choices of the broker (`mqtt.*`, `retained.*` of the configuration).
#[derive(Clone, Debug)]
pub struct ShardConfig {}

pub struct Shard {
    outbox: Outbox,
}

impl Shard {
    /// `seed` feeds every random choice (assigned client ids, random share strategy).
    pub fn new(id: ShardId, shards: u16, config: Arc<ShardConfig>, access: Arc<dyn Access>, interest: Arc<Interest>, seed: u64) -> Shard {
        unimplemented!()
    }

    /// The shard that owns a client's session. The driver moves a connection there once it has read the CONNECT. `None` for an
    /// empty client id: it may stay where it is.
    pub fn home(client_id: &str, shards: u16) -> Option<ShardId> {
        unimplemented!()
    }

    pub fn open(&mut self, now: Now, conn: ConnSlot, peer: Peer) {}

    /// Takes bytes of a connection, from its first CONNECT on. Handles as many whole packets as it can.
    pub fn receive(&mut self, now: Now, conn: ConnSlot, bytes: &[u8]) -> Received {
        unimplemented!()
    }

    /// The socket is gone; the slot may be reused afterwards.
    pub fn closed(&mut self, now: Now, conn: ConnSlot, cause: CloseCause) {}

    /// The socket took all of the backlog: queued messages may follow.
    pub fn drained(&mut self, now: Now, conn: ConnSlot) {}

    pub fn authenticated(&mut self, now: Now, conn: ConnSlot, attempt: u32, outcome: AuthOutcome) {}

    pub fn mail(&mut self, now: Now, from: ShardId, mail: Mail) {}

    /// What has to go to another shard, if anything.
    pub fn take_mail(&mut self, to: ShardId) -> Option<Mail> {
        None
    }

    /// Runs timers that are due.
    pub fn run_timers(&mut self, now: Now) {}

    pub fn next_deadline(&self) -> Option<u64> {
        None
    }

    pub fn outbox(&mut self) -> &mut Outbox {
        &mut self.outbox
    }

    /// Moves out what the driver has to do.
    pub fn take_effects(&mut self, into: &mut Vec<Effect>) {}

    /// Graceful end: DISCONNECT 0x8B to everyone, in batches of `limit`; false when none is left.
    pub fn shut_down(&mut self, now: Now, limit: usize) -> bool {
        false
    }

    /// Access rules changed: every session is looked at again.
    pub fn access_changed(&mut self, now: Now) {}
}
