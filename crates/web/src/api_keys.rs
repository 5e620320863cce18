//! API keys of programs: a name, a role and a secret, which is shown once and stored as a hash.
//!
//! The secret has 256 random bits, so an unsalted hash is sufficient and attempts need no rate limit. Each request
//! looks the key up, so a change applies at once. The time of the last use is only in memory.
//!
//! The file has a version: `{"version": 2, "keys": […]}`. Version 1, up to tidewire 0.1, is the array alone.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use base64ct::{Base64UrlUnpadded, Encoding};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use zeroize::Zeroizing;

use crate::access_changes::AccessChanges;
use crate::role::{AssignedRole, Namespace, Role};
use crate::scope::Scope;

pub const KEYS_MAX: usize = 1000;
/// Prefix of the name of an API key in place of a user name. User names cannot contain a colon.
pub const KEY_PREFIX: &str = "key:";
/// Limit of names and descriptions.
pub const TEXT_BYTES_MAX: usize = 256;
/// Distinguishes keys from login tokens, and helps secret scanners to recognise them.
const PREFIX: &str = "twk_";
const SECRET_BYTES: usize = 32;
/// Prefix of the stored hash of a screen's key. A server version without screens does not find such a key, instead of
/// accepting it for the whole API.
const OF_SCREEN: &str = "screen:";
/// Prefix of the stored hash of a key with scopes. A server version without scopes does not find such a key, instead of
/// accepting it for all operations.
const WITH_SCOPES: &str = "scopes:";
/// Prefix of the stored hash of a key with a role in a namespace, for the same reason.
const IN_NAMESPACE: &str = "ns:";
/// Version of the file. Version 2 added the role `operator`.
const VERSION: u32 = 2;

/// A stored key.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct StoredApiKey {
    pub name: String,
    /// SHA-256 of the secret, base64, with the prefix [`OF_SCREEN`], [`IN_NAMESPACE`] or [`WITH_SCOPES`] of such a key.
    hash: String,
    role: Role,
    /// `None`: the role is for the whole server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    namespace: Option<Namespace>,
    #[serde(default)]
    pub description: String,
    pub is_enabled: bool,
    pub created_at_unix_ms: u64,
    /// User or API key that created the key.
    pub by: String,
    /// Console user who created the key, or a key with which it was created. The key has at most the rights of this
    /// user.
    #[serde(default)]
    pub issuer: String,
    /// `None`: it never expires.
    pub expires_at_unix_ms: Option<u64>,
    /// For the key of a screen: the UUID of the only dashboard that it can show.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dashboard: Option<String>,
    /// `None`: all operations of the role.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scopes: Option<Vec<Scope>>,
    /// 0: not used since the start.
    #[serde(skip)]
    last_used_unix_ms: Arc<AtomicU64>,
}

/// Fields of a new key.
pub struct NewApiKey {
    pub name: String,
    pub role: AssignedRole,
    pub description: String,
    pub is_enabled: bool,
    pub created_at_unix_ms: u64,
    pub by: String,
    pub issuer: String,
    pub expires_at_unix_ms: Option<u64>,
    pub dashboard: Option<String>,
    pub scopes: Option<Vec<Scope>>,
}

impl StoredApiKey {
    pub fn last_used_unix_ms(&self) -> Option<u64> {
        Some(self.last_used_unix_ms.load(Ordering::Relaxed)).filter(|at| *at > 0)
    }

    pub fn role(&self) -> AssignedRole {
        AssignedRole {
            role: self.role,
            namespace: self.namespace.clone(),
        }
    }

    fn with_prefix(mut self) -> StoredApiKey {
        if self.dashboard.is_some() && !self.hash.starts_with(OF_SCREEN) {
            self.hash.insert_str(0, OF_SCREEN);
        } else if self.namespace.is_some() {
            if !self.hash.starts_with(IN_NAMESPACE) {
                self.hash.insert_str(0, IN_NAMESPACE);
            }
        } else if self.scopes.is_some() && !self.hash.starts_with(WITH_SCOPES) {
            self.hash.insert_str(0, WITH_SCOPES);
        }
        self
    }

    fn is_usable(&self, now_unix_ms: u64) -> bool {
        self.is_enabled && self.expires_at_unix_ms.is_none_or(|at| at > now_unix_ms)
    }
}

