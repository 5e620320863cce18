//! Native functions of values. Functions that can be written in jq are in `prelude.jq`.

use std::sync::Arc;

use rule_values::{
    Map, VALUE_NESTING_MAX, Value,
    json::{self, JsonLimits},
};

use super::machine::{JqMachine, JqStop};
use super::term::{Native, Special, ValueFunction};
use super::values::{self, charge_order, described, float, number, order, text};
use super::{formats, paths, search, sorting, times};

type JqResult<T> = std::result::Result<T, JqStop>;

const fn of(function: ValueFunction) -> Native {
    Native::Values(function)
}

/// Name, number of arguments, and implementation. Names that begin with `_` are only for the prelude.
pub(super) const NATIVES: &[(&str, usize, Native)] = &[
    ("empty", 0, Native::Special(Special::Empty)),
    ("path", 1, Native::Special(Special::Path)),
    ("getpath", 1, Native::Special(Special::GetPath)),
    ("range", 3, Native::Special(Special::Range)),
    ("limit", 2, Native::Special(Special::Limit)),
    ("until", 2, Native::Special(Special::Until)),
    ("while", 2, Native::Special(Special::While)),
    ("repeat", 1, Native::Special(Special::Repeat)),
    ("recurse", 1, Native::Special(Special::Recurse)),
    ("floor", 0, Native::Number(f64::floor)),
    ("ceil", 0, Native::Number(f64::ceil)),
    ("round", 0, Native::Number(f64::round)),
    ("trunc", 0, Native::Number(f64::trunc)),
    ("fabs", 0, Native::Number(f64::abs)),
    ("sqrt", 0, Native::Number(f64::sqrt)),
    ("cbrt", 0, Native::Number(f64::cbrt)),
    ("exp", 0, Native::Number(f64::exp)),
    ("exp2", 0, Native::Number(f64::exp2)),
    ("exp10", 0, Native::Number(|x| 10f64.powf(x))),
    ("log", 0, Native::Number(f64::ln)),
    ("log2", 0, Native::Number(f64::log2)),
    ("log10", 0, Native::Number(f64::log10)),
    ("sin", 0, Native::Number(f64::sin)),
    ("cos", 0, Native::Number(f64::cos)),
    ("tan", 0, Native::Number(f64::tan)),
    ("asin", 0, Native::Number(f64::asin)),
    ("acos", 0, Native::Number(f64::acos)),
    ("atan", 0, Native::Number(f64::atan)),
    ("sinh", 0, Native::Number(f64::sinh)),
    ("cosh", 0, Native::Number(f64::cosh)),
    ("tanh", 0, Native::Number(f64::tanh)),
    ("asinh", 0, Native::Number(f64::asinh)),
    ("acosh", 0, Native::Number(f64::acosh)),
    ("atanh", 0, Native::Number(f64::atanh)),
    ("pow", 2, Native::Numbers(f64::powf)),
    ("atan2", 2, Native::Numbers(f64::atan2)),
    ("fmin", 2, Native::Numbers(f64::min)),
    ("fmax", 2, Native::Numbers(f64::max)),
    ("fmod", 2, Native::Numbers(|a, b| a % b)),
    ("infinite", 0, of(|_, _, _| Ok(Value::Float(f64::INFINITY)))),
    ("nan", 0, of(|_, _, _| Ok(Value::Float(f64::NAN)))),
    (
        "isinfinite",
        0,
        of(|_, it, _| Ok(Value::Bool(float(&it)?.is_infinite()))),
    ),
    ("isnan", 0, of(|_, it, _| Ok(Value::Bool(float(&it)?.is_nan())))),
    ("isnormal", 0, of(|_, it, _| Ok(Value::Bool(float(&it)?.is_normal())))),
    ("error", 0, of(|_, it, _| Err(raised(it)))),
    ("error", 1, of(|_, _, given| Err(raised(given[0].clone())))),
    ("not", 0, of(|_, it, _| Ok(Value::Bool(!values::is_true(&it))))),
    ("type", 0, of(|_, it, _| Ok(Value::from(values::kind(&it))))),
    ("length", 0, of(length)),
    (
        "utf8bytelength",
        0,
        of(|_, it, _| Ok(Value::Int(text(&it)?.len() as i128))),
    ),
    ("keys", 0, of(keys)),
    ("keys_unsorted", 0, of(keys)),
    ("has", 1, of(has)),
    (
        "contains",
        1,
        of(|machine, it, given| Ok(Value::Bool(contains(machine, &it, &given[0])?))),
    ),
    ("add", 0, of(add)),
    (
        "tojson",
        0,
        of(|machine, it, _| formats::format(machine, super::term::TextFormat::Json, &it)),
    ),
    ("fromjson", 0, of(from_json)),
    (
        "tostring",
        0,
        of(|machine, it, _| formats::format(machine, super::term::TextFormat::Text, &it)),
    ),
    ("tonumber", 0, of(to_number)),
    ("sort", 0, of(sort)),
    ("_sort_by", 1, of(sort_by)),
    ("_group_by", 1, of(group_by)),
    (
        "_min_by",
        1,
        of(|machine, it, given| extreme(machine, &it, &given[0], false)),
    ),
    (
        "_max_by",
        1,
        of(|machine, it, given| extreme(machine, &it, &given[0], true)),
    ),
    ("min", 0, of(|machine, it, _| extreme(machine, &it, &it.clone(), false))),
    ("max", 0, of(|machine, it, _| extreme(machine, &it, &it.clone(), true))),
    ("unique", 0, of(unique)),
    ("reverse", 0, of(reverse)),
    ("flatten", 1, of(flatten)),
    ("join", 1, of(join)),
    (
        "setpath",
        2,
        of(|machine, it, given| paths::set(machine, it, array(&given[0])?, given[1].clone())),
    ),
    ("delpaths", 1, of(delete_paths)),
    ("bsearch", 1, of(binary_search)),
    (
        "ascii_downcase",
        0,
        of(|machine, it, _| {
            let lower = text(&it)?.to_ascii_lowercase();
            machine.text(lower)
        }),
    ),
    (
        "ascii_upcase",
        0,
        of(|machine, it, _| {
            let upper = text(&it)?.to_ascii_uppercase();
            machine.text(upper)
        }),
    ),
    (
        "startswith",
        1,
        of(|_, it, given| Ok(Value::Bool(text(&it)?.starts_with(text(&given[0])?)))),
    ),
    (
        "endswith",
        1,
        of(|_, it, given| Ok(Value::Bool(text(&it)?.ends_with(text(&given[0])?)))),
    ),
    (
        "ltrimstr",
        1,
        of(|machine, it, given| {
            let rest = match (&it, &given[0]) {
                (Value::Text(text), Value::Text(start)) => text.strip_prefix(start.as_bytes()).map(<[u8]>::to_vec),
                _ => None,
            };
            rest.map_or(Ok(it), |rest| machine.text(rest))
        }),
    ),
    (
        "rtrimstr",
        1,
        of(|machine, it, given| {
            let rest = match (&it, &given[0]) {
                (Value::Text(text), Value::Text(end)) => text.strip_suffix(end.as_bytes()).map(<[u8]>::to_vec),
                _ => None,
            };
            rest.map_or(Ok(it), |rest| machine.text(rest))
        }),
    ),
    (
        "trim",
        0,
        of(|machine, it, _| {
            let trimmed = text(&it)?.trim_ascii().to_vec();
            machine.text(trimmed)
        }),
    ),
    (
        "ltrim",
        0,
        of(|machine, it, _| {
            let trimmed = text(&it)?.trim_ascii_start().to_vec();
            machine.text(trimmed)
        }),
    ),
    (
        "rtrim",
        0,
        of(|machine, it, _| {
            let trimmed = text(&it)?.trim_ascii_end().to_vec();
            machine.text(trimmed)
        }),
    ),
    (
        "split",
        1,
        of(|machine, it, given| values::split(machine, text(&it)?, text(&given[0])?)),
    ),
    ("explode", 0, of(explode)),
    ("implode", 0, of(implode)),
    ("indices", 1, of(search::indices)),
    ("_match", 2, of(search::matches)),
    ("_cut", 2, of(search::split_at_matches)),
    ("now", 0, of(times::now)),
    ("gmtime", 0, of(times::gmtime)),
    ("mktime", 0, of(times::mktime)),
    ("strftime", 1, of(times::strftime)),
    ("fromdateiso8601", 0, of(times::from_date)),
];

