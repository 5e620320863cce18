//! The world as chains see it while the platform processes messages.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::Value as Json;
use timeseries::{Kept, Position, TimedValue};

use super::aside::{Aside, Queued};
use super::budget::Budget;
use super::pending::Keeping;
use super::retries::Work;
use super::slow_scripts::slow;
use super::waiting_calls::Stored;
use super::{Core, HashMap, News, Outlet, Platform};
use crate::alarm_rules::{Action, Effect, Event};
use crate::chain::{
    self, Chain, Continuation, DebugEvent, Host, Message, NodeError, Outbound, RpcCall, Run, Saving, alarm_message,
};
use crate::decode::KeyValue;
use crate::ids::{AlarmId, DeviceId, EntityId, EntityType, RuleChainId, RuleNodeId, TenantId};
use crate::limits::ApiFeature;
use crate::model::{Alarm, Attribute, MAIN_QUEUE, Relation, Scope};
use crate::queue_statistics::{Exception, Fate};
use crate::repository::RelationSelection;
use crate::usage::Counter;

/// Why a node keeps nothing more.
const KEPT_TOO_MUCH: &str = "too much has come of the message: nothing more of it is kept";
const PENDING_TOO_MUCH: &str = "too much of this tenant waits to be stored";

/// In which a node for alarm rules is sought.
const CHAINS_SEEN_MAX: usize = 50;
/// How often what comes of one message is put aside: checkpoints, and alarms of nodes. A circle ends here.
const ASIDE_DEPTH_MAX: usize = 50;
/// Whoever sends a call says that its time is over; if that does not happen it is given up so much later.
const ANSWER_GRACE_MS: i64 = 5_000;

/// One call of the platform: everything that messages change, and where effects go.
pub(super) struct Visit<'v> {
    pub platform: &'v Platform,
    pub core: &'v mut Core,
    pub outlet: &'v mut dyn Outlet,
    pub now_ms: i64,
    /// Only points count: everything else was done before.
    pub is_replay: bool,
    /// What fails is tried again.
    pub keeps_failed: bool,
    /// The number of the message of a queue that tries again, while it is under way in a chain.
    pub waiting: Option<u64>,
    /// Of that message: what other systems have not answered.
    pub under_way: usize,
    /// How often what is at hand was put aside.
    depth: usize,
    /// Of the message at hand, with all that comes of it.
    pub budget: Budget,
    /// When the first try again was made.
    pub retrying_since: Option<Instant>,
    /// The message of the log that is processed.
    pub at: Option<Position>,
    /// Of each feature: which message of a tenant has asked, the last one of the log.
    pub asked: [HashMap<TenantId, Position>; ApiFeature::ALL.len()],
}

