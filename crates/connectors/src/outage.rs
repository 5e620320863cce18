//! Pauses between attempts to reach a system that many callers ask. While it is unreachable, one caller at a time
//! connects, after a pause that doubles with each failure. The others fail at once with the reason.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crate::backoff::Backoff;
use crate::config::RetryConfig;

const RECONNECT: RetryConfig = RetryConfig {
    tries_max: None,
    first_ms: 100,
    longest_ms: 2_000,
};

/// Whether a system is reachable.
#[derive(Default)]
pub(crate) struct Outage(Mutex<Option<UnreachableSince>>);

struct UnreachableSince {
    backoff: Backoff,
    /// There is no attempt before.
    until: Instant,
    reason: String,
}

impl Outage {
    /// Fails during a pause. A success begins the next pause, so that the other callers do not connect as well.
    pub fn may_connect(&self) -> Result<(), String> {
        let mut state = self.lock();
        let Some(unreachable) = &mut *state else {
            return Ok(());
        };
        let now = Instant::now();
        if now < unreachable.until {
            return Err(unreachable.reason.clone());
        }
        unreachable.until = now + unreachable.backoff.pause();
        Ok(())
    }

    pub fn begin(&self, reason: &str) {
        self.lock().get_or_insert_with(|| {
            let mut backoff = Backoff::new(&RECONNECT);
            UnreachableSince {
                until: Instant::now() + backoff.pause(),
                backoff,
                reason: reason.to_owned(),
            }
        });
    }

    pub fn end(&self) {
        *self.lock() = None;
    }

    fn lock(&self) -> MutexGuard<'_, Option<UnreachableSince>> {
        // Every update leaves the value valid, so a panic cannot leave it inconsistent.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn one_caller_connects_after_each_pause() {
        let outage = Outage::default();
        assert_eq!((outage.may_connect(), outage.may_connect()), (Ok(()), Ok(())));
        outage.begin("refused");
        outage.begin("refused again");
        assert_eq!(outage.may_connect(), Err("refused".to_owned()));
        outage.lock().as_mut().unwrap().until = Instant::now() - Duration::from_secs(1);
        // The pause after this attempt is 160 ms at least.
        assert_eq!(outage.may_connect(), Ok(()));
        assert!(outage.lock().as_ref().unwrap().until > Instant::now());
        outage.end();
        assert_eq!(outage.may_connect(), Ok(()));
    }
}
