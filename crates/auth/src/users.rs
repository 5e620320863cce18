//! The users that devices and applications log in as: name, password hash, superuser flag.
//!
//! Not the administrators of the dashboard: they live elsewhere and only share the hash code.
//!
//! One `Users` is shared between the authentication pool, which reads, and the API, which changes it at run time. The lock
//! is held for a map operation, never while a password is verified or a file written. Changes live in memory until
//! [`Users::save`].

mod file;

use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::password::{CreateError, PasswordHash};
pub use file::{LineError, LoadError, PasswordFileErrors};

const USERS_MAX: usize = 1_000_000;
/// Far above any name that people use; MQTT allows 65,535 [MQTT-1.5.4].
const USER_NAME_BYTES_MAX: usize = 1024;

pub struct Users {
    table: RwLock<Table>,
    /// Stands in for the hash of an unknown user while there is no user at all.
    empty_decoy: Arc<PasswordHash>,
    decoy_choice: RandomState,
}

/// The list is dense so that a decoy can be picked by index.
#[derive(Default)]
struct Table {
    list: Vec<Arc<User>>,
    index: HashMap<Box<str>, usize>,
}

pub(crate) struct User {
    pub name: Box<str>,
    pub hash: PasswordHash,
    pub is_superuser: bool,
}

/// A user at some time, hash included: not to be shown.
pub struct UserSnapshot(Arc<User>);

/// What may be shown of a user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UserSummary {
    pub name: String,
    pub is_superuser: bool,
    /// `argon2id`, `pbkdf2-sha512`, …
    pub scheme: &'static str,
    /// The hash is weaker than one made now; setting the password again mends that.
    pub is_outdated: bool,
}

impl Users {
    /// Fails only when the operating system has no randomness.
    pub fn empty() -> Result<Users, CreateError> {
        Ok(Users {
            table: RwLock::default(),
            empty_decoy: Arc::new(PasswordHash::decoy()?),
            decoy_choice: RandomState::new(),
        })
    }

