//! The MQTT 5 properties of a published message, from templates. By default they equal those of the received message.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use mqtt::{Property, PropertyWriter, validate_topic_name};
use schemars::JsonSchema;
use serde::de::{self, Deserializer, MapAccess, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::loop_mark::LOOP_PROPERTY;
use crate::record::Record;
use crate::sink::FieldTemplate;

/// User properties of a published message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(untagged)]
#[schemars(rename = "UserProperties")]
pub enum PublishUserProperties {
    /// Templates by property name.
    Each(BTreeMap<String, String>),
    /// A template that yields a map, or a list of objects with `key` and `value`, for example
    /// `${pub_props.User-Property}`. An empty template yields no properties.
    All(String),
}

/// Numbers and booleans in an object are constant values. A derived implementation would reject them, and would not
/// name the property.
impl<'de> Deserialize<'de> for PublishUserProperties {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<PublishUserProperties, D::Error> {
        deserializer.deserialize_any(UserPropertiesVisitor)
    }
}

struct UserPropertiesVisitor;

impl<'de> Visitor<'de> for UserPropertiesVisitor {
    type Value = PublishUserProperties;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a template of all user properties, or an object with a template for each name")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<PublishUserProperties, E> {
        Ok(PublishUserProperties::All(text.to_owned()))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<PublishUserProperties, A::Error> {
        let mut each = BTreeMap::new();
        while let Some((name, value)) = map.next_entry::<String, Value>()? {
            let template = match value {
                Value::String(text) => text,
                Value::Number(_) | Value::Bool(_) => value.to_string(),
                _ => {
                    return Err(de::Error::custom(format!(
                        "{name}: must be a template, a number or a boolean"
                    )));
                }
            };
            each.insert(name, template);
        }
        Ok(PublishUserProperties::Each(each))
    }
}

impl Default for PublishUserProperties {
    fn default() -> PublishUserProperties {
        PublishUserProperties::Each(BTreeMap::new())
    }
}

/// Property names of EMQX, which follow the MQTT standard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PropertyName {
    ContentType,
    CorrelationData,
    MessageExpiryInterval,
    PayloadFormatIndicator,
    ResponseTopic,
}

const NAMES: [(&str, PropertyName); 5] = [
    ("Content-Type", PropertyName::ContentType),
    ("Correlation-Data", PropertyName::CorrelationData),
    ("Message-Expiry-Interval", PropertyName::MessageExpiryInterval),
    ("Payload-Format-Indicator", PropertyName::PayloadFormatIndicator),
    ("Response-Topic", PropertyName::ResponseTopic),
];

