//! Whoever called a device over REST and waits for its answer, while the call is on its way along the device's rule chain. One for each
//! request that waits: connections of the API, and what such a request may take, bound them.

use std::sync::{Mutex, MutexGuard, PoisonError};

use hashbrown::HashMap;
use platform::ids::{TenantId, Uuid};
use tokio::sync::oneshot;

use crate::calls::Answer;

#[derive(Default)]
pub struct Callers {
    by_request: Mutex<HashMap<Uuid, Caller, foldhash::fast::RandomState>>,
}

struct Caller {
    tenant: TenantId,
    answer: oneshot::Sender<Answer>,
}

impl Callers {
    fn lock(&self) -> MutexGuard<'_, HashMap<Uuid, Caller, foldhash::fast::RandomState>> {
        self.by_request.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn wait(&self, request: Uuid, tenant: TenantId) -> oneshot::Receiver<Answer> {
        let (answer, receiver) = oneshot::channel();
        self.lock().insert(request, Caller { tenant, answer });
        receiver
    }

    /// The first node of the tenant's chains that calls with this request has its caller; later ones have none.
    pub fn take(&self, request: Uuid, tenant: TenantId) -> Option<oneshot::Sender<Answer>> {
        let mut all = self.lock();
        all.get(&request).filter(|caller| caller.tenant == tenant)?;
        all.remove(&request).map(|caller| caller.answer)
    }

    /// Whether it was still there: no node has taken it.
    pub fn forget(&self, request: Uuid) -> bool {
        self.lock().remove(&request).is_some()
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
        answer.send(Ok(None)).expect("somebody who waits");
        assert_eq!(waiting.try_recv(), Ok(Ok(None)));
    }

    #[test]
    fn whoever_goes_is_forgotten() {
        let callers = Callers::default();
        let waiting = callers.wait(REQUEST, TENANT);
        assert!(callers.forget(REQUEST));
        assert!(callers.take(REQUEST, TENANT).is_none());
        drop(waiting);
    }
}
