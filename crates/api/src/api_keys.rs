//! Keys with which programs use the API: a name, a role and a secret, which is shown once and kept as its hash.
//!
//! The secret has 256 random bits, so that a plain hash of it is enough and guessing needs no limit. A key is looked up for each
//! request: what is changed holds at once. When it was last used is remembered in memory.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use base64ct::{Base64UrlUnpadded, Encoding};
use platform::ids::Uuid;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use zeroize::Zeroizing;

use crate::admins::Role;

pub const KEYS_MAX: usize = 1000;
/// Of names and descriptions.
pub const TEXT_BYTES_MAX: usize = 256;
/// Tells a key from a login, and secret scanners what they have found.
const PREFIX: &str = "twk_";
const SECRET_BYTES: usize = 32;
/// Before the hash of a screen's key: a version that knows no screens finds no such key, where it would take it for one that reads all.
const OF_SCREEN: &str = "screen:";

/// A key as it is kept.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ApiKey {
    pub name: String,
    /// SHA-256 of the secret, base64; of a screen with [`OF_SCREEN`] before it.
    hash: String,
    pub role: Role,
    #[serde(default)]
    pub description: String,
    pub is_enabled: bool,
    pub created_at_unix_ms: u64,
    /// Who has made it.
    pub by: String,
    /// None: never.
    pub expires_at_unix_ms: Option<u64>,
    /// A key of a screen shows this dashboard of the device platform, and is good for nothing else.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dashboard: Option<Uuid>,
    /// 0: not since the start.
    #[serde(skip)]
    last_used_unix_ms: Arc<AtomicU64>,
}

/// What a new key is to be.
pub struct NewApiKey {
    pub name: String,
    pub role: Role,
    pub description: String,
    pub is_enabled: bool,
    pub created_at_unix_ms: u64,
    pub by: String,
    pub expires_at_unix_ms: Option<u64>,
    pub dashboard: Option<Uuid>,
}

impl ApiKey {
    pub fn last_used_unix_ms(&self) -> Option<u64> {
        Some(self.last_used_unix_ms.load(Ordering::Relaxed)).filter(|at| *at > 0)
    }

    fn marked(mut self) -> ApiKey {
        if self.dashboard.is_some() && !self.hash.starts_with(OF_SCREEN) {
            self.hash.insert_str(0, OF_SCREEN);
        }
        self
    }

    fn is_good(&self, now_unix_ms: u64) -> bool {
        self.is_enabled && self.expires_at_unix_ms.is_none_or(|at| at > now_unix_ms)
    }
}

/// Sorted by name.
type Table = BTreeMap<String, ApiKey>;

#[derive(Default)]
pub struct ApiKeys {
    /// None: kept in memory only.
    path: Option<PathBuf>,
    /// What is read for each request; replaced whole.
    by_hash: Mutex<Arc<BTreeMap<String, ApiKey>>>,
    /// Locked for the length of a change.
    all: Mutex<Table>,
}

impl ApiKeys {
    /// Reads the file, if it is there.
    pub fn open(path: Option<&Path>) -> io::Result<ApiKeys> {
        let list: Vec<ApiKey> = match path.map(fs::read) {
            Some(Ok(bytes)) => serde_json::from_slice(&bytes)?,
            Some(Err(error)) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => Vec::new(),
        };
        let all: Table = list
            .into_iter()
            .map(ApiKey::marked)
            .map(|key| (key.name.clone(), key))
            .collect();
        Ok(ApiKeys {
            path: path.map(Path::to_owned),
            by_hash: Mutex::new(Arc::new(by_hash(&all))),
            all: Mutex::new(all),
        })
    }

    pub fn is_key(token: &str) -> bool {
        token.starts_with(PREFIX)
    }

    /// The key that a token is, if it is good, and none of a screen.
    pub fn find(&self, token: &str, now_unix_ms: u64) -> Option<(String, Role)> {
        let key = self.look_up(&hash(token), now_unix_ms)?;
        Some((key.name, key.role))
    }

    /// The key of a screen that a token is, if it is good, and the dashboard.
    pub fn find_screen(&self, token: &str, now_unix_ms: u64) -> Option<(String, Uuid)> {
        let key = self.look_up(&format!("{OF_SCREEN}{}", hash(token)), now_unix_ms)?;
        Some((key.name, key.dashboard?))
    }

    fn look_up(&self, hash: &str, now_unix_ms: u64) -> Option<ApiKey> {
        let table = self.by_hash.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let key = table.get(hash).filter(|key| key.is_good(now_unix_ms))?;
        key.last_used_unix_ms.store(now_unix_ms, Ordering::Relaxed);
        Some(key.clone())
    }

    pub fn list(&self) -> Vec<ApiKey> {
        self.lock().values().cloned().collect()
    }

