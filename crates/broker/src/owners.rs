//! Counts the sessions, subscriptions, queued bytes, retained and delayed messages of each owner, and checks the limits
//! of owners.
//!
//! An owner is a user. Clients without a user name have one owner per address, because a client can choose a new client
//! id at any time. IPv6 addresses count by their /64, which one machine can use completely. Within an owner, the
//! messages of each client are counted by the hash of its client id. A client that finds an id with the same hash only
//! affects clients of its own user, whose sessions it could take over anyway.
//!
//! All shards share the counters. The locks are taken when a session is created, when a client stores its first
//! message, and when a topic gets its first retained message of a user or loses it. Other messages take no lock.
//! Messages of the server and of journal records of version 1 have no owner and count in the total only.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::fair_share::client_network;

/// Minimum interval between two reports about the same owner.
const REPORT_INTERVAL_MS: u64 = 1000;

/// Kinds of state that are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Holding {
    /// Sessions, and the bytes of their client ids, wills and attributes.
    Session,
    Retained,
    Delayed,
}

impl Holding {
    const COUNT: usize = 3;
}

/// Limits of a user, or of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnerLimits {
    pub sessions: u64,
    /// Bytes of the client ids, wills and attributes.
    pub session_bytes: u64,
    pub subscriptions: u64,
    /// Bytes of the queues of all sessions. `u64::MAX`: they are not counted.
    pub queued_bytes: u64,
    pub retained_messages: u64,
    pub retained_bytes: u64,
    pub delayed_messages: u64,
    pub delayed_bytes: u64,
    /// Bytes of the retained and delayed messages in the journal.
    pub journal_bytes: u64,
}

impl OwnerLimits {
    pub const NONE: OwnerLimits = OwnerLimits {
        sessions: u64::MAX,
        session_bytes: u64::MAX,
        subscriptions: u64::MAX,
        queued_bytes: u64::MAX,
        retained_messages: u64::MAX,
        retained_bytes: u64::MAX,
        delayed_messages: u64::MAX,
        delayed_bytes: u64::MAX,
        journal_bytes: u64::MAX,
    };

    fn of(&self, holding: Holding) -> (u64, u64) {
        match holding {
            Holding::Session => (self.sessions, self.session_bytes),
            Holding::Retained => (self.retained_messages, self.retained_bytes),
            Holding::Delayed => (self.delayed_messages, self.delayed_bytes),
        }
    }
}

/// A limit that a client has reached. Each has a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum OwnerLimit {
    Sessions,
    SessionBytes,
    ClientIdBytes,
    WillBytes,
    /// Memory of the enhanced authentications of all clients.
    ExchangeBytes,
    Subscriptions,
    RetainedMessages,
    RetainedBytes,
    DelayedMessages,
    DelayedBytes,
    JournalBytes,
}

impl OwnerLimit {
    pub const COUNT: usize = 11;

    pub const ALL: [OwnerLimit; Self::COUNT] = [
        OwnerLimit::Sessions,
        OwnerLimit::SessionBytes,
        OwnerLimit::ClientIdBytes,
        OwnerLimit::WillBytes,
        OwnerLimit::ExchangeBytes,
        OwnerLimit::Subscriptions,
        OwnerLimit::RetainedMessages,
        OwnerLimit::RetainedBytes,
        OwnerLimit::DelayedMessages,
        OwnerLimit::DelayedBytes,
        OwnerLimit::JournalBytes,
    ];