/// Meaning of a record's field.
#[derive(Clone, Debug)]
pub(super) enum FieldRole {
    User(String),
    AllUsers,
    Named(&'static str, PropertyName),
}

/// Returns the template of the received message's user properties, which needs `pub_props` in the rule's output.
pub fn message_user_properties() -> PublishUserProperties {
    PublishUserProperties::All("${pub_props.User-Property-Pairs}".to_owned())
}

/// Like [`message_user_properties`], for the other properties.
pub fn message_properties() -> BTreeMap<String, String> {
    let template = |(name, _)| (String::from(name), format!("${{pub_props.{name}}}"));
    NAMES.map(template).into()
}

/// Returns the templates of an action's properties and their meaning. User properties come first, as in records of
/// earlier versions, which had only these.
pub(super) fn slots(
    user: &PublishUserProperties,
    named: &BTreeMap<String, String>,
) -> (Vec<FieldTemplate>, Vec<FieldRole>) {
    let users = match user {
        PublishUserProperties::Each(each) => {
            let slot = |(name, text): (&String, &String)| {
                (
                    FieldTemplate::new(format!("user_properties.{name}"), text),
                    FieldRole::User(name.clone()),
                )
            };
            each.iter().map(slot).collect()
        }
        PublishUserProperties::All(text) if text.is_empty() => Vec::new(),
        PublishUserProperties::All(text) => vec![(FieldTemplate::new("user_properties", text), FieldRole::AllUsers)],
    };
    let known = NAMES.iter().filter_map(|&(name, slot)| {
        let text = named.get(name)?;
        Some((
            FieldTemplate::new(format!("mqtt_properties.{name}"), text),
            FieldRole::Named(name, slot),
        ))
    });
    users.into_iter().chain(known).unzip()
}

/// Returns the problem of an unknown property name.
pub(super) fn problem(named: &BTreeMap<String, String>) -> Option<String> {
    let unknown = named
        .keys()
        .find(|name| !NAMES.iter().any(|(known, _)| known == name))?;
    let known = NAMES.map(|(name, _)| name).join(", ");
    Some(format!(
        "mqtt_properties: `{unknown}` is unknown, must be one of {known}"
    ))
}

/// Writes the properties from the fields of a record, beginning at `first`. `unix_ms` is the current time. An error
/// means that the message can never be sent.
pub(super) fn put(
    writer: &mut PropertyWriter<'_>,
    slots: &[FieldRole],
    record: &Record,
    first: usize,
    unix_ms: u64,
) -> Result<(), String> {
    for (index, slot) in slots.iter().enumerate() {
        let Some(value) = record.field(first + index) else {
            continue;
        };
        match slot {
            FieldRole::User(name) => {
                let value = String::from_utf8_lossy(value);
                for text in [name, &*value] {
                    check_string(text).map_err(|problem| format!("user_properties.{name}: {problem}"))?;
                }
                writer.put(Property::UserProperty(name, &value));
            }
            FieldRole::AllUsers => put_users(writer, value)?,
            FieldRole::Named(name, kind) => {
                let waited_s = unix_ms.saturating_sub(record.unix_ms()) / 1000;
                put_named(writer, *kind, value, waited_s)
                    .map_err(|problem| format!("mqtt_properties.{name}: {problem}"))?;
            }
        }
    }
    Ok(())
}

fn put_named(writer: &mut PropertyWriter<'_>, name: PropertyName, value: &[u8], waited_s: u64) -> Result<(), String> {
    let text = || std::str::from_utf8(value).map_err(|_| "is not valid UTF-8".to_owned());
    let fits = value.len() <= usize::from(u16::MAX);
    if !fits {
        return Err(format!("has {} bytes, must have at most 65535", value.len()));
    }
    match name {
        PropertyName::ContentType => {
            let kind = text()?;
            check_string(kind)?;
            writer.put(Property::ContentType(kind))
        }
        PropertyName::CorrelationData => writer.put(Property::CorrelationData(value)),
        PropertyName::ResponseTopic => {
            let topic = text()?;
            validate_topic_name(topic).map_err(|error| format!("`{topic}`: {error}"))?; // [MQTT-3.3.2-14]
            writer.put(Property::ResponseTopic(topic))
        }
        PropertyName::PayloadFormatIndicator => match value {
            b"1" | b"true" => writer.put(Property::PayloadFormatIndicator(1)),
            b"0" | b"false" => writer,
            _ => return Err(format!("is `{}`, must be 0 or 1", String::from_utf8_lossy(value))),
        },
        PropertyName::MessageExpiryInterval => {
            let seconds = text()?.parse::<u32>();
            let seconds =
                seconds.map_err(|_| format!("is `{}`, must be a number of seconds", String::from_utf8_lossy(value)))?;
            // The waiting time is subtracted, as the standard requires of a server [MQTT-3.3.2-6].
            let left = u64::from(seconds)
                .checked_sub(waited_s)
                .ok_or("expired while the message waited")?;
            writer.put(Property::MessageExpiryInterval(left as u32))
        }
    };
    Ok(())
}

/// Checks a string for characters that MQTT forbids. The broker would close the connection [MQTT-1.5.4-2].
fn check_string(text: &str) -> Result<(), String> {
    if text.len() > usize::from(u16::MAX) {
        return Err(format!("has {} bytes, must have at most 65535", text.len()));
    }
    match text.contains('\0') {
        true => Err("must not contain NUL".to_owned()),
        false => Ok(()),
    }
}

/// Writes user properties. Bridge marks among them are omitted; they come from the record's carried fields.
fn put_users(writer: &mut PropertyWriter<'_>, json: &[u8]) -> Result<(), String> {
    let invalid = || "user_properties: must yield a map of strings, or a list of objects with key and value".to_owned();
    let mut put = |name: &str, value: &Value| {
        let text = match value {
            Value::String(text) => Cow::from(text),
            Value::Number(_) | Value::Bool(_) => Cow::from(value.to_string()),
            _ => return Err(invalid()),
        };
        for text in [name, &text] {
            check_string(text).map_err(|problem| format!("user_properties: {problem}"))?;
        }
        if name != LOOP_PROPERTY {
            writer.put(Property::UserProperty(name, &text));
        }
        Ok(())
    };
    match serde_json::from_slice(json).map_err(|_| invalid())? {
        Value::Object(map) => {
            for (name, value) in &map {
                match value {
                    // A list is a property that occurs several times.
                    Value::Array(several) => several.iter().try_for_each(|value| put(name, value))?,
                    one => put(name, one)?,
                }
            }
        }
        Value::Array(pairs) => {
            for pair in &pairs {
                let name = pair["key"].as_str().ok_or_else(invalid)?;
                put(name, &pair["value"])?;
            }
        }
        _ => return Err(invalid()),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Result<PublishUserProperties, String> {
        serde_json::from_str(json).map_err(|error| error.to_string())
    }

    #[test]
    fn user_properties_are_a_template_or_an_object() {
        let each = [("a", "${x}"), ("b", "5"), ("c", "true")].map(|(name, text)| (name.to_owned(), text.to_owned()));
        let expected = PublishUserProperties::Each(each.into());
        assert_eq!(read(r#"{"a": "${x}", "b": 5, "c": true}"#), Ok(expected));
        assert_eq!(read(r#""${x}""#), Ok(PublishUserProperties::All("${x}".to_owned())));
        for (json, words) in [
            (r#"{"a": {}}"#, "a: must be"),
            ("[]", "a template of all"),
            ("5", "a template of all"),
        ] {
            let error = read(json).unwrap_err();
            assert!(error.contains(words), "{json}: {error}");
        }
    }
}
