//! What chains have put aside: it is done when what is at hand is done. Bounded, in messages and bytes; a tenant has its part of that.

use std::collections::VecDeque;

use timeseries::Position;

use super::News;
use super::budget::Budget;
use crate::chain::Continuation;
use crate::ids::TenantId;
use crate::shares::{Load, Shares};

/// Of all that is put aside.
const BYTES_MAX: usize = 64 << 20;

/// What is done after the message that brought it about.
pub(super) struct Queued {
    pub what: Aside,
    pub tenant: TenantId,
    pub bytes: usize,
    /// How often what it comes of was put aside.
    pub depth: usize,
    /// Of the message that all of it comes of.
    pub budget: Budget,
    /// That message, if it is one of the log.
    pub at: Option<Position>,
}

pub(super) enum Aside {
    /// Goes on behind a checkpoint, in the queue of this name.
    Behind(Box<str>, Continuation),
    /// What a node did to an alarm.
    News(News),
}

pub(super) struct AsideQueue {
    queue: VecDeque<Queued>,
    shares: Shares,
}

impl Default for AsideQueue {
    fn default() -> AsideQueue {
        AsideQueue::new(0)
    }
}

impl AsideQueue {
    pub fn new(most: usize) -> AsideQueue {
        AsideQueue {
            queue: VecDeque::new(),
            shares: Shares::new(Load {
                count: most,
                bytes: BYTES_MAX,
            }),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// However large it is, a tenant that has nothing there may put one there.
    pub fn has_room(&self, tenant: TenantId, bytes: usize) -> bool {
        self.shares.is_first(tenant) || self.shares.has_room(tenant, bytes)
    }

    pub fn push(&mut self, queued: Queued) {
        self.shares.add(queued.tenant, queued.bytes);
        self.queue.push_back(queued);
    }

    pub fn pop(&mut self) -> Option<Queued> {
        let queued = self.queue.pop_front()?;
        self.shares.remove(queued.tenant, queued.bytes);
        Some(queued)
    }
}

impl Aside {
    /// In memory, about.
    pub fn weight(&self) -> usize {
        match self {
            Aside::Behind(_, then) => then.message.weight(),
            Aside::News(news) => crate::chain::json_weight(&news.data),
        }
    }
}