    /// Name in metrics and logs.
    pub const fn name(self) -> &'static str {
        match self {
            OwnerLimit::Sessions => "sessions",
            OwnerLimit::SessionBytes => "session_bytes",
            OwnerLimit::ClientIdBytes => "client_id_bytes",
            OwnerLimit::WillBytes => "will_bytes",
            OwnerLimit::ExchangeBytes => "exchange_bytes",
            OwnerLimit::Subscriptions => "subscriptions",
            OwnerLimit::RetainedMessages => "retained_messages",
            OwnerLimit::RetainedBytes => "retained_bytes",
            OwnerLimit::DelayedMessages => "delayed_messages",
            OwnerLimit::DelayedBytes => "delayed_bytes",
            OwnerLimit::JournalBytes => "journal_bytes",
        }
    }

    /// Why a CONNECT is rejected, for the client and the operator. Empty for limits of messages and subscriptions.
    pub const fn rejection(self) -> &'static str {
        match self {
            OwnerLimit::Sessions => "limits.max_sessions_per_user is reached",
            OwnerLimit::SessionBytes => "limits.max_session_bytes_per_user is reached",
            OwnerLimit::ClientIdBytes => "the client id is longer than mqtt.max_client_id_length",
            OwnerLimit::WillBytes => "the will is larger than mqtt.max_will_size",
            OwnerLimit::ExchangeBytes => "too many enhanced authentications are not complete",
            _ => "",
        }
    }

    /// Returns the limit with this `rejection`.
    pub fn of_rejection(detail: &str) -> Option<OwnerLimit> {
        let limits = OwnerLimit::ALL.into_iter();
        limits
            .filter(|limit| !limit.rejection().is_empty())
            .find(|limit| limit.rejection() == detail)
    }
}

/// The limit that a message or subscription would exceed, and the option that sets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExceededLimit {
    pub limit: OwnerLimit,
    pub option: &'static str,
}

/// Limits of a user and of each of its clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShareLimits {
    pub user: OwnerLimits,
    pub client: OwnerLimits,
}

impl ShareLimits {
    pub const NONE: ShareLimits = ShareLimits {
        user: OwnerLimits::NONE,
        client: OwnerLimits::NONE,
    };
}

/// Number and bytes of each holding.
#[derive(Debug, Default)]
pub struct Usage {
    counts: [AtomicU64; Holding::COUNT],
    bytes: [AtomicU64; Holding::COUNT],
}

impl Usage {
    pub fn count(&self, holding: Holding) -> u64 {
        self.counts[holding as usize].load(Ordering::Relaxed)
    }

    pub fn bytes(&self, holding: Holding) -> u64 {
        self.bytes[holding as usize].load(Ordering::Relaxed)
    }

    /// Returns the bytes of the messages that the journal must store.
    pub fn journal_bytes(&self) -> u64 {
        self.bytes(Holding::Retained) + self.bytes(Holding::Delayed)
    }

    fn add(&self, holding: Holding, bytes: u64) {
        self.counts[holding as usize].fetch_add(1, Ordering::Relaxed);
        self.bytes[holding as usize].fetch_add(bytes, Ordering::Relaxed);
    }

    fn remove(&self, holding: Holding, bytes: u64) {
        self.counts[holding as usize].fetch_sub(1, Ordering::Relaxed);
        self.bytes[holding as usize].fetch_sub(bytes, Ordering::Relaxed);
    }

    fn resize(&self, holding: Holding, from: u64, to: u64) {
        match to >= from {
            true => self.bytes[holding as usize].fetch_add(to - from, Ordering::Relaxed),
            false => self.bytes[holding as usize].fetch_sub(from - to, Ordering::Relaxed),
        };
    }

    /// Returns the limit that another entry of `bytes` would exceed. `before` is the size of the entry of the same
    /// owner that it replaces: an entry that is not larger is always allowed.
    fn exceeded(&self, limits: &OwnerLimits, holding: Holding, before: Option<u64>, bytes: u64) -> Option<OwnerLimit> {
        let (count_max, bytes_max) = limits.of(holding);
        let (of_count, of_bytes) = match holding {
            Holding::Session => (OwnerLimit::Sessions, OwnerLimit::SessionBytes),
            Holding::Retained => (OwnerLimit::RetainedMessages, OwnerLimit::RetainedBytes),
            Holding::Delayed => (OwnerLimit::DelayedMessages, OwnerLimit::DelayedBytes),
        };
        if before.is_none() && self.count(holding) >= count_max {
            return Some(of_count);
        }
        let growth = bytes.saturating_sub(before.unwrap_or(0));
        if growth > 0 && self.bytes(holding).saturating_add(growth) > bytes_max {
            return Some(of_bytes);
        }
        let needs_journal = holding != Holding::Session && growth > 0;
        let is_over_journal = needs_journal && self.journal_bytes().saturating_add(growth) > limits.journal_bytes;
        is_over_journal.then_some(OwnerLimit::JournalBytes)
    }
}

/// The owners of a node. Clones share the counters.
#[derive(Clone, Debug, Default)]
pub struct Owners(Arc<OwnerTable>);

