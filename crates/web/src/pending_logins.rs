//! Logins with an identity provider that are not complete.
//!
//! A login has three steps. It *starts*: the browser gets a cookie and goes to the provider with a random state. It
//! *returns* with the state, which must belong to the cookie. Then this server asks the provider about the user, and
//! replaces the cookie. With the new cookie, the console *collects* the login once. Codes, states and cookies are not
//! tokens: no address of a page contains anything with which a request could be made.
//!
//! A started login is not stored, so that no number of them can end those of others: state, nonce and code verifier
//! follow from the cookie and a key of this process. The tables of used cookies and of finished logins are in memory
//! and bounded. Secrets are stored as hashes, as in `logins.rs`.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use base64ct::{Base64UrlUnpadded, Encoding};
use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};
use zeroize::Zeroizing;

use crate::role::AssignedRole;

/// Time for the login at the provider.
pub const START_LIFETIME: Duration = Duration::from_secs(600);
/// Time between the return from the provider and the request of the console.
pub const FINISH_LIFETIME: Duration = Duration::from_secs(60);
/// Limit of entries of each table.
pub const PENDING_MAX: usize = 1024;
const SECRET_BYTES: usize = 32;

type SecretHash = [u8; 32];

/// A started login.
pub struct StartedLogin {
    /// For the address of the provider.
    pub state: Zeroizing<String>,
    /// Value of the cookie.
    pub cookie: Zeroizing<String>,
    pub nonce: String,
    /// SHA-256 of the code verifier (RFC 7636, 4.2).
    pub code_challenge: String,
}

/// Values with which the answer of the provider is checked.
pub struct ReturnedLogin {
    pub nonce: String,
    pub code_verifier: Zeroizing<String>,
}

/// A user whom the provider has authenticated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProviderUser {
    /// Begins with [`PROVIDER_PREFIX`](crate::logins::PROVIDER_PREFIX).
    pub name: String,
    /// Identifies the user at the provider.
    pub subject: String,
    pub role: AssignedRole,
}

pub struct PendingLogins {
    key: Zeroizing<[u8; SECRET_BYTES]>,
    /// Cookies contain the time since then.
    begun: Instant,
    /// Cookies whose state was used, and when they expire.
    used: Mutex<HashMap<SecretHash, Instant>>,
    finished: Mutex<HashMap<SecretHash, FinishedLogin>>,
}

struct FinishedLogin {
    user: ProviderUser,
    /// Address of the client, or its network.
    address: IpAddr,
    expires_at: Instant,
}

impl Default for PendingLogins {
    fn default() -> Self {
        let mut key = Zeroizing::new([0; SECRET_BYTES]);
        getrandom::fill(&mut *key).expect("the operating system provides random bytes");
        PendingLogins {
            key,
            begun: Instant::now(),
            used: Mutex::default(),
            finished: Mutex::default(),
        }
    }
}

impl PendingLogins {
    /// `None`: the operating system returned no random bytes.
    pub fn start(&self, now: Instant) -> Option<StartedLogin> {
        let started_ms = now.saturating_duration_since(self.begun).as_millis();
        let cookie = Zeroizing::new(format!("{}.{started_ms}", &*random()?));
        let code_verifier = self.derived("code verifier", &cookie);
        Some(StartedLogin {
            code_challenge: Base64UrlUnpadded::encode_string(&hash(&code_verifier)),
            state: self.derived("state", &cookie),
            nonce: self.derived("nonce", &cookie).to_string(),
            cookie,
        })
    }

    /// Ends the first step. `None`: there is no such login, or another browser has started it.
    pub fn take_returned(&self, state: &str, cookie: &str, now: Instant) -> Option<ReturnedLogin> {
        let state = Base64UrlUnpadded::decode_vec(state).ok()?;
        // Before the time is read: the key proves that this process has written it.
        self.mac("state", cookie).verify_slice(&state).ok()?;
        let started_ms = cookie.rsplit_once('.')?.1.parse().ok()?;
        let expires_at = self.begun + Duration::from_millis(started_ms) + START_LIFETIME;
        if expires_at <= now || !self.use_once(cookie, expires_at, now) {
            return None;
        }
        Some(ReturnedLogin {
            nonce: self.derived("nonce", cookie).to_string(),
            code_verifier: self.derived("code verifier", cookie),
        })
    }

