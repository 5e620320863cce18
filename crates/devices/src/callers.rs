//! REST callers that wait for a device's response while the RPC request passes through the device's rule chain.
//!
//! There is one entry per waiting request. The connection and request limits of the API bound them.

use std::sync::Mutex;

use hashbrown::HashMap;
use platform::ids::{TenantId, Uuid};
use tokio::sync::oneshot;

use crate::calls::RpcAnswer;
use crate::mutex::lock;

#[derive(Default)]
pub struct Callers {
    by_request: Mutex<HashMap<Uuid, GatewayCaller, foldhash::fast::RandomState>>,
}

struct GatewayCaller {
    tenant: TenantId,
    answer: oneshot::Sender<RpcAnswer>,
}

impl Callers {
    pub fn wait(&self, request: Uuid, tenant: TenantId) -> oneshot::Receiver<RpcAnswer> {
        let (answer, receiver) = oneshot::channel();
        lock(&self.by_request).insert(request, GatewayCaller { tenant, answer });
        receiver
    }

    /// Removes and returns the caller. Only the first node of the tenant's chains that sends this request gets it.
    pub fn take(&self, request: Uuid, tenant: TenantId) -> Option<oneshot::Sender<RpcAnswer>> {
        let mut all = lock(&self.by_request);
        all.get(&request).filter(|caller| caller.tenant == tenant)?;
        all.remove(&request).map(|caller| caller.answer)
    }

    /// Returns true if the caller was still waiting, that is, no node has taken the request.
    pub fn forget(&self, request: Uuid) -> bool {
        lock(&self.by_request).remove(&request).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REQUEST: Uuid = Uuid([1; 16]);
    const TENANT: TenantId = TenantId(Uuid([2; 16]));

    #[test]
    fn one_node_of_the_callers_tenant_answers() {
        let callers = Callers::default();
        let mut waiting = callers.wait(REQUEST, TENANT);
        assert!(callers.take(REQUEST, TenantId(Uuid([3; 16]))).is_none());
        let answer = callers.take(REQUEST, TENANT).expect("the caller");
        assert!(callers.take(REQUEST, TENANT).is_none());
        assert!(!callers.forget(REQUEST), "a node has taken it");
        answer.send(Ok(None)).expect("the caller waits");
        assert_eq!(waiting.try_recv(), Ok(Ok(None)));
    }

    #[test]
    fn forgotten_callers_are_not_returned() {
        let callers = Callers::default();
        let waiting = callers.wait(REQUEST, TENANT);
        assert!(callers.forget(REQUEST));
        assert!(callers.take(REQUEST, TENANT).is_none());
        drop(waiting);
    }
}
