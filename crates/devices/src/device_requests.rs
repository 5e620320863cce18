//! RPC requests of devices over HTTP that wait for the answer of a rule chain.

use std::sync::Arc;
use std::time::Duration;

use platform::entities::Entities;
use platform::ids::DeviceId;
use tokio::sync::oneshot;

use crate::calls::{DeviceRpc, DeviceRpcs, OverdueRpc, PendingRpc, RpcAnswer, RpcCaller, RpcError};
use crate::clock::unix_ms;

/// Request numbers begin after this one, so that they do not overlap with those of devices.
const FIRST_NUMBER: i32 = 1 << 30;

pub struct DeviceRequests {
    entities: Arc<Entities>,
    waiting: DeviceRpcs,
}

impl DeviceRequests {
    pub fn new(entities: Arc<Entities>) -> DeviceRequests {
        DeviceRequests {
            entities,
            waiting: DeviceRpcs::from(FIRST_NUMBER),
        }
    }

    /// Adds a request. Returns its number, and where the answer arrives.
    pub fn add(&self, device: DeviceId, timeout: Duration) -> Result<(i32, oneshot::Receiver<RpcAnswer>), RpcError> {
        let (sender, receiver) = oneshot::channel();
        let now_ms = unix_ms();
        let call = DeviceRpc {
            method: String::new(),
            params: String::new(),
            is_one_way: false,
            expires_ms: now_ms.saturating_add(timeout.as_millis() as i64),
            persistence: None,
        };
        let tenant = self.entities.directory().tenant_of(device).unwrap_or_default();
        let id = self.waiting.next_id(device, tenant, &call)?;
        let pending = PendingRpc::new(tenant, call, RpcCaller::Client(sender), None, now_ms);
        self.waiting.insert(device, id, pending);
        Ok((id, receiver))
    }

    pub fn count(&self) -> usize {
        self.waiting.count()
    }

    /// Answers a request with JSON. Returns false if none with this number waits.
    pub fn answer(&self, device: DeviceId, id: i32, body: impl FnOnce() -> String) -> bool {
        let Some(waiting) = self.waiting.remove(device, id) else {
            return false;
        };
        waiting.caller.answer(Ok(Some(body())));
        true
    }

    /// Ends requests that rule chains did not answer in time.
    pub fn expire(&self) {
        if self.waiting.count() == 0 {
            return;
        }
        for due in self.waiting.take_due(unix_ms(), |_| true) {
            if let OverdueRpc::Expired(waiting) = due {
                waiting.caller.answer(Err(RpcError::Timeout));
            }
        }
    }
}
