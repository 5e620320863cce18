//! Functions of maps. Where a map is wanted, the JSON of one is taken as well.

use super::{Call, Group, function_table};
use crate::access::{self, Place};
use crate::error::Fault;
use crate::number;
use crate::text::Text;
use crate::value::{Map, Value};

function_table! { Group::Map;
    "map_get" (key: TEXT, map: ANY; default: ANY) -> ANY, map_get, "The value of a key, or of a path with points; the default (or undefined) if there is none.", "map_get('msg', json_decode('{\"msg\": \"hello\"}')) = 'hello'";
    "map_keys" (map: TEXT_OR_MAP) -> ARRAY, |c| { let map = c.map(0)?; c.texts(map.iter().map(|(key, _)| key.as_bytes())) }, "Its keys, in order.", "map_keys(json_decode('{\"a\": 1, \"b\": 2}')) = ['a', 'b']";
    "map_new" () -> MAP, |_| Ok(Value::Map(Map::new())), "An empty map.", "map_new() = json_decode('{}')";
    "map_put" (key: TEXT, value: ANY, map: ANY) -> MAP, map_put, "The map with the value under the key, or path with points.", "map_get('b', map_put('b', 1, json_decode('{\"a\": 1}'))) = 1";
    "map_size" (map: TEXT_OR_MAP) -> INT, |c| Ok(Value::Int(c.map(0)?.len() as i128)), "How many entries it has.", "map_size(json_decode('{\"a\": 1}')) = 1";
    "map_to_entries" (map: TEXT_OR_MAP) -> ARRAY, map_to_entries, "Its entries as an array of maps of `key` and `value`.", "map_to_entries('{\"a\":1}') = json_decode('[{\"key\":\"a\",\"value\":1}]')";
    "map_to_redis_hset_args" (map: ANY) -> ARRAY, map_to_redis_hset_args, "Keys and values in turn, as strings; empty if it is no map.", "map_to_redis_hset_args('{\"a\":1}') = ['a', '1']";
    "map_values" (map: TEXT_OR_MAP) -> ARRAY, |c| Ok(Value::array(c.map(0)?.iter().map(|(_, value)| value.clone()).collect())), "Its values, in the order of the keys.", "map_values('{\"a\": 1, \"b\": 2}') = [1, 2]";
    "mget" (key: TEXT_OR_ARRAY, map: TEXT_OR_MAP; default: ANY) -> ANY, mget, "The value of a key, in which points mean nothing; an array of keys goes into nested maps.", "mget(['a', 'b'], json_decode('{\"a\": {\"b\": 1}}')) = 1";
    "mput" (key: TEXT_OR_ARRAY, value: ANY, map: TEXT_OR_MAP) -> MAP, mput, "The map with the value under the key, in which points mean nothing, or under an array of keys.", "mget(['a', 'b'], mput(['a', 'b'], 2, map_new())) = 2";
}

/// `a.b.c` as keys.
pub(super) fn dotted(path: &[u8]) -> Vec<Place> {
    path.split(|byte| *byte == b'.')
        .map(|key| Place::Key(Text::new(key)))
        .collect()
}

/// A key, or an array of keys.
fn keys(call: &Call<'_, '_>) -> Result<Vec<Place>, Fault> {
    match call.value(0) {
        Value::Array(keys) => keys
            .iter()
            .map(|key| match key {
                Value::Text(key) => Ok(Place::Key(key.clone())),
                other => Err(call.fault(
                    0,
                    &format!("an array with {}", other.type_name()),
                    "an array of strings",
                )),
            })
            .collect(),
        _ => Ok(vec![Place::Key(Text::new(call.text(0)?))]),
    }
}

fn get(call: &mut Call<'_, '_>, map: &Value, path: &[Place]) -> Result<Value, Fault> {
    if let Value::Text(text) = map {
        call.run.budget.make(text.len() * 4)?;
    }
    let found = access::get(map, path, &call.run.rule.limits.json);
    Ok(if found == Value::Undefined {
        call.value(2).clone()
    } else {
        found
    })
}

fn map_get(call: &mut Call<'_, '_>) -> Result<Value, Fault> {
    let path = dotted(call.text(0)?);
    get(call, call.value(1), &path)
}

fn mget(call: &mut Call<'_, '_>) -> Result<Value, Fault> {
    let path = keys(call)?;
    let map = Value::Map(call.map(1)?);
    get(call, &map, &path)
}

fn put(call: &mut Call<'_, '_>, mut map: Value, path: &[Place]) -> Result<Value, Fault> {
    let entries = if let Value::Map(map) = &map { map.len() } else { 0 };
    call.run.budget.make(64 * (entries + path.len()))?;
    if path.len() > 64 {
        return Err(call.fault(0, "a path of more than 64 keys", "fewer"));
    }
    access::put_into(&mut map, path, call.value(1).clone());
    call.run.check_nesting(&map)?;
    Ok(map)
}

fn map_put(call: &mut Call<'_, '_>) -> Result<Value, Fault> {
    let path = dotted(call.text(0)?);
    let map = match call.value(2) {
        Value::Text(_) => call.map(2).map(Value::Map).unwrap_or(Value::Undefined),
        other => other.clone(),
    };
    put(call, map, &path)
}

fn mput(call: &mut Call<'_, '_>) -> Result<Value, Fault> {
    let path = keys(call)?;
    let map = Value::Map(call.map(2)?);
    put(call, map, &path)
}

fn map_to_entries(call: &mut Call<'_, '_>) -> Result<Value, Fault> {
    let map = call.map(0)?;
    call.run.budget.make(128 * map.len())?;
    let entry = |(key, value): (&Text, &Value)| {
        let pairs = vec![
            (Text::from("key"), Value::Text(key.clone())),
            (Text::from("value"), value.clone()),
        ];
        Value::Map(Map::from_entries(pairs))
    };
    let entries = Value::array(map.iter().map(entry).collect());
    call.run.check_nesting(&entries)?;
    Ok(entries)
}

/// Values that are maps or arrays are left out with their keys, as Redis has no form for them.
fn map_to_redis_hset_args(call: &mut Call<'_, '_>) -> Result<Value, Fault> {
    let Ok(map) = call.map(0) else {
        return Ok(Value::array(Vec::new()));
    };
    let mut arguments = Vec::new();
    for (key, value) in map.iter() {
        let mut text = Vec::new();
        match value {
            Value::Text(value) => text.extend_from_slice(value),
            Value::Int(int) => number::integer(&mut text, *int),
            Value::Float(float) => text.extend_from_slice(number::decimals(*float, 6).as_bytes()),
            Value::Bool(_) => text.extend_from_slice(value.word().unwrap_or_default().as_bytes()),
            _ => continue,
        }
        arguments.push(Value::Text(key.clone()));
        arguments.push(call.make(text)?);
    }
    Ok(Value::array(arguments))
}