    /// Returns false if the cookie was used before.
    fn use_once(&self, cookie: &str, expires_at: Instant, now: Instant) -> bool {
        let mut used = lock(&self.used);
        if used.len() >= PENDING_MAX {
            used.retain(|_, expires_at| *expires_at > now);
        }
        if used.len() >= PENDING_MAX {
            // The provider accepts each code once as well.
            let oldest = used.iter().min_by_key(|(_, expires_at)| **expires_at);
            if let Some(oldest) = oldest.map(|(cookie, _)| *cookie) {
                used.remove(&oldest);
            }
        }
        used.insert(hash(cookie), expires_at).is_none()
    }

    fn mac(&self, purpose: &str, cookie: &str) -> Hmac<Sha256> {
        let mut mac = Hmac::<Sha256>::new_from_slice(&*self.key).expect("HMAC takes keys of any length");
        mac.update(purpose.as_bytes());
        mac.update(b"\0");
        mac.update(cookie.as_bytes());
        mac
    }

    fn derived(&self, purpose: &str, cookie: &str) -> Zeroizing<String> {
        let value = self.mac(purpose, cookie).finalize().into_bytes();
        Zeroizing::new(Base64UrlUnpadded::encode_string(&value))
    }

    /// Returns the value of the new cookie. `None`: the operating system returned no random bytes.
    pub fn finish(&self, user: ProviderUser, address: IpAddr, now: Instant) -> Option<Zeroizing<String>> {
        let cookie = random()?;
        let entry = FinishedLogin {
            user,
            address: net::client_network(address),
            expires_at: now + FINISH_LIFETIME,
        };
        insert(&mut lock(&self.finished), hash(&cookie), entry, now);
        Some(cookie)
    }

    /// Returns the user of a finished login, once.
    pub fn collect(&self, cookie: &str, now: Instant) -> Option<ProviderUser> {
        let entry = lock(&self.finished).remove(&hash(cookie))?;
        (entry.expires_at > now).then_some(entry.user)
    }
}

fn insert(table: &mut HashMap<SecretHash, FinishedLogin>, key: SecretHash, entry: FinishedLogin, now: Instant) {
    if table.len() >= PENDING_MAX {
        table.retain(|_, entry| entry.expires_at > now);
    }
    if table.len() >= PENDING_MAX {
        evict(table);
    }
    table.insert(key, entry);
}

/// Removes the oldest entry of the client with the most entries, so that one client cannot end the logins of others.
fn evict(table: &mut HashMap<SecretHash, FinishedLogin>) {
    let mut counts: HashMap<IpAddr, usize> = HashMap::new();
    for entry in table.values() {
        *counts.entry(entry.address).or_default() += 1;
    }
    let most = counts.into_iter().max_by_key(|(_, count)| *count);
    let of_most = table
        .iter()
        .filter(|(_, entry)| most.is_some_and(|(address, _)| address == entry.address));
    let oldest = of_most.min_by_key(|(_, entry)| entry.expires_at);
    if let Some(key) = oldest.map(|(key, _)| *key) {
        table.remove(&key);
    }
}

fn random() -> Option<Zeroizing<String>> {
    let mut random = Zeroizing::new([0_u8; SECRET_BYTES]);
    getrandom::fill(&mut *random).ok()?;
    Some(Zeroizing::new(Base64UrlUnpadded::encode_string(&*random)))
}

fn hash(secret: &str) -> SecretHash {
    Sha256::digest(secret.as_bytes()).into()
}

