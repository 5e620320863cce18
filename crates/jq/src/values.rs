//! The semantics of jq for comparison, arithmetic and `.[key]`.
//!
//! Integers remain integers up to 53 bits. All other numbers are floats, like all numbers in jq. During a program, a
//! float can be infinite or NaN.

use std::cmp::Ordering;
use std::sync::Arc;

use rule_values::{
    Map, Text, Value,
    json::{self, JsonForm},
};

use super::machine::{JqFlow, JqMachine, JqOutput, JqStop, ValuePath};
use super::paths;
use super::term::Operator;

/// Above this value, jq writes an exponent.
const WHOLE_MAX: f64 = 1e17;

/// Integers up to this value are exact in a float.
const INT_MAX: u128 = 1 << 53;

pub(super) fn is_true(value: &Value) -> bool {
    !matches!(value, Value::Null | Value::Undefined | Value::Bool(false))
}

pub(super) fn kind(value: &Value) -> &'static str {
    match value {
        Value::Undefined | Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Int(_) | Value::Float(_) => "number",
        Value::Text(_) => "string",
        Value::Array(_) => "array",
        Value::Map(_) => "object",
    }
}

/// Formats a value for error messages: `number (12)`, `string ("abc")`. Long values are cut.
pub(super) fn described(value: &Value) -> String {
    const SHOWN_MAX: usize = 40;
    if matches!(value, Value::Undefined | Value::Null) {
        return "null".to_owned();
    }
    if value.walk(8, &mut 400).is_err() {
        return kind(value).to_owned();
    }
    let json = json::encode(&to_json_numbers(value), JsonForm::UndefinedAsNull);
    let text = String::from_utf8_lossy(&json);
    match text.char_indices().nth(SHOWN_MAX) {
        Some((end, _)) => format!("{} ({}…)", kind(value), &text[..end]),
        None => format!("{} ({text})", kind(value)),
    }
}

/// Returns an integer if the float is a whole number.
pub(super) fn number(float: f64) -> Value {
    match float.fract() == 0.0 && float.abs() < WHOLE_MAX {
        true => Value::Int(float as i128),
        false => Value::Float(float),
    }
}

fn as_float(value: &Value) -> Option<f64> {
    match value {
        Value::Int(int) => Some(*int as f64),
        Value::Float(float) => Some(*float),
        _ => None,
    }
}

pub(super) fn float(value: &Value) -> Result<f64, JqStop> {
    as_float(value).ok_or_else(|| JqStop::error(format!("{} is not a number", described(value))))
}

pub(super) fn text(value: &Value) -> Result<&Text, JqStop> {
    match value {
        Value::Text(text) => Ok(text),
        other => Err(JqStop::error(format!("{} is not a string", described(other)))),
    }
}

/// Formats a key for error messages. Long keys are cut.
pub(super) fn format_key(key: &Text) -> String {
    const SHOWN_MAX: usize = 100;
    let cut = &key[..key.len().min(SHOWN_MAX)];
    let dots = if cut.len() < key.len() { "…" } else { "" };
    format!("\"{}{dots}\"", String::from_utf8_lossy(cut))
}

/// Converts to JSON values: infinite numbers become the largest finite numbers, NaN becomes null.
pub(super) fn to_json_numbers(value: &Value) -> Value {
    with_json_numbers(value).unwrap_or_else(|| value.clone())
}

/// Returns `None` if nothing changes.
fn with_json_numbers(value: &Value) -> Option<Value> {
    match value {
        Value::Float(float) if float.is_nan() => Some(Value::Null),
        Value::Float(float) if float.is_infinite() => Some(Value::Float(float.clamp(f64::MIN, f64::MAX))),
        Value::Array(elements) => {
            let (at, first) = elements
                .iter()
                .map(with_json_numbers)
                .enumerate()
                .find_map(|(at, it)| Some((at, it?)))?;
            let rest = elements[at + 1..].iter().map(to_json_numbers);
            let before = elements[..at].iter().cloned();
            Some(Value::array(before.chain([first]).chain(rest).collect()))
        }
        Value::Map(map) => {
            let values = map.iter().map(|entry| with_json_numbers(entry.1)).enumerate();
            let (at, first) = values.into_iter().find_map(|(at, it)| Some((at, it?)))?;
            let entries = map.iter().enumerate().map(|(index, (key, value))| {
                let value = match index.cmp(&at) {
                    Ordering::Less => value.clone(),
                    Ordering::Equal => first.clone(),
                    Ordering::Greater => to_json_numbers(value),
                };
                (key.clone(), value)
            });
            Some(Value::Map(entries.collect()))
        }
        _ => None,
    }
}

