//! Attributes as everyone sees them: those that are stored, those of the batch, and the activity of devices.

use std::collections::BTreeMap;

use timeseries::{EntityId as SeriesId, Position, Value};

use super::host::Visit;
use super::pending::Keeping;
use super::{Core, IngestError, News, Outlet, Platform};
use crate::activity::{Activity, KEYS, TIMEOUT_KEY};
use crate::alarm_rules::Event;
use crate::chain::{Data, NodeError};
use crate::decode::KeyValue;
use crate::entities::EntityError;
use crate::ids::{AlarmId, DeviceId, EntityId, EntityType};
use crate::model::{Attribute, Scope};
use crate::repository::{Change, StateKind};

/// What a user does to attributes.
#[derive(Clone, Copy, Debug)]
pub enum AttributesChange<'a> {
    Save(&'a [KeyValue<'a>]),
    Delete(&'a [String]),
}

impl Platform {
    /// In the order of their keys; all without `keys`.
    pub fn attributes(
        &self,
        entity: EntityId,
        scope: Scope,
        keys: Option<&[&str]>,
    ) -> Result<Vec<Attribute>, EntityError> {
        let mut found = self.entities.repository().attributes(entity.id, scope, keys)?;
        if entity.kind == EntityType::Device && scope == Scope::ServerScope {
            let core = self.core();
            let activity = self.activity_of(&core, DeviceId(entity.id));
            // Somebody may have saved some of the same name.
            found.retain(|stored| activity.is_none_or(|activity| activity.attribute(&stored.key).is_none()));
            let wanted = KEYS.iter().filter(|key| keys.is_none_or(|keys| keys.contains(*key)));
            found.extend(wanted.filter_map(|key| {
                let activity = activity?;
                Some(Attribute {
                    key: (*key).to_owned(),
                    value: activity.attribute(key)?,
                    last_update_ms: activity.changed_ms(entity.id.created_ms()),
                })
            }));
            found.sort_by(|a, b| a.key.cmp(&b.key));
        }
        Ok(found)
    }

