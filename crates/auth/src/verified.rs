//! Cache of verified passwords, so that a reconnecting fleet does not need argon2 again. Recent wrong passwords are
//! cached as well, so that a client that repeats one costs no hash.
//!
//! An entry is HMAC-SHA256 of user name, stored hash and password, under a random key of this process:
//! - The key never leaves this struct. Without it an entry reveals nothing about a password.
//! - A changed stored hash changes the tag. A changed or removed password therefore stops matching without explicit
//!   invalidation.
//! - The lookup in the hash set is not constant-time. That is safe, because a client can neither predict nor influence
//!   a tag.
//!
//! Security cost: an attacker who can read this process's memory can test guesses at the speed of HMAC instead of
//! argon2.
//!
//! The cache is bounded by two generations. When the young one is full, it becomes the old one, and the old one is
//! discarded. A hit in the old generation moves the entry to the young one, so pairs in use survive. Wrong passwords
//! have a smaller cache of their own, so that guesses cannot evict right ones.

use std::borrow::Cow;
use std::collections::HashSet;
use std::mem;
use std::sync::{Mutex, MutexGuard, PoisonError};

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use zeroize::Zeroizing;

use crate::password::{CreateError, random_bytes};
use crate::secret::Password;

/// Maximum number of cached wrong passwords.
const WRONG_MAX: usize = 8_192;

type PasswordTag = [u8; 32];

/// Something that checks passwords.
pub trait PasswordCheck {
    /// Bytes that differ for checks that differ in any password.
    fn identity(&self) -> Cow<'_, [u8]>;

    /// Checks the password, which may take long.
    fn matches(&self, password: &Password) -> bool;
}

pub struct VerifiedPasswords {
    key: Zeroizing<[u8; 32]>,
    generation_entries_max: usize,
    generations: Mutex<PasswordGenerations>,
    wrong: Mutex<PasswordGenerations>,
}

#[derive(Default)]
struct PasswordGenerations {
    recent: HashSet<PasswordTag>,
    previous: HashSet<PasswordTag>,
}

impl VerifiedPasswords {
    /// Creates a cache of about 100 bytes per entry. 0 entries disable it. Fails only if the operating system provides
    /// no random bytes.
    pub fn new(entries_max: usize) -> Result<VerifiedPasswords, CreateError> {
        Ok(VerifiedPasswords {
            key: Zeroizing::new(random_bytes()?),
            generation_entries_max: entries_max / 2,
            generations: Mutex::default(),
            wrong: Mutex::default(),
        })
    }

    /// As [`PasswordCheck::matches`], but cheap if the same triple was verified before.
    pub fn verify(&self, user_name: &str, hash: &impl PasswordCheck, password: &Password) -> bool {
        let tag = self.tag(user_name, hash, password);
        if self.find_and_refresh(&tag) {
            return true;
        }
        let is_verified = hash.matches(password);
        match is_verified {
            true => self.remember(tag),
            false => self.remember_wrong(tag),
        }
        is_verified
    }

    /// Returns whether this triple was verified before, without computing a hash. `false` says nothing about the
    /// password.
    pub fn was_verified(&self, user_name: &str, hash: &impl PasswordCheck, password: &Password) -> bool {
        let tag = self.tag(user_name, hash, password);
        self.find_and_refresh(&tag)
    }

    /// Returns whether this triple was found to be wrong before, without computing a hash.
    pub fn was_wrong(&self, user_name: &str, hash: &impl PasswordCheck, password: &Password) -> bool {
        let tag = self.tag(user_name, hash, password);
        lock(&self.wrong).find_and_refresh(&tag, WRONG_MAX / 2)
    }

    /// Takes as long as [`VerifiedPasswords::verify`] with a wrong password, for any password, and caches it as wrong.
    pub fn verify_decoy(&self, user_name: &str, decoy: &impl PasswordCheck, password: &Password) {
        let tag = self.tag(user_name, decoy, password);
        std::hint::black_box(self.find_and_refresh(&tag));
        std::hint::black_box(decoy.matches(password));
        self.remember_wrong(tag);
    }

    pub fn len(&self) -> usize {
        let generations = self.lock();
        generations.recent.len() + generations.previous.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn clear(&self) {
        *self.lock() = PasswordGenerations::default();
    }

    fn tag(&self, user_name: &str, hash: &impl PasswordCheck, password: &Password) -> PasswordTag {
        let mut mac = Hmac::<Sha256>::new_from_slice(&*self.key).expect("HMAC takes a key of any length");
        // Prefix each part with its length, so that different triples never produce the same bytes.
        for part in [user_name.as_bytes(), &hash.identity()] {
            mac.update(&(part.len() as u64).to_le_bytes());
            mac.update(part);
        }
        mac.update(password.expose());
        mac.finalize().into_bytes().into()
    }

    fn find_and_refresh(&self, tag: &PasswordTag) -> bool {
        self.lock().find_and_refresh(tag, self.generation_entries_max)
    }

    fn remember(&self, tag: PasswordTag) {
        self.lock().insert(tag, self.generation_entries_max);
    }

    /// Caches a wrong password, unless the cache is disabled.
    fn remember_wrong(&self, tag: PasswordTag) {
        if self.generation_entries_max > 0 {
            lock(&self.wrong).insert(tag, WRONG_MAX / 2);
        }
    }

    fn lock(&self) -> MutexGuard<'_, PasswordGenerations> {
        lock(&self.generations)
    }
}

