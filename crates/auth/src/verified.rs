//! Remembers which (user, password) pairs have been verified, so that a reconnecting fleet does not pay argon2 again.
//!
//! What is kept is HMAC-SHA256 under a random key of this process over the user name, the stored hash and the password:
//! - without the key, which never leaves this struct, an entry says nothing about a password;
//! - a changed hash makes another tag, so a changed or removed password stops matching with no invalidation to forget;
//! - looking a tag up in a hash set is not constant-time and need not be: the peer cannot predict or steer a tag.
//!
//! What it costs in security: who can read this process's memory can test guesses at the speed of HMAC instead of argon2.
//!
//! Bounded by two generations: when the young one is full it becomes the old one and the old one is forgotten. A hit in
//! the old one moves to the young one, so pairs in use survive. Only successes are remembered; a wrong password costs a
//! full verification each time.

use std::collections::HashSet;
use std::mem;
use std::sync::{Mutex, MutexGuard, PoisonError};

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use zeroize::Zeroizing;

use crate::password::{CreateError, PasswordHash, random_bytes};
use crate::secret::Password;

type Tag = [u8; 32];

pub struct VerifiedPasswords {
    key: Zeroizing<[u8; 32]>,
    generation_entries_max: usize,
    generations: Mutex<Generations>,
}

#[derive(Default)]
struct Generations {
    young: HashSet<Tag>,
    old: HashSet<Tag>,
}

impl VerifiedPasswords {
    /// Some 100 bytes each.
    pub const ENTRIES_MAX_DEFAULT: usize = 65_536;

    /// `entries_max` of 0 remembers nothing. Fails only when the operating system has no randomness.
    pub fn new(entries_max: usize) -> Result<VerifiedPasswords, CreateError> {
        Ok(VerifiedPasswords {
            key: Zeroizing::new(random_bytes()?),
            generation_entries_max: entries_max / 2,
            generations: Mutex::default(),
        })
    }

    /// Like [`PasswordHash::verify`], but cheap when the same triple has been verified before.
    pub fn verify(&self, user_name: &str, hash: &PasswordHash, password: &Password) -> bool {
        let tag = self.tag(user_name, hash, password);
        if self.recall(&tag) {
            return true;
        }
        let is_verified = hash.verify(password);
        if is_verified {
            self.remember(tag);
        }
        is_verified
    }

    /// Whether this triple has been verified before: no hash, no waiting. False says nothing about the password.
    pub fn is_known(&self, user_name: &str, hash: &PasswordHash, password: &Password) -> bool {
        let tag = self.tag(user_name, hash, password);
        self.recall(&tag)
    }

    /// Costs what [`VerifiedPasswords::verify`] costs for a wrong password, whatever the password is, and remembers nothing.
    pub(crate) fn verify_decoy(&self, user_name: &str, decoy: &PasswordHash, password: &Password) {
        let tag = self.tag(user_name, decoy, password);
        std::hint::black_box(self.recall(&tag));
        std::hint::black_box(decoy.verify(password));
    }

    pub fn len(&self) -> usize {
        let generations = self.lock();
        generations.young.len() + generations.old.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn clear(&self) {
        *self.lock() = Generations::default();
    }

    fn tag(&self, user_name: &str, hash: &PasswordHash, password: &Password) -> Tag {
        let mut mac = Hmac::<Sha256>::new_from_slice(&*self.key).expect("HMAC takes a key of any length");
        // Lengths first, so that no two triples spell the same bytes.
        for part in [user_name.as_bytes(), hash.as_str().as_bytes()] {
            mac.update(&(part.len() as u64).to_le_bytes());
            mac.update(part);
        }
        mac.update(password.expose());
        mac.finalize().into_bytes().into()
    }

    fn recall(&self, tag: &Tag) -> bool {
        let mut generations = self.lock();
        if generations.young.contains(tag) {
            return true;
        }
        if generations.old.remove(tag) {
            generations.insert(*tag, self.generation_entries_max);
            return true;
        }
        false
    }

    fn remember(&self, tag: Tag) {
        self.lock().insert(tag, self.generation_entries_max);
    }

    fn lock(&self) -> MutexGuard<'_, Generations> {
        // Every update leaves the sets valid, so a panic elsewhere cannot have broken them.
        self.generations.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Generations {
    fn insert(&mut self, tag: Tag, entries_max: usize) {
        if entries_max == 0 {
            return;
        }
        if self.young.len() >= entries_max {
            self.old = mem::take(&mut self.young);
        }
        self.young.insert(tag);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(salt: &str) -> PasswordHash {
        PasswordHash::salted_sha256(salt, &Password::new("secret"))
    }

    #[test]
    fn only_a_verified_triple_is_remembered() {
        let cache = VerifiedPasswords::new(8).unwrap();
        assert!(!cache.verify("alice", &hash("salt"), &Password::new("wrong")));
        assert!(cache.is_empty());
        assert!(cache.verify("alice", &hash("salt"), &Password::new("secret")));
        assert_eq!(cache.len(), 1);
        assert!(cache.verify("alice", &hash("salt"), &Password::new("secret")));
        assert_eq!(cache.len(), 1);
    }

    #[test]
    fn another_user_hash_or_password_is_another_tag() {
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
    fn parts_that_run_together_make_different_tags() {
        let cache = VerifiedPasswords::new(8).unwrap();
        let hash = hash("salt");
        let left = cache.tag("x", &hash, &Password::new(format!("{}secret", hash.as_str())));
        let right = cache.tag(&format!("x{}", hash.as_str()), &hash, &Password::new("secret"));
        assert_ne!(left, right);
    }

    #[test]
    fn a_changed_hash_is_verified_anew() {
        let cache = VerifiedPasswords::new(8).unwrap();
        assert!(cache.verify("alice", &hash("salt"), &Password::new("secret")));
        let changed = PasswordHash::salted_sha256("salt", &Password::new("other"));
        assert!(!cache.verify("alice", &changed, &Password::new("secret")));
    }

    #[test]
    fn the_number_of_entries_is_bounded_and_used_ones_survive() {
        let cache = VerifiedPasswords::new(10).unwrap();
        let kept = cache.tag("kept", &hash("salt"), &Password::new("secret"));
        cache.remember(kept);
        for n in 0..100 {
            let name = format!("user-{n}");
            assert!(cache.verify(&name, &hash("salt"), &Password::new("secret")));
            assert!(cache.len() <= 10);
            assert!(cache.recall(&kept), "in use at {n}");
        }
        assert!(!cache.recall(&cache.tag("user-0", &hash("salt"), &Password::new("secret"))));
    }

    #[test]
    fn no_entries_means_no_cache() {
        let cache = VerifiedPasswords::new(0).unwrap();
        assert!(cache.verify("alice", &hash("salt"), &Password::new("secret")));
        assert!(cache.is_empty());
    }
}