/// Encodes a value as JSON, and charges for input and output.
pub(super) fn json(machine: &mut JqMachine, value: &Value) -> Result<Vec<u8>, JqStop> {
    machine.charge_value(value)?;
    let json = json::encode(&to_json_numbers(value), JsonForm::UndefinedAsNull);
    machine.read(json.len())?;
    Ok(json)
}

fn rank(value: &Value) -> u8 {
    match value {
        Value::Undefined | Value::Null => 0,
        Value::Bool(false) => 1,
        Value::Bool(true) => 2,
        Value::Int(_) | Value::Float(_) => 3,
        Value::Text(_) => 4,
        Value::Array(_) => 5,
        Value::Map(_) => 6,
    }
}

/// The sort order of jq for all values.
pub(super) fn order(a: &Value, b: &Value) -> Ordering {
    match (a, b) {
        (Value::Int(a), Value::Int(b)) => a.cmp(b),
        (Value::Text(a), Value::Text(b)) => a.cmp(b),
        (Value::Array(a), Value::Array(b)) => {
            let pairs = a.iter().zip(b.iter()).map(|(a, b)| order(a, b));
            first_difference(pairs).then(a.len().cmp(&b.len()))
        }
        (Value::Map(a), Value::Map(b)) => {
            let keys = a.iter().map(|entry| entry.0).cmp(b.iter().map(|entry| entry.0));
            let values = a.iter().zip(b.iter()).map(|((_, a), (_, b))| order(a, b));
            keys.then_with(|| first_difference(values))
        }
        // NaN is less than all numbers. Here NaN equals itself, so that values can be sorted; `==` treats it as
        // unequal.
        _ => match (is_nan(a), is_nan(b)) {
            (false, false) => match rank(a).cmp(&rank(b)) {
                Ordering::Equal => a.order(b),
                other => other,
            },
            (true, true) => Ordering::Equal,
            (true, false) => 3.cmp(&rank(b)).then(Ordering::Less),
            (false, true) => rank(a).cmp(&3).then(Ordering::Greater),
        },
    }
}

fn first_difference(mut orders: impl Iterator<Item = Ordering>) -> Ordering {
    orders.find(|order| order.is_ne()).unwrap_or(Ordering::Equal)
}

fn is_nan(value: &Value) -> bool {
    matches!(value, Value::Float(float) if float.is_nan())
}

/// Charges for comparing two values.
pub(super) fn charge_order(machine: &mut JqMachine, a: &Value, b: &Value) -> JqFlow {
    Ok(machine.allowance.budget.compare(a, b)?)
}

pub(super) fn negate(value: &Value) -> Result<Value, JqStop> {
    match value {
        Value::Int(int) => Ok(int.checked_neg().map_or(number(-(*int as f64)), Value::Int)),
        Value::Float(float) => Ok(Value::Float(-float)),
        other => Err(JqStop::error(format!("{} cannot be negated", described(other)))),
    }
}

pub(super) fn operate(machine: &mut JqMachine, operator: Operator, a: Value, b: &Value) -> Result<Value, JqStop> {
    match operator {
        Operator::Add => add(machine, a, b),
        Operator::Subtract => subtract(machine, &a, b),
        Operator::Multiply => multiply(machine, &a, b),
        Operator::Divide => divide(machine, &a, b),
        Operator::Modulo => modulo(&a, b),
        _ => {
            charge_order(machine, &a, b)?;
            let order = match is_nan(&a) && is_nan(b) {
                true => Ordering::Less,
                false => order(&a, b),
            };
            Ok(Value::Bool(match operator {
                Operator::Equal => order.is_eq(),
                Operator::Unequal => order.is_ne(),
                Operator::Less => order.is_lt(),
                Operator::LessOrEqual => order.is_le(),
                Operator::Greater => order.is_gt(),
                _ => order.is_ge(),
            }))
        }
    }
}

fn type_error<T>(a: &Value, b: &Value, be_what: &str) -> Result<T, JqStop> {
    Err(JqStop::error(format!(
        "{} and {} cannot be {be_what}",
        described(a),
        described(b)
    )))
}

/// Calculates with integers if the result is exact, otherwise with floats.
fn calculate(
    a: &Value,
    b: &Value,
    be_what: &str,
    ints: fn(i128, i128) -> Option<i128>,
    floats: fn(f64, f64) -> f64,
) -> Result<Value, JqStop> {
    if let (Value::Int(a), Value::Int(b)) = (a, b)
        && let Some(result) = ints(*a, *b).filter(|result| result.unsigned_abs() <= INT_MAX)
    {
        return Ok(Value::Int(result));
    }
    match (as_float(a), as_float(b)) {
        (Some(a), Some(b)) => Ok(number(floats(a, b))),
        _ => type_error(a, b, be_what),
    }
}

