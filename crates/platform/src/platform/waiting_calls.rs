//! Messages that go on along their chain when a device has answered a call, or another system what was sent to it.

use super::HashMap;
use crate::chain::Continuation;
use crate::ids::TenantId;
use crate::shares::{Load, Shares};

/// Of all messages that wait.
const BYTES_MAX: usize = 64 << 20;

pub struct WaitingCalls {
    by_number: HashMap<u64, WaitingCall>,
    shares: Shares,
    made: u64,
}

struct WaitingCall {
    then: Continuation,
    expires_ms: i64,
    tenant: TenantId,
    bytes: usize,
    /// If it waits for another system.
    stored: Option<Stored>,
}

/// Under which number a message that waits for another system is stored.
#[derive(Clone, Copy, Debug)]
pub enum Stored {
    /// Among those of its queue, which tries again.
    InItsQueue(u64),
    Alone(u64),
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
            shares: Shares::new(Load {
                count: most,
                bytes: BYTES_MAX,
            }),
            made: 0,
        }
    }

    pub fn len(&self) -> usize {
        self.by_number.len()
    }

    pub fn has_room(&self, tenant: TenantId, then: &Continuation) -> bool {
        self.shares.has_room(tenant, then.message.weight())
    }

    /// The number of the next one.
    pub fn number(&mut self) -> u64 {
        self.made += 1;
        self.made
    }

    pub fn insert(&mut self, number: u64, tenant: TenantId, then: Continuation, expires_ms: i64) {
        self.put(number, tenant, then, expires_ms, None);
    }

    /// For what another system says.
    pub fn insert_outside(
        &mut self,
        number: u64,
        tenant: TenantId,
        then: Continuation,
        expires_ms: i64,
        stored: Stored,
    ) {
        self.put(number, tenant, then, expires_ms, Some(stored));
    }

    fn put(&mut self, number: u64, tenant: TenantId, then: Continuation, expires_ms: i64, stored: Option<Stored>) {
        let bytes = then.message.weight();
        self.shares.add(tenant, bytes);
        let call = WaitingCall {
            then,
            expires_ms,
            tenant,
            bytes,
            stored,
        };
        self.by_number.insert(number, call);
    }

    pub fn remove(&mut self, number: u64) -> Option<(Continuation, Option<Stored>)> {
        let call = self.by_number.remove(&number)?;
        self.shares.remove(call.tenant, call.bytes);
        Some((call.then, call.stored))
    }

    pub fn is_outside(&self, number: u64) -> bool {
        self.by_number.get(&number).is_some_and(|call| call.stored.is_some())
    }

    pub fn expired(&self, now_ms: i64) -> Vec<u64> {
        let all = self.by_number.iter();
        let expired = all.filter(|(_, call)| call.expires_ms <= now_ms);
        expired.map(|(number, _)| *number).collect()
    }
}