    /// The key, and its secret, which nobody can tell again.
    pub fn add(&self, new: NewApiKey) -> Result<(ApiKey, Zeroizing<String>), ApiKeyError> {
        check_name(&new.name)?;
        check_description(&new.description)?;
        check_role(new.role, new.dashboard)?;
        let mut random = Zeroizing::new([0u8; SECRET_BYTES]);
        getrandom::fill(&mut *random).map_err(|_| ApiKeyError::NoRandomness)?;
        let secret = Zeroizing::new(format!("{PREFIX}{}", Base64UrlUnpadded::encode_string(&*random)));
        let key = ApiKey {
            name: new.name,
            hash: hash(&secret),
            role: new.role,
            description: new.description,
            is_enabled: new.is_enabled,
            created_at_unix_ms: new.created_at_unix_ms,
            by: new.by,
            expires_at_unix_ms: new.expires_at_unix_ms,
            dashboard: new.dashboard,
            last_used_unix_ms: Arc::default(),
        }
        .marked();
        self.change(|all| {
            if all.contains_key(&key.name) {
                return Err(ApiKeyError::Exists);
            }
            if all.len() >= KEYS_MAX {
                return Err(ApiKeyError::TooMany);
            }
            all.insert(key.name.clone(), key.clone());
            Ok(())
        })?;
        Ok((key, secret))
    }

    /// Changes a key and gives it back.
    pub fn alter(&self, name: &str, alter: impl FnOnce(&mut ApiKey)) -> Result<ApiKey, ApiKeyError> {
        self.change(|all| {
            let key = all.get_mut(name).ok_or(ApiKeyError::Unknown)?;
            alter(key);
            check_description(&key.description)?;
            check_role(key.role, key.dashboard)?;
            Ok(key.clone())
        })
    }

    pub fn remove(&self, name: &str) -> Result<(), ApiKeyError> {
        self.change(|all| all.remove(name).map(drop).ok_or(ApiKeyError::Unknown))
    }

    /// On disk and in force when it returns.
    fn change<R>(&self, change: impl FnOnce(&mut Table) -> Result<R, ApiKeyError>) -> Result<R, ApiKeyError> {
        let mut all = self.lock();
        let mut changed = all.clone();
        let result = change(&mut changed)?;
        if let Some(path) = &self.path {
            save(path, &changed).map_err(ApiKeyError::Storage)?;
        }
        *self.by_hash.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(by_hash(&changed));
        *all = changed;
        Ok(result)
    }

    // A table is replaced whole, so a panic elsewhere cannot have broken it.
    fn lock(&self) -> MutexGuard<'_, Table> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn by_hash(all: &Table) -> BTreeMap<String, ApiKey> {
    all.values().map(|key| (key.hash.clone(), key.clone())).collect()
}

fn hash(token: &str) -> String {
    Base64UrlUnpadded::encode_string(&Sha256::digest(token.as_bytes()))
}

fn save(path: &Path, all: &Table) -> io::Result<()> {
    let list: Vec<&ApiKey> = all.values().collect();
    storage::copy::replace(path, &serde_json::to_vec_pretty(&list)?)
}

/// A name that a path and a line of the log can hold.
fn check_name(name: &str) -> Result<(), ApiKeyError> {
    let is_good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if name.is_empty() || name.len() > TEXT_BYTES_MAX || !name.chars().all(is_good) {
        return Err(ApiKeyError::Name);
    }
    Ok(())
}

fn check_description(description: &str) -> Result<(), ApiKeyError> {
    match description.len() {
        0..=TEXT_BYTES_MAX => Ok(()),
        _ => Err(ApiKeyError::Description),
    }
}

fn check_role(role: Role, dashboard: Option<Uuid>) -> Result<(), ApiKeyError> {
    match (role, dashboard) {
        (Role::Admin, Some(_)) => Err(ApiKeyError::RoleOfScreen),
        _ => Ok(()),
    }
}

/// Why a change was not made. Nothing has changed then.
#[derive(Debug)]
pub enum ApiKeyError {
    Exists,
    Unknown,
    TooMany,
    Name,
    Description,
    RoleOfScreen,
    NoRandomness,
    Storage(io::Error),
}

impl fmt::Display for ApiKeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ApiKeyError::Exists => f.write_str("there is a key of that name already"),
            ApiKeyError::Unknown => f.write_str("there is no key of that name"),
            ApiKeyError::TooMany => write!(f, "there are {KEYS_MAX} keys already, which is the limit"),
            ApiKeyError::Name => write!(
                f,
                "a name has 1 to {TEXT_BYTES_MAX} letters, digits, hyphens, underscores and dots"
            ),
            ApiKeyError::Description => write!(f, "a description has at most {TEXT_BYTES_MAX} bytes"),
            ApiKeyError::RoleOfScreen => f.write_str("a screen changes nothing, so that its key has the role `viewer`"),
            ApiKeyError::NoRandomness => f.write_str("the operating system gives no random bytes"),
            ApiKeyError::Storage(_) => f.write_str("the change could not be written to disk"),
        }
    }
}

