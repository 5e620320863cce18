//! The background thread: flushes, merges and expires time series, classifies entities by time to live, deletes old
//! alarms and RPC requests, and does the follow-up work of entity changes.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use platform::ChainEvent;
use platform::entities::EntityError;
use platform::model::Alarm;

use crate::clock::{ExpiryClock, unix_ms};
use crate::error_chain::error_chain;
use crate::follow_up::FollowUps;
use crate::hub::Hub;
use crate::store_failures::StoreWork;

const PAUSE: Duration = Duration::from_secs(1);
/// Interval between searches for expired alarms and RPC requests, unless a tenant profile changes.
const CLEAN_UP_PERIOD: Duration = Duration::from_secs(3600);

/// Interval at which events are saved.
const EVENTS_PERIOD: Duration = Duration::from_secs(10);

/// Interval at which the write-ahead log of the entity database is emptied.
const CHECKPOINT_PERIOD: Duration = Duration::from_secs(60);

/// Interval of rule node statistics, as ThingsBoard's `actors.statistics.persist_frequency`.
const STATISTICS_PERIOD: Duration = Duration::from_secs(3600);

/// Decides when periodic work is due. Uses the monotonic clock, because the system's clock may be set back.
struct PeriodicTimer {
    period: Duration,
    due: Instant,
}

impl PeriodicTimer {
    /// Creates a timer that is due at once, and then after each period.
    fn due_now(period: Duration, now: Instant) -> PeriodicTimer {
        PeriodicTimer { period, due: now }
    }

    /// Creates a timer that is first due after one period.
    fn after_period(period: Duration, now: Instant) -> PeriodicTimer {
        let mut timer = PeriodicTimer::due_now(period, now);
        timer.restart(now);
        timer
    }

    /// Returns whether the work is due. If so, the next period starts.
    fn take_due(&mut self, now: Instant) -> bool {
        let is_due = now >= self.due;
        if is_due {
            self.restart(now);
        }
        is_due
    }

    fn restart(&mut self, now: Instant) {
        self.due = now + self.period;
    }
}

/// Runs until the server stops. `is_flush_wanted`: set while the device log is too long.
pub fn run(hub: &Arc<Hub>, is_flush_wanted: &AtomicBool) {
    let store = hub.platform().store();
    let start = Instant::now();
    let mut expiry_clock = ExpiryClock::new(start, unix_ms());
    let mut ttls_version = None;
    let mut clean_up_timer = PeriodicTimer::due_now(CLEAN_UP_PERIOD, start);
    let mut events_timer = PeriodicTimer::due_now(EVENTS_PERIOD, start);
    let mut checkpoint_timer = PeriodicTimer::after_period(CHECKPOINT_PERIOD, start);
    let mut statistics_timer = PeriodicTimer::after_period(STATISTICS_PERIOD, start);
    let mut follow_ups = FollowUps::new(Arc::clone(hub));
    while !hub.stop().is_set() {
        let is_flush_wanted = is_flush_wanted.swap(false, Relaxed);
        // A failure is retried, also after maintenance has made space.
        if is_flush_wanted || hub.store_failures().has(StoreWork::TimeSeriesFlush) {
            let flushed = store.flush().map_err(|error| error_chain(&error));
            if let Err(error) = hub.store_failures().note(StoreWork::TimeSeriesFlush, flushed) {
                tracing::warn!(error, "flushing time series failed; the device log grows");
            }
        }
        let (now_ms, now) = (unix_ms(), Instant::now());
        let expiry_ms = expiry_clock.read(now, now_ms);
        let has_unclassified = hub.platform().classify().unwrap_or_else(|error| {
            tracing::warn!(error = %error_chain(&error), "applying times to live failed");
            false
        });
        let maintained = store.maintain(expiry_ms).map_err(|error| error_chain(&error));
        let has_more = match hub.store_failures().note(StoreWork::TimeSeriesMaintenance, maintained) {
            Ok(done) => done.has_more,
            Err(error) => {
                tracing::warn!(error, "maintenance of time series failed, retrying");
                false
            }
        };
        let version = Some(hub.platform().entities().directory().ttls_version());
        if ttls_version != version {
            ttls_version = version;
            clean_up_timer.restart(now);
            clean_up(hub, expiry_ms);
        } else if clean_up_timer.take_due(now) {
            clean_up(hub, expiry_ms);
        }
        follow_ups.run();
        if events_timer.take_due(now) {
            hub.events().save();
        }
        if checkpoint_timer.take_due(now) {
            checkpoint_entities(hub);
        }
        if statistics_timer.take_due(now) {
            hub.events().record_statistics(now_ms);
        }
        if !has_unclassified && !has_more {
            hub.stop().pause(PAUSE);
        }
    }
}

