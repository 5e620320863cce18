//! Logins: random tokens, stored as hashes, only in memory. A restart ends all logins.
//!
//! Looking a token up by its SHA-256 is not constant-time. It need not be: an attacker cannot construct a token whose
//! hash is close to another one. The table is bounded: a user with too many logins loses the one that expires first.
//!
//! A login has an ID, with which it can be listed and ended. The ID is random and not related to the token.
//!
//! A user of the identity provider has a name with [`PROVIDER_PREFIX`], which no console user and no API key can have.
//! The role of such a user is stored with the login, because this server does not store the user.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use base64ct::{Base64UrlUnpadded, Encoding};
use sha2::{Digest, Sha256};
use zeroize::Zeroizing;

use crate::access_changes::AccessChanges;
use crate::role::AssignedRole;

pub const LOGINS_PER_USER_MAX: usize = 64;
pub const LOGINS_MAX: usize = 4096;
const TOKEN_BYTES: usize = 32;
const ID_BYTES: usize = 12;
/// Helps secret scanners to recognise a token.
const TOKEN_PREFIX: &str = "tw_";

/// Begins the names of users of the identity provider. Names of console users contain no colon.
pub const PROVIDER_PREFIX: &str = "oidc:";

/// Whether this is the name of a user of the identity provider.
pub fn is_provider_user(name: &str) -> bool {
    name.starts_with(PROVIDER_PREFIX)
}

type TokenHash = [u8; 32];

#[derive(Default)]
pub struct Logins {
    table: Mutex<HashMap<TokenHash, LoginEntry>>,
    changes: AccessChanges,
}

struct LoginEntry {
    id: Arc<str>,
    user: Arc<str>,
    provider_role: Option<AssignedRole>,
    address: IpAddr,
    since_unix_ms: u64,
    last_used_unix_ms: u64,
    expires_at: Instant,
}

/// A valid login.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundLogin {
    pub id: Arc<str>,
    pub user: Arc<str>,
    /// Role of a user of the identity provider. `None`: the console user's role applies.
    pub provider_role: Option<AssignedRole>,
}

/// Properties of a new login.
#[derive(Clone, Copy, Debug)]
pub struct NewLogin<'a> {
    pub user: &'a str,
    /// Role of a user of the identity provider. `None`: the user is a console user.
    pub provider_role: Option<&'a AssignedRole>,
    /// Address of the client.
    pub address: IpAddr,
    pub now: Instant,
    pub now_unix_ms: u64,
    pub lifetime: Duration,
}

/// A login without its token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoginSummary {
    pub id: Arc<str>,
    pub user: Arc<str>,
    pub address: IpAddr,
    pub since_unix_ms: u64,
    pub last_used_unix_ms: u64,
    pub expires_in: Duration,
}

impl Logins {
    /// `None`: the operating system returned no random bytes.
    pub fn issue(&self, new: NewLogin<'_>) -> Option<Zeroizing<String>> {
        let mut random = Zeroizing::new([0u8; TOKEN_BYTES]);
        getrandom::fill(&mut *random).ok()?;
        let mut id = [0u8; ID_BYTES];
        getrandom::fill(&mut id).ok()?;
        let token = Zeroizing::new(format!("{TOKEN_PREFIX}{}", Base64UrlUnpadded::encode_string(&*random)));
        let mut table = self.lock();
        table.retain(|_, entry| entry.expires_at > new.now);
        evict_if_full(&mut table, new.user);
        table.insert(
            hash(&token),
            LoginEntry {
                id: Base64UrlUnpadded::encode_string(&id).into(),
                user: new.user.into(),
                provider_role: new.provider_role.cloned(),
                address: new.address,
                since_unix_ms: new.now_unix_ms,
                last_used_unix_ms: new.now_unix_ms,
                expires_at: new.now + new.lifetime,
            },
        );
        drop(table);
        // Another login may have been removed.
        self.changes.announce();
        Some(token)
    }

    /// Announces changes of logins.
    pub(crate) fn changes(&self) -> &AccessChanges {
        &self.changes
    }