#[derive(Debug, Default)]
struct OwnerTable {
    total: Usage,
    users: Mutex<HashMap<Box<str>, Weak<UserAccount>>>,
}

/// Counters of a user, or of the clients of an address. The account exists while a session or message refers to it.
#[derive(Debug)]
pub struct UserAccount {
    /// `owner_name` of the user.
    name: Box<str>,
    usage: Usage,
    /// Number of subscriptions of its sessions.
    subscriptions: AtomicU64,
    /// Sum over the `QueuedBytes` of its sessions.
    queued_bytes: AtomicU64,
    /// By the hash of the client id.
    clients: Mutex<HashMap<u32, Weak<ClientAccount>>>,
    /// Hashes of the topics of its retained messages.
    topics: Mutex<HashSet<u64>>,
    /// Time of the last report in monotonic milliseconds; 0 for none.
    reported_at_ms: AtomicU64,
    table: Weak<OwnerTable>,
}

/// Retained and delayed messages of a client.
#[derive(Debug)]
pub struct ClientAccount {
    user: Arc<UserAccount>,
    hash: u32,
    usage: Usage,
}

/// Returns the name of an owner. It is part of the journal.
pub fn owner_name(user_name: Option<&str>, address: IpAddr) -> String {
    if let Some(name) = user_name {
        return format!("user:{name}");
    }
    match client_network(address) {
        IpAddr::V4(address) => format!("address:{address}"),
        IpAddr::V6(network) => format!("address:{network}/64"),
    }
}

impl Owners {
    /// Returns the counters of the node, including messages without an owner.
    pub fn total(&self) -> &Usage {
        &self.0.total
    }

    pub fn user(&self, name: &str) -> Arc<UserAccount> {
        let mut users = lock(&self.0.users);
        if let Some(user) = users.get(name).and_then(Weak::upgrade) {
            return user;
        }
        let user = Arc::new(UserAccount {
            name: name.into(),
            usage: Usage::default(),
            subscriptions: AtomicU64::new(0),
            queued_bytes: AtomicU64::new(0),
            clients: Mutex::default(),
            topics: Mutex::default(),
            reported_at_ms: AtomicU64::new(0),
            table: Arc::downgrade(&self.0),
        });
        users.insert(name.into(), Arc::downgrade(&user));
        user
    }

    /// Returns the account of a client. `hash` is the hash of its client id.
    pub fn client(&self, owner: &str, hash: u32) -> Arc<ClientAccount> {
        self.user(owner).client(hash)
    }

    /// Returns the limit that a message of `owner` would exceed. `before` is the message of the same topic.
    pub fn exceeded(
        &self,
        limits: &ShareLimits,
        holding: Holding,
        owner: Option<&Arc<ClientAccount>>,
        before: Option<(Option<&Arc<ClientAccount>>, u64)>,
        bytes: u64,
    ) -> Option<ExceededLimit> {
        let owner = owner?;
        let (before, before_bytes) = before.map_or((None, 0), |(account, bytes)| (account, bytes));
        let of_user = before.filter(|before| Arc::ptr_eq(&before.user, &owner.user));
        let of_client = of_user.filter(|before| Arc::ptr_eq(before, owner));
        let of_user = of_user.map(|_| before_bytes);
        let of_client = of_client.map(|_| before_bytes);
        if let Some(limit) = owner.user.usage.exceeded(&limits.user, holding, of_user, bytes) {
            let option = "limits.user_share";
            return Some(ExceededLimit { limit, option });
        }
        let limit = owner.usage.exceeded(&limits.client, holding, of_client, bytes)?;
        let option = "limits.client_share";
        Some(ExceededLimit { limit, option })
    }

    pub fn add(&self, holding: Holding, owner: Option<&Arc<ClientAccount>>, bytes: u64) {
        self.0.total.add(holding, bytes);
        if let Some(owner) = owner {
            owner.user.usage.add(holding, bytes);
            owner.usage.add(holding, bytes);
        }
    }

    pub fn remove(&self, holding: Holding, owner: Option<&Arc<ClientAccount>>, bytes: u64) {
        self.0.total.remove(holding, bytes);
        self.release(holding, owner, bytes);
    }

