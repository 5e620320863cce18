//! How many WebSockets are open, and whose: no tenant and no customer takes all of them, and who has not logged in takes few. Profiles of
//! tenants may allow less.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use platform::Sockets;
use platform::ids::Uuid;

use super::super::call::Person;

/// They are no requests, and last.
const SEATS_MAX: usize = 200;
const OF_TENANT_MAX: usize = 150;
const OF_CUSTOMER_MAX: usize = 100;
/// That have not logged in yet.
const OF_STRANGERS_MAX: usize = 30;

#[derive(Default)]
pub struct Seats(Mutex<Taken>);

#[derive(Default)]
struct Taken {
    all: usize,
    /// By tenant, customer, or the null identifier: of strangers.
    by_owner: HashMap<Uuid, usize>,
}

/// 0 is no limit.
fn or_any(limit: u64) -> usize {
    match usize::try_from(limit) {
        Ok(limit) if limit > 0 => limit,
        _ => usize::MAX,
    }
}

/// Given back when it is dropped.
pub struct Seat {
    seats: Arc<Seats>,
    owners: Vec<Uuid>,
}

impl Seats {
    /// `None`: too many.
    pub fn take(self: &Arc<Seats>, person: Option<(&Person, Sockets)>) -> Option<Seat> {
        let mut taken = self.taken();
        let owners = taken.admit(person, SEATS_MAX)?;
        taken.all += 1;
        Some(Seat {
            seats: Arc::clone(self),
            owners,
        })
    }

    fn taken(&self) -> MutexGuard<'_, Taken> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Seat {
    /// It is this person's from now on. False: the person's tenant or customer has too many.
    pub fn log_in(&mut self, person: &Person, sockets: Sockets) -> bool {
        let mut taken = self.seats.taken();
        taken.leave(&self.owners);
        // It has its seat already.
        match taken.admit(Some((person, sockets)), usize::MAX) {
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

impl Drop for Seat {
    fn drop(&mut self) {
        let mut taken = self.seats.taken();
        taken.leave(&self.owners);
        taken.all -= 1;
    }
}

impl Taken {
    fn admit(&mut self, person: Option<(&Person, Sockets)>, most: usize) -> Option<Vec<Uuid>> {
        let limits: Vec<(Uuid, usize)> = match person {
            None => vec![(Uuid::NULL, OF_STRANGERS_MAX)],
            Some((person, sockets)) => [
                (person.tenant.0, OF_TENANT_MAX, sockets.tenant),
                (person.customer.0, OF_CUSTOMER_MAX, sockets.customer),
                (person.id.0, SEATS_MAX, sockets.user),
            ]
            .into_iter()
            .filter(|(owner, ..)| !owner.is_null())
            .map(|(owner, most, limit)| (owner, most.min(or_any(limit))))
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

    fn leave(&mut self, owners: &[Uuid]) {
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