    /// As a user does: stored when it returns; subscribers, the device and its rules are told.
    pub fn save_attributes(
        &self,
        entity: EntityId,
        scope: Scope,
        values: &[KeyValue<'_>],
        now_ms: i64,
        outlet: &mut dyn Outlet,
    ) -> Result<(), EntityError> {
        let mut core = self.core();
        let mut visit = Visit::new(self, &mut core, outlet, now_ms);
        visit.change_attributes(entity, scope, AttributesChange::Save(values))?;
        visit.drain_queue();
        Ok(self.apply_pending(&mut core)?)
    }

    pub fn delete_attributes(
        &self,
        entity: EntityId,
        scope: Scope,
        keys: &[String],
        now_ms: i64,
        outlet: &mut dyn Outlet,
    ) -> Result<(), EntityError> {
        let mut core = self.core();
        let mut visit = Visit::new(self, &mut core, outlet, now_ms);
        visit.change_attributes(entity, scope, AttributesChange::Delete(keys))?;
        visit.drain_queue();
        Ok(self.apply_pending(&mut core)?)
    }

    /// As a user did at `said_ms`, from the caller's log: behind all that is there before it, once, whatever is replayed. Stored when it
    /// returns; after an error it is called again.
    pub fn change_attributes(
        &self,
        entity: EntityId,
        (scope, change): (Scope, AttributesChange<'_>),
        (position, said_ms): (Position, i64),
        now_ms: i64,
        outlet: &mut dyn Outlet,
    ) -> Result<(), IngestError> {
        let mut core = self.core();
        self.write_pending(&mut core)?;
        self.look_at_limits(&mut core);
        let mut visit = Visit::new(self, &mut core, outlet, now_ms);
        visit.begin(position)?;
        visit.at = Some(position);
        visit.now_ms = said_ms;
        // It may have been deleted since the change was acknowledged: nothing is left of it then.
        if !self.is_gone(entity)
            && let Err(error) = visit.change_attributes(entity, scope, change)
        {
            visit.outlet.failed(entity, "", &error.0);
        }
        visit.now_ms = now_ms;
        visit.end(position);
        self.write_pending(&mut core)
    }

    fn is_gone(&self, entity: EntityId) -> bool {
        let repository = self.entities.repository();
        match entity.kind {
            EntityType::Device => self.entities.directory().device(DeviceId(entity.id)).is_none(),
            EntityType::Alarm => matches!(repository.alarm(AlarmId(entity.id)), Ok(None)),
            // A part of its chain, which is not stored by itself.
            EntityType::RuleNode => false,
            _ => matches!(repository.get(entity), Ok(None)),
        }
    }

    /// As a user does: telemetry of any entity, past the chains, as ThingsBoard's REST interface saves it. `ttl_s`: how long it is
    /// kept, 0: as the tenant's profile says.
    pub fn save_telemetry(
        &self,
        entity: EntityId,
        telemetry: &crate::decode::Telemetry<'_>,
        ttl_s: u32,
        (position, now_ms): (Position, i64),
        outlet: &mut dyn Outlet,
    ) -> Result<(), IngestError> {
        let mut core = self.core();
        self.write_pending(&mut core)?;
        self.look_at_limits(&mut core);
        let is_new = position > core.applied;
        let mut visit = Visit::new(self, &mut core, outlet, now_ms);
        let tenant = visit.tenant_of(entity);
        // What a tenant used is nothing that it uses.
        let is_counted = is_new && !matches!(entity.kind, EntityType::ApiUsageState | EntityType::QueueStats);
        let keeping = Keeping::for_seconds(ttl_s);
        for (ts_ms, values) in telemetry.groups() {
            for value in values {
                visit
                    .core
                    .pending
                    .push_point((tenant, entity.id), &value.key, ts_ms, value.value.clone(), keeping);
            }
            if is_counted {
                visit.count_stored(tenant, values, ttl_s.into());
            }
            visit.outlet.telemetry(entity, ts_ms, values);
        }
        core.processed_to(position);
        self.write_pending(&mut core)
    }
}

impl Visit<'_> {
    pub fn change_attributes(
        &mut self,
        entity: EntityId,
        scope: Scope,
        change: AttributesChange<'_>,
    ) -> Result<(), NodeError> {
        let is_told = scope == Scope::SharedScope;
        match change {
            AttributesChange::Save(values) => {
                let now_ms = self.now_ms;
                let attributes = values.iter().map(|value| Attribute {
                    key: value.key.to_string(),
                    value: value.value.clone(),
                    last_update_ms: now_ms,
                });
                let attributes: Vec<Attribute> = attributes.collect();
                if !self.is_replay {
                    self.put_attributes(entity, scope, &attributes, is_told)?;
                }
                self.tell_of_attributes(entity, "ATTRIBUTES_UPDATED", scope, Data::Values(values));
            }
            AttributesChange::Delete(keys) => {
                if !self.is_replay {
                    self.remove_attributes(entity, scope, keys, is_told)?;
                    let names: Vec<&str> = keys.iter().map(String::as_str).collect();
                    let effects = self.tell_rules(entity, Event::AttributesDeleted { keys: &names })?;
                    if let Ok(sender) = self.sender(DeviceId(entity.id)) {
                        self.run_effects(&sender, effects);
                    }
                }
                let data = serde_json::json!({"attributes": keys});
                self.tell_of_attributes(entity, "ATTRIBUTES_DELETED", scope, Data::Json(data));
            }
        }
        Ok(())
    }

    pub fn put_attributes(
        &mut self,
        entity: EntityId,
        scope: Scope,
        attributes: &[Attribute],
        notifies_device: bool,
    ) -> Result<(), NodeError> {
        for attribute in attributes {
            self.set_timeout(entity, scope, &attribute.key, Some(&attribute.value));
            self.core.pending.push_change(Change::PutAttribute {
                entity: entity.id,
                scope,
                attribute: attribute.clone(),
            });
        }
        self.forget_owner(entity);
        self.outlet.attributes(entity, scope, attributes, &[]);
        if notifies_device && entity.kind == EntityType::Device {
            self.outlet.attributes_to_device(DeviceId(entity.id), attributes, &[]);
        }
        Ok(())
    }

    pub fn remove_attributes(
        &mut self,
        entity: EntityId,
        scope: Scope,
        keys: &[String],
        notifies_device: bool,
    ) -> Result<(), NodeError> {
        for key in keys {
            self.set_timeout(entity, scope, key, None);
            self.core.pending.push_change(Change::DeleteAttribute {
                entity: entity.id,
                scope,
                key: key.clone(),
            });
        }
        self.forget_owner(entity);
        self.outlet.attributes(entity, scope, &[], keys);
        if notifies_device && entity.kind == EntityType::Device {
            self.outlet.attributes_to_device(DeviceId(entity.id), &[], keys);
        }
        Ok(())
    }

    /// Thresholds of alarm rules may come from it.
    fn forget_owner(&mut self, entity: EntityId) {
        if matches!(entity.kind, EntityType::Customer | EntityType::Tenant) {
            self.core.owner_values.retain(|(owner, _), _| *owner != entity.id);
        }
    }

    fn set_timeout(&mut self, entity: EntityId, scope: Scope, key: &str, value: Option<&Value>) {
        if entity.kind != EntityType::Device || scope != Scope::ServerScope || key != TIMEOUT_KEY {
            return;
        }
        let activity = self.activity(DeviceId(entity.id));
        activity.timeout_ms = value.map_or(0, millis);
        let bytes = Some(activity.to_bytes());
        // With the attribute, which is not looked at again: not at the next checkpoint.
        self.core.pending.push_change(Change::PutState {
            state: StateKind::Activity,
            id: entity.id,
            bytes,
        });
    }

    pub fn stored_timeout(&self, device: DeviceId) -> i64 {
        let repository = self.platform.entities.repository();
        let found = repository.attributes(device.0, Scope::ServerScope, Some(&[TIMEOUT_KEY]));
        found
            .ok()
            .and_then(|found| found.first().map(|attribute| millis(&attribute.value)))
            .unwrap_or(0)
    }

    /// A chain of the device, or the root chain, is told what a user changed.
    fn tell_of_attributes(&mut self, entity: EntityId, kind: &'static str, scope: Scope, data: Data<'_>) {
        if entity.kind != EntityType::Device {
            return self.tell(News {
                kind,
                entity,
                tenant: self.tenant_of(entity),
                metadata: vec![("scope", scope.name().to_owned())],
                data: data.into_json(),
            });
        }
        let Ok(sender) = self.sender(DeviceId(entity.id)) else {
            return;
        };
        let mut message = sender.message(kind, data, self.now_ms);
        message.metadata.put("scope", scope.name());
        self.run(&sender, message);
    }

    /// As it is with the changes of this batch; in the order of keys.
    pub fn known_attributes(
        &self,
        entity: EntityId,
        scope: Scope,
        keys: &[String],
    ) -> Result<Vec<Attribute>, NodeError> {
        let names: Vec<&str> = keys.iter().map(String::as_str).collect();
        let stored = self
            .platform
            .entities
            .repository()
            .attributes(entity.id, scope, Some(&names));
        let named = |attribute: Attribute| (attribute.key.clone(), attribute);
        let mut found: BTreeMap<String, Attribute> = stored.map_err(Box::new)?.into_iter().map(named).collect();
        let is_of_device = entity.kind == EntityType::Device && scope == Scope::ServerScope;
        let activity = is_of_device.then(|| self.platform.activity_of(self.core, DeviceId(entity.id)));
        for key in names {
            if let Some(value) = activity.flatten().and_then(|activity| activity.attribute(key)) {
                let attribute = Attribute {
                    key: key.to_owned(),
                    value,
                    last_update_ms: self.now_ms,
                };
                found.insert(key.to_owned(), attribute);
                continue;
            }
            match self.core.pending.attribute(entity.id, scope, key) {
                None => {}
                Some(Some(changed)) => {
                    found.insert(key.to_owned(), changed.clone());
                }
                Some(None) => {
                    found.remove(key);
                }
            }
        }
        Ok(found.into_values().collect())
    }

    pub fn known_latest(
        &self,
        entity: EntityId,
        keys: &[String],
    ) -> Result<Vec<Option<timeseries::TimedValue>>, NodeError> {
        let names: Vec<&str> = keys.iter().map(String::as_str).collect();
        let stored = self
            .platform
            .store
            .latest(SeriesId::from(entity.id), &names)
            .map_err(Box::new)?;
        let newer =
            |(key, stored): (&str, Option<timeseries::TimedValue>)| match self.core.pending.latest(entity.id, key) {
                Some(pending) if stored.as_ref().is_none_or(|stored| pending.ts_ms >= stored.ts_ms) => Some(pending),
                _ => stored,
            };
        Ok(names.into_iter().zip(stored).map(newer).collect())
    }
}

impl Platform {
    /// Of a device that nobody has heard of, too; `None`: there is no such device.
    fn activity_of(&self, core: &Core, id: DeviceId) -> Option<Activity> {
        let known = core.devices.get(&id).map(|device| device.activity);
        known.or_else(|| self.entities.directory().device(id).map(|_| Activity::default()))
    }
}

fn millis(value: &Value) -> i64 {
    match value {
        Value::Long(millis) => (*millis).max(0),
        Value::String(text) => text.parse().unwrap_or(0).max(0),
        _ => 0,
    }
}
