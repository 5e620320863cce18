//! Publishes the outputs of rules as messages.

use std::collections::VecDeque;
use std::sync::Arc;

use broker::tap::TapPublication;
use broker::{ServerMessage, ShardId};
use connectors::mqtt::LOOP_PROPERTY;
use mqtt::{Property, PropertyWriter, QoS};
use rules::{JsonForm, Map, MissingText, Template, Value};
use tokio::sync::oneshot;

use crate::cause::{hash, without_rules};
use crate::set::{FixedOrTemplate, Republish};

/// Renders a message from an output. The error names the field.
pub fn republish(templates: &Republish, output: &Map, mark: u64) -> Result<TapPublication, String> {
    let topic = text(&templates.topic, output, "topic")?;
    if let Err(error) = mqtt::validate_topic_name(&topic) {
        return Err(format!("republish: topic {topic:?}: {error}"));
    }
    if topic.starts_with("$SYS/") {
        return Err(format!(
            "republish: topic {topic:?}: only the server may publish below $SYS/"
        ));
    }
    let qos = match &templates.qos {
        FixedOrTemplate::Fixed(qos) => *qos,
        FixedOrTemplate::Template(template) => qos(template, output)?,
    };
    let retain = match &templates.retain {
        FixedOrTemplate::Fixed(retain) => *retain,
        FixedOrTemplate::Template(template) => is_true(template, output, "retain")?,
    };
    let is_direct = match &templates.direct_dispatch {
        FixedOrTemplate::Fixed(is_direct) => *is_direct,
        FixedOrTemplate::Template(template) => is_true(template, output, "direct_dispatch")?,
    };
    Ok(TapPublication {
        topic,
        payload: bytes(&templates.payload, output, "payload")?,
        properties: properties(templates, output)?,
        qos,
        // As in EMQX, a message with direct dispatch is not retained.
        retain: retain && !is_direct,
        expiry_s: expiry(templates, output)?,
        mark: if is_direct { without_rules(mark) } else { mark },
    })
}

/// Returns the message expiry interval in seconds, or `None` if the template yields nothing.
fn expiry(templates: &Republish, output: &Map) -> Result<Option<u32>, String> {
    let value = match &templates.message_expiry {
        Some(template) => value(template, output),
        None => return Ok(None),
    };
    let seconds = match &value {
        Value::Undefined => return Ok(None),
        Value::Int(seconds) => u32::try_from(*seconds).ok(),
        value => value.as_str().and_then(|text| text.parse().ok()),
    };
    let invalid = || format!("republish: Message-Expiry-Interval: {value:?} is not a number of seconds");
    seconds.map(Some).ok_or_else(invalid)
}

/// Messages to publish, grouped by the shard that publishes them. Messages of one topic stay in order.
pub struct PendingPublishes(VecDeque<(ShardId, Arc<Vec<TapPublication>>)>);

impl PendingPublishes {
    pub fn new(net: &net::ServerHandle, messages: Vec<TapPublication>) -> PendingPublishes {
        let shards = net.shards();
        let mut parts: Vec<Vec<TapPublication>> = (0..shards).map(|_| Vec::new()).collect();
        for message in messages {
            parts[(hash(message.topic.as_bytes()) % u64::from(shards)) as usize].push(message);
        }
        let parts = parts.into_iter().enumerate().filter(|(_, part)| !part.is_empty());
        PendingPublishes(
            parts
                .map(|(shard, part)| (ShardId(shard as u16), Arc::new(part)))
                .collect(),
        )
    }
}

