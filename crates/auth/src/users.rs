//! The users that devices and applications authenticate as: name, password hash, role.
//!
//! Users of the console are in another file; they share the format and the hash code. Only they have the roles
//! [`UserRole::Operator`] and [`UserRole::InNamespace`].
//!
//! The authentication pool and the API share one `Users`. The API changes it at run time. The lock is held for a map
//! operation, never while a password is verified or a file is written. Changes are in memory only until
//! [`Users::save`].

mod file;

use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::password::{CreateError, PasswordHash};
pub use file::{LineError, LoadError, PasswordFileErrors};

pub(crate) const USERS_MAX: usize = 1_000_000;
/// Far above practical names. MQTT allows 65,535 bytes [MQTT-1.5.4].
pub(crate) const USER_NAME_BYTES_MAX: usize = 1024;

pub struct Users {
    table: RwLock<UserTable>,
    /// Decoy hash while there are no users.
    empty_decoy: Arc<PasswordHash>,
    decoy_choice: RandomState,
}

/// The list is dense, so that a decoy can be picked by index.
#[derive(Default)]
struct UserTable {
    list: Vec<Arc<StoredUser>>,
    index: HashMap<Box<str>, usize>,
}

pub(crate) struct StoredUser {
    pub name: Box<str>,
    pub hash: PasswordHash,
    pub role: UserRole,
}

/// Begins the text of a role within a namespace.
pub const NAMESPACE_ROLE: &str = "ns:";

/// The third field of a line in the password file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UserRole {
    /// The field is absent.
    User,
    /// Only for users of the console: the text of a role within a namespace, which the console checks.
    InNamespace(Box<str>),
    /// Only for users of the console. An MQTT user cannot have this role.
    Operator,
    /// For MQTT users: access rules do not apply. For users of the console: an administrator.
    Superuser,
}

impl UserRole {
    pub fn of_superuser(is_superuser: bool) -> UserRole {
        match is_superuser {
            true => UserRole::Superuser,
            false => UserRole::User,
        }
    }
}

/// Copy of a user, including the password hash. Must not be displayed.
pub struct UserSnapshot(Arc<StoredUser>);

/// The properties of a user that may be displayed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UserSummary {
    pub name: String,
    pub is_superuser: bool,
    pub role: UserRole,
    /// `argon2id`, `pbkdf2-sha512`, …
    pub scheme: &'static str,
    /// The hash is weaker than a new one. Setting the password again replaces it.
    pub is_outdated: bool,
}

impl Users {
    /// Creates an empty table. Fails only if the operating system provides no random bytes.
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

    /// Returns all users, sorted by name.
    pub fn list(&self) -> Vec<UserSummary> {
        self.sorted().iter().map(|user| user.summary()).collect()
    }

    /// Adds a user. Fails if the name exists.
    pub fn add(&self, name: &str, hash: PasswordHash, is_superuser: bool) -> Result<(), UserError> {
        check_name(name)?;
        let mut table = self.write();
        if table.index.contains_key(name) {
            return Err(UserError::Exists);
        }
        table.put(StoredUser {
            name: name.into(),
            hash,
            role: UserRole::of_superuser(is_superuser),
        })
    }

    /// Adds a user, or replaces the user with the same name.
    pub fn set(&self, name: &str, hash: PasswordHash, is_superuser: bool) -> Result<(), UserError> {
        self.set_with_role(name, hash, UserRole::of_superuser(is_superuser))
    }

    /// Like [`Users::set`], with any role.
    pub fn set_with_role(&self, name: &str, hash: PasswordHash, role: UserRole) -> Result<(), UserError> {
        check_name(name)?;
        self.write().put(StoredUser {
            name: name.into(),
            hash,
            role,
        })
    }

    pub fn set_password(&self, name: &str, hash: PasswordHash) -> Result<(), UserError> {
        let mut table = self.write();
        let role = table.find(name).ok_or(UserError::Unknown)?.role.clone();
        table.put(StoredUser {
            name: name.into(),
            hash,
            role,
        })
    }

    pub fn set_superuser(&self, name: &str, is_superuser: bool) -> Result<(), UserError> {
        self.set_role(name, UserRole::of_superuser(is_superuser))
    }

    pub fn set_role(&self, name: &str, role: UserRole) -> Result<(), UserError> {
        let mut table = self.write();
        let hash = table.find(name).ok_or(UserError::Unknown)?.hash.clone();
        table.put(StoredUser {
            name: name.into(),
            hash,
            role,
        })
    }

    pub fn remove(&self, name: &str) -> Result<(), UserError> {
        self.write().remove(name)
    }

    /// Copies every user to another table. Replaces users with the same name there.
    pub fn copy_into(&self, other: &Users) -> Result<(), UserError> {
        for user in self.sorted() {
            other.set_with_role(&user.name, user.hash.clone(), user.role.clone())?;
        }
        Ok(())
    }