fn raised(value: Value) -> JqStop {
    JqStop::Error { value, at: None }
}

fn array(value: &Value) -> JqResult<&Arc<Vec<Value>>> {
    match value {
        Value::Array(elements) => Ok(elements),
        other => Err(JqStop::error(format!("{} is not an array", described(other)))),
    }
}

fn length(machine: &mut JqMachine, it: Value, _: &[Value]) -> JqResult<Value> {
    let length = match &it {
        Value::Undefined | Value::Null => 0,
        Value::Bool(_) => return Err(JqStop::error(format!("{} has no length", described(&it)))),
        Value::Int(int) => return Ok(int.checked_abs().map_or(number((*int as f64).abs()), Value::Int)),
        Value::Float(float) => return Ok(number(float.abs())),
        Value::Text(text) => {
            machine.read(text.len())?;
            text.to_string().chars().count()
        }
        Value::Array(elements) => elements.len(),
        Value::Map(map) => map.len(),
    };
    Ok(Value::Int(length as i128))
}

fn keys(machine: &mut JqMachine, it: Value, _: &[Value]) -> JqResult<Value> {
    match &it {
        Value::Map(map) => machine.array(map.iter().map(|(key, _)| Value::Text(key.clone())).collect()),
        Value::Array(elements) => machine.array((0..elements.len()).map(|at| Value::Int(at as i128)).collect()),
        other => Err(JqStop::error(format!("{} has no keys", described(other)))),
    }
}