pub(super) fn add(machine: &mut JqMachine, a: Value, b: &Value) -> Result<Value, JqStop> {
    match (a, b) {
        (Value::Null | Value::Undefined, b) => Ok(b.clone()),
        (a, Value::Null | Value::Undefined) => Ok(a),
        (Value::Text(a), Value::Text(b)) => {
            machine.make(a.len() + b.len())?;
            Ok(Value::Text([a.as_bytes(), b.as_bytes()].concat().into()))
        }
        (Value::Array(mut a), Value::Array(b)) => {
            let copied = if Arc::get_mut(&mut a).is_some() { 0 } else { a.len() };
            machine.make(32 * (copied + b.len()))?;
            Arc::make_mut(&mut a).extend_from_slice(b);
            Ok(Value::Array(a))
        }
        (Value::Map(mut a), Value::Map(b)) => {
            let copied = if a.is_shared() { a.len() } else { 0 };
            machine.make(64 * (copied + b.len()))?;
            // Each new entry moves the entries after it.
            if b.len() <= 4 {
                machine.charge_steps((b.len() * (1 + a.len() / 8)) as u64)?;
                for (key, value) in b.iter() {
                    a.insert(key.clone(), value.clone());
                }
                return Ok(Value::Map(a));
            }
            machine.make(64 * (a.len() - copied))?;
            a.merged(b, |_, value| Ok(value.clone())).map(Value::Map)
        }
        (a, b) => calculate(&a, b, "added", i128::checked_add, |a, b| a + b),
    }
}

fn subtract(machine: &mut JqMachine, a: &Value, b: &Value) -> Result<Value, JqStop> {
    let (Value::Array(all), Value::Array(without)) = (a, b) else {
        return calculate(a, b, "subtracted", i128::checked_sub, |a, b| a - b);
    };
    machine.make(32 * all.len())?;
    let mut left = Vec::new();
    for element in all.iter() {
        let mut is_gone = false;
        for other in without.iter() {
            machine.charge_steps(1)?;
            charge_order(machine, element, other)?;
            is_gone = order(element, other).is_eq();
            if is_gone {
                break;
            }
        }
        if !is_gone {
            left.push(element.clone());
        }
    }
    Ok(Value::array(left))
}

fn multiply(machine: &mut JqMachine, a: &Value, b: &Value) -> Result<Value, JqStop> {
    match (a, b) {
        (Value::Text(text), count) | (count, Value::Text(text)) if as_float(count).is_some() => {
            let count = as_float(count).unwrap_or_default();
            if count <= 0.0 {
                return Ok(Value::Null);
            }
            // A larger count exceeds the memory limit in any case.
            let times = count.max(1.0).min(f64::from(u32::MAX)) as usize;
            machine.make(text.len().saturating_mul(times))?;
            Ok(Value::Text(text.as_bytes().repeat(times).into()))
        }
        (Value::Map(a), Value::Map(b)) => Ok(Value::Map(merge(machine, a, b)?)),
        _ => calculate(a, b, "multiplied", i128::checked_mul, |a, b| a * b),
    }
}

/// The recursion depth is limited by the nesting limit of values.
fn merge(machine: &mut JqMachine, a: &Map, b: &Map) -> Result<Map, JqStop> {
    machine.make(64 * (a.len() + b.len()))?;
    a.clone().merged(b, |before, after| match (before, after) {
        (Value::Map(before), Value::Map(after)) => merge(machine, &before, after).map(Value::Map),
        (_, after) => Ok(after.clone()),
    })
}

fn divide(machine: &mut JqMachine, a: &Value, b: &Value) -> Result<Value, JqStop> {
    if let (Value::Text(text), Value::Text(separator)) = (a, b) {
        return split(machine, text, separator);
    }
    match (as_float(a), as_float(b)) {
        (Some(_), Some(0.0)) => type_error(a, b, "divided because the divisor is zero"),
        (Some(a), Some(b)) => Ok(number(a / b)),
        _ => type_error(a, b, "divided"),
    }
}

