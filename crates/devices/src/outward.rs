//! What rule chains send to other systems, and what these say: somebody else ([`Courier`]) knows how to talk to them.

use std::sync::{Arc, Mutex, OnceLock, Weak};

use platform::chain::{Answer, Outbound, Refusal};
use platform::ids::TenantId;

use crate::hub::{Hub, lock};

/// Takes messages to other systems.
pub trait Courier: Send + Sync {
    /// Takes it over, or says why not; never waits. How many are on their way is bounded by whoever calls.
    fn take(&self, parcel: Parcel) -> Result<(), String>;
}

pub struct Parcel {
    /// Whose chain sends it: tenants share nothing.
    pub tenant: TenantId,
    pub outbound: Outbound,
    pub receipt: Receipt,
}

/// For what the other system says.
pub struct Receipt {
    number: u64,
    returned: Arc<Returned>,
}

impl Receipt {
    pub fn give(self, said: Result<Answer, Refusal>) {
        lock(&self.returned.said).push((self.number, said));
        if let Some(hub) = self.returned.hub.get().and_then(Weak::upgrade) {
            hub.log.wake();
        }
    }
}

type Said = (u64, Result<Answer, Refusal>);

/// What came back and no chain has gone on with yet.
#[derive(Default)]
pub struct Returned {
    said: Mutex<Vec<Said>>,
    /// To be woken.
    hub: OnceLock<Weak<Hub>>,
}

impl Returned {
    pub fn belongs_to(&self, hub: &Arc<Hub>) {
        let _ = self.hub.set(Arc::downgrade(hub));
    }

    pub fn take(&self) -> Vec<Said> {
        std::mem::take(&mut *lock(&self.said))
    }
}

pub struct Outward {
    courier: Option<Arc<dyn Courier>>,
    pub returned: Arc<Returned>,
}

impl Outward {
    pub fn new(courier: Option<Arc<dyn Courier>>) -> Outward {
        Outward {
            courier,
            returned: Arc::default(),
        }
    }

    pub fn take(&self, tenant: TenantId, number: u64, outbound: Outbound) -> Result<(), String> {
        let courier = self.courier.as_ref().ok_or("there is no way to other systems")?;
        courier.take(Parcel {
            tenant,
            outbound,
            receipt: Receipt {
                number,
                returned: Arc::clone(&self.returned),
            },
        })
    }
}