// Each change leaves a table consistent, so a panic in another thread cannot break it.
fn lock<T>(table: &Mutex<T>) -> MutexGuard<'_, T> {
    table.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::role::Role;

    const ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    fn other(last: u8) -> IpAddr {
        IpAddr::V4(Ipv4Addr::new(10, 0, 0, last))
    }

    fn user() -> ProviderUser {
        ProviderUser {
            name: "oidc:ada".to_owned(),
            subject: "s".to_owned(),
            role: Role::Viewer.of_server(),
        }
    }

    #[test]
    fn state_works_once_and_only_with_its_cookie() {
        let (pending, now) = (PendingLogins::default(), Instant::now());
        let (first, second) = (pending.start(now).unwrap(), pending.start(now).unwrap());
        assert!(pending.take_returned(&first.state, &second.cookie, now).is_none());
        assert!(pending.take_returned(&first.state, "", now).is_none());
        assert!(pending.take_returned(&first.cookie, &first.cookie, now).is_none());
        let returned = pending.take_returned(&first.state, &first.cookie, now).unwrap();
        assert_eq!(returned.nonce, first.nonce);
        let challenge = Base64UrlUnpadded::encode_string(&hash(&returned.code_verifier));
        assert_eq!(challenge, first.code_challenge);
        assert!(
            pending.take_returned(&first.state, &first.cookie, now).is_none(),
            "a replay"
        );
        let late = now + START_LIFETIME;
        assert!(pending.take_returned(&second.state, &second.cookie, late).is_none());
    }

    #[test]
    fn finished_login_is_collected_once_and_in_time() {
        let (pending, now) = (PendingLogins::default(), Instant::now());
        let cookie = pending.finish(user(), ADDRESS, now).unwrap();
        assert_eq!(pending.collect("", now), None);
        assert_eq!(pending.collect(&cookie, now), Some(user()));
        assert_eq!(pending.collect(&cookie, now), None);
        let late = pending.finish(user(), ADDRESS, now).unwrap();
        assert_eq!(pending.collect(&late, now + FINISH_LIFETIME), None);
    }

    #[test]
    fn flood_of_one_client_leaves_the_logins_of_others() {
        let (pending, now) = (PendingLogins::default(), Instant::now());
        let mine = pending.start(now).unwrap();
        let finished = pending.finish(user(), ADDRESS, now).unwrap();
        let first = pending.finish(user(), other(1), now).unwrap();
        for n in 0..2 * PENDING_MAX as u64 {
            let later = now + Duration::from_millis(n);
            let started = pending.start(later).unwrap();
            assert!(pending.take_returned(&started.state, &started.cookie, later).is_some());
            pending.finish(user(), other(1), later).unwrap();
        }
        assert_eq!(lock(&pending.finished).len(), PENDING_MAX);
        assert_eq!(lock(&pending.used).len(), PENDING_MAX);
        assert!(pending.take_returned(&mine.state, &mine.cookie, now).is_some());
        assert!(pending.collect(&finished, now).is_some());
        assert!(pending.collect(&first, now).is_none());
        let later = now + Duration::from_secs(3600);
        pending.finish(user(), other(2), later).unwrap();
        pending.finish(user(), other(2), later).unwrap();
        assert_eq!(
            lock(&pending.finished).len(),
            1 + 1,
            "expired logins are removed when the table is full"
        );
    }

    #[test]
    fn a_cookie_that_the_server_has_not_written_is_refused() {
        let (pending, now) = (PendingLogins::default(), Instant::now());
        let started = pending.start(now).unwrap();
        let (random, _) = started.cookie.split_once('.').unwrap();
        for cookie in [
            random.to_owned(),
            format!("{random}.999999999"),
            format!("{random}."),
            ".".to_owned(),
        ] {
            assert!(
                pending.take_returned(&started.state, &cookie, now).is_none(),
                "{cookie}"
            );
        }
        let restarted = PendingLogins::default();
        assert!(restarted.take_returned(&started.state, &started.cookie, now).is_none());
    }
}