    /// An entry no longer counts for its owner, but still for the node.
    pub fn release(&self, holding: Holding, owner: Option<&Arc<ClientAccount>>, bytes: u64) {
        if let Some(owner) = owner {
            owner.user.usage.remove(holding, bytes);
            owner.usage.remove(holding, bytes);
        }
    }

    /// Moves an entry to the owner that has replaced it.
    pub fn replace(
        &self,
        holding: Holding,
        from: (Option<&Arc<ClientAccount>>, u64),
        to: (Option<&Arc<ClientAccount>>, u64),
    ) {
        let is_same = from.0.map(Arc::as_ptr) == to.0.map(Arc::as_ptr);
        if !is_same {
            self.remove(holding, from.0, from.1);
            return self.add(holding, to.0, to.1);
        }
        if from.1 == to.1 {
            // The most frequent case changes no counter that another thread reads.
            return;
        }
        self.0.total.resize(holding, from.1, to.1);
        if let Some(owner) = to.0 {
            owner.user.usage.resize(holding, from.1, to.1);
            owner.usage.resize(holding, from.1, to.1);
        }
    }
}

impl UserAccount {
    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn usage(&self) -> &Usage {
        &self.usage
    }

    /// Returns the limit that a session of `bytes` would exceed. `before` is the size of the user's session of the same
    /// client id.
    pub fn exceeded_by_session(&self, limits: &OwnerLimits, before: Option<u64>, bytes: u64) -> Option<OwnerLimit> {
        self.usage.exceeded(limits, Holding::Session, before, bytes)
    }

    /// Returns the number of subscriptions of the user's sessions.
    pub fn subscriptions(&self) -> u64 {
        self.subscriptions.load(Ordering::Relaxed)
    }

