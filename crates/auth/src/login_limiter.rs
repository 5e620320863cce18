//! Limits guesses of passwords, tokens and other secrets. One limiter serves all logins of the server.
//!
//! - **Per address**: an address may fail `failures_max` times, and once more for every `FORGET_AFTER` without a
//!   failure. Then it is locked out. Each further lock-out takes twice as long, up to `lockout_max`. A /64 of IPv6
//!   counts as one address.
//! - **Per user**: a user with many recent failures is under attack from several addresses. Then an address that has
//!   failed recently must wait. An address without a failure is never refused: a guesser cannot lock out a user. Codes
//!   of a second factor are an exception. They are short, and their guesser knows the password, so all addresses wait.
//! - **Known logins** need not wait: credentials that were right before, from the same address. Clients behind NAT can
//!   therefore reconnect although another client behind it guesses. That guesser could still test guesses of the
//!   neighbours' passwords, so a locked-out address may test only some guesses per user. Beyond that, known logins of
//!   the user wait until the lock-out ends. Tokens have no such limit: a guesser could lock out all devices behind its
//!   address, and tokens of the server are long random texts. A user has a limited share of the known logins.
//! - **Repeats**: a client with a wrong password that reconnects for ever guesses nothing. Its failures count once.
//!
//! All tables are bounded. Credentials are stored as 64-bit SipHash tags under random keys of this process. A false
//! match only skips the wait, or a count: the caller always checks the credentials.

use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasher, Hash, RandomState};
use std::mem;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

pub(crate) const ADDRESSES_MAX: usize = 4096;
pub(crate) const USERS_MAX: usize = 4096;
pub(crate) const KNOWN_LOGINS_MAX: usize = 131_072;
/// Limit of one name, so that a user with many addresses does not displace the logins of others.
pub(crate) const KNOWN_LOGINS_PER_NAME_MAX: usize = 16_384;
pub(crate) const WRONG_LOGINS_MAX: usize = 16_384;

/// A full table loses this part of its entries at once, so that a new entry costs a constant number of steps.
const EVICTED_SHARE: usize = 8;

