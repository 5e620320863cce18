//! What jq means by equal, less, plus and the like, and by `.[key]`.
//!
//! Integers stay integers as long as they have no more than 53 bits; everything else is a float, as all numbers of jq are. While a program
//! runs a float may be infinite or no number.

use std::cmp::Ordering;
use std::sync::Arc;

use super::machine::{Flow, Item, Machine, Path, Stop};
use super::paths;
use super::term::Operator;
use crate::json::{self, JsonForm};
use crate::text::Text;
use crate::value::{Map, Value};

/// Above it jq writes an exponent.
const WHOLE_MAX: f64 = 1e17;

/// Integers in which a float has no gaps.
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

/// For messages: `number (12)`, `string ("abc")`, cut when it is long.
pub(super) fn told(value: &Value) -> String {
    const SHOWN_MAX: usize = 40;
    if matches!(value, Value::Undefined | Value::Null) {
        return "null".to_owned();
    }
    if value.count_within(8).is_none_or(|count| count > 100) {
        return kind(value).to_owned();
    }
    let json = json::encode(&finished(value), JsonForm::UndefinedAsNull);
    let text = String::from_utf8_lossy(&json);
    match text.char_indices().nth(SHOWN_MAX) {
        Some((end, _)) => format!("{} ({}…)", kind(value), &text[..end]),
        None => format!("{} ({text})", kind(value)),
    }
}

/// An integer if it is one.
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

pub(super) fn float(value: &Value) -> Result<f64, Stop> {
    as_float(value).ok_or_else(|| Stop::error(format!("{} is not a number", told(value))))
}

pub(super) fn text(value: &Value) -> Result<&Text, Stop> {
    match value {
        Value::Text(text) => Ok(text),
        other => Err(Stop::error(format!("{} is not a string", told(other)))),
    }
}

/// As JSON has it: infinite numbers are the largest ones, what is no number is null.
pub(super) fn finished(value: &Value) -> Value {
    match value {
        Value::Float(float) if float.is_nan() => Value::Null,
        Value::Float(float) => Value::Float(float.clamp(f64::MIN, f64::MAX)),
        Value::Array(elements) if elements.iter().any(needs_finish) => {
            Value::array(elements.iter().map(finished).collect())
        }
        Value::Map(map) if map.iter().any(|(_, value)| needs_finish(value)) => {
            let entries = map.iter().map(|(key, value)| (key.clone(), finished(value)));
            Value::Map(entries.collect())
        }
        other => other.clone(),
    }
}

fn needs_finish(value: &Value) -> bool {
    match value {
        Value::Float(float) => !float.is_finite(),
        Value::Array(elements) => elements.iter().any(needs_finish),
        Value::Map(map) => map.iter().any(|(_, value)| needs_finish(value)),
        _ => false,
    }
}

