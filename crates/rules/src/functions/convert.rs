//! Type checks and type conversions.

use rule_values::{
    FunctionError, Value,
    json::{self, JsonForm},
    number,
};

use super::arithmetic::{finite, to_int};
use super::{Function, FunctionCall, FunctionGroup, function_table};

mod tests_of_types {
    use super::*;

    function_table! { FunctionGroup::Type;
        "is_array" (value: ANY) -> BOOL, |c| is(c, |v| matches!(v, Value::Array(_))), "Whether the value is an array.", "is_array([1, 2]) = true";
        "is_bool" (value: ANY) -> BOOL, |c| is(c, |v| matches!(v, Value::Bool(_))), "Whether the value is true or false.", "is_bool('true') = false";
        "is_empty" (value: ANY) -> BOOL, is_empty, "Whether the value is an empty string, array or map (also as JSON), or undefined.", "is_empty('') = true";
        "is_float" (value: ANY) -> BOOL, |c| is(c, |v| matches!(v, Value::Float(_))), "Whether the value is a float.", "is_float(123) = false";
        "is_int" (value: ANY) -> BOOL, |c| is(c, |v| matches!(v, Value::Int(_))), "Whether the value is an integer.", "is_int(123) = true";
        "is_map" (value: ANY) -> BOOL, |c| is(c, |v| matches!(v, Value::Map(_))), "Whether the value is a map.", "is_map(json_decode('{\"value\": 1}')) = true";
        "is_not_null" (value: ANY) -> BOOL, |c| is(c, |v| *v != Value::Undefined), "Whether the value exists; null in JSON counts as existing.", "is_not_null(1) = true";
        "is_not_null_var" (value: ANY) -> BOOL, |c| is(c, |v| !matches!(v, Value::Undefined | Value::Null)), "Whether the value exists and is not null in JSON.", "is_not_null_var(1) = true";
        "is_null" (value: ANY) -> BOOL, |c| is(c, |v| *v == Value::Undefined), "Whether the value does not exist; null in JSON counts as existing.", "is_null(map_get('b', json_decode('{\"b\": null}'))) = false";
        "is_null_var" (value: ANY) -> BOOL, |c| is(c, |v| matches!(v, Value::Undefined | Value::Null)), "Whether the value does not exist or is null in JSON.", "is_null_var(map_get('b', json_decode('{\"b\": null}'))) = true";
        "is_num" (value: ANY) -> BOOL, |c| is(c, |v| matches!(v, Value::Int(_) | Value::Float(_))), "Whether the value is a number.", "is_num(123.4) = true";
        "is_str" (value: ANY) -> BOOL, |c| is(c, |v| matches!(v, Value::Text(_))), "Whether the value is a string.", "is_str(123) = false";
    }
}

pub(super) const TYPE_TESTS: &[Function] = tests_of_types::TABLE;

function_table! { FunctionGroup::Conversion;
    "bool" (value: SCALAR) -> BOOL, bool, "The boolean for `'true'`, `'false'`, 1 or 0.", "bool('false') = false";
    "float" (value: SCALAR; decimals: INT) -> FLOAT, float, "The value as a float, rounded to the given number of decimals.", "float('3.1415926', 3) = 3.142";
    "float2str" (value: NUMBER, decimals: INT) -> TEXT, float2str, "A float in fixed point with at most the given number of decimals, without trailing zeros.", "float2str(0.1, 20) = '0.10000000000000000555'";
    "int" (value: SCALAR) -> INT, int, "The value as an integer; fractions are rounded down.", "int(-3.14) = -4";
    "map" (value: TEXT_OR_MAP) -> MAP, |c| c.map(0).map(Value::Map), "The map, or the map parsed from JSON.", "map('{\"a\":1}') = json_decode('{\"a\":1}')";
    "str" (value: ANY) -> TEXT, str, "The value as a string: arrays and maps as JSON, floats with at most ten decimals.", "str(3.14159265359) = '3.1415926536'";
    "str_utf16_le" (value: ANY) -> TEXT, str_utf16_le, "The value as a string in UTF-16, little-endian.", "bin2hexstr(str_utf16_le('h')) = '6800'";
    "str_utf8" (value: ANY) -> TEXT, str, "The value as a string.", "str_utf8(100) = '100'";
}

