//! `$exclusive/` subscriptions: at most one session of the node may hold each.
//!
//! The one place in this crate with a lock: it is taken when an exclusive subscription comes or goes, never for a message,
//! and spares a SUBACK from waiting for another shard.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use crate::mail::SessionRef;

#[derive(Default)]
pub struct Exclusives {
    holders: Mutex<HashMap<Box<str>, SessionRef>>,
}

impl Exclusives {
    /// False when another session holds the filter.
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
