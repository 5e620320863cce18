//! Functions of the message, and of values that can be missing.

use rule_values::{FunctionError, Value};

use super::maps::dotted;
use super::{FunctionCall, FunctionGroup, function_table};
use crate::access;
use crate::compare;
use crate::event::Column;

function_table! { FunctionGroup::Message;
    "clientid" () -> ANY, |c| column(c, Column::ClientId), "The column `clientid`.", "clientid() = 'c_example'";
    "clientip" () -> ANY, |c| column(c, Column::PeerHost), "The column `peerhost`.", "clientip() = '192.168.0.10'";
    "coalesce" (first: ANY; second: ANY) -> ANY, |c| coalesce(c, |v| *v == Value::Undefined), "The first of two values, or of an array, that is not undefined.", "coalesce(null(), 5) = 5";
    "coalesce_ne" (first: ANY; second: ANY) -> ANY, |c| coalesce(c, |v| *v == Value::Undefined || v.as_bytes() == Some(b"")), "The first of two values, or of an array, that is neither undefined nor an empty string.", "coalesce_ne('', 5) = 5";
    "contains_topic" (filters: ARRAY, topic: TEXT; qos: INT) -> BOOL, |c| contains_topic(c, false), "Whether an array of maps contains a map with this `topic`, and with this `qos` if given.", "contains_topic(json_decode('[{\"topic\":\"t/a\",\"qos\":0}]'), 't/a') = true";
    "contains_topic_match" (filters: ARRAY, filter: TEXT; qos: INT) -> BOOL, |c| contains_topic(c, true), "Whether an array of maps contains a map whose `topic` matches the filter, and with this `qos` if given.", "contains_topic_match(json_decode('[{\"topic\":\"t/a\",\"qos\":0}]'), 't/+', 0) = true";
    "flag" (name: TEXT) -> ANY, flag, "One of the flags of the message.", "flag('retain') = false";
    "flags" () -> ANY, |c| column(c, Column::Flags), "The column `flags`.", "flags() = json_decode('{\"retain\": false}')";
    "msgid" () -> ANY, |c| column(c, Column::Id), "The column `id`.", "strlen(msgid()) = 32";
    "null" () -> UNDEFINED, |_| Ok(Value::Undefined), "Undefined.", "is_null(null()) = true";
    "payload" (; path: TEXT) -> ANY, payload, "The payload, or a field of it by a path of keys separated by points; undefined if the payload is not JSON.", "payload('msg') = 'hello'";
    "peerhost" () -> ANY, |c| column(c, Column::PeerHost), "The column `peerhost`.", "peerhost() = '192.168.0.10'";
    "qos" () -> ANY, |c| column(c, Column::QoS), "The column `qos`.", "qos() = 1";
    "topic" (; level: INT) -> ANY, topic, "The topic, or one of its levels, counted from 1.", "topic(2) = 'a'";
    "username" () -> ANY, |c| column(c, Column::Username), "The column `username`.", "username() = 'u_example'";
}

fn column(call: &mut FunctionCall<'_, '_>, column: Column) -> Result<Value, FunctionError> {
    if !call.run.event.kind().has(column) {
        return Ok(Value::Undefined);
    }
    call.run.charged_column(column)
}

fn coalesce(call: &mut FunctionCall<'_, '_>, is_missing: impl Fn(&Value) -> bool) -> Result<Value, FunctionError> {
    let values = match call.arguments {
        [Value::Array(values)] => values,
        arguments => arguments,
    };
    call.run.budget.charge_steps(values.len() as u64 / 8)?;
    Ok(values
        .iter()
        .find(|value| !is_missing(value))
        .cloned()
        .unwrap_or_default())
}

fn contains_topic(call: &mut FunctionCall<'_, '_>, by_filter: bool) -> Result<Value, FunctionError> {
    let (filters, wanted) = (call.array(0)?, call.str(1)?);
    let mut found = None;
    for value in filters {
        let topic = match value {
            Value::Map(map) => map.get(b"topic"),
            _ => None,
        };
        call.run.budget.charge_steps(1)?;
        let Some(Value::Text(topic)) = topic else {
            continue;
        };
        call.run.budget.read(topic.len() + wanted.len().min(topic.len()))?;
        let is_wanted = |topic: &str| match by_filter {
            true => mqtt::filter_matches(wanted, topic),
            false => topic == wanted,
        };
        if topic.as_str().is_some_and(is_wanted) {
            found = Some(value);
            break;
        }
    }
    Ok(Value::Bool(match (found, call.has(2)) {
        (Some(Value::Map(map)), true) => match map.get(b"qos") {
            Some(qos) => compare::is_same(qos, call.value(2), &mut call.run.budget)?,
            None => false,
        },
        (found, _) => found.is_some(),
    }))
}

fn flag(call: &mut FunctionCall<'_, '_>) -> Result<Value, FunctionError> {
    let flags = column(call, Column::Flags)?;
    let path = dotted(call, call.text(0)?)?;
    access::get(&flags, &path, &call.run.limits.json, &mut call.run.budget)
}

fn payload(call: &mut FunctionCall<'_, '_>) -> Result<Value, FunctionError> {
    if !call.has(0) {
        return column(call, Column::Payload);
    }
    let path = dotted(call, call.text(0)?)?;
    Ok(call.run.payload_places(&path).unwrap_or_default())
}

fn topic(call: &mut FunctionCall<'_, '_>) -> Result<Value, FunctionError> {
    let topic = column(call, Column::Topic)?;
    if !call.has(0) {
        return Ok(topic);
    }
    let (level, Some(topic)) = (call.int(0)?, topic.as_str()) else {
        return Ok(Value::Undefined);
    };
    call.run.budget.read(topic.len())?;
    let found = usize::try_from(level - 1)
        .ok()
        .and_then(|index| mqtt::levels(topic).nth(index));
    match found {
        Some(level) => Ok(Value::text(level)),
        None => Err(call.type_error(0, &level.to_string(), &format!("a level of {topic}"))),
    }
}
