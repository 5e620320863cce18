//! Addresses with recent failed logins. Their logins are verified after those of all other clients.
//!
//! They are not rejected here: one address may be a whole fleet behind NAT with a single misconfigured device. Each
//! failure counts for `FAILURE_LIFETIME`. With more than `FAILURES_MAX` counting failures an address has low priority.
//! An IPv6 customer has a whole /64, so each /64 counts as one address. The table is bounded: a flood of addresses
//! evicts those whose failures expire first.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use broker::client_network;

const ADDRESSES_MAX: usize = 4096;
const FAILURES_MAX: u32 = 5;
const FAILURE_LIFETIME: Duration = Duration::from_secs(10);
/// All failures of an address expire after this time at the latest.
const FAILURES_LIFETIME_MAX: Duration = Duration::from_secs(120);

#[derive(Default)]
pub(crate) struct FailedLogins {
    /// When all failures of an address will have expired.
    expires_at: Mutex<HashMap<IpAddr, Instant>>,
}

impl FailedLogins {
    pub(crate) fn record(&self, address: IpAddr, now: Instant) {
        let mut table = self.lock();
        let address = client_network(address);
        if !table.contains_key(&address) && table.len() >= ADDRESSES_MAX {
            evict(&mut table, now);
        }
        let expires_at = table.entry(address).or_insert(now);
        *expires_at = ((*expires_at).max(now) + FAILURE_LIFETIME).min(now + FAILURES_LIFETIME_MAX);
    }

    pub(crate) fn has_many_failures(&self, address: IpAddr, now: Instant) -> bool {
        let expires_at = self.lock().get(&client_network(address)).copied();
        expires_at.is_some_and(|at| at > now + FAILURE_LIFETIME * FAILURES_MAX)
    }

    // Every update leaves the map valid, so a panic cannot leave it inconsistent.
    fn lock(&self) -> MutexGuard<'_, HashMap<IpAddr, Instant>> {
        self.expires_at.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn evict(table: &mut HashMap<IpAddr, Instant>, now: Instant) {
    table.retain(|_, expires_at| *expires_at > now);
    if table.len() >= ADDRESSES_MAX {
        let least = table.values().min().copied().unwrap_or(now);
        table.retain(|_, expires_at| *expires_at > least);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_failures_are_allowed_and_all_expire() {
        let (failed_logins, now) = (FailedLogins::default(), Instant::now());
        let address = "2001:db8::7".parse().unwrap();
        for _ in 0..FAILURES_MAX {
            failed_logins.record(address, now);
            assert!(!failed_logins.has_many_failures(address, now));
        }
        for _ in 0..100 {
            failed_logins.record("2001:db8::8".parse().unwrap(), now);
        }
        assert!(failed_logins.has_many_failures(address, now), "the same /64");
        assert!(!failed_logins.has_many_failures("2001:db8:1::7".parse().unwrap(), now));
        assert!(!failed_logins.has_many_failures(address, now + FAILURES_LIFETIME_MAX));
    }

    #[test]
    fn table_is_bounded_and_keeps_the_worst() {
        let (failed_logins, now) = (FailedLogins::default(), Instant::now());
        let worst = "10.0.0.1".parse().unwrap();
        for _ in 0..20 {
            failed_logins.record(worst, now);
        }
        for n in 0..3 * ADDRESSES_MAX as u32 {
            failed_logins.record(IpAddr::V4((0x0B00_0000 + n).into()), now);
        }
        assert!(failed_logins.lock().len() <= ADDRESSES_MAX);
        assert!(failed_logins.has_many_failures(worst, now));
    }
}
