//! The background thread: flushes, merges and expires time series, classifies entities by time to live, deletes old
//! alarms and RPC requests, and does the follow-up work of entity changes.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use platform::ChainEvent;
use platform::entities::EntityError;
use platform::model::Alarm;

use crate::clock::unix_ms;
use crate::error_chain::error_chain;
use crate::follow_up::FollowUps;
use crate::hub::Hub;
use crate::store_failures::StoreWork;

const PAUSE: Duration = Duration::from_secs(1);
/// Interval between searches for expired alarms and RPC requests, unless a tenant profile changes.
const CLEAN_UP_MS: i64 = 3_600_000;

/// Interval at which events are saved.
const EVENTS_MS: i64 = 10_000;

/// Interval at which the write-ahead log of the entity database is emptied.
const CHECKPOINT_MS: i64 = 60_000;

/// Interval of rule node statistics, as ThingsBoard's `actors.statistics.persist_frequency`.
const STATISTICS_MS: i64 = 3_600_000;

/// Runs until the server stops. `is_flush_wanted`: set while the device log is too long.
pub fn run(hub: &Arc<Hub>, is_flush_wanted: &AtomicBool) {
    let store = hub.platform().store();
    let mut next_clean_up = (None, 0);
    let mut next_events_ms = 0;
    let mut next_checkpoint_ms = unix_ms().saturating_add(CHECKPOINT_MS);
    let mut follow_ups = FollowUps::new(Arc::clone(hub));
    let mut next_statistics_ms = unix_ms().saturating_add(STATISTICS_MS);
    while !hub.stop().is_set() {
        let is_flush_wanted = is_flush_wanted.swap(false, Relaxed);
        // A failure is retried, also after maintenance has made space.
        if is_flush_wanted || hub.store_failures().has(StoreWork::TimeSeriesFlush) {
            let flushed = store.flush().map_err(|error| error_chain(&error));
            if let Err(error) = hub.store_failures().note(StoreWork::TimeSeriesFlush, flushed) {
                tracing::warn!(error, "flushing time series failed; the device log grows");
            }
        }
        let now_ms = unix_ms();
        let has_unclassified = hub.platform().classify().unwrap_or_else(|error| {
            tracing::warn!(error = %error_chain(&error), "applying times to live failed");
            false
        });
        let maintained = store.maintain(now_ms).map_err(|error| error_chain(&error));
        let has_more = match hub.store_failures().note(StoreWork::TimeSeriesMaintenance, maintained) {
            Ok(done) => done.has_more,
            Err(error) => {
                tracing::warn!(error, "maintenance of time series failed, retrying");
                false
            }
        };
        let version = Some(hub.platform().entities().directory().ttls_version());
        if next_clean_up.0 != version || now_ms >= next_clean_up.1 {
            next_clean_up = (version, now_ms.saturating_add(CLEAN_UP_MS));
            clean_up(hub, now_ms);
        }
        follow_ups.run();
        if now_ms >= next_events_ms {
            next_events_ms = now_ms.saturating_add(EVENTS_MS);
            hub.events().save();
        }
        if now_ms >= next_checkpoint_ms {
            next_checkpoint_ms = now_ms.saturating_add(CHECKPOINT_MS);
            checkpoint_entities(hub);
        }
        if now_ms >= next_statistics_ms {
            next_statistics_ms = now_ms.saturating_add(STATISTICS_MS);
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