fn has(_: &mut JqMachine, it: Value, given: &[Value]) -> JqResult<Value> {
    match (&it, &given[0]) {
        (Value::Map(map), Value::Text(key)) => Ok(Value::Bool(map.get(key.as_bytes()).is_some())),
        (Value::Array(elements), key @ (Value::Int(_) | Value::Float(_))) => {
            let key = float(key)?;
            Ok(Value::Bool(key >= 0.0 && key < elements.len() as f64))
        }
        (of, key) => {
            let (of, key) = (values::kind(of), values::kind(key));
            Err(JqStop::error(format!("Cannot check whether {of} has a {key} key")))
        }
    }
}

fn contains(machine: &mut JqMachine, all: &Value, part: &Value) -> JqResult<bool> {
    machine.charge_steps(1)?;
    match (all, part) {
        (Value::Text(all), Value::Text(part)) => {
            machine.charge_steps(4)?;
            machine.read(all.len() + part.len())?;
            Ok(memchr::memmem::find(all, part).is_some())
        }
        (Value::Array(all), Value::Array(parts)) => {
            for part in parts.iter() {
                let mut is_there = false;
                for one in all.iter() {
                    machine.charge_steps(1)?;
                    is_there = values::kind(one) == values::kind(part) && contains(machine, one, part)?;
                    if is_there {
                        break;
                    }
                }
                if !is_there {
                    return Ok(false);
                }
            }
            Ok(true)
        }
        (Value::Map(all), Value::Map(parts)) => {
            for (key, part) in parts.iter() {
                let is_there = match all.get(key.as_bytes()) {
                    Some(one) => values::kind(one) == values::kind(part) && contains(machine, one, part)?,
                    None => false,
                };
                if !is_there {
                    return Ok(false);
                }
            }
            Ok(true)
        }
        (all, part) if values::kind(all) == values::kind(part) => Ok(order(all, part).is_eq()),
        (all, part) => {
            let (all, part) = (described(all), described(part));
            Err(JqStop::error(format!(
                "{all} and {part} cannot have their containment checked"
            )))
        }
    }
}

fn add(machine: &mut JqMachine, it: Value, _: &[Value]) -> JqResult<Value> {
    let entries = match &it {
        Value::Array(elements) => elements.len(),
        Value::Map(map) => map.len(),
        _ => 0,
    };
    machine.make(32 * entries)?;
    let elements: Vec<Value> = match &it {
        Value::Array(elements) => elements.to_vec(),
        Value::Map(map) => map.iter().map(|(_, value)| value.clone()).collect(),
        Value::Null => return Ok(Value::Null),
        other => return Err(JqStop::error(format!("Cannot iterate over {}", described(other)))),
    };
    machine.charge_steps(elements.len() as u64)?;
    if elements.len() > 1 && elements.iter().all(|element| matches!(element, Value::Text(_))) {
        let mut bytes = Vec::new();
        for element in &elements {
            let text = element.as_bytes().unwrap_or_default();
            machine.make(text.len())?;
            bytes.extend_from_slice(text);
        }
        return Ok(Value::Text(bytes.into()));
    }
    let mut sum = Value::Null;
    for element in &elements {
        sum = values::add(machine, sum, element)?;
    }
    Ok(sum)
}

