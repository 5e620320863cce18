//! Logins to the console from which tokens of the platform come. A token that names such a login is valid until that
//! login ends. So are the tokens of a user that the console has created for the login.
//!
//! The users are only in memory. Logins to the console end with a restart, and with them all tokens that name one.

use std::collections::HashMap;
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
            users.retain(|_, login| self.is_open(login));
        }
        if users.len() < USERS_MAX {
            users.insert(user, login);
        }
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
