//! Requests of rule chains to external systems, and the results. A [`ExternalSender`] sends them.

use std::sync::{Arc, Mutex, Weak};

use platform::chain::{ExternalAnswer, ExternalCall, ExternalError};
use platform::ids::TenantId;

use crate::log::IngestLog;
use crate::mutex::lock;

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
        if let Some(log) = self.returned.log.upgrade() {
            log.wake();
        }
    }
}

type ExternalResult = (u64, Result<ExternalAnswer, ExternalError>);

/// Results that no chain has processed yet.
struct ExternalResults {
    results: Mutex<Vec<ExternalResult>>,
    /// Its reader is woken for a result.
    log: Weak<IngestLog>,
}

pub struct ExternalRequests {
    sender: Option<Arc<dyn ExternalSender>>,
    returned: Arc<ExternalResults>,
}

impl ExternalRequests {
    /// `log`: its reader is woken when a result arrives.
    pub fn new(sender: Option<Arc<dyn ExternalSender>>, log: &Arc<IngestLog>) -> ExternalRequests {
        let returned = ExternalResults {
            results: Mutex::default(),
            log: Arc::downgrade(log),
        };
        ExternalRequests {
            sender,
            returned: Arc::new(returned),
        }
    }

    /// Returns the results since the last call.
    pub fn take_results(&self) -> Vec<ExternalResult> {
        std::mem::take(&mut *lock(&self.returned.results))
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
