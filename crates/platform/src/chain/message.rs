//! Messages of rule chains: type, originator, metadata, data. Telemetry stays decoded until a node needs it as JSON.

use std::borrow::Cow;

use serde_json::{Map, Value as Json};
use timeseries::PointValue;

use super::host::{NodeError, RestUrlPart};
use crate::decode::{KeyValue, TS_MAX_MS};
use crate::ids::{CustomerId, EntityId, EntityType, Uuid};

/// Message types with a connection of their own. All other types, such as alarms, use "Other".
const TYPES: &[(&str, &str)] = &[
    ("POST_ATTRIBUTES_REQUEST", "Post attributes"),
    ("POST_TELEMETRY_REQUEST", "Post telemetry"),
    ("TO_SERVER_RPC_REQUEST", "RPC Request from Device"),
    (RPC_CALL, "RPC Request to Device"),
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
/// A client sends an RPC request to a device over REST.
pub const RPC_CALL: &str = "RPC_CALL_FROM_SERVER_TO_DEVICE";

/// The connection by which the message type switch routes a type.
pub fn connection_of(kind: &str) -> &'static str {
    TYPES
        .iter()
        .find(|(name, _)| *name == kind)
        .map_or("Other", |(_, label)| label)
}

#[derive(Clone, Debug, PartialEq)]
pub struct ChainMessage<'a> {
    pub kind: Cow<'a, str>,
    pub originator: EntityId,
    pub customer: CustomerId,
    pub metadata: Metadata<'a>,
    pub data: MessageData<'a>,
    /// Timestamp of the data, or receive time of the message.
    pub ts_ms: i64,
}

impl ChainMessage<'static> {
    /// An empty message of the tenant.
    pub fn empty(tenant: Uuid, now_ms: i64) -> ChainMessage<'static> {
        ChainMessage {
            kind: "".into(),
            originator: EntityId::new(EntityType::Tenant, tenant),
            customer: CustomerId::NULL,
            metadata: Metadata::default(),
            data: MessageData::Json(Json::Object(serde_json::Map::new())),
            ts_ms: now_ms,
        }
    }
}

impl ChainMessage<'_> {
    /// Returns the timestamp that nodes use for the data. This is the number in the metadata key `ts`, which a chain
    /// may have changed. Without this key, it is the timestamp of the message.
    pub fn data_ts_ms(&self) -> i64 {
        let ts_ms = self.metadata.get("ts").and_then(|text| text.parse().ok());
        ts_ms.unwrap_or(self.ts_ms).min(TS_MAX_MS)
    }
}

#[derive(Clone, Debug, PartialEq)]
pub enum MessageData<'a> {
    /// Values with one timestamp.
    Values(&'a [KeyValue<'a>]),
    Json(Json),
}

impl MessageData<'_> {
    pub fn into_json(self) -> Json {
        match self {
            MessageData::Json(json) => json,
            MessageData::Values(values) => values_json(values),
        }
    }
}

/// Names and values of a message's metadata. A list is used, because a message has few of them.
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

    /// Converts values that are not strings to strings.
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

impl ChainMessage<'_> {
    pub fn json(&self) -> Cow<'_, Json> {
        match &self.data {
            MessageData::Json(json) => Cow::Borrowed(json),
            MessageData::Values(values) => Cow::Owned(values_json(values)),
        }
    }

    /// Approximate size in memory when stored.
    pub fn weight(&self) -> usize {
        let data = match &self.data {
            MessageData::Json(json) => json_weight(json),
            MessageData::Values(values) => values.iter().map(KeyValue::weight).sum(),
        };
        data + self.weight_without_data()
    }

    pub fn weight_without_data(&self) -> usize {
        let metadata = self.metadata.0.iter();
        let metadata = metadata.map(|(name, value)| name.len() + value.len() + 64);
        metadata.sum::<usize>() + 256
    }

    /// Copies borrowed data.
    pub fn into_owned(self) -> ChainMessage<'static> {
        let metadata = self.metadata.0.into_iter();
        let metadata = metadata.map(|(name, value)| (name.into_owned().into(), value.into_owned().into()));
        ChainMessage {
            kind: self.kind.into_owned().into(),
            originator: self.originator,
            customer: self.customer,
            metadata: Metadata(metadata.collect()),
            data: MessageData::Json(self.data.into_json()),
            ts_ms: self.ts_ms,
        }
    }
}

/// Approximate size in memory: JSON other than strings takes several times its length.
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

pub fn value_json(value: &PointValue) -> Json {
    match value {
        PointValue::Bool(value) => Json::from(*value),
        PointValue::Long(value) => Json::from(*value),
        PointValue::Double(value) => Json::from(*value),
        PointValue::String(text) => Json::from(&**text),
        PointValue::Json(text) => serde_json::from_str(text).unwrap_or_default(),
    }
}

