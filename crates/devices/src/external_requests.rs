//! Requests of rule chains to external systems, and the results. A [`ExternalSender`] sends them.

use std::sync::{Arc, Mutex, OnceLock, Weak};

use platform::chain::{ExternalAnswer, ExternalCall, ExternalError};
use platform::ids::TenantId;

use crate::hub::{Hub, lock};

/// Sends requests to external systems.
pub trait ExternalSender: Send + Sync {
    /// Accepts a request, or returns why not. Never waits. The caller limits the number of pending requests.
    fn take(&self, request: ExternalRequest) -> Result<(), String>;

    /// Connections rejected because of their address.
    fn refused_targets_total(&self) -> u64 {
        0
    }
}

pub struct ExternalRequest {
    /// The tenant of the chain. Tenants share no connections.
    pub tenant: TenantId,
    pub outbound: ExternalCall,
    pub receipt: ExternalReceipt,
}

/// Receives the external system's result.
pub struct ExternalReceipt {
    number: u64,
    returned: Arc<ExternalResults>,
}

impl ExternalReceipt {
    pub fn complete(self, result: Result<ExternalAnswer, ExternalError>) {
        lock(&self.returned.results).push((self.number, result));
        if let Some(hub) = self.returned.hub.get().and_then(Weak::upgrade) {
            hub.log.wake();
        }
    }
}

type ExternalResult = (u64, Result<ExternalAnswer, ExternalError>);

/// Results that no chain has processed yet.
#[derive(Default)]
pub struct ExternalResults {
    results: Mutex<Vec<ExternalResult>>,
    /// Its log reader is woken for a result.
    hub: OnceLock<Weak<Hub>>,
}

impl ExternalResults {
    pub fn set_hub(&self, hub: &Arc<Hub>) {
        let _ = self.hub.set(Arc::downgrade(hub));
    }

    pub fn take(&self) -> Vec<ExternalResult> {
        std::mem::take(&mut *lock(&self.results))
    }
}

pub struct ExternalRequests {
    sender: Option<Arc<dyn ExternalSender>>,
    pub returned: Arc<ExternalResults>,
}

impl ExternalRequests {
    pub fn new(sender: Option<Arc<dyn ExternalSender>>) -> ExternalRequests {
        ExternalRequests {
            sender,
            returned: Arc::default(),
        }
    }

    pub fn refused_targets_total(&self) -> u64 {
        self.sender
            .as_ref()
            .map_or(0, |courier| courier.refused_targets_total())
    }

    pub fn take(&self, tenant: TenantId, number: u64, outbound: ExternalCall) -> Result<(), String> {
        let courier = self
            .sender
            .as_ref()
            .ok_or("this server has no sender for external requests")?;
        courier.take(ExternalRequest {
            tenant,
            outbound,
            receipt: ExternalReceipt {
                number,
                returned: Arc::clone(&self.returned),
            },
        })
    }
}
