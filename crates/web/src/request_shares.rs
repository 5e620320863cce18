//! Limits the share of one address in the concurrent requests, so that slow requests of one client leave the API to the
//! others.
//!
//! The share is the same as that of the connections: with the defaults, half. An IPv6 /64 counts as one address.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use net::client_network;

use crate::limits::ApiLimits;

/// The requests in progress of each address.
pub(crate) struct RequestShares {
    per_address_max: usize,
    in_progress: Mutex<HashMap<IpAddr, usize>>,
}

/// A request in progress, until it is dropped.
pub(crate) struct SharedRequest {
    shares: Arc<RequestShares>,
    network: IpAddr,
}

impl RequestShares {
    pub(crate) fn new(limits: &ApiLimits) -> Arc<RequestShares> {
        Arc::new(RequestShares {
            per_address_max: limits.requests_per_address_max(),
            in_progress: Mutex::default(),
        })
    }

    /// `None`: the address has used up its share.
    pub(crate) fn begin(self: &Arc<RequestShares>, address: IpAddr) -> Option<SharedRequest> {
        let network = client_network(address);
        let mut in_progress = self.lock();
        let of_network = in_progress.entry(network).or_default();
        if *of_network >= self.per_address_max {
            return None;
        }
        *of_network += 1;
        Some(SharedRequest {
            shares: self.clone(),
            network,
        })
    }

    // Every update leaves the map valid, so a panic cannot leave it inconsistent.
    fn lock(&self) -> MutexGuard<'_, HashMap<IpAddr, usize>> {
        self.in_progress.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for SharedRequest {
    fn drop(&mut self) {
        let mut in_progress = self.shares.lock();
        let Some(of_network) = in_progress.get_mut(&self.network) else {
            return;
        };
        *of_network -= 1;
        if *of_network == 0 {
            in_progress.remove(&self.network);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shares(max_connections_per_address: usize) -> Arc<RequestShares> {
        RequestShares::new(&ApiLimits {
            connections_max: 8,
            max_connections_per_address,
            requests_max: 4,
            ..ApiLimits::default()
        })
    }

    #[test]
    fn address_with_its_share_does_not_limit_others() {
        let shares = shares(4);
        let begin = |address: &str| shares.begin(address.parse().expect("an address"));
        let first = begin("2001:db8::1").expect("a share");
        let second = begin("2001:db8::2").expect("a share");
        assert!(begin("2001:db8::3").is_none());
        let _other = begin("10.0.0.1").expect("a share of its own");
        drop(first);
        let third = begin("2001:db8::3").expect("a free share");
        drop((second, third));
        assert_eq!(shares.lock().len(), 1);
    }

    #[test]
    fn share_is_that_of_the_connections() {
        for (max_connections_per_address, expected) in [(1, 1), (2, 1), (4, 2), (8, 4), (100, 4)] {
            assert_eq!(shares(max_connections_per_address).per_address_max, expected);
        }
    }
}
