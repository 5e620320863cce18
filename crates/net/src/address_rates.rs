//! The rate of new connections from each address. An address whose bucket is full is not stored.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};

use broker::{TokenBucket, TokenRate, client_network};

/// Number of addresses below which the server does not look for full buckets.
const SWEEP_MIN: usize = 1024;
/// Maximum number of addresses: about 60 MB. If more have used their rate at the same time, all begin again.
const ADDRESSES_MAX: usize = 1 << 20;

/// Token buckets by address. Locked when a connection is accepted.
pub(crate) struct AddressRates {
    rate: TokenRate,
    table: Mutex<AddressTable>,
}

#[derive(Default)]
struct AddressTable {
    buckets: HashMap<IpAddr, TokenBucket>,
    /// Number of addresses at which full buckets are removed.
    sweep_at: usize,
}

impl AddressRates {
    pub(crate) fn new(rate: TokenRate) -> AddressRates {
        AddressRates {
            rate,
            table: Mutex::default(),
        }
    }

    /// Counts a connection from an address. Returns false if it exceeds the rate.
    pub(crate) fn admit(&self, address: IpAddr, now_ms: u64) -> bool {
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        let network = client_network(address);
        if !table.buckets.contains_key(&network) && table.buckets.len() >= table.sweep_at.max(SWEEP_MIN) {
            table.buckets.retain(|_, bucket| !bucket.is_full(now_ms));
            if table.buckets.len() >= ADDRESSES_MAX {
                table.buckets.clear();
            }
            table.sweep_at = (table.buckets.len() * 2).min(ADDRESSES_MAX);
        }
        table.buckets.entry(network).or_default().try_take(self.rate, now_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW_MS: u64 = 1 << 42;
    const TWO_PER_S: TokenRate = TokenRate {
        amount: 2,
        period_ms: 1000,
    };

    #[test]
    fn each_address_has_its_own_rate() {
        let rates = AddressRates::new(TWO_PER_S);
        let admit = |text: &str, at_ms| rates.admit(text.parse().unwrap(), NOW_MS + at_ms);
        let three = |text| [0, 1, 2].map(|at_ms| admit(text, at_ms));
        assert_eq!(three("10.0.0.1"), [true, true, false]);
        assert!(!admit("::ffff:10.0.0.1", 400), "the same address");
        assert!(admit("10.0.0.1", 500));
        assert_eq!(three("10.0.0.2"), [true, true, false]);
        assert_eq!(three("2001:db8::1"), [true, true, false]);
        assert!(!admit("2001:db8::2", 3), "the same network");
        assert!(admit("2001:db8:0:1::1", 3));
    }

    #[test]
    fn addresses_with_a_full_bucket_are_removed() {
        let rates = AddressRates::new(TWO_PER_S);
        for n in 0..SWEEP_MIN as u32 {
            assert!(rates.admit(std::net::Ipv4Addr::from(n).into(), NOW_MS));
        }
        assert!(rates.admit(IpAddr::from([10, 0, 0, 1]), NOW_MS + 1000));
        assert_eq!(rates.table.lock().unwrap().buckets.len(), 1);
    }
}
