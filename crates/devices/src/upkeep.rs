//! The background thread: flushes, merges and expires time series, classifies entities by time to live, deletes old
//! alarms and RPC requests, and does the follow-up work of entity changes.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use platform::ChainEvent;
use platform::entities::EntityError;
use platform::ids::{RuleNodeId, Uuid};
use platform::model::{Alarm, RuleChain};
use platform::repository::{RepositoryChange, StateKind};

use crate::follow_up::FollowUps;
use crate::hub::{Hub, unix_ms};
use crate::ingest::error_chain;
use crate::lifecycle::{EntityEvent, EventDetail};
use crate::stats::DeviceCounters;
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

/// Runs until the hub is stopped.
pub fn run(hub: &Arc<Hub>) {
    let store = hub.platform.store();
    let mut next_clean_up = (None, 0);
    let mut next_events_ms = 0;
    let mut next_checkpoint_ms = unix_ms().saturating_add(CHECKPOINT_MS);
    let mut follow_ups = FollowUps::default();
    let mut next_statistics_ms = unix_ms().saturating_add(STATISTICS_MS);
    while !hub.is_stopping.load(Relaxed) {
        let is_flush_wanted = hub.is_flush_wanted.swap(false, Relaxed);
        // A failure is retried, also after maintenance has made space.
        if is_flush_wanted || hub.store_failures.has(StoreWork::TimeSeriesFlush) {
            let flushed = store.flush().map_err(|error| error_chain(&error));
            if let Err(error) = hub.store_failures.note(StoreWork::TimeSeriesFlush, flushed) {
                tracing::warn!(error, "flushing time series failed; the device log grows");
            }
        }
        let now_ms = unix_ms();
        let has_unclassified = hub.platform.classify().unwrap_or_else(|error| {
            tracing::warn!(error = %error_chain(&error), "applying times to live failed");
            false
        });
        let maintained = store.maintain(now_ms).map_err(|error| error_chain(&error));
        let has_more = match hub.store_failures.note(StoreWork::TimeSeriesMaintenance, maintained) {
            Ok(done) => done.has_more,
            Err(error) => {
                tracing::warn!(error, "maintenance of time series failed, retrying");
                false
            }
        };
        let version = Some(hub.platform.entities().directory().ttls_version());
        if next_clean_up.0 != version || now_ms >= next_clean_up.1 {
            next_clean_up = (version, now_ms.saturating_add(CLEAN_UP_MS));
            hub.clean_up(now_ms);
        }
        hub.run_follow_ups(&mut follow_ups);
        if now_ms >= next_events_ms {
            next_events_ms = now_ms.saturating_add(EVENTS_MS);
            hub.save_events();
        }
        if now_ms >= next_checkpoint_ms {
            next_checkpoint_ms = now_ms.saturating_add(CHECKPOINT_MS);
            hub.checkpoint_entities();
        }
        if now_ms >= next_statistics_ms {
            next_statistics_ms = now_ms.saturating_add(STATISTICS_MS);
            hub.record_statistics(now_ms);
        }
        if !has_unclassified && !has_more {
            hub.pause(PAUSE);
        }
    }
}

impl Hub {
    /// Empties the write-ahead log of the entity database.
    pub fn checkpoint_entities(&self) {
        let emptied = self.platform.entities().repository().checkpoint();
        let emptied = emptied.map_err(|error| error_chain(&error));
        if let Err(error) = self.store_failures.note(StoreWork::DatabaseCheckpoint, emptied) {
            tracing::warn!(error, "emptying the write-ahead log of the entity database failed");
        }
    }

    /// Saves events for the next start.
    pub fn save_events(&self) {
        self.save_lifecycle();
        let changed = self.events.take_changed();
        if changed.is_empty() {
            return;
        }
        let nodes: Vec<RuleNodeId> = changed.iter().map(|(node, _)| *node).collect();
        let put = |(node, bytes): (RuleNodeId, Option<Vec<u8>>)| RepositoryChange::PutState {
            state: StateKind::NodeEvents,
            id: node.0,
            bytes,
        };
        let changes: Vec<RepositoryChange> = changed.into_iter().map(put).collect();
        if let Err(error) = self.platform.entities().repository().apply(&changes) {
            self.events.mark_changed(nodes.into_iter());
            tracing::warn!(error = %error_chain(&error), "saving debug events of rule nodes failed");
        }
    }

    /// Counts and logs saved events that cannot be read. They are lost.
    pub fn restored(&self, of: Uuid, restored: Result<(), serde_json::Error>) {
        if let Err(error) = restored {
            DeviceCounters::add(&self.counters.unreadable_events, 1);
            tracing::warn!(entity = %of, %error, "saved events of an entity or rule node cannot be read and are lost");
        }
    }

    pub fn record_statistics(&self, now_ms: i64) {
        let entities = self.platform.entities();
        for (chain, nodes) in self.platform.take_statistics() {
            // The events of a deleted chain cannot be queried.
            let Ok(Some(chain)) = entities.find::<RuleChain>(chain.0) else {
                continue;
            };
            for of in nodes {
                self.statistics.put(EntityEvent {
                    id: entities.new_id(now_ms),
                    at_ms: now_ms,
                    tenant: chain.tenant_id,
                    entity: of.node.entity(),
                    what: EventDetail::Statistics {
                        messages: of.messages,
                        errors: of.errors,
                    },
                });
            }
        }
    }

    fn save_lifecycle(&self) {
        let changed = self.lifecycle.take_changed();
        if changed.is_empty() {
            return;
        }
        let entities: Vec<Uuid> = changed.iter().map(|(entity, _)| *entity).collect();
        let put = |(id, bytes)| RepositoryChange::PutState {
            state: StateKind::EntityEvents,
            id,
            bytes,
        };
        let changes: Vec<RepositoryChange> = changed.into_iter().map(put).collect();
        if let Err(error) = self.platform.entities().repository().apply(&changes) {
            self.lifecycle.mark_changed(entities.into_iter());
            tracing::warn!(error = %error_chain(&error), "saving events of devices and rule chains failed");
        }
    }

    /// A failure of one task does not stop the others.
    fn clean_up(&self, now_ms: i64) {
        let all = [
            ("claims", self.platform.entities().remove_expired_claims(now_ms)),
            ("alarms", self.delete_old_alarms(now_ms)),
            ("calls", self.delete_old_calls(now_ms)),
        ];
        for (what, done) in all {
            if let Err(error) = done {
                tracing::warn!(what, error = %error_chain(&error), "deleting expired entries failed, retrying in an hour");
            }
        }
    }

    /// Deletes expired alarms, and sends the deletions to the rule chains.
    fn delete_old_alarms(&self, now_ms: i64) -> Result<(), EntityError> {
        let mut out = self.outlet(now_ms);
        for alarm in self.platform.delete_old_alarms(now_ms, &mut out)? {
            self.platform.send_event(deleted(&alarm), now_ms, &mut out);
        }
        Ok(())
    }

    fn delete_old_calls(&self, now_ms: i64) -> Result<(), EntityError> {
        loop {
            let old = self.platform.old_rpcs(now_ms)?;
            if old.is_empty() {
                return Ok(());
            }
            for rpc in old {
                self.delete_call(&rpc)?;
            }
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
