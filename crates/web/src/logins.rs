//! Logins: random tokens, stored as hashes, only in memory. A restart ends all logins.
//!
//! Looking a token up by its SHA-256 is not constant-time. It need not be: an attacker cannot construct a token whose
//! hash is close to another one. The table is bounded: a user with too many logins loses the one that expires first.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use base64ct::{Base64UrlUnpadded, Encoding};
use sha2::{Digest, Sha256};
use zeroize::Zeroizing;

pub const LOGINS_PER_USER_MAX: usize = 64;
pub const LOGINS_MAX: usize = 4096;
const TOKEN_BYTES: usize = 32;
/// Helps secret scanners to recognise a token.
const TOKEN_PREFIX: &str = "tw_";

type TokenHash = [u8; 32];

#[derive(Default)]
pub struct Logins {
    table: Mutex<HashMap<TokenHash, LoginEntry>>,
}

struct LoginEntry {
    user: Arc<str>,
    expires_at: Instant,
}

impl Logins {
    /// `None`: the operating system returned no random bytes.
    pub fn issue(&self, user: &str, now: Instant, lifetime: Duration) -> Option<Zeroizing<String>> {
        let mut random = Zeroizing::new([0u8; TOKEN_BYTES]);
        getrandom::fill(&mut *random).ok()?;
        let token = Zeroizing::new(format!("{TOKEN_PREFIX}{}", Base64UrlUnpadded::encode_string(&*random)));
        let mut table = self.lock();
        table.retain(|_, entry| entry.expires_at > now);
        evict_if_full(&mut table, user);
        table.insert(
            hash(&token),
            LoginEntry {
                user: user.into(),
                expires_at: now + lifetime,
            },
        );
        Some(token)
    }

    /// Returns the user of a valid token.
    pub fn find(&self, token: &str, now: Instant) -> Option<Arc<str>> {
        let table = self.lock();
        let entry = table.get(&hash(token)).filter(|entry| entry.expires_at > now)?;
        Some(entry.user.clone())
    }

    /// Returns `false` if there was no such login.
    pub fn revoke(&self, token: &str) -> bool {
        self.lock().remove(&hash(token)).is_some()
    }

    /// Ends all logins of a user.
    pub fn revoke_user(&self, user: &str) {
        self.lock().retain(|_, entry| &*entry.user != user);
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

    #[test]
    fn token_is_valid_until_it_expires_or_is_revoked() {
        let (logins, now) = (Logins::default(), Instant::now());
        let token = logins.issue("ada", now, HOUR).unwrap();
        assert_eq!(token.len(), 46);
        assert_eq!(logins.find(&token, now).as_deref(), Some("ada"));
        assert_eq!(logins.find(&token, now + HOUR), None);
        assert_eq!(logins.find("tw_", now), None);
        assert!(logins.revoke(&token));
        assert_eq!(logins.find(&token, now), None);
        assert!(!logins.revoke(&token));
    }

    #[test]
    fn user_with_too_many_logins_loses_its_oldest() {
        let (logins, now) = (Logins::default(), Instant::now());
        let other = logins.issue("bob", now, HOUR).unwrap();
        let tokens: Vec<_> = (0..=LOGINS_PER_USER_MAX)
            .map(|n| logins.issue("ada", now + Duration::from_secs(n as u64), HOUR).unwrap())
            .collect();
        let at = now + Duration::from_secs(100);
        assert_eq!(logins.find(&tokens[0], at), None);
        assert!(logins.find(&tokens[1], at).is_some());
        assert!(logins.find(&other, at).is_some());
        assert_eq!(logins.count(), LOGINS_PER_USER_MAX + 1);
    }

    #[test]
    fn table_is_bounded_and_drops_expired_logins() {
        let (logins, now) = (Logins::default(), Instant::now());
        for n in 0..LOGINS_MAX + 10 {
            logins.issue(&format!("user {n}"), now, HOUR).unwrap();
        }
        assert_eq!(logins.count(), LOGINS_MAX);
        logins.issue("ada", now + HOUR, HOUR).unwrap();
        assert_eq!(logins.count(), 1);
    }

    #[test]
    fn revoking_a_user_ends_all_its_logins() {
        let (logins, now) = (Logins::default(), Instant::now());
        let (a, b) = (
            logins.issue("ada", now, HOUR).unwrap(),
            logins.issue("bob", now, HOUR).unwrap(),
        );
        logins.revoke_user("ada");
        assert_eq!(logins.find(&a, now), None);
        assert!(logins.find(&b, now).is_some());
    }
}
