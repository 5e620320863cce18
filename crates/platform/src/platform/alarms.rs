//! Alarms in message processing: applies a profile's alarm rules to messages, and applies users' changes of alarms.

use std::cell::RefCell;
use std::sync::Arc;

use timeseries::PointValue;

use super::host::PlatformCall;
use super::pending::PendingWrites;
use super::{DeviceAlarms, DeviceState, OwnerValues, Platform, PlatformOutlet};
use crate::activity::Activity;
use crate::alarm_rules::{
    AlarmEffect, AlarmRuleContext, AlarmRuleEvent, AlarmRuleKey, AlarmRules, AlarmRulesState, AlarmTransition,
    DynamicSource, KeySource, OwnerAttributeSource,
};
use crate::chain::{ChainMessage, MessageData, NodeError, POST_ATTRIBUTES, POST_TELEMETRY};
use crate::decode::{Telemetry, attributes};
use crate::entities::EntityError;
use crate::ids::{AlarmId, CustomerId, DeviceId, EntityId, EntityType, TenantId, UserId, Uuid};
use crate::limits::ApiFeature;
use crate::model::{Alarm, AttributeScope, Device};
use crate::repository::{RelationSelection, RepositoryChange, RepositoryError, StateKind};
use crate::usage::UsageCounter;

/// Entities that show one alarm.
const PROPAGATED_MAX: usize = 1000;

/// Error for a new alarm after the tenant's monthly alarm quota is used up. ThingsBoard's text.
pub(super) const ALARMS_OFF: &str = "Alarms creation is disabled";

/// A user's change of an alarm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AlarmChange {
    Acknowledge,
    Clear,
    /// `None` removes the assignee.
    Assign(Option<UserId>),
}

impl Platform {
    /// Applies a change and returns the alarm. A change that was already made is not repeated.
    pub fn change_alarm(
        &self,
        id: AlarmId,
        change: AlarmChange,
        now_ms: i64,
        outlet: &mut dyn PlatformOutlet,
    ) -> Result<Alarm, EntityError> {
        let mut core = self.core();
        let mut visit = PlatformCall::new(self, &mut core, outlet, now_ms);
        let mut alarm = visit.stored_alarm(id)?.ok_or(EntityError::NotFound)?;
        let (action, event) = match change {
            AlarmChange::Acknowledge if !alarm.acknowledged => {
                (alarm.acknowledged, alarm.ack_ts) = (true, now_ms);
                (
                    AlarmTransition::Updated,
                    Some(AlarmRuleEvent::AlarmAcknowledged { id, at_ms: now_ms }),
                )
            }
            AlarmChange::Clear if !alarm.cleared => {
                (alarm.cleared, alarm.clear_ts) = (true, now_ms);
                (AlarmTransition::Cleared, Some(AlarmRuleEvent::AlarmEnded(id)))
            }
            AlarmChange::Assign(user) if alarm.assignee_id != user => {
                (alarm.assignee_id, alarm.assign_ts) = (user, now_ms);
                (AlarmTransition::Updated, None)
            }
            _ => return Ok(alarm),
        };
        visit.store_alarm_now(action, &alarm)?;
        match event {
            Some(event) => visit.apply_event_now(alarm.originator, event),
            None => visit.update_rules_copy_now(&alarm),
        }
        Ok(alarm)
    }

    /// Creates or changes an alarm for a user. If the originator has an active alarm of this type, changes that one.
    pub fn save_alarm(&self, alarm: Alarm, now_ms: i64, outlet: &mut dyn PlatformOutlet) -> Result<Alarm, EntityError> {
        let mut core = self.core();
        let mut visit = PlatformCall::new(self, &mut core, outlet, now_ms);
        let stored = match alarm.id {
            Some(id) => Some(visit.stored_alarm(id)?.ok_or(EntityError::NotFound)?),
            None => visit.active_alarm_of(alarm.originator, &alarm.kind)?,
        };
        let was_active = stored.as_ref().is_some_and(|stored| !stored.cleared);
        let (action, alarm) = match stored {
            Some(stored) if was_active && alarm.cleared => {
                (AlarmTransition::Cleared, changed_by_user(stored, alarm, now_ms))
            }
            Some(stored) => (AlarmTransition::Updated, changed_by_user(stored, alarm, now_ms)),
            None if visit.is_off(alarm.tenant_id, ApiFeature::Alarms) => {
                return Err(EntityError::invalid(ALARMS_OFF));
            }
            None => (AlarmTransition::Created, self.created_by_user(alarm, now_ms)),
        };
        visit.store_alarm_now(action, &alarm)?;
        if action == AlarmTransition::Created {
            visit.count_alarm(alarm.tenant_id);
        }
        visit.update_rules_copy_now(&alarm);
        Ok(alarm)
    }

