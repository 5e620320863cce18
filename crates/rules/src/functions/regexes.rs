//! Regular expressions. Patterns match bytes, not characters. The bytes that a search reads are charged: see
//! `pattern.rs`.

use std::ops::Range;

use rule_values::{FunctionError, RegexPattern, StepBudget, Value};

use super::{CompiledArgument, FunctionCall, FunctionGroup, function_table};

function_table! { FunctionGroup::String;
    "regex_extract" (string: TEXTUAL, pattern: TEXT) regex -> ARRAY, extract, "The groups of the first match; empty if there is no match.", "regex_extract('Number: 12345', '(\\d+)') = ['12345']";
    "regex_match" (string: TEXTUAL, pattern: TEXT) regex -> BOOL, matches, "Whether the pattern matches any part of the string.", "regex_match('123', '^\\d+$') = true";
    "regex_replace" (string: TEXTUAL, pattern: TEXT, by: TEXT) regex -> TEXT, replace, "The string with all matches replaced; `&` and `\\1` in the replacement stand for the match and its groups.", "regex_replace('a;b; c', ';\\s*', ',') = 'a,b,c'";
}

/// Calls `apply` with the pattern. A constant pattern is already compiled.
fn with_pattern(
    call: &mut FunctionCall<'_, '_>,
    apply: impl FnOnce(&mut FunctionCall<'_, '_>, &RegexPattern) -> Result<Value, FunctionError>,
) -> Result<Value, FunctionError> {
    if let Some(CompiledArgument::Pattern(pattern)) = call.constant {
        return apply(call, pattern);
    }
    let text = call.text(1)?;
    let compiled = call.run.pattern(text)?.map_err(|error| {
        let text = String::from_utf8_lossy(&text[..text.len().min(60)]).into_owned();
        FunctionError::from(format!("'{text}' is not a valid regular expression: {error}"))
    });
    apply(call, &*compiled?)
}

fn matches(call: &mut FunctionCall<'_, '_>) -> Result<Value, FunctionError> {
    with_pattern(call, |call, pattern| {
        let is_match = pattern.is_match(call.text(0)?, &mut call.run.budget)?;
        Ok(Value::Bool(is_match))
    })
}

fn extract(call: &mut FunctionCall<'_, '_>) -> Result<Value, FunctionError> {
    with_pattern(call, |call, pattern| {
        let text = call.text(0)?;
        let Some(found) = pattern.matches(text).next(&mut call.run.budget)? else {
            return Ok(Value::array(Vec::new()));
        };
        let mut groups = pattern.groups(text, &found, &mut call.run.budget)?;
        // Trailing groups that did not take part in the match are omitted.
        while groups.pop_if(|last| last.is_none()).is_some() {}
        call.texts(groups.iter().skip(1).map(|group| part(text, group.as_ref())))
    })
}

fn replace(call: &mut FunctionCall<'_, '_>) -> Result<Value, FunctionError> {
    with_pattern(call, |call, pattern| {
        let (text, by) = (call.text(0)?, call.text(2)?);
        let budget = &mut call.run.budget;
        let has_groups = by.windows(2).any(|pair| matches!(pair, [b'\\', b'g' | b'1'..=b'9']));
        let mut replaced = Vec::with_capacity(text.len());
        let mut copied = 0;
        let mut matches = pattern.matches(text);
        while let Some(found) = matches.next(budget)? {
            budget.make(found.start - copied)?;
            replaced.extend_from_slice(&text[copied..found.start]);
            copied = found.end;
            let groups = match has_groups {
                true => pattern.groups(text, &found, budget)?,
                false => vec![Some(found)],
            };
            expand(&mut replaced, by, text, &groups, budget)?;
        }
        budget.make(text.len() - copied)?;
        replaced.extend_from_slice(&text[copied..]);
        Ok(Value::Text(replaced.into()))
    })
}

/// Returns an empty text for a group that did not take part in the match.
fn part<'t>(text: &'t [u8], group: Option<&Range<usize>>) -> &'t [u8] {
    group.and_then(|group| text.get(group.clone())).unwrap_or_default()
}

/// Expands a replacement: `&` is the match, `\1` and `\g{1}` are groups, a backslash before any other character is that
/// character.
fn expand(
    out: &mut Vec<u8>,
    by: &[u8],
    text: &[u8],
    groups: &[Option<Range<usize>>],
    budget: &mut StepBudget,
) -> Result<(), FunctionError> {
    budget.make(by.len())?;
    budget.read(by.len())?;
    let mut rest = by;
    while let Some((&byte, tail)) = rest.split_first() {
        rest = tail;
        let group = match (byte, tail) {
            (b'&', _) => 0,
            (b'\\', [b'g', b'{', digit @ b'0'..=b'9', b'}', after @ ..]) => {
                rest = after;
                usize::from(digit - b'0')
            }
            (b'\\', [digit @ b'0'..=b'9', after @ ..]) => {
                rest = after;
                usize::from(digit - b'0')
            }
            (b'\\', [escaped @ (b'&' | b'\\'), after @ ..]) => {
                out.push(*escaped);
                rest = after;
                continue;
            }
            _ => {
                out.push(byte);
                continue;
            }
        };
        let part = part(text, groups.get(group).and_then(Option::as_ref));
        budget.make(part.len())?;
        out.extend_from_slice(part);
    }
    Ok(())
}