fn from_json(machine: &mut JqMachine, it: Value, _: &[Value]) -> JqResult<Value> {
    let text = text(&it)?;
    if text.as_bytes() == b"nan" {
        return Ok(Value::Float(f64::NAN));
    }
    let limits = machine.allowance.json;
    let limits = JsonLimits {
        depth_max: limits.depth_max.min(VALUE_NESTING_MAX),
        ..limits
    };
    let decoded = json::decode_within(text, &limits, &mut machine.allowance.budget)?;
    decoded.map_err(|error| JqStop::error(format!("{} (the text is {error})", described(&it))))
}

fn to_number(machine: &mut JqMachine, it: Value, _: &[Value]) -> JqResult<Value> {
    match &it {
        Value::Int(_) | Value::Float(_) => Ok(it),
        Value::Text(text) => {
            machine.read(2 * text.len())?;
            let text = text.to_string();
            let parsed = text.trim().parse::<i64>().map(Value::from).ok();
            let is_number = |float: &f64| float.is_finite();
            let parsed = parsed.or_else(|| text.trim().parse().ok().filter(is_number).map(number));
            parsed.ok_or_else(|| JqStop::error(format!("{} cannot be parsed as a number", described(&it))))
        }
        other => Err(JqStop::error(format!(
            "{} cannot be parsed as a number",
            described(other)
        ))),
    }
}

/// Charges for reading the values once and for the memory of a sorted copy. Returns the steps of reading.
fn charge_copy(machine: &mut JqMachine, elements: &[Value]) -> JqResult<u64> {
    machine.make(32 * elements.len())?;
    let before = machine.allowance.budget.steps();
    for element in elements {
        machine.charge_value(element)?;
    }
    Ok(before - machine.allowance.budget.steps())
}

fn sort(machine: &mut JqMachine, it: Value, _: &[Value]) -> JqResult<Value> {
    let Value::Array(elements) = &it else {
        return Err(JqStop::error(format!(
            "{} cannot be sorted, as it is not an array",
            described(&it)
        )));
    };
    let read_steps = charge_copy(machine, elements)?;
    let mut sorted = elements.to_vec();
    sorting::sort(machine, &mut sorted, read_steps, order)?;
    Ok(Value::array(sorted))
}

/// Returns the elements with their keys, sorted by key.
fn sorted_by<'v>(machine: &mut JqMachine, it: &'v Value, keys: &'v Value) -> JqResult<Vec<(&'v Value, &'v Value)>> {
    let (elements, keys) = (array(it)?, array(keys)?);
    let read_steps = charge_copy(machine, keys)?;
    let mut pairs: Vec<(&Value, &Value)> = keys.iter().zip(elements.iter()).collect();
    sorting::sort(machine, &mut pairs, read_steps, |a, b| order(a.0, b.0))?;
    Ok(pairs)
}

fn sort_by(machine: &mut JqMachine, it: Value, given: &[Value]) -> JqResult<Value> {
    let pairs = sorted_by(machine, &it, &given[0])?;
    let sorted = pairs.into_iter().map(|pair| pair.1.clone()).collect();
    machine.array(sorted)
}

fn group_by(machine: &mut JqMachine, it: Value, given: &[Value]) -> JqResult<Value> {
    let pairs = sorted_by(machine, &it, &given[0])?;
    let groups: Vec<Vec<Value>> = pairs
        .chunk_by(|a, b| order(a.0, b.0).is_eq())
        .map(|group| group.iter().map(|pair| pair.1.clone()).collect())
        .collect();
    let groups: JqResult<Vec<Value>> = groups.into_iter().map(|group| machine.array(group)).collect();
    machine.array(groups?)
}

fn unique(machine: &mut JqMachine, it: Value, given: &[Value]) -> JqResult<Value> {
    let Value::Array(mut sorted) = sort(machine, it, given)? else {
        return Ok(Value::Null);
    };
    Arc::make_mut(&mut sorted).dedup_by(|a, b| order(a, b).is_eq());
    Ok(Value::Array(sorted))
}

