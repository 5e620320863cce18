//! Functions of maps. The JSON text of a map is accepted wherever a map is expected.

use rule_values::{FunctionError, Map, Text, Value, number};

use super::{FunctionCall, FunctionGroup, function_table};
use crate::access::{self, ResolvedStep};

function_table! { FunctionGroup::Map;
    "map_get" (key: TEXT, map: ANY; default: ANY) -> ANY, map_get, "The value of a key, or of a path of keys separated by points; the default (or undefined) if it does not exist.", "map_get('msg', json_decode('{\"msg\": \"hello\"}')) = 'hello'";
    "map_keys" (map: TEXT_OR_MAP) -> ARRAY, |c| { let map = c.map(0)?; c.texts(map.iter().map(|(key, _)| key.as_bytes())) }, "The keys, sorted.", "map_keys(json_decode('{\"a\": 1, \"b\": 2}')) = ['a', 'b']";
    "map_new" () -> MAP, |_| Ok(Value::Map(Map::new())), "An empty map.", "map_new() = json_decode('{}')";
    "map_put" (key: TEXT, value: ANY, map: ANY) -> MAP, map_put, "The map with the value at the key, or at a path of keys separated by points.", "map_get('b', map_put('b', 1, json_decode('{\"a\": 1}'))) = 1";
    "map_size" (map: TEXT_OR_MAP) -> INT, |c| Ok(Value::Int(c.map(0)?.len() as i128)), "The number of entries.", "map_size(json_decode('{\"a\": 1}')) = 1";
    "map_to_entries" (map: TEXT_OR_MAP) -> ARRAY, map_to_entries, "The entries as an array of maps with `key` and `value`.", "map_to_entries('{\"a\":1}') = json_decode('[{\"key\":\"a\",\"value\":1}]')";
    "map_to_redis_hset_args" (map: ANY) -> ARRAY, map_to_redis_hset_args, "Keys and values alternately, as strings; empty if the value is not a map.", "map_to_redis_hset_args('{\"a\":1}') = ['a', '1']";
    "map_values" (map: TEXT_OR_MAP) -> ARRAY, |c| { let map = c.map(0)?; c.run.budget.make(32 * map.len())?; Ok(Value::array(map.iter().map(|(_, value)| value.clone()).collect())) }, "The values, sorted by key.", "map_values('{\"a\": 1, \"b\": 2}') = [1, 2]";
    "mget" (key: TEXT_OR_ARRAY, map: TEXT_OR_MAP; default: ANY) -> ANY, mget, "The value of a key, which can contain points, or of a path given as an array of keys.", "mget(['a', 'b'], json_decode('{\"a\": {\"b\": 1}}')) = 1";
    "mput" (key: TEXT_OR_ARRAY, value: ANY, map: TEXT_OR_MAP) -> MAP, mput, "The map with the value at a key, which can contain points, or at a path given as an array of keys.", "mget(['a', 'b'], mput(['a', 'b'], 2, map_new())) = 2";
}

/// Splits `a.b.c` into keys.
pub(super) fn dotted(call: &mut FunctionCall<'_, '_>, path: &[u8]) -> Result<Vec<ResolvedStep>, FunctionError> {
    let points = memchr::memchr_iter(b'.', path).count();
    call.run
        .budget
        .make(path.len() + size_of::<ResolvedStep>() * (points + 1))?;
    let keys = path.split(|byte| *byte == b'.');
    Ok(keys.map(|key| ResolvedStep::Key(Text::new(key))).collect())
}

/// Reads a key or an array of keys.
fn keys(call: &mut FunctionCall<'_, '_>) -> Result<Vec<ResolvedStep>, FunctionError> {
    match call.value(0) {
        Value::Array(keys) => {
            call.run.budget.make(size_of::<ResolvedStep>() * keys.len())?;
            keys.iter()
                .map(|key| match key {
                    Value::Text(key) => Ok(ResolvedStep::Key(key.clone())),
                    other => Err(call.type_error(
                        0,
                        &format!("an array with {}", other.type_name()),
                        "an array of strings",
                    )),
                })
                .collect()
        }
        _ => Ok(vec![ResolvedStep::Key(Text::new(call.text(0)?))]),
    }
}

fn get(call: &mut FunctionCall<'_, '_>, map: &Value, path: &[ResolvedStep]) -> Result<Value, FunctionError> {
    let found = access::get(map, path, &call.run.limits.json, &mut call.run.budget)?;
    Ok(if found == Value::Undefined {
        call.value(2).clone()
    } else {
        found
    })
}

fn map_get(call: &mut FunctionCall<'_, '_>) -> Result<Value, FunctionError> {
    let path = dotted(call, call.text(0)?)?;
    get(call, call.value(1), &path)
}

fn mget(call: &mut FunctionCall<'_, '_>) -> Result<Value, FunctionError> {
    let path = keys(call)?;
    let map = Value::Map(call.map(1)?);
    get(call, &map, &path)
}

fn put(call: &mut FunctionCall<'_, '_>, mut map: Value, path: &[ResolvedStep]) -> Result<Value, FunctionError> {
    let entries = if let Value::Map(map) = &map { map.len() } else { 0 };
    call.run.budget.make(64 * (entries + path.len()))?;
    if path.len() > 64 {
        return Err(call.type_error(0, "a path of more than 64 keys", "fewer"));
    }
    access::put_into(&mut map, path, call.value(1).clone());
    call.run.budget.check_nesting(&map, 0)?;
    Ok(map)
}

fn map_put(call: &mut FunctionCall<'_, '_>) -> Result<Value, FunctionError> {
    let path = dotted(call, call.text(0)?)?;
    let map = match call.value(2) {
        Value::Text(_) => call.map(2).map(Value::Map).unwrap_or(Value::Undefined),
        other => other.clone(),
    };
    put(call, map, &path)
}

fn mput(call: &mut FunctionCall<'_, '_>) -> Result<Value, FunctionError> {
    let path = keys(call)?;
    let map = Value::Map(call.map(2)?);
    put(call, map, &path)
}

fn map_to_entries(call: &mut FunctionCall<'_, '_>) -> Result<Value, FunctionError> {
    let map = call.map(0)?;
    call.run.budget.make(128 * map.len())?;
    call.run.budget.charge_steps(2 * map.len() as u64)?;
    let entry = |(key, value): (&Text, &Value)| {
        let pairs = vec![
            (Text::from("key"), Value::Text(key.clone())),
            (Text::from("value"), value.clone()),
        ];
        Value::Map(Map::from_entries(pairs))
    };
    let entries = Value::array(map.iter().map(entry).collect());
    call.run.budget.check_nesting(&entries, 0)?;
    Ok(entries)
}

/// Values that are maps or arrays are omitted with their keys, because Redis has no representation for them.
fn map_to_redis_hset_args(call: &mut FunctionCall<'_, '_>) -> Result<Value, FunctionError> {
    let Ok(map) = call.map(0) else {
        return Ok(Value::array(Vec::new()));
    };
    let mut arguments = Vec::new();
    for (key, value) in map.iter() {
        let mut text = Vec::new();
        call.run.budget.make(key.len())?;
        call.run.budget.check_nesting(value, 0)?;
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