    fn created_by_user(&self, alarm: Alarm, now_ms: i64) -> Alarm {
        let id = self.entities.new_id(now_ms);
        let start_ts = if alarm.start_ts > 0 { alarm.start_ts } else { now_ms };
        Alarm {
            id: Some(AlarmId(id)),
            created_time: id.created_ms(),
            start_ts,
            end_ts: alarm.end_ts.max(start_ts),
            ack_ts: if alarm.acknowledged { now_ms } else { 0 },
            clear_ts: if alarm.cleared { now_ms } else { 0 },
            ..alarm
        }
    }

    pub fn delete_alarm(
        &self,
        id: AlarmId,
        now_ms: i64,
        outlet: &mut dyn PlatformOutlet,
    ) -> Result<Alarm, EntityError> {
        let mut core = self.core();
        let mut visit = PlatformCall::new(self, &mut core, outlet, now_ms);
        let alarm = visit.stored_alarm(id)?.ok_or(EntityError::NotFound)?;
        visit.store_separately(|pending| pending.push_change(RepositoryChange::DeleteAlarm(id)))?;
        visit.apply_event_now(alarm.originator, AlarmRuleEvent::AlarmEnded(id));
        Ok(alarm)
    }
}

/// Acknowledged and cleared are never reset. A missing assignee removes the current one, as in ThingsBoard.
fn changed_by_user(stored: Alarm, wanted: Alarm, now_ms: i64) -> Alarm {
    let is_new = |now: bool, before: bool| now && !before;
    Alarm {
        severity: wanted.severity,
        details: wanted.details,
        propagate: wanted.propagate,
        propagate_to_owner: wanted.propagate_to_owner,
        propagate_to_tenant: wanted.propagate_to_tenant,
        propagate_relation_types: wanted.propagate_relation_types,
        assignee_id: wanted.assignee_id,
        assign_ts: if wanted.assignee_id == stored.assignee_id {
            stored.assign_ts
        } else {
            now_ms
        },
        end_ts: if wanted.end_ts > 0 { wanted.end_ts } else { now_ms }.max(stored.start_ts),
        ack_ts: if is_new(wanted.acknowledged, stored.acknowledged) {
            now_ms
        } else {
            stored.ack_ts
        },
        clear_ts: if is_new(wanted.cleared, stored.cleared) {
            now_ms
        } else {
            stored.clear_ts
        },
        acknowledged: wanted.acknowledged || stored.acknowledged,
        cleared: wanted.cleared || stored.cleared,
        ..stored
    }
}

/// Server attributes of the device's owners, with a cache.
struct DeviceOwners<'a> {
    platform: &'a Platform,
    pending: &'a PendingWrites,
    known: RefCell<&'a mut OwnerValues>,
    customer: CustomerId,
    tenant: TenantId,
}

/// Largest number of cached owner attributes.
const OWNER_VALUES_MAX: usize = 100_000;

impl OwnerAttributeSource for DeviceOwners<'_> {
    fn attribute(&self, source: DynamicSource, name: &str) -> Option<PointValue> {
        let owner = match source {
            DynamicSource::Customer => self.customer.0,
            DynamicSource::Tenant => self.tenant.0,
        };
        if owner.is_null() {
            return None;
        }
        let key = (owner, Box::from(name));
        let mut known = self.known.borrow_mut();
        if let Some(value) = known.get(&key) {
            return value.clone();
        }
        // Not cached: the change may fail to be stored, and it has already removed the owner's cached values.
        if let Some(changed) = self.pending.attribute(owner, AttributeScope::ServerScope, name) {
            return changed.map(|attribute| attribute.value.clone());
        }
        let repository = self.platform.entities.repository();
        let found = repository
            .attributes(owner, AttributeScope::ServerScope, Some(&[name]))
            .ok()?;
        let value = found.into_iter().next().map(|attribute| attribute.value);
        if known.len() >= OWNER_VALUES_MAX {
            known.clear();
        }
        known.insert(key, value.clone());
        value
    }
}

