//! Bans: client ids, users and addresses that may not connect, exactly or by pattern, temporarily or permanently.
//!
//! Bans are stored in a file of their own, which is written before a change takes effect. A lookup costs three hash
//! lookups and a scan of the networks and patterns, whose number is small. No lock is held during a write to the disk.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::fs;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use regex::bytes::{Regex, RegexBuilder};
use serde::{Deserialize, Serialize};

use crate::acl::Cidr;

/// Maximum number of bans of single client ids, users and addresses.
pub const EXACT_BANS_MAX: usize = 10_000;
/// Maximum number of bans of networks and patterns. Each login is compared with all of them.
pub const PATTERN_BANS_MAX: usize = 200;
/// Maximum length of a banned value and of a reason, in bytes.
const TEXT_BYTES_MAX: usize = 1024;
/// Maximum memory of a compiled pattern, in bytes.
const PATTERN_MEMORY_MAX: usize = 256 * 1024;

/// The property of a client that a ban matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BanKind {
    ClientId,
    UserName,
    /// One IP address.
    Address,
    /// A regular expression that matches any part of the client id.
    ClientIdPattern,
    UserNamePattern,
    /// `10.0.0.0/8`.
    Network,
}

impl BanKind {
    pub const ALL: [BanKind; 6] = [
        BanKind::ClientId,
        BanKind::UserName,
        BanKind::Address,
        BanKind::ClientIdPattern,
        BanKind::UserNamePattern,
        BanKind::Network,
    ];

    pub fn name(self) -> &'static str {
        match self {
            BanKind::ClientId => "client_id",
            BanKind::UserName => "user_name",
            BanKind::Address => "address",
            BanKind::ClientIdPattern => "client_id_pattern",
            BanKind::UserNamePattern => "user_name_pattern",
            BanKind::Network => "network",
        }
    }

    pub fn parse(name: &str) -> Option<BanKind> {
        BanKind::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// Returns the reason shown to the operator in the list of rejected clients. The console matches these texts.
    pub fn reason(self) -> &'static str {
        match self {
            BanKind::ClientId => "the client id is banned",
            BanKind::UserName => "the user is banned",
            BanKind::Address => "the address is banned",
            BanKind::ClientIdPattern => "the client id matches a pattern that is banned",
            BanKind::UserNamePattern => "the user name matches a pattern that is banned",
            BanKind::Network => "the address is in a network that is banned",
        }
    }

    /// Returns whether a ban applies to a single client id, user or address.
    pub fn is_exact(self) -> bool {
        matches!(self, BanKind::ClientId | BanKind::UserName | BanKind::Address)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ban {
    pub kind: BanKind,
    /// Client id, user name, address, pattern or network.
    pub who: String,
    #[serde(default)]
    pub reason: String,
    /// User who created the ban.
    #[serde(default)]
    pub by: String,
    pub at_unix_ms: u64,
    /// `None` means permanently.
    pub until_unix_ms: Option<u64>,
}

impl Ban {
    /// Checks the ban without adding it.
    pub fn check(&self) -> Result<(), BanError> {
        checked(self.clone()).map(|_| ())
    }

    fn is_in_force(&self, now_unix_ms: u64) -> bool {
        self.until_unix_ms.is_none_or(|until| until > now_unix_ms)
    }
}

/// The properties of a client that are compared with the bans.
#[derive(Clone, Copy, Debug)]
pub struct BanCandidate<'a> {
    pub client_id: &'a str,
    pub user_name: Option<&'a str>,
    pub address: IpAddr,
}

type BanKey = (BanKind, String);

pub struct Bans {
    path: PathBuf,
    /// Locked during a change.
    all: Mutex<BTreeMap<BanKey, Ban>>,
    compiled: RwLock<Arc<CompiledBans>>,
}

/// Expiry time of each ban in Unix milliseconds, by banned value. `u64::MAX` means permanently.
#[derive(Default)]
struct CompiledBans {
    client_ids: HashMap<Box<str>, u64>,
    user_names: HashMap<Box<str>, u64>,
    addresses: HashMap<IpAddr, u64>,
    client_id_patterns: Vec<(Regex, u64)>,
    user_name_patterns: Vec<(Regex, u64)>,
    networks: Vec<(Cidr, u64)>,
}