/// Publishes messages outside the data plane, and waits until they are stored. After an error, the unpublished ones
/// remain.
pub async fn publish_all(net: &net::ServerHandle, unpublished: &mut PendingPublishes) -> Result<(), String> {
    while let Some((shard, part)) = unpublished.0.front() {
        let (stored, is_stored) = oneshot::channel();
        let part = Arc::clone(part);
        let publish = move |shard: &mut broker::Shard, now: broker::Now| {
            // A retry would fail as well, so the others are published without these.
            let limits = shard.inspect().taps().message_limits();
            let beyond = part
                .iter()
                .filter_map(|it| Some((it, limits.check(&it.limited()).err()?)));
            for (message, limit) in beyond {
                tracing::warn!(topic = message.topic, %limit, "a message of a rule or a source was dropped");
            }
            let all = || part.iter().map(server_message);
            let mut server = shard.server_publisher(now);
            if let Some(message) = all().find(|message| !server.can_store(message)) {
                return Err(format!(
                    "topic {}: the server cannot store more messages at present",
                    message.topic
                ));
            }
            for message in all() {
                server.publish(message);
            }
            server.call_when_stored(Box::new(move || _ = stored.send(())));
            Ok(())
        };
        let asked = net.call_async(*shard, publish);
        asked
            .map_err(|error| error.to_string())?
            .await
            .map_err(|error| error.to_string())??;
        let is_stored = is_stored.await;
        is_stored.map_err(|_| "the journal has failed, or the server is stopping".to_owned())?;
        unpublished.0.pop_front();
    }
    Ok(())
}

fn server_message(message: &TapPublication) -> ServerMessage<'_> {
    ServerMessage {
        topic: &message.topic,
        payload: &message.payload,
        properties: &message.properties,
        qos: message.qos,
        retain: message.retain,
        expiry_s: message.expiry_s,
        mark: message.mark,
    }
}

fn bytes(template: &Template, output: &Map, field: &str) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    template
        .render(output, MissingText::Undefined, &mut bytes)
        .map_err(|error| format!("republish: {field}: {error}"))?;
    Ok(bytes)
}

fn text(template: &Template, output: &Map, field: &str) -> Result<String, String> {
    let text = String::from_utf8(bytes(template, output, field)?);
    let text = text.map_err(|_| format!("republish: {field}: is not valid UTF-8"))?;
    check_string(&text).map_err(|problem| format!("republish: {field}: {problem}"))?;
    Ok(text)
}

/// Checks a string for characters that MQTT forbids. Subscribers would close the connection [MQTT-1.5.4-2].
fn check_string(text: &str) -> Result<(), String> {
    if text.len() > usize::from(u16::MAX) {
        return Err(format!("has {} bytes, must have at most 65535", text.len()));
    }
    match text.contains('\0') {
        true => Err("must not contain NUL".to_owned()),
        false => Ok(()),
    }
}

fn value(template: &Template, output: &Map) -> Value {
    template.value(output, MissingText::Undefined).unwrap_or_default()
}

fn qos(template: &Template, output: &Map) -> Result<QoS, String> {
    let value = value(template, output);
    let number = match &value {
        Value::Int(number) => u8::try_from(*number).ok(),
        Value::Undefined => Some(0),
        value => value.as_str().and_then(|text| text.parse().ok()),
    };
    match number {
        Some(0) => Ok(QoS::AtMostOnce),
        Some(1) => Ok(QoS::AtLeastOnce),
        Some(2) => Ok(QoS::ExactlyOnce),
        _ => Err(format!("republish: qos: {value:?} is not 0, 1 or 2")),
    }
}

fn is_true(template: &Template, output: &Map, field: &str) -> Result<bool, String> {
    let value = value(template, output);
    match &value {
        Value::Bool(retain) => Ok(*retain),
        Value::Undefined | Value::Int(0) => Ok(false),
        Value::Int(1) => Ok(true),
        other => match other.as_str() {
            Some("true" | "1") => Ok(true),
            Some("false" | "0") => Ok(false),
            _ => Err(format!("republish: {field}: {value:?} is not true or false")),
        },
    }
}

