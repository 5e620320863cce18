//! Requested keys of an entity: fields, attributes, latest values.

use platform::ids::{EntityId, EntityType};
use platform::model::{Attribute, AttributeScope};
use platform::repository::EntityRecord;
use serde::Deserialize;
use serde_json::{Map, Value as Json, json};
use timeseries::PointValue;

use super::super::call::{ApiCall, ReadableData, Verb};
use super::super::failure::ThingsboardError;
use super::super::values;
use super::answer_budget::QueryAnswerBudget;

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct EntityKey {
    #[serde(rename = "type")]
    pub kind: KeyType,
    pub key: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum KeyType {
    EntityField,
    TimeSeries,
    /// An attribute of any scope.
    Attribute,
    ClientAttribute,
    SharedAttribute,
    ServerAttribute,
    Constant,
    AlarmField,
}

/// Fields of entities in ThingsBoard. Other members may contain secrets.
const FIELDS: [&str; 15] = [
    "firstName",
    "lastName",
    "email",
    "title",
    "country",
    "state",
    "city",
    "address",
    "address2",
    "zip",
    "phone",
    "additionalInfo",
    "queueName",
    "serviceId",
    "edgeType",
];

impl KeyType {
    pub fn name(self) -> &'static str {
        match self {
            KeyType::EntityField => "ENTITY_FIELD",
            KeyType::TimeSeries => "TIME_SERIES",
            KeyType::Attribute => "ATTRIBUTE",
            KeyType::ClientAttribute => "CLIENT_ATTRIBUTE",
            KeyType::SharedAttribute => "SHARED_ATTRIBUTE",
            KeyType::ServerAttribute => "SERVER_ATTRIBUTE",
            KeyType::Constant => "CONSTANT",
            KeyType::AlarmField => "ALARM_FIELD",
        }
    }

    /// Scopes of the attribute, in order of precedence.
    pub fn scopes(self) -> &'static [AttributeScope] {
        match self {
            KeyType::Attribute => &[
                AttributeScope::ServerScope,
                AttributeScope::SharedScope,
                AttributeScope::ClientScope,
            ],
            KeyType::ClientAttribute => &[AttributeScope::ClientScope],
            KeyType::SharedAttribute => &[AttributeScope::SharedScope],
            KeyType::ServerAttribute => &[AttributeScope::ServerScope],
            _ => &[],
        }
    }
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct RuleChainFields {
    additional_info: Option<Json>,
}

/// An entity of a query, which the user may read.
pub struct QueriedEntity {
    pub record: EntityRecord,
    pub readable: ReadableData,
    /// Parsed from the record's JSON when a field needs it.
    body: Option<Json>,
}

impl QueriedEntity {
    /// Drops large members that are not fields, because there may be many rows.
    pub fn new(call: &ApiCall, mut record: EntityRecord) -> Result<QueriedEntity, ThingsboardError> {
        let readable = call.readable_data(&record)?;
        match record.kind {
            EntityType::Dashboard => record.body = json!({"title": record.row.name}).to_string(),
            EntityType::RuleChain => {
                let fields: RuleChainFields = serde_json::from_str(&record.body).unwrap_or_default();
                record.body = json!({"additionalInfo": fields.additional_info}).to_string();
            }
            _ => {}
        }
        Ok(QueriedEntity {
            record,
            readable,
            body: None,
        })
    }

    pub fn id(&self) -> EntityId {
        EntityId::new(self.record.kind, self.record.row.id)
    }

    /// Returns the value with its time; 0 for values without a time. Values that the user may not read are missing,
    /// also for conditions, sort orders and text searches.
    pub fn value(&mut self, call: &ApiCall, key: &EntityKey) -> Result<Option<(i64, PointValue)>, ThingsboardError> {
        Ok(match key.kind {
            KeyType::EntityField => self.field(call, &key.key)?.map(|value| (0, value)),
            KeyType::TimeSeries if !self.readable.has_telemetry => None,
            KeyType::TimeSeries => {
                let latest = call.platform().store().latest(self.record.row.id.into(), &[&key.key])?;
                let latest = latest.into_iter().next().flatten();
                latest.map(|latest| (latest.ts_ms, latest.value))
            }
            _ if !self.readable.has_attributes => None,
            kind => self.attribute(call, kind.scopes(), &key.key)?,
        })
    }

