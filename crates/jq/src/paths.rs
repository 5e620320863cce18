//! Reads, sets and deletes values by their paths.

use std::sync::Arc;

use rule_values::{FunctionError, Map, VALUE_NESTING_MAX, Value};

use super::machine::{JqFlow, JqMachine, JqStop};
use super::sorting;
use super::values::{self, order};

pub(super) fn get(machine: &mut JqMachine, value: &Value, path: &[Value]) -> Result<Value, JqStop> {
    let mut found = value.clone();
    for key in path {
        machine.charge_steps(1)?;
        if matches!(found, Value::Null) {
            return Ok(found);
        }
        found = values::index(machine, &found, key)?;
    }
    Ok(found)
}

/// Returns the value with `new` at this path. Creates missing parts of the path.
pub(super) fn set(machine: &mut JqMachine, value: Value, path: &[Value], new: Value) -> Result<Value, JqStop> {
    if path.len() > VALUE_NESTING_MAX {
        let message = format!("a path has more than {VALUE_NESTING_MAX} steps");
        return Err(JqStop::Limit(FunctionError::limit(message)));
    }
    machine.check_nesting(&new, path.len())?;
    put(machine, value, path, new)
}

fn put(machine: &mut JqMachine, value: Value, path: &[Value], new: Value) -> Result<Value, JqStop> {
    let Some((key, rest)) = path.split_first() else {
        return Ok(new);
    };
    machine.charge_steps(1)?;
    match (value, key) {
        (value @ (Value::Map(_) | Value::Null | Value::Undefined), Value::Text(key)) => {
            let mut map = match value {
                Value::Map(map) => map,
                _ => Map::new(),
            };
            charge_change(machine, map.len(), map.is_shared())?;
            if map.get(key).is_none() {
                // An insertion moves the entries after it.
                machine.make(64)?;
                machine.charge_steps(map.len() as u64 / 8)?;
            }
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
                return Err(JqStop::error("Out of bounds negative array index"));
            }
            // A larger index exceeds the memory limit in any case.
            let index = index.min(f64::from(u32::MAX)) as usize;
            let added = (index + 1).saturating_sub(elements.len());
            machine.make(added.saturating_mul(32))?;
            charge_change(machine, elements.len(), Arc::strong_count(&elements) > 1)?;
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
            machine.make(32 * (to - from))?;
            let before = Value::array(elements[from..to].to_vec());
            let Value::Array(inside) = put(machine, before, rest, new)? else {
                return Err(JqStop::error("A slice of an array can only be assigned another array"));
            };
            machine.make(32 * (elements.len() + inside.len()))?;
            Ok(Value::array([&elements[..from], &inside[..], &elements[to..]].concat()))
        }
        (value, Value::Text(key)) => Err(JqStop::error(format!(
            "Cannot index {} with {}",
            values::kind(&value),
            values::format_key(key)
        ))),
        (value, key) => {
            let (of, with) = (values::kind(&value), values::kind(key));
            Err(JqStop::error(format!("Cannot update field at {with} index of {of}")))
        }
    }
}

/// Charges for a change. A shared value is copied first.
fn charge_change(machine: &mut JqMachine, entries: usize, is_shared: bool) -> JqFlow {
    machine.charge_steps(if is_shared { 1 + entries as u64 / 4 } else { 1 })
}

/// Removes the values at these paths. The last paths are removed first, so that the other paths remain valid.
pub(super) fn delete(machine: &mut JqMachine, value: Value, mut paths: Vec<Arc<Vec<Value>>>) -> Result<Value, JqStop> {
    let before = machine.allowance.budget.steps();
    for path in &paths {
        machine.charge_value(&Value::Array(path.clone()))?;
    }
    let read_steps = before - machine.allowance.budget.steps();
    let descending =
        |a: &Arc<Vec<Value>>, b: &Arc<Vec<Value>>| order(&Value::Array(b.clone()), &Value::Array(a.clone()));
    sorting::sort(machine, &mut paths, read_steps, descending)?;
    paths.dedup_by(|a, b| order(&Value::Array(a.clone()), &Value::Array(b.clone())).is_eq());
    let mut left = value;
    for path in paths {
        left = delete_path(machine, left, &path)?;
    }
    Ok(left)
}

fn delete_path(machine: &mut JqMachine, value: Value, path: &[Value]) -> Result<Value, JqStop> {
    let Some((key, rest)) = path.split_first() else {
        return Ok(Value::Null);
    };
    machine.charge_steps(1)?;
    if matches!(value, Value::Null | Value::Undefined) {
        return Ok(Value::Null);
    }
    if !rest.is_empty() {
        let inner = values::index(machine, &value, key)?;
        if matches!(inner, Value::Null) {
            return Ok(value);
        }
        // Take the value out, so that it is changed in place and not copied.
        let value = put(machine, value, std::slice::from_ref(key), Value::Null)?;
        let inner = delete_path(machine, inner, rest)?;
        return put(machine, value, std::slice::from_ref(key), inner);
    }
    match (value, key) {
        (Value::Map(mut map), Value::Text(key)) => {
            charge_change(machine, map.len(), map.is_shared())?;
            let moved = map.remove(key.as_bytes());
            machine.charge_steps(moved as u64 / 8)?;
            Ok(Value::Map(map))
        }
        (Value::Array(mut elements), Value::Int(_) | Value::Float(_)) => {
            charge_change(machine, elements.len(), Arc::strong_count(&elements) > 1)?;
            if let Some(place) = values::place(key, elements.len()) {
                machine.charge_steps((elements.len() - place) as u64 / 8)?;
                Arc::make_mut(&mut elements).remove(place);
            }
            Ok(Value::Array(elements))
        }
        (Value::Array(mut elements), Value::Map(slice)) => {
            charge_change(machine, elements.len(), Arc::strong_count(&elements) > 1)?;
            let (from, to) = values::bounds(slice, elements.len())?;
            machine.charge_steps((elements.len() - from) as u64 / 8)?;
            Arc::make_mut(&mut elements).drain(from..to);
            Ok(Value::Array(elements))
        }
        (value, key) => {
            let (of, with) = (values::kind(&value), values::kind(key));
            Err(JqStop::error(format!("Cannot delete field at {with} index of {of}")))
        }
    }
}

/// Returns the positions of one array in another.
pub(super) fn positions(machine: &mut JqMachine, all: &[Value], wanted: &[Value]) -> Result<Value, JqStop> {
    if wanted.is_empty() {
        return Ok(Value::Null);
    }
    let mut found = Vec::new();
    for (at, window) in all.windows(wanted.len()).enumerate() {
        let mut is_it = true;
        for (one, other) in window.iter().zip(wanted) {
            machine.charge_steps(1)?;
            values::charge_order(machine, one, other)?;
            is_it = order(one, other).is_eq();
            if !is_it {
                break;
            }
        }
        if is_it {
            found.push(Value::Int(at as i128));
        }
    }
    machine.array(found)
}