/// Encodes the MQTT 5 properties. A template without a value adds none.
fn properties(templates: &Republish, output: &Map) -> Result<Vec<u8>, String> {
    let mut out = Vec::new();
    let some = |template: &Option<Template>, field| match template {
        Some(template) if value(template, output) != Value::Undefined => text(template, output, field).map(Some),
        _ => Ok(None),
    };
    let content_type = some(&templates.content_type, "content_type")?;
    let response_topic = some(&templates.response_topic, "response_topic")?;
    let correlation = match &templates.correlation_data {
        Some(template) if value(template, output) != Value::Undefined => Some(bytes(template, output, "correlation")?),
        _ => None,
    };
    let is_text = match &templates.payload_format {
        Some(template) => is_true(template, output, "payload format")?,
        None => false,
    };
    let mut writer = PropertyWriter::new(&mut out);
    if is_text {
        writer.put(Property::PayloadFormatIndicator(1));
    }
    if let Some(text) = &content_type {
        writer.put(Property::ContentType(text));
    }
    if let Some(topic) = &response_topic {
        mqtt::validate_topic_name(topic).map_err(|error| format!("republish: response_topic {topic:?}: {error}"))?;
        writer.put(Property::ResponseTopic(topic));
    }
    if let Some(data) = &correlation {
        writer.put(Property::CorrelationData(data));
    }
    for (name, template) in &templates.user_properties {
        let (name, text) = (
            text(name, output, "user property")?,
            text(template, output, "user property")?,
        );
        writer.put(Property::UserProperty(&name, &text));
    }
    for (name, text) in map_user_properties(templates, output)? {
        writer.put(Property::UserProperty(&name, &text));
    }
    Ok(out)
}

/// Reads user properties from a map, where a list is a property that occurs several times, or from a list of objects
/// with `key` and `value`. Bridge marks are omitted; the code that publishes the message adds the right ones.
fn map_user_properties(templates: &Republish, output: &Map) -> Result<Vec<(String, String)>, String> {
    let given = match &templates.user_properties_map {
        Some(template) => value(template, output),
        None => return Ok(Vec::new()),
    };
    let mut all = Vec::new();
    match &given {
        Value::Undefined | Value::Null => {}
        Value::Map(map) => {
            for (name, value) in map.iter() {
                let several = match value {
                    Value::Array(values) => &values[..],
                    one => std::slice::from_ref(one),
                };
                for value in several {
                    all.push(user_property(name.as_bytes(), value)?);
                }
            }
        }
        Value::Array(pairs) => {
            for pair in pairs.iter() {
                let (Some(Value::Text(name)), Some(value)) = (member(pair, "key"), member(pair, "value")) else {
                    return Err(format!("republish: user_properties: {pair:?} has no key and value"));
                };
                all.push(user_property(name.as_bytes(), value)?);
            }
        }
        other => {
            return Err(format!("republish: user_properties: {other:?} is not a map or list"));
        }
    }
    all.retain(|(name, _)| name != LOOP_PROPERTY);
    Ok(all)
}

fn member<'a>(value: &'a Value, name: &str) -> Option<&'a Value> {
    match value {
        Value::Map(map) => map.get(name.as_bytes()),
        _ => None,
    }
}

fn user_property(name: &[u8], value: &Value) -> Result<(String, String), String> {
    let invalid = |name: &str| {
        format!("republish: user_properties: {name} is not valid UTF-8, or not a string, number or boolean")
    };
    let name = std::str::from_utf8(name).map_err(|_| invalid("a name"))?;
    let text = match value {
        Value::Map(_) | Value::Array(_) | Value::Undefined | Value::Null => return Err(invalid(name)),
        Value::Text(text) => text.as_bytes().to_vec(),
        value => rules::encode_json(value, JsonForm::UndefinedAsString),
    };
    let text = String::from_utf8(text).map_err(|_| invalid(name))?;
    for part in [name, &*text] {
        check_string(part).map_err(|problem| format!("republish: user_properties: {problem}"))?;
    }
    Ok((name.to_owned(), text))
}
