//! What travels along a chain: type, originator, metadata, data. Telemetry stays what it was decoded to until a node wants it
//! as JSON.

use std::borrow::Cow;

use serde_json::{Map, Value as Json};
use timeseries::Value;

use super::host::NodeError;
use crate::decode::{KeyValue, TS_MAX_MS};
use crate::ids::{CustomerId, EntityId, EntityType, Uuid};

/// The types with a connection of their own; every other one, an alarm among them, goes by "Other".
const TYPES: &[(&str, &str)] = &[
    ("POST_ATTRIBUTES_REQUEST", "Post attributes"),
    ("POST_TELEMETRY_REQUEST", "Post telemetry"),
    ("TO_SERVER_RPC_REQUEST", "RPC Request from Device"),
    ("RPC_CALL_FROM_SERVER_TO_DEVICE", "RPC Request to Device"),
    ("ACTIVITY_EVENT", "Activity Event"),
    ("INACTIVITY_EVENT", "Inactivity Event"),
    ("CONNECT_EVENT", "Connect Event"),
    ("DISCONNECT_EVENT", "Disconnect Event"),
    ("ENTITY_CREATED", "Entity Created"),
    ("ENTITY_UPDATED", "Entity Updated"),
    ("ENTITY_DELETED", "Entity Deleted"),
    ("ENTITY_ASSIGNED", "Entity Assigned"),
    ("ENTITY_UNASSIGNED", "Entity Unassigned"),
    ("ENTITY_ASSIGNED_FROM_TENANT", "Entity Assigned From Tenant"),
    ("ENTITY_ASSIGNED_TO_TENANT", "Entity Assigned To Tenant"),
    ("ATTRIBUTES_UPDATED", "Attributes Updated"),
    ("ATTRIBUTES_DELETED", "Attributes Deleted"),
    ("TIMESERIES_UPDATED", "Timeseries Updated"),
    ("TIMESERIES_DELETED", "Timeseries Deleted"),
    ("ALARM_ACK", "Alarm Acknowledged"),
    ("ALARM_CLEAR", "Alarm Cleared"),
    ("ALARM_ASSIGNED", "Alarm Assigned"),
    ("ALARM_UNASSIGNED", "Alarm Unassigned"),
    ("COMMENT_CREATED", "Comment Created"),
    ("COMMENT_UPDATED", "Comment Updated"),
    ("RPC_QUEUED", "RPC Queued"),
    ("RPC_SENT", "RPC Sent"),
    ("RPC_DELIVERED", "RPC Delivered"),
    ("RPC_SUCCESSFUL", "RPC Successful"),
    ("RPC_TIMEOUT", "RPC Timeout"),
    ("RPC_EXPIRED", "RPC Expired"),
    ("RPC_FAILED", "RPC Failed"),
    ("RPC_DELETED", "RPC Deleted"),
    ("RELATION_ADD_OR_UPDATE", "Relation Added or Updated"),
    ("RELATION_DELETED", "Relation Deleted"),
    ("RELATIONS_DELETED", "All Relations Deleted"),
    ("REST_API_REQUEST", "REST API request"),
];

pub const POST_TELEMETRY: &str = "POST_TELEMETRY_REQUEST";
pub const POST_ATTRIBUTES: &str = "POST_ATTRIBUTES_REQUEST";
pub const ALARM: &str = "ALARM";

/// The connection by which the message type switch sends a type.
pub fn connection_of(kind: &str) -> &'static str {
    TYPES
        .iter()
        .find(|(name, _)| *name == kind)
        .map_or("Other", |(_, label)| label)
}

#[derive(Clone, Debug, PartialEq)]
pub struct Message<'a> {
    pub kind: Cow<'a, str>,
    pub originator: EntityId,
    pub customer: CustomerId,
    pub metadata: Metadata<'a>,
    pub data: Data<'a>,
    /// Of the data, or when the message came.
    pub ts_ms: i64,
}

