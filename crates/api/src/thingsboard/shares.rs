//! What one tenant may take of this node with requests, so that there is something for the others: requests that are answered at the
//! same time, threads that work on them, long transfers; and the rates of its tenant profile.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use platform::ids::{TenantId, Uuid};
use platform::{Bucket, RateLimit, TenantLimits};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::call::Person;
use super::failure::{Code, Failure};

/// Threads that work for one tenant, of eight.
const THREADS_OF_TENANT: usize = 6;
/// Exports and packages of one tenant, of four.
const TRANSFERS_OF_TENANT: usize = 3;
/// Rates that are remembered before those are forgotten that are as if they were new.
const RATES_KEPT: usize = 1000;

/// Done when it is dropped. `None`: of somebody without a tenant.
pub type Turn = Option<OwnedSemaphorePermit>;

#[derive(Default)]
pub struct Shares(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    tenants: HashMap<TenantId, OfTenant>,
    /// Of tenants and customers.
    rates: HashMap<Uuid, (RateLimit, Bucket)>,
}

struct OfTenant {
    requests: usize,
    threads: Arc<Semaphore>,
    transfers: Arc<Semaphore>,
}

impl Default for OfTenant {
    fn default() -> OfTenant {
        OfTenant {
            requests: 0,
            threads: Arc::new(Semaphore::new(THREADS_OF_TENANT)),
            transfers: Arc::new(Semaphore::new(TRANSFERS_OF_TENANT)),
        }
    }
}

impl OfTenant {
    fn is_idle(&self) -> bool {
        self.requests == 0 && Arc::strong_count(&self.threads) == 1 && Arc::strong_count(&self.transfers) == 1
    }
}

/// A request that is answered. Given back when it is dropped.
pub struct Admitted {
    shares: Arc<Shares>,
    tenant: TenantId,
}

impl Drop for Admitted {
    fn drop(&mut self) {
        let mut inner = self.shares.lock();
        let Some(of) = inner.tenants.get_mut(&self.tenant) else {
            return;
        };
        of.requests -= 1;
        if of.is_idle() {
            inner.tenants.remove(&self.tenant);
        }
    }
}

impl Shares {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `requests_max`: of all tenants.
    pub fn admit(self: &Arc<Shares>, tenant: TenantId, requests_max: usize) -> Result<Option<Admitted>, Failure> {
        if tenant == TenantId::NULL {
            return Ok(None);
        }
        let mut inner = self.lock();
        let of = inner.tenants.entry(tenant).or_default();
        if of.requests >= (requests_max - requests_max / 4).max(1) {
            let message = "Too many requests of this tenant are being answered";
            return Err(Failure::new(Code::TooManyRequests, message).retry_after(1));
        }
        of.requests += 1;
        Ok(Some(Admitted {
            shares: Arc::clone(self),
            tenant,
        }))
    }

    /// By the profile of the tenant.
    pub fn check_rates(&self, person: &Person, limits: &TenantLimits, now_ms: i64) -> Result<(), Failure> {
        let rates = [
            (person.tenant.0, &limits.rest_of_tenant, "tenant"),
            (person.customer.0, &limits.rest_of_customer, "customer"),
        ];
        let mut inner = self.lock();
        if inner.rates.len() > RATES_KEPT {
            inner
                .rates
                .retain(|_, (limit, bucket)| !bucket.is_full(&limit.clone(), now_ms));
        }
        for (owner, limit, what) in rates {
            let Some(limit) = limit.as_ref().filter(|_| !owner.is_null()) else {
                continue;
            };
            let fresh = || (limit.clone(), Bucket::new(limit, now_ms));
            let known = inner.rates.entry(owner).or_insert_with(fresh);
            // The profile was changed.
            if known.0 != *limit {
                *known = fresh();
            }
            if !known.1.take(limit, 1, now_ms) {
                let message = format!("Too many requests for current {what}!");
                return Err(Failure::new(Code::TooManyRequests, message));
            }
        }
        Ok(())
    }