pub(super) fn json(value: &Value) -> Vec<u8> {
    json::encode(&finished(value), JsonForm::UndefinedAsNull)
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

/// jq's order of all values.
pub(super) fn order(a: &Value, b: &Value) -> Ordering {
    match (a, b) {
        (Value::Int(a), Value::Int(b)) => a.cmp(b),
        (Value::Text(a), Value::Text(b)) => a.cmp(b),
        (Value::Array(a), Value::Array(b)) => {
            let pairs = a.iter().zip(b.iter()).map(|(a, b)| order(a, b));
            pairs.fold(Ordering::Equal, Ordering::then).then(a.len().cmp(&b.len()))
        }
        (Value::Map(a), Value::Map(b)) => {
            let keys = a.iter().map(|entry| entry.0).cmp(b.iter().map(|entry| entry.0));
            let values = a.iter().zip(b.iter()).map(|((_, a), (_, b))| order(a, b));
            keys.then_with(|| values.fold(Ordering::Equal, Ordering::then))
        }
        // What is no number is less than all numbers. Equal to itself, so that it can be sorted; not so for `==`.
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

fn is_nan(value: &Value) -> bool {
    matches!(value, Value::Float(float) if float.is_nan())
}

/// Charged before two values are compared: the smaller one is walked.
pub(super) fn charge_order(machine: &mut Machine, a: &Value, b: &Value) -> Flow {
    let size = |value: &Value| match value {
        Value::Text(text) => text.len() as u64 / 64,
        Value::Array(_) | Value::Map(_) => value.count_within(super::machine::VALUE_NESTING_MAX).unwrap_or(0),
        _ => 0,
    };
    match rank(a) == rank(b) {
        true => machine.step(size(a).min(size(b)) / 4),
        false => Ok(()),
    }
}

pub(super) fn negate(value: &Value) -> Result<Value, Stop> {
    match value {
        Value::Int(int) => Ok(int.checked_neg().map_or(number(-(*int as f64)), Value::Int)),
        Value::Float(float) => Ok(Value::Float(-float)),
        other => Err(Stop::error(format!("{} cannot be negated", told(other)))),
    }
}

pub(super) fn operate(machine: &mut Machine, operator: Operator, a: Value, b: &Value) -> Result<Value, Stop> {
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

fn cannot<T>(a: &Value, b: &Value, be_what: &str) -> Result<T, Stop> {
    Err(Stop::error(format!("{} and {} cannot be {be_what}", told(a), told(b))))
}

/// Of integers as long as nothing is lost, of floats otherwise.
fn calculate(
    a: &Value,
    b: &Value,
    be_what: &str,
    ints: fn(i128, i128) -> Option<i128>,
    floats: fn(f64, f64) -> f64,
) -> Result<Value, Stop> {
    if let (Value::Int(a), Value::Int(b)) = (a, b)
        && let Some(result) = ints(*a, *b).filter(|result| result.unsigned_abs() <= INT_MAX)
    {
        return Ok(Value::Int(result));
    }
    match (as_float(a), as_float(b)) {
        (Some(a), Some(b)) => Ok(number(floats(a, b))),
        _ => cannot(a, b, be_what),
    }
}

pub(super) fn add(machine: &mut Machine, a: Value, b: &Value) -> Result<Value, Stop> {
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
            machine.make(64 * (a.len() + b.len()))?;
            for (key, value) in b.iter() {
                a.insert(key.clone(), value.clone());
            }
            Ok(Value::Map(a))
        }
        (a, b) => calculate(&a, b, "added", i128::checked_add, |a, b| a + b),
    }
}

fn subtract(machine: &mut Machine, a: &Value, b: &Value) -> Result<Value, Stop> {
    let (Value::Array(all), Value::Array(without)) = (a, b) else {
        return calculate(a, b, "subtracted", i128::checked_sub, |a, b| a - b);
    };
    machine.make(32 * all.len())?;
    machine.step((all.len() * without.len()) as u64)?;
    let mut left = Vec::new();
    for element in all.iter() {
        let mut is_gone = false;
        for other in without.iter() {
            charge_order(machine, element, other)?;
            is_gone |= order(element, other).is_eq();
        }
        if !is_gone {
            left.push(element.clone());
        }
    }
    Ok(Value::array(left))
}

fn multiply(machine: &mut Machine, a: &Value, b: &Value) -> Result<Value, Stop> {
    match (a, b) {
        (Value::Text(text), count) | (count, Value::Text(text)) if as_float(count).is_some() => {
            let count = as_float(count).unwrap_or_default();
            if count <= 0.0 {
                return Ok(Value::Null);
            }
            // As far as memory is concerned, more is as bad as this.
            let times = count.max(1.0).min(f64::from(u32::MAX)) as usize;
            machine.make(text.len().saturating_mul(times))?;
            Ok(Value::Text(text.as_bytes().repeat(times).into()))
        }
        (Value::Map(a), Value::Map(b)) => Ok(Value::Map(merge(machine, a, b)?)),
        _ => calculate(a, b, "multiplied", i128::checked_mul, |a, b| a * b),
    }
}

/// The depth of values bounds how often it calls itself.
fn merge(machine: &mut Machine, a: &Map, b: &Map) -> Result<Map, Stop> {
    machine.make(64 * (a.len() + b.len()))?;
    let mut merged = a.clone();
    for (key, value) in b.iter() {
        let value = match (merged.get(key.as_bytes()), value) {
            (Some(Value::Map(before)), Value::Map(after)) => {
                let before = before.clone();
                Value::Map(merge(machine, &before, after)?)
            }
            _ => value.clone(),
        };
        merged.insert(key.clone(), value);
    }
    Ok(merged)
}

fn divide(machine: &mut Machine, a: &Value, b: &Value) -> Result<Value, Stop> {
    if let (Value::Text(text), Value::Text(separator)) = (a, b) {
        return split(machine, text, separator);
    }
    match (as_float(a), as_float(b)) {
        (Some(_), Some(0.0)) => cannot(a, b, "divided because the divisor is zero"),
        (Some(a), Some(b)) => Ok(number(a / b)),
        _ => cannot(a, b, "divided"),
    }
}

pub(super) fn split(machine: &mut Machine, text: &Text, separator: &Text) -> Result<Value, Stop> {
    let (text, separator) = (text.to_string(), separator.to_string());
    machine.step(text.len() as u64 / 16)?;
    let pieces: Vec<Value> = match (text.is_empty(), separator.is_empty()) {
        (true, _) => Vec::new(),
        (_, true) => {
            machine.make(32 * text.len())?;
            text.chars().map(|char| Value::from(char.to_string())).collect()
        }
        _ => {
            machine.make(32 * (1 + text.len() / separator.len()) + text.len())?;
            text.split(&separator).map(Value::from).collect()
        }
    };
    machine.array(pieces)
}

fn modulo(a: &Value, b: &Value) -> Result<Value, Stop> {
    let (Some(x), Some(y)) = (as_float(a), as_float(b)) else {
        return cannot(a, b, "divided");
    };
    if x.is_nan() || y.is_nan() {
        return Ok(Value::Float(f64::NAN));
    }
    let (x, y) = (x as i64, (y as i64).unsigned_abs());
    if y == 0 {
        return cannot(a, b, "divided because the divisor is zero");
    }
    let rest = (x.unsigned_abs() % y) as i128;
    Ok(Value::Int(if x < 0 { -rest } else { rest }))
}

/// `{"start": from, "end": to}`, as which a slice stands in paths.
pub(super) fn slice_key(from: &Value, to: &Value) -> Value {
    let entries = [("start", from), ("end", to)].map(|(key, value)| (Text::from(key), value.clone()));
    Value::Map(entries.into_iter().collect())
}

/// Where a slice begins and ends in something of this length.
pub(super) fn bounds(key: &Map, length: usize) -> Result<(usize, usize), Stop> {
    let bound = |name: &str, default: f64, round: fn(f64) -> f64| {
        let found = match key.get(name.as_bytes()) {
            None | Some(Value::Null | Value::Undefined) => default,
            Some(value) => match as_float(value) {
                Some(float) => round(float),
                None => return Err(Stop::error("Start and end indices of an array slice must be numbers")),
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

/// Which element of an array is meant; none: there is none.
pub(super) fn place(index: &Value, length: usize) -> Option<usize> {
    let index = as_float(index)?.floor();
    let index = if index < 0.0 { index + length as f64 } else { index };
    (0.0..length as f64).contains(&index).then_some(index as usize)
}

pub(super) fn index(machine: &mut Machine, of: &Value, key: &Value) -> Result<Value, Stop> {
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
            let text = text.to_string();
            machine.make(text.len())?;
            let (from, to) = bounds(slice, text.chars().count())?;
            let cut: String = text.chars().skip(from).take(to - from).collect();
            Ok(Value::from(cut))
        }
        (Value::Array(elements), Value::Array(wanted)) => paths::positions(machine, elements, wanted),
        (of, Value::Text(key)) => Err(Stop::error(format!("Cannot index {} with \"{key}\"", kind(of)))),
        (of, key) => Err(Stop::error(format!("Cannot index {} with {}", kind(of), kind(key)))),
    }
}

/// Of an output of `path(…)`.
pub(super) fn path_of(item: Item) -> Result<Arc<Vec<Value>>, Stop> {
    match item.path {
        Path::At(path) => Ok(path),
        Path::Off | Path::Lost => {
            let value = told(&item.value);
            Err(Stop::error(format!("Invalid path expression with result {value}")))
        }
    }
}
