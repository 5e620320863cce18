//! Limits slow scripts. One thread runs the chains of all tenants, so a slow script of one tenant delays the others. If
//! there is more than one tenant, the slow scripts of a tenant get at most half of the thread's time.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::ids::TenantId;

/// Run time of all scripts for one message above which they count as slow. Most take about ten microseconds.
const SLOW: Duration = Duration::from_millis(5);
const WINDOW: Duration = Duration::from_secs(2);
const SHARE: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub struct SlowScripts {
    window: Option<Instant>,
    used_time: HashMap<TenantId, Duration>,
}

impl SlowScripts {
    /// Whether no tenant has run slow scripts recently.
    pub fn is_empty(&self) -> bool {
        self.used_time.is_empty()
    }

    pub fn add(&mut self, tenant: TenantId, took: Duration, now: Instant) {
        self.start_window_if_due(now);
        *self.used_time.entry(tenant).or_default() += took;
    }

    pub fn has_used_share(&mut self, tenant: TenantId, now: Instant) -> bool {
        self.start_window_if_due(now);
        self.used_time.get(&tenant).is_some_and(|took| *took >= SHARE)
    }

    fn start_window_if_due(&mut self, now: Instant) {
        let start = *self.window.get_or_insert(now);
        if now.saturating_duration_since(start) >= WINDOW {
            self.window = Some(now);
            self.used_time.clear();
        }
    }
}

/// Returns the time to count for a script, given the time of earlier scripts for the same message. Nothing is counted
/// until their sum is slow.
pub fn counted_time(before: Duration, took: Duration) -> Option<Duration> {
    match before + took {
        sum if sum < SLOW => None,
        _ if before >= SLOW => Some(took),
        sum => Some(sum),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Uuid;

    #[test]
    fn script_time_is_summed_per_message() {
        let mut before = Duration::ZERO;
        let mut counted = Vec::new();
        for ms in [2, 2, 2, 1] {
            let took = Duration::from_millis(ms);
            counted.push(counted_time(before, took).map(|slow| slow.as_millis()));
            before += took;
        }
        assert_eq!(counted, [None, None, Some(6), Some(1)]);
        assert_eq!(counted_time(Duration::ZERO, SLOW), Some(SLOW));
    }

    #[test]
    fn slow_scripts_of_a_tenant_are_limited_to_half() {
        let (a, b) = (TenantId(Uuid([1; 16])), TenantId(Uuid([2; 16])));
        let (mut slow, start) = (SlowScripts::default(), Instant::now());
        let after = |ms| start + Duration::from_millis(ms);
        slow.add(b, Duration::from_millis(400), after(400));
        slow.add(b, Duration::from_millis(400), after(800));
        assert!(!slow.has_used_share(b, after(800)));
        slow.add(b, Duration::from_millis(400), after(1200));
        assert!(slow.has_used_share(b, after(1200)));
        assert!(!slow.has_used_share(a, after(1200)));
        assert!(slow.has_used_share(b, after(2399)));
        assert!(!slow.has_used_share(b, after(2400)), "a new window");
        assert!(slow.is_empty());
    }
}