    /// Returns the login of a valid token, and notes its use.
    pub fn find(&self, token: &str, now: Instant, now_unix_ms: u64) -> Option<FoundLogin> {
        let mut table = self.lock();
        let entry = table.get_mut(&hash(token)).filter(|entry| entry.expires_at > now)?;
        entry.last_used_unix_ms = now_unix_ms;
        Some(FoundLogin {
            id: entry.id.clone(),
            user: entry.user.clone(),
            provider_role: entry.provider_role.clone(),
        })
    }

    /// Whether the login with this ID is in force. The time is proportional to the number of logins, which is bounded.
    pub fn is_open(&self, id: &str, now: Instant) -> bool {
        let table = self.lock();
        table.values().any(|entry| *entry.id == *id && entry.expires_at > now)
    }

    /// Returns the logins in force, of one user or of all, the last used first.
    pub fn list(&self, user: Option<&str>, now: Instant) -> Vec<LoginSummary> {
        let table = self.lock();
        let wanted = table
            .values()
            .filter(|entry| entry.expires_at > now && user.is_none_or(|user| *entry.user == *user));
        let mut list: Vec<LoginSummary> = wanted.map(|entry| entry.summary(now)).collect();
        list.sort_by(|a, b| (b.last_used_unix_ms, &b.id).cmp(&(a.last_used_unix_ms, &a.id)));
        list
    }

    /// Returns `false` if there was no such login.
    pub fn revoke(&self, token: &str) -> bool {
        let is_removed = self.lock().remove(&hash(token)).is_some();
        self.changes.announce();
        is_removed
    }

    /// Ends the login with this ID, if it belongs to `user`. Returns its user.
    pub fn revoke_id(&self, id: &str, user: Option<&str>) -> Option<Arc<str>> {
        let mut table = self.lock();
        let is_wanted = |entry: &LoginEntry| *entry.id == *id && user.is_none_or(|user| *entry.user == *user);
        let found = table.iter().find(|(_, entry)| is_wanted(entry)).map(|(key, _)| *key);
        let removed = table.remove(&found?).map(|entry| entry.user);
        drop(table);
        self.changes.announce();
        removed
    }

    /// Ends all logins of a user, and returns their number.
    pub fn revoke_user(&self, user: &str) -> usize {
        self.revoke_others(user, None)
    }

    /// Ends the logins of a user, except the one with the ID `kept`. Returns their number.
    pub fn revoke_others(&self, user: &str, kept: Option<&str>) -> usize {
        let mut table = self.lock();
        let before = table.len();
        table.retain(|_, entry| *entry.user != *user || kept.is_some_and(|kept| *entry.id == *kept));
        let removed = before - table.len();
        drop(table);
        self.changes.announce();
        removed
    }

    /// Returns the number of open logins of all users.
    pub fn count(&self) -> usize {
        self.lock().len()
    }

    // Each update leaves the map consistent, so a panic in another thread cannot break it.
    fn lock(&self) -> MutexGuard<'_, HashMap<TokenHash, LoginEntry>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LoginEntry {
    fn summary(&self, now: Instant) -> LoginSummary {
        LoginSummary {
            id: self.id.clone(),
            user: self.user.clone(),
            address: self.address,
            since_unix_ms: self.since_unix_ms,
            last_used_unix_ms: self.last_used_unix_ms,
            expires_in: self.expires_at.saturating_duration_since(now),
        }
    }
}

fn evict_if_full(table: &mut HashMap<TokenHash, LoginEntry>, user: &str) {
    let of_user = table.values().filter(|entry| &*entry.user == user).count();
    let is_in_the_way = |entry: &LoginEntry| of_user < LOGINS_PER_USER_MAX || &*entry.user == user;
    if of_user >= LOGINS_PER_USER_MAX || table.len() >= LOGINS_MAX {
        let first = table
            .iter()
            .filter(|(_, entry)| is_in_the_way(entry))
            .min_by_key(|(_, entry)| entry.expires_at);
        if let Some(key) = first.map(|(key, _)| *key) {
            table.remove(&key);
        }
    }
}