    /// Returns the bytes of the messages that wait in the queues of the user's sessions; 0 without a limit for them.
    pub fn queued_bytes(&self) -> u64 {
        self.queued_bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn add_queued(&self, bytes: u64) {
        self.queued_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn remove_queued(&self, bytes: u64) {
        self.queued_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Adds bytes, unless the sum would exceed `max`. Returns whether they were added.
    pub(crate) fn try_add_queued(&self, bytes: u64, max: u64) -> bool {
        let below = |sum: u64| sum.checked_add(bytes).filter(|sum| *sum <= max);
        let added = self
            .queued_bytes
            .try_update(Ordering::Relaxed, Ordering::Relaxed, below);
        added.is_ok()
    }

    /// Returns whether a refusal of this owner is reported now. Limits the number of reports.
    pub fn can_report(&self, monotonic_ms: u64) -> bool {
        let before = self.reported_at_ms.load(Ordering::Relaxed);
        let is_due = before == 0 || monotonic_ms >= before.saturating_add(REPORT_INTERVAL_MS);
        if is_due {
            self.reported_at_ms.store(monotonic_ms.max(1), Ordering::Relaxed);
        }
        is_due
    }

    fn client(self: &Arc<Self>, hash: u32) -> Arc<ClientAccount> {
        let mut clients = lock(&self.clients);
        if let Some(client) = clients.get(&hash).and_then(Weak::upgrade) {
            return client;
        }
        let client = Arc::new(ClientAccount {
            user: self.clone(),
            hash,
            usage: Usage::default(),
        });
        clients.insert(hash, Arc::downgrade(&client));
        client
    }
}

impl Drop for UserAccount {
    fn drop(&mut self) {
        let Some(table) = self.table.upgrade() else { return };
        let mut users = lock(&table.users);
        // Another thread may have created a new account of this name.
        if users.get(&self.name).is_some_and(|user| user.strong_count() == 0) {
            users.remove(&self.name);
        }
    }
}

impl ClientAccount {
    /// Returns `owner_name` of the user.
    pub fn owner(&self) -> &str {
        &self.user.name
    }

    /// Returns whether the retained message of a topic belongs to the user. It may replace it at its limits.
    pub fn has_topic(&self, hash: u64) -> bool {
        lock(&self.user.topics).contains(&hash)
    }

    /// Adds or removes a topic of which the user has the retained message.
    pub fn set_topic(&self, hash: u64, is_retained: bool) {
        let mut topics = lock(&self.user.topics);
        match is_retained {
            true => topics.insert(hash),
            false => topics.remove(&hash),
        };
    }

    pub fn is_same_user(&self, other: &ClientAccount) -> bool {
        Arc::ptr_eq(&self.user, &other.user)
    }

    /// Returns whether a refusal of this owner is reported now. Limits the number of reports.
    pub fn can_report(&self, monotonic_ms: u64) -> bool {
        self.user.can_report(monotonic_ms)
    }
}

impl Drop for ClientAccount {
    fn drop(&mut self) {
        let mut clients = lock(&self.user.clients);
        if clients.get(&self.hash).is_some_and(|client| client.strong_count() == 0) {
            clients.remove(&self.hash);
        }
    }
}

/// The entry of a session in the accounts. Dropping it removes the session from them.
pub struct SessionHolding {
    owners: Owners,
    /// `None` for an inbox client, which has no state of its own.
    user: Option<Arc<UserAccount>>,
    /// Set with the first message that the client stores.
    client: Option<Arc<ClientAccount>>,
    bytes: u64,
    subscriptions: u64,
}

impl SessionHolding {
    pub fn new(owners: &Owners, owner: Option<&str>, bytes: usize) -> SessionHolding {
        let holding = SessionHolding {
            owners: owners.clone(),
            user: owner.map(|owner| owners.user(owner)),
            client: None,
            bytes: bytes as u64,
            subscriptions: 0,
        };
        for usage in holding.usages() {
            usage.add(Holding::Session, holding.bytes);
        }
        holding
    }

    pub fn user(&self) -> Option<&Arc<UserAccount>> {
        self.user.as_ref()
    }

    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    pub fn resize(&mut self, bytes: usize) {
        let bytes = bytes as u64;
        for usage in self.usages() {
            usage.resize(Holding::Session, self.bytes, bytes);
        }
        self.bytes = bytes;
    }

    /// Returns the account of the session's client. `hash` is the hash of its client id.
    pub fn client(&mut self, hash: u32) -> Option<Arc<ClientAccount>> {
        if self.client.is_none() {
            self.client = Some(self.user.as_ref()?.client(hash));
        }
        self.client.clone()
    }

    /// Counts a new subscription, unless the user has `max` already. Returns whether it was counted.
    pub fn try_add_subscription(&mut self, max: u64) -> bool {
        let is_counted = self.user.as_ref().is_none_or(|user| {
            let below = |count| (count < max).then_some(count + 1);
            let counted = user
                .subscriptions
                .try_update(Ordering::Relaxed, Ordering::Relaxed, below);
            counted.is_ok()
        });
        self.subscriptions += u64::from(is_counted);
        is_counted
    }

    /// Counts subscriptions that exist already, also above the limit.
    pub fn add_subscriptions(&mut self, count: u64) {
        if let Some(user) = &self.user {
            user.subscriptions.fetch_add(count, Ordering::Relaxed);
        }
        self.subscriptions += count;
    }

    pub fn remove_subscriptions(&mut self, count: u64) {
        let count = count.min(self.subscriptions);
        if let Some(user) = &self.user {
            user.subscriptions.fetch_sub(count, Ordering::Relaxed);
        }
        self.subscriptions -= count;
    }

    fn usages(&self) -> impl Iterator<Item = &Usage> {
        let user = self.user.as_ref().map(|user| &user.usage);
        [Some(self.owners.total()), user].into_iter().flatten()
    }
}

impl Drop for SessionHolding {
    fn drop(&mut self) {
        self.remove_subscriptions(self.subscriptions);
        for usage in self.usages() {
            usage.remove(Holding::Session, self.bytes);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: ShareLimits = ShareLimits {
        user: OwnerLimits {
            retained_messages: 3,
            retained_bytes: 100,
            journal_bytes: 120,
            ..OwnerLimits::NONE
        },
        client: OwnerLimits {
            retained_bytes: 60,
            ..OwnerLimits::NONE
        },
    };

    fn exceeded(owners: &Owners, owner: &Arc<ClientAccount>, bytes: u64) -> Option<(&'static str, &'static str)> {
        let exceeded = owners.exceeded(&LIMITS, Holding::Retained, Some(owner), None, bytes)?;
        Some((exceeded.limit.name(), exceeded.option))
    }

    #[test]
    fn limits_of_users_and_clients_are_independent() {
        let owners = Owners::default();
        let (one, other) = (owners.client("user:a", 1), owners.client("user:a", 2));
        let foreign = owners.client("user:b", 1);
        owners.add(Holding::Retained, Some(&one), 50);
        assert_eq!(
            exceeded(&owners, &one, 11),
            Some(("retained_bytes", "limits.client_share"))
        );
        assert_eq!(exceeded(&owners, &other, 50), None);
        assert_eq!(
            exceeded(&owners, &other, 51),
            Some(("retained_bytes", "limits.user_share"))
        );
        assert_eq!(exceeded(&owners, &foreign, 60), None);
        owners.add(Holding::Delayed, Some(&one), 60);
        assert_eq!(
            exceeded(&owners, &other, 11),
            Some(("journal_bytes", "limits.user_share"))
        );
        owners.remove(Holding::Delayed, Some(&one), 60);
        owners.add(Holding::Retained, Some(&other), 1);
        owners.add(Holding::Retained, Some(&other), 1);
        assert_eq!(
            exceeded(&owners, &other, 1),
            Some(("retained_messages", "limits.user_share"))
        );
    }

    #[test]
    fn own_entry_can_be_replaced_at_the_limit() {
        let owners = Owners::default();
        let (owner, foreign) = (owners.client("user:a", 1), owners.client("user:b", 1));
        owners.add(Holding::Retained, Some(&owner), 60);
        let with = |before, bytes| {
            let before = Some((before, 60));
            owners.exceeded(&LIMITS, Holding::Retained, Some(&owner), before, bytes)
        };
        assert_eq!(with(Some(&owner), 60), None);
        assert!(with(Some(&owner), 61).is_some());
        assert!(with(Some(&foreign), 1).is_some(), "the entry of another user");
        owners.replace(Holding::Retained, (Some(&owner), 60), (Some(&foreign), 40));
        let bytes = |account: &ClientAccount| account.user.usage.bytes(Holding::Retained);
        assert_eq!((bytes(&owner), bytes(&foreign)), (0, 40));
        assert_eq!(owners.total().bytes(Holding::Retained), 40);
    }

    #[test]
    fn subscriptions_of_all_sessions_of_a_user_count() {
        let owners = Owners::default();
        let user = owners.user("user:a");
        let mut one = SessionHolding::new(&owners, Some("user:a"), 0);
        let mut other = SessionHolding::new(&owners, Some("user:a"), 0);
        other.add_subscriptions(2);
        assert!(one.try_add_subscription(3));
        assert!(!one.try_add_subscription(3) && !other.try_add_subscription(3));
        let mut foreign = SessionHolding::new(&owners, Some("user:b"), 0);
        assert!(foreign.try_add_subscription(3));
        other.remove_subscriptions(1);
        assert!(one.try_add_subscription(3));
        drop(other);
        assert_eq!(user.subscriptions(), 2);
        one.remove_subscriptions(7);
        assert_eq!(user.subscriptions(), 0);
        let mut of_inbox = SessionHolding::new(&owners, None, 0);
        assert!(of_inbox.try_add_subscription(0));
    }

    #[test]
    fn accounts_exist_while_they_are_used() {
        let owners = Owners::default();
        let mut session = SessionHolding::new(&owners, Some("user:a"), 10);
        let client = session.client(7);
        let user = owners.user("user:a");
        assert_eq!(user.usage.bytes(Holding::Session), 10);
        session.resize(4);
        assert_eq!(owners.total().bytes(Holding::Session), 4);
        drop(session);
        assert_eq!(user.usage.count(Holding::Session), 0);
        drop((client, user));
        assert!(lock(&owners.0.users).is_empty());
        assert_eq!(owners.total().count(Holding::Session), 0);
    }

    #[test]
    fn clients_without_user_name_count_by_address() {
        let address = |text: &str| owner_name(None, text.parse().unwrap());
        assert_eq!(owner_name(Some("a"), IpAddr::from([10, 0, 0, 1])), "user:a");
        assert_eq!(address("10.0.0.1"), "address:10.0.0.1");
        assert_eq!(address("::ffff:10.0.0.1"), "address:10.0.0.1");
        assert_eq!(address("2001:db8:1:2:3::4"), "address:2001:db8:1:2::/64");
        assert_eq!(address("2001:db8:1:2:5::6"), address("2001:db8:1:2:3::4"));
    }
}
