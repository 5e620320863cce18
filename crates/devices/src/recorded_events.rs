//! Debug, lifecycle, error and statistics events of rule chains, rule nodes and devices, and their saved form.

use std::sync::Arc;

use platform::Platform;
use platform::chain::{ChainNodes, DebugEvent};
use platform::ids::{EntityId, EntityType, RuleChainId, RuleNodeId, TenantId, Uuid};
use platform::model::RuleChain;
use platform::repository::{RepositoryChange, RepositoryError, StateKind};

use crate::clock::unix_ms;
use crate::error_chain::error_chain;
use crate::events::{NodeDebugEvents, NodeEvent};
use crate::lifecycle::{EntityEvent, EventDetail, Lifecycle};
use crate::limit_reports::LimitReports;
use crate::stats::DeviceCounters;

pub struct RecordedEvents {
    platform: Arc<Platform>,
    counters: Arc<DeviceCounters>,
    of_nodes: NodeDebugEvents,
    lifecycle: Lifecycle,
    /// Hourly statistics events. Separate, so that they do not evict other events; lost at a restart.
    statistics: Lifecycle,
    /// Log lines about entities at their limits.
    limit_reports: LimitReports,
}

impl RecordedEvents {
    pub fn new(platform: Arc<Platform>, counters: Arc<DeviceCounters>) -> RecordedEvents {
        RecordedEvents {
            platform,
            counters,
            of_nodes: NodeDebugEvents::default(),
            lifecycle: Lifecycle::default(),
            statistics: Lifecycle::default(),
            limit_reports: LimitReports::default(),
        }
    }

    pub fn limit_reports(&self) -> &LimitReports {
        &self.limit_reports
    }

    /// Loads the saved events.
    pub fn restore(&self) -> Result<(), RepositoryError> {
        let repository = self.platform.entities().repository();
        repository.for_each_state(StateKind::NodeEvents, &mut |node, bytes| {
            self.check_restored(node, self.of_nodes.restore(RuleNodeId(node), bytes));
        })?;
        repository.for_each_state(StateKind::EntityEvents, &mut |entity, bytes| {
            self.check_restored(entity, self.lifecycle.restore(entity, bytes));
        })
    }

    /// Counts and logs saved events that cannot be read. They are lost.
    fn check_restored(&self, of: Uuid, restored: Result<(), serde_json::Error>) {
        if let Err(error) = restored {
            DeviceCounters::add(&self.counters.unreadable_events, 1);
            tracing::warn!(entity = %of, %error, "saved events of an entity or rule node cannot be read and are lost");
        }
    }

    /// Saves events for the next start.
    pub fn save(&self) {
        let failed = self.save_states(StateKind::EntityEvents, self.lifecycle.take_changed(), |entity| entity);
        self.lifecycle.mark_changed(failed.into_iter());
        let failed = self.save_states(StateKind::NodeEvents, self.of_nodes.take_changed(), |node| node.0);
        self.of_nodes.mark_changed(failed.into_iter());
    }

    /// Returns the ids of events that could not be saved.
    fn save_states<T: Copy>(
        &self,
        state: StateKind,
        changed: Vec<(T, Option<Vec<u8>>)>,
        uuid: impl Fn(T) -> Uuid,
    ) -> Vec<T> {
        if changed.is_empty() {
            return Vec::new();
        }
        let ids: Vec<T> = changed.iter().map(|(id, _)| *id).collect();
        let put = |(id, bytes): (T, Option<Vec<u8>>)| RepositoryChange::PutState {
            state,
            id: uuid(id),
            bytes,
        };
        let changes: Vec<RepositoryChange> = changed.into_iter().map(put).collect();
        match self.platform.entities().repository().apply(&changes) {
            Ok(()) => Vec::new(),
            Err(error) => {
                tracing::warn!(?state, error = %error_chain(&error), "saving events of rule nodes or entities failed");
                ids
            }
        }
    }

    /// Records a start event for all rule chains and nodes.
    pub fn record_chain_starts(&self) -> Result<(), RepositoryError> {
        let now_ms = unix_ms();
        let repository = self.platform.entities().repository();
        repository.for_each(EntityType::RuleChain, &mut |record| {
            let chain = RuleChainId(record.row.id);
            self.chain_changed(TenantId(record.row.tenant), chain, None, now_ms);
        })
    }

    /// Records that a chain and its nodes were started, changed or stopped. `before`: its nodes before the change.
    pub fn chain_changed(&self, tenant: TenantId, chain: RuleChainId, before: Option<&ChainNodes>, now_ms: i64) {
        let after = self.platform.chain_nodes(chain);
        let new_id = || self.platform.entities().new_id(now_ms);
        let change = (before, after.as_ref());
        self.lifecycle.chain_changed((tenant, chain), change, now_ms, &new_id);
    }

    /// Records a debug event of a rule node.
    pub fn record_debug(&self, tenant: TenantId, event: &DebugEvent<'_>, now_ms: i64) {
        let id = self.platform.entities().new_id(now_ms);
        self.of_nodes.put(id, now_ms, tenant, event);
    }

    /// Records a failed message.
    pub fn record_failure(&self, of: (TenantId, EntityId), method: &str, problem: &str, now_ms: i64) {
        let id = self.platform.entities().new_id(now_ms);
        self.lifecycle.failed(id, now_ms, of, method, problem);
    }

    /// Turns rule node counters since the last call into statistics events.
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

    /// Returns the debug events of a rule node of this tenant, newest first.
    pub fn of_node(&self, tenant: TenantId, node: RuleNodeId) -> Vec<NodeEvent> {
        self.of_nodes.of(tenant, node)
    }

    pub fn clear_node(&self, tenant: TenantId, node: RuleNodeId) {
        self.of_nodes.clear(tenant, node);
    }

    /// Returns lifecycle, error and statistics events of a rule chain, node or device, newest first.
    pub fn of_entity(&self, tenant: TenantId, entity: EntityId) -> Vec<EntityEvent> {
        let mut all = self.lifecycle.of(tenant, entity);
        all.extend(self.statistics.of(tenant, entity));
        all.sort_by_key(|event| std::cmp::Reverse(event.at_ms));
        all
    }

    pub fn clear_entity(&self, tenant: TenantId, entity: EntityId) {
        self.lifecycle.clear(tenant, entity);
        self.statistics.clear(tenant, entity);
    }
}
