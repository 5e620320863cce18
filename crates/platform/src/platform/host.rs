//! The host of rule chains during message processing.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::Value as Json;
use timeseries::{LogPosition, PointDestination, TimedValue};

use super::budget::MessageBudget;
use super::deferred::{Deferred, DeferredWork};
use super::pending::PointStorage;
use super::retries::RetryWork;
use super::waiting_calls::{CallDeadline, StoredRecord, WaitingScript, WaitsFor};
use super::{ChainEvent, HashMap, Platform, PlatformCore, PlatformOutlet};
use crate::alarm_rules::{AlarmEffect, AlarmRuleEvent, AlarmTransition};
use crate::chain::{
    self, ChainMessage, ChainRun, CompiledChain, Continuation, DebugEvent, ExternalCall, Host, NodeError, NodeTime,
    RpcCall, SaveOptions, ScriptAnswer, ScriptCall, alarm_message,
};
use crate::decode::KeyValue;
use crate::ids::{AlarmId, DeviceId, EntityId, EntityType, RuleChainId, RuleNodeId, TenantId};
use crate::limits::ApiFeature;
use crate::model::{Alarm, Attribute, AttributeScope, MAIN_QUEUE, Relation};
use crate::queue_statistics::{Exception, MessageResult};
use crate::repository::RelationSelection;
use crate::usage::UsageCounter;

/// Errors of nodes that may store nothing more.
const MESSAGE_BYTES_EXCEEDED: &str = "the message created more data than one message may (64 MiB)";
const PENDING_BYTES_EXCEEDED: &str = "this tenant has too much data waiting to be stored";

/// Chains searched for an alarm rules node.
const CHAINS_SEEN_MAX: usize = 50;
/// Maximum number of times that checkpoints and alarms may defer work of one message. Ends cycles.
pub(super) const DEFERRED_DEPTH_MAX: usize = 50;
/// The outlet reports calls that expired. If it does not, the platform fails a call this time after its expiry.
const ANSWER_GRACE_MS: i64 = 5_000;
/// Time after which a script that did not run fails.
const SCRIPT_WAIT_MS: i64 = 60_000;

/// One call of the platform: its state, and the outlet for its effects.
pub(super) struct PlatformCall<'v> {
    pub platform: &'v Platform,
    pub core: &'v mut PlatformCore,
    pub outlet: &'v mut dyn PlatformOutlet,
    pub now_ms: i64,
    /// Whether this is a replay, which stores only points. All other effects happened before the restart.
    pub is_replay: bool,
    /// Whether failed nodes are recorded for a retry.
    pub records_failed: bool,
    /// The number of the message in a retrying queue that is running in a chain now.
    pub waiting: Option<u64>,
    /// Outstanding external requests of that message.
    pub outstanding: usize,
    /// Whether a script runs outside of the current run, which then continues later.
    pub waits_for_script: bool,
    /// The stored continuation that continues now.
    pub continuing: Option<u64>,
    /// Number of deferrals that led to the current work.
    pub depth: usize,
    /// The budget of the current message and its deferred work.
    pub budget: MessageBudget,
    /// Start of the first retry in this call.
    pub retrying_since: Option<Instant>,
    /// Node time of the current slice.
    pub slice_time: Duration,
    /// Node time that is not counted for a tenant yet.
    pub node_time: Duration,
    /// The log position of the message that is processed.
    pub at: Option<LogPosition>,
    /// Per feature: the last message of each tenant that checked the limit.
    pub last_checks: [HashMap<TenantId, LogPosition>; ApiFeature::ALL.len()],
}