    /// Waits for one of the threads that may work for the tenant.
    pub async fn turn(&self, tenant: TenantId) -> Turn {
        let threads = self.of(tenant, |of| Arc::clone(&of.threads))?;
        threads.acquire_owned().await.ok()
    }

    /// Never waits. An error: the tenant has too many under way.
    pub fn transfer(&self, tenant: TenantId) -> Result<Turn, Failure> {
        let Some(transfers) = self.of(tenant, |of| Arc::clone(&of.transfers)) else {
            return Ok(None);
        };
        let message = format!(
            "{TRANSFERS_OF_TENANT} exports or packages of this tenant are under way; try again when one has ended"
        );
        let taken = transfers.try_acquire_owned();
        taken
            .map(Some)
            .map_err(|_| Failure::new(Code::TooManyRequests, message).retry_after(1))
    }

    fn of<T>(&self, tenant: TenantId, part: impl FnOnce(&OfTenant) -> T) -> Option<T> {
        (tenant != TenantId::NULL).then(|| part(self.lock().tenants.entry(tenant).or_default()))
    }
}

#[cfg(test)]
mod tests {
    use platform::ids::{CustomerId, UserId};
    use platform::model::Authority;
    use serde_json::json;

    use super::*;

    fn person(tenant: u8, customer: u8) -> Person {
        Person {
            id: UserId(Uuid([1; 16])),
            authority: Authority::CustomerUser,
            tenant: TenantId(Uuid([tenant; 16])),
            customer: CustomerId(Uuid([customer; 16])),
            name: "a@b.c".to_owned(),
            session: "s".to_owned(),
            by: None,
            screen: None,
        }
    }

    #[test]
    fn a_tenant_leaves_requests_for_others() {
        let shares = Arc::new(Shares::default());
        let [one, other] = [1, 2].map(|n| person(n, 9).tenant);
        let taken: Vec<_> = std::iter::from_fn(|| shares.admit(one, 64).ok()).collect();
        assert_eq!(taken.len(), 48);
        assert!(shares.admit(other, 64).is_ok());
        assert!(shares.admit(TenantId::NULL, 64).is_ok());
        drop(taken);
        assert!(shares.lock().tenants.is_empty());
    }

    #[tokio::test]
    async fn a_tenant_leaves_threads_and_transfers_for_others() {
        let shares = Shares::default();
        let [one, other] = [1, 2].map(|n| person(n, 9).tenant);
        let mut turns = Vec::new();
        for _ in 0..THREADS_OF_TENANT {
            turns.push(shares.turn(one).await);
        }
        let waits = tokio::time::timeout(std::time::Duration::from_millis(20), shares.turn(one));
        assert!(waits.await.is_err());
        assert!(shares.turn(other).await.is_some());
        turns.pop();
        assert!(shares.turn(one).await.is_some());
        let transfers: Vec<_> = std::iter::from_fn(|| shares.transfer(one).ok()).collect();
        assert_eq!(transfers.len(), TRANSFERS_OF_TENANT);
        assert!(shares.transfer(other).is_ok());
    }

    #[test]
    fn rates_are_those_of_the_profile_as_it_is_now() {
        let shares = Shares::default();
        let limits = |tenant: &str, customer: &str| {
            let configuration = json!({"tenantServerRestLimitsConfiguration": tenant, "customerServerRestLimitsConfiguration": customer});
            TenantLimits::parse(&configuration).unwrap()
        };
        let limit = limits("3:10", "2:10");
        let asks = |customer: u8, limit: &TenantLimits| {
            let checked = shares.check_rates(&person(1, customer), limit, 0);
            checked.map_err(|failure| failure.message().to_owned())
        };
        assert_eq!(asks(7, &limit), Ok(()));
        assert_eq!(asks(7, &limit), Ok(()));
        assert_eq!(
            asks(7, &limit),
            Err("Too many requests for current customer!".to_owned())
        );
        assert_eq!(asks(8, &limit), Err("Too many requests for current tenant!".to_owned()));
        assert_eq!(asks(8, &limits("9:10", "2:10")), Ok(()), "another profile");
        assert_eq!(asks(7, &limits("9:10", "")), Ok(()));
    }
}