/// A string without quotes; any other value as JSON.
pub fn plain(json: &Json) -> String {
    match json {
        Json::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// Largest total length of a node's filled patterns. A message may contain a value many times.
const FILLED_BYTES_MAX: usize = 1 << 20;
/// Longest name in a pattern.
const NAME_BYTES_MAX: usize = 1024;

/// Whether a text contains a pattern that a message may fill.
pub fn has_pattern(text: &str) -> bool {
    text.contains("${") || text.contains("$[")
}

/// Fills one pattern like [`PatternFiller::fill`].
pub fn fill(pattern: &str, message: &ChainMessage<'_>) -> Result<String, NodeError> {
    PatternFiller::new(message).fill(pattern)
}

/// Fills the patterns of a node from a message.
pub struct PatternFiller<'m> {
    message: &'m ChainMessage<'m>,
    json: Option<Cow<'m, Json>>,
    left: usize,
}

impl<'m> PatternFiller<'m> {
    pub fn new(message: &'m ChainMessage<'_>) -> PatternFiller<'m> {
        PatternFiller {
            message,
            json: None,
            left: FILLED_BYTES_MAX,
        }
    }

    /// Replaces `${name}` by metadata and `$[path.to.member]` by data. Unknown names stay as they are. Inserted
    /// values are not searched for patterns.
    pub fn fill(&mut self, pattern: &str) -> Result<String, NodeError> {
        let mut filled = String::with_capacity(pattern.len().min(self.left));
        self.fill_each(pattern, |text, _| filled.push_str(text))?;
        Ok(filled)
    }

    /// As [`PatternFiller::fill`], but separates the values from the surrounding text.
    pub fn fill_url(&mut self, pattern: &str) -> Result<Vec<RestUrlPart>, NodeError> {
        let mut parts = Vec::new();
        self.fill_each(pattern, |text, is_value| match (parts.last_mut(), is_value) {
            (_, true) => parts.push(RestUrlPart::Value(text.to_owned())),
            (Some(RestUrlPart::Literal(before)), false) => before.push_str(text),
            (_, false) if text.is_empty() => {}
            (_, false) => parts.push(RestUrlPart::Literal(text.to_owned())),
        })?;
        Ok(parts)
    }

    /// Calls `each` with each part of the text, and whether the part is a value.
    fn fill_each(&mut self, pattern: &str, mut each: impl FnMut(&str, bool)) -> Result<(), NodeError> {
        let mut rest = pattern;
        while let Some(at) = rest.find('$') {
            self.charge(at)?;
            each(&rest[..at], false);
            rest = &rest[at..];
            if let Some((value, end)) = self.found(rest) {
                self.charge(value.len())?;
                each(&value, true);
                rest = &rest[end..];
            } else {
                self.charge(1)?;
                each("$", false);
                rest = &rest[1..];
            }
        }
        self.charge(rest.len())?;
        each(rest, false);
        Ok(())
    }

    pub fn fill_all<'p>(&mut self, patterns: impl IntoIterator<Item = &'p String>) -> Result<Vec<String>, NodeError> {
        patterns.into_iter().map(|pattern| self.fill(pattern)).collect()
    }

    /// The value for the pattern at the start of the text, and the end of the pattern.
    fn found(&mut self, text: &str) -> Option<(Cow<'m, str>, usize)> {
        if let Some((name, end)) = find_placeholder(text, "${", '}')
            && let Some(value) = self.message.metadata.get(name)
        {
            return Some((value.into(), end));
        }
        let (path, end) = find_placeholder(text, "$[", ']')?;
        let json = self.json.get_or_insert_with(|| self.message.json());
        Some((plain(member(json, path)?).into(), end))
    }

    fn charge(&mut self, bytes: usize) -> Result<(), NodeError> {
        self.left = self.left.checked_sub(bytes).ok_or_else(|| {
            NodeError::new(format!(
                "the filled patterns of the node are longer than {} MiB",
                FILLED_BYTES_MAX >> 20
            ))
        })?;
        Ok(())
    }
}

fn find_placeholder<'a>(text: &'a str, open: &str, close: char) -> Option<(&'a str, usize)> {
    let inner = text.strip_prefix(open)?;
    let looked_at = inner.as_bytes().iter().take(NAME_BYTES_MAX + 1);
    let end = looked_at.enumerate().find(|(_, byte)| char::from(**byte) == close)?.0;
    Some((&inner[..end], open.len() + end + close.len_utf8()))
}

fn member<'a>(json: &'a Json, path: &str) -> Option<&'a Json> {
    let found = path.split('.').try_fold(json, |json, name| json.get(name))?;
    (!found.is_null()).then_some(found)
}
