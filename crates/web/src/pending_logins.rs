//! Logins with an identity provider that are not complete.
//!
//! A login has three steps. It *starts*: the browser gets a cookie and goes to the provider with a random state. It
//! *returns* with the state, which must belong to the cookie. Then this server asks the provider about the user, and
//! replaces the cookie. With the new cookie, the console *collects* the login once. Codes, states and cookies are not
//! tokens: no address of a page contains anything with which a request could be made.
//!
//! Both tables are in memory and bounded. If one is full, the client with the most entries loses its oldest. Secrets
//! are stored as hashes, as in `logins.rs`.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use base64ct::{Base64UrlUnpadded, Encoding};
use sha2::{Digest, Sha256};
use zeroize::Zeroizing;

use crate::admins::Role;

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
    pub role: Role,
}

#[derive(Default)]
pub struct PendingLogins {
    started: Mutex<HashMap<SecretHash, Entry<Start>>>,
    finished: Mutex<HashMap<SecretHash, Entry<ProviderUser>>>,
}

struct Start {
    cookie: SecretHash,
    nonce: String,
    code_verifier: Zeroizing<String>,
}

struct Entry<T> {
    value: T,
    /// Address of the client, or its network.
    address: IpAddr,
    expires_at: Instant,
}

impl PendingLogins {
    /// `None`: the operating system returned no random bytes.
    pub fn start(&self, address: IpAddr, now: Instant) -> Option<StartedLogin> {
        let (state, cookie, code_verifier) = (random()?, random()?, random()?);
        let nonce = random()?.to_string();
        let entry = Entry {
            value: Start {
                cookie: hash(&cookie),
                nonce: nonce.clone(),
                code_verifier: code_verifier.clone(),
            },
            address: net::client_network(address),
            expires_at: now + START_LIFETIME,
        };
        insert(&mut lock(&self.started), hash(&state), entry, now);
        Some(StartedLogin {
            code_challenge: Base64UrlUnpadded::encode_string(&hash(&code_verifier)),
            state,
            cookie,
            nonce,
        })
    }

    /// Ends the first step. `None`: there is no such login, or another browser has started it.
    pub fn take_returned(&self, state: &str, cookie: &str, now: Instant) -> Option<ReturnedLogin> {
        let mut started = lock(&self.started);
        let key = hash(state);
        let entry = started.get(&key)?;
        // The entry stays: the state alone must not be enough to end the login of another browser.
        if entry.value.cookie != hash(cookie) {
            return None;
        }
        let entry = started.remove(&key).filter(|entry| entry.expires_at > now)?;
        Some(ReturnedLogin {
            nonce: entry.value.nonce,
            code_verifier: entry.value.code_verifier,
        })
    }

    /// Returns the value of the new cookie. `None`: the operating system returned no random bytes.
    pub fn finish(&self, user: ProviderUser, address: IpAddr, now: Instant) -> Option<Zeroizing<String>> {
        let cookie = random()?;
        let entry = Entry {
            value: user,
            address: net::client_network(address),
            expires_at: now + FINISH_LIFETIME,
        };
        insert(&mut lock(&self.finished), hash(&cookie), entry, now);
        Some(cookie)
    }

    /// Returns the user of a finished login, once.
    pub fn collect(&self, cookie: &str, now: Instant) -> Option<ProviderUser> {
        let entry = lock(&self.finished).remove(&hash(cookie))?;
        (entry.expires_at > now).then_some(entry.value)
    }
}

fn insert<T>(table: &mut HashMap<SecretHash, Entry<T>>, key: SecretHash, entry: Entry<T>, now: Instant) {
    if table.len() >= PENDING_MAX {
        table.retain(|_, entry| entry.expires_at > now);
    }
    if table.len() >= PENDING_MAX {
        evict(table);
    }
    table.insert(key, entry);
}

/// Removes the oldest entry of the client with the most entries, so that one client cannot end the logins of others.
fn evict<T>(table: &mut HashMap<SecretHash, Entry<T>>) {
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

    const ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    fn other(last: u8) -> IpAddr {
        IpAddr::V4(Ipv4Addr::new(10, 0, 0, last))
    }

    fn user() -> ProviderUser {
        ProviderUser {
            name: "oidc:ada".to_owned(),
            subject: "s".to_owned(),
            role: Role::Viewer,
        }
    }

    #[test]
    fn state_works_once_and_only_with_its_cookie() {
        let (pending, now) = (PendingLogins::default(), Instant::now());
        let (first, second) = (
            pending.start(ADDRESS, now).unwrap(),
            pending.start(ADDRESS, now).unwrap(),
        );
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
        let mine = pending.start(ADDRESS, now).unwrap();
        let first = pending.start(other(1), now).unwrap();
        for n in 0..2 * PENDING_MAX as u64 {
            pending.start(other(1), now + Duration::from_millis(n)).unwrap();
        }
        assert_eq!(lock(&pending.started).len(), PENDING_MAX);
        assert!(pending.take_returned(&first.state, &first.cookie, now).is_none());
        assert!(pending.take_returned(&mine.state, &mine.cookie, now).is_some());
        pending.start(other(2), now + Duration::from_secs(3600)).unwrap();
        pending.start(other(2), now + Duration::from_secs(3600)).unwrap();
        assert_eq!(
            lock(&pending.started).len(),
            1 + 1,
            "expired logins are removed when the table is full"
        );
    }
}
