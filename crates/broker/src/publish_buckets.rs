//! The token buckets of publish limits that connections share: those of users, addresses and listeners.
//!
//! They belong to the node, so they apply to connections of all shards. A bucket outlives its connections until it is
//! full: a client that reconnects gets no new burst.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use crate::owners::owner_name;
use crate::publish_limits::{PublishLimit, PublishLimits, PublishRates};
use crate::publish_quota::{PublishBuckets, PublishQuota, QuotaPart};

/// Number of buckets below which the node does not look for full ones.
const SWEEP_MIN: usize = 1024;
/// Memory of buckets above which even those that are not full are removed, if no connection uses them: their owners
/// get a new burst. An owner has a name of up to 64 KiB.
const TABLE_BYTES_MAX: usize = 64 << 20;
/// Memory of a bucket without the name of its owner, which is stored twice.
const BUCKET_BYTES: usize = 192;

/// The properties of a client that select its buckets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PublisherIdentity<'a> {
    pub user_name: Option<&'a str>,
    /// A device of the platform. Its name is not that of a user: two tenants can have devices with the same name.
    pub is_device: bool,
    pub address: IpAddr,
    pub listener: u16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum BucketScope {
    User,
    Address,
    Listener,
}

/// The buckets of a node. Locked when a client connects, and only if one of the limits is set.
#[derive(Debug, Default)]
pub struct SharedBuckets(Mutex<BucketTable>);

#[derive(Debug, Default)]
struct BucketTable {
    buckets: HashMap<(BucketScope, Box<str>), Arc<PublishBuckets>>,
    /// Memory of the buckets.
    bytes: usize,
    /// Number and memory of buckets at which unused ones are removed.
    sweep_at: usize,
    sweep_at_bytes: usize,
}

impl BucketTable {
    /// Removes buckets that no connection uses: the full ones, and the others if the memory is still exceeded.
    fn sweep(&mut self, now_ms: u64) {
        let is_used = |buckets: &Arc<PublishBuckets>| Arc::strong_count(buckets) > 1;
        self.buckets
            .retain(|_, buckets| is_used(buckets) || !buckets.is_unused(now_ms));
        if self.count_bytes() >= TABLE_BYTES_MAX / 2 {
            self.buckets.retain(|_, buckets| is_used(buckets));
        }
        self.bytes = self.count_bytes();
        self.sweep_at = self.buckets.len() * 2;
        self.sweep_at_bytes = self.bytes * 2;
    }

    fn count_bytes(&self) -> usize {
        self.buckets.keys().map(|(_, owner)| bucket_bytes(owner)).sum()
    }
}

fn bucket_bytes(owner: &str) -> usize {
    BUCKET_BYTES + 2 * owner.len()
}

impl SharedBuckets {
    /// Returns the quota of a connection, or `None` if no limit applies to it.
    pub(crate) fn quota(
        &self,
        limits: &PublishLimits,
        of: PublisherIdentity<'_>,
        now_ms: u64,
    ) -> Option<Box<PublishQuota>> {
        use PublishLimit::{
            AddressBytes, AddressMessages, ClientBytes, ClientMessages, ListenerBytes, ListenerMessages, UserBytes,
            UserMessages,
        };
        let mut parts = Vec::new();
        let mut add = |rates: &PublishRates, limits: [PublishLimit; 2], buckets: Arc<PublishBuckets>| {
            for (rate, limit) in [rates.messages, rates.bytes].into_iter().zip(limits) {
                parts.extend(rate.map(|rate| QuotaPart::new(limit, rate, buckets.clone())));
            }
        };
        // The narrowest limit comes first: a client that waits for its own tokens holds none of others.
        if !limits.client.is_unlimited() {
            add(&limits.client, [ClientMessages, ClientBytes], Arc::default());
        }
        if !limits.user.is_unlimited() && !of.is_device {
            let name = owner_name(of.user_name, of.address);
            let buckets = self.buckets(BucketScope::User, name, now_ms);
            add(&limits.user, [UserMessages, UserBytes], buckets);
        }
        if !limits.address.is_unlimited() {
            let name = owner_name(None, of.address);
            let buckets = self.buckets(BucketScope::Address, name, now_ms);
            add(&limits.address, [AddressMessages, AddressBytes], buckets);
        }
        let listener = limits.listeners.get(usize::from(of.listener));
        if let Some(listener) = listener.filter(|listener| !listener.rates.is_unlimited()) {
            let name = format!("listener:{}", listener.label);
            let buckets = self.buckets(BucketScope::Listener, name, now_ms);
            add(&listener.rates, [ListenerMessages, ListenerBytes], buckets);
        }
        (!parts.is_empty()).then(|| Box::new(PublishQuota::new(parts)))
    }

