//! The thread that does background work on what is stored: the time-series store's flushing, merging and dropping of what is too old;
//! which entities' points are kept how long; old alarms and calls; what follows from changes of entities.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use platform::News;
use platform::entities::EntityError;
use platform::ids::{RuleNodeId, Uuid};
use platform::model::{Alarm, RuleChain};
use platform::repository::{Change, StateKind};

use crate::hub::{Hub, unix_ms};
use crate::ingest::error_chain;
use crate::lifecycle::{EntityEvent, What};
use crate::stats::Counters;
use crate::unfinished::Unfinished;

const PAUSE: Duration = Duration::from_secs(1);
/// Between looks for alarms and calls that are too old, unless a profile of tenants changes.
const CLEAN_UP_MS: i64 = 3_600_000;

/// Between times at which events of nodes are kept.
const EVENTS_MS: i64 = 10_000;

/// Between events of what rule nodes did, as ThingsBoard's `actors.statistics.persist_frequency`.
const STATISTICS_MS: i64 = 3_600_000;

/// Until the hub is stopped.
pub fn run(hub: &Arc<Hub>) {
    let store = hub.platform.store();
    let mut next_clean_up = (None, 0);
    let mut next_events_ms = 0;
    let mut unfinished = Unfinished::default();
    let mut next_statistics_ms = unix_ms().saturating_add(STATISTICS_MS);
    while !hub.is_stopping.load(Relaxed) {
        if hub.is_flush_wanted.swap(false, Relaxed)
            && let Err(error) = store.flush()
        {
            tracing::warn!(error = %error_chain(&error), "time series cannot be flushed; the log of devices grows");
        }
        let now_ms = unix_ms();
        let has_unclassified = hub.platform.classify().unwrap_or_else(|error| {
            tracing::warn!(error = %error_chain(&error), "times to live are not in force");
            false
        });
        let has_more = match store.maintain(now_ms) {
            Ok(done) => done.has_more,
            Err(error) => {
                tracing::warn!(error = %error_chain(&error), "the upkeep of time series failed; it is tried again");
                false
            }
        };
        let version = Some(hub.platform.entities().directory().ttls_version());
        if next_clean_up.0 != version || now_ms >= next_clean_up.1 {
            next_clean_up = (version, now_ms.saturating_add(CLEAN_UP_MS));
            hub.clean_up(now_ms);
        }
        hub.finish(&mut unfinished);
        if now_ms >= next_events_ms {
            next_events_ms = now_ms.saturating_add(EVENTS_MS);
            hub.keep_events();
        }
        if now_ms >= next_statistics_ms {
            next_statistics_ms = now_ms.saturating_add(STATISTICS_MS);
            hub.note_statistics(now_ms);
        }
        if !has_unclassified && !has_more {
            hub.pause(PAUSE);
        }
    }
}

impl Hub {
    /// For the next start.
    pub fn keep_events(&self) {
        self.keep_lifecycle();
        let changed = self.events.take_changed();
        if changed.is_empty() {
            return;
        }
        let nodes: Vec<RuleNodeId> = changed.iter().map(|(node, _)| *node).collect();
        let put = |(node, bytes): (RuleNodeId, Option<Vec<u8>>)| Change::PutState {
            state: StateKind::NodeEvents,
            id: node.0,
            bytes,
        };
        let changes: Vec<Change> = changed.into_iter().map(put).collect();
        if let Err(error) = self.platform.entities().repository().apply(&changes) {
            self.events.keep_later(nodes.into_iter());
            tracing::warn!(error = %error_chain(&error), "events of rule nodes that are debugged cannot be kept");
        }
    }

    /// Events that cannot be read are not shown any more.
    pub fn restored(&self, of: Uuid, restored: Result<(), serde_json::Error>) {
        if let Err(error) = restored {
            Counters::add(&self.counters.unreadable_events, 1);
            tracing::warn!(entity = %of, %error, "the events that were kept of an entity or a rule node cannot be read: they are gone");
        }
    }

    pub fn note_statistics(&self, now_ms: i64) {
        let entities = self.platform.entities();
        for (chain, nodes) in self.platform.take_statistics() {
            // A chain that is gone has nobody who could ask.
            let Ok(Some(chain)) = entities.find::<RuleChain>(chain.0) else {
                continue;
            };
            for of in nodes {
                self.statistics.put(EntityEvent {
                    id: entities.new_id(now_ms),
                    at_ms: now_ms,
                    tenant: chain.tenant_id,
                    entity: of.node.entity(),
                    what: What::Statistics {
                        messages: of.messages,
                        errors: of.errors,
                    },
                });
            }
        }
    }

    fn keep_lifecycle(&self) {
        let changed = self.lifecycle.take_changed();
        if changed.is_empty() {
            return;
        }
        let entities: Vec<Uuid> = changed.iter().map(|(entity, _)| *entity).collect();
        let put = |(id, bytes)| Change::PutState {
            state: StateKind::EntityEvents,
            id,
            bytes,
        };
        let changes: Vec<Change> = changed.into_iter().map(put).collect();
        if let Err(error) = self.platform.entities().repository().apply(&changes) {
            self.lifecycle.keep_later(entities.into_iter());
            tracing::warn!(error = %error_chain(&error), "events of devices and rule chains cannot be kept");
        }
    }

    /// What cannot be done now keeps nothing else from being done.
    fn clean_up(&self, now_ms: i64) {
        let all = [
            ("claims", self.platform.entities().forget_old_claims(now_ms)),
            ("alarms", self.forget_old_alarms(now_ms)),
            ("calls", self.forget_old_calls(now_ms)),
        ];
        for (what, done) in all {
            if let Err(error) = done {
                tracing::warn!(what, error = %error_chain(&error), "what is too old cannot be deleted; it is tried again in an hour");
            }
        }
    }

    /// Chains are told what went.
    fn forget_old_alarms(&self, now_ms: i64) -> Result<(), EntityError> {
        let mut out = self.out(now_ms);
        for alarm in self.platform.delete_old_alarms(now_ms, &mut out)? {
            self.platform.tell(deleted(&alarm), now_ms, &mut out);
        }
        Ok(())
    }

    fn forget_old_calls(&self, now_ms: i64) -> Result<(), EntityError> {
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

fn deleted(alarm: &Alarm) -> News {
    News {
        kind: "ALARM_DELETE",
        entity: alarm.originator,
        tenant: alarm.tenant_id,
        metadata: Vec::new(),
        data: serde_json::to_value(alarm).unwrap_or_default(),
    }
}