/// Writes a value as text, in the format of `str` and `concat`.
pub(crate) fn to_text(out: &mut Vec<u8>, value: &Value) {
    match value {
        Value::Text(text) => out.extend_from_slice(text),
        Value::Int(int) => number::integer(out, *int),
        Value::Float(float) => out.extend_from_slice(number::decimals(*float, 10).as_bytes()),
        Value::Array(_) | Value::Map(_) => json::encode_into(out, value, JsonForm::default()),
        word => out.extend_from_slice(word.word().unwrap_or_default().as_bytes()),
    }
}

fn is(call: &mut FunctionCall<'_, '_>, test: impl Fn(&Value) -> bool) -> Result<Value, FunctionError> {
    Ok(Value::Bool(test(call.value(0))))
}

fn is_empty(call: &mut FunctionCall<'_, '_>) -> Result<Value, FunctionError> {
    Ok(Value::Bool(match call.value(0) {
        Value::Undefined | Value::Null => true,
        Value::Array(values) => values.is_empty(),
        Value::Map(map) => map.is_empty(),
        Value::Text(text) if text.first() == Some(&b'{') => {
            matches!(call.decode_json(text), Ok(Value::Map(map)) if map.is_empty())
        }
        Value::Text(text) => text.is_empty(),
        _ => false,
    }))
}

fn bool(call: &mut FunctionCall<'_, '_>) -> Result<Value, FunctionError> {
    match call.value(0) {
        Value::Bool(truth) => Ok(Value::Bool(*truth)),
        Value::Text(text) if text.as_bytes() == b"true" => Ok(Value::Bool(true)),
        Value::Text(text) if text.as_bytes() == b"false" => Ok(Value::Bool(false)),
        value if value.loosely_equal(&Value::Int(1)) => Ok(Value::Bool(true)),
        value if value.loosely_equal(&Value::Int(0)) => Ok(Value::Bool(false)),
        value => Err(call.type_error(0, value.type_name(), "true, false, 1 or 0")),
    }
}

fn int(call: &mut FunctionCall<'_, '_>) -> Result<Value, FunctionError> {
    match call.value(0) {
        Value::Int(int) => Ok(Value::Int(*int)),
        Value::Bool(truth) => Ok(Value::Int((*truth).into())),
        Value::Float(float) => to_int(float.floor()),
        Value::Text(text) => match (number::parse_integer(text), number::parse_float(text)) {
            (Some(int), _) => Ok(Value::Int(int)),
            (None, Some(float)) => to_int(float.floor()),
            (None, None) => Err(call.type_error(0, "not a number", "the digits of a number")),
        },
        _ => call.argument_error(0, "a number, a string or a boolean"),
    }
}

fn float(call: &mut FunctionCall<'_, '_>) -> Result<Value, FunctionError> {
    let float = match call.value(0) {
        Value::Text(text) => {
            number::parse_float(text).ok_or_else(|| call.type_error(0, "not a number", "the digits of a number"))?
        }
        _ => call.float(0)?,
    };
    call.run.budget.charge_steps(8)?;
    if !call.has(1) {
        return finite(float);
    }
    let decimals = decimals(call, 1)?;
    if decimals == 0 {
        return Err(call.type_error(1, "0", "1 to 253"));
    }
    finite(number::parse_float(number::decimals(float, decimals).as_bytes()).unwrap_or(float))
}

fn decimals(call: &FunctionCall<'_, '_>, index: usize) -> Result<usize, FunctionError> {
    let decimals = call.count(index)?;
    if decimals > 253 {
        Err(call.type_error(index, &decimals.to_string(), "at most 253"))
    } else {
        Ok(decimals)
    }
}

fn float2str(call: &mut FunctionCall<'_, '_>) -> Result<Value, FunctionError> {
    let text = number::decimals(call.float(0)?, decimals(call, 1)?);
    call.make(text)
}

fn str(call: &mut FunctionCall<'_, '_>) -> Result<Value, FunctionError> {
    if let Value::Text(text) = call.value(0) {
        return Ok(Value::Text(text.clone()));
    }
    call.run.budget.charge_value(call.value(0))?;
    let mut text = Vec::new();
    to_text(&mut text, call.value(0));
    call.make(text)
}

fn str_utf16_le(call: &mut FunctionCall<'_, '_>) -> Result<Value, FunctionError> {
    call.run.budget.check_nesting(call.value(0), 0)?;
    let mut text = Vec::new();
    to_text(&mut text, call.value(0));
    call.run.budget.charge_steps(text.len() as u64 / 4)?;
    let text = String::from_utf8(text)
        .map_err(|_| call.type_error(0, "bytes that are not UTF-8", "a string of characters"))?;
    let bytes: Vec<u8> = text.encode_utf16().flat_map(u16::to_le_bytes).collect();
    call.make(bytes)
}