impl Bans {
    /// Reads the file. A missing file means no bans.
    pub fn open(path: &Path) -> Result<Bans, BanFileError> {
        let failed = |error: io::Error| BanFileError {
            path: path.to_owned(),
            error,
        };
        let list: Vec<Ban> = match fs::read(path) {
            Ok(bytes) => {
                serde_json::from_slice(&bytes).map_err(|error| failed(io::Error::other(input_errors::plain(&error))))?
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(failed(error)),
        };
        let mut all = BTreeMap::new();
        for ban in list {
            let ban = checked(ban).map_err(|error| failed(io::Error::other(error)))?;
            all.insert((ban.kind, ban.who.clone()), ban);
        }
        let compiled = CompiledBans::of(all.values()).map_err(|error| failed(io::Error::other(error)))?;
        Ok(Bans {
            path: path.to_owned(),
            all: Mutex::new(all),
            compiled: RwLock::new(Arc::new(compiled)),
        })
    }

    /// Returns the bans in force, ordered by kind and value.
    pub fn list(&self, now_unix_ms: u64) -> Vec<Ban> {
        let all = self.lock();
        all.values()
            .filter(|ban| ban.is_in_force(now_unix_ms))
            .cloned()
            .collect()
    }

    /// Returns the kind of the ban that applies to a client, if any.
    pub fn find(&self, who: &BanCandidate<'_>, now_unix_ms: u64) -> Option<BanKind> {
        let compiled = self.compiled.read().unwrap_or_else(PoisonError::into_inner).clone();
        compiled.find(who, now_unix_ms)
    }

    /// Adds a ban. It is on disk and in force when the function returns. Returns the ban with a normalized value.
    /// Expired bans are removed.
    pub fn add(&self, ban: Ban, now_unix_ms: u64) -> Result<Ban, BanError> {
        let ban = checked(ban)?;
        let mut all = self.lock();
        let mut changed: BTreeMap<BanKey, Ban> = all.clone();
        changed.retain(|_, ban| ban.is_in_force(now_unix_ms));
        let count = changed
            .keys()
            .filter(|(kind, _)| kind.is_exact() == ban.kind.is_exact())
            .count();
        let max = match ban.kind.is_exact() {
            true => EXACT_BANS_MAX,
            false => PATTERN_BANS_MAX,
        };
        if changed.contains_key(&(ban.kind, ban.who.clone())) {
            return Err(BanError::Exists);
        }
        if count >= max {
            return Err(BanError::TooMany(max));
        }
        changed.insert((ban.kind, ban.who.clone()), ban.clone());
        self.put(&mut all, changed)?;
        Ok(ban)
    }

    /// Removes a ban. Returns `false` if it does not exist.
    pub fn remove(&self, kind: BanKind, who: &str) -> Result<bool, BanError> {
        let mut all = self.lock();
        let mut changed = all.clone();
        if changed.remove(&(kind, who.to_owned())).is_none() {
            return Ok(false);
        }
        self.put(&mut all, changed)?;
        Ok(true)
    }

    fn put(&self, all: &mut BTreeMap<BanKey, Ban>, changed: BTreeMap<BanKey, Ban>) -> Result<(), BanError> {
        let compiled = CompiledBans::of(changed.values())?;
        self.save(&changed).map_err(|source| BanError::Storage {
            path: self.path.clone(),
            source,
        })?;
        *self.compiled.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(compiled);
        *all = changed;
        Ok(())
    }

    fn save(&self, all: &BTreeMap<BanKey, Ban>) -> io::Result<()> {
        let list: Vec<&Ban> = all.values().collect();
        storage::copy::replace(&self.path, &serde_json::to_vec(&list)?)
    }

    // The map is replaced as a whole, so a panic cannot leave it inconsistent.
    fn lock(&self) -> MutexGuard<'_, BTreeMap<BanKey, Ban>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl CompiledBans {
    fn of<'a>(bans: impl Iterator<Item = &'a Ban>) -> Result<CompiledBans, BanError> {
        let mut compiled = CompiledBans::default();
        for ban in bans {
            let until = ban.until_unix_ms.unwrap_or(u64::MAX);
            match ban.kind {
                BanKind::ClientId => _ = compiled.client_ids.insert(ban.who.as_str().into(), until),
                BanKind::UserName => _ = compiled.user_names.insert(ban.who.as_str().into(), until),
                BanKind::Address => _ = compiled.addresses.insert(address(&ban.who)?, until),
                BanKind::ClientIdPattern => compiled.client_id_patterns.push((pattern(&ban.who)?, until)),
                BanKind::UserNamePattern => compiled.user_name_patterns.push((pattern(&ban.who)?, until)),
                BanKind::Network => compiled.networks.push((network(&ban.who)?, until)),
            }
        }
        Ok(compiled)
    }

