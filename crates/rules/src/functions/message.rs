//! Functions of the message itself, and of values that may not be there.

use super::maps::dotted;
use super::{Call, Group, function_table};
use crate::access;
use crate::error::Fault;
use crate::event::Column;
use crate::value::Value;

function_table! { Group::Message;
    "clientid" () -> ANY, |c| column(c, Column::ClientId), "The column `clientid`.", "";
    "clientip" () -> ANY, |c| column(c, Column::PeerHost), "The column `peerhost`.", "";
    "coalesce" (first: ANY; second: ANY) -> ANY, |c| coalesce(c, |v| *v == Value::Undefined), "The first of the two, or of an array, that is not undefined.", "coalesce(null(), 5) = 5";
    "coalesce_ne" (first: ANY; second: ANY) -> ANY, |c| coalesce(c, |v| *v == Value::Undefined || v.as_bytes() == Some(b"")), "The first of the two, or of an array, that is neither undefined nor an empty string.", "coalesce_ne('', 5) = 5";
    "contains_topic" (filters: ARRAY, topic: TEXT; qos: INT) -> BOOL, |c| contains_topic(c, false), "Whether an array of maps has one whose `topic` is this one, and whose `qos` is.", "contains_topic(json_decode('[{\"topic\":\"t/a\",\"qos\":0}]'), 't/a') = true";
    "contains_topic_match" (filters: ARRAY, filter: TEXT; qos: INT) -> BOOL, |c| contains_topic(c, true), "Whether an array of maps has one whose `topic` matches the filter, and whose `qos` is this.", "contains_topic_match(json_decode('[{\"topic\":\"t/a\",\"qos\":0}]'), 't/+', 0) = true";
    "flag" (name: TEXT) -> ANY, flag, "One of the flags of the message.", "";
    "flags" () -> ANY, |c| column(c, Column::Flags), "The column `flags`.", "";
    "msgid" () -> ANY, |c| column(c, Column::Id), "The column `id`.", "";
    "null" () -> UNDEFINED, |_| Ok(Value::Undefined), "Undefined.", "is_null(null()) = true";
    "payload" (; path: TEXT) -> ANY, payload, "The payload, or a field of it by a path with points; undefined if it is no JSON.", "";
    "peerhost" () -> ANY, |c| column(c, Column::PeerHost), "The column `peerhost`.", "";
    "qos" () -> ANY, |c| column(c, Column::QoS), "The column `qos`.", "";
    "topic" (; level: INT) -> ANY, topic, "The topic, or one of its levels, counted from 1.", "";
    "username" () -> ANY, |c| column(c, Column::Username), "The column `username`.", "";
}

fn column(call: &mut Call<'_, '_>, column: Column) -> Result<Value, Fault> {
    if !call.run.event.kind().has(column) {
        return Ok(Value::Undefined);
    }
    call.run.charged_column(column)
}

fn coalesce(call: &mut Call<'_, '_>, is_nothing: impl Fn(&Value) -> bool) -> Result<Value, Fault> {
    let values = match call.arguments {
        [Value::Array(values)] => values,
        arguments => arguments,
    };
    Ok(values
        .iter()
        .find(|value| !is_nothing(value))
        .cloned()
        .unwrap_or_default())
}

fn contains_topic(call: &mut Call<'_, '_>, by_filter: bool) -> Result<Value, Fault> {
    let (filters, wanted) = (call.array(0)?, call.str(1)?);
    call.run.budget.step(filters.len() as u64)?;
    let is_wanted = |value: &&Value| {
        let Value::Map(map) = value else {
            return false;
        };
        let topic = map.get(b"topic").and_then(Value::as_str);
        topic.is_some_and(|topic| {
            if by_filter {
                mqtt::filter_matches(wanted, topic)
            } else {
                topic == wanted
            }
        })
    };
    let found = filters.iter().find(is_wanted);
    Ok(Value::Bool(match (found, call.has(2)) {
        (Some(Value::Map(map)), true) => map.get(b"qos") == Some(call.value(2)),
        (found, _) => found.is_some(),
    }))
}

fn flag(call: &mut Call<'_, '_>) -> Result<Value, Fault> {
    let flags = column(call, Column::Flags)?;
    let path = dotted(call.text(0)?);
    Ok(access::get(&flags, &path, &call.run.rule.limits.json))
}

fn payload(call: &mut Call<'_, '_>) -> Result<Value, Fault> {
    if !call.has(0) {
        return column(call, Column::Payload);
    }
    let path = dotted(call.text(0)?);
    Ok(call.run.payload_places(&path).unwrap_or_default())
}

fn topic(call: &mut Call<'_, '_>) -> Result<Value, Fault> {
    let topic = column(call, Column::Topic)?;
    if !call.has(0) {
        return Ok(topic);
    }
    let (level, Some(topic)) = (call.int(0)?, topic.as_str()) else {
        return Ok(Value::Undefined);
    };
    let found = usize::try_from(level - 1)
        .ok()
        .and_then(|index| mqtt::levels(topic).nth(index));
    match found {
        Some(level) => Ok(Value::text(level)),
        None => Err(call.fault(0, &level.to_string(), &format!("a level of {topic}"))),
    }
}
