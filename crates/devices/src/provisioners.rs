//! Limits wrong provisioning secrets per address over MQTT. The HTTP API has a limit of its own.
//!
//! A request is processed after it was written to the log, so the address of its session is looked up here. Sessions
//! that are no longer listed, as after a restart, share one limit.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use auth::FailureLimiter;
use platform::ids::Uuid;

/// Limit of listed sessions. Above it, the oldest is dropped.
const SESSIONS_MAX: usize = 10_000;

#[derive(Default)]
pub struct Provisioners {
    /// By the number of the session.
    addresses: Mutex<BTreeMap<u64, IpAddr>>,
    limiter: FailureLimiter,
}

impl Provisioners {
    pub fn add(&self, number: u64, address: IpAddr) {
        let mut addresses = self.addresses.lock().unwrap_or_else(PoisonError::into_inner);
        if addresses.len() >= SESSIONS_MAX {
            addresses.pop_first();
        }
        addresses.insert(number, address);
    }

    /// Counts a request. Returns `false` if its address has sent too many wrong secrets.
    pub fn admit(&self, session: Uuid) -> bool {
        self.limiter.admit(self.address(session), Instant::now()).is_ok()
    }

    /// The secret was right: does not count the request.
    pub fn refund(&self, session: Uuid) {
        self.limiter.refund(self.address(session));
    }

    fn address(&self, session: Uuid) -> IpAddr {
        let mut number = [0; 8];
        number.copy_from_slice(&session.0[8..]);
        let addresses = self.addresses.lock().unwrap_or_else(PoisonError::into_inner);
        let address = addresses.get(&u64::from_be_bytes(number));
        address.copied().unwrap_or(Ipv6Addr::UNSPECIFIED.into())
    }
}