pub(super) fn split(machine: &mut JqMachine, text: &Text, separator: &Text) -> Result<Value, JqStop> {
    let (text, separator) = (text.to_string(), separator.to_string());
    machine.read(text.len() + separator.len())?;
    let mut pieces = Vec::new();
    let mut add = |machine: &mut JqMachine, piece: &str| {
        machine.make(32 + piece.len())?;
        pieces.push(Value::from(piece));
        Ok::<(), JqStop>(())
    };
    match (text.is_empty(), separator.is_empty()) {
        (true, _) => {}
        (_, true) => {
            let mut characters = text.char_indices().peekable();
            while let Some((start, _)) = characters.next() {
                let end = characters.peek().map_or(text.len(), |next| next.0);
                add(machine, &text[start..end])?;
            }
        }
        _ => text.split(&separator).try_for_each(|piece| add(machine, piece))?,
    }
    Ok(Value::array(pieces))
}

fn modulo(a: &Value, b: &Value) -> Result<Value, JqStop> {
    let (Some(x), Some(y)) = (as_float(a), as_float(b)) else {
        return type_error(a, b, "divided");
    };
    if x.is_nan() || y.is_nan() {
        return Ok(Value::Float(f64::NAN));
    }
    let (x, y) = (x as i64, (y as i64).unsigned_abs());
    if y == 0 {
        return type_error(a, b, "divided because the divisor is zero");
    }
    let rest = (x.unsigned_abs() % y) as i128;
    Ok(Value::Int(if x < 0 { -rest } else { rest }))
}

/// Returns `{"start": from, "end": to}`, the form of a slice in paths.
pub(super) fn slice_key(from: &Value, to: &Value) -> Value {
    let entries = [("start", from), ("end", to)].map(|(key, value)| (Text::from(key), value.clone()));
    Value::Map(entries.into_iter().collect())
}

/// Returns the start and end of a slice for this length.
pub(super) fn bounds(key: &Map, length: usize) -> Result<(usize, usize), JqStop> {
    let bound = |name: &str, default: f64, round: fn(f64) -> f64| {
        let found = match key.get(name.as_bytes()) {
            None | Some(Value::Null | Value::Undefined) => default,
            Some(value) => match as_float(value) {
                Some(float) => round(float),
                None => return Err(JqStop::error("Start and end indices of an array slice must be numbers")),
            },
        };
        let from_start = if found < 0.0 { found + length as f64 } else { found };
        Ok(from_start.clamp(0.0, length as f64) as usize)
    };
    let (from, to) = (
        bound("start", 0.0, f64::floor)?,
        bound("end", length as f64, f64::ceil)?,
    );
    Ok((from, to.max(from)))
}

/// Returns the index of an array element, or `None` if it does not exist.
pub(super) fn place(index: &Value, length: usize) -> Option<usize> {
    let index = as_float(index)?.floor();
    let index = if index < 0.0 { index + length as f64 } else { index };
    (0.0..length as f64).contains(&index).then_some(index as usize)
}

pub(super) fn index(machine: &mut JqMachine, of: &Value, key: &Value) -> Result<Value, JqStop> {
    match (of, key) {
        (Value::Map(map), Value::Text(key)) => Ok(map.get(key.as_bytes()).cloned().unwrap_or(Value::Null)),
        (Value::Array(elements), Value::Int(_) | Value::Float(_)) => {
            let place = place(key, elements.len());
            Ok(place.map_or(Value::Null, |place| elements[place].clone()))
        }
        (Value::Null | Value::Undefined, Value::Text(_) | Value::Int(_) | Value::Float(_) | Value::Null) => {
            Ok(Value::Null)
        }
        (Value::Null | Value::Undefined, Value::Map(_)) => Ok(Value::Null),
        (Value::Array(elements), Value::Map(slice)) => {
            let (from, to) = bounds(slice, elements.len())?;
            machine.make(32 * (to - from))?;
            Ok(Value::array(elements[from..to].to_vec()))
        }
        (Value::Text(text), Value::Map(slice)) => {
            machine.read(2 * text.len())?;
            let text = text.to_string();
            let (from, to) = bounds(slice, text.chars().count())?;
            let cut: String = text.chars().skip(from).take(to - from).collect();
            machine.text(cut)
        }
        (Value::Array(elements), Value::Array(wanted)) => paths::positions(machine, elements, wanted),
        (of, Value::Text(key)) => Err(JqStop::error(format!(
            "Cannot index {} with {}",
            kind(of),
            format_key(key)
        ))),
        (of, key) => Err(JqStop::error(format!("Cannot index {} with {}", kind(of), kind(key)))),
    }
}

/// Returns the path of an output of `path(…)`.
pub(super) fn path_of(item: JqOutput) -> Result<Arc<Vec<Value>>, JqStop> {
    match item.path {
        ValuePath::At(path) => Ok(path),
        ValuePath::Untracked | ValuePath::Computed => {
            let value = described(&item.value);
            Err(JqStop::error(format!("Invalid path expression with result {value}")))
        }
    }
}