    fn find(&self, who: &BanCandidate<'_>, now: u64) -> Option<BanKind> {
        let holds = |until: Option<&u64>| until.is_some_and(|until| *until > now);
        let matches = |patterns: &[(Regex, u64)], text: &str| {
            patterns
                .iter()
                .any(|(pattern, until)| *until > now && pattern.is_match(text.as_bytes()))
        };
        let user_name = who.user_name.unwrap_or("");
        let address = who.address.to_canonical();
        let found = [
            (BanKind::ClientId, holds(self.client_ids.get(who.client_id))),
            (BanKind::UserName, holds(self.user_names.get(user_name))),
            (BanKind::Address, holds(self.addresses.get(&address))),
        ];
        if let Some((kind, _)) = found.into_iter().find(|(_, is_banned)| *is_banned) {
            return Some(kind);
        }
        let mut networks = self.networks.iter();
        if networks.any(|(network, until)| *until > now && network.contains(address)) {
            return Some(BanKind::Network);
        }
        if matches(&self.client_id_patterns, who.client_id) {
            return Some(BanKind::ClientIdPattern);
        }
        let is_user = who.user_name.is_some() && matches(&self.user_name_patterns, user_name);
        is_user.then_some(BanKind::UserNamePattern)
    }
}

/// Validates a ban, and normalizes the banned value to the form used for lookups.
fn checked(mut ban: Ban) -> Result<Ban, BanError> {
    if ban.who.is_empty() || ban.who.len() > TEXT_BYTES_MAX {
        return Err(BanError::Length);
    }
    if ban.reason.len() > TEXT_BYTES_MAX {
        return Err(BanError::ReasonLength);
    }
    match ban.kind {
        BanKind::Address => ban.who = address(&ban.who)?.to_string(),
        BanKind::Network => ban.who = network(&ban.who)?.to_string(),
        BanKind::ClientIdPattern | BanKind::UserNamePattern => drop(pattern(&ban.who)?),
        BanKind::ClientId | BanKind::UserName => {}
    }
    Ok(ban)
}

fn address(text: &str) -> Result<IpAddr, BanError> {
    let address = text.parse::<IpAddr>().map_err(|_| BanError::Address)?;
    Ok(address.to_canonical())
}

fn network(text: &str) -> Result<Cidr, BanError> {
    text.parse()
        .map_err(|error: crate::acl::CidrError| BanError::Network(error.to_string()))
}

fn pattern(text: &str) -> Result<Regex, BanError> {
    let built = RegexBuilder::new(text)
        .unicode(false)
        .size_limit(PATTERN_MEMORY_MAX)
        .build();
    built.map_err(|error| BanError::Pattern(error.to_string()))
}

/// Why a change of the bans failed. Nothing has changed.
#[derive(Debug)]
pub enum BanError {
    Exists,
    TooMany(usize),
    Length,
    ReasonLength,
    Address,
    Network(String),
    Pattern(String),
    Storage { path: PathBuf, source: io::Error },
}

impl fmt::Display for BanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BanError::Exists => f.write_str("this ban already exists"),
            BanError::TooMany(max) => write!(f, "the limit of {max} bans of this kind is reached"),
            BanError::Length => write!(f, "a banned value must have 1 to {TEXT_BYTES_MAX} bytes"),
            BanError::ReasonLength => write!(f, "a reason must have at most {TEXT_BYTES_MAX} bytes"),
            BanError::Address => f.write_str("not an IP address"),
            BanError::Network(error) | BanError::Pattern(error) => f.write_str(error),
            BanError::Storage { path, source } => write!(f, "cannot write {}: {source}", path.display()),
        }
    }
}

impl std::error::Error for BanError {}

/// The file of bans is unreadable or invalid.
#[derive(Debug)]
pub struct BanFileError {
    pub path: PathBuf,
    pub error: io::Error,
}

impl fmt::Display for BanFileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot read the bans in {}: {}", self.path.display(), self.error)
    }
}

impl std::error::Error for BanFileError {}

#[cfg(test)]
mod tests {
    use super::*;

    struct TestBans {
        bans: Bans,
        directory: PathBuf,
    }

