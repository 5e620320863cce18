//! Reads and writes attributes: stored ones, changes of the current batch, and the activity attributes of devices.

use std::collections::BTreeMap;

use timeseries::{LogPosition, PointValue, TelemetryEntityId as SeriesId};

use super::host::PlatformCall;
use super::key_limit::AllowedAttributes;
use super::pending::PointStorage;
use super::{ChainEvent, HashSet, IngestError, Platform, PlatformCore, PlatformOutlet, RefusedKeys};
use crate::activity::{Activity, KEYS, TIMEOUT_KEY};
use crate::alarm_rules::AlarmRuleEvent;
use crate::chain::{MessageData, NodeError};
use crate::decode::KeyValue;
use crate::entities::EntityError;
use crate::ids::{AlarmId, DeviceId, EntityId, EntityType};
use crate::model::{Attribute, AttributeScope};
use crate::repository::{RepositoryChange, StateKind};

/// A user's change of attributes.
#[derive(Clone, Copy, Debug)]
pub enum AttributesChange<'a> {
    Save(&'a [KeyValue<'a>]),
    Delete(&'a [String]),
}

impl Platform {
    /// Returns attributes in key order; all attributes if `keys` is `None`.
    pub fn attributes(
        &self,
        entity: EntityId,
        scope: AttributeScope,
        keys: Option<&[&str]>,
    ) -> Result<Vec<Attribute>, EntityError> {
        let mut found = self.entities.repository().attributes(entity.id, scope, keys)?;
        if entity.kind == EntityType::Device && scope == AttributeScope::ServerScope {
            let core = self.core();
            let activity = self.activity_of(&core, DeviceId(entity.id));
            // A user may have saved an attribute of the same name. The activity attribute replaces it.
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

    /// Saves attributes for a user. They are stored when it returns. Notifies subscribers, the device and its alarm
    /// rules. Fails if the entity has too many keys for some of them; the others are stored.
    pub fn save_attributes(
        &self,
        entity: EntityId,
        scope: AttributeScope,
        values: &[KeyValue<'_>],
        now_ms: i64,
        outlet: &mut dyn PlatformOutlet,
    ) -> Result<(), EntityError> {
        let mut core = self.core();
        let mut visit = PlatformCall::new(self, &mut core, outlet, now_ms);
        let refused = visit.change_attributes(entity, scope, AttributesChange::Save(values))?;
        visit.drain_queue();
        self.apply_pending(&mut core)?;
        match refused {
            Some(refused) => Err(NodeError::new(refused.to_string()).into()),
            None => Ok(()),
        }
    }

    pub fn delete_attributes(
        &self,
        entity: EntityId,
        scope: AttributeScope,
        keys: &[String],
        now_ms: i64,
        outlet: &mut dyn PlatformOutlet,
    ) -> Result<(), EntityError> {
        let mut core = self.core();
        let mut visit = PlatformCall::new(self, &mut core, outlet, now_ms);
        visit.change_attributes(entity, scope, AttributesChange::Delete(keys))?;
        visit.drain_queue();
        Ok(self.apply_pending(&mut core)?)
    }

    /// Applies a user's change from the caller's log, made at `said_ms`. It follows all earlier records and is
    /// applied once, even if the log is replayed. It is stored on return; after an error the caller calls again.
    /// Returns the attributes that were not stored, because the entity has too many keys.
    pub fn change_attributes(
        &self,
        entity: EntityId,
        (scope, change): (AttributeScope, AttributesChange<'_>),
        (position, said_ms): (LogPosition, i64),
        now_ms: i64,
        outlet: &mut dyn PlatformOutlet,
    ) -> Result<Option<RefusedKeys>, IngestError> {
        let mut core = self.core();
        self.write_pending(&mut core)?;
        self.refresh_limits(&mut core);
        let mut visit = PlatformCall::new(self, &mut core, outlet, now_ms);
        visit.begin(position)?;
        visit.at = Some(position);
        visit.now_ms = said_ms;
        // The entity may have been deleted after the change was acknowledged. Then the change has no effect.
        let mut refused = None;
        if !self.is_deleted(entity) {
            refused = visit.change_attributes(entity, scope, change).unwrap_or_else(|error| {
                visit.outlet.failed(entity, "", &error.0);
                None
            });
        }
        visit.now_ms = now_ms;
        visit.end(position);
        self.write_pending(&mut core)?;
        Ok(refused)
    }

    fn is_deleted(&self, entity: EntityId) -> bool {
        let repository = self.entities.repository();
        match entity.kind {
            EntityType::Device => self.entities.directory().device(DeviceId(entity.id)).is_none(),
            EntityType::Alarm => matches!(repository.alarm(AlarmId(entity.id)), Ok(None)),
            // Nodes are stored as part of their chain.
            EntityType::RuleNode => false,
            _ => matches!(repository.get(entity), Ok(None)),
        }
    }

    /// Stores telemetry of any entity without running a chain, as ThingsBoard's REST API does. `ttl_s`: time to live;
    /// 0 uses the tenant profile's.
    pub fn save_telemetry(
        &self,
        entity: EntityId,
        telemetry: &crate::decode::Telemetry<'_>,
        ttl_s: u32,
        (position, now_ms): (LogPosition, i64),
        outlet: &mut dyn PlatformOutlet,
    ) -> Result<(), IngestError> {
        let mut core = self.core();
        self.write_pending(&mut core)?;
        self.refresh_limits(&mut core);
        let is_new = position > core.applied;
        let mut visit = PlatformCall::new(self, &mut core, outlet, now_ms);
        let tenant = visit.tenant_of(entity);
        // Usage and queue statistics do not count as usage.
        let is_counted = is_new && !matches!(entity.kind, EntityType::ApiUsageState | EntityType::QueueStats);
        let storage = PointStorage::with_ttl(ttl_s);
        for (ts_ms, values) in telemetry.groups() {
            for value in values {
                visit
                    .core
                    .pending
                    .push_point((tenant, entity.id), &value.key, ts_ms, value.value.clone(), storage);
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

impl PlatformCall<'_> {
    /// Returns the attributes that were not stored, if any.
    pub fn change_attributes(
        &mut self,
        entity: EntityId,
        scope: AttributeScope,
        change: AttributesChange<'_>,
    ) -> Result<Option<RefusedKeys>, NodeError> {
        let notifies_device = scope == AttributeScope::SharedScope;
        match change {
            AttributesChange::Save(values) => {
                let now_ms = self.now_ms;
                let attributes = values.iter().map(|value| Attribute {
                    key: value.key.to_string(),
                    value: value.value.clone(),
                    last_update_ms: now_ms,
                });
                let attributes: Vec<Attribute> = attributes.collect();
                let mut stored = AllowedAttributes::all(&attributes);
                if !self.is_replay {
                    stored = self.put_attributes(entity, scope, &attributes, notifies_device)?;
                }
                self.send_saved(entity, scope, values, &stored);
                return Ok(stored.refused);
            }
            AttributesChange::Delete(keys) => {
                if !self.is_replay {
                    self.remove_attributes(entity, scope, keys, notifies_device)?;
                    let names: Vec<&str> = keys.iter().map(String::as_str).collect();
                    let effects = self.apply_event(entity, AlarmRuleEvent::AttributesDeleted { keys: &names })?;
                    if let Ok(sender) = self.sender(DeviceId(entity.id)) {
                        self.run_effects(&sender, effects);
                    }
                }
                let data = serde_json::json!({"attributes": keys});
                self.send_attribute_event(entity, "ATTRIBUTES_DELETED", scope, MessageData::Json(data));
            }
        }
        Ok(None)
    }

    /// Sends the event for the values that were stored.
    fn send_saved(
        &mut self,
        entity: EntityId,
        scope: AttributeScope,
        values: &[KeyValue<'_>],
        stored: &AllowedAttributes<'_>,
    ) {
        let kind = "ATTRIBUTES_UPDATED";
        if stored.refused.is_none() {
            return self.send_attribute_event(entity, kind, scope, MessageData::Values(values));
        }
        let keys: HashSet<&str> = stored.attributes.iter().map(|stored| &*stored.key).collect();
        let stored: Vec<_> = values
            .iter()
            .filter(|value| keys.contains(&*value.key))
            .cloned()
            .collect();
        if !stored.is_empty() {
            self.send_attribute_event(entity, kind, scope, MessageData::Values(&stored));
        }
    }

    /// Stores the attributes up to the limit of keys.
    pub fn put_attributes<'k>(
        &mut self,
        entity: EntityId,
        scope: AttributeScope,
        attributes: &'k [Attribute],
        notifies_device: bool,
    ) -> Result<AllowedAttributes<'k>, NodeError> {
        let allowed = self.within_key_limit(entity, scope, attributes)?;
        let attributes = &*allowed.attributes;
        if attributes.is_empty() {
            return Ok(allowed);
        }
        for attribute in attributes {
            self.set_timeout(entity, scope, &attribute.key, Some(&attribute.value));
            self.core.pending.push_change(RepositoryChange::PutAttribute {
                entity: entity.id,
                scope,
                attribute: attribute.clone(),
            });
        }
        self.remove_owner_cache(entity);
        self.outlet.attributes(entity, scope, attributes, &[]);
        if notifies_device && entity.kind == EntityType::Device {
            self.outlet.attributes_to_device(DeviceId(entity.id), attributes, &[]);
        }
        Ok(allowed)
    }

    pub fn remove_attributes(
        &mut self,
        entity: EntityId,
        scope: AttributeScope,
        keys: &[String],
        notifies_device: bool,
    ) -> Result<(), NodeError> {
        for key in keys {
            self.set_timeout(entity, scope, key, None);
            self.core.pending.push_change(RepositoryChange::DeleteAttribute {
                entity: entity.id,
                scope,
                key: key.clone(),
            });
        }
        self.core.attribute_counts.deleted(entity.id);
        self.remove_owner_cache(entity);
        self.outlet.attributes(entity, scope, &[], keys);
        if notifies_device && entity.kind == EntityType::Device {
            self.outlet.attributes_to_device(DeviceId(entity.id), &[], keys);
        }
        Ok(())
    }

    /// Removes cached attributes of an owner. Thresholds of alarm rules may use them.
    fn remove_owner_cache(&mut self, entity: EntityId) {
        if matches!(entity.kind, EntityType::Customer | EntityType::Tenant) {
            self.core.owner_values.retain(|(owner, _), _| *owner != entity.id);
        }
    }

    fn set_timeout(&mut self, entity: EntityId, scope: AttributeScope, key: &str, value: Option<&PointValue>) {
        if entity.kind != EntityType::Device || scope != AttributeScope::ServerScope || key != TIMEOUT_KEY {
            return;
        }
        let activity = self.activity(DeviceId(entity.id));
        activity.timeout_ms = value.map_or(0, millis);
        let bytes = Some(activity.to_bytes());
        // Stored together with the attribute, not at the next checkpoint, because the attribute is not read again.
        self.core.pending.push_change(RepositoryChange::PutState {
            state: StateKind::Activity,
            id: entity.id,
            bytes,
        });
    }

    pub fn stored_timeout(&self, device: DeviceId) -> i64 {
        let repository = self.platform.entities.repository();
        let found = repository.attributes(device.0, AttributeScope::ServerScope, Some(&[TIMEOUT_KEY]));
        found
            .ok()
            .and_then(|found| found.first().map(|attribute| millis(&attribute.value)))
            .unwrap_or(0)
    }

    /// Sends an attribute event to the device's chain, or to the root chain for other entities.
    fn send_attribute_event(
        &mut self,
        entity: EntityId,
        kind: &'static str,
        scope: AttributeScope,
        data: MessageData<'_>,
    ) {
        if entity.kind != EntityType::Device {
            return self.send_event(ChainEvent {
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

    /// Returns attributes including the changes of this batch, in key order.
    pub fn known_attributes(
        &self,
        entity: EntityId,
        scope: AttributeScope,
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
        let is_of_device = entity.kind == EntityType::Device && scope == AttributeScope::ServerScope;
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
    /// The activity of a device, also of one that never sent anything. `None` if there is no such device.
    fn activity_of(&self, core: &PlatformCore, id: DeviceId) -> Option<Activity> {
        let known = core.devices.get(&id).map(|device| device.activity);
        known.or_else(|| self.entities.directory().device(id).map(|_| Activity::default()))
    }
}

fn millis(value: &PointValue) -> i64 {
    match value {
        PointValue::Long(millis) => (*millis).max(0),
        PointValue::String(text) => text.parse().unwrap_or(0).max(0),
        _ => 0,
    }
}