fn lock(generations: &Mutex<PasswordGenerations>) -> MutexGuard<'_, PasswordGenerations> {
    // Every update leaves the sets valid, so a panic cannot leave them inconsistent.
    generations.lock().unwrap_or_else(PoisonError::into_inner)
}

impl PasswordGenerations {
    fn find_and_refresh(&mut self, tag: &PasswordTag, entries_max: usize) -> bool {
        if self.recent.contains(tag) {
            return true;
        }
        let is_found = self.previous.remove(tag);
        if is_found {
            self.insert(*tag, entries_max);
        }
        is_found
    }

    fn insert(&mut self, tag: PasswordTag, entries_max: usize) {
        if entries_max == 0 {
            return;
        }
        if self.recent.len() >= entries_max {
            self.previous = mem::take(&mut self.recent);
        }
        self.recent.insert(tag);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::password::PasswordHash;

    fn hash(salt: &str) -> PasswordHash {
        PasswordHash::salted_sha256(salt, &Password::new("secret"))
    }

    #[test]
    fn only_verified_triples_are_cached() {
        let cache = VerifiedPasswords::new(8).unwrap();
        assert!(!cache.verify("alice", &hash("salt"), &Password::new("wrong")));
        assert!(cache.is_empty());
        assert!(cache.verify("alice", &hash("salt"), &Password::new("secret")));
        assert_eq!(cache.len(), 1);
        assert!(cache.verify("alice", &hash("salt"), &Password::new("secret")));
        assert_eq!(cache.len(), 1);
    }

    #[test]
    fn tag_depends_on_user_hash_and_password() {
        let cache = VerifiedPasswords::new(8).unwrap();
        let base = cache.tag("alice", &hash("salt"), &Password::new("secret"));
        assert_ne!(base, cache.tag("alic", &hash("salt"), &Password::new("secret")));
        assert_ne!(base, cache.tag("alice", &hash("pepper"), &Password::new("secret")));
        assert_ne!(base, cache.tag("alice", &hash("salt"), &Password::new("secre")));
        let other_process = VerifiedPasswords::new(8).unwrap();
        assert_ne!(
            base,
            other_process.tag("alice", &hash("salt"), &Password::new("secret"))
        );
    }

    #[test]
    fn tag_separates_adjacent_parts() {
        let cache = VerifiedPasswords::new(8).unwrap();
        let hash = hash("salt");
        let left = cache.tag("x", &hash, &Password::new(format!("{}secret", hash.as_str())));
        let right = cache.tag(&format!("x{}", hash.as_str()), &hash, &Password::new("secret"));
        assert_ne!(left, right);
    }

    #[test]
    fn changed_hash_is_verified_again() {
        let cache = VerifiedPasswords::new(8).unwrap();
        assert!(cache.verify("alice", &hash("salt"), &Password::new("secret")));
        let changed = PasswordHash::salted_sha256("salt", &Password::new("other"));
        assert!(!cache.verify("alice", &changed, &Password::new("secret")));
    }

    #[test]
    fn cache_is_bounded_and_used_entries_survive() {
        let cache = VerifiedPasswords::new(10).unwrap();
        let used = cache.tag("used", &hash("salt"), &Password::new("secret"));
        cache.remember(used);
        for n in 0..100 {
            let name = format!("user-{n}");
            assert!(cache.verify(&name, &hash("salt"), &Password::new("secret")));
            assert!(cache.len() <= 10);
            assert!(cache.find_and_refresh(&used), "in use at {n}");
        }
        assert!(!cache.find_and_refresh(&cache.tag("user-0", &hash("salt"), &Password::new("secret"))));
    }

    #[test]
    fn wrong_password_is_cached_until_the_hash_changes() {
        let cache = VerifiedPasswords::new(8).unwrap();
        let wrong = Password::new("wrong");
        assert!(!cache.was_wrong("alice", &hash("salt"), &wrong));
        assert!(!cache.verify("alice", &hash("salt"), &wrong));
        assert!(cache.was_wrong("alice", &hash("salt"), &wrong));
        assert!(!cache.was_wrong("bob", &hash("salt"), &wrong));
        let changed = PasswordHash::salted_sha256("salt", &wrong);
        assert!(!cache.was_wrong("alice", &changed, &wrong));
        assert!(cache.verify("alice", &changed, &wrong));
        for n in 0..3 * WRONG_MAX {
            cache.verify_decoy("alice", &hash("salt"), &Password::new(n.to_string()));
        }
        let wrong = lock(&cache.wrong);
        assert!(wrong.recent.len() + wrong.previous.len() <= WRONG_MAX);
        assert_eq!(cache.len(), 1);
    }

    #[test]
    fn zero_entries_disable_the_cache() {
        let cache = VerifiedPasswords::new(0).unwrap();
        assert!(cache.verify("alice", &hash("salt"), &Password::new("secret")));
        assert!(cache.is_empty());
    }
}
