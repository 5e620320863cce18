//! Limits of open WebSockets per tenant, customer and unauthenticated client, so that none can occupy all of them.
//! Tenant profiles may have lower limits.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use platform::SocketLimits;
use platform::ids::Uuid;

use super::super::call::Principal;

/// WebSockets are not counted as requests, because they last.
pub(super) const CONNECTIONS_MAX: usize = 200;
pub(super) const OF_TENANT_MAX: usize = 150;
const OF_CUSTOMER_MAX: usize = 100;
/// Limit of connections that are not authenticated yet.
const UNAUTHENTICATED_MAX: usize = 30;

#[derive(Default)]
pub struct ConnectionLimits(Mutex<OpenConnections>);

#[derive(Default)]
struct OpenConnections {
    all: usize,
    /// Connections by tenant or customer; the null ID stands for unauthenticated ones.
    by_owner: HashMap<Uuid, usize>,
}

/// Treats 0 as no limit.
fn or_unlimited(limit: u64) -> usize {
    match usize::try_from(limit) {
        Ok(limit) if limit > 0 => limit,
        _ => usize::MAX,
    }
}

/// A counted connection. Released when it is dropped.
pub struct ConnectionPermit {
    limits: Arc<ConnectionLimits>,
    owners: Vec<Uuid>,
}

impl ConnectionLimits {
    /// `None`: a limit is reached.
    pub fn take(
        self: &Arc<ConnectionLimits>,
        principal: Option<(&Principal, SocketLimits)>,
    ) -> Option<ConnectionPermit> {
        let mut taken = self.lock();
        let owners = taken.admit(principal, CONNECTIONS_MAX)?;
        taken.all += 1;
        Some(ConnectionPermit {
            limits: Arc::clone(self),
            owners,
        })
    }

    fn lock(&self) -> MutexGuard<'_, OpenConnections> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ConnectionPermit {
    /// Counts the connection for this user. Returns `false` if the tenant or customer has reached its limit.
    pub fn log_in(&mut self, principal: &Principal, sockets: SocketLimits) -> bool {
        let mut taken = self.limits.lock();
        taken.release(&self.owners);
        // The connection is already counted in the total.
        match taken.admit(Some((principal, sockets)), usize::MAX) {
            Some(owners) => {
                self.owners = owners;
                true
            }
            None => {
                self.owners.clear();
                false
            }
        }
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        let mut taken = self.limits.lock();
        taken.release(&self.owners);
        taken.all -= 1;
    }
}

impl OpenConnections {
    fn admit(&mut self, principal: Option<(&Principal, SocketLimits)>, most: usize) -> Option<Vec<Uuid>> {
        let limits: Vec<(Uuid, usize)> = match principal {
            None => vec![(Uuid::NULL, UNAUTHENTICATED_MAX)],
            Some((principal, sockets)) => [
                (principal.tenant.0, OF_TENANT_MAX, sockets.tenant),
                (principal.customer.0, OF_CUSTOMER_MAX, sockets.customer),
                (principal.id.0, CONNECTIONS_MAX, sockets.user),
            ]
            .into_iter()
            .filter(|(owner, ..)| !owner.is_null())
            .map(|(owner, most, limit)| (owner, most.min(or_unlimited(limit))))
            .collect(),
        };
        let count = |owner: &Uuid| self.by_owner.get(owner).copied().unwrap_or(0);
        if self.all >= most || limits.iter().any(|(owner, limit)| count(owner) >= *limit) {
            return None;
        }
        for (owner, _) in &limits {
            *self.by_owner.entry(*owner).or_default() += 1;
        }
        Some(limits.into_iter().map(|(owner, _)| owner).collect())
    }

    fn release(&mut self, owners: &[Uuid]) {
        for owner in owners {
            if let Some(count) = self.by_owner.get_mut(owner) {
                *count -= 1;
                if *count == 0 {
                    self.by_owner.remove(owner);
                }
            }
        }
    }
}
