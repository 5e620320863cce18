//! Limits of a tenant's requests, so that one tenant cannot occupy the node: concurrent requests, threads, long
//! transfers, and the rate limits of its tenant profile.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use platform::ids::{TenantId, Uuid};
use platform::{Bucket, RateLimit, TenantLimits};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::failure::{ThingsboardError, ThingsboardErrorCode};
use super::principal::Principal;

/// Threads that can work for one tenant, of eight.
const THREADS_OF_TENANT: usize = 6;
/// Concurrent exports and package transfers of one tenant, of four.
const TRANSFERS_OF_TENANT: usize = 3;
/// Above this number of rate limiters, those with a full burst are dropped.
const RATES_KEPT: usize = 1000;

/// Released when it is dropped. `None`: for a user without a tenant.
pub type QuotaPermit = Option<OwnedSemaphorePermit>;

#[derive(Default)]
pub struct TenantQuotas(Mutex<QuotaState>);

#[derive(Default)]
struct QuotaState {
    tenants: HashMap<TenantId, TenantQuotaState>,
    /// Rate limiters of tenants and customers.
    rates: HashMap<Uuid, (RateLimit, Bucket)>,
}

struct TenantQuotaState {
    requests: usize,
    threads: Arc<Semaphore>,
    transfers: Arc<Semaphore>,
}

impl Default for TenantQuotaState {
    fn default() -> TenantQuotaState {
        TenantQuotaState {
            requests: 0,
            threads: Arc::new(Semaphore::new(THREADS_OF_TENANT)),
            transfers: Arc::new(Semaphore::new(TRANSFERS_OF_TENANT)),
        }
    }
}

impl TenantQuotaState {
    fn is_idle(&self) -> bool {
        self.requests == 0 && Arc::strong_count(&self.threads) == 1 && Arc::strong_count(&self.transfers) == 1
    }
}

/// An admitted request. Released when it is dropped.
pub struct RequestPermit {
    quotas: Arc<TenantQuotas>,
    tenant: TenantId,
}

impl Drop for RequestPermit {
    fn drop(&mut self) {
        let mut inner = self.quotas.lock();
        let Some(of) = inner.tenants.get_mut(&self.tenant) else {
            return;
        };
        of.requests -= 1;
        if of.is_idle() {
            inner.tenants.remove(&self.tenant);
        }
    }
}

impl TenantQuotas {
    fn lock(&self) -> MutexGuard<'_, QuotaState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `requests_max`: the limit of all tenants together.
    pub fn admit(
        self: &Arc<TenantQuotas>,
        tenant: TenantId,
        requests_max: usize,
    ) -> Result<Option<RequestPermit>, ThingsboardError> {
        if tenant == TenantId::NULL {
            return Ok(None);
        }
        let mut inner = self.lock();
        let of = inner.tenants.entry(tenant).or_default();
        if of.requests >= (requests_max - requests_max / 4).max(1) {
            let message = "Too many concurrent requests of this tenant";
            return Err(ThingsboardError::new(ThingsboardErrorCode::TooManyRequests, message).retry_after(1));
        }
        of.requests += 1;
        Ok(Some(RequestPermit {
            quotas: Arc::clone(self),
            tenant,
        }))
    }

    /// Checks the rate limits of the tenant profile.
    pub fn check_rates(
        &self,
        principal: &Principal,
        limits: &TenantLimits,
        now_ms: i64,
    ) -> Result<(), ThingsboardError> {
        let rates = [
            (principal.tenant.0, &limits.rest_of_tenant, "tenant"),
            (principal.customer.0, &limits.rest_of_customer, "customer"),
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
            // The tenant profile was changed.
            if known.0 != *limit {
                *known = fresh();
            }
            if !known.1.take(limit, 1, now_ms) {
                let message = format!("Too many requests for current {what}!");
                return Err(ThingsboardError::new(ThingsboardErrorCode::TooManyRequests, message));
            }
        }
        Ok(())
    }

