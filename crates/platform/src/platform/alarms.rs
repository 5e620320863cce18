//! Alarms at work: rules of a device's profile told of a message, and what users do to alarms.

use std::cell::RefCell;
use std::sync::Arc;

use timeseries::Value;

use super::host::Visit;
use super::pending::Pending;
use super::{DeviceAlarms, DeviceState, Outlet, OwnerValues, Platform};
use crate::activity::Activity;
use crate::alarm_rules::{Action, Context, DynamicSource, Effect, Event, Key, KeySource, Lookup, Rules, State};
use crate::chain::{Data, Message, NodeError, POST_ATTRIBUTES, POST_TELEMETRY};
use crate::decode::{Telemetry, attributes};
use crate::entities::EntityError;
use crate::ids::{AlarmId, CustomerId, DeviceId, EntityId, EntityType, TenantId, UserId, Uuid};
use crate::limits::ApiFeature;
use crate::model::{Alarm, Device, Scope};
use crate::repository::{Change, RelationSelection, RepositoryError, StateKind};
use crate::usage::Counter;

/// Entities that show one alarm.
const PROPAGATED_MAX: usize = 1000;

/// A new alarm of a tenant that has had all of this month.
pub(super) const ALARMS_OFF: &str = "Alarms creation is disabled";

/// What a user does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AlarmChange {
    Acknowledge,
    Clear,
    /// `None`: to nobody.
    Assign(Option<UserId>),
}

impl Platform {
    /// The alarm as it is then; what was done already stays as it was done.
    pub fn change_alarm(
        &self,
        id: AlarmId,
        change: AlarmChange,
        now_ms: i64,
        outlet: &mut dyn Outlet,
    ) -> Result<Alarm, EntityError> {
        let mut core = self.core();
        let mut visit = Visit::new(self, &mut core, outlet, now_ms);
        let mut alarm = visit.stored_alarm(id)?.ok_or(EntityError::NotFound)?;
        let (action, event) = match change {
            AlarmChange::Acknowledge if !alarm.acknowledged => {
                (alarm.acknowledged, alarm.ack_ts) = (true, now_ms);
                (Action::Updated, Some(Event::AlarmAcknowledged { id, at_ms: now_ms }))
            }
            AlarmChange::Clear if !alarm.cleared => {
                (alarm.cleared, alarm.clear_ts) = (true, now_ms);
                (Action::Cleared, Some(Event::AlarmEnded(id)))
            }
            AlarmChange::Assign(user) if alarm.assignee_id != user => {
                (alarm.assignee_id, alarm.assign_ts) = (user, now_ms);
                (Action::Updated, None)
            }
            _ => return Ok(alarm),
        };
        visit.store_alarm_now(action, &alarm)?;
        match event {
            Some(event) => visit.tell_rules_now(alarm.originator, event),
            None => visit.tell_rules_of_now(&alarm),
        }
        Ok(alarm)
    }

    /// As a user does. A new one of a type that the originator has already, not cleared, changes that one.
    pub fn save_alarm(&self, alarm: Alarm, now_ms: i64, outlet: &mut dyn Outlet) -> Result<Alarm, EntityError> {
        let mut core = self.core();
        let mut visit = Visit::new(self, &mut core, outlet, now_ms);
        let stored = match alarm.id {
            Some(id) => Some(visit.stored_alarm(id)?.ok_or(EntityError::NotFound)?),
            None => visit.active_alarm_of(alarm.originator, &alarm.kind)?,
        };
        let was_active = stored.as_ref().is_some_and(|stored| !stored.cleared);
        let (action, alarm) = match stored {
            Some(stored) if was_active && alarm.cleared => (Action::Cleared, changed_by_user(stored, alarm, now_ms)),
            Some(stored) => (Action::Updated, changed_by_user(stored, alarm, now_ms)),
            None if visit.is_off(alarm.tenant_id, ApiFeature::Alarms) => {
                return Err(EntityError::invalid(ALARMS_OFF));
            }
            None => (Action::Created, self.created_by_user(alarm, now_ms)),
        };
        visit.store_alarm_now(action, &alarm)?;
        if action == Action::Created {
            visit.count_alarm(alarm.tenant_id);
        }
        visit.tell_rules_of_now(&alarm);
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

    pub fn delete_alarm(&self, id: AlarmId, now_ms: i64, outlet: &mut dyn Outlet) -> Result<Alarm, EntityError> {
        let mut core = self.core();
        let mut visit = Visit::new(self, &mut core, outlet, now_ms);
        let alarm = visit.stored_alarm(id)?.ok_or(EntityError::NotFound)?;
        visit.apply_now(|pending| pending.push_change(Change::DeleteAlarm(id)))?;
        visit.tell_rules_now(alarm.originator, Event::AlarmEnded(id));
        Ok(alarm)
    }
}

/// Acknowledged and cleared stay as they are once they are true. Who says no assignee takes it from the one it has, as at ThingsBoard.
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

/// Server attributes of owners, as far as they were asked for before.
struct Owners<'a> {
    platform: &'a Platform,
    pending: &'a Pending,
    known: RefCell<&'a mut OwnerValues>,
    customer: CustomerId,
    tenant: TenantId,
}