impl std::error::Error for ApiKeyError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            ApiKeyError::Storage(error) => Some(error),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn new(name: &str, expires_at_unix_ms: Option<u64>) -> NewApiKey {
        NewApiKey {
            name: name.into(),
            role: Role::Viewer,
            description: String::new(),
            is_enabled: true,
            created_at_unix_ms: 1,
            by: "ada".into(),
            expires_at_unix_ms,
            dashboard: None,
        }
    }

    #[test]
    fn a_key_is_good_until_it_expires_is_disabled_or_removed_also_after_a_restart() {
        let path = std::env::temp_dir().join(format!("tidewire-keys-{}.json", std::process::id()));
        let _ = fs::remove_file(&path);
        let keys = ApiKeys::open(Some(&path)).unwrap();
        let (_, secret) = keys.add(new("ci", Some(1000))).unwrap();
        assert!(ApiKeys::is_key(&secret) && !fs::read_to_string(&path).unwrap().contains(&**secret));
        for keys in [&keys, &ApiKeys::open(Some(&path)).unwrap()] {
            assert_eq!(keys.find(&secret, 999), Some(("ci".into(), Role::Viewer)));
            assert_eq!(keys.list()[0].last_used_unix_ms(), Some(999));
            assert_eq!(keys.find(&secret, 1000), None);
            assert_eq!(keys.find("twk_made-up", 999), None);
        }
        keys.alter("ci", |key| key.is_enabled = false).unwrap();
        assert_eq!(keys.find(&secret, 1), None);
        keys.remove("ci").unwrap();
        assert!(matches!(keys.remove("ci"), Err(ApiKeyError::Unknown)));
        assert!(ApiKeys::open(Some(&path)).unwrap().list().is_empty());
        let _ = fs::remove_file(&path);
    }

    #[test]
    fn the_file_has_no_plain_hash_of_a_screens_key_and_old_ones_are_read() {
        let path = std::env::temp_dir().join(format!("tidewire-screen-keys-{}.json", std::process::id()));
        let _ = fs::remove_file(&path);
        let keys = ApiKeys::open(Some(&path)).unwrap();
        let dashboard = Uuid::parse("4e1a4a50-b3a2-11ef-9cd2-0242ac120002");
        let of_screen = NewApiKey {
            dashboard,
            ..new("hall", None)
        };
        let (_, secret) = keys.add(of_screen).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        let stored = |hash: &str| text.contains(&format!("\"{hash}\""));
        assert!(!stored(&hash(&secret)) && stored(&format!("{OF_SCREEN}{}", hash(&secret))));
        // As it was written before.
        fs::write(&path, text.replace(OF_SCREEN, "")).unwrap();
        let keys = ApiKeys::open(Some(&path)).unwrap();
        assert_eq!(keys.find_screen(&secret, 1), dashboard.map(|id| ("hall".into(), id)));
        assert_eq!(keys.find(&secret, 1), None);
        // As a version that knows no screens writes it again.
        let mut list: serde_json::Value = serde_json::from_str(&text).unwrap();
        list[0].as_object_mut().unwrap().remove("dashboard");
        fs::write(&path, list.to_string()).unwrap();
        let keys = ApiKeys::open(Some(&path)).unwrap();
        assert!(keys.find(&secret, 1).is_none() && keys.find_screen(&secret, 1).is_none());
        let _ = fs::remove_file(&path);
    }

    #[test]
    fn a_key_of_a_screen_is_no_other_key_and_never_an_administrators() {
        let keys = ApiKeys::default();
        let dashboard = Uuid::parse("4e1a4a50-b3a2-11ef-9cd2-0242ac120002");
        let screen = |name: &str, role| NewApiKey {
            dashboard,
            role,
            ..new(name, Some(1000))
        };
        let (_, secret) = keys.add(screen("hall", Role::Viewer)).unwrap();
        assert_eq!(keys.find(&secret, 999), None);
        assert_eq!(keys.find_screen(&secret, 999), dashboard.map(|id| ("hall".into(), id)));
        assert_eq!(keys.find_screen(&secret, 1000), None);
        let (_, other) = keys.add(new("ci", None)).unwrap();
        assert_eq!(keys.find_screen(&other, 1), None);
        assert!(matches!(
            keys.add(screen("x", Role::Admin)),
            Err(ApiKeyError::RoleOfScreen)
        ));
        let altered = keys.alter("hall", |key| key.role = Role::Admin);
        assert!(matches!(altered, Err(ApiKeyError::RoleOfScreen)));
    }

    #[test]
    fn names_are_checked_and_unique() {
        let keys = ApiKeys::default();
        for name in ["", "a b", "a/b", "ü"] {
            assert!(matches!(keys.add(new(name, None)), Err(ApiKeyError::Name)), "{name}");
        }
        keys.add(new("a", None)).unwrap();
        assert!(matches!(keys.add(new("a", None)), Err(ApiKeyError::Exists)));
    }
}