    /// Waits for one of the threads that may work for the tenant.
    pub async fn wait_for_thread(&self, tenant: TenantId) -> QuotaPermit {
        let threads = self.of(tenant, |of| Arc::clone(&of.threads))?;
        threads.acquire_owned().await.ok()
    }

    /// Returns at once. Fails if the tenant has reached the limit of transfers.
    pub fn transfer(&self, tenant: TenantId) -> Result<QuotaPermit, ThingsboardError> {
        let Some(transfers) = self.of(tenant, |of| Arc::clone(&of.transfers)) else {
            return Ok(None);
        };
        let message = format!(
            "{TRANSFERS_OF_TENANT} exports or package transfers of this tenant are running; try again when one has ended"
        );
        let taken = transfers.try_acquire_owned();
        taken
            .map(Some)
            .map_err(|_| ThingsboardError::new(ThingsboardErrorCode::TooManyRequests, message).retry_after(1))
    }

    fn of<T>(&self, tenant: TenantId, part: impl FnOnce(&TenantQuotaState) -> T) -> Option<T> {
        (tenant != TenantId::NULL).then(|| part(self.lock().tenants.entry(tenant).or_default()))
    }
}

#[cfg(test)]
mod tests {
    use platform::ids::{CustomerId, UserId};
    use platform::model::Authority;
    use serde_json::json;

    use super::*;

    fn principal(tenant: u8, customer: u8) -> Principal {
        Principal {
            id: UserId(Uuid([1; 16])),
            authority: Authority::CustomerUser,
            tenant: TenantId(Uuid([tenant; 16])),
            customer: CustomerId(Uuid([customer; 16])),
            name: "a@b.c".to_owned(),
            session: "s".to_owned(),
            console_login: None,
            login_at: None,
            issuers: Vec::new(),
            screen: None,
        }
    }

    #[test]
    fn tenant_cannot_occupy_all_requests() {
        let quotas = Arc::new(TenantQuotas::default());
        let [one, other] = [1, 2].map(|n| principal(n, 9).tenant);
        let taken: Vec<_> = std::iter::from_fn(|| quotas.admit(one, 64).ok()).collect();
        assert_eq!(taken.len(), 48);
        assert!(quotas.admit(other, 64).is_ok());
        assert!(quotas.admit(TenantId::NULL, 64).is_ok());
        drop(taken);
        assert!(quotas.lock().tenants.is_empty());
    }

    #[tokio::test]
    async fn tenant_cannot_occupy_all_threads_and_transfers() {
        let quotas = TenantQuotas::default();
        let [one, other] = [1, 2].map(|n| principal(n, 9).tenant);
        let mut turns = Vec::new();
        for _ in 0..THREADS_OF_TENANT {
            turns.push(quotas.wait_for_thread(one).await);
        }
        let waits = tokio::time::timeout(std::time::Duration::from_millis(20), quotas.wait_for_thread(one));
        assert!(waits.await.is_err());
        assert!(quotas.wait_for_thread(other).await.is_some());
        turns.pop();
        assert!(quotas.wait_for_thread(one).await.is_some());
        let transfers: Vec<_> = std::iter::from_fn(|| quotas.transfer(one).ok()).collect();
        assert_eq!(transfers.len(), TRANSFERS_OF_TENANT);
        assert!(quotas.transfer(other).is_ok());
    }

    #[test]
    fn rate_limits_follow_profile_changes() {
        let quotas = TenantQuotas::default();
        let limits = |tenant: &str, customer: &str| {
            let configuration = json!({"tenantServerRestLimitsConfiguration": tenant, "customerServerRestLimitsConfiguration": customer});
            TenantLimits::parse(&configuration).unwrap()
        };
        let limit = limits("3:10", "2:10");
        let asks = |customer: u8, limit: &TenantLimits| {
            let checked = quotas.check_rates(&principal(1, customer), limit, 0);
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
