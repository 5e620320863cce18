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
    /// Of the message among those of its queue that are tried again, if it is one of them and waits for this.
    retried: Option<u64>,
    is_outside: bool,
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
        self.put(number, tenant, then, expires_ms, (false, None));
    }

    /// For what another system says. `retried`: the number of the message in its queue, if that tries again.
    pub fn insert_outside(
        &mut self,
        number: u64,
        tenant: TenantId,
        then: Continuation,
        expires_ms: i64,
        retried: Option<u64>,
    ) {
        self.put(number, tenant, then, expires_ms, (true, retried));
    }

    fn put(
        &mut self,
        number: u64,
        tenant: TenantId,
        then: Continuation,
        expires_ms: i64,
        (is_outside, retried): (bool, Option<u64>),
    ) {
        let bytes = then.message.weight();
        self.shares.add(tenant, bytes);
        let call = WaitingCall {
            then,
            expires_ms,
            tenant,
            bytes,
            retried,
            is_outside,
        };
        self.by_number.insert(number, call);
    }

    pub fn remove(&mut self, number: u64) -> Option<(Continuation, Option<u64>)> {
        let call = self.by_number.remove(&number)?;
        self.shares.remove(call.tenant, call.bytes);
        Some((call.then, call.retried))
    }

    pub fn is_outside(&self, number: u64) -> bool {
        self.by_number.get(&number).is_some_and(|call| call.is_outside)
    }

    pub fn expired(&self, now_ms: i64) -> Vec<u64> {
        let all = self.by_number.iter();
        let expired = all.filter(|(_, call)| call.expires_ms <= now_ms);
        expired.map(|(number, _)| *number).collect()
    }
}
