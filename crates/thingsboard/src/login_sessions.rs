//! Sessions of logins: the valid refresh token of each session, and the sessions that ended before their tokens expire.
//!
//! Only in memory. After a restart, the first refresh token of a session that is used becomes the
//! valid one; another one of the same session still ends the login.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Limit of sessions whose tokens have not expired. Above it, the session that expires first is dropped.
pub const SESSIONS_MAX: usize = 100_000;

#[derive(Default)]
pub struct LoginSessions(Mutex<HashMap<String, LoginSession>>);

struct LoginSession {
    /// When the newest token of the session expires, in milliseconds since 1970.
    expires_ms: i64,
    state: SessionState,
}

enum SessionState {
    /// The number of the valid refresh token.
    Valid(String),
    /// The refresh token was used, and the next one is not issued yet.
    Refreshing,
    Ended,
}

impl LoginSessions {
    /// Records the refresh token of a session, in place of the earlier one.
    pub fn issued(&self, session: &str, number: String, expires_ms: i64, now_ms: i64) {
        let mut sessions = self.lock();
        let known = sessions.get(session).map(|known| &known.state);
        if !matches!(known, Some(SessionState::Ended)) {
            insert(&mut sessions, session, expires_ms, SessionState::Valid(number), now_ms);
        }
    }

    /// Uses a refresh token. Returns `false` and ends the session if it is not the valid one.
    pub fn use_refresh_token(&self, session: &str, number: &str, expires_ms: i64, now_ms: i64) -> bool {
        let mut sessions = self.lock();
        let is_valid = match sessions.get(session).map(|known| &known.state) {
            None => true,
            Some(SessionState::Valid(valid)) => valid == number,
            Some(SessionState::Refreshing | SessionState::Ended) => false,
        };
        let state = match is_valid {
            true => SessionState::Refreshing,
            false => SessionState::Ended,
        };
        let known = sessions.get(session).map_or(expires_ms, |known| known.expires_ms);
        insert(&mut sessions, session, known.max(expires_ms), state, now_ms);
        is_valid
    }

    pub fn end(&self, session: &str, expires_ms: i64, now_ms: i64) {
        insert(&mut self.lock(), session, expires_ms, SessionState::Ended, now_ms);
    }

    pub fn has_ended(&self, session: &str) -> bool {
        let sessions = self.lock();
        sessions
            .get(session)
            .is_some_and(|known| matches!(known.state, SessionState::Ended))
    }

    // Each update leaves the map consistent, so a panic in another thread cannot break it.
    fn lock(&self) -> MutexGuard<'_, HashMap<String, LoginSession>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Drops sessions that have not ended first: dropping an ended one makes its tokens valid again.
fn insert(
    sessions: &mut HashMap<String, LoginSession>,
    session: &str,
    expires_ms: i64,
    state: SessionState,
    now_ms: i64,
) {
    if sessions.len() >= SESSIONS_MAX && !sessions.contains_key(session) {
        sessions.retain(|_, known| known.expires_ms > now_ms);
        while sessions.len() >= SESSIONS_MAX {
            let order = |known: &LoginSession| (matches!(known.state, SessionState::Ended), known.expires_ms);
            let first = sessions.iter().min_by_key(|(_, known)| order(known));
            let Some(first) = first.map(|(session, _)| session.clone()) else {
                break;
            };
            sessions.remove(&first);
        }
    }
    sessions.insert(session.to_owned(), LoginSession { expires_ms, state });
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXPIRES: i64 = 1_000_000;

    #[test]
    fn refresh_token_is_valid_once() {
        let sessions = LoginSessions::default();
        sessions.issued("s", "1".into(), EXPIRES, 0);
        assert!(sessions.use_refresh_token("s", "1", EXPIRES, 0));
        sessions.issued("s", "2".into(), EXPIRES, 0);
        assert!(!sessions.has_ended("s"));
        assert!(!sessions.use_refresh_token("s", "1", EXPIRES, 0));
        assert!(sessions.has_ended("s"));
        sessions.issued("s", "3".into(), EXPIRES, 0);
        assert!(
            !sessions.use_refresh_token("s", "3", EXPIRES, 0),
            "an ended session stays ended"
        );
    }

    #[test]
    fn second_use_during_a_refresh_ends_the_session() {
        let sessions = LoginSessions::default();
        sessions.issued("s", "1".into(), EXPIRES, 0);
        assert!(sessions.use_refresh_token("s", "1", EXPIRES, 0));
        assert!(!sessions.use_refresh_token("s", "1", EXPIRES, 0));
        assert!(sessions.has_ended("s"));
    }

    #[test]
    fn first_token_after_a_restart_is_the_valid_one() {
        let sessions = LoginSessions::default();
        assert!(sessions.use_refresh_token("s", "new", EXPIRES, 0));
        sessions.issued("s", "newer".into(), EXPIRES, 0);
        assert!(!sessions.use_refresh_token("s", "stolen", EXPIRES, 0));
        assert!(sessions.has_ended("s"));
    }

    #[test]
    fn table_is_bounded_and_ended_sessions_stay_longest() {
        let sessions = LoginSessions::default();
        sessions.end("ended", 1, 0);
        for number in 0..SESSIONS_MAX {
            sessions.issued(&number.to_string(), String::new(), EXPIRES, 0);
        }
        assert_eq!(sessions.lock().len(), SESSIONS_MAX);
        assert!(sessions.has_ended("ended"));
    }
}