    /// Replaces all users by those of another table, atomically. Returns the users whose existing logins are invalid:
    /// removed users, and users whose password hash has changed.
    pub fn replace(&self, by: &Users) -> Vec<Box<str>> {
        let new = UserTable::of(by.sorted());
        let mut table = self.write();
        let is_invalid = |old: &&Arc<StoredUser>| {
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

    /// Returns a copy of a user for [`Users::restore`].
    pub fn snapshot(&self, name: &str) -> Option<UserSnapshot> {
        self.find(name).map(UserSnapshot)
    }

    /// Restores a user from a snapshot. `None` removes the user.
    pub fn restore(&self, name: &str, snapshot: Option<UserSnapshot>) {
        let mut table = self.write();
        // Cannot fail: the table had space for the user, and removing an unknown user needs no change.
        let _ = match snapshot {
            Some(UserSnapshot(user)) => table.put(StoredUser {
                name: user.name.clone(),
                hash: user.hash.clone(),
                role: user.role.clone(),
            }),
            None => table.remove(name),
        };
    }

    pub(crate) fn find(&self, name: &str) -> Option<Arc<StoredUser>> {
        self.read().find(name).cloned()
    }

    /// Returns the hash against which the password of an unknown user is verified. It belongs to an existing user,
    /// always the same one for a name while the table is unchanged. Unknown names then take the same times as known
    /// ones, even with several hash schemes.
    pub(crate) fn decoy_for(&self, unknown_name: &str) -> Arc<PasswordHash> {
        let table = self.read();
        if table.list.is_empty() {
            return self.empty_decoy.clone();
        }
        let chosen = self.decoy_choice.hash_one(unknown_name) % table.list.len() as u64;
        Arc::new(table.list[chosen as usize].hash.clone())
    }

    fn sorted(&self) -> Vec<Arc<StoredUser>> {
        let mut users = self.read().list.clone();
        users.sort_by(|a, b| a.name.cmp(&b.name));
        users
    }

    // Every update of the table is complete before the guard is dropped, so a panic cannot leave it inconsistent.
    fn read(&self) -> RwLockReadGuard<'_, UserTable> {
        self.table.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, UserTable> {
        self.table.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl UserTable {
    /// Creates a table. The names must be distinct.
    fn of(list: Vec<Arc<StoredUser>>) -> UserTable {
        let names = list.iter().enumerate().map(|(at, user)| (user.name.clone(), at));
        UserTable {
            index: names.collect(),
            list,
        }
    }

    fn find(&self, name: &str) -> Option<&Arc<StoredUser>> {
        self.index.get(name).map(|&at| &self.list[at])
    }

    fn put(&mut self, user: StoredUser) -> Result<(), UserError> {
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

impl StoredUser {
    pub fn is_superuser(&self) -> bool {
        self.role == UserRole::Superuser
    }

    fn summary(&self) -> UserSummary {
        UserSummary {
            name: self.name.to_string(),
            is_superuser: self.is_superuser(),
            role: self.role.clone(),
            scheme: self.hash.scheme_name(),
            is_outdated: self.hash.is_outdated(),
        }
    }
}

/// Checks that the password file and ACL rules can represent a name.
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

/// Returns whether a name from a SCRAM message or a certificate can identify a client. It must not be empty or too
/// long, and must not have a character with which it could look like another name.
pub fn is_clear_name(name: &str) -> bool {
    !name.is_empty() && name.len() <= USER_NAME_BYTES_MAX && !name.contains(is_prohibited)
}

/// Returns whether SASLprep prohibits or deletes a character, or maps it to a space [RFC 4013, RFC 3454]. Such
/// characters let two different names look alike.
fn is_prohibited(character: char) -> bool {
    match u32::from(character) {
        // Control characters.
        0..=0x1F | 0x7F..=0x9F | 0x6DD | 0x70F | 0x2028..=0x2029 | 0x1D173..=0x1D17A => true,
        // Spaces.
        0xA0 | 0x1680 | 0x2000..=0x200A | 0x202F | 0x205F | 0x3000 => true,
        // Invisible characters, variation selectors, and characters that change the display.
        0xAD | 0x34F | 0x340..=0x341 | 0x180B..=0x180E | 0x200B..=0x200F | 0x202A..=0x202E | 0x2060..=0x206F => true,
        0xFE00..=0xFE0F | 0xFEFF | 0xFFF9..=0xFFFD | 0x2FF0..=0x2FFB => true,
        // Private use, and tags.
        0xE000..=0xF8FF | 0xF0000.. => true,
        0xE0000..=0xE0FFF => true,
        // Not characters.
        0xFDD0..=0xFDEF => true,
        code => code & 0xFFFE == 0xFFFE,
    }
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
            UserError::Exists => f.write_str("a user with this name already exists"),
            UserError::Unknown => f.write_str("there is no user with this name"),
            UserError::TooMany => write!(f, "the limit of {USERS_MAX} users is reached"),
            UserError::NameLength => write!(f, "a user name must have 1 to {USER_NAME_BYTES_MAX} bytes"),
            UserError::NameCharacter => f.write_str(
                "a user name cannot contain a colon or a control character, start with `#`, or begin or end with a space",
            ),
        }
    }
}

impl std::error::Error for UserError {}

#[cfg(test)]
mod tests;
