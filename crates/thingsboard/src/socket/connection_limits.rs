//! Limits of open WebSockets per tenant, customer and unauthenticated client, so that none can occupy all of them.
//! Tenant profiles may have lower limits.
//!
//! Unauthenticated WebSockets cannot keep others out: beyond their limit, or the limit of their address, the server
//! closes the oldest of them, from the address with the most.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use net::client_network;
use platform::SocketLimits;
use platform::ids::Uuid;
use tokio::sync::Notify;

use super::super::principal::Principal;

/// WebSockets are not counted as requests, because they last.
pub(super) const CONNECTIONS_MAX: usize = 200;
pub(super) const OF_TENANT_MAX: usize = 150;
const OF_CUSTOMER_MAX: usize = 100;
/// Limit of connections that are not authenticated yet.
const UNAUTHENTICATED_MAX: usize = 30;
/// Limit of those from one address.
const UNAUTHENTICATED_PER_ADDRESS_MAX: usize = 20;

#[derive(Default)]
pub struct ConnectionLimits(Mutex<OpenConnections>);

#[derive(Default)]
struct OpenConnections {
    all: usize,
    /// Connections by tenant, customer and user.
    by_owner: HashMap<Uuid, usize>,
    /// In the order of their age.
    unauthenticated: Vec<UnauthenticatedConnection>,
}

struct UnauthenticatedConnection {
    network: IpAddr,
    evicted: Arc<Notify>,
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
    evicted: Arc<Notify>,
}

impl ConnectionLimits {
    /// `None`: a limit is reached.
    pub fn take(
        self: &Arc<ConnectionLimits>,
        principal: Option<(&Principal, SocketLimits)>,
        peer: IpAddr,
    ) -> Option<ConnectionPermit> {
        let mut taken = self.lock();
        let evicted = Arc::new(Notify::new());
        let owners = match principal {
            Some((principal, sockets)) => taken.admit(principal, sockets, CONNECTIONS_MAX)?,
            None => {
                taken.admit_unauthenticated(client_network(peer), evicted.clone())?;
                Vec::new()
            }
        };
        taken.all += 1;
        Some(ConnectionPermit {
            limits: Arc::clone(self),
            owners,
            evicted,
        })
    }

    fn lock(&self) -> MutexGuard<'_, OpenConnections> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ConnectionPermit {
    /// Returns when the unauthenticated connection must be closed for another one.
    pub async fn evicted(&self) {
        self.evicted.notified().await;
    }

    /// Counts the connection for this user. Returns `false` if the tenant or customer has reached its limit.
    pub fn log_in(&mut self, principal: &Principal, sockets: SocketLimits) -> bool {
        let mut taken = self.limits.lock();
        taken.release(&self.owners);
        taken.remove_unauthenticated(&self.evicted);
        // The connection is already counted in the total.
        match taken.admit(principal, sockets, usize::MAX) {
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
        taken.remove_unauthenticated(&self.evicted);
        taken.all -= 1;
    }
}

impl OpenConnections {
    fn admit_unauthenticated(&mut self, network: IpAddr, evicted: Arc<Notify>) -> Option<()> {
        let of_network = |open: &OpenConnections, network: IpAddr| {
            let connections = open.unauthenticated.iter();
            connections.filter(|connection| connection.network == network).count()
        };
        let victim = if of_network(self, network) >= UNAUTHENTICATED_PER_ADDRESS_MAX {
            Some(network)
        } else if self.unauthenticated.len() >= UNAUTHENTICATED_MAX || self.all >= CONNECTIONS_MAX {
            let networks = self.unauthenticated.iter().map(|connection| connection.network);
            Some(networks.max_by_key(|network| of_network(self, *network))?)
        } else {
            None
        };
        if let Some(victim) = victim {
            let oldest = self
                .unauthenticated
                .iter()
                .position(|connection| connection.network == victim)?;
            self.unauthenticated.remove(oldest).evicted.notify_one();
        }
        self.unauthenticated
            .push(UnauthenticatedConnection { network, evicted });
        Some(())
    }

    fn remove_unauthenticated(&mut self, evicted: &Arc<Notify>) {
        self.unauthenticated
            .retain(|connection| !Arc::ptr_eq(&connection.evicted, evicted));
    }

    fn admit(&mut self, principal: &Principal, sockets: SocketLimits, most: usize) -> Option<Vec<Uuid>> {
        let limits: Vec<(Uuid, usize)> = [
            (principal.tenant.0, OF_TENANT_MAX, sockets.tenant),
            (principal.customer.0, OF_CUSTOMER_MAX, sockets.customer),
            (principal.id.0, CONNECTIONS_MAX, sockets.user),
        ]
        .into_iter()
        .filter(|(owner, ..)| !owner.is_null())
        .map(|(owner, most, limit)| (owner, most.min(or_unlimited(limit))))
        .collect();
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