impl Message<'static> {
    /// Of the tenant itself, with nothing in it.
    pub fn empty(tenant: Uuid, now_ms: i64) -> Message<'static> {
        Message {
            kind: "".into(),
            originator: EntityId::new(EntityType::Tenant, tenant),
            customer: CustomerId::NULL,
            metadata: Metadata::default(),
            data: Data::Json(Json::Object(serde_json::Map::new())),
            ts_ms: now_ms,
        }
    }
}

impl Message<'_> {
    /// What nodes take as the time of the data: `ts` of the metadata, which a chain may have changed, if it is a number.
    pub fn data_ts_ms(&self) -> i64 {
        let told = self.metadata.get("ts").and_then(|text| text.parse().ok());
        told.unwrap_or(self.ts_ms).min(TS_MAX_MS)
    }
}

#[derive(Clone, Debug, PartialEq)]
pub enum Data<'a> {
    /// Values of one time.
    Values(&'a [KeyValue<'a>]),
    Json(Json),
}

impl Data<'_> {
    pub fn into_json(self) -> Json {
        match self {
            Data::Json(json) => json,
            Data::Values(values) => values_json(values),
        }
    }
}

/// Names and texts; few, so a list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Metadata<'a>(Vec<(Cow<'a, str>, Cow<'a, str>)>);

impl<'a> Metadata<'a> {
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0
            .iter()
            .find(|(known, _)| known == name)
            .map(|(_, value)| &**value)
    }

    pub fn put(&mut self, name: impl Into<Cow<'a, str>>, value: impl Into<Cow<'a, str>>) {
        let (name, value) = (name.into(), value.into());
        match self.0.iter_mut().find(|(known, _)| *known == name) {
            Some((_, known)) => *known = value,
            None => self.0.push((name, value)),
        }
    }

    pub fn remove(&mut self, name: &str) -> Option<Cow<'a, str>> {
        let position = self.0.iter().position(|(known, _)| known == name)?;
        Some(self.0.remove(position).1)
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (&**name, &**value))
    }

    pub fn to_json(&self) -> Json {
        Json::Object(
            self.iter()
                .map(|(name, value)| (name.to_owned(), value.into()))
                .collect(),
        )
    }

    /// Values that are no texts become some.
    pub fn from_json(json: &Json) -> Metadata<'static> {
        let members = json
            .as_object()
            .into_iter()
            .flatten()
            .filter(|(_, value)| !value.is_null());
        Metadata(
            members
                .map(|(name, value)| (name.clone().into(), plain(value).into()))
                .collect(),
        )
    }
}

impl Message<'_> {
    pub fn json(&self) -> Cow<'_, Json> {
        match &self.data {
            Data::Json(json) => Cow::Borrowed(json),
            Data::Values(values) => Cow::Owned(values_json(values)),
        }
    }

    /// In memory, about, when it is kept.
    pub fn weight(&self) -> usize {
        let metadata = self.metadata.0.iter();
        let metadata = metadata.map(|(name, value)| name.len() + value.len() + 64);
        let data = match &self.data {
            Data::Json(json) => json_weight(json),
            Data::Values(values) => values.iter().map(KeyValue::weight).sum(),
        };
        data + metadata.sum::<usize>() + 256
    }

    /// With everything of its own.
    pub fn into_owned(self) -> Message<'static> {
        let json = self.json().into_owned();
        let metadata = self.metadata.0.into_iter();
        let metadata = metadata.map(|(name, value)| (name.into_owned().into(), value.into_owned().into()));
        Message {
            kind: self.kind.into_owned().into(),
            originator: self.originator,
            customer: self.customer,
            metadata: Metadata(metadata.collect()),
            data: Data::Json(json),
            ts_ms: self.ts_ms,
        }
    }
}

/// In memory, about: what is not text takes several times its length.
pub fn json_weight(json: &Json) -> usize {
    let inner = match json {
        Json::String(text) => text.len(),
        Json::Array(all) => all.iter().map(json_weight).sum(),
        Json::Object(members) => {
            let members = members.iter();
            members.map(|(name, value)| name.len() + 64 + json_weight(value)).sum()
        }
        _ => 0,
    };
    size_of::<Json>() + inner
}