    impl TestBans {
        fn new(name: &str) -> TestBans {
            let directory = std::env::temp_dir().join(format!("tidewire-bans-{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&directory);
            fs::create_dir_all(&directory).unwrap();
            let bans = Bans::open(&directory.join("banned.json")).unwrap();
            TestBans { bans, directory }
        }

        fn ban(&self, kind: BanKind, who: &str, until: Option<u64>) -> Result<Ban, BanError> {
            let ban = Ban {
                kind,
                who: who.into(),
                reason: String::new(),
                by: "ada".into(),
                at_unix_ms: 1000,
                until_unix_ms: until,
            };
            self.bans.add(ban, 1000)
        }
    }

    impl Drop for TestBans {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.directory);
        }
    }

    fn suspect<'a>(client_id: &'a str, user_name: &'a str, address: &str) -> BanCandidate<'a> {
        BanCandidate {
            client_id,
            user_name: Some(user_name).filter(|name| !name.is_empty()),
            address: address.parse().unwrap(),
        }
    }

    #[test]
    fn each_kind_is_found_after_a_restart() {
        let store = TestBans::new("kinds");
        for (kind, who) in [
            (BanKind::ClientId, "c1"),
            (BanKind::UserName, "eve"),
            (BanKind::Address, "::ffff:10.1.2.3"),
            (BanKind::ClientIdPattern, r"^scan-\d+$"),
            (BanKind::UserNamePattern, "bot"),
            (BanKind::Network, "192.168.0.0/16"),
        ] {
            store.ban(kind, who, None).unwrap();
        }
        let reopened = Bans::open(&store.directory.join("banned.json")).unwrap();
        assert_eq!(reopened.list(2000), store.bans.list(2000));
        for (who, expected) in [
            (suspect("c1", "ada", "10.0.0.1"), Some(BanKind::ClientId)),
            (suspect("c2", "eve", "10.0.0.1"), Some(BanKind::UserName)),
            (suspect("c2", "", "10.1.2.3"), Some(BanKind::Address)),
            (suspect("c2", "", "::ffff:10.1.2.3"), Some(BanKind::Address)),
            (suspect("scan-17", "", "10.0.0.1"), Some(BanKind::ClientIdPattern)),
            (suspect("scan-x", "robot", "10.0.0.1"), Some(BanKind::UserNamePattern)),
            (suspect("c2", "", "192.168.7.7"), Some(BanKind::Network)),
            (suspect("c2", "ada", "10.0.0.1"), None),
        ] {
            assert_eq!(reopened.find(&who, 2000), expected, "{who:?}");
        }
        assert!(reopened.remove(BanKind::Address, "10.1.2.3").unwrap());
        assert!(!reopened.remove(BanKind::Address, "10.1.2.3").unwrap());
        assert_eq!(reopened.find(&suspect("c2", "", "10.1.2.3"), 2000), None);
    }

    #[test]
    fn expired_ban_frees_a_slot() {
        let store = TestBans::new("until");
        for n in 0..PATTERN_BANS_MAX {
            store
                .ban(
                    BanKind::Network,
                    &format!("10.{}.{}.0/24", n / 256, n % 256),
                    Some(5000),
                )
                .unwrap();
        }
        let full = store.ban(BanKind::Network, "11.0.0.0/8", None).unwrap_err();
        assert!(matches!(full, BanError::TooMany(PATTERN_BANS_MAX)));
        let who = suspect("c", "", "10.0.3.9");
        assert_eq!(store.bans.find(&who, 4999), Some(BanKind::Network));
        assert_eq!(store.bans.find(&who, 5000), None);
        let later = Ban {
            at_unix_ms: 5000,
            until_unix_ms: None,
            who: "11.0.0.0/8".into(),
            ..store.bans.list(2000)[0].clone()
        };
        store.bans.add(later, 5000).unwrap();
        assert_eq!(store.bans.list(5000).len(), 1);
    }

    #[test]
    fn invalid_bans_are_rejected() {
        let store = TestBans::new("wrong");
        for (kind, who) in [
            (BanKind::Address, "10.0.0"),
            (BanKind::Network, "10.1.2.3/8"),
            (BanKind::ClientIdPattern, "("),
            (BanKind::ClientIdPattern, "(a{1000}){1000}"),
            (BanKind::ClientId, ""),
        ] {
            store.ban(kind, who, None).unwrap_err();
        }
        store.ban(BanKind::ClientId, "c", None).unwrap();
        assert!(matches!(
            store.ban(BanKind::ClientId, "c", Some(9)).unwrap_err(),
            BanError::Exists
        ));
        assert_eq!(store.bans.list(2000).len(), 1);
    }
}
