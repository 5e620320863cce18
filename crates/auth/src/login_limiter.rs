//! Limits guesses of passwords, tokens and other secrets. One limiter serves all logins of the server.
//!
//! - **Per address**: an address may fail `failures_max` times, and once more for every `FORGET_AFTER` without a
//!   failure. Then it is locked out. Each further lock-out takes twice as long, up to `lockout_max`. A /64 of IPv6
//!   counts as one address.
//! - **Per user**: a user with many recent failures is under attack from several addresses. Then an address that has
//!   failed recently must wait. An address without a failure is never refused: a guesser cannot lock out a user.
//! - **Known logins** need not wait: credentials that were right before, from the same address. Clients behind NAT can
//!   therefore reconnect although another client behind it guesses. That guesser could still test guesses of the
//!   neighbours' passwords, so an address may test only some known logins per user.
//! - **Repeats**: a client with a wrong password that reconnects for ever guesses nothing. Its failures count once.
//!
//! All tables are bounded. Credentials are stored as 64-bit SipHash tags under random keys of this process. A false
//! match only skips the wait, or a count: the caller always checks the credentials.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::hash::{BuildHasher, Hash, RandomState};
use std::mem;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

pub(crate) const ADDRESSES_MAX: usize = 4096;
pub(crate) const USERS_MAX: usize = 4096;
pub(crate) const KNOWN_LOGINS_MAX: usize = 131_072;
pub(crate) const WRONG_LOGINS_MAX: usize = 16_384;

/// An address or user has one failure less after this time without a failure.
const FORGET_AFTER: Duration = Duration::from_secs(6);
/// A user is under attack after this multiple of `failures_max` failures.
const USER_FAILURES_FACTOR: u32 = 10;
/// Number of guesses that a locked-out address may compare with the known logins of a user. One more is allowed for
/// every `FORGET_AFTER`.
const KNOWN_TESTS_MAX: u32 = 30;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoginLimits {
    /// Failures of an address before it is locked out. 0: no limit.
    pub failures_max: u32,
    /// Duration of the first lock-out of an address.
    pub lockout: Duration,
    pub lockout_max: Duration,
}

impl Default for LoginLimits {
    fn default() -> LoginLimits {
        LoginLimits {
            failures_max: 10,
            lockout: Duration::from_secs(5),
            lockout_max: Duration::from_secs(15 * 60),
        }
    }
}

/// Kind of secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LoginKind {
    /// User name and password of an MQTT client.
    Mqtt,
    /// Access token of a device, in MQTT or HTTP.
    DeviceToken,
    ConsoleUser,
    PlatformUser,
    Provisioning,
    Claim,
}

impl LoginKind {
    /// Devices repeat wrong credentials for ever. People do not.
    fn may_repeat(self) -> bool {
        matches!(self, LoginKind::Mqtt | LoginKind::DeviceToken | LoginKind::Provisioning)
    }
}

#[derive(Clone, Copy)]
pub struct LoginAttempt<'a> {
    pub kind: LoginKind,
    pub address: IpAddr,
    /// `None` if the secret alone identifies the client.
    pub user_name: Option<&'a str>,
    pub secret: &'a [u8],
}

/// An address was locked out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockOut {
    /// The first address of a /64 of IPv6.
    pub address: IpAddr,
    pub duration: Duration,
    /// Number of lock-outs of this address since it was last quiet for `lockout_max`.
    pub number: u32,
}

/// Totals since the start, and the number of addresses that are locked out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoginLimiterStats {
    /// Wrong credentials, without repeats.
    pub failures: u64,
    pub repeated_failures: u64,
    pub lockouts: u64,
    /// Attempts that were rejected without a check.
    pub rejected: u64,
    pub locked_addresses: u64,
    /// Addresses that are locked out for a minute or more: their users guess, or have a loop.
    pub long_locked_addresses: u64,
}

type LockOutObserver = Box<dyn Fn(&LockOut) + Send + Sync>;

pub struct LoginLimiter {
    limits: LoginLimits,
    hasher: RandomState,
    state: Mutex<LimiterState>,
    on_lockout: LockOutObserver,
}

#[derive(Default)]
struct LimiterState {
    addresses: HashMap<IpAddr, FailedAddress>,
    /// Failures per user, from all addresses.
    users: FailureCounts,
    /// Guesses of a locked-out address that were compared with known logins, per address and user.
    known_tests: FailureCounts,
    known: RecentTags,
    wrong: RecentTags,
    stats: LoginLimiterStats,
}

struct FailedAddress {
    /// When all failures will be forgotten.
    forgotten_at: Instant,
    locked_until: Option<Instant>,
    lock_duration: Duration,
    lockouts: u32,
}

impl Default for LoginLimiter {
    fn default() -> LoginLimiter {
        LoginLimiter::new(LoginLimits::default(), |_| ())
    }
}