/// Returns the first of the smallest elements, or the last of the largest.
fn extreme(machine: &mut JqMachine, it: &Value, keys: &Value, is_largest: bool) -> JqResult<Value> {
    let (elements, keys) = (array(it)?, array(keys)?);
    let mut best: Option<(&Value, &Value)> = None;
    for (key, element) in keys.iter().zip(elements.iter()) {
        machine.charge_steps(1)?;
        let is_better = match best {
            None => true,
            Some((best, _)) => {
                charge_order(machine, key, best)?;
                let order = order(key, best);
                if is_largest { order.is_ge() } else { order.is_lt() }
            }
        };
        if is_better {
            best = Some((key, element));
        }
    }
    Ok(best.map_or(Value::Null, |(_, element)| element.clone()))
}

fn reverse(machine: &mut JqMachine, it: Value, _: &[Value]) -> JqResult<Value> {
    match &it {
        Value::Null => Ok(Value::array(Vec::new())),
        Value::Text(text) => {
            machine.read(4 * text.len())?;
            let reversed: String = text.to_string().chars().rev().collect();
            machine.text(reversed)
        }
        other => {
            let reversed = array(other)?.iter().rev().cloned().collect();
            machine.array(reversed)
        }
    }
}

fn flatten(machine: &mut JqMachine, it: Value, given: &[Value]) -> JqResult<Value> {
    let levels = float(&given[0])?;
    if levels < 0.0 {
        return Err(JqStop::error("flatten depth must not be negative"));
    }
    let mut flat = Vec::new();
    flatten_into(machine, &mut flat, array(&it)?, levels)?;
    machine.array(flat)
}

fn flatten_into(machine: &mut JqMachine, out: &mut Vec<Value>, elements: &[Value], levels: f64) -> JqResult<()> {
    machine.charge_steps(elements.len() as u64)?;
    for element in elements {
        match element {
            Value::Array(inner) if levels > 0.0 => flatten_into(machine, out, inner, levels - 1.0)?,
            other => out.push(other.clone()),
        }
    }
    Ok(())
}

fn join(machine: &mut JqMachine, it: Value, given: &[Value]) -> JqResult<Value> {
    let (elements, separator) = (array(&it)?, &given[0]);
    if elements.is_empty() {
        return machine.text("");
    }
    let mut out = Vec::new();
    for (index, element) in elements.iter().enumerate() {
        let before = out.len();
        if index > 0 {
            match separator {
                Value::Null => {}
                separator => out.extend_from_slice(text(separator)?),
            }
        }
        match element {
            Value::Null => {}
            Value::Array(_) | Value::Map(_) => {
                return Err(JqStop::error(format!("{} cannot be joined", described(element))));
            }
            other => out.extend_from_slice(&formats::to_text(machine, other)?),
        }
        machine.make(out.len() - before)?;
        machine.charge_steps(1)?;
    }
    Ok(Value::Text(out.into()))
}

fn delete_paths(machine: &mut JqMachine, it: Value, given: &[Value]) -> JqResult<Value> {
    let all: JqResult<Vec<Arc<Vec<Value>>>> = array(&given[0])?.iter().map(|path| array(path).cloned()).collect();
    paths::delete(machine, it, all?)
}

fn binary_search(machine: &mut JqMachine, it: Value, given: &[Value]) -> JqResult<Value> {
    let elements = array(&it)?;
    // Charge once per comparison of the binary search.
    for _ in 0..=elements.len().max(1).ilog2() {
        machine.charge_steps(4)?;
        machine.charge_value(&given[0])?;
    }
    Ok(match elements.binary_search_by(|element| order(element, &given[0])) {
        Ok(at) => Value::Int(at as i128),
        Err(at) => Value::Int(-1 - at as i128),
    })
}

fn explode(machine: &mut JqMachine, it: Value, _: &[Value]) -> JqResult<Value> {
    let text = text(&it)?;
    machine.make(32 * text.len())?;
    let codes = text
        .to_string()
        .chars()
        .map(|char| Value::Int(i128::from(u32::from(char))))
        .collect();
    Ok(Value::array(codes))
}

fn implode(machine: &mut JqMachine, it: Value, _: &[Value]) -> JqResult<Value> {
    let mut out = String::new();
    for code in array(&it)?.iter() {
        machine.charge_steps(1)?;
        let char = u32::try_from(float(code)? as i64).ok().and_then(char::from_u32);
        out.push(char.unwrap_or(char::REPLACEMENT_CHARACTER));
    }
    machine.text(out)
}

/// Creates an object from names and values.
pub(super) fn object<const N: usize>(entries: [(&str, Value); N]) -> Value {
    let entries = entries.map(|(key, value)| (key.into(), value));
    Value::Map(entries.into_iter().collect::<Map>())
}
