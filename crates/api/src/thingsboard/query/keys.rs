//! What can be asked of an entity: its fields, attributes, latest values.

use platform::ids::{EntityId, EntityType};
use platform::model::{Attribute, Scope};
use platform::repository::Record;
use serde::Deserialize;
use serde_json::{Map, Value as Json, json};
use timeseries::Value;

use super::super::call::Call;
use super::super::failure::Failure;
use super::super::values;
use super::room::Room;

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
    /// Of any scope.
    Attribute,
    ClientAttribute,
    SharedAttribute,
    ServerAttribute,
    Constant,
    AlarmField,
}

/// Of an entity, as ThingsBoard has them; other members may be secrets.
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

    /// Scopes in which an attribute is looked for, the first that has it counts.
    pub fn scopes(self) -> &'static [Scope] {
        match self {
            KeyType::Attribute => &[Scope::ServerScope, Scope::SharedScope, Scope::ClientScope],
            KeyType::ClientAttribute => &[Scope::ClientScope],
            KeyType::SharedAttribute => &[Scope::SharedScope],
            KeyType::ServerAttribute => &[Scope::ServerScope],
            _ => &[],
        }
    }
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct RuleChainFields {
    additional_info: Option<Json>,
}

/// One entity of a query.
pub struct Row {
    pub record: Record,
    /// Read from the record's JSON when a field needs it.
    body: Option<Json>,
}

impl Row {
    /// Without what can be large and is no field: there may be many rows.
    pub fn new(mut record: Record) -> Row {
        match record.kind {
            EntityType::Dashboard => record.body = json!({"title": record.row.name}).to_string(),
            EntityType::RuleChain => {
                let fields: RuleChainFields = serde_json::from_str(&record.body).unwrap_or_default();
                record.body = json!({"additionalInfo": fields.additional_info}).to_string();
            }
            _ => {}
        }
        Row { record, body: None }
    }

    pub fn id(&self) -> EntityId {
        EntityId::new(self.record.kind, self.record.row.id)
    }

    /// With its time, 0 for what has none.
    pub fn value(&mut self, call: &Call, key: &EntityKey) -> Result<Option<(i64, Value)>, Failure> {
        Ok(match key.kind {
            KeyType::EntityField => self.field(call, &key.key)?.map(|value| (0, value)),
            KeyType::TimeSeries => {
                let latest = call.platform().store().latest(self.record.row.id.into(), &[&key.key])?;
                let latest = latest.into_iter().next().flatten();
                latest.map(|latest| (latest.ts_ms, latest.value))
            }
            kind => self.attribute(call, kind.scopes(), &key.key)?,
        })
    }

    fn attribute(&self, call: &Call, scopes: &[Scope], key: &str) -> Result<Option<(i64, Value)>, Failure> {
        for scope in scopes {
            let found: Vec<Attribute> = call.platform().attributes(self.id(), *scope, Some(&[key]))?;
            if let Some(attribute) = found.into_iter().next() {
                return Ok(Some((attribute.last_update_ms, attribute.value)));
            }
        }
        Ok(None)
    }

    fn field(&mut self, call: &Call, name: &str) -> Result<Option<Value>, Failure> {
        let row = &self.record.row;
        let text = |text: &str| Some(Value::String(text.into()));
        Ok(match name {
            "createdTime" => Some(Value::Long(row.id.created_ms())),
            "entityType" => text(self.record.kind.name()),
            "name" => text(&row.name),
            "label" => text(&row.label),
            "type" if matches!(self.record.kind, EntityType::Device | EntityType::Asset) => text(&row.subtype),
            "displayName" => text(&self.display_name()),
            "ownerType" => text(self.owner().kind.name()),
            "ownerName" => text(&call.name_of(self.owner())),
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

    /// Of a user the names, of others the label, as far as there are any.
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

    fn json_field(&mut self, name: &str) -> Option<Value> {
        let body = &self.record.body;
        let body = self
            .body
            .get_or_insert_with(|| serde_json::from_str(body).unwrap_or_default());
        match &body[name] {
            Json::Null => None,
            Json::String(text) => Some(Value::String(text.as_str().into())),
            Json::Bool(value) => Some(Value::Bool(*value)),
            Json::Number(number) if number.is_i64() => number.as_i64().map(Value::Long),
            Json::Number(number) => number.as_f64().map(Value::Double),
            other => Some(Value::Json(other.to_string().into())),
        }
    }
}

/// `{"TIME_SERIES": {"k": {"ts": …, "value": "…"}}}`, of all keys that are wanted.
pub fn values_json<'k>(
    call: &Call,
    row: &mut Row,
    keys: impl IntoIterator<Item = &'k EntityKey>,
    room: &mut Room,
) -> Result<Json, Failure> {
    let mut latest = Map::new();
    for key in keys {
        let (ts_ms, text) = match row.value(call, key)? {
            Some((ts_ms, value)) => (ts_ms, values::text(&value)),
            None => (0, String::new()),
        };
        room.take(key.key.len() + text.len())?;
        let of_kind = latest.entry(key.kind.name()).or_insert_with(|| json!({}));
        of_kind[key.key.as_str()] = json!({"ts": ts_ms, "value": text});
    }
    Ok(latest.into())
}
