//! Messages that continue along their chain when a device, an external system or a script has answered.

use super::HashMap;
use super::budget::MessageBudget;
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
    deadline: CallDeadline,
    tenant: TenantId,
    bytes: usize,
    waits_for: WaitsFor,
}

/// The time at which a call expires, and the time from its start until then.
#[derive(Clone, Copy)]
pub struct CallDeadline {
    at_ms: i64,
    wait_ms: i64,
}

impl CallDeadline {
    pub fn new(now_ms: i64, at_ms: i64) -> CallDeadline {
        let wait_ms = at_ms.saturating_sub(now_ms).max(0);
        CallDeadline { at_ms, wait_ms }
    }

    fn limit(&mut self, now_ms: i64) {
        self.at_ms = self.at_ms.min(now_ms.saturating_add(self.wait_ms));
    }
}

/// The sender of the answer for which a message waits.
pub enum WaitsFor {
    Device,
    External(StoredRecord),
    Script(Box<WaitingScript>),
}

/// A message that waits for a script.
pub struct WaitingScript {
    pub tenant: TenantId,
    pub stored: StoredRecord,
    /// The budget of the message, and the number of its deferrals.
    pub budget: MessageBudget,
    pub depth: usize,
}

/// The stored record of a message that waits for an external system or a script.
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

    pub fn insert(
        &mut self,
        number: u64,
        tenant: TenantId,
        then: Continuation,
        deadline: CallDeadline,
        waits_for: WaitsFor,
    ) {
        let bytes = then.message.weight();
        self.shares.add(tenant, bytes);
        let call = WaitingContinuation {
            continuation: then,
            deadline,
            tenant,
            bytes,
            waits_for,
        };
        self.by_number.insert(number, call);
    }

    pub fn remove(&mut self, number: u64) -> Option<(Continuation, WaitsFor)> {
        let call = self.by_number.remove(&number)?;
        self.shares.remove(call.tenant, call.bytes);
        Some((call.continuation, call.waits_for))
    }

    pub fn waits_for(&self, number: u64) -> Option<&WaitsFor> {
        self.by_number.get(&number).map(|call| &call.waits_for)
    }

    /// Shortens waits that are longer than the original ones, because the clock was set back.
    pub fn limit_waits(&mut self, now_ms: i64) {
        for call in self.by_number.values_mut() {
            call.deadline.limit(now_ms);
        }
    }

    pub fn expired(&self, now_ms: i64) -> Vec<u64> {
        let all = self.by_number.iter();
        let expired = all.filter(|(_, call)| call.deadline.at_ms <= now_ms);
        expired.map(|(number, _)| *number).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clock_set_back_leaves_calls_their_original_wait() {
        let mut before = CallDeadline::new(3_600_000, 3_660_000);
        let mut after = CallDeadline::new(1_000, 61_000);
        // The next tick sees that the clock was set back, after the second call has begun.
        for deadline in [&mut before, &mut after] {
            deadline.limit(2_000);
        }
        assert_eq!([before.at_ms, after.at_ms], [62_000, 61_000]);
    }
}