/// Empties the write-ahead log of the entity database.
pub fn checkpoint_entities(hub: &Hub) {
    let emptied = hub.platform().entities().repository().checkpoint();
    let emptied = emptied.map_err(|error| error_chain(&error));
    if let Err(error) = hub.store_failures().note(StoreWork::DatabaseCheckpoint, emptied) {
        tracing::warn!(error, "emptying the write-ahead log of the entity database failed");
    }
}

/// A failure of one task does not stop the others.
fn clean_up(hub: &Hub, now_ms: i64) {
    let all = [
        ("claims", hub.platform().entities().remove_expired_claims(now_ms)),
        ("alarms", delete_old_alarms(hub, now_ms)),
        ("calls", delete_old_calls(hub, now_ms)),
    ];
    for (what, done) in all {
        if let Err(error) = done {
            tracing::warn!(what, error = %error_chain(&error), "deleting expired entries failed, retrying in an hour");
        }
    }
}

/// Deletes expired alarms, and sends the deletions to the rule chains.
fn delete_old_alarms(hub: &Hub, now_ms: i64) -> Result<(), EntityError> {
    let mut out = hub.outlet(now_ms);
    for alarm in hub.platform().delete_old_alarms(now_ms, &mut out)? {
        hub.platform().send_event(deleted(&alarm), now_ms, &mut out);
    }
    Ok(())
}

fn delete_old_calls(hub: &Hub, now_ms: i64) -> Result<(), EntityError> {
    loop {
        let old = hub.platform().old_rpcs(now_ms)?;
        if old.is_empty() {
            return Ok(());
        }
        for rpc in old {
            hub.rpcs().delete(&rpc)?;
        }
    }
}

fn deleted(alarm: &Alarm) -> ChainEvent {
    ChainEvent {
        kind: "ALARM_DELETE",
        entity: alarm.originator,
        tenant: alarm.tenant_id,
        metadata: Vec::new(),
        data: serde_json::to_value(alarm).unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the seconds at which the work is due, if the thread checks once a second.
    fn due_seconds(timer: &mut PeriodicTimer, start: Instant, seconds: std::ops::RangeInclusive<u64>) -> Vec<u64> {
        seconds
            .filter(|second| timer.take_due(start + Duration::from_secs(*second)))
            .collect()
    }

    #[test]
    fn checkpoint_runs_every_minute() {
        let start = Instant::now();
        let mut timer = PeriodicTimer::after_period(CHECKPOINT_PERIOD, start);
        assert_eq!(due_seconds(&mut timer, start, 0..=300), [60, 120, 180, 240, 300]);
    }

    #[test]
    fn events_are_saved_at_the_start_and_every_ten_seconds() {
        let start = Instant::now();
        let mut timer = PeriodicTimer::due_now(EVENTS_PERIOD, start);
        assert_eq!(due_seconds(&mut timer, start, 0..=25), [0, 10, 20]);
    }

    /// The thread was busy for several periods.
    #[test]
    fn missed_periods_are_skipped() {
        let start = Instant::now();
        let mut timer = PeriodicTimer::due_now(EVENTS_PERIOD, start);
        assert_eq!(due_seconds(&mut timer, start, 35..=50), [35, 45]);
    }

    #[test]
    fn restarted_timer_waits_a_whole_period() {
        let start = Instant::now();
        let mut timer = PeriodicTimer::due_now(CLEAN_UP_PERIOD, start);
        timer.restart(start + Duration::from_secs(100));
        assert_eq!(due_seconds(&mut timer, start, 0..=3700), [3700]);
    }
}