    fn attribute(
        &self,
        call: &ApiCall,
        scopes: &[AttributeScope],
        key: &str,
    ) -> Result<Option<(i64, PointValue)>, ThingsboardError> {
        for scope in scopes {
            let found: Vec<Attribute> = call.platform().attributes(self.id(), *scope, Some(&[key]))?;
            if let Some(attribute) = found.into_iter().next() {
                return Ok(Some((attribute.last_update_ms, attribute.value)));
            }
        }
        Ok(None)
    }

    fn field(&mut self, call: &ApiCall, name: &str) -> Result<Option<PointValue>, ThingsboardError> {
        let row = &self.record.row;
        let text = |text: &str| Some(PointValue::String(text.into()));
        Ok(match name {
            "createdTime" => Some(PointValue::Long(row.id.created_ms())),
            "entityType" => text(self.record.kind.name()),
            "name" => text(&row.name),
            "label" => text(&row.label),
            "type" if matches!(self.record.kind, EntityType::Device | EntityType::Asset) => text(&row.subtype),
            "displayName" => text(&self.display_name()),
            "ownerType" => text(self.owner().kind.name()),
            "ownerName" => {
                let owner = call.record(self.owner(), Verb::Read);
                text(&owner.map_or_else(|_| String::new(), |owner| owner.row.name))
            }
            name if FIELDS.contains(&name) => self.json_field(name),
            _ => None,
        })
    }

    fn owner(&self) -> EntityId {
        let row = &self.record.row;
        match row.customer.is_null() {
            true => EntityId::new(EntityType::Tenant, row.tenant),
            false => EntityId::new(EntityType::Customer, row.customer),
        }
    }

    /// Returns the names of a user, or the label of another entity; empty if there are none.
    fn display_name(&mut self) -> String {
        if self.record.kind == EntityType::User {
            let names = ["firstName", "lastName"].map(|name| self.json_field(name));
            let names: Vec<String> = names.into_iter().flatten().map(|name| values::text(&name)).collect();
            let whole = names.join(" ").trim().to_owned();
            if !whole.is_empty() {
                return whole;
            }
        }
        let row = &self.record.row;
        let label = row.label.trim();
        if label.is_empty() {
            row.name.clone()
        } else {
            label.to_owned()
        }
    }

    fn json_field(&mut self, name: &str) -> Option<PointValue> {
        let body = &self.record.body;
        let body = self
            .body
            .get_or_insert_with(|| serde_json::from_str(body).unwrap_or_default());
        match &body[name] {
            Json::Null => None,
            Json::String(text) => Some(PointValue::String(text.as_str().into())),
            Json::Bool(value) => Some(PointValue::Bool(*value)),
            Json::Number(number) if number.is_i64() => number.as_i64().map(PointValue::Long),
            Json::Number(number) => number.as_f64().map(PointValue::Double),
            other => Some(PointValue::Json(other.to_string().into())),
        }
    }
}

/// Returns `{"TIME_SERIES": {"k": {"ts": …, "value": "…"}}}` with all requested keys.
pub fn values_json<'k>(
    call: &ApiCall,
    row: &mut QueriedEntity,
    keys: impl IntoIterator<Item = &'k EntityKey>,
    budget: &mut QueryAnswerBudget,
) -> Result<Json, ThingsboardError> {
    let mut latest = Map::new();
    for key in keys {
        let (ts_ms, text) = match row.value(call, key)? {
            Some((ts_ms, value)) => (ts_ms, values::text(&value)),
            None => (0, String::new()),
        };
        budget.take(key.key.len() + text.len())?;
        let of_kind = latest.entry(key.kind.name()).or_insert_with(|| json!({}));
        of_kind[key.key.as_str()] = json!({"ts": ts_ms, "value": text});
    }
    Ok(latest.into())
}