/// Values of owners that are remembered.
const OWNER_VALUES_MAX: usize = 100_000;

impl Lookup for Owners<'_> {
    fn attribute(&self, source: DynamicSource, name: &str) -> Option<Value> {
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
        // Not remembered: who changes it made the owner forgotten, and the change may not come to be stored.
        if let Some(changed) = self.pending.attribute(owner, Scope::ServerScope, name) {
            return changed.map(|attribute| attribute.value.clone());
        }
        let repository = self.platform.entities.repository();
        let found = repository.attributes(owner, Scope::ServerScope, Some(&[name])).ok()?;
        let value = found.into_iter().next().map(|attribute| attribute.value);
        if known.len() >= OWNER_VALUES_MAX {
            known.clear();
        }
        known.insert(key, value.clone());
        value
    }
}

impl Visit<'_> {
    /// Rules of the originator's profile, told of a message; alarms are stored with the batch.
    pub fn apply_rules(&mut self, message: &Message<'_>) -> Result<Vec<Effect>, NodeError> {
        if self.is_replay || message.originator.kind != EntityType::Device {
            return Ok(Vec::new());
        }
        let text;
        let mut effects = Vec::new();
        let wrong = |error: crate::decode::DecodeError| NodeError::new(error.to_string());
        match (&*message.kind, &message.data) {
            (POST_TELEMETRY, Data::Values(values)) => {
                let event = Event::Telemetry {
                    ts_ms: message.data_ts_ms(),
                    values,
                };
                effects = self.rules_effects(message.originator, event)?;
            }
            (POST_TELEMETRY, Data::Json(json)) => {
                text = json.to_string();
                let limits = self.platform.options.limits;
                let telemetry = Telemetry::decode(text.as_bytes(), message.data_ts_ms(), &limits).map_err(wrong)?;
                let mut groups: Vec<_> = telemetry.groups().collect();
                groups.sort_by_key(|(ts_ms, _)| *ts_ms);
                for (ts_ms, values) in groups {
                    effects.extend(self.rules_effects(message.originator, Event::Telemetry { ts_ms, values })?);
                }
            }
            (POST_ATTRIBUTES | "ATTRIBUTES_UPDATED" | "ACTIVITY_EVENT" | "INACTIVITY_EVENT", data) => {
                let owned;
                let values = match data {
                    Data::Values(values) => *values,
                    Data::Json(json) => {
                        text = json.to_string();
                        owned = attributes(text.as_bytes(), &self.platform.options.limits).map_err(wrong)?;
                        &owned
                    }
                };
                effects = self.rules_effects(message.originator, Event::Attributes { values })?;
            }
            _ => {}
        }
        Ok(effects)
    }

    /// What a user did, or time: effects go to subscribers, but along no chain.
    pub fn tell_rules(&mut self, originator: EntityId, event: Event<'_>) -> Result<Vec<Effect>, NodeError> {
        if originator.kind != EntityType::Device {
            return Ok(Vec::new());
        }
        self.rules_effects(originator, event)
    }

    fn rules_effects(&mut self, originator: EntityId, event: Event<'_>) -> Result<Vec<Effect>, NodeError> {
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
            let owners = Owners {
                platform: self.platform,
                pending: &self.core.pending,
                known: RefCell::new(&mut self.core.owner_values),
                customer: entry.customer,
                tenant: entry.tenant,
            };
            let now_ms = self.now_ms;
            let new_id = || AlarmId(self.platform.entities.new_id(now_ms));
            let context = Context {
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
                // The rule begins anew, as if the alarm had been deleted.
                let refused = effects.extract_if(.., |effect| effect.action == Action::Created);
                for refused in refused.collect::<Vec<_>>() {
                    let id = refused.alarm.id.unwrap_or_default();
                    state.handle(rules, Event::AlarmEnded(id), &context, &mut effects);
                    self.outlet.failed(originator, "alarm rules", ALARMS_OFF);
                }
            }
        }
        if had_counters || alarms.state.has_counters() {
            self.core.changed_counters.insert(device);
        }
        self.device_state(device).alarms = Some(alarms);
        for effect in &effects {
            if effect.action == Action::Created {
                self.count_alarm(entry.tenant);
            }
            self.store_alarm(effect.action, &effect.alarm)?;
        }
        Ok(effects)
    }

    /// Taken out of the device's state; made if it has none, with the rules as they are now.
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

    pub fn rules_of(&mut self, device: DeviceId) -> Option<Arc<Rules>> {
        let directory = self.platform.entities.directory();
        let id = directory.device(device)?.profile;
        if let Some(rules) = self.core.rules.get(&id) {
            return Some(Arc::clone(rules));
        }
        // Saving a profile refuses what cannot be parsed.
        let rules = Arc::new(Rules::parse(directory.profile(id)?.alarms()).ok()?);
        self.core.rules.insert(id, Arc::clone(&rules));
        Some(rules)
    }

    fn new_alarms<'s>(
        &self,
        device: DeviceId,
        rules: Arc<Rules>,
        counters: Option<Vec<u8>>,
        active: impl Iterator<Item = &'s Alarm>,
    ) -> Result<Box<DeviceAlarms>, NodeError> {
        let mut state = State::new(&rules, |key| self.known_value(device, key));
        for kind in rules.kinds() {
            if let Some(alarm) = self.active_alarm_of(device.entity(), kind)? {
                state.adopt(&rules, alarm);
            }
        }
        for alarm in active {
            state.adopt(&rules, alarm.clone());
        }
        if let Some(counters) = counters {
            state.restore_counters(&rules, &counters);
        }
        Ok(Box::new(DeviceAlarms { rules, state }))
    }

    /// What a rule's key is before any message.
    fn known_value(&self, device: DeviceId, key: &Key) -> Option<Value> {
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
                let all = Scope::ALL.into_iter().flat_map(in_scope);
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
                Some(Value::String(text.into()))
            }
        }
    }

    pub fn device_state(&mut self, device: DeviceId) -> &mut DeviceState {
        self.core.devices.entry(device).or_default()
    }

    /// With the timeout that a user gave the device, when it is first met.
    pub fn activity(&mut self, device: DeviceId) -> &mut Activity {
        if !self.core.devices.contains_key(&device) {
            let timeout_ms = self.stored_timeout(device);
            self.device_state(device).activity.timeout_ms = timeout_ms;
        }
        &mut self.device_state(device).activity
    }

    /// One that was not there before, whoever made it.
    pub fn count_alarm(&mut self, tenant: TenantId) {
        self.core.stats.alarms_created_total += 1;
        self.core.usage.add(tenant, Counter::CreatedAlarms, 1, self.now_ms);
    }

    pub fn store_alarm(&mut self, action: Action, alarm: &Alarm) -> Result<(), NodeError> {
        let propagated_to = self.newly_propagated_to(action, alarm)?;
        self.core.pending.push_alarm(alarm, propagated_to);
        self.outlet.alarm(action, alarm);
        Ok(())
    }

    /// As [`Visit::store_alarm`], before anybody is told.
    fn store_alarm_now(&mut self, action: Action, alarm: &Alarm) -> Result<(), EntityError> {
        let propagated_to = self.newly_propagated_to(action, alarm)?;
        self.apply_now(|pending| pending.push_alarm(alarm, propagated_to))?;
        self.outlet.alarm(action, alarm);
        Ok(())
    }

    /// What a user does, by itself: after an error nothing of it is done, then or later. What waits from before is no part of it.
    fn apply_now(&mut self, push: impl FnOnce(&mut Pending)) -> Result<(), RepositoryError> {
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

    fn tell_rules_now(&mut self, originator: EntityId, event: Event<'_>) {
        let told = self.tell_rules(originator, event).map(drop);
        self.store_told_now(originator, told);
    }

    /// They have their own copy of an active alarm, which they store when they fire again.
    fn tell_rules_of_now(&mut self, alarm: &Alarm) {
        let told = self.tell_rules_of(alarm);
        self.store_told_now(alarm.originator, told);
    }

    /// Of what a user has done. If what rules make of it cannot be stored now, it is with the next batch.
    fn store_told_now(&mut self, originator: EntityId, told: Result<(), NodeError>) {
        let told = told.map_err(EntityError::from);
        let stored = told.and_then(|()| Ok(self.platform.apply_pending(self.core)?));
        if let Err(error) = stored {
            self.outlet.failed(originator, "alarm rules", &error.to_string());
        }
    }

    /// Whoever has shown an alarm goes on to show it: they are looked for when it is made, and when it is propagated another way.
    fn newly_propagated_to(&self, action: Action, alarm: &Alarm) -> Result<Vec<Uuid>, NodeError> {
        if action != Action::Created && alarm.propagate {
            let stored = self.stored_alarm(alarm.id.unwrap_or_default())?;
            if stored.is_some_and(|stored| is_propagated_alike(&stored, alarm)) {
                return Ok(Vec::new());
            }
        }
        self.propagated_to(alarm)
    }

    /// Who shows the alarm beside its originator.
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

    /// Along relations that lead to the originator, over all levels.
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

fn is_propagated_alike(a: &Alarm, b: &Alarm) -> bool {
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
