//! Reading and writing by path: `a.b[1]`, `a[-1]`, `[0]` and `[-0]` as places before and behind an array.
//!
//! A string on the way is read as JSON, as in EMQX: devices put JSON into JSON.

use crate::error::Fault;
use crate::json::{self, JsonLimits};
use crate::text::Text;
use crate::value::{Map, Value};

/// A step whose index or key is known.
#[derive(Clone, Debug)]
pub(crate) enum Place {
    Key(Text),
    Index(i128),
    Head,
    Tail,
    /// An index that is no number: nothing is there, and nothing can be put there.
    Nowhere,
}

/// The element of an array: from 1, or from the end with -1.
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

/// `Undefined` where there is nothing.
pub(crate) fn get(value: &Value, path: &[Place], limits: &JsonLimits) -> Value {
    let mut value = value;
    for (i, place) in path.iter().enumerate() {
        let found = match (value, place) {
            (Value::Map(map), Place::Key(key)) => map.get(key),
            (Value::Array(values), Place::Index(index)) => element(values, *index),
            (Value::Text(text), _) => {
                return match json::decode(text, limits) {
                    // Only once: a string in a string in a string ends here.
                    Ok(decoded) if !matches!(decoded, Value::Text(_)) => get(&decoded, &path[i..], limits),
                    _ => Value::Undefined,
                };
            }
            _ => None,
        };
        match found {
            Some(found) => value = found,
            None => return Value::Undefined,
        }
    }
    value.clone()
}

/// Puts the value there; what is in the way and cannot hold it is replaced.
pub(crate) fn put(root: &mut Map, name: &Text, path: &[Place], value: Value) {
    if path.is_empty() {
        return root.insert(name.clone(), value);
    }
    put_into(root.entry(name), path, value);
}

pub(crate) fn put_into(slot: &mut Value, path: &[Place], value: Value) {
    let Some((place, rest)) = path.split_first() else {
        *slot = value;
        return;
    };
    match place {
        Place::Key(key) => {
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

fn put_element(slot: &mut Value, place: &Place, rest: &[Place], value: Value) {
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
        Place::Head => values.insert(0, fresh(value)),
        Place::Tail => values.push(fresh(value)),
        Place::Index(index) => {
            if let Some(element) = position(values.len(), *index).and_then(|at| values.get_mut(at)) {
                put_into(element, rest, value);
            }
        }
        Place::Key(_) | Place::Nowhere => {}
    }
}

/// The whole numbers from `begin` to `end`.
pub(crate) fn range(begin: i64, end: i64) -> Result<Value, Fault> {
    const ELEMENTS_MAX: i64 = 100_000;
    let length = end.saturating_sub(begin).saturating_add(1);
    if !(0..=ELEMENTS_MAX).contains(&length) {
        let message = format!("[{begin}..{end}] is no range of 0 to {ELEMENTS_MAX} numbers");
        return Err(Fault::from(message));
    }
    Ok(Value::array((begin..=end).map(Value::from).collect()))
}

/// The elements from `begin` to `end`, both included.
pub(crate) fn slice(array: &Value, begin: i64, end: i64) -> Result<Value, Fault> {
    let Value::Array(values) = array else {
        return Err(Fault::from(format!(
            "a range is taken of {}, not of an array",
            array.type_name()
        )));
    };
    let length = values.len() as i64;
    let from_start = |index: i64| match index {
        0 => Err(Fault::from(
            "a range begins and ends at 1 or later, or at -1 or earlier",
        )),
        1.. => Ok(index),
        _ => Ok(length + index + 1),
    };
    let (begin, end) = (from_start(begin)?, from_start(end)?);
    if begin < 1 || end < begin - 1 {
        return Err(Fault::from(format!(
            "there is no range from {begin} to {end} in {length} elements"
        )));
    }
    let begin = (begin as usize - 1).min(values.len());
    let end = (end as usize).min(values.len()).max(begin);
    Ok(Value::array(values[begin..end].to_vec()))
}