    fn buckets(&self, scope: BucketScope, owner: String, now_ms: u64) -> Arc<PublishBuckets> {
        let mut table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (scope, owner.into_boxed_str());
        if let Some(buckets) = table.buckets.get(&key) {
            return buckets.clone();
        }
        let is_due = table.buckets.len() >= table.sweep_at.max(SWEEP_MIN)
            || table.bytes >= table.sweep_at_bytes.max(TABLE_BYTES_MAX);
        if is_due {
            table.sweep(now_ms);
        }
        table.bytes += bucket_bytes(&key.1);
        let buckets = Arc::new(PublishBuckets::of_owner(key.1.clone()));
        table.buckets.insert(key, buckets.clone());
        buckets
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::publish_limits::ListenerRates;
    use crate::publish_quota::Throttling;
    use crate::token_bucket::TokenRate;

    const NOW_MS: u64 = 1 << 42;
    const SLOW: PublishRates = PublishRates {
        messages: Some(TokenRate {
            amount: 1,
            period_ms: 1000,
        }),
        bytes: None,
    };

    fn identity(user_name: Option<&str>, address: [u8; 4]) -> PublisherIdentity<'_> {
        PublisherIdentity {
            user_name,
            is_device: false,
            address: address.into(),
            listener: 1,
        }
    }

    fn limited(limits: &PublishLimits, shared: &SharedBuckets, of: PublisherIdentity<'_>) -> Option<PublishLimit> {
        match shared.quota(limits, of, NOW_MS)?.take(NOW_MS, 10) {
            Err(Throttling::Wait(limit)) => Some(limit),
            _ => None,
        }
    }

    #[test]
    fn users_addresses_and_listeners_have_separate_buckets() {
        let user = PublishLimits {
            user: SLOW,
            ..PublishLimits::default()
        };
        let shared = SharedBuckets::default();
        let alice = identity(Some("alice"), [10, 0, 0, 1]);
        assert_eq!(limited(&user, &shared, alice), None);
        let elsewhere = identity(Some("alice"), [10, 0, 0, 2]);
        assert_eq!(limited(&user, &shared, elsewhere), Some(PublishLimit::UserMessages));
        assert_eq!(limited(&user, &shared, identity(Some("bob"), [10, 0, 0, 1])), None);
        let anonymous = identity(None, [10, 0, 0, 1]);
        assert_eq!(limited(&user, &shared, anonymous), None);
        assert_eq!(limited(&user, &shared, anonymous), Some(PublishLimit::UserMessages));
        let address = PublishLimits {
            address: SLOW,
            ..PublishLimits::default()
        };
        assert_eq!(limited(&address, &shared, alice), None, "not the bucket of the user");
        assert_eq!(
            limited(&address, &shared, anonymous),
            Some(PublishLimit::AddressMessages)
        );
        let second = ListenerRates {
            label: "tcp.b".into(),
            rates: SLOW,
        };
        let listeners = PublishLimits {
            listeners: vec![ListenerRates::default(), second],
            ..PublishLimits::default()
        };
        assert_eq!(limited(&listeners, &shared, alice), None);
        assert_eq!(
            limited(&listeners, &shared, anonymous),
            Some(PublishLimit::ListenerMessages)
        );
        let first = PublisherIdentity { listener: 0, ..alice };
        assert!(shared.quota(&listeners, first, NOW_MS).is_none());
        let unknown = PublisherIdentity { listener: 7, ..alice };
        assert!(shared.quota(&listeners, unknown, NOW_MS).is_none());
    }

    #[test]
    fn devices_of_the_platform_do_not_use_the_bucket_of_a_user() {
        let limits = PublishLimits {
            user: SLOW,
            ..PublishLimits::default()
        };
        let shared = SharedBuckets::default();
        let alice = identity(Some("alice"), [10, 0, 0, 1]);
        let device = PublisherIdentity {
            is_device: true,
            ..alice
        };
        assert!(shared.quota(&limits, device, NOW_MS).is_none());
        assert_eq!(limited(&limits, &shared, alice), None);
    }

    #[test]
    fn full_buckets_without_connections_are_removed() {
        let shared = SharedBuckets::default();
        let limits = PublishLimits {
            user: SLOW,
            ..PublishLimits::default()
        };
        for n in 0..SWEEP_MIN {
            let name = format!("user {n}");
            let mut quota = shared.quota(&limits, identity(Some(&name), [10, 0, 0, 1]), NOW_MS);
            if n == 0 {
                let taken = quota.as_mut().map(|quota| quota.take(NOW_MS, 1));
                assert_eq!(taken, Some(Ok(())));
            }
        }
        shared.quota(&limits, identity(Some("last"), [10, 0, 0, 1]), NOW_MS);
        let table = shared.0.lock().unwrap();
        assert_eq!(table.buckets.len(), 2, "the bucket that is not full, and the last one");
    }

    #[test]
    fn long_names_of_owners_take_a_limited_amount_of_memory() {
        let shared = SharedBuckets::default();
        let limits = PublishLimits {
            user: SLOW,
            ..PublishLimits::default()
        };
        let bucket_of = |number: usize| {
            let name = format!("{number:060000}");
            let mut quota = shared.quota(&limits, identity(Some(&name), [10, 0, 0, 1]), NOW_MS);
            quota.as_mut().map(|quota| quota.take(NOW_MS, 1));
            quota
        };
        let connected = bucket_of(0);
        let fitting = TABLE_BYTES_MAX / bucket_bytes(&"0".repeat(60_000));
        for number in 1..3 * fitting {
            drop(bucket_of(number));
            let table = shared.0.lock().unwrap();
            assert!(table.bytes <= TABLE_BYTES_MAX + bucket_bytes(&"0".repeat(60_010)));
            assert_eq!(table.bytes, table.count_bytes());
        }
        // The owner with a connection has no new burst.
        let again = bucket_of(0);
        assert!(connected.is_some() && again.is_some_and(|quota| quota.throttled_by().is_some()));
    }
}