/// An address or user has one failure less after this time without a failure.
const FORGET_AFTER: Duration = Duration::from_secs(6);
/// A user is under attack after this multiple of `failures_max` failures.
const USER_FAILURES_FACTOR: u32 = 10;
/// Wrong codes of a second factor per user, from all addresses: the first ones, and the time after which one more is
/// allowed. Three codes of six digits are right at a time.
const CODE_FAILURES_MAX: u32 = 20;
const CODE_FORGET_AFTER: Duration = Duration::from_secs(5 * 60);
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
    /// User name and proof of an MQTT client. Proofs never repeat.
    Scram,
    /// Access token of a device, in MQTT or HTTP.
    DeviceToken,
    ConsoleUser,
    /// Code of an authenticator app of a console user whose password was right. It has few digits, so the limit of a
    /// user is fixed and applies to all addresses.
    SecondFactor,
    /// Recovery code of such a user. It cannot be guessed.
    RecoveryCode,
    /// Authorization code of an identity provider, for the console.
    ProviderCode,
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
    /// Wrong codes of second factors per user, from all addresses.
    codes: FailureCounts<{ CODE_FORGET_AFTER.as_secs() }>,
    /// Guesses of a locked-out address that were compared with known logins, per address and user.
    known_tests: FailureCounts,
    /// These guesses. Testing one again reveals nothing.
    tested: RecentTags,
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
        let user = self.user_tag(attempt);
        if let Some(user) = user.filter(|_| attempt.kind == LoginKind::SecondFactor) {
            let mut state = self.lock();
            if let Some(wait) = state.codes.wait(user, now, CODE_FAILURES_MAX) {
                state.stats.rejected += 1;
                return Err(wait);
            }
        }
        if self.limits.failures_max == 0 {
            return Ok(());
        }
        let address = client_network(attempt.address);
        let mut state = self.lock();
        let is_attacked = |state: &LimiterState| {
            let user_failures_max = self.limits.failures_max.saturating_mul(USER_FAILURES_FACTOR);
            user.is_some_and(|user| state.users.is_full(user, now, user_failures_max))
        };
        let Some(failed) = state.addresses.get(&address) else {
            return Ok(());
        };
        let until = match failed.locked_until {
            Some(until) if until > now => until,
            _ if failed.forgotten_at > now && is_attacked(&state) => failed.forgotten_at,
            _ => return Ok(()),
        };
        if self.is_known(&mut state, attempt, address, now) {
            return Ok(());
        }
        state.stats.rejected += 1;
        Err(until - now)
    }

    /// Returns whether a user has had too many wrong codes of a second factor, so that a further one has to wait.
    pub fn is_code_limit_reached(&self, attempt: &LoginAttempt<'_>, now: Instant) -> bool {
        let user = self.user_tag(attempt);
        user.is_some_and(|user| self.lock().codes.is_full(user, now, CODE_FAILURES_MAX))
    }

    /// Records wrong credentials.
    pub fn record_failure(&self, attempt: &LoginAttempt<'_>, now: Instant) {
        if let Some(user) = self
            .user_tag(attempt)
            .filter(|_| attempt.kind == LoginKind::SecondFactor)
        {
            self.lock().codes.add(user, now, CODE_FAILURES_MAX);
        }
        if self.limits.failures_max == 0 {
            return;
        }
        let address = client_network(attempt.address);
        let mut state = self.lock();
        let is_repeat = attempt.kind.may_repeat() && !state.wrong.insert(self.login_tag(attempt), 0, WRONG_LIMITS);
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
            self.lock().known.insert(tag, self.name_tag(attempt), KNOWN_LIMITS);
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
        let tag = self.login_tag(attempt);
        let is_known = state.known.contains(tag, KNOWN_LIMITS);
        if let Some(tests) = tests.filter(|_| !is_known)
            && state.tested.insert(tag, 0, WRONG_LIMITS)
        {
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

    /// Returns the tag of the user, or of a secret that alone identifies a client.
    fn name_tag(&self, attempt: &LoginAttempt<'_>) -> u64 {
        let secret = || self.hasher.hash_one((attempt.kind, attempt.secret));
        self.user_tag(attempt).unwrap_or_else(secret)
    }

    // Each update leaves the tables consistent, so a panic in another thread cannot break them.
    fn lock(&self) -> MutexGuard<'_, LimiterState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LimiterState {
    fn add_address_failure(&mut self, address: IpAddr, now: Instant, limits: LoginLimits) -> Option<LockOut> {
        if !self.addresses.contains_key(&address) && self.addresses.len() >= ADDRESSES_MAX {
            make_space(&mut self.addresses, ADDRESSES_MAX, |failed| {
                let has_effect = failed.forgotten_at > now || !failed.is_quiet(now, limits.lockout_max);
                has_effect.then(|| failed.last_effect())
            });
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

/// Makes space in a full table: removes the entries without effect, and then those whose effect ends first, until an
/// eighth of the table is free. An attack from many addresses therefore cannot free a worse one. `end_of` returns
/// `None` for an entry without effect.
fn make_space<K: Copy + Eq + Hash, V>(table: &mut HashMap<K, V>, max: usize, end_of: impl Fn(&V) -> Option<Instant>) {
    table.retain(|_, entry| end_of(entry).is_some());
    let surplus = table.len().saturating_sub(max - max / EVICTED_SHARE);
    if surplus == 0 {
        return;
    }
    let mut ends: Vec<_> = table.iter().map(|(key, entry)| (end_of(entry), *key)).collect();
    ends.select_nth_unstable_by_key(surplus - 1, |(end, _)| *end);
    for (_, key) in &ends[..surplus] {
        table.remove(key);
    }
}

/// Counts that lose one failure per `FORGET_AFTER_S` seconds, by tag: when all failures of the tag will be forgotten.
#[derive(Default)]
struct FailureCounts<const FORGET_AFTER_S: u64 = { FORGET_AFTER.as_secs() }> {
    forgotten_at: HashMap<u64, Instant>,
}

impl<const FORGET_AFTER_S: u64> FailureCounts<FORGET_AFTER_S> {
    const FORGET_AFTER: Duration = Duration::from_secs(FORGET_AFTER_S);

    fn add(&mut self, tag: u64, now: Instant, failures_max: u32) {
        if !self.forgotten_at.contains_key(&tag) && self.forgotten_at.len() >= USERS_MAX {
            make_space(&mut self.forgotten_at, USERS_MAX, |forgotten_at| {
                (*forgotten_at > now).then_some(*forgotten_at)
            });
        }
        let forgotten_at = self.forgotten_at.entry(tag).or_insert(now);
        let latest = now + Self::FORGET_AFTER * failures_max;
        *forgotten_at = ((*forgotten_at).max(now) + Self::FORGET_AFTER).min(latest);
    }

    /// Returns whether another failure would exceed the limit.
    fn is_full(&self, tag: u64, now: Instant, failures_max: u32) -> bool {
        self.wait(tag, now, failures_max).is_some()
    }

    /// Returns the time until another failure is within the limit, if it is not now.
    fn wait(&self, tag: u64, now: Instant, failures_max: u32) -> Option<Duration> {
        let latest = now + Self::FORGET_AFTER * failures_max.saturating_sub(1);
        let wait = self.forgotten_at.get(&tag)?.saturating_duration_since(latest);
        (!wait.is_zero()).then_some(wait)
    }
}

/// Limits of [`RecentTags`].
#[derive(Clone, Copy)]
struct TagLimits {
    all_max: usize,
    per_name_max: usize,
}

const KNOWN_LIMITS: TagLimits = TagLimits {
    all_max: KNOWN_LOGINS_MAX,
    per_name_max: KNOWN_LOGINS_PER_NAME_MAX,
};
/// Wrong logins have no name.
const WRONG_LIMITS: TagLimits = TagLimits {
    all_max: WRONG_LOGINS_MAX,
    per_name_max: usize::MAX,
};

/// The tags that were used last, each with the tag of its name. If the young generation is full, it replaces the old
/// one. If it has too many tags of a name, these replace the old ones of the name, or are removed if the old generation
/// has no space for them. Other names lose nothing.
#[derive(Default)]
struct RecentTags {
    young: HashMap<u64, u64>,
    old: HashMap<u64, u64>,
    /// Number of young tags by name.
    young_of_name: HashMap<u64, usize>,
}

impl RecentTags {
    /// Adds a tag. Returns `false` if it was listed.
    fn insert(&mut self, tag: u64, name: u64, limits: TagLimits) -> bool {
        if self.contains(tag, limits) {
            return false;
        }
        self.insert_young(tag, name, limits);
        true
    }

    /// Returns whether the tag is listed. It counts as used.
    fn contains(&mut self, tag: u64, limits: TagLimits) -> bool {
        if self.young.contains_key(&tag) {
            return true;
        }
        let name = self.old.remove(&tag);
        if let Some(name) = name {
            self.insert_young(tag, name, limits);
        }
        name.is_some()
    }

    fn insert_young(&mut self, tag: u64, name: u64, limits: TagLimits) {
        if self.young.len() >= limits.all_max / 2 {
            self.old = mem::take(&mut self.young);
            self.young_of_name.clear();
        }
        if self
            .young_of_name
            .get(&name)
            .is_some_and(|count| *count >= limits.per_name_max / 2)
        {
            self.age_name(name, limits);
        }
        self.young.insert(tag, name);
        *self.young_of_name.entry(name).or_default() += 1;
    }

    /// Moves the young tags of a name to the old generation, in place of its old ones.
    fn age_name(&mut self, name: u64, limits: TagLimits) {
        self.old.retain(|_, of| *of != name);
        let aged = self.young.extract_if(|_, of| *of == name);
        let count = self.young_of_name.remove(&name).unwrap_or(0);
        if self.old.len() + count <= limits.all_max / 2 {
            self.old.extend(aged);
        } else {
            aged.for_each(drop);
        }
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
