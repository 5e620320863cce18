//! Nodes that add stored values to a message.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::Mutex;

use serde_json::{Value as Json, json};
use timeseries::PointValue;

use super::NodeOutcome;
use super::keys::MessageSection;
use crate::chain::host::{Host, NodeError};
use crate::chain::message::{ChainMessage, MessageData, POST_TELEMETRY, PatternFiller, plain, value_json};
use crate::ids::{EntityId, EntityType};
use crate::model::AttributeScope;

#[derive(Debug)]
pub struct AttributesNode {
    pub client: Vec<String>,
    pub shared: Vec<String>,
    pub server: Vec<String>,
    pub latest: Vec<String>,
    pub fails_if_absent: bool,
    /// Latest values have the form `{"ts":…,"value":…}`.
    pub has_time: bool,
    pub section: MessageSection,
}

impl AttributesNode {
    pub fn process<'a>(&self, message: Arc<ChainMessage<'a>>, host: &dyn Host) -> Result<NodeOutcome<'a>, NodeError> {
        let mut found = Vec::new();
        let mut missing = Vec::new();
        let entity = message.originator;
        let mut filler = PatternFiller::new(&message);
        for (scope, prefix, keys) in [
            (AttributeScope::ClientScope, "cs_", &self.client),
            (AttributeScope::SharedScope, "shared_", &self.shared),
            (AttributeScope::ServerScope, "ss_", &self.server),
        ] {
            let keys = filler.fill_all(keys)?;
            if keys.is_empty() {
                continue;
            }
            let attributes = host.attributes(entity, scope, &keys)?;
            missing.extend(
                keys.into_iter()
                    .filter(|key| !attributes.iter().any(|known| known.key == *key)),
            );
            let attributes = attributes.into_iter();
            found.extend(attributes.map(|known| (format!("{prefix}{}", known.key), value_json(&known.value))));
        }
        let latest = filler.fill_all(&self.latest)?;
        self.add_latest(entity, latest, host, (&mut found, &mut missing))?;
        if self.fails_if_absent && !missing.is_empty() {
            return Err(NodeError::new(format!(
                "The following attribute/telemetry keys is not present in the DB: {}",
                missing.join(", ")
            )));
        }
        Ok(NodeOutcome::success(self.section.put(&message, found)))
    }

    fn add_latest(
        &self,
        entity: EntityId,
        keys: Vec<String>,
        host: &dyn Host,
        (found, missing): (&mut Vec<(String, Json)>, &mut Vec<String>),
    ) -> Result<(), NodeError> {
        if keys.is_empty() {
            return Ok(());
        }
        let latest = host.latest(entity, &keys)?;
        for (key, value) in keys.into_iter().zip(latest) {
            match value {
                None => missing.push(key),
                Some(value) if self.has_time => {
                    found.push((key, json!({"ts": value.ts_ms, "value": value_json(&value.value)})));
                }
                Some(value) => found.push((key, value_json(&value.value))),
            }
        }
        Ok(())
    }
}

#[derive(Debug)]
pub struct FieldsNode {
    /// Field name, and its name in the message.
    pub fields: Vec<(String, String)>,
    pub section: MessageSection,
    pub ignores_null: bool,
}

impl FieldsNode {
    pub fn process<'a>(&self, message: Arc<ChainMessage<'a>>, host: &dyn Host) -> Result<NodeOutcome<'a>, NodeError> {
        let entity = host
            .entity(message.originator)?
            .ok_or_else(|| NodeError::new("the originator does not exist"))?;
        let mut found = Vec::new();
        for (field, name) in &self.fields {
            let value = match &entity[field] {
                Json::Null if self.ignores_null => continue,
                Json::Object(id) => id.get("id").cloned().unwrap_or_default(),
                other => other.clone(),
            };
            found.push((
                name.clone(),
                Json::String(if value.is_null() {
                    "null".to_owned()
                } else {
                    plain(&value)
                }),
            ));
        }
        Ok(NodeOutcome::success(self.section.put(&message, found)))
    }
}

#[derive(Clone, Copy, Debug)]
pub enum Owner {
    Customer,
    Tenant,
}

#[derive(Debug)]
pub struct OwnerAttributesNode {
    pub owner: Owner,
    /// Latest telemetry instead of server attributes.
    pub is_latest: bool,
    /// Key, and its name in the message.
    pub keys: Vec<(String, String)>,
    pub section: MessageSection,
}

