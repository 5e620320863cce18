//! Values by their paths: read, set, deleted.

use std::sync::Arc;

use super::machine::{Machine, Stop, VALUE_NESTING_MAX};
use super::values::{self, order};
use crate::error::Fault;
use crate::value::{Map, Value};

pub(super) fn get(machine: &mut Machine, value: &Value, path: &[Value]) -> Result<Value, Stop> {
    let mut found = value.clone();
    for key in path {
        machine.step(1)?;
        if matches!(found, Value::Null) {
            return Ok(found);
        }
        found = values::index(machine, &found, key)?;
    }
    Ok(found)
}

/// `new` at this path; what is missing on the way is made.
pub(super) fn set(machine: &mut Machine, value: Value, path: &[Value], new: Value) -> Result<Value, Stop> {
    if path.len() > VALUE_NESTING_MAX {
        let message = format!("a path has more than {VALUE_NESTING_MAX} steps");
        return Err(Stop::Limit(Fault::from(message)));
    }
    machine.check_nesting(&new, path.len())?;
    put(machine, value, path, new)
}

fn put(machine: &mut Machine, value: Value, path: &[Value], new: Value) -> Result<Value, Stop> {
    let Some((key, rest)) = path.split_first() else {
        return Ok(new);
    };
    machine.step(1)?;
    match (value, key) {
        (value @ (Value::Map(_) | Value::Null | Value::Undefined), Value::Text(key)) => {
            let mut map = match value {
                Value::Map(map) => map,
                _ => Map::new(),
            };
            // If it is shared it is copied.
            machine.make(64)?;
            machine.step(map.len() as u64 / 8)?;
            let entry = map.entry(key);
            let before = match std::mem::take(entry) {
                Value::Undefined => Value::Null,
                before => before,
            };
            *map.entry(key) = put(machine, before, rest, new)?;
            Ok(Value::Map(map))
        }
        (value @ (Value::Array(_) | Value::Null | Value::Undefined), Value::Int(_) | Value::Float(_)) => {
            let mut elements = match value {
                Value::Array(elements) => elements,
                _ => Arc::default(),
            };
            let index = values::float(key)?.floor();
            let index = if index < 0.0 {
                index + elements.len() as f64
            } else {
                index
            };
            if index < 0.0 {
                return Err(Stop::error("Out of bounds negative array index"));
            }
            // As far as memory is concerned, more is as bad as this.
            let index = index.min(f64::from(u32::MAX)) as usize;
            let added = (index + 1).saturating_sub(elements.len());
            machine.make(added.saturating_mul(32))?;
            machine.step(elements.len() as u64 / 8)?;
            let inner = Arc::make_mut(&mut elements);
            inner.resize(inner.len() + added, Value::Null);
            let before = std::mem::replace(&mut inner[index], Value::Null);
            inner[index] = put(machine, before, rest, new)?;
            Ok(Value::Array(elements))
        }
        (value @ (Value::Array(_) | Value::Null | Value::Undefined), Value::Map(slice)) => {
            let elements = match value {
                Value::Array(elements) => elements,
                _ => Arc::default(),
            };
            let (from, to) = values::bounds(slice, elements.len())?;
            let before = Value::array(elements[from..to].to_vec());
            let Value::Array(inside) = put(machine, before, rest, new)? else {
                return Err(Stop::error("A slice of an array can only be assigned another array"));
            };
            machine.make(32 * (elements.len() + inside.len()))?;
            Ok(Value::array([&elements[..from], &inside[..], &elements[to..]].concat()))
        }
        (value, Value::Text(key)) => Err(Stop::error(format!(
            "Cannot index {} with \"{key}\"",
            values::kind(&value)
        ))),
        (value, key) => {
            let (of, with) = (values::kind(&value), values::kind(key));
            Err(Stop::error(format!("Cannot update field at {with} index of {of}")))
        }
    }
}

/// Without what stands at these paths; the last ones go first, so that the others stay right.
pub(super) fn delete(machine: &mut Machine, value: Value, mut paths: Vec<Arc<Vec<Value>>>) -> Result<Value, Stop> {
    let keys: usize = paths.iter().map(|path| path.len()).sum();
    machine.step((keys * paths.len().max(2).ilog2() as usize) as u64)?;
    paths.sort_by(|a, b| order(&Value::Array(b.clone()), &Value::Array(a.clone())));
    paths.dedup_by(|a, b| order(&Value::Array(a.clone()), &Value::Array(b.clone())).is_eq());
    let mut left = value;
    for path in paths {
        left = cut(machine, left, &path)?;
    }
    Ok(left)
}

fn cut(machine: &mut Machine, value: Value, path: &[Value]) -> Result<Value, Stop> {
    let Some((key, rest)) = path.split_first() else {
        return Ok(Value::Null);
    };
    machine.step(1)?;
    if matches!(value, Value::Null | Value::Undefined) {
        return Ok(Value::Null);
    }
    if !rest.is_empty() {
        let inner = values::index(machine, &value, key)?;
        if matches!(inner, Value::Null) {
            return Ok(value);
        }
        let inner = cut(machine, inner, rest)?;
        return put(machine, value, std::slice::from_ref(key), inner);
    }
    match (value, key) {
        (Value::Map(mut map), Value::Text(key)) => {
            machine.step(map.len() as u64 / 8)?;
            map.remove(key.as_bytes());
            Ok(Value::Map(map))
        }
        (Value::Array(mut elements), Value::Int(_) | Value::Float(_)) => {
            machine.step(elements.len() as u64 / 8)?;
            if let Some(place) = values::place(key, elements.len()) {
                Arc::make_mut(&mut elements).remove(place);
            }
            Ok(Value::Array(elements))
        }
        (Value::Array(mut elements), Value::Map(slice)) => {
            machine.step(elements.len() as u64 / 8)?;
            let (from, to) = values::bounds(slice, elements.len())?;
            Arc::make_mut(&mut elements).drain(from..to);
            Ok(Value::Array(elements))
        }
        (value, key) => {
            let (of, with) = (values::kind(&value), values::kind(key));
            Err(Stop::error(format!("Cannot delete field at {with} index of {of}")))
        }
    }
}

/// Where one array stands in another.
pub(super) fn positions(machine: &mut Machine, all: &[Value], wanted: &[Value]) -> Result<Value, Stop> {
    if wanted.is_empty() {
        return Ok(Value::Null);
    }
    machine.step((all.len() * wanted.len()) as u64)?;
    let mut found = Vec::new();
    for (at, window) in all.windows(wanted.len()).enumerate() {
        let mut is_it = true;
        for (one, other) in window.iter().zip(wanted) {
            values::charge_order(machine, one, other)?;
            is_it &= order(one, other).is_eq();
        }
        if is_it {
            found.push(Value::Int(at as i128));
        }
    }
    machine.array(found)
}
