//! The properties of MQTT 5 that a message goes out with: what their templates give, by default what it came with.

use std::borrow::Cow;
use std::collections::BTreeMap;

use mqtt::{Property, PropertyWriter, validate_topic_name};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::outgoing::LOOP_PROPERTY;
use crate::record::Record;
use crate::sink::Template;

/// Of a message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum UserProperties {
    /// Templates by name.
    Each(BTreeMap<String, String>),
    /// A template that gives a map, or a list of objects with `key` and `value`, such as `${pub_props.User-Property}`; empty: there are none.
    All(String),
}

impl Default for UserProperties {
    fn default() -> UserProperties {
        UserProperties::Each(BTreeMap::new())
    }
}

/// By EMQX's names, which are the standard's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Name {
    ContentType,
    CorrelationData,
    MessageExpiryInterval,
    PayloadFormatIndicator,
    ResponseTopic,
}

const NAMES: [(&str, Name); 5] = [
    ("Content-Type", Name::ContentType),
    ("Correlation-Data", Name::CorrelationData),
    ("Message-Expiry-Interval", Name::MessageExpiryInterval),
    ("Payload-Format-Indicator", Name::PayloadFormatIndicator),
    ("Response-Topic", Name::ResponseTopic),
];

/// What a field of a record is for.
#[derive(Clone, Debug)]
pub(super) enum Slot {
    User(String),
    AllUsers,
    Named(&'static str, Name),
}

/// Templates of those that the message has, if the rule puts out `pub_props`.
pub fn user_properties_of_the_message() -> UserProperties {
    UserProperties::All("${pub_props.User-Property-Pairs}".to_owned())
}

/// As [`user_properties_of_the_message`].
pub fn properties_of_the_message() -> BTreeMap<String, String> {
    let template = |(name, _)| (String::from(name), format!("${{pub_props.{name}}}"));
    NAMES.map(template).into()
}

/// The templates of an action's properties, and what each is for. Fields of user properties come first, as in records of versions that had no others.
pub(super) fn slots(user: &UserProperties, named: &BTreeMap<String, String>) -> (Vec<Template>, Vec<Slot>) {
    let users = match user {
        UserProperties::Each(each) => {
            let slot = |(name, text): (&String, &String)| {
                (
                    Template::new(format!("user_properties.{name}"), text),
                    Slot::User(name.clone()),
                )
            };
            each.iter().map(slot).collect()
        }
        UserProperties::All(text) if text.is_empty() => Vec::new(),
        UserProperties::All(text) => vec![(Template::new("user_properties", text), Slot::AllUsers)],
    };
    let known = NAMES.iter().filter_map(|&(name, slot)| {
        let text = named.get(name)?;
        Some((
            Template::new(format!("mqtt_properties.{name}"), text),
            Slot::Named(name, slot),
        ))
    });
    users.into_iter().chain(known).unzip()
}

/// What is wrong with the names, if anything.
pub(super) fn problem(named: &BTreeMap<String, String>) -> Option<String> {
    let unknown = named
        .keys()
        .find(|name| !NAMES.iter().any(|(known, _)| known == name))?;
    let known = NAMES.map(|(name, _)| name).join(", ");
    Some(format!("mqtt_properties: `{unknown}` is none of {known}"))
}

/// Writes what the fields of a record from `first` on say. `unix_ms`: now. An error: the message can never be sent.
pub(super) fn put(
    writer: &mut PropertyWriter<'_>,
    slots: &[Slot],
    record: &Record,
    first: usize,
    unix_ms: u64,
) -> Result<(), String> {
    for (index, slot) in slots.iter().enumerate() {
        let Some(value) = record.field(first + index) else {
            continue;
        };
        match slot {
            Slot::User(name) => {
                writer.put(Property::UserProperty(name, &String::from_utf8_lossy(value)));
            }
            Slot::AllUsers => put_users(writer, value)?,
            Slot::Named(name, kind) => {
                let waited_s = unix_ms.saturating_sub(record.unix_ms()) / 1000;
                put_named(writer, *kind, value, waited_s)
                    .map_err(|problem| format!("mqtt_properties.{name}: {problem}"))?;
            }
        }
    }
    Ok(())
}

fn put_named(writer: &mut PropertyWriter<'_>, name: Name, value: &[u8], waited_s: u64) -> Result<(), String> {
    let text = || std::str::from_utf8(value).map_err(|_| "is no UTF-8 text".to_owned());
    let fits = value.len() <= usize::from(u16::MAX);
    if !fits {
        return Err(format!("has {} bytes, must have 65535 at most", value.len()));
    }
    match name {
        Name::ContentType => writer.put(Property::ContentType(text()?)),
        Name::CorrelationData => writer.put(Property::CorrelationData(value)),
        Name::ResponseTopic => {
            let topic = text()?;
            validate_topic_name(topic).map_err(|error| format!("`{topic}`: {error}"))?; // [MQTT-3.3.2-14]
            writer.put(Property::ResponseTopic(topic))
        }
        Name::PayloadFormatIndicator => match value {
            b"1" | b"true" => writer.put(Property::PayloadFormatIndicator(1)),
            b"0" | b"false" => writer,
            _ => return Err(format!("is `{}`, must be 0 or 1", String::from_utf8_lossy(value))),
        },
        Name::MessageExpiryInterval => {
            let seconds = text()?.parse::<u32>();
            let seconds =
                seconds.map_err(|_| format!("is `{}`, must be a number of seconds", String::from_utf8_lossy(value)))?;
            // As of a server that has held the message back [MQTT-3.3.2-6].
            let left = u64::from(seconds)
                .checked_sub(waited_s)
                .ok_or("has passed while the message waited")?;
            writer.put(Property::MessageExpiryInterval(left as u32))
        }
    };
    Ok(())
}

/// Marks of bridges among them are left out: what is to stand there of them is known from elsewhere.
fn put_users(writer: &mut PropertyWriter<'_>, json: &[u8]) -> Result<(), String> {
    let wrong = || "user_properties: must give a map of texts, or a list of objects with key and value".to_owned();
    let mut put = |name: &str, value: &Value| {
        let text = match value {
            Value::String(text) => Cow::from(text),
            Value::Number(_) | Value::Bool(_) => Cow::from(value.to_string()),
            _ => return Err(wrong()),
        };
        if name != LOOP_PROPERTY {
            writer.put(Property::UserProperty(name, &text));
        }
        Ok(())
    };
    match serde_json::from_slice(json).map_err(|_| wrong())? {
        Value::Object(map) => {
            for (name, value) in &map {
                match value {
                    // A list stands for a property that is there several times.
                    Value::Array(several) => several.iter().try_for_each(|value| put(name, value))?,
                    one => put(name, one)?,
                }
            }
        }
        Value::Array(pairs) => {
            for pair in &pairs {
                let name = pair["key"].as_str().ok_or_else(wrong)?;
                put(name, &pair["value"])?;
            }
        }
        _ => return Err(wrong()),
    }
    Ok(())
}