impl<'v> PlatformCall<'v> {
    pub fn new(
        platform: &'v Platform,
        core: &'v mut PlatformCore,
        outlet: &'v mut dyn PlatformOutlet,
        now_ms: i64,
    ) -> PlatformCall<'v> {
        PlatformCall {
            platform,
            core,
            outlet,
            now_ms,
            is_replay: false,
            records_failed: false,
            waiting: None,
            outstanding: 0,
            waits_for_script: false,
            continuing: None,
            depth: 0,
            budget: MessageBudget::default(),
            retrying_since: None,
            slice_time: Duration::ZERO,
            node_time: Duration::ZERO,
            at: None,
            last_checks: std::array::from_fn(|_| HashMap::default()),
        }
    }

    /// Applies the alarm rules for a chain without a device profile node. Alarm changes become separate messages.
    pub fn apply_rules_separately(&mut self, chain: &Arc<CompiledChain>, message: &ChainMessage<'_>) {
        if self.has_rules_node(chain, &mut Vec::new()) {
            return;
        }
        let effects = match self.apply_rules(message) {
            Ok(effects) => effects,
            Err(error) => return self.outlet.failed(message.originator, "alarm rules", &error.0),
        };
        for effect in effects {
            if let Ok(alarm) = alarm_message(&effect, message) {
                let done = chain::run(chain, alarm, self);
                self.finish(message.originator, effect.alarm.tenant_id, None, done);
            }
        }
    }

    /// Whether the chain or a chain reachable from it has a device profile node. Visits each chain once.
    fn has_rules_node(&self, chain: &CompiledChain, seen: &mut Vec<RuleChainId>) -> bool {
        seen.push(chain.id);
        chain.has_device_profile_node()
            || (seen.len() < CHAINS_SEEN_MAX
                && chain.entered_chains().any(|id| {
                    let entered = self
                        .core
                        .chains
                        .get(&id)
                        .filter(|entered| entered.tenant == chain.tenant);
                    !seen.contains(&id) && entered.is_some_and(|entered| self.has_rules_node(entered, seen))
                }))
    }

    /// Counts the result of a run that is not retried.
    pub fn finish(&mut self, originator: EntityId, tenant: TenantId, queue: Option<&str>, mut done: ChainRun) {
        let is_waiting = std::mem::take(&mut self.waits_for_script);
        if self.is_replay {
            return;
        }
        self.count_run(tenant, &done);
        if let Some(rest) = done.paused.take() {
            return self.store_paused(tenant, queue, *rest, done);
        }
        // The message is not finished yet.
        if is_waiting && done.failures.is_empty() {
            return;
        }
        let result = if done.failures.is_empty() {
            MessageResult::Successful
        } else {
            MessageResult::Failed
        };
        self.count_result(tenant, queue, result, &done);
        self.core.stats.failed_messages_total += u64::from(!done.failures.is_empty());
        for failure in &done.failures {
            self.outlet.failed(originator, &failure.node, &failure.error);
        }
    }

    pub fn count_result(&mut self, tenant: TenantId, queue: Option<&str>, result: MessageResult, done: &ChainRun) {
        let queue = self
            .core
            .queues
            .named(queue)
            .map_or(MAIN_QUEUE, |queue| queue.name.as_str());
        self.core.queue_statistics.count(tenant, queue, result, || {
            let failure = done.failures.last()?;
            Some(Exception {
                chain: failure.chain,
                node: failure.node.clone(),
                message: failure.error.clone(),
            })
        });
    }

    pub fn count_run(&mut self, tenant: TenantId, done: &ChainRun) {
        self.count_node_time(tenant);
        if let Some(exceeded) = &done.exceeded {
            self.core.stats.exceeding_messages_total += 1;
            self.outlet.exceeded(tenant, exceeded);
        }
        self.core.stats.rule_nodes_total += done.executions;
        self.core.stats.scripts_total += done.script_executions;
        self.core
            .usage
            .add(tenant, UsageCounter::RuleNodes, done.executions, self.now_ms);
        self.core
            .usage
            .add(tenant, UsageCounter::Scripts, done.script_executions, self.now_ms);
    }

    /// Does the deferred work, in order. That of a slow tenant waits in the lane of the tenant.
    pub fn drain_queue(&mut self) {
        while let Some(queued) = self.core.queue.pop() {
            (self.depth, self.budget, self.at) = (queued.depth, queued.budget, queued.at);
            self.begin_slice();
            match queued.work {
                Deferred::Checkpoint(queue, then) => self.resume_after_checkpoint(&queue, then),
                Deferred::Event(event) => self.send_event(event),
            }
        }
        (self.depth, self.at) = (0, None);
    }

    /// Continues after a checkpoint.
    fn resume_after_checkpoint(&mut self, queue: &str, then: Continuation) {
        let originator = then.message.originator;
        let tenant = self.tenant_of(originator);
        if let Some(queue) = self.waiting_queue(tenant, Some(queue)) {
            return self.run_in_queue(&queue, tenant, RetryWork::Resume(then));
        }
        let done = chain::resume(then, "Success", None, self);
        self.finish(originator, tenant, Some(queue), done);
    }

    /// Begins the budget of the next message, unless this is deferred work.
    pub fn begin_message(&mut self) {
        self.begin_slice();
        if self.depth == 0 {
            self.budget.begin();
        }
    }

    /// Takes bytes from the budget of the current message.
    fn take_budget(&self, bytes: usize) -> Result<(), NodeError> {
        match self.budget.take(bytes) {
            true => Ok(()),
            false => Err(NodeError::new(MESSAGE_BYTES_EXCEEDED)),
        }
    }

    fn reserve_changes(&mut self, tenant: TenantId, bytes: usize) -> Result<(), NodeError> {
        if !self.core.pending.has_capacity_for_changes(tenant, bytes) {
            return Err(NodeError::new(PENDING_BYTES_EXCEEDED));
        }
        self.take_budget(bytes)?;
        self.core.pending.reserve_change_bytes(tenant, bytes);
        Ok(())
    }

    /// Keeps a message until its script has answered. It is stored, so that the script runs again after a crash.
    fn wait_for_script(&mut self, number: u64, tenant: TenantId, then: Continuation) {
        let stored = match self.waiting {
            Some(waiting) => {
                self.outstanding += 1;
                StoredRecord::QueuedMessage(waiting)
            }
            None => StoredRecord::Continuation(self.store_script(tenant, &then)),
        };
        self.waits_for_script = true;
        let waits = WaitingScript {
            tenant,
            stored,
            budget: self.budget.clone(),
            depth: self.depth,
        };
        let deadline = CallDeadline::new(self.now_ms, self.now_ms.saturating_add(SCRIPT_WAIT_MS));
        self.core
            .calls
            .insert(number, tenant, then, deadline, WaitsFor::Script(Box::new(waits)));
    }

    fn defer(&mut self, tenant: TenantId, what: Deferred) -> Result<(), NodeError> {
        if self.depth >= DEFERRED_DEPTH_MAX {
            return Err(NodeError::new(format!(
                "the message passed {DEFERRED_DEPTH_MAX} checkpoints and alarms; check the chains for a cycle"
            )));
        }
        let bytes = what.weight();
        if !self.core.queue.has_capacity(tenant, bytes) {
            self.core.stats.dropped_queued_total += 1;
            return Err(NodeError::new("the queue of deferred messages is full"));
        }
        self.take_budget(bytes)?;
        let depth = self.depth + 1;
        self.core.queue.push(DeferredWork {
            work: what,
            tenant,
            bytes,
            depth,
            budget: self.budget.clone(),
            at: self.at,
        });
        Ok(())
    }

    /// Updates the alarm rules' copy of an alarm that a node changed.
    pub fn update_rules_copy(&mut self, alarm: &Alarm) -> Result<(), NodeError> {
        if alarm.originator.kind != EntityType::Device {
            return Ok(());
        }
        if alarm.cleared {
            let ended = AlarmRuleEvent::AlarmEnded(alarm.id.unwrap_or_default());
            return self.apply_event(alarm.originator, ended).map(drop);
        }
        if let Some(known) = &mut self.device_state(DeviceId(alarm.originator.id)).alarms {
            known.state.restore_alarm(&known.rules, alarm.clone());
        }
        Ok(())
    }

    pub fn tenant_of(&self, entity: EntityId) -> TenantId {
        match entity.kind {
            EntityType::Tenant => TenantId(entity.id),
            EntityType::Device => {
                let directory = self.platform.entities.directory();
                directory
                    .device(DeviceId(entity.id))
                    .map(|device| device.tenant)
                    .unwrap_or_default()
            }
            _ => {
                let record = self.platform.entities.repository().get(entity).ok().flatten();
                TenantId(record.map_or(crate::ids::Uuid::NULL, |record| record.row.tenant))
            }
        }
    }

    pub fn stored_alarm(&self, id: AlarmId) -> Result<Option<Alarm>, NodeError> {
        match self.core.pending.alarm(id) {
            Some(alarm) => Ok(Some(alarm.clone())),
            None => Ok(self.platform.entities.repository().alarm(id).map_err(Box::new)?),
        }
    }

    pub fn active_alarm_of(&self, originator: EntityId, kind: &str) -> Result<Option<Alarm>, NodeError> {
        if let Some(pending) = self.core.pending.alarm_of(originator.id, kind) {
            return Ok((!pending.cleared).then(|| pending.clone()));
        }
        Ok(self
            .platform
            .entities
            .repository()
            .active_alarm(originator.id, kind)
            .map_err(Box::new)?)
    }
}

