//! Regular expressions. They see bytes, not characters, and take time that is linear in the text: no look-around, no
//! back-references in patterns.

use regex::bytes::{Captures, Regex};

use super::{Call, Compiled, Group, function_table};
use crate::error::Fault;
use crate::resolve::compile_regex;
use crate::text::Text;
use crate::value::Value;

function_table! { Group::String;
    "regex_extract" (string: TEXTUAL, pattern: TEXT) regex -> ARRAY, extract, "The groups of the first match; empty without one.", "regex_extract('Number: 12345', '(\\d+)') = ['12345']";
    "regex_match" (string: TEXTUAL, pattern: TEXT) regex -> BOOL, matches, "Whether the pattern occurs in the string.", "regex_match('123', '^\\d+$') = true";
    "regex_replace" (string: TEXTUAL, pattern: TEXT, by: TEXT) regex -> TEXT, replace, "With all matches replaced; `&` and `\\1` in the replacement stand for the match and its groups.", "regex_replace('a;b; c', ';\\s*', ',') = 'a,b,c'";
}

/// Patterns that came with messages, the latest ones.
#[derive(Debug, Default)]
pub(crate) struct RegexCache {
    entries: Vec<(Text, Regex)>,
    next: usize,
}

impl RegexCache {
    const ENTRIES_MAX: usize = 16;

    fn get(&mut self, pattern: &[u8], bytes_max: usize) -> Result<Regex, Fault> {
        if let Some((_, regex)) = self.entries.iter().find(|entry| *entry.0 == *pattern) {
            return Ok(regex.clone());
        }
        let regex = compile_regex(pattern, bytes_max).map_err(|error| {
            let pattern = String::from_utf8_lossy(&pattern[..pattern.len().min(60)]).into_owned();
            Fault::from(format!("'{pattern}' is no regular expression: {error}"))
        })?;
        let entry = (Text::new(pattern), regex.clone());
        match self.entries.get_mut(self.next) {
            Some(oldest) => *oldest = entry,
            None => self.entries.push(entry),
        }
        self.next = (self.next + 1) % RegexCache::ENTRIES_MAX;
        Ok(regex)
    }
}

/// Calls `apply` with the pattern, compiled with the rule or now.
fn with_regex<T>(
    call: &mut Call<'_, '_>,
    apply: impl FnOnce(&mut Call<'_, '_>, &Regex) -> Result<T, Fault>,
) -> Result<T, Fault> {
    // An automaton may look at every byte in several states.
    call.run.budget.step(call.text(0)?.len() as u64 / 8)?;
    if let Some(Compiled::Regex(regex)) = call.constant {
        return apply(call, regex);
    }
    let pattern = call.text(1)?;
    call.run.budget.step(pattern.len() as u64 * 16)?;
    let bytes_max = call.run.rule.limits.regex_bytes_max;
    let regex = call.run.regexes().get(pattern, bytes_max)?;
    apply(call, &regex)
}

fn matches(call: &mut Call<'_, '_>) -> Result<Value, Fault> {
    with_regex(call, |call, regex| Ok(Value::Bool(regex.is_match(call.text(0)?))))
}

fn extract(call: &mut Call<'_, '_>) -> Result<Value, Fault> {
    with_regex(call, |call, regex| {
        let Some(captures) = regex.captures(call.text(0)?) else {
            return Ok(Value::array(Vec::new()));
        };
        // Groups behind the last one that took part are left out.
        let last = (1..captures.len())
            .rev()
            .find(|group| captures.get(*group).is_some())
            .unwrap_or(0);
        call.texts((1..=last).map(|group| captures.get(group).map_or(&b""[..], |found| found.as_bytes())))
    })
}

fn replace(call: &mut Call<'_, '_>) -> Result<Value, Fault> {
    with_regex(call, |call, regex| {
        let (text, by) = (call.text(0)?, call.text(2)?);
        let mut replaced = Vec::with_capacity(text.len());
        let mut copied = 0;
        for captures in regex.captures_iter(text) {
            let Some(found) = captures.get(0) else {
                continue;
            };
            replaced.extend_from_slice(&text[copied..found.start()]);
            expand(&mut replaced, by, &captures);
            copied = found.end();
            call.run.budget.step(1)?;
            if replaced.len() > call.run.rule.limits.result_bytes_max {
                return Err(Fault::from("regex_replace makes more bytes than one message may"));
            }
        }
        replaced.extend_from_slice(&text[copied..]);
        call.make(replaced)
    })
}

/// `&`: the match; `\1` and `\g{1}`: a group; a backslash before anything else: that.
fn expand(out: &mut Vec<u8>, by: &[u8], captures: &Captures<'_>) {
    let group = |out: &mut Vec<u8>, number: usize| {
        out.extend_from_slice(captures.get(number).map_or(&b""[..], |found| found.as_bytes()));
    };
    let mut rest = by;
    while let Some((&byte, tail)) = rest.split_first() {
        rest = tail;
        match (byte, tail) {
            (b'&', _) => group(out, 0),
            (b'\\', [b'g', b'{', digit @ b'0'..=b'9', b'}', after @ ..]) => {
                group(out, usize::from(digit - b'0'));
                rest = after;
            }
            (b'\\', [digit @ b'0'..=b'9', after @ ..]) => {
                group(out, usize::from(digit - b'0'));
                rest = after;
            }
            (b'\\', [escaped @ (b'&' | b'\\'), after @ ..]) => {
                out.push(*escaped);
                rest = after;
            }
            _ => out.push(byte),
        }
    }
}
