//! One thread runs the chains of all tenants. Where there is more than one tenant, slow scripts of one get half of its time: a script
//! within its limits, for each message of a device that sends many, would keep everybody else waiting.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::ids::TenantId;

/// Of all scripts that get one message: most take some ten microseconds.
const SLOW: Duration = Duration::from_millis(5);
const WINDOW: Duration = Duration::from_secs(2);
const SHARE: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub struct SlowScripts {
    window: Option<Instant>,
    took: HashMap<TenantId, Duration>,
}

impl SlowScripts {
    /// Whether any tenant has run slow scripts of late.
    pub fn is_empty(&self) -> bool {
        self.took.is_empty()
    }

    pub fn add(&mut self, tenant: TenantId, took: Duration, now: Instant) {
        self.roll(now);
        *self.took.entry(tenant).or_default() += took;
    }

    pub fn have_had_their_share(&mut self, tenant: TenantId, now: Instant) -> bool {
        self.roll(now);
        self.took.get(&tenant).is_some_and(|took| *took >= SHARE)
    }

    fn roll(&mut self, now: Instant) {
        let start = *self.window.get_or_insert(now);
        if now.saturating_duration_since(start) >= WINDOW {
            self.window = Some(now);
            self.took.clear();
        }
    }
}

/// What is to be counted of a script, if scripts have taken so much of the same message before: nothing, until they are slow together.
pub fn slow(before: Duration, took: Duration) -> Option<Duration> {
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
    fn scripts_of_one_message_are_slow_together() {
        let mut before = Duration::ZERO;
        let mut counted = Vec::new();
        for ms in [2, 2, 2, 1] {
            let took = Duration::from_millis(ms);
            counted.push(slow(before, took).map(|slow| slow.as_millis()));
            before += took;
        }
        assert_eq!(counted, [None, None, Some(6), Some(1)]);
        assert_eq!(slow(Duration::ZERO, SLOW), Some(SLOW));
    }

    #[test]
    fn slow_scripts_of_a_tenant_get_half_of_the_time() {
        let (a, b) = (TenantId(Uuid([1; 16])), TenantId(Uuid([2; 16])));
        let (mut slow, start) = (SlowScripts::default(), Instant::now());
        let after = |ms| start + Duration::from_millis(ms);
        slow.add(b, Duration::from_millis(400), after(400));
        slow.add(b, Duration::from_millis(400), after(800));
        assert!(!slow.have_had_their_share(b, after(800)));
        slow.add(b, Duration::from_millis(400), after(1200));
        assert!(slow.have_had_their_share(b, after(1200)));
        assert!(!slow.have_had_their_share(a, after(1200)));
        assert!(slow.have_had_their_share(b, after(2399)));
        assert!(!slow.have_had_their_share(b, after(2400)), "a new window");
        assert!(slow.is_empty());
    }
}