impl fmt::Debug for LoginLimiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LoginLimiter")
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}

impl LoginLimiter {
    /// `on_lockout` is called in the thread of the failed login. It must not block.
    pub fn new(limits: LoginLimits, on_lockout: impl Fn(&LockOut) + Send + Sync + 'static) -> LoginLimiter {
        LoginLimiter {
            limits,
            hasher: RandomState::new(),
            state: Mutex::default(),
            on_lockout: Box::new(on_lockout),
        }
    }

    /// Returns how long the client must wait if its credentials must not be checked now.
    pub fn admit(&self, attempt: &LoginAttempt<'_>, now: Instant) -> Result<(), Duration> {
        if self.limits.failures_max == 0 {
            return Ok(());
        }
        let address = client_network(attempt.address);
        let mut state = self.lock();
        let Some(failed) = state.addresses.get(&address) else {
            return Ok(());
        };
        let user = self.user_tag(attempt);
        let is_attacked = || {
            let user_failures_max = self.limits.failures_max.saturating_mul(USER_FAILURES_FACTOR);
            user.is_some_and(|user| state.users.is_full(user, now, user_failures_max))
        };
        let until = match failed.locked_until {
            Some(until) if until > now => until,
            _ if failed.forgotten_at > now && is_attacked() => failed.forgotten_at,
            _ => return Ok(()),
        };
        if self.is_known(&mut state, attempt, address, now) {
            return Ok(());
        }
        state.stats.rejected += 1;
        Err(until - now)
    }

    /// Records wrong credentials.
    pub fn record_failure(&self, attempt: &LoginAttempt<'_>, now: Instant) {
        if self.limits.failures_max == 0 {
            return;
        }
        let address = client_network(attempt.address);
        let mut state = self.lock();
        let is_repeat = attempt.kind.may_repeat() && !state.wrong.insert(self.login_tag(attempt), WRONG_LOGINS_MAX);
        if is_repeat {
            state.stats.repeated_failures += 1;
            return;
        }
        state.stats.failures += 1;
        if let Some(user) = self.user_tag(attempt) {
            let user_failures_max = self.limits.failures_max.saturating_mul(USER_FAILURES_FACTOR);
            state.users.add(user, now, user_failures_max);
        }
        let lockout = state.add_address_failure(address, now, self.limits);
        drop(state);
        if let Some(lockout) = lockout {
            (self.on_lockout)(&lockout);
        }
    }

    /// Records right credentials: their client need not wait if its address is locked out later.
    pub fn record_success(&self, attempt: &LoginAttempt<'_>) {
        if self.limits.failures_max > 0 {
            let tag = self.login_tag(attempt);
            self.lock().known.insert(tag, KNOWN_LOGINS_MAX);
        }
    }

    pub fn stats(&self, now: Instant) -> LoginLimiterStats {
        let state = self.lock();
        let mut stats = state.stats;
        for failed in state.addresses.values() {
            if failed.locked_until.is_some_and(|until| until > now) {
                stats.locked_addresses += 1;
                stats.long_locked_addresses += u64::from(failed.lock_duration >= Duration::from_secs(60));
            }
        }
        stats
    }

    /// Returns whether these credentials were right before, from the same address.
    fn is_known(&self, state: &mut LimiterState, attempt: &LoginAttempt<'_>, address: IpAddr, now: Instant) -> bool {
        let tests = attempt
            .user_name
            .map(|name| self.hasher.hash_one((address, attempt.kind, name)));
        if tests.is_some_and(|tests| state.known_tests.is_full(tests, now, KNOWN_TESTS_MAX)) {
            return false;
        }
        let is_known = state.known.contains(self.login_tag(attempt), KNOWN_LOGINS_MAX);
        if let Some(tests) = tests.filter(|_| !is_known) {
            state.known_tests.add(tests, now, KNOWN_TESTS_MAX);
        }
        is_known
    }

    fn login_tag(&self, attempt: &LoginAttempt<'_>) -> u64 {
        let LoginAttempt {
            kind,
            address,
            user_name,
            secret,
        } = attempt;
        self.hasher
            .hash_one((client_network(*address), kind, user_name, secret))
    }

    fn user_tag(&self, attempt: &LoginAttempt<'_>) -> Option<u64> {
        let name = attempt.user_name?;
        Some(self.hasher.hash_one((attempt.kind, name)))
    }

