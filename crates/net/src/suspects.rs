//! Addresses from which wrong passwords came lately. Their logins are checked after everybody else's.
//!
//! They are not refused: behind one address may be a whole fleet with one device that is set up wrongly. Each failure counts for
//! `FORGET_EVERY`; with more than `FAILURES_MAX` that still count, an address is suspect. An IPv6 customer has a whole /64, so
//! that is one address. The table is bounded; a flood of addresses makes it forget those that are nearly forgiven.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

const ADDRESSES_MAX: usize = 4096;
const FAILURES_MAX: u32 = 5;
const FORGET_EVERY: Duration = Duration::from_secs(10);
/// A flood of failures is forgiven after this at the latest.
const FORGET_ALL: Duration = Duration::from_secs(120);

#[derive(Default)]
pub(crate) struct Suspects {
    /// When all failures of an address will be forgotten.
    forgotten_at: Mutex<HashMap<IpAddr, Instant>>,
}

impl Suspects {
    pub(crate) fn failed(&self, address: IpAddr, now: Instant) {
        let mut table = self.lock();
        let address = network(address);
        if !table.contains_key(&address) && table.len() >= ADDRESSES_MAX {
            make_room(&mut table, now);
        }
        let forgotten_at = table.entry(address).or_insert(now);
        *forgotten_at = ((*forgotten_at).max(now) + FORGET_EVERY).min(now + FORGET_ALL);
    }

    pub(crate) fn is_suspect(&self, address: IpAddr, now: Instant) -> bool {
        let forgotten_at = self.lock().get(&network(address)).copied();
        forgotten_at.is_some_and(|at| at > now + FORGET_EVERY * FAILURES_MAX)
    }

    // Every update leaves the map valid, so a panic elsewhere cannot have broken it.
    fn lock(&self) -> MutexGuard<'_, HashMap<IpAddr, Instant>> {
        self.forgotten_at.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn make_room(table: &mut HashMap<IpAddr, Instant>, now: Instant) {
    table.retain(|_, forgotten_at| *forgotten_at > now);
    if table.len() >= ADDRESSES_MAX {
        let least = table.values().min().copied().unwrap_or(now);
        table.retain(|_, forgotten_at| *forgotten_at > least);
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
    use super::*;

    #[test]
    fn some_mistakes_are_allowed_and_all_are_forgotten() {
        let (suspects, now) = (Suspects::default(), Instant::now());
        let address = "2001:db8::7".parse().unwrap();
        for _ in 0..FAILURES_MAX {
            suspects.failed(address, now);
            assert!(!suspects.is_suspect(address, now));
        }
        for _ in 0..100 {
            suspects.failed("2001:db8::8".parse().unwrap(), now);
        }
        assert!(suspects.is_suspect(address, now), "the same /64");
        assert!(!suspects.is_suspect("2001:db8:1::7".parse().unwrap(), now));
        assert!(!suspects.is_suspect(address, now + FORGET_ALL));
    }

    #[test]
    fn the_table_is_bounded_and_keeps_the_worst() {
        let (suspects, now) = (Suspects::default(), Instant::now());
        let worst = "10.0.0.1".parse().unwrap();
        for _ in 0..20 {
            suspects.failed(worst, now);
        }
        for n in 0..3 * ADDRESSES_MAX as u32 {
            suspects.failed(IpAddr::V4((0x0B00_0000 + n).into()), now);
        }
        assert!(suspects.lock().len() <= ADDRESSES_MAX);
        assert!(suspects.is_suspect(worst, now));
    }
}