impl PlatformCall<'_> {
    /// Counts stored points for the tenant's usage, weighted by the days of storage.
    pub fn count_stored(&mut self, tenant: TenantId, values: &[KeyValue<'_>], ttl_s: u64) {
        let days = match ttl_s {
            0 => self.storage_days(tenant),
            ttl_s => ttl_s / 86_400,
        };
        let count = storage_points(values, days);
        self.core
            .usage
            .add(tenant, UsageCounter::StoredPoints, count, self.now_ms);
    }

    fn storage_days(&self, tenant: TenantId) -> u64 {
        let default = self.platform.options.telemetry_days;
        if self.core.storage_days.is_empty() {
            return default.into();
        }
        self.core.storage_days.get(&tenant).copied().unwrap_or(default).into()
    }
}

/// As u32 seconds, at most 136 years.
pub(super) fn ttl_seconds(ttl_s: u64) -> u32 {
    u32::try_from(ttl_s).unwrap_or(u32::MAX)
}

/// A value counts as one, a string as one per 512 bytes; times the days of storage.
fn storage_points(values: &[KeyValue<'_>], days: u64) -> u64 {
    let of = |value: &KeyValue<'_>| match &value.value {
        timeseries::PointValue::String(text) | timeseries::PointValue::Json(text) => {
            text.len().div_ceil(512).max(1) as u64
        }
        _ => 1,
    };
    values.iter().map(of).sum::<u64>() * days.max(1)
}

