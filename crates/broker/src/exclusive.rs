//! Exclusive subscriptions (`$exclusive/`): at most one session of the node may hold each.
//!
//! The lock is taken when an exclusive subscription is added or removed, never per message. It avoids that a SUBACK
//! waits for another shard.
//!
//! A session that stays offline loses its exclusive subscriptions after `exclusive_release_ms`, so that another client
//! can take over the topic (`lifecycle.rs`). Its queued messages stay. After a restart the time runs from the last
//! disconnect.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use crate::slots::SessionRef;

/// Beginning of the filter of an exclusive subscription.
pub(crate) const EXCLUSIVE: &str = "$exclusive/";

#[derive(Default)]
pub struct Exclusives {
    holders: Mutex<HashMap<Box<str>, SessionRef>>,
}

impl Exclusives {
    /// Claims a filter. Returns false if another session holds it.
    pub fn claim(&self, filter: &str, session: SessionRef) -> bool {
        let mut holders = self.holders.lock().unwrap_or_else(PoisonError::into_inner);
        match holders.get(filter) {
            Some(holder) => *holder == session,
            None => {
                holders.insert(filter.into(), session);
                true
            }
        }
    }

    pub fn release(&self, filter: &str, session: SessionRef) {
        let mut holders = self.holders.lock().unwrap_or_else(PoisonError::into_inner);
        if holders.get(filter) == Some(&session) {
            holders.remove(filter);
        }
    }
}
