//! Reads and writes values by path: `a.b[1]`, `a[-1]`. In an alias, `[0]` is the place before the first element and
//! `[-0]` the place after the last element.
//!
//! As in EMQX, a string inside a path is parsed as JSON, because devices put JSON into JSON.

use rule_values::{
    FunctionError, Map, StepBudget, Text, Value,
    json::{self, JsonLimits},
};

/// A path step whose index or key is known.
#[derive(Clone, Debug)]
pub(crate) enum ResolvedStep {
    Key(Text),
    Index(i128),
    Head,
    Tail,
    /// The index is not a number: reading returns nothing, and writing has no effect.
    Invalid,
}

/// Returns an element of an array. Indexes begin with 1; -1 is the last element.
pub(crate) fn element(values: &[Value], index: i128) -> Option<&Value> {
    values.get(position(values.len(), index)?)
}

fn position(length: usize, index: i128) -> Option<usize> {
    match index {
        1.. => usize::try_from(index - 1).ok(),
        0 => None,
        _ => usize::try_from(length as i128 + index).ok(),
    }
}

/// Returns the value at the path, or `Undefined`.
pub(crate) fn get(
    value: &Value,
    path: &[ResolvedStep],
    limits: &JsonLimits,
    budget: &mut StepBudget,
) -> Result<Value, FunctionError> {
    budget.charge_steps(path.len() as u64)?;
    get_with(value, path, &mut |text| {
        json::decode_within(text, limits, budget).map(|decoded| decoded.unwrap_or_default())
    })
}

/// Same as `get`, with a custom function that parses a string as JSON.
pub(crate) fn get_with<E>(
    value: &Value,
    path: &[ResolvedStep],
    decode: &mut dyn FnMut(&Text) -> Result<Value, E>,
) -> Result<Value, E> {
    let mut value = value;
    for (i, place) in path.iter().enumerate() {
        let found = match (value, place) {
            (Value::Map(map), ResolvedStep::Key(key)) => map.get(key),
            (Value::Array(values), ResolvedStep::Index(index)) => element(values, *index),
            (Value::Text(text), _) => {
                return match decode(text)? {
                    // Strings are parsed only once: a string inside a string inside a string is not.
                    Value::Text(_) => Ok(Value::Undefined),
                    decoded => get_with(&decoded, &path[i..], decode),
                };
            }
            _ => None,
        };
        match found {
            Some(found) => value = found,
            None => return Ok(Value::Undefined),
        }
    }
    Ok(value.clone())
}

/// Writes the value at the path. Replaces values on the path that cannot contain the next step.
pub(crate) fn put(root: &mut Map, name: &Text, path: &[ResolvedStep], value: Value) {
    if path.is_empty() {
        return root.insert(name.clone(), value);
    }
    put_into(root.entry(name), path, value);
}

pub(crate) fn put_into(slot: &mut Value, path: &[ResolvedStep], value: Value) {
    let Some((place, rest)) = path.split_first() else {
        *slot = value;
        return;
    };
    match place {
        ResolvedStep::Key(key) => {
            if !matches!(slot, Value::Map(_)) {
                *slot = Value::Map(Map::new());
            }
            if let Value::Map(map) = slot {
                put_into(map.entry(key), rest, value);
            }
        }
        _ => put_element(slot, place, rest, value),
    }
}

fn put_element(slot: &mut Value, place: &ResolvedStep, rest: &[ResolvedStep], value: Value) {
    let fresh = |value| {
        let mut element = Value::Undefined;
        put_into(&mut element, rest, value);
        element
    };
    let Value::Array(values) = slot else {
        *slot = Value::array(vec![fresh(value)]);
        return;
    };
    let values = std::sync::Arc::make_mut(values);
    match place {
        ResolvedStep::Head => values.insert(0, fresh(value)),
        ResolvedStep::Tail => values.push(fresh(value)),
        ResolvedStep::Index(index) => {
            if let Some(element) = position(values.len(), *index).and_then(|at| values.get_mut(at)) {
                put_into(element, rest, value);
            }
        }
        ResolvedStep::Key(_) | ResolvedStep::Invalid => {}
    }
}

/// Returns the integers from `begin` to `end`.
pub(crate) fn range(begin: i64, end: i64) -> Result<Value, FunctionError> {
    const ELEMENTS_MAX: i64 = 100_000;
    let length = end.saturating_sub(begin).saturating_add(1);
    if !(0..=ELEMENTS_MAX).contains(&length) {
        let message = format!("[{begin}..{end}] is not a range of 0 to {ELEMENTS_MAX} numbers");
        return Err(FunctionError::from(message));
    }
    Ok(Value::array((begin..=end).map(Value::from).collect()))
}

/// Returns the elements from `begin` to `end`, both included.
pub(crate) fn slice(array: &Value, begin: i64, end: i64) -> Result<Value, FunctionError> {
    let Value::Array(values) = array else {
        return Err(FunctionError::from(format!(
            "a range requires an array, not {}",
            array.type_name()
        )));
    };
    let length = values.len() as i64;
    let from_start = |index: i64| match index {
        0 => Err(FunctionError::from(
            "the start and end of a range must be at least 1 or at most -1",
        )),
        1.. => Ok(index),
        _ => Ok(length + index + 1),
    };
    let (begin, end) = (from_start(begin)?, from_start(end)?);
    if begin < 1 || end < begin - 1 {
        return Err(FunctionError::from(format!(
            "the range from {begin} to {end} is outside the array of {length} elements"
        )));
    }
    let begin = (begin as usize - 1).min(values.len());
    let end = (end as usize).min(values.len()).max(begin);
    Ok(Value::array(values[begin..end].to_vec()))
}
