//! Logins to the console from which tokens of the platform come. A token that names such a login is valid until that
//! login ends. So are the tokens of a user that the console has created for the login.
//!
//! The users are only in memory. Logins to the console end with a restart, and with them all tokens that name one.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

use platform::ids::UserId;
use web::logins::Logins;

/// Limit of users with a login. Above it, users whose login has ended are forgotten: their tokens still name it.
const USERS_MAX: usize = 10_000;

#[derive(Default)]
pub struct ConsoleLogins {
    /// Unset until the API starts. Without it, no login is valid.
    logins: OnceLock<Arc<Logins>>,
    /// The ID of the login for which the console has created a user.
    users: Mutex<HashMap<UserId, Arc<str>>>,
}

impl ConsoleLogins {
    /// Sets the table of logins. Later calls have no effect.
    pub fn connect(&self, logins: Arc<Logins>) {
        // There is one API per process.
        let _ = self.logins.set(logins);
    }

    pub fn is_open(&self, login: &str) -> bool {
        let logins = self.logins.get();
        logins.is_some_and(|logins| logins.is_open(login, Instant::now()))
    }

    /// Records that the console has created a user for a login.
    pub fn created_user(&self, user: UserId, login: Arc<str>) {
        let mut users = self.lock();
        if users.len() >= USERS_MAX {
            let open = self.open();
            users.retain(|_, login| open.contains(&**login));
        }
        if users.len() < USERS_MAX {
            users.insert(user, login);
        }
    }

    fn open(&self) -> HashSet<Arc<str>> {
        let logins = self.logins.get().map(|logins| logins.list(None, Instant::now()));
        logins.unwrap_or_default().into_iter().map(|login| login.id).collect()
    }

    /// Returns the login for which the console has created a user.
    pub fn of_user(&self, user: UserId) -> Option<Arc<str>> {
        self.lock().get(&user).cloned()
    }

    // Each update leaves the map consistent, so a panic in another thread cannot break it.
    fn lock(&self) -> MutexGuard<'_, HashMap<UserId, Arc<str>>> {
        self.users.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;
    use std::time::Duration;

    use platform::ids::Uuid;
    use web::logins::NewLogin;

    use super::*;

    fn user(number: usize) -> UserId {
        UserId(Uuid((number as u128).to_le_bytes()))
    }

    /// Returns the ID of a new login.
    fn log_in(logins: &Logins) -> Arc<str> {
        let now = Instant::now();
        let token = logins.issue(NewLogin {
            user: "ada",
            provider_role: None,
            address: IpAddr::from([127, 0, 0, 1]),
            now,
            now_unix_ms: 1,
            lifetime: Duration::from_secs(3600),
        });
        logins.find(&token.unwrap(), now, 1).unwrap().id
    }

    #[test]
    fn users_of_ended_logins_are_forgotten_first() {
        let (all, logins) = (ConsoleLogins::default(), Arc::new(Logins::default()));
        let (ended, open) = (log_in(&logins), log_in(&logins));
        assert!(!all.is_open(&open), "without the table of logins");
        all.connect(logins.clone());
        assert!(all.is_open(&open));
        for number in 0..USERS_MAX {
            let login = if number % 2 == 0 { &ended } else { &open };
            all.created_user(user(number), login.clone());
        }
        // The tokens of this user name the ended login as long as there is space.
        logins.revoke_id(&ended, None).unwrap();
        assert_eq!(all.of_user(user(0)), Some(ended));
        all.created_user(user(USERS_MAX), open.clone());
        assert_eq!(all.of_user(user(0)), None);
        for number in [1, USERS_MAX] {
            assert_eq!(all.of_user(user(number)), Some(open.clone()));
        }
        assert_eq!(all.lock().len(), USERS_MAX / 2 + 1);
    }
}
