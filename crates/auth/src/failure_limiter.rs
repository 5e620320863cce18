//! Limits wrong passwords and other secrets per address: a burst, then a steady rate.
//!
//! An IPv6 customer usually has a /64, so a /64 counts as one address. The table is bounded. If it is full, it drops
//! the address with the fewest recent failures, so that an attack from many addresses cannot lock out other users.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

const ADDRESSES_MAX: usize = 4096;
const BURST: u32 = 10;
const EVERY: Duration = Duration::from_secs(6);

#[derive(Default)]
pub struct FailureLimiter {
    /// When an address has its whole burst available again.
    full_at: Mutex<HashMap<IpAddr, Instant>>,
}

impl FailureLimiter {
    /// Counts an attempt, or returns how long to wait for the next one.
    pub fn admit(&self, address: IpAddr, now: Instant) -> Result<(), Duration> {
        let mut table = self.lock();
        let address = network(address);
        if !table.contains_key(&address) && table.len() >= ADDRESSES_MAX {
            evict_if_full(&mut table, now);
        }
        let full_at = table.entry(address).or_insert(now);
        let next = (*full_at).max(now) + EVERY;
        let latest = now + EVERY * BURST;
        if next > latest {
            return Err(next - latest);
        }
        *full_at = next;
        Ok(())
    }

    /// The secret was right: does not count the attempt.
    pub fn refund(&self, address: IpAddr) {
        if let Some(full_at) = self.lock().get_mut(&network(address)) {
            *full_at -= EVERY;
        }
    }

    // Each update leaves the map consistent, so a panic in another thread cannot break it.
    fn lock(&self) -> MutexGuard<'_, HashMap<IpAddr, Instant>> {
        self.full_at.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn evict_if_full(table: &mut HashMap<IpAddr, Instant>, now: Instant) {
    table.retain(|_, full_at| *full_at > now);
    let first_to_fill = || {
        table
            .iter()
            .min_by_key(|(_, full_at)| **full_at)
            .map(|(address, _)| *address)
    };
    if table.len() >= ADDRESSES_MAX
        && let Some(address) = first_to_fill()
    {
        table.remove(&address);
    }
}

fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() >> 64 << 64)),
        v4 => v4,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn burst_passes_then_one_attempt_per_interval() {
        let (limiter, now) = (FailureLimiter::default(), Instant::now());
        let a = address("10.0.0.1");
        assert!((0..BURST).all(|_| limiter.admit(a, now).is_ok()));
        assert_eq!(limiter.admit(a, now), Err(EVERY));
        assert_eq!(limiter.admit(a, now + EVERY), Ok(()));
        assert!(limiter.admit(a, now + EVERY).is_err());
        assert_eq!(limiter.admit(address("10.0.0.2"), now), Ok(()));
    }

    #[test]
    fn successful_logins_are_not_counted() {
        let (limiter, now) = (FailureLimiter::default(), Instant::now());
        let a = address("::1");
        for _ in 0..10 * BURST {
            limiter.admit(a, now).unwrap();
            limiter.refund(a);
        }
    }

    #[test]
    fn ipv6_network_counts_as_one_address() {
        let (limiter, now) = (FailureLimiter::default(), Instant::now());
        for n in 0..BURST {
            limiter.admit(address(&format!("2001:db8::{n}")), now).unwrap();
        }
        assert!(limiter.admit(address("2001:db8::ffff"), now).is_err());
        assert!(limiter.admit(address("2001:db8:0:1::1"), now).is_ok());
    }

    #[test]
    fn full_table_keeps_the_worst_addresses() {
        let (limiter, now) = (FailureLimiter::default(), Instant::now());
        let worst = address("192.0.2.1");
        while limiter.admit(worst, now).is_ok() {}
        for n in 0..2 * ADDRESSES_MAX as u32 {
            limiter.admit(IpAddr::V4((0x0a00_0000 + n).into()), now).unwrap();
        }
        assert!(limiter.lock().len() <= ADDRESSES_MAX);
        assert!(limiter.admit(worst, now).is_err());
    }
}