impl PlatformCall<'_> {
    /// Applies the alarm rules of the originator's profile to a message. Alarms are stored with the batch.
    pub fn apply_rules(&mut self, message: &ChainMessage<'_>) -> Result<Vec<AlarmEffect>, NodeError> {
        if self.is_replay || message.originator.kind != EntityType::Device {
            return Ok(Vec::new());
        }
        let text;
        let mut effects = Vec::new();
        let decode_error = |error: crate::decode::PayloadDecodeError| NodeError::new(error.to_string());
        match (&*message.kind, &message.data) {
            (POST_TELEMETRY, MessageData::Values(values)) => {
                let event = AlarmRuleEvent::Telemetry {
                    ts_ms: message.data_ts_ms(),
                    values,
                };
                effects = self.rules_effects(message.originator, event)?;
            }
            (POST_TELEMETRY, MessageData::Json(json)) => {
                text = json.to_string();
                let limits = self.platform.options.limits;
                let telemetry =
                    Telemetry::decode(text.as_bytes(), message.data_ts_ms(), &limits).map_err(decode_error)?;
                let mut groups: Vec<_> = telemetry.groups().collect();
                groups.sort_by_key(|(ts_ms, _)| *ts_ms);
                for (ts_ms, values) in groups {
                    effects
                        .extend(self.rules_effects(message.originator, AlarmRuleEvent::Telemetry { ts_ms, values })?);
                }
            }
            (POST_ATTRIBUTES | "ATTRIBUTES_UPDATED" | "ACTIVITY_EVENT" | "INACTIVITY_EVENT", data) => {
                let owned;
                let values = match data {
                    MessageData::Values(values) => *values,
                    MessageData::Json(json) => {
                        text = json.to_string();
                        owned = attributes(text.as_bytes(), &self.platform.options.limits).map_err(decode_error)?;
                        &owned
                    }
                };
                effects = self.rules_effects(message.originator, AlarmRuleEvent::Attributes { values })?;
            }
            _ => {}
        }
        Ok(effects)
    }

    /// Applies the rules to an event without a message, such as a user's action or elapsed time. The effects go to
    /// subscribers, but not along a chain.
    pub fn apply_event(
        &mut self,
        originator: EntityId,
        event: AlarmRuleEvent<'_>,
    ) -> Result<Vec<AlarmEffect>, NodeError> {
        if originator.kind != EntityType::Device {
            return Ok(Vec::new());
        }
        self.rules_effects(originator, event)
    }

    fn rules_effects(
        &mut self,
        originator: EntityId,
        event: AlarmRuleEvent<'_>,
    ) -> Result<Vec<AlarmEffect>, NodeError> {
        let device = DeviceId(originator.id);
        let Some(mut alarms) = self.device_alarms(device)? else {
            return Ok(Vec::new());
        };
        let entry = self.platform.entities.directory().device(device).cloned();
        let Some(entry) = entry else { return Ok(Vec::new()) };
        let had_counters = alarms.state.has_counters();
        let are_off = self.core.is_off(entry.tenant, ApiFeature::Alarms);
        let mut effects = Vec::new();
        {
            let owners = DeviceOwners {
                platform: self.platform,
                pending: &self.core.pending,
                known: RefCell::new(&mut self.core.owner_values),
                customer: entry.customer,
                tenant: entry.tenant,
            };
            let now_ms = self.now_ms;
            let new_id = || AlarmId(self.platform.entities.new_id(now_ms));
            let context = AlarmRuleContext {
                tenant: entry.tenant,
                customer: entry.customer,
                device,
                now_ms,
                new_id: &new_id,
                lookup: &owners,
            };
            let DeviceAlarms { rules, state } = &mut *alarms;
            state.handle(rules, event, &context, &mut effects);
            if are_off {
                // The rule starts over, as if the alarm had been deleted.
                let refused = effects.extract_if(.., |effect| effect.action == AlarmTransition::Created);
                for refused in refused.collect::<Vec<_>>() {
                    let id = refused.alarm.id.unwrap_or_default();
                    state.handle(rules, AlarmRuleEvent::AlarmEnded(id), &context, &mut effects);
                    self.outlet.failed(originator, "alarm rules", ALARMS_OFF);
                }
            }
        }
        if had_counters || alarms.state.has_counters() {
            self.core.changed_counters.insert(device);
        }
        self.device_state(device).alarms = Some(alarms);
        for effect in &effects {
            if effect.action == AlarmTransition::Created {
                self.count_alarm(entry.tenant);
            }
            self.store_alarm(effect.action, &effect.alarm)?;
        }
        Ok(effects)
    }

    /// Takes the alarm state out of the device's state. Creates it with the current rules if there is none.
    pub fn device_alarms(&mut self, device: DeviceId) -> Result<Option<Box<DeviceAlarms>>, NodeError> {
        let Some(rules) = self.rules_of(device) else {
            return Ok(None);
        };
        let known = self.device_state(device).alarms.take();
        match known {
            Some(known) if Arc::ptr_eq(&known.rules, &rules) => Ok(Some(known)),
            _ if rules.is_empty() => Ok(None),
            Some(known) => {
                let counters = known.state.counters(&known.rules);
                self.new_alarms(device, rules, Some(counters), known.state.active_alarms())
                    .map(Some)
            }
            None => {
                let repository = self.platform.entities.repository();
                let counters = repository.state(StateKind::AlarmRules, device.0).map_err(Box::new)?;
                self.new_alarms(device, rules, counters, std::iter::empty()).map(Some)
            }
        }
    }

    pub fn rules_of(&mut self, device: DeviceId) -> Option<Arc<AlarmRules>> {
        let directory = self.platform.entities.directory();
        let id = directory.device(device)?.profile;
        if let Some(rules) = self.core.rules.get(&id) {
            return Some(Arc::clone(rules));
        }
        // Saving a profile rejects rules that cannot be parsed.
        let rules = Arc::new(AlarmRules::parse(directory.profile(id)?.alarms()).ok()?);
        self.core.rules.insert(id, Arc::clone(&rules));
        Some(rules)
    }

    fn new_alarms<'s>(
        &self,
        device: DeviceId,
        rules: Arc<AlarmRules>,
        counters: Option<Vec<u8>>,
        active: impl Iterator<Item = &'s Alarm>,
    ) -> Result<Box<DeviceAlarms>, NodeError> {
        let mut state = AlarmRulesState::new(&rules, |key| self.known_value(device, key));
        for kind in rules.kinds() {
            if let Some(alarm) = self.active_alarm_of(device.entity(), kind)? {
                state.restore_alarm(&rules, alarm);
            }
        }
        for alarm in active {
            state.restore_alarm(&rules, alarm.clone());
        }
        if let Some(counters) = counters {
            state.restore_counters(&rules, &counters);
        }
        Ok(Box::new(DeviceAlarms { rules, state }))
    }

    /// The stored value of a rule's key, used before the first message.
    fn known_value(&self, device: DeviceId, key: &AlarmRuleKey) -> Option<PointValue> {
        match key.source {
            KeySource::TimeSeries => {
                let latest = self.platform.store.latest(device.0.into(), &[&*key.name]).ok()?;
                latest.into_iter().next().flatten().map(|latest| latest.value)
            }
            KeySource::Attribute => {
                let repository = self.platform.entities.repository();
                let in_scope = |scope| {
                    repository
                        .attributes(device.0, scope, Some(&[&*key.name]))
                        .unwrap_or_default()
                };
                let all = AttributeScope::ALL.into_iter().flat_map(in_scope);
                all.max_by_key(|attribute| attribute.last_update_ms)
                    .map(|attribute| attribute.value)
            }
            KeySource::Field => {
                let device: Device = self.platform.entities.find(device.0).ok()??;
                let text = match &*key.name {
                    "name" => device.name,
                    "type" => device.kind,
                    "label" => device.label?,
                    _ => return None,
                };
                Some(PointValue::String(text.into()))
            }
        }
    }

    pub fn device_state(&mut self, device: DeviceId) -> &mut DeviceState {
        self.core.devices.entry(device).or_default()
    }

    /// The activity of a device. Loads the timeout that a user set, on first use.
    pub fn activity(&mut self, device: DeviceId) -> &mut Activity {
        if !self.core.devices.contains_key(&device) {
            let timeout_ms = self.stored_timeout(device);
            self.device_state(device).activity.timeout_ms = timeout_ms;
        }
        &mut self.device_state(device).activity
    }

    /// Counts a newly created alarm.
    pub fn count_alarm(&mut self, tenant: TenantId) {
        self.core.stats.alarms_created_total += 1;
        self.core.usage.add(tenant, UsageCounter::CreatedAlarms, 1, self.now_ms);
    }

    pub fn store_alarm(&mut self, action: AlarmTransition, alarm: &Alarm) -> Result<(), NodeError> {
        let propagated_to = self.newly_propagated_to(action, alarm)?;
        self.core.pending.push_alarm(alarm, propagated_to);
        self.outlet.alarm(action, alarm);
        Ok(())
    }

    /// As [`PlatformCall::store_alarm`], but stores the alarm before subscribers are notified.
    fn store_alarm_now(&mut self, action: AlarmTransition, alarm: &Alarm) -> Result<(), EntityError> {
        let propagated_to = self.newly_propagated_to(action, alarm)?;
        self.store_separately(|pending| pending.push_alarm(alarm, propagated_to))?;
        self.outlet.alarm(action, alarm);
        Ok(())
    }

    /// Stores a user's change separately from pending changes. After an error nothing of it is stored, now or later.
    fn store_separately(&mut self, push: impl FnOnce(&mut PendingWrites)) -> Result<(), RepositoryError> {
        if self.core.pending.has_changes() {
            self.platform.apply_pending(self.core)?;
        }
        push(&mut self.core.pending);
        let applied = self.platform.apply_pending(self.core);
        if applied.is_err() {
            self.core.pending.take_changes();
        }
        applied
    }

    fn apply_event_now(&mut self, originator: EntityId, event: AlarmRuleEvent<'_>) {
        let applied = self.apply_event(originator, event).map(drop);
        self.store_rule_changes(originator, applied);
    }

    /// Updates the rules' copy of the alarm, which the rules store when they fire again.
    fn update_rules_copy_now(&mut self, alarm: &Alarm) {
        let updated = self.update_rules_copy(alarm);
        self.store_rule_changes(alarm.originator, updated);
    }

    /// Stores the rules' changes after a user's action. If that fails, they are stored with the next batch.
    fn store_rule_changes(&mut self, originator: EntityId, result: Result<(), NodeError>) {
        let result = result.map_err(EntityError::from);
        let stored = result.and_then(|()| Ok(self.platform.apply_pending(self.core)?));
        if let Err(error) = stored {
            self.outlet.failed(originator, "alarm rules", &error.to_string());
        }
    }

    /// Entities to which the alarm must be propagated now: searched when it is created or its propagation settings
    /// change. Earlier ones continue to show the alarm.
    fn newly_propagated_to(&self, action: AlarmTransition, alarm: &Alarm) -> Result<Vec<Uuid>, NodeError> {
        if action != AlarmTransition::Created && alarm.propagate {
            let stored = self.stored_alarm(alarm.id.unwrap_or_default())?;
            if stored.is_some_and(|stored| has_same_propagation(&stored, alarm)) {
                return Ok(Vec::new());
            }
        }
        self.propagated_to(alarm)
    }

    /// Entities besides the originator that show the alarm.
    fn propagated_to(&self, alarm: &Alarm) -> Result<Vec<Uuid>, NodeError> {
        let mut all = Vec::new();
        if alarm.propagate_to_tenant {
            all.push(alarm.tenant_id.0);
        }
        if alarm.propagate_to_owner {
            let customer = alarm.customer_id.unwrap_or_default();
            all.push(if customer == CustomerId::NULL {
                alarm.tenant_id.0
            } else {
                customer.0
            });
        }
        if alarm.propagate {
            self.add_parents(alarm, &mut all)?;
        }
        Ok(all)
    }

    /// Adds all ancestors of the originator, following relations over all levels.
    fn add_parents(&self, alarm: &Alarm, all: &mut Vec<Uuid>) -> Result<(), NodeError> {
        let types = alarm.propagate_relation_types.as_deref().unwrap_or_default();
        let mut open = vec![alarm.originator];
        while let Some(to) = open.pop() {
            let selection = RelationSelection {
                to: Some(to),
                ..RelationSelection::default()
            };
            let relations = self
                .platform
                .entities
                .repository()
                .relations(&selection)
                .map_err(Box::new)?;
            for relation in relations {
                let is_wanted = types.is_empty() || types.contains(&relation.kind);
                if is_wanted && !all.contains(&relation.from.id) && all.len() < PROPAGATED_MAX {
                    all.push(relation.from.id);
                    open.push(relation.from);
                }
            }
        }
        Ok(())
    }
}

fn has_same_propagation(a: &Alarm, b: &Alarm) -> bool {
    let ways = |alarm: &Alarm| {
        (
            alarm.propagate,
            alarm.propagate_to_owner,
            alarm.propagate_to_tenant,
            alarm.customer_id,
        )
    };
    let types = |alarm: &Alarm| alarm.propagate_relation_types.clone().unwrap_or_default();
    ways(a) == ways(b) && types(a) == types(b)
}

impl From<NodeError> for EntityError {
    fn from(error: NodeError) -> EntityError {
        EntityError::invalid(error.0)
    }
}