fn values_json(values: &[KeyValue<'_>]) -> Json {
    let members = values
        .iter()
        .map(|value| (value.key.to_string(), value_json(&value.value)));
    Json::Object(members.collect::<Map<_, _>>())
}

pub fn value_json(value: &Value) -> Json {
    match value {
        Value::Bool(value) => Json::from(*value),
        Value::Long(value) => Json::from(*value),
        Value::Double(value) => Json::from(*value),
        Value::String(text) => Json::from(&**text),
        Value::Json(text) => serde_json::from_str(text).unwrap_or_default(),
    }
}

/// A text as it is; anything else as JSON.
pub fn plain(json: &Json) -> String {
    match json {
        Json::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// Of all patterns of a node: what is filled in may be in them many times.
const FILLED_BYTES_MAX: usize = 1 << 20;
/// What is longer is no name.
const NAME_BYTES_MAX: usize = 1024;

/// One pattern, as [`Filler::fill`] fills it.
pub fn fill(pattern: &str, message: &Message<'_>) -> Result<String, NodeError> {
    Filler::new(message).fill(pattern)
}

/// Fills the patterns of a node from a message.
pub struct Filler<'m> {
    message: &'m Message<'m>,
    json: Option<Cow<'m, Json>>,
    left: usize,
}

impl<'m> Filler<'m> {
    pub fn new(message: &'m Message<'_>) -> Filler<'m> {
        Filler {
            message,
            json: None,
            left: FILLED_BYTES_MAX,
        }
    }

    /// `${name}` from the metadata, `$[path.to.member]` from the data; what is not there stays as it is written. What is filled in is
    /// not looked at again.
    pub fn fill(&mut self, pattern: &str) -> Result<String, NodeError> {
        if !pattern.contains('$') {
            return Ok(pattern.to_owned());
        }
        let mut filled = String::with_capacity(pattern.len().min(self.left));
        let mut rest = pattern;
        while let Some(at) = rest.find('$') {
            self.push(&mut filled, &rest[..at])?;
            rest = &rest[at..];
            if let Some((value, end)) = self.found(rest) {
                self.take(value.len())?;
                filled.push_str(&value);
                rest = &rest[end..];
            } else {
                self.push(&mut filled, "$")?;
                rest = &rest[1..];
            }
        }
        self.push(&mut filled, rest)?;
        Ok(filled)
    }

    pub fn fill_all<'p>(&mut self, patterns: impl IntoIterator<Item = &'p String>) -> Result<Vec<String>, NodeError> {
        patterns.into_iter().map(|pattern| self.fill(pattern)).collect()
    }

    /// What stands for the beginning of a text, and where that ends.
    fn found(&mut self, text: &str) -> Option<(Cow<'m, str>, usize)> {
        if let Some((name, end)) = place(text, "${", '}')
            && let Some(value) = self.message.metadata.get(name)
        {
            return Some((value.into(), end));
        }
        let (path, end) = place(text, "$[", ']')?;
        let json = self.json.get_or_insert_with(|| self.message.json());
        Some((plain(member(json, path)?).into(), end))
    }

    fn push(&mut self, filled: &mut String, text: &str) -> Result<(), NodeError> {
        self.take(text.len())?;
        filled.push_str(text);
        Ok(())
    }

    fn take(&mut self, bytes: usize) -> Result<(), NodeError> {
        self.left = self.left.checked_sub(bytes).ok_or_else(|| {
            NodeError::new(format!(
                "what is filled in makes the patterns of the node longer than {} MiB",
                FILLED_BYTES_MAX >> 20
            ))
        })?;
        Ok(())
    }
}

fn place<'a>(text: &'a str, open: &str, close: char) -> Option<(&'a str, usize)> {
    let inner = text.strip_prefix(open)?;
    let looked_at = inner.as_bytes().iter().take(NAME_BYTES_MAX + 1);
    let end = looked_at.enumerate().find(|(_, byte)| char::from(**byte) == close)?.0;
    Some((&inner[..end], open.len() + end + close.len_utf8()))
}

fn member<'a>(json: &'a Json, path: &str) -> Option<&'a Json> {
    let found = path.split('.').try_fold(json, |json, name| json.get(name))?;
    (!found.is_null()).then_some(found)
}