fn hash(token: &str) -> TokenHash {
    Sha256::digest(token.as_bytes()).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);
    const ADDRESS: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    fn issue(logins: &Logins, user: &str, now: Instant) -> Option<Zeroizing<String>> {
        logins.issue(NewLogin {
            user,
            provider_role: None,
            address: ADDRESS,
            now,
            now_unix_ms: 1000,
            lifetime: HOUR,
        })
    }

    fn user(logins: &Logins, token: &str, now: Instant) -> Option<Arc<str>> {
        logins.find(token, now, 2000).map(|login| login.user)
    }

    #[test]
    fn logins_are_listed_and_ended_by_their_id() {
        let (logins, now) = (Logins::default(), Instant::now());
        let tokens = ["ada", "ada", "bob"].map(|name| issue(&logins, name, now).unwrap());
        let used = logins.find(&tokens[1], now, 3000).unwrap().id;
        let of_ada = logins.list(Some("ada"), now);
        assert_eq!((of_ada.len(), &of_ada[0].id), (2, &used), "the last used first");
        assert_eq!(
            (
                of_ada[0].since_unix_ms,
                of_ada[0].last_used_unix_ms,
                of_ada[0].expires_in
            ),
            (1000, 3000, HOUR)
        );
        assert!(!tokens[1].contains(&*used));
        assert_eq!(logins.list(None, now).len(), 3);
        assert!(logins.list(None, now + HOUR).is_empty());
        assert_eq!(logins.revoke_id(&used, Some("bob")), None, "a login of another user");
        assert_eq!(logins.revoke_id("", None), None);
        assert!(logins.is_open(&used, now) && !logins.is_open(&used, now + HOUR));
        assert_eq!(logins.revoke_id(&used, Some("ada")).as_deref(), Some("ada"));
        assert!(!logins.is_open(&used, now));
        assert!(logins.find(&tokens[1], now, 1).is_none());
        let again = issue(&logins, "ada", now).unwrap();
        let kept = logins.find(&again, now, 1).unwrap().id;
        assert_eq!(logins.revoke_others("ada", Some(&kept)), 1);
        assert!(logins.find(&again, now, 1).is_some() && logins.find(&tokens[0], now, 1).is_none());
        assert_eq!((logins.revoke_user("ada"), logins.count()), (1, 1));
    }

    #[test]
    fn token_is_valid_until_it_expires_or_is_revoked() {
        let (logins, now) = (Logins::default(), Instant::now());
        let token = issue(&logins, "ada", now).unwrap();
        assert_eq!(token.len(), 46);
        assert_eq!(user(&logins, &token, now).as_deref(), Some("ada"));
        assert_eq!(user(&logins, &token, now + HOUR), None);
        assert_eq!(user(&logins, "tw_", now), None);
        assert!(logins.revoke(&token));
        assert_eq!(user(&logins, &token, now), None);
        assert!(!logins.revoke(&token));
    }

    #[test]
    fn user_with_too_many_logins_loses_its_oldest() {
        let (logins, now) = (Logins::default(), Instant::now());
        let other = issue(&logins, "bob", now).unwrap();
        let tokens: Vec<_> = (0..=LOGINS_PER_USER_MAX)
            .map(|n| issue(&logins, "ada", now + Duration::from_secs(n as u64)).unwrap())
            .collect();
        let at = now + Duration::from_secs(100);
        assert_eq!(user(&logins, &tokens[0], at), None);
        assert!(user(&logins, &tokens[1], at).is_some());
        assert!(user(&logins, &other, at).is_some());
        assert_eq!(logins.count(), LOGINS_PER_USER_MAX + 1);
    }

    #[test]
    fn table_is_bounded_and_drops_expired_logins() {
        let (logins, now) = (Logins::default(), Instant::now());
        for n in 0..LOGINS_MAX + 10 {
            issue(&logins, &format!("user {n}"), now).unwrap();
        }
        assert_eq!(logins.count(), LOGINS_MAX);
        issue(&logins, "ada", now + HOUR).unwrap();
        assert_eq!(logins.count(), 1);
    }

    #[test]
    fn revoking_a_user_ends_all_its_logins() {
        let (logins, now) = (Logins::default(), Instant::now());
        let (a, b) = (issue(&logins, "ada", now).unwrap(), issue(&logins, "bob", now).unwrap());
        logins.revoke_user("ada");
        assert_eq!(user(&logins, &a, now), None);
        assert!(user(&logins, &b, now).is_some());
    }
}