    pub fn len(&self) -> usize {
        self.read().list.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn contains(&self, name: &str) -> bool {
        self.read().index.contains_key(name)
    }

    pub fn get(&self, name: &str) -> Option<UserSummary> {
        self.find(name).map(|user| user.summary())
    }

    /// Sorted by name.
    pub fn list(&self) -> Vec<UserSummary> {
        self.sorted().iter().map(|user| user.summary()).collect()
    }

    /// A new user; refuses a name that exists.
    pub fn add(&self, name: &str, hash: PasswordHash, is_superuser: bool) -> Result<(), UserError> {
        check_name(name)?;
        let mut table = self.write();
        if table.index.contains_key(name) {
            return Err(UserError::Exists);
        }
        table.put(User {
            name: name.into(),
            hash,
            is_superuser,
        })
    }

    /// Adds the user, or replaces the one of that name.
    pub fn set(&self, name: &str, hash: PasswordHash, is_superuser: bool) -> Result<(), UserError> {
        check_name(name)?;
        self.write().put(User {
            name: name.into(),
            hash,
            is_superuser,
        })
    }

    pub fn set_password(&self, name: &str, hash: PasswordHash) -> Result<(), UserError> {
        let mut table = self.write();
        let is_superuser = table.find(name).ok_or(UserError::Unknown)?.is_superuser;
        table.put(User {
            name: name.into(),
            hash,
            is_superuser,
        })
    }

    pub fn set_superuser(&self, name: &str, is_superuser: bool) -> Result<(), UserError> {
        let mut table = self.write();
        let hash = table.find(name).ok_or(UserError::Unknown)?.hash.clone();
        table.put(User {
            name: name.into(),
            hash,
            is_superuser,
        })
    }

    pub fn remove(&self, name: &str) -> Result<(), UserError> {
        self.write().remove(name)
    }

    /// Adds every user to another table, in place of those of the same name there.
    pub fn copy_into(&self, other: &Users) -> Result<(), UserError> {
        for user in self.sorted() {
            other.set(&user.name, user.hash.clone(), user.is_superuser)?;
        }
        Ok(())
    }

    /// Becomes a copy of another table, all at once. Back come the users whose login is worth nothing any more: those that
    /// are gone, and those whose password hash is another.
    pub fn replace(&self, by: &Users) -> Vec<Box<str>> {
        let new = Table::of(by.sorted());
        let mut table = self.write();
        let is_invalid = |old: &&Arc<User>| {
            let now = new.find(&old.name);
            now.is_none_or(|now| now.hash != old.hash)
        };
        let invalid = table
            .list
            .iter()
            .filter(is_invalid)
            .map(|user| user.name.clone())
            .collect();
        *table = new;
        invalid
    }

    /// One user as it is now, for `restore`.
    pub fn snapshot(&self, name: &str) -> Option<UserSnapshot> {
        self.find(name).map(UserSnapshot)
    }

    /// Makes a user what a snapshot says; `None` is no such user.
    pub fn restore(&self, name: &str, snapshot: Option<UserSnapshot>) {
        let mut table = self.write();
        // There was room for it, or it is not there to be removed.
        let _ = match snapshot {
            Some(UserSnapshot(user)) => table.put(User {
                name: user.name.clone(),
                hash: user.hash.clone(),
                is_superuser: user.is_superuser,
            }),
            None => table.remove(name),
        };
    }

    pub(crate) fn find(&self, name: &str) -> Option<Arc<User>> {
        self.read().find(name).cloned()
    }

    /// The hash to verify an unknown user's password against. It is that of some existing user, always the same one for a
    /// name while the table does not change: so unknown names show the same mix of costs as known ones, even when the
    /// users' hashes are of several schemes.
    pub(crate) fn decoy_for(&self, unknown_name: &str) -> Arc<PasswordHash> {
        let table = self.read();
        if table.list.is_empty() {
            return self.empty_decoy.clone();
        }
        let chosen = self.decoy_choice.hash_one(unknown_name) % table.list.len() as u64;
        Arc::new(table.list[chosen as usize].hash.clone())
    }

    fn sorted(&self) -> Vec<Arc<User>> {
        let mut users = self.read().list.clone();
        users.sort_by(|a, b| a.name.cmp(&b.name));
        users
    }

    // Every update of the table is complete before the guard goes, so a panic elsewhere cannot have broken it.
    fn read(&self) -> RwLockReadGuard<'_, Table> {
        self.table.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Table> {
        self.table.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    /// Of users with names of their own.
    fn of(list: Vec<Arc<User>>) -> Table {
        let names = list.iter().enumerate().map(|(at, user)| (user.name.clone(), at));
        Table {
            index: names.collect(),
            list,
        }
    }

    fn find(&self, name: &str) -> Option<&Arc<User>> {
        self.index.get(name).map(|&at| &self.list[at])
    }

    fn put(&mut self, user: User) -> Result<(), UserError> {
        if let Some(&at) = self.index.get(&user.name) {
            self.list[at] = Arc::new(user);
            return Ok(());
        }
        if self.list.len() >= USERS_MAX {
            return Err(UserError::TooMany);
        }
        self.index.insert(user.name.clone(), self.list.len());
        self.list.push(Arc::new(user));
        Ok(())
    }

    fn remove(&mut self, name: &str) -> Result<(), UserError> {
        let at = self.index.remove(name).ok_or(UserError::Unknown)?;
        self.list.swap_remove(at);
        if let Some(moved) = self.list.get(at) {
            self.index.insert(moved.name.clone(), at);
        }
        Ok(())
    }
}

impl User {
    fn summary(&self) -> UserSummary {
        UserSummary {
            name: self.name.to_string(),
            is_superuser: self.is_superuser,
            scheme: self.hash.scheme_name(),
            is_outdated: self.hash.is_outdated(),
        }
    }
}

/// A name that the file format and ACL rules can hold.
fn check_name(name: &str) -> Result<(), UserError> {
    if name.is_empty() || name.len() > USER_NAME_BYTES_MAX {
        return Err(UserError::NameLength);
    }
    let is_bad = |c: char| c == ':' || c.is_control();
    if name.contains(is_bad) || name.starts_with('#') || name.trim() != name {
        return Err(UserError::NameCharacter);
    }
    Ok(())
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UserError {
    Exists,
    Unknown,
    TooMany,
    NameLength,
    NameCharacter,
}

impl fmt::Display for UserError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            UserError::Exists => f.write_str("there is a user of that name already"),
            UserError::Unknown => f.write_str("there is no user of that name"),
            UserError::TooMany => write!(f, "there are {USERS_MAX} users already, which is the limit"),
            UserError::NameLength => write!(f, "a user name has 1 to {USER_NAME_BYTES_MAX} bytes"),
            UserError::NameCharacter => f.write_str(
                "a user name cannot contain a colon or a control character, start with `#`, or begin or end with a blank",
            ),
        }
    }
}

impl std::error::Error for UserError {}

#[cfg(test)]
mod tests;