    // Each update leaves the tables consistent, so a panic in another thread cannot break them.
    fn lock(&self) -> MutexGuard<'_, LimiterState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LimiterState {
    fn add_address_failure(&mut self, address: IpAddr, now: Instant, limits: LoginLimits) -> Option<LockOut> {
        if !self.addresses.contains_key(&address) && self.addresses.len() >= ADDRESSES_MAX {
            evict_address(&mut self.addresses, now, limits.lockout_max);
        }
        let failed = self.addresses.entry(address).or_insert(FailedAddress {
            forgotten_at: now,
            locked_until: None,
            lock_duration: Duration::ZERO,
            lockouts: 0,
        });
        let latest = now + FORGET_AFTER * limits.failures_max;
        failed.forgotten_at = (failed.forgotten_at.max(now) + FORGET_AFTER).min(latest);
        let has_space = failed.forgotten_at + FORGET_AFTER <= latest;
        if has_space || failed.locked_until.is_some_and(|until| until > now) {
            return None;
        }
        if failed.is_quiet(now, limits.lockout_max) {
            failed.lockouts = 0;
        }
        let factor = 1u32.checked_shl(failed.lockouts).unwrap_or(u32::MAX);
        let duration = limits.lockout.saturating_mul(factor).min(limits.lockout_max);
        failed.lockouts += 1;
        failed.lock_duration = duration;
        failed.locked_until = Some(now + duration);
        self.stats.lockouts += 1;
        Some(LockOut {
            address,
            duration,
            number: failed.lockouts,
        })
    }
}

impl FailedAddress {
    /// Returns whether the last lock-out ended `lockout_max` ago, or never began.
    fn is_quiet(&self, now: Instant, lockout_max: Duration) -> bool {
        self.locked_until.is_none_or(|until| until + lockout_max <= now)
    }

    fn last_effect(&self) -> Instant {
        self.locked_until
            .map_or(self.forgotten_at, |until| until.max(self.forgotten_at))
    }
}

/// Removes addresses without effect, or else the one whose failures and lock-out end first. An attack from many
/// addresses therefore cannot free a worse one.
fn evict_address(addresses: &mut HashMap<IpAddr, FailedAddress>, now: Instant, lockout_max: Duration) {
    addresses.retain(|_, failed| failed.forgotten_at > now || !failed.is_quiet(now, lockout_max));
    if addresses.len() < ADDRESSES_MAX {
        return;
    }
    let first = addresses.iter().min_by_key(|(_, failed)| failed.last_effect());
    if let Some(address) = first.map(|(address, _)| *address) {
        addresses.remove(&address);
    }
}

/// Counts that lose one failure per `FORGET_AFTER`, by tag: when all failures of the tag will be forgotten.
#[derive(Default)]
struct FailureCounts(HashMap<u64, Instant>);

impl FailureCounts {
    fn add(&mut self, tag: u64, now: Instant, failures_max: u32) {
        if !self.0.contains_key(&tag) && self.0.len() >= USERS_MAX {
            self.0.retain(|_, forgotten_at| *forgotten_at > now);
            let first = self.0.iter().min_by_key(|(_, forgotten_at)| **forgotten_at);
            if let Some(first) = first.map(|(tag, _)| *tag).filter(|_| self.0.len() >= USERS_MAX) {
                self.0.remove(&first);
            }
        }
        let forgotten_at = self.0.entry(tag).or_insert(now);
        *forgotten_at = ((*forgotten_at).max(now) + FORGET_AFTER).min(now + FORGET_AFTER * failures_max);
    }

    /// Returns whether another failure would exceed the limit.
    fn is_full(&self, tag: u64, now: Instant, failures_max: u32) -> bool {
        let latest = now + FORGET_AFTER * failures_max.saturating_sub(1);
        self.0.get(&tag).is_some_and(|forgotten_at| *forgotten_at > latest)
    }
}

/// The tags that were used last. If the young generation is full, it replaces the old one.
#[derive(Default)]
struct RecentTags {
    young: HashSet<u64>,
    old: HashSet<u64>,
}

impl RecentTags {
    /// Adds a tag. Returns `false` if it was listed.
    fn insert(&mut self, tag: u64, tags_max: usize) -> bool {
        if self.contains(tag, tags_max) {
            return false;
        }
        self.insert_young(tag, tags_max);
        true
    }

    /// Returns whether the tag is listed. It counts as used.
    fn contains(&mut self, tag: u64, tags_max: usize) -> bool {
        if self.young.contains(&tag) {
            return true;
        }
        let is_old = self.old.remove(&tag);
        if is_old {
            self.insert_young(tag, tags_max);
        }
        is_old
    }

    fn insert_young(&mut self, tag: u64, tags_max: usize) {
        if self.young.len() >= tags_max / 2 {
            self.old = mem::take(&mut self.young);
        }
        self.young.insert(tag);
    }
}

/// Returns the address that stands for all addresses of a client: the /64 of an IPv6 address, otherwise the address.
fn client_network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) if !address.is_loopback() => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() >> 64 << 64)),
        other => other,
    }
}

#[cfg(test)]
mod tests;
