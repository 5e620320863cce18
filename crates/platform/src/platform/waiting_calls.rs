//! Messages that continue along their chain when a device or an external system has answered.

use super::HashMap;
use crate::chain::Continuation;
use crate::ids::TenantId;
use crate::shares::{TenantLoad, TenantShares};

/// Largest size of all waiting messages.
const BYTES_MAX: usize = 64 << 20;

pub struct WaitingCalls {
    by_number: HashMap<u64, WaitingContinuation>,
    shares: TenantShares,
    made: u64,
}

struct WaitingContinuation {
    continuation: Continuation,
    expires_ms: i64,
    tenant: TenantId,
    bytes: usize,
    /// Set if it waits for an external system.
    stored: Option<StoredRecord>,
}

/// The stored record of a message that waits for an external system.
#[derive(Clone, Copy, Debug)]
pub enum StoredRecord {
    /// A message of a retrying queue.
    QueuedMessage(u64),
    Continuation(u64),
}

impl Default for WaitingCalls {
    fn default() -> WaitingCalls {
        WaitingCalls::new(0)
    }
}

impl WaitingCalls {
    pub fn new(most: usize) -> WaitingCalls {
        WaitingCalls {
            by_number: HashMap::default(),
            shares: TenantShares::new(TenantLoad {
                count: most,
                bytes: BYTES_MAX,
            }),
            made: 0,
        }
    }

    pub fn len(&self) -> usize {
        self.by_number.len()
    }

    pub fn has_capacity(&self, tenant: TenantId, then: &Continuation) -> bool {
        self.shares.has_capacity(tenant, then.message.weight())
    }

    /// Returns the next number.
    pub fn number(&mut self) -> u64 {
        self.made += 1;
        self.made
    }

    pub fn insert(&mut self, number: u64, tenant: TenantId, then: Continuation, expires_ms: i64) {
        self.put(number, tenant, then, expires_ms, None);
    }

    /// Inserts a message that waits for an external system.
    pub fn insert_external(
        &mut self,
        number: u64,
        tenant: TenantId,
        then: Continuation,
        expires_ms: i64,
        stored: StoredRecord,
    ) {
        self.put(number, tenant, then, expires_ms, Some(stored));
    }

    fn put(
        &mut self,
        number: u64,
        tenant: TenantId,
        then: Continuation,
        expires_ms: i64,
        stored: Option<StoredRecord>,
    ) {
        let bytes = then.message.weight();
        self.shares.add(tenant, bytes);
        let call = WaitingContinuation {
            continuation: then,
            expires_ms,
            tenant,
            bytes,
            stored,
        };
        self.by_number.insert(number, call);
    }

    pub fn remove(&mut self, number: u64) -> Option<(Continuation, Option<StoredRecord>)> {
        let call = self.by_number.remove(&number)?;
        self.shares.remove(call.tenant, call.bytes);
        Some((call.continuation, call.stored))
    }

    pub fn is_external(&self, number: u64) -> bool {
        self.by_number.get(&number).is_some_and(|call| call.stored.is_some())
    }

    pub fn expired(&self, now_ms: i64) -> Vec<u64> {
        let all = self.by_number.iter();
        let expired = all.filter(|(_, call)| call.expires_ms <= now_ms);
        expired.map(|(number, _)| *number).collect()
    }
}