/// A file of an earlier version has no issuers. The issuer of a key that was created with another key is that of the
/// other key.
fn add_issuers(all: &mut ApiKeyTable) {
    let without: Vec<String> = all
        .values()
        .filter(|key| key.issuer.is_empty())
        .map(|key| key.name.clone())
        .collect();
    for name in without {
        let mut by = all[&name].by.clone();
        for _ in 0..all.len() {
            let Some(key) = by.strip_prefix(KEY_PREFIX).and_then(|creator| all.get(creator)) else {
                break;
            };
            by = match key.issuer.is_empty() {
                true => key.by.clone(),
                false => key.issuer.clone(),
            };
        }
        if let Some(key) = all.get_mut(&name) {
            key.issuer = by;
        }
    }
}

/// The file of the keys.
#[derive(Serialize, Deserialize)]
struct ApiKeyFile<K> {
    version: u32,
    keys: Vec<K>,
}

/// Reads a file of this version or of an earlier one.
fn parse(bytes: &[u8]) -> io::Result<Vec<StoredApiKey>> {
    let plain = |error: serde_json::Error| io::Error::other(input_errors::plain(&error));
    let value: serde_json::Value = serde_json::from_slice(bytes).map_err(plain)?;
    if value.is_array() {
        return serde_json::from_value(value).map_err(plain);
    }
    if let Some(version) = value["version"]
        .as_u64()
        .filter(|version| *version > u64::from(VERSION))
    {
        return Err(io::Error::other(format!(
            "it has version {version}, but this program supports versions up to {VERSION}. Use the newer tidewire that \
             wrote it, or restore a backup"
        )));
    }
    let file: ApiKeyFile<StoredApiKey> = serde_json::from_value(value).map_err(plain)?;
    Ok(file.keys)
}

/// Keys by name.
type ApiKeyTable = BTreeMap<String, StoredApiKey>;

#[derive(Default)]
pub struct ApiKeys {
    /// `None`: the keys are only in memory.
    path: Option<PathBuf>,
    /// The table that requests read, by hash. Replaced as a whole.
    by_hash: Mutex<Arc<BTreeMap<String, StoredApiKey>>>,
    /// Locked for the duration of a change.
    all: Mutex<ApiKeyTable>,
    changes: AccessChanges,
}

impl ApiKeys {
    /// Reads the file, if it exists.
    pub fn open(path: Option<&Path>) -> io::Result<ApiKeys> {
        let list: Vec<StoredApiKey> = match path.map(fs::read) {
            Some(Ok(bytes)) => parse(&bytes)?,
            Some(Err(error)) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => Vec::new(),
        };
        let mut all: ApiKeyTable = list
            .into_iter()
            .map(StoredApiKey::with_prefix)
            .map(|key| (key.name.clone(), key))
            .collect();
        add_issuers(&mut all);
        Ok(ApiKeys {
            path: path.map(Path::to_owned),
            by_hash: Mutex::new(Arc::new(by_hash(&all))),
            all: Mutex::new(all),
            changes: AccessChanges::default(),
        })
    }

    /// Announces changes of keys.
    pub(crate) fn changes(&self) -> &AccessChanges {
        &self.changes
    }

    pub fn is_key(token: &str) -> bool {
        token.starts_with(PREFIX)
    }

    /// Returns a valid key that does not belong to a screen. The caller checks its issuer.
    pub fn find(&self, token: &str, now_unix_ms: u64) -> Option<StoredApiKey> {
        let hash = hash(token);
        let with = |prefix: &str| self.look_up(&format!("{prefix}{hash}"), now_unix_ms);
        // An earlier version may have written the file without the fields that it does not know.
        let with_scopes = || with(WITH_SCOPES).filter(|key| key.scopes.is_some());
        let in_namespace = || with(IN_NAMESPACE).filter(|key| key.namespace.is_some());
        with("").or_else(with_scopes).or_else(in_namespace)
    }

    /// Returns name, issuer and dashboard of a valid key of a screen. The caller checks the issuer.
    pub fn find_screen(&self, token: &str, now_unix_ms: u64) -> Option<(String, String, String)> {
        let key = self.look_up(&format!("{OF_SCREEN}{}", hash(token)), now_unix_ms)?;
        Some((key.name, key.issuer, key.dashboard?))
    }

    /// Returns the issuer of the key with this name.
    pub fn issuer_of(&self, name: &str) -> Option<String> {
        self.lock().get(name).map(|key| key.issuer.clone())
    }

    /// Returns the names of the keys that a user issued.
    pub fn names_of(&self, issuer: &str) -> Vec<String> {
        let all = self.lock();
        let own = all.values().filter(|key| key.issuer == issuer);
        own.map(|key| key.name.clone()).collect()
    }

