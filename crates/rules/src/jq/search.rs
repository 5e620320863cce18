//! Regular expressions and places in strings. Patterns see bytes, as in the other functions of rules; offsets are told in characters.

use super::builtins::object;
use super::machine::{Machine, Stop};
use super::paths;
use super::values::{self, text, told};
use crate::error::Fault;
use crate::resolve::compile_regex;
use crate::value::Value;

/// Patterns that are kept while the program runs.
const REGEXES_MAX: usize = 16;

/// Where a string stands in a string (in characters), or an array or element in an array.
pub(super) fn indices(machine: &mut Machine, it: Value, given: &[Value]) -> Result<Value, Stop> {
    match (&it, &given[0]) {
        (Value::Null, _) => Ok(Value::Null),
        (Value::Text(all), Value::Text(part)) => {
            if part.is_empty() {
                return Ok(Value::Null);
            }
            machine.step((all.len() * part.len()) as u64 / 16)?;
            let (mut found, mut counted, mut characters_before) = (Vec::new(), 0, 0);
            for (at, window) in all.windows(part.len()).enumerate() {
                if window == part.as_bytes() {
                    characters_before += characters(&all[counted..at]);
                    counted = at;
                    found.push(Value::Int(characters_before));
                }
            }
            machine.array(found)
        }
        (Value::Array(all), Value::Array(part)) => paths::positions(machine, all, part),
        (Value::Array(all), part) => paths::positions(machine, all, std::slice::from_ref(part)),
        (other, _) => Err(Stop::error(format!("Cannot determine indices in {}", told(other)))),
    }
}

fn characters(bytes: &[u8]) -> i128 {
    // Each begins with a byte that continues none.
    bytes.iter().filter(|byte| **byte & 0xC0 != 0x80).count() as i128
}

/// As jq's `match`, but all of its outputs in an array. The pattern may bring its flags: `[pattern, flags]`.
pub(super) fn matches(machine: &mut Machine, it: Value, given: &[Value]) -> Result<Value, Stop> {
    let subject = text(&it)?;
    let (pattern, flags) = match (&given[0], &given[1]) {
        (Value::Array(both), Value::Null) => (both.first(), both.get(1)),
        (pattern, flags) => (Some(pattern), Some(flags)),
    };
    let pattern = text(pattern.unwrap_or(&Value::Null))?;
    let flags = match flags {
        None | Some(Value::Null) => String::new(),
        Some(flags) => text(flags)?.to_string(),
    };
    let (mut inline, mut is_global, mut skips_empty) = (String::new(), false, false);
    for flag in flags.chars() {
        match flag {
            'g' => is_global = true,
            'n' => skips_empty = true,
            'i' | 'x' | 's' => inline.push(flag),
            'l' => {}
            _ => return Err(Stop::error(format!("{flags} is not a valid modifier string"))),
        }
    }
    let mut source = Vec::new();
    if !inline.is_empty() {
        source.extend_from_slice(format!("(?{inline})").as_bytes());
    }
    source.extend_from_slice(pattern);
    let regex = regex(machine, source)?;
    machine.step(subject.len() as u64 / 8)?;
    let names: Vec<Option<&str>> = regex.capture_names().skip(1).collect();
    let mut found = Vec::new();
    for captures in regex.captures_iter(subject) {
        let Some(all) = captures.get(0) else {
            continue;
        };
        // Offsets are counted from the start.
        machine.step(8 + (names.len() as u64 + 1) * (all.end() as u64 / 64))?;
        if skips_empty && all.is_empty() {
            continue;
        }
        let mut groups = Vec::with_capacity(names.len());
        for (number, name) in names.iter().enumerate() {
            let group = captures.get(number + 1);
            machine.make(256 + group.map_or(0, |group| group.len()))?;
            groups.push(object([
                (
                    "offset",
                    Value::Int(group.map_or(-1, |group| characters(&subject[..group.start()]))),
                ),
                (
                    "length",
                    Value::Int(group.map_or(0, |group| characters(group.as_bytes()))),
                ),
                (
                    "string",
                    group.map_or(Value::Null, |group| Value::text(group.as_bytes())),
                ),
                ("name", name.map_or(Value::Null, Value::from)),
            ]));
        }
        machine.make(256 + all.len())?;
        found.push(object([
            ("offset", Value::Int(characters(&subject[..all.start()]))),
            ("length", Value::Int(characters(all.as_bytes()))),
            ("string", Value::text(all.as_bytes())),
            ("captures", Value::array(groups)),
        ]));
        if !is_global {
            break;
        }
    }
    Ok(Value::array(found))
}

fn regex(machine: &mut Machine, source: Vec<u8>) -> Result<regex::bytes::Regex, Stop> {
    if let Some((_, regex)) = machine.regexes.iter().find(|(known, _)| *known == source) {
        return Ok(regex.clone());
    }
    machine.step(source.len() as u64 * 16)?;
    let regex = compile_regex(&source, machine.regex_bytes_max).map_err(|error| {
        let source = values::told(&Value::text(&source[..]));
        Stop::error(format!("{source} is no regular expression: {error}"))
    })?;
    if machine.regexes.len() >= REGEXES_MAX {
        return Err(Stop::Limit(Fault::from(format!(
            "the program uses more than {REGEXES_MAX} patterns"
        ))));
    }
    machine.regexes.push((source, regex.clone()));
    Ok(regex)
}