impl Host for PlatformCall<'_> {
    fn now_ms(&self) -> i64 {
        self.now_ms
    }

    fn new_alarm_id(&self) -> AlarmId {
        AlarmId(self.platform.entities.new_id(self.now_ms))
    }

    fn chain(&self, id: RuleChainId) -> Option<Arc<CompiledChain>> {
        self.core.chains.get(&id).cloned()
    }

    fn tenant_of(&self, entity: EntityId) -> TenantId {
        PlatformCall::tenant_of(self, entity)
    }

    fn default_chain(&self, originator: EntityId) -> Option<RuleChainId> {
        let directory = self.platform.entities.directory();
        let profile = directory.device(DeviceId(originator.id))?.profile;
        directory.profile(profile)?.default_rule_chain_id
    }

    fn save_timeseries(
        &mut self,
        entity: EntityId,
        ts_ms: i64,
        values: &[KeyValue<'_>],
        saving: SaveOptions,
    ) -> Result<(), NodeError> {
        if let Some(target) = saving.storage {
            // Only values in the history count as storage and have a time to live.
            let is_history = target != PointDestination::LatestOnly;
            let limited = self.limited_tenant(entity).filter(|_| is_history);
            if limited.is_some_and(|tenant| self.is_off(tenant, ApiFeature::Storage)) {
                return Err(NodeError::new("DB storage writes are disabled due to API limits!"));
            }
            let tenant = self.tenant_of(entity);
            let bytes = values.iter().map(KeyValue::weight).sum();
            if !self.core.pending.has_capacity_for_points(tenant, bytes) {
                return Err(NodeError::new(PENDING_BYTES_EXCEEDED));
            }
            self.take_budget(bytes)?;
            self.core.pending.reserve_point_bytes(tenant, bytes);
            let ttl_s = ttl_seconds(saving.ttl_s);
            let storage = PointStorage { target, ttl_s };
            for value in values {
                self.core
                    .pending
                    .push_point((tenant, entity.id), &value.key, ts_ms, value.value.clone(), storage);
            }
            if is_history && !self.is_replay {
                self.count_stored(tenant, values, saving.ttl_s);
            }
        }
        if saving.is_shown && !self.is_replay {
            self.outlet.telemetry(entity, ts_ms, values);
        }
        Ok(())
    }

    fn save_attributes(
        &mut self,
        entity: EntityId,
        scope: AttributeScope,
        attributes: &[Attribute],
        notifies_device: bool,
    ) -> Result<(), NodeError> {
        if self.is_replay {
            return Ok(());
        }
        let tenant = self.tenant_of(entity);
        self.reserve_changes(tenant, attributes.iter().map(Attribute::weight).sum())?;
        let stored = self.put_attributes(entity, scope, attributes, notifies_device)?;
        match stored.refused {
            Some(refused) => Err(NodeError::new(refused.to_string())),
            None => Ok(()),
        }
    }

    fn delete_attributes(
        &mut self,
        entity: EntityId,
        scope: AttributeScope,
        keys: &[String],
        notifies_device: bool,
    ) -> Result<(), NodeError> {
        if self.is_replay {
            return Ok(());
        }
        let tenant = self.tenant_of(entity);
        self.reserve_changes(tenant, keys.iter().map(|key| 96 + key.len()).sum())?;
        self.remove_attributes(entity, scope, keys, notifies_device)
    }

    fn attributes(
        &self,
        entity: EntityId,
        scope: AttributeScope,
        keys: &[String],
    ) -> Result<Vec<Attribute>, NodeError> {
        self.known_attributes(entity, scope, keys)
    }

    fn latest(&self, entity: EntityId, keys: &[String]) -> Result<Vec<Option<TimedValue>>, NodeError> {
        self.known_latest(entity, keys)
    }

    fn entity(&self, id: EntityId) -> Result<Option<Json>, NodeError> {
        let record = self.platform.entities.repository().get(id).map_err(Box::new)?;
        Ok(record.map(|record| record.read()).transpose().map_err(Box::new)?)
    }

    fn entity_named(&self, tenant: TenantId, kind: EntityType, name: &str) -> Result<Option<EntityId>, NodeError> {
        let repository = self.platform.entities.repository();
        let record = repository.find_by_name(kind, tenant.0, name).map_err(Box::new)?;
        Ok(record.map(|record| EntityId::new(kind, record.row.id)))
    }

    fn relations(&self, selection: &RelationSelection) -> Result<Vec<Relation>, NodeError> {
        Ok(self
            .platform
            .entities
            .repository()
            .relations(selection)
            .map_err(Box::new)?)
    }

    fn apply_alarm_rules(&mut self, message: &ChainMessage<'_>) -> Result<Vec<AlarmEffect>, NodeError> {
        self.apply_rules(message)
    }

    fn active_alarm(&self, originator: EntityId, kind: &str) -> Result<Option<Alarm>, NodeError> {
        self.active_alarm_of(originator, kind)
    }

    fn put_alarm(&mut self, alarm: &Alarm) -> Result<(), NodeError> {
        if self.is_replay {
            return Ok(());
        }
        let details = alarm.details.as_ref().map_or(0, chain::json_weight);
        self.reserve_changes(alarm.tenant_id, details + 512)?;
        let action = match alarm {
            alarm if alarm.cleared => AlarmTransition::Cleared,
            alarm if self.stored_alarm(alarm.id.unwrap_or_default())?.is_some() => AlarmTransition::Updated,
            _ => AlarmTransition::Created,
        };
        if action == AlarmTransition::Created {
            if self.is_off(alarm.tenant_id, ApiFeature::Alarms) {
                return Err(NodeError::new(super::alarms::ALARMS_OFF));
            }
            self.count_alarm(alarm.tenant_id);
        }
        self.store_alarm(action, alarm)?;
        self.update_rules_copy(alarm)
    }

    fn send_alarm_event(
        &mut self,
        kind: &'static str,
        alarm: &Alarm,
        node: Option<RuleNodeId>,
    ) -> Result<(), NodeError> {
        if self.is_replay {
            return Ok(());
        }
        let node = node.map(|node| ("ruleNodeId", node.to_string()));
        let event = ChainEvent {
            kind,
            entity: alarm.originator,
            tenant: alarm.tenant_id,
            metadata: node.into_iter().collect(),
            data: serde_json::to_value(alarm).map_err(|error| NodeError::new(error.to_string()))?,
        };
        self.defer(alarm.tenant_id, Deferred::Event(event))
    }

    fn alarm(&self, id: AlarmId) -> Result<Option<Alarm>, NodeError> {
        self.stored_alarm(id)
    }

    fn call_device(&mut self, device: EntityId, call: RpcCall, then: Continuation) -> Result<(), NodeError> {
        if self.is_replay {
            return Ok(());
        }
        let tenant = self.tenant_of(device);
        if !self.core.calls.has_capacity(tenant, &then) {
            self.core.stats.dropped_calls_total += 1;
            self.outlet.refuse_call(DeviceId(device.id), &call);
            return Err(NodeError::new("too many RPC requests wait for responses of devices"));
        }
        let number = self.core.calls.number();
        self.outlet.call_device(DeviceId(device.id), number, &call)?;
        let deadline = CallDeadline::new(self.now_ms, call.expires_ms.saturating_add(ANSWER_GRACE_MS));
        self.core.calls.insert(number, tenant, then, deadline, WaitsFor::Device);
        Ok(())
    }

    fn reply_to_device(&mut self, device: EntityId, request_id: i32, body: &Json) -> Result<(), NodeError> {
        if self.is_replay {
            return Ok(());
        }
        self.outlet.reply_to_device(DeviceId(device.id), request_id, body)
    }

    fn steps_left(&self) -> u64 {
        self.budget.steps_left()
    }

    fn passed(&mut self, steps: u64) {
        self.budget.passed(steps);
    }

    fn has_time_for_nodes(&self) -> bool {
        self.budget.has_time_for_nodes()
    }

    fn add_node_time(&mut self, took: NodeTime) {
        self.budget.add_node_time(took);
        self.slice_time += took.run;
        self.node_time += took.run;
    }

    fn have_nodes_taken_long(&self) -> bool {
        self.budget.have_nodes_taken_long()
    }

    fn is_slice_over(&self) -> bool {
        self.is_time_slice_over()
    }

    fn script_refusal(&mut self, originator: EntityId) -> Option<&'static str> {
        if !self.budget.has_time_for_scripts() {
            return Some("script time limit of the message exceeded (5 seconds)");
        }
        let tenant = self.limited_tenant(originator);
        if tenant.is_some_and(|tenant| self.is_off(tenant, ApiFeature::Scripts)) {
            return Some("JS Execution is disabled due to API limits!");
        }
        None
    }

    fn add_script_time(&mut self, took: Duration) {
        self.budget.add_script_time(took);
    }

    fn run_script(
        &mut self,
        call: ScriptCall,
        then: &dyn Fn() -> Continuation,
    ) -> Result<Option<ScriptAnswer>, NodeError> {
        let Some(scripts) = self.platform.options.scripts.as_ref() else {
            return chain::run_script_in_thread(&call);
        };
        // A replayed message has no record that would protect it while it waits.
        if self.is_replay {
            return Ok(Some(scripts.run_in_replay(call)));
        }
        // Few messages of a tenant wait for scripts: later ones wait behind them.
        let tenant = call.tenant;
        let number = self.core.calls.number();
        let answer = scripts.run(call, number);
        if answer.is_none() {
            self.wait_for_script(number, tenant, then());
        }
        Ok(answer)
    }

    fn log(&mut self, chain: RuleChainId, node: &str, text: &str) {
        if !self.is_replay {
            self.outlet.log(chain, node, text);
        }
    }

    fn send(&mut self, outbound: ExternalCall, within_ms: i64, then: Continuation) -> Result<(), NodeError> {
        if self.is_replay {
            return Ok(());
        }
        let tenant = self.tenant_of(then.message.originator);
        if !self.core.calls.has_capacity(tenant, &then) {
            self.core.stats.dropped_calls_total += 1;
            return Err(NodeError::new("too many messages wait for external systems"));
        }
        let number = self.core.calls.number();
        self.outlet.send(tenant, number, outbound)?;
        let stored = match self.waiting {
            Some(waiting) => StoredRecord::QueuedMessage(waiting),
            None => StoredRecord::Continuation(self.store_continuation(tenant, &then)),
        };
        let at_ms = self.now_ms.saturating_add(within_ms).saturating_add(ANSWER_GRACE_MS);
        let deadline = CallDeadline::new(self.now_ms, at_ms);
        self.core
            .calls
            .insert(number, tenant, then, deadline, WaitsFor::External(stored));
        self.outstanding += usize::from(self.waiting.is_some());
        Ok(())
    }

    fn records_failed(&self) -> bool {
        self.records_failed
    }

    fn take_retry_bytes(&mut self, bytes: usize) -> bool {
        self.budget.take(bytes)
    }

    fn enqueue(&mut self, queue: &str, then: Continuation) -> Result<(), NodeError> {
        let tenant = self.tenant_of(then.message.originator);
        self.defer(tenant, Deferred::Checkpoint(queue.into(), then))
    }

    fn debug(&mut self, event: &DebugEvent<'_>) {
        if !self.is_replay {
            let tenant = self.tenant_of(event.message.originator);
            self.outlet.debug(tenant, event);
        }
    }
}
