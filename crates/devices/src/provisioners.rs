//! Limits wrong provisioning secrets per address over MQTT.
//!
//! A request is processed after it was written to the log, so the address of its session is looked up here. Sessions
//! that are no longer listed, as after a restart, share one limit.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use auth::{LoginAttempt, LoginKind, LoginLimiter};
use platform::ids::Uuid;

use crate::mutex::lock;
use crate::session_id::{provisioning_number, provisioning_session};

/// Limit of listed sessions. Above it, the oldest is dropped.
const SESSIONS_MAX: usize = 10_000;

pub struct Provisioners {
    /// Sessions since the start.
    count: AtomicU64,
    /// By the number of the session.
    addresses: Mutex<BTreeMap<u64, IpAddr>>,
    limiter: Arc<LoginLimiter>,
}

impl Provisioners {
    pub fn new(limiter: Arc<LoginLimiter>) -> Provisioners {
        Provisioners {
            count: AtomicU64::new(0),
            addresses: Mutex::default(),
            limiter,
        }
    }

    /// Returns a new session for a client with this address.
    pub fn new_session(&self, address: IpAddr) -> Uuid {
        let number = self.count.fetch_add(1, Relaxed);
        let mut addresses = lock(&self.addresses);
        if addresses.len() >= SESSIONS_MAX {
            addresses.pop_first();
        }
        addresses.insert(number, address);
        provisioning_session(number)
    }

    /// Returns `false` if the address of the session has sent too many wrong secrets.
    pub fn admit(&self, session: Uuid, secret: &[u8]) -> bool {
        self.limiter
            .admit(&self.attempt(session, secret), Instant::now())
            .is_ok()
    }

    /// Records whether the secret of an admitted request was right.
    pub fn record(&self, session: Uuid, secret: &[u8], is_known: bool) {
        let attempt = self.attempt(session, secret);
        match is_known {
            true => self.limiter.record_success(&attempt),
            false => self.limiter.record_failure(&attempt, Instant::now()),
        }
    }

    fn attempt<'a>(&self, session: Uuid, secret: &'a [u8]) -> LoginAttempt<'a> {
        LoginAttempt {
            kind: LoginKind::Provisioning,
            address: self.address(session),
            user_name: None,
            secret,
        }
    }

    fn address(&self, session: Uuid) -> IpAddr {
        let addresses = lock(&self.addresses);
        let address = addresses.get(&provisioning_number(session));
        address.copied().unwrap_or(Ipv6Addr::UNSPECIFIED.into())
    }
}
