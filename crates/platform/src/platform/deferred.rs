//! Deferred work of chains, done after the current message. Bounded in messages and bytes, and shared by the tenants.

use std::collections::VecDeque;

use timeseries::LogPosition;

use super::ChainEvent;
use super::budget::MessageBudget;
use crate::chain::Continuation;
use crate::ids::TenantId;
use crate::shares::{TenantLoad, TenantShares};

/// Largest size of all deferred work.
const BYTES_MAX: usize = 64 << 20;

/// Deferred work and its cause.
pub(super) struct DeferredWork {
    pub work: Deferred,
    pub tenant: TenantId,
    pub bytes: usize,
    /// Number of deferrals that led to this work.
    pub depth: usize,
    /// The budget of the originating message.
    pub budget: MessageBudget,
    /// The position of the originating message, if it came from the log.
    pub at: Option<LogPosition>,
}

pub(super) enum Deferred {
    /// Continues after a checkpoint node, in the named queue.
    Checkpoint(Box<str>, Continuation),
    /// An alarm event caused by a node.
    Event(ChainEvent),
}

pub(super) struct DeferredQueue {
    queue: VecDeque<DeferredWork>,
    shares: TenantShares,
}

impl Default for DeferredQueue {
    fn default() -> DeferredQueue {
        DeferredQueue::new(0)
    }
}

impl DeferredQueue {
    pub fn new(most: usize) -> DeferredQueue {
        DeferredQueue {
            queue: VecDeque::new(),
            shares: TenantShares::new(TenantLoad {
                count: most,
                bytes: BYTES_MAX,
            }),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// A tenant without deferred work may always add one item, whatever its size.
    pub fn has_capacity(&self, tenant: TenantId, bytes: usize) -> bool {
        self.shares.uses_nothing(tenant) || self.shares.has_capacity(tenant, bytes)
    }

    pub fn push(&mut self, queued: DeferredWork) {
        self.shares.add(queued.tenant, queued.bytes);
        self.queue.push_back(queued);
    }

    pub fn pop(&mut self) -> Option<DeferredWork> {
        let queued = self.queue.pop_front()?;
        self.shares.remove(queued.tenant, queued.bytes);
        Some(queued)
    }
}

impl Deferred {
    /// Approximate size in memory.
    pub fn weight(&self) -> usize {
        match self {
            Deferred::Checkpoint(_, then) => then.message.weight(),
            Deferred::Event(event) => crate::chain::json_weight(&event.data),
        }
    }
}
