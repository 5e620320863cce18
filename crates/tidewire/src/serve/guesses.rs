//! Limits guesses of passwords and tokens: the limiter of all logins, and the rate of its log lines.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use auth::{LockOut, LoginAttempt, LoginKind, LoginLimiter, LoginLimits};
use broker::ConnectCredentials;

use crate::config::options::access::Access;

/// Detail of the rejection of a locked-out MQTT client.
pub const LOCKED_OUT: &str = "too many failed logins from this address";

/// Interval between log lines about lock-outs, and between those about clients that they reject.
const LOG_INTERVAL: Duration = Duration::from_secs(1);

pub fn login_limiter(options: &Access) -> Arc<LoginLimiter> {
    let limits = LoginLimits {
        failures_max: options.max_login_failures,
        lockout: options.login_lockout,
        lockout_max: options.max_login_lockout,
    };
    let lines = LineLimit::default();
    Arc::new(LoginLimiter::new(limits, move |lockout| log(lockout, &lines)))
}

fn log(lockout: &LockOut, lines: &LineLimit) {
    let LockOut {
        address,
        duration,
        number,
    } = lockout;
    if let Some(omitted_lines) = lines.admit(Instant::now()) {
        tracing::warn!(
            %address,
            duration_s = duration.as_secs(),
            number,
            omitted_lines,
            "address locked out after too many failed logins"
        );
    }
}

/// Returns the secret of a client that could be a guess. Without a secret there is nothing to guess.
pub fn login_attempt(credentials: &ConnectCredentials) -> Option<LoginAttempt<'_>> {
    let user_name = credentials.user_name.as_deref();
    let (kind, user_name, secret) = match (user_name, credentials.password.as_deref()) {
        (None, None) => return None,
        // A user name without a password is the access token of a device.
        (Some(token), None) => (LoginKind::DeviceToken, None, token.as_bytes()),
        (name, Some(password)) => (LoginKind::Mqtt, Some(name.unwrap_or(&credentials.client_id)), password),
    };
    Some(LoginAttempt {
        kind,
        address: credentials.address,
        user_name,
        secret,
    })
}

/// Allows one log line per `LOG_INTERVAL`.
#[derive(Default)]
pub struct LineLimit {
    /// Number of omitted lines since the last one, and when that was written.
    state: Mutex<(u64, Option<Instant>)>,
}

impl LineLimit {
    /// Returns the number of lines that were omitted before this one. `None`: this line is omitted.
    pub fn admit(&self, now: Instant) -> Option<u64> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let (omitted, written_at) = &mut *state;
        if written_at.is_some_and(|at| now.saturating_duration_since(at) < LOG_INTERVAL) {
            *omitted += 1;
            return None;
        }
        *written_at = Some(now);
        Some(std::mem::take(omitted))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_within_the_interval_are_omitted_and_counted() {
        let (lines, now) = (LineLimit::default(), Instant::now());
        assert_eq!(lines.admit(now), Some(0));
        assert_eq!(lines.admit(now), None);
        assert_eq!(lines.admit(now + LOG_INTERVAL / 2), None);
        assert_eq!(lines.admit(now + LOG_INTERVAL), Some(2));
    }
}