impl<'v> Visit<'v> {
    pub fn new(platform: &'v Platform, core: &'v mut Core, outlet: &'v mut dyn Outlet, now_ms: i64) -> Visit<'v> {
        Visit {
            platform,
            core,
            outlet,
            now_ms,
            is_replay: false,
            keeps_failed: false,
            waiting: None,
            under_way: 0,
            depth: 0,
            budget: Budget::default(),
            retrying_since: None,
            at: None,
            asked: std::array::from_fn(|_| HashMap::default()),
        }
    }

    /// A chain without a device profile node gets the alarm rules all the same: what becomes of alarms are messages of its own.
    pub fn apply_rules_beside(&mut self, chain: &Arc<Chain>, message: &Message<'_>) {
        if self.has_rules_node(chain, &mut Vec::new()) {
            return;
        }
        let effects = match self.apply_rules(message) {
            Ok(effects) => effects,
            Err(error) => return self.outlet.failed(message.originator, "alarm rules", &error.0),
        };
        for effect in effects {
            if let Ok(said) = alarm_message(&effect, message) {
                let done = chain::run(chain, said, self);
                self.finish(message.originator, effect.alarm.tenant_id, None, &done);
            }
        }
    }

    /// Itself, or a chain that it leads into. Each is looked at once.
    fn has_rules_node(&self, chain: &Chain, seen: &mut Vec<RuleChainId>) -> bool {
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

    /// Counts what a run did that is not tried again.
    pub fn finish(&mut self, originator: EntityId, tenant: TenantId, queue: Option<&str>, done: &Run) {
        if self.is_replay {
            return;
        }
        self.count_run(tenant, done);
        let fate = if done.failures.is_empty() {
            Fate::Successful
        } else {
            Fate::Failed
        };
        self.count_fate(tenant, queue, fate, done);
        self.core.stats.failed_messages_total += u64::from(!done.failures.is_empty());
        for failure in &done.failures {
            self.outlet.failed(originator, &failure.node, &failure.error);
        }
    }

    pub fn count_fate(&mut self, tenant: TenantId, queue: Option<&str>, fate: Fate, done: &Run) {
        let queue = self
            .core
            .queues
            .named(queue)
            .map_or(MAIN_QUEUE, |queue| queue.name.as_str());
        self.core.queue_statistics.count(tenant, queue, fate, || {
            let failure = done.failures.last()?;
            Some(Exception {
                chain: failure.chain,
                node: failure.node.clone(),
                message: failure.error.clone(),
            })
        });
    }

    pub fn count_run(&mut self, tenant: TenantId, done: &Run) {
        self.core.stats.rule_nodes_total += done.executions;
        self.core.stats.scripts_total += done.script_executions;
        self.core
            .usage
            .add(tenant, Counter::RuleNodes, done.executions, self.now_ms);
        self.core
            .usage
            .add(tenant, Counter::Scripts, done.script_executions, self.now_ms);
    }

    /// What chains have put aside, in its order.
    pub fn drain_queue(&mut self) {
        while let Some(queued) = self.core.queue.pop() {
            (self.depth, self.budget, self.at) = (queued.depth, queued.budget, queued.at);
            match queued.what {
                Aside::Behind(queue, then) => self.go_on_behind(&queue, then),
                Aside::News(news) => self.tell(news),
            }
        }
        (self.depth, self.at) = (0, None);
    }

    /// A checkpoint.
    fn go_on_behind(&mut self, queue: &str, then: Continuation) {
        let originator = then.message.originator;
        let tenant = self.tenant_of(originator);
        if let Some(retrying) = self.retrying_queue(Some(queue)) {
            return self.run_in_queue(&retrying, tenant, Work::Resume(then));
        }
        let done = chain::resume(then, "Success", None, self);
        self.finish(originator, tenant, Some(queue), &done);
    }

    /// The next message, unless it comes of one that was put aside.
    pub fn begin_message(&mut self) {
        if self.depth == 0 {
            self.budget.begin();
        }
    }

    /// So many bytes for the message at hand.
    fn keep(&self, bytes: usize) -> Result<(), NodeError> {
        match self.budget.keep(bytes) {
            true => Ok(()),
            false => Err(NodeError::new(KEPT_TOO_MUCH)),
        }
    }

    fn keep_changes(&mut self, tenant: TenantId, bytes: usize) -> Result<(), NodeError> {
        if !self.core.pending.has_room_for_changes(tenant, bytes) {
            return Err(NodeError::new(PENDING_TOO_MUCH));
        }
        self.keep(bytes)?;
        self.core.pending.changes_take(tenant, bytes);
        Ok(())
    }

    fn put_aside(&mut self, tenant: TenantId, what: Aside) -> Result<(), NodeError> {
        if self.depth >= ASIDE_DEPTH_MAX {
            return Err(NodeError::new(format!(
                "the message went through {ASIDE_DEPTH_MAX} checkpoints and alarms: is there a circle?"
            )));
        }
        let bytes = what.weight();
        if !self.core.queue.has_room(tenant, bytes) {
            self.core.stats.dropped_queued_total += 1;
            return Err(NodeError::new("the queue of what chains have put aside is full"));
        }
        self.keep(bytes)?;
        let depth = self.depth + 1;
        self.core.queue.push(Queued {
            what,
            tenant,
            bytes,
            depth,
            budget: self.budget.clone(),
            at: self.at,
        });
        Ok(())
    }

    /// Rules of the originator's profile know the alarm as a node has left it.
    pub fn tell_rules_of(&mut self, alarm: &Alarm) -> Result<(), NodeError> {
        if alarm.originator.kind != EntityType::Device {
            return Ok(());
        }
        if alarm.cleared {
            let ended = Event::AlarmEnded(alarm.id.unwrap_or_default());
            return self.tell_rules(alarm.originator, ended).map(drop);
        }
        if let Some(known) = &mut self.device_state(DeviceId(alarm.originator.id)).alarms {
            known.state.adopt(&known.rules, alarm.clone());
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

impl Visit<'_> {
    /// For the tenant's usage: with the days for which they are kept.
    pub fn count_stored(&mut self, tenant: TenantId, values: &[KeyValue<'_>], ttl_s: u64) {
        let days = match ttl_s {
            0 => self.storage_days(tenant),
            ttl_s => ttl_s / 86_400,
        };
        let count = storage_points(values, days);
        self.core.usage.add(tenant, Counter::StoredPoints, count, self.now_ms);
    }

    fn storage_days(&self, tenant: TenantId) -> u64 {
        let default = self.platform.options.ttl_days;
        if self.core.storage_days.is_empty() {
            return default.into();
        }
        self.core.storage_days.get(&tenant).copied().unwrap_or(default).into()
    }
}

/// In whole seconds as they are kept: 136 years at most.
pub(super) fn ttl_seconds(ttl_s: u64) -> u32 {
    u32::try_from(ttl_s).unwrap_or(u32::MAX)
}

/// A value counts once, a text once per 512 characters; and per day that it is kept.
fn storage_points(values: &[KeyValue<'_>], days: u64) -> u64 {
    let of = |value: &KeyValue<'_>| match &value.value {
        timeseries::Value::String(text) | timeseries::Value::Json(text) => text.len().div_ceil(512).max(1) as u64,
        _ => 1,
    };
    values.iter().map(of).sum::<u64>() * days.max(1)
}

impl Host for Visit<'_> {
    fn now_ms(&self) -> i64 {
        self.now_ms
    }

    fn new_alarm_id(&self) -> AlarmId {
        AlarmId(self.platform.entities.new_id(self.now_ms))
    }

    fn chain(&self, id: RuleChainId) -> Option<Arc<Chain>> {
        self.core.chains.get(&id).cloned()
    }

    fn tenant_of(&self, entity: EntityId) -> TenantId {
        Visit::tenant_of(self, entity)
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
        saving: Saving,
    ) -> Result<(), NodeError> {
        if let Some(kept) = saving.kept {
            // Only what is in the history takes storage, and ends.
            let is_history = kept != Kept::AsLatest;
            let limited = self.limited_tenant(entity).filter(|_| is_history);
            if limited.is_some_and(|tenant| self.is_off(tenant, ApiFeature::Storage)) {
                return Err(NodeError::new("DB storage writes are disabled due to API limits!"));
            }
            let tenant = self.tenant_of(entity);
            let bytes = values.iter().map(KeyValue::weight).sum();
            if !self.core.pending.has_room_for_points(tenant, bytes) {
                return Err(NodeError::new(PENDING_TOO_MUCH));
            }
            self.keep(bytes)?;
            self.core.pending.points_take(tenant, bytes);
            let ttl_s = ttl_seconds(saving.ttl_s);
            let keeping = Keeping { kept, ttl_s };
            for value in values {
                self.core
                    .pending
                    .push_point((tenant, entity.id), &value.key, ts_ms, value.value.clone(), keeping);
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
        scope: Scope,
        attributes: &[Attribute],
        notifies_device: bool,
    ) -> Result<(), NodeError> {
        if self.is_replay {
            return Ok(());
        }
        let tenant = self.tenant_of(entity);
        self.keep_changes(tenant, attributes.iter().map(Attribute::weight).sum())?;
        self.put_attributes(entity, scope, attributes, notifies_device)
    }

    fn delete_attributes(
        &mut self,
        entity: EntityId,
        scope: Scope,
        keys: &[String],
        notifies_device: bool,
    ) -> Result<(), NodeError> {
        if self.is_replay {
            return Ok(());
        }
        let tenant = self.tenant_of(entity);
        self.keep_changes(tenant, keys.iter().map(|key| 96 + key.len()).sum())?;
        self.remove_attributes(entity, scope, keys, notifies_device)
    }

    fn attributes(&self, entity: EntityId, scope: Scope, keys: &[String]) -> Result<Vec<Attribute>, NodeError> {
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

    fn apply_alarm_rules(&mut self, message: &Message<'_>) -> Result<Vec<Effect>, NodeError> {
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
        self.keep_changes(alarm.tenant_id, details + 512)?;
        let action = match alarm {
            alarm if alarm.cleared => Action::Cleared,
            alarm if self.stored_alarm(alarm.id.unwrap_or_default())?.is_some() => Action::Updated,
            _ => Action::Created,
        };
        if action == Action::Created {
            if self.is_off(alarm.tenant_id, ApiFeature::Alarms) {
                return Err(NodeError::new(super::alarms::ALARMS_OFF));
            }
            self.count_alarm(alarm.tenant_id);
        }
        self.store_alarm(action, alarm)?;
        self.tell_rules_of(alarm)
    }

    fn tell_of_alarm(&mut self, kind: &'static str, alarm: &Alarm, node: Option<RuleNodeId>) -> Result<(), NodeError> {
        if self.is_replay {
            return Ok(());
        }
        let node = node.map(|node| ("ruleNodeId", node.to_string()));
        let news = News {
            kind,
            entity: alarm.originator,
            tenant: alarm.tenant_id,
            metadata: node.into_iter().collect(),
            data: serde_json::to_value(alarm).map_err(|error| NodeError::new(error.to_string()))?,
        };
        self.put_aside(alarm.tenant_id, Aside::News(news))
    }

    fn alarm(&self, id: AlarmId) -> Result<Option<Alarm>, NodeError> {
        self.stored_alarm(id)
    }

    fn call_device(&mut self, device: EntityId, call: RpcCall, then: Continuation) -> Result<(), NodeError> {
        if self.is_replay {
            return Ok(());
        }
        let tenant = self.tenant_of(device);
        if !self.core.calls.has_room(tenant, &then) {
            self.core.stats.dropped_calls_total += 1;
            return Err(NodeError::new("too many calls to devices wait for their answers"));
        }
        let number = self.core.calls.number();
        self.outlet.call_device(DeviceId(device.id), number, &call)?;
        let expires_ms = call.expires_ms.saturating_add(ANSWER_GRACE_MS);
        self.core.calls.insert(number, tenant, then, expires_ms);
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

    fn nodes_took(&mut self, took: Duration) {
        self.budget.nodes_took(took);
    }

    fn script_refusal(&mut self, originator: EntityId) -> Option<&'static str> {
        if !self.budget.has_time_for_scripts() {
            return Some("scripts have taken too long of this message: none is run for it any more");
        }
        let tenant = self.limited_tenant(originator);
        if tenant.is_some_and(|tenant| self.is_off(tenant, ApiFeature::Scripts)) {
            return Some("JS Execution is disabled due to API limits!");
        }
        if self.core.slow_scripts.is_empty() {
            return None;
        }
        let tenant = self.tenant_of(originator);
        let is_over = self.core.slow_scripts.have_had_their_share(tenant, Instant::now());
        is_over.then_some("slow scripts of this tenant took half of the time of all: none is run for a second")
    }

    fn script_took(&mut self, originator: EntityId, took: Duration) {
        let before = self.budget.script_took(took);
        if let Some(slow) = slow(before, took)
            && self.core.roots.len() > 1
        {
            let tenant = self.tenant_of(originator);
            self.core.slow_scripts.add(tenant, slow, Instant::now());
        }
    }

    fn log(&mut self, chain: RuleChainId, node: &str, text: &str) {
        if !self.is_replay {
            self.outlet.log(chain, node, text);
        }
    }

    fn send(&mut self, outbound: Outbound, within_ms: i64, then: Continuation) -> Result<(), NodeError> {
        if self.is_replay {
            return Ok(());
        }
        let tenant = self.tenant_of(then.message.originator);
        if !self.core.calls.has_room(tenant, &then) {
            self.core.stats.dropped_calls_total += 1;
            return Err(NodeError::new("too many messages wait for what other systems say"));
        }
        let number = self.core.calls.number();
        self.outlet.send(tenant, number, outbound)?;
        let kept = match self.waiting {
            Some(waiting) => Stored::InItsQueue(waiting),
            None => Stored::Alone(self.keep_alone(tenant, &then)),
        };
        let expires_ms = self.now_ms.saturating_add(within_ms).saturating_add(ANSWER_GRACE_MS);
        self.core.calls.insert_outside(number, tenant, then, expires_ms, kept);
        self.under_way += usize::from(self.waiting.is_some());
        Ok(())
    }

    fn keeps_failed(&self) -> bool {
        self.keeps_failed
    }

    fn keep_failed(&mut self, bytes: usize) -> bool {
        self.budget.keep(bytes)
    }

    fn enqueue(&mut self, queue: &str, then: Continuation) -> Result<(), NodeError> {
        let tenant = self.tenant_of(then.message.originator);
        self.put_aside(tenant, Aside::Behind(queue.into(), then))
    }

    fn debug(&mut self, event: &DebugEvent<'_>) {
        if !self.is_replay {
            let tenant = self.tenant_of(event.message.originator);
            self.outlet.debug(tenant, event);
        }
    }
}