    /// Deletes the keys that a user issued.
    pub fn remove_of(&self, issuer: &str) -> Result<(), ApiKeyError> {
        if self.names_of(issuer).is_empty() {
            return Ok(());
        }
        self.change(|all| {
            all.retain(|_, key| key.issuer != issuer);
            Ok(())
        })
    }

    fn look_up(&self, hash: &str, now_unix_ms: u64) -> Option<StoredApiKey> {
        let table = self.by_hash.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let key = table.get(hash).filter(|key| key.is_usable(now_unix_ms))?;
        key.last_used_unix_ms.store(now_unix_ms, Ordering::Relaxed);
        Some(key.clone())
    }

    pub fn list(&self) -> Vec<StoredApiKey> {
        self.lock().values().cloned().collect()
    }

    /// Adds a key, and returns it with its secret, which cannot be retrieved later.
    pub fn add(&self, new: NewApiKey) -> Result<(StoredApiKey, Zeroizing<String>), ApiKeyError> {
        check_name(&new.name)?;
        check_description(&new.description)?;
        check_role(&new.role, new.dashboard.as_deref())?;
        let scopes = check_scopes(new.scopes, new.dashboard.as_deref())?;
        let mut random = Zeroizing::new([0u8; SECRET_BYTES]);
        getrandom::fill(&mut *random).map_err(|_| ApiKeyError::NoRandomness)?;
        let secret = Zeroizing::new(format!("{PREFIX}{}", Base64UrlUnpadded::encode_string(&*random)));
        let key = StoredApiKey {
            name: new.name,
            hash: hash(&secret),
            role: new.role.role,
            namespace: new.role.namespace,
            description: new.description,
            is_enabled: new.is_enabled,
            created_at_unix_ms: new.created_at_unix_ms,
            by: new.by,
            issuer: new.issuer,
            expires_at_unix_ms: new.expires_at_unix_ms,
            dashboard: new.dashboard,
            scopes,
            last_used_unix_ms: Arc::default(),
        }
        .with_prefix();
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

    /// Changes a key and returns it. `role`: the new one.
    pub fn change_key(
        &self,
        name: &str,
        role: Option<AssignedRole>,
        alter: impl FnOnce(&mut StoredApiKey),
    ) -> Result<StoredApiKey, ApiKeyError> {
        self.change(|all| {
            let key = all.get_mut(name).ok_or(ApiKeyError::Unknown)?;
            if let Some(role) = role {
                check_role(&role, key.dashboard.as_deref())?;
                if role.namespace != key.namespace {
                    return Err(ApiKeyError::OtherNamespace);
                }
                key.role = role.role;
            }
            alter(key);
            check_description(&key.description)?;
            Ok(key.clone())
        })
    }

    pub fn remove(&self, name: &str) -> Result<(), ApiKeyError> {
        self.change(|all| all.remove(name).map(drop).ok_or(ApiKeyError::Unknown))
    }

    /// The change is on disk and in force when this returns.
    fn change<R>(&self, change: impl FnOnce(&mut ApiKeyTable) -> Result<R, ApiKeyError>) -> Result<R, ApiKeyError> {
        let mut all = self.lock();
        let mut changed = all.clone();
        let result = change(&mut changed)?;
        if let Some(path) = &self.path {
            save(path, &changed).map_err(ApiKeyError::Storage)?;
        }
        *self.by_hash.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(by_hash(&changed));
        *all = changed;
        self.changes.announce();
        Ok(result)
    }

    // The table is replaced as a whole, so a panic in another thread cannot leave it inconsistent.
    fn lock(&self) -> MutexGuard<'_, ApiKeyTable> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn by_hash(all: &ApiKeyTable) -> BTreeMap<String, StoredApiKey> {
    all.values().map(|key| (key.hash.clone(), key.clone())).collect()
}

fn hash(token: &str) -> String {
    Base64UrlUnpadded::encode_string(&Sha256::digest(token.as_bytes()))
}

fn save(path: &Path, all: &ApiKeyTable) -> io::Result<()> {
    let file = ApiKeyFile {
        version: VERSION,
        keys: all.values().collect::<Vec<_>>(),
    };
    storage::copy::replace(path, &serde_json::to_vec_pretty(&file)?)
}

/// Checks that a name can be part of a path and a log line.
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

fn check_role(role: &AssignedRole, dashboard: Option<&str>) -> Result<(), ApiKeyError> {
    match dashboard {
        Some(_) if *role != Role::Viewer.of_server() => Err(ApiKeyError::RoleOfScreen),
        _ => Ok(()),
    }
}

/// Sorts scopes and removes repeated ones.
fn check_scopes(scopes: Option<Vec<Scope>>, dashboard: Option<&str>) -> Result<Option<Vec<Scope>>, ApiKeyError> {
    match (scopes, dashboard) {
        (None, _) => Ok(None),
        (Some(_), Some(_)) => Err(ApiKeyError::ScopesOfScreen),
        (Some(scopes), None) if scopes.is_empty() => Err(ApiKeyError::NoScopes),
        (Some(mut scopes), None) => {
            scopes.sort_unstable();
            scopes.dedup();
            Ok(Some(scopes))
        }
    }
}

/// Why a change was rejected. Nothing was changed.
#[derive(Debug)]
pub enum ApiKeyError {
    Exists,
    Unknown,
    TooMany,
    Name,
    Description,
    RoleOfScreen,
    OtherNamespace,
    ScopesOfScreen,
    NoScopes,
    NoRandomness,
    Storage(io::Error),
}

impl fmt::Display for ApiKeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ApiKeyError::Exists => f.write_str("a key with this name already exists"),
            ApiKeyError::Unknown => f.write_str("no key has this name"),
            ApiKeyError::TooMany => write!(f, "the limit of {KEYS_MAX} keys is reached"),
            ApiKeyError::Name => write!(
                f,
                "a name must have 1 to {TEXT_BYTES_MAX} letters, digits, hyphens, underscores and dots"
            ),
            ApiKeyError::Description => write!(f, "the description is longer than {TEXT_BYTES_MAX} bytes"),
            ApiKeyError::RoleOfScreen => f.write_str("the key of a screen must have the role `viewer`"),
            ApiKeyError::OtherNamespace => f.write_str("the namespace of a key cannot be changed: create another key"),
            ApiKeyError::ScopesOfScreen => f.write_str("the key of a screen has no scopes"),
            ApiKeyError::NoScopes => f.write_str("a key with an empty list of scopes could do nothing"),
            ApiKeyError::NoRandomness => f.write_str("the operating system returned no random bytes"),
            ApiKeyError::Storage(_) => f.write_str("cannot write the change to disk"),
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
            role: Role::Viewer.of_server(),
            description: String::new(),
            is_enabled: true,
            created_at_unix_ms: 1,
            by: "ada".into(),
            issuer: "ada".into(),
            expires_at_unix_ms,
            dashboard: None,
            scopes: None,
        }
    }

    #[test]
    fn key_is_valid_until_expired_disabled_or_removed() {
        let path = std::env::temp_dir().join(format!("tidewire-keys-{}.json", std::process::id()));
        let _ = fs::remove_file(&path);
        let keys = ApiKeys::open(Some(&path)).unwrap();
        let (_, secret) = keys.add(new("ci", Some(1000))).unwrap();
        assert!(ApiKeys::is_key(&secret) && !fs::read_to_string(&path).unwrap().contains(&**secret));
        for keys in [&keys, &ApiKeys::open(Some(&path)).unwrap()] {
            let found = keys.find(&secret, 999).unwrap();
            assert_eq!(
                (&*found.name, &*found.issuer, found.role()),
                ("ci", "ada", Role::Viewer.of_server())
            );
            assert_eq!(keys.list()[0].last_used_unix_ms(), Some(999));
            assert!(keys.find(&secret, 1000).is_none());
            assert!(keys.find("twk_made-up", 999).is_none());
        }
        keys.change_key("ci", None, |key| key.is_enabled = false).unwrap();
        assert!(keys.find(&secret, 1).is_none());
        keys.remove("ci").unwrap();
        assert!(matches!(keys.remove("ci"), Err(ApiKeyError::Unknown)));
        assert!(ApiKeys::open(Some(&path)).unwrap().list().is_empty());
        let _ = fs::remove_file(&path);
    }

    #[test]
    fn screen_key_hash_has_a_prefix_and_old_files_are_read() {
        let path = std::env::temp_dir().join(format!("tidewire-screen-keys-{}.json", std::process::id()));
        let _ = fs::remove_file(&path);
        let keys = ApiKeys::open(Some(&path)).unwrap();
        let dashboard = Some("4e1a4a50-b3a2-11ef-9cd2-0242ac120002".to_owned());
        let of_screen = NewApiKey {
            dashboard: dashboard.clone(),
            ..new("hall", None)
        };
        let (_, secret) = keys.add(of_screen).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        let stored = |hash: &str| text.contains(&format!("\"{hash}\""));
        assert!(!stored(&hash(&secret)) && stored(&format!("{OF_SCREEN}{}", hash(&secret))));
        // Without the prefix, as an earlier version wrote it.
        fs::write(&path, text.replace(OF_SCREEN, "")).unwrap();
        let keys = ApiKeys::open(Some(&path)).unwrap();
        let expected = dashboard.clone().map(|id| ("hall".into(), "ada".into(), id));
        assert_eq!(keys.find_screen(&secret, 1), expected);
        assert!(keys.find(&secret, 1).is_none());
        // Without the dashboard, as a version without screens writes it.
        let mut list: serde_json::Value = serde_json::from_str(&text).unwrap();
        list["keys"][0].as_object_mut().unwrap().remove("dashboard");
        fs::write(&path, list.to_string()).unwrap();
        let keys = ApiKeys::open(Some(&path)).unwrap();
        assert!(keys.find(&secret, 1).is_none() && keys.find_screen(&secret, 1).is_none());
        let _ = fs::remove_file(&path);
    }

    #[test]
    fn key_keeps_its_scopes_or_is_unknown() {
        let path = std::env::temp_dir().join(format!("tidewire-scope-keys-{}.json", std::process::id()));
        let _ = fs::remove_file(&path);
        let keys = ApiKeys::open(Some(&path)).unwrap();
        let with = |name: &str, scopes: &[Scope]| NewApiKey {
            scopes: Some(scopes.to_vec()),
            ..new(name, None)
        };
        let given = [Scope::Publish, Scope::Connections, Scope::Publish];
        let (_, secret) = keys.add(with("ci", &given)).unwrap();
        let reopened = ApiKeys::open(Some(&path)).unwrap();
        for keys in [&keys, &reopened] {
            let found = keys.find(&secret, 1).unwrap();
            assert_eq!(found.scopes.as_deref(), Some(&[Scope::Connections, Scope::Publish][..]));
        }
        // Without the scopes, as a version without them writes the file.
        let text = fs::read_to_string(&path).unwrap();
        let mut file: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert!(file["keys"][0].as_object_mut().unwrap().remove("scopes").is_some());
        fs::write(&path, file.to_string()).unwrap();
        assert!(ApiKeys::open(Some(&path)).unwrap().find(&secret, 1).is_none());
        let _ = fs::remove_file(&path);
        assert!(matches!(keys.add(with("none", &[])), Err(ApiKeyError::NoScopes)));
        let screen = NewApiKey {
            dashboard: Some("4e1a4a50-b3a2-11ef-9cd2-0242ac120002".to_owned()),
            ..with("hall", &given)
        };
        assert!(matches!(keys.add(screen), Err(ApiKeyError::ScopesOfScreen)));
    }

    #[test]
    fn key_keeps_its_namespace_or_is_unknown() {
        let path = std::env::temp_dir().join(format!("tidewire-namespace-keys-{}.json", std::process::id()));
        let _ = fs::remove_file(&path);
        let keys = ApiKeys::open(Some(&path)).unwrap();
        let role: AssignedRole = "ns:acme::operator".parse().unwrap();
        let with = |name: &str, scopes: Option<Vec<Scope>>| NewApiKey {
            role: role.clone(),
            scopes,
            ..new(name, None)
        };
        let (_, plain) = keys.add(with("plain", None)).unwrap();
        let (_, scoped) = keys.add(with("scoped", Some(vec![Scope::Publish]))).unwrap();
        let change = |to: &str| keys.change_key("plain", Some(to.parse().unwrap()), |_| ());
        for other in ["operator", "ns:blue::operator", "ns:acme/x::viewer"] {
            assert!(matches!(change(other), Err(ApiKeyError::OtherNamespace)), "{other}");
        }
        assert_eq!(change("ns:acme::viewer").unwrap().role().to_string(), "ns:acme::viewer");
        change("ns:acme::operator").unwrap();
        let reopened = ApiKeys::open(Some(&path)).unwrap();
        for keys in [&keys, &reopened] {
            assert_eq!(keys.find(&plain, 1).unwrap().role(), role);
            let found = keys.find(&scoped, 1).unwrap();
            assert_eq!((found.role(), found.scopes), (role.clone(), Some(vec![Scope::Publish])));
        }
        // Without the namespace, as a version without namespaces writes the file.
        let text = fs::read_to_string(&path).unwrap();
        let mut file: serde_json::Value = serde_json::from_str(&text).unwrap();
        for key in file["keys"].as_array_mut().unwrap() {
            assert!(key.as_object_mut().unwrap().remove("namespace").is_some());
        }
        fs::write(&path, file.to_string()).unwrap();
        let keys = ApiKeys::open(Some(&path)).unwrap();
        assert!(keys.find(&plain, 1).is_none() && keys.find(&scoped, 1).is_none());
        let _ = fs::remove_file(&path);
        let screen = NewApiKey {
            dashboard: Some("4e1a4a50-b3a2-11ef-9cd2-0242ac120002".to_owned()),
            role: "ns:acme::viewer".parse().unwrap(),
            ..new("hall", None)
        };
        assert!(matches!(keys.add(screen), Err(ApiKeyError::RoleOfScreen)));
    }

    #[test]
    fn screen_key_is_valid_for_screens_only() {
        let keys = ApiKeys::default();
        let dashboard = Some("4e1a4a50-b3a2-11ef-9cd2-0242ac120002".to_owned());
        let screen = |name: &str, role| NewApiKey {
            dashboard: dashboard.clone(),
            role,
            ..new(name, Some(1000))
        };
        let (_, secret) = keys.add(screen("hall", Role::Viewer.of_server())).unwrap();
        assert!(keys.find(&secret, 999).is_none());
        let expected = dashboard.clone().map(|id| ("hall".into(), "ada".into(), id));
        assert_eq!(keys.find_screen(&secret, 999), expected);
        assert_eq!(keys.find_screen(&secret, 1000), None);
        let (_, other) = keys.add(new("ci", None)).unwrap();
        assert_eq!(keys.find_screen(&other, 1), None);
        assert!(matches!(
            keys.add(screen("x", Role::Admin.of_server())),
            Err(ApiKeyError::RoleOfScreen)
        ));
        let altered = keys.change_key("hall", Some(Role::Admin.of_server()), |_| ());
        assert!(matches!(altered, Err(ApiKeyError::RoleOfScreen)));
    }

    #[test]
    fn file_of_version_1_is_read_and_a_newer_one_is_refused() {
        let path = std::env::temp_dir().join(format!("tidewire-key-versions-{}.json", std::process::id()));
        let _ = fs::remove_file(&path);
        let keys = ApiKeys::open(Some(&path)).unwrap();
        let (_, secret) = keys
            .add(NewApiKey {
                role: Role::Admin.of_server(),
                ..new("ci", None)
            })
            .unwrap();
        let text = fs::read_to_string(&path).unwrap();
        let mut file: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(file["version"], VERSION);
        fs::write(&path, file["keys"].to_string()).unwrap();
        let keys = ApiKeys::open(Some(&path)).unwrap();
        let found = keys.find(&secret, u64::MAX).unwrap();
        assert_eq!(
            (found.role(), found.expires_at_unix_ms),
            (Role::Admin.of_server(), None)
        );
        keys.change_key("ci", Some(Role::Operator.of_server()), |_| ()).unwrap();
        assert!(fs::read_to_string(&path).unwrap().contains("\"version\": 2"));
        file["version"] = (VERSION + 1).into();
        fs::write(&path, file.to_string()).unwrap();
        let error = ApiKeys::open(Some(&path)).err().unwrap().to_string();
        assert!(error.starts_with("it has version 3, but"), "{error}");
        let _ = fs::remove_file(&path);
    }

    #[test]
    fn keys_of_a_deleted_issuer_are_removed() {
        let keys = ApiKeys::default();
        keys.add(new("a", None)).unwrap();
        keys.add(NewApiKey {
            issuer: "bob".into(),
            ..new("b", None)
        })
        .unwrap();
        assert_eq!(keys.names_of("ada"), ["a"]);
        keys.remove_of("ada").unwrap();
        assert!(keys.names_of("ada").is_empty() && keys.issuer_of("a").is_none());
        assert_eq!(keys.issuer_of("b").as_deref(), Some("bob"));
    }

    #[test]
    fn names_are_valid_and_unique() {
        let keys = ApiKeys::default();
        for name in ["", "a b", "a/b", "ü"] {
            assert!(matches!(keys.add(new(name, None)), Err(ApiKeyError::Name)), "{name}");
        }
        keys.add(new("a", None)).unwrap();
        assert!(matches!(keys.add(new("a", None)), Err(ApiKeyError::Exists)));
    }
}
