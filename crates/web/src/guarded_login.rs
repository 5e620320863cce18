//! A login with user name and password whose address may be locked out.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use auth::{LoginAttempt, LoginKind, LoginLimiter, Password};

pub struct GuardedLogin {
    pub limiter: Arc<LoginLimiter>,
    pub kind: LoginKind,
    pub address: IpAddr,
    pub user_name: String,
    pub password: Password,
}

impl GuardedLogin {
    /// Returns how long to wait if the address is locked out.
    pub fn admit(&self) -> Result<(), Duration> {
        self.limiter.admit(&self.attempt(), Instant::now())
    }

    /// Verifies the password and records the result, unless `verify` fails. Call it in the thread that hashes: other
    /// logins of the address may have failed while this one waited.
    pub fn check<T, E>(
        &self,
        verify: impl FnOnce(&str, Password) -> Result<Option<T>, E>,
    ) -> Result<Result<Option<T>, E>, Duration> {
        self.admit()?;
        let verified = verify(&self.user_name, self.password.clone());
        match verified {
            Ok(Some(_)) => self.limiter.record_success(&self.attempt()),
            Ok(None) => self.limiter.record_failure(&self.attempt(), Instant::now()),
            Err(_) => {}
        }
        Ok(verified)
    }

    fn attempt(&self) -> LoginAttempt<'_> {
        LoginAttempt {
            kind: self.kind,
            address: self.address,
            user_name: Some(&self.user_name),
            secret: self.password.expose(),
        }
    }
}
