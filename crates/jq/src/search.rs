//! Regular expressions and positions in strings. Patterns match bytes, as in the other functions of rules; offsets in
//! results count characters.

use std::ops::Range;
use std::sync::Arc;

use rule_values::{RegexPattern, Text, Value};

use super::builtins::object;
use super::machine::{JqMachine, JqStop};
use super::values::{self, described, text};
use super::{ProgramLimits, paths};

/// Returns the positions of a string in a string (in characters), or of an array or element in an array.
pub(super) fn indices(machine: &mut JqMachine, it: Value, given: &[Value]) -> Result<Value, JqStop> {
    match (&it, &given[0]) {
        (Value::Null, _) => Ok(Value::Null),
        (Value::Text(all), Value::Text(part)) => {
            if part.is_empty() {
                return Ok(Value::Null);
            }
            machine.read(part.len())?;
            let finder = memchr::memmem::Finder::new(part.as_bytes());
            let (mut found, mut from, mut counted, mut before) = (Vec::new(), 0, 0, 0);
            while let Some(at) = finder.find(&all[from..]).map(|at| from + at) {
                // The next match may overlap this one.
                machine.read(16 + at - from + part.len())?;
                before += characters(&all[counted..at]);
                (counted, from) = (at, at + 1);
                found.push(Value::Int(before));
            }
            machine.read(all.len() - from)?;
            machine.array(found)
        }
        (Value::Array(all), Value::Array(part)) => paths::positions(machine, all, part),
        (Value::Array(all), part) => paths::positions(machine, all, std::slice::from_ref(part)),
        (other, _) => Err(JqStop::error(format!(
            "Cannot determine indices in {}",
            described(other)
        ))),
    }
}

fn characters(bytes: &[u8]) -> i128 {
    // Count the bytes that are not continuation bytes.
    bytes.iter().filter(|byte| **byte & 0xC0 != 0x80).count() as i128
}

/// `match` of jq, but with all outputs in one array. The pattern can include its flags: `[pattern, flags]`.
pub(super) fn matches(machine: &mut JqMachine, it: Value, given: &[Value]) -> Result<Value, JqStop> {
    let mut found = Vec::new();
    each_match(machine, &it, given, |_, _, one| {
        found.push(one);
        Ok(())
    })?;
    Ok(Value::array(found))
}

/// Cuts the string at its matches. Returns an object with `before` and `match` per match, and a last one with the rest
/// as `before`.
pub(super) fn split_at_matches(machine: &mut JqMachine, it: Value, given: &[Value]) -> Result<Value, JqStop> {
    let subject = text(&it)?;
    let (mut pieces, mut copied) = (Vec::new(), 0);
    let piece = |machine: &mut JqMachine, range: Range<usize>| {
        machine.make(64 + range.len())?;
        Ok::<Value, JqStop>(Value::text(&subject[range]))
    };
    each_match(machine, &it, given, |machine, range, one| {
        let before = piece(machine, copied..range.start)?;
        pieces.push(object([("before", before), ("match", one)]));
        copied = range.end;
        Ok(())
    })?;
    let before = piece(machine, copied..subject.len())?;
    pieces.push(object([("before", before)]));
    Ok(Value::array(pieces))
}

/// Options of a search.
#[derive(Default)]
struct SearchFlags {
    inline: String,
    is_global: bool,
    skips_empty: bool,
}

fn flags_of(flags: Option<&Value>) -> Result<SearchFlags, JqStop> {
    let flags = match flags {
        None | Some(Value::Null) => return Ok(SearchFlags::default()),
        Some(flags) => flags,
    };
    let mut all = SearchFlags::default();
    for flag in text(flags)?.iter() {
        match flag {
            b'g' => all.is_global = true,
            b'n' => all.skips_empty = true,
            b'i' | b'x' | b's' if all.inline.contains(char::from(*flag)) => {}
            b'i' | b'x' | b's' => all.inline.push(char::from(*flag)),
            b'l' => {}
            _ => {
                return Err(JqStop::error(format!(
                    "{} is not a valid modifier string",
                    described(flags)
                )));
            }
        }
    }
    Ok(all)
}

/// Calls `take` with the position of each match and with the match object of jq. Offsets are in characters.
fn each_match(
    machine: &mut JqMachine,
    it: &Value,
    given: &[Value],
    mut take: impl FnMut(&mut JqMachine, Range<usize>, Value) -> Result<(), JqStop>,
) -> Result<(), JqStop> {
    let subject = text(it)?;
    let (source, flags) = match (&given[0], &given[1]) {
        (Value::Array(both), Value::Null) => (both.first(), both.get(1)),
        (source, flags) => (Some(source), Some(flags)),
    };
    let flags = flags_of(flags)?;
    let pattern = pattern(machine, text(source.unwrap_or(&Value::Null))?, &flags.inline)?;
    let names: Vec<Option<&str>> = pattern.group_names().skip(1).collect();
    let (mut counted, mut characters_before) = (0, 0);
    let mut all = pattern.matches(subject);
    while let Some(found) = all.next(&mut machine.allowance.budget)? {
        machine.read(64 + found.end - counted)?;
        characters_before += characters(&subject[counted..found.start]);
        counted = found.start;
        if flags.skips_empty && found.is_empty() {
            continue;
        }
        let places = pattern.groups(subject, &found, &mut machine.allowance.budget)?;
        let mut groups = Vec::with_capacity(names.len());
        for (place, name) in places.iter().skip(1).zip(&names) {
            let offset = match place {
                Some(place) => {
                    machine.read(place.end - found.start)?;
                    characters_before + characters(&subject[found.start..place.start])
                }
                None => -1,
            };
            let string = place.as_ref().map(|place| &subject[place.clone()]);
            machine.make(256 + string.map_or(0, <[u8]>::len))?;
            groups.push(object([
                ("offset", Value::Int(offset)),
                ("length", Value::Int(string.map_or(0, characters))),
                ("string", string.map_or(Value::Null, Value::text)),
                ("name", name.map_or(Value::Null, Value::from)),
            ]));
        }
        let string = &subject[found.clone()];
        machine.make(256 + string.len())?;
        let one = object([
            ("offset", Value::Int(characters_before)),
            ("length", Value::Int(characters(string))),
            ("string", Value::text(string)),
            ("captures", Value::array(groups)),
        ]);
        take(machine, found, one)?;
        if !flags.is_global {
            break;
        }
    }
    Ok(())
}

fn pattern(machine: &mut JqMachine, source: &Text, inline: &str) -> Result<Arc<RegexPattern>, JqStop> {
    let with_flags;
    let source = match inline {
        "" => source,
        _ => {
            machine.make(source.len())?;
            with_flags = Text::from([format!("(?{inline})").as_bytes(), source].concat());
            &with_flags
        }
    };
    let ProgramLimits {
        patterns,
        budget,
        regex_bytes,
        ..
    } = &mut machine.allowance;
    let compiled = patterns.get(source, *regex_bytes, budget)?;
    compiled.map_err(|error| {
        let source = values::described(&Value::Text(source.clone()));
        JqStop::error(format!("{source} is not a valid regular expression: {error}"))
    })
}