impl OwnerAttributesNode {
    pub fn process<'a>(&self, message: Arc<ChainMessage<'a>>, host: &dyn Host) -> Result<NodeOutcome<'a>, NodeError> {
        let owner = owner_of(self.owner, message.originator, host)?;
        let mut filler = PatternFiller::new(&message);
        let keys = filler.fill_all(self.keys.iter().map(|(key, _)| key))?;
        let values: Vec<(String, PointValue)> = if self.is_latest {
            let latest = host.latest(owner, &keys)?;
            let values = keys.iter().cloned().zip(latest);
            values.filter_map(|(key, value)| Some((key, value?.value))).collect()
        } else {
            let attributes = host.attributes(owner, AttributeScope::ServerScope, &keys)?;
            attributes.into_iter().map(|known| (known.key, known.value)).collect()
        };
        let mut found = Vec::new();
        for ((_, name), key) in self.keys.iter().zip(&keys) {
            if let Some((_, value)) = values.iter().find(|(known, _)| known == key) {
                found.push((filler.fill(name)?, value_json(value)));
            }
        }
        Ok(NodeOutcome::success(self.section.put(&message, found)))
    }
}

pub fn owner_of(owner: Owner, originator: EntityId, host: &dyn Host) -> Result<EntityId, NodeError> {
    let (field, kind) = match owner {
        Owner::Customer => ("customerId", EntityType::Customer),
        Owner::Tenant => ("tenantId", EntityType::Tenant),
    };
    if originator.kind == kind {
        return Ok(originator);
    }
    let entity = host
        .entity(originator)?
        .ok_or_else(|| NodeError::new("the originator does not exist"))?;
    let id = entity[field]["id"].as_str().and_then(crate::ids::Uuid::parse);
    let id = id.filter(|id| !id.is_null());
    let id = id.ok_or_else(|| NodeError::new(format!("the originator has no {}", kind.name().to_lowercase())))?;
    Ok(EntityId::new(kind, id))
}

/// Originators whose last value is cached. Further ones read the store.
const CACHED_MAX: usize = 100_000;

#[derive(Debug)]
pub struct DeltaNode {
    input: String,
    output: String,
    period: Option<String>,
    round: Option<u32>,
    fails_if_negative: bool,
    skips_zero: bool,
    /// Time and value.
    last: Mutex<HashMap<EntityId, (i64, f64)>>,
}

impl DeltaNode {
    pub fn new(
        input: String,
        output: String,
        period: Option<String>,
        round: Option<u32>,
        fails_if_negative: bool,
        skips_zero: bool,
    ) -> DeltaNode {
        DeltaNode {
            input,
            output,
            period,
            round,
            fails_if_negative,
            skips_zero,
            last: Mutex::default(),
        }
    }

    pub fn process<'a>(&self, message: Arc<ChainMessage<'a>>, host: &dyn Host) -> Result<NodeOutcome<'a>, NodeError> {
        let mut json = message.json().into_owned();
        let current = json.get(&self.input).map(number);
        let Some(current) = current.filter(|_| message.kind == POST_TELEMETRY) else {
            return Ok(NodeOutcome::Next("Other".into(), message));
        };
        let at_ms = message.data_ts_ms();
        let last = self.replace_last(message.originator, (at_ms, current), host)?;
        let delta = last.map_or(0.0, |(_, last)| current - last);
        if self.fails_if_negative && delta < 0.0 {
            return Err(NodeError::new("Delta value is negative!"));
        }
        if self.skips_zero && delta == 0.0 {
            return Ok(NodeOutcome::success(message));
        }
        json[&self.output] = self.rounded(delta);
        if let Some(period) = &self.period {
            json[period] = Json::from(last.map_or(0, |(ts_ms, _)| at_ms - ts_ms));
        }
        Ok(NodeOutcome::success(Arc::new(ChainMessage {
            data: MessageData::Json(json),
            ..ChainMessage::clone(&message)
        })))
    }

    fn replace_last(
        &self,
        entity: EntityId,
        new: (i64, f64),
        host: &dyn Host,
    ) -> Result<Option<(i64, f64)>, NodeError> {
        let mut last = self.last.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some(known) = last.get_mut(&entity) {
            return Ok(Some(std::mem::replace(known, new)));
        }
        let stored = host.latest(entity, std::slice::from_ref(&self.input))?.pop().flatten();
        let stored = stored.map(|stored| (stored.ts_ms, number(&value_json(&stored.value))));
        if last.len() < CACHED_MAX {
            last.insert(entity, new);
        }
        Ok(stored)
    }

    /// Writes whole numbers without a fraction, and rounds halves away from zero.
    fn rounded(&self, delta: f64) -> Json {
        let places = self.round.unwrap_or(17);
        let factor = 10_f64.powi(i32::try_from(places).unwrap_or(i32::MAX));
        let value = if places >= 15 {
            delta
        } else {
            (delta * factor).round() / factor
        };
        #[expect(clippy::cast_possible_truncation, reason = "checked to be whole and in range")]
        if value.fract() == 0.0 && value.abs() < 9e15 {
            return Json::from(value as i64);
        }
        Json::from(value)
    }
}

fn number(json: &Json) -> f64 {
    match json {
        Json::String(text) => text.trim().parse().unwrap_or(0.0),
        Json::Bool(value) => f64::from(u8::from(*value)),
        other => other.as_f64().unwrap_or(0.0),
    }
}
