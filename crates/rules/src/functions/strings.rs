//! Functions of strings. Those that know characters want UTF-8; the others take bytes as they are.

use super::convert::to_text;
use super::{Call, Group, function_table};
use crate::error::Fault;
use crate::json::{self, JsonForm};
use crate::value::Value;

function_table! { Group::String;
    "ascii" (string: TEXTUAL) -> INT, ascii, "The code of the first character.", "ascii('abc') = 97";
    "concat" (first: ANY; second: ANY) -> TEXT, concat, "Both as one string, or all elements of an array as one.", "concat('Name:', 'John') = 'Name:John'";
    "find" (string: TEXTUAL, part: TEXT; direction: TEXT) -> TEXT, find, "The string from where the part begins, the first or (`'trailing'`) the last one; empty without it.", "find('Front, Middle, End', ', ', 'trailing') = ', End'";
    "join_to_string" (separator: TEXT_OR_ARRAY; array: ARRAY) -> TEXT, join_to_string, "The elements as one string; the separator is `', '` if there is none.", "join_to_string('-', ['a', 'b', 'c']) = 'a-b-c'";
    "join_to_sql_values_string" (array: ARRAY) -> TEXT, join_to_sql_values_string, "The elements as SQL writes them: strings in single quotes, which are doubled inside.", "join_to_sql_values_string([1, 'a']) = '1, ''a'''";
    "lower" (string: TEXTUAL) -> TEXT, |c| { let s = c.str(0)?.to_lowercase(); c.make(s) }, "In lower case.", "lower('Hello') = 'hello'";
    "ltrim" (string: TEXTUAL) -> TEXT, |c| { let s = c.str(0)?.trim_start(); c.make(s) }, "Without space at the start.", "ltrim('  hello ') = 'hello '";
    "pad" (string: TEXTUAL, length: INT; direction: TEXT, character: TEXT) -> TEXT, pad, "Filled up to the length, at the end or `'leading'`, `'trailing'`, `'both'`.", "pad('hello', 8, 'both') = ' hello  '";
    "replace" (string: TEXTUAL, part: TEXT, by: TEXT; place: TEXT) -> TEXT, replace, "With `all` of the parts replaced, or the `leading` or `trailing` one.", "replace('ab..cd..ef', '..', '**', 'leading') = 'ab**cd..ef'";
    "reverse" (string: TEXTUAL) -> TEXT, reverse, "Its characters from the end to the start.", "reverse('hello') = 'olleh'";
    "rm_prefix" (string: TEXTUAL, prefix: TEXT) -> TEXT, rm_prefix, "Without the prefix, if it has it.", "rm_prefix('foo/bar', 'foo/') = 'bar'";
    "rtrim" (string: TEXTUAL; characters: TEXT) -> TEXT, rtrim, "Without space, or without the given characters, at the end.", "rtrim(' hello  ') = ' hello'";
    "split" (string: TEXTUAL, separator: TEXT; option: TEXT) -> ARRAY, split, "The parts between separators. Options: `notrim` keeps empty parts, `leading` and `trailing` split once, `leading_notrim`, `trailing_notrim`.", "split('a;;b', ';') = ['a', 'b']";
    "strlen" (string: TEXTUAL) -> INT, |c| Ok(Value::Int(characters(c.str(0)?).count() as i128)), "How many characters it has; CR LF is one.", "strlen('hello') = 5";
    "substr" (string: TEXTUAL, start: INT; length: INT) -> TEXT, substr, "From a position, which begins with 0, to the end or for so many characters.", "substr('hello world!', 6, 5) = 'world'";
    "tokens" (string: TEXTUAL, separators: TEXT; nocrlf: TEXT) -> ARRAY, tokens, "The parts between any of the separating characters, `'nocrlf'` adds line ends to these.", "tokens('a,b;c', ',;') = ['a', 'b', 'c']";
    "trim" (string: TEXTUAL) -> TEXT, |c| { let s = c.str(0)?.trim(); c.make(s) }, "Without space at both ends.", "trim('  hello  ') = 'hello'";
    "unescape" (string: TEXTUAL) -> TEXT, unescape, "With escape sequences resolved: `\\n`, `\\t`, `\\r`, `\\b`, `\\f`, `\\v`, `\\a`, `\\\\`, `\\'`, `\\\"`, `\\?`, `\\x41`.", "strlen(unescape('\\n')) = 1";
    "upper" (string: TEXTUAL) -> TEXT, |c| { let s = c.str(0)?.to_uppercase(); c.make(s) }, "In upper case.", "upper('hello') = 'HELLO'";
}

/// Code points, with CR LF as one.
fn characters(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let first = rest.chars().next()?;
        let length = if rest.starts_with("\r\n") { 2 } else { first.len_utf8() };
        let (character, tail) = rest.split_at(length);
        rest = tail;
        Some(character)
    })
}

/// Where `part` begins.
fn position(text: &[u8], part: &[u8]) -> Option<usize> {
    match part {
        [] => None,
        [first, ..] => {
            let starts = text.iter().enumerate().filter(|(_, byte)| *byte == first);
            starts.map(|(at, _)| at).find(|at| text[*at..].starts_with(part))
        }
    }
}

fn last_position(text: &[u8], part: &[u8]) -> Option<usize> {
    if part.is_empty() {
        return None;
    }
    (0..text.len()).rev().find(|at| text[*at..].starts_with(part))
}

/// All positions, without overlaps.
fn positions(text: &[u8], part: &[u8]) -> Vec<usize> {
    let mut found = Vec::new();
    let mut start = 0;
    while let Some(at) = position(&text[start..], part) {
        found.push(start + at);
        start += at + part.len();
    }
    found
}

/// Looking for a part may take its length for every byte.
fn charge_search(call: &mut Call<'_, '_>) -> Result<(), Fault> {
    let (text, part) = (call.text(0)?.len() as u64, call.text(1)?.len() as u64);
    call.run.budget.step(text.saturating_mul(part) / 256)
}

fn ascii(call: &mut Call<'_, '_>) -> Result<Value, Fault> {
    match call.text(0)?.first() {
        Some(byte) => Ok(Value::Int((*byte).into())),
        None => Err(call.fault(0, "empty", "a character")),
    }
}

fn concat(call: &mut Call<'_, '_>) -> Result<Value, Fault> {
    let values = match call.arguments {
        [Value::Array(values)] => values,
        arguments => arguments,
    };
    join(call, values, b"")
}

fn join_to_string(call: &mut Call<'_, '_>) -> Result<Value, Fault> {
    if call.has(1) {
        join(call, call.array(1)?, call.text(0)?)
    } else {
        join(call, call.array(0)?, b", ")
    }
}

fn join(call: &mut Call<'_, '_>, values: &[Value], separator: &[u8]) -> Result<Value, Fault> {
    let mut joined = Vec::new();
    for (i, value) in values.iter().enumerate() {
        if i > 0 {
            joined.extend_from_slice(separator);
        }
        let before = joined.len();
        to_text(&mut joined, value);
        call.run.budget.make(joined.len() - before + separator.len())?;
    }
    Ok(Value::Text(joined.into()))
}

/// Doubled quotes are standard SQL; backslashes, as EMQX writes them, end the string in PostgreSQL.
fn join_to_sql_values_string(call: &mut Call<'_, '_>) -> Result<Value, Fault> {
    let mut joined = Vec::new();
    for (i, value) in call.array(0)?.iter().enumerate() {
        if i > 0 {
            joined.extend_from_slice(b", ");
        }
        let mut text = Vec::new();
        match value {
            Value::Undefined | Value::Null => text.extend_from_slice(b"NULL"),
            Value::Array(_) | Value::Map(_) => json::encode_into(&mut text, value, JsonForm::UndefinedAsNull),
            _ => to_text(&mut text, value),
        }
        if matches!(value, Value::Int(_) | Value::Float(_) | Value::Undefined | Value::Null) {
            joined.extend_from_slice(&text);
            continue;
        }
        joined.push(b'\'');
        for byte in text {
            joined.extend(std::iter::repeat_n(byte, if byte == b'\'' { 2 } else { 1 }));
        }
        joined.push(b'\'');
    }
    call.make(joined)
}

fn find(call: &mut Call<'_, '_>) -> Result<Value, Fault> {
    charge_search(call)?;
    let (text, part) = (call.text(0)?, call.text(1)?);
    let found = match call.option(2, "leading")? {
        _ if part.is_empty() => Some(0),
        "leading" => position(text, part),
        "trailing" => last_position(text, part),
        other => return Err(call.fault(2, &format!("'{other}'"), "'leading' or 'trailing'")),
    };
    call.make(found.map_or(&b""[..], |at| &text[at..]))
}

fn pad(call: &mut Call<'_, '_>) -> Result<Value, Fault> {
    let (text, length) = (call.str(0)?, call.count(1)?);
    let (direction, character) = (call.option(2, "trailing")?, call.option(3, " ")?);
    let missing = length.saturating_sub(characters(text).count());
    let (before, after) = match direction {
        "leading" => (missing, 0),
        "trailing" => (0, missing),
        "both" => (missing / 2, missing - missing / 2),
        other => return Err(call.fault(2, &format!("'{other}'"), "'leading', 'trailing' or 'both'")),
    };
    call.run
        .budget
        .make(text.len().saturating_add(missing.saturating_mul(character.len())))?;
    let padded = [
        character.repeat(before).as_str(),
        text,
        character.repeat(after).as_str(),
    ]
    .concat();
    Ok(Value::from(padded))
}

fn replace(call: &mut Call<'_, '_>) -> Result<Value, Fault> {
    charge_search(call)?;
    let (text, part, by) = (call.text(0)?, call.text(1)?, call.text(2)?);
    let found = match call.option(3, "all")? {
        "all" => positions(text, part),
        "leading" => position(text, part).into_iter().collect(),
        "trailing" => last_position(text, part).into_iter().collect(),
        other => return Err(call.fault(3, &format!("'{other}'"), "'all', 'leading' or 'trailing'")),
    };
    call.run.budget.make(found.len().saturating_mul(by.len()))?;
    let mut replaced = Vec::with_capacity(text.len());
    let mut copied = 0;
    for at in found {
        replaced.extend_from_slice(&text[copied..at]);
        replaced.extend_from_slice(by);
        copied = at + part.len();
    }
    replaced.extend_from_slice(&text[copied..]);
    call.make(replaced)
}

fn reverse(call: &mut Call<'_, '_>) -> Result<Value, Fault> {
    let mut characters: Vec<&str> = characters(call.str(0)?).collect();
    characters.reverse();
    call.make(characters.concat())
}

fn rm_prefix(call: &mut Call<'_, '_>) -> Result<Value, Fault> {
    let (text, prefix) = (call.text(0)?, call.text(1)?);
    call.make(text.strip_prefix(prefix).unwrap_or(text))
}

fn rtrim(call: &mut Call<'_, '_>) -> Result<Value, Fault> {
    let text = call.str(0)?;
    let trimmed = if call.has(1) {
        let characters = call.str(1)?;
        call.run.budget.step(text.len() as u64 * characters.len() as u64 / 64)?;
        text.trim_end_matches(|character| characters.contains(character))
    } else {
        text.trim_end()
    };
    call.make(trimmed)
}

fn split(call: &mut Call<'_, '_>) -> Result<Value, Fault> {
    charge_search(call)?;
    let (text, separator) = (call.text(0)?, call.text(1)?);
    let option = call.option(2, "")?;
    let found = match option {
        "" | "notrim" => positions(text, separator),
        "leading" | "leading_notrim" => position(text, separator).into_iter().collect(),
        "trailing" | "trailing_notrim" => last_position(text, separator).into_iter().collect(),
        other => {
            let expected = "'notrim', 'leading', 'leading_notrim', 'trailing' or 'trailing_notrim'";
            return Err(call.fault(2, &format!("'{other}'"), expected));
        }
    };
    let starts = std::iter::once(0).chain(found.iter().map(|at| at + separator.len()));
    let ends = found.iter().copied().chain(std::iter::once(text.len()));
    let keeps_empty = option.ends_with("notrim");
    let parts = starts.zip(ends).map(|(start, end)| &text[start..end]);
    call.texts(parts.filter(|part| keeps_empty || !part.is_empty()))
}

fn substr(call: &mut Call<'_, '_>) -> Result<Value, Fault> {
    let (text, start) = (call.str(0)?, call.count(1)?);
    let length = if call.has(2) { call.count(2)? } else { usize::MAX };
    let part: String = characters(text).skip(start).take(length).collect();
    call.make(part)
}

fn tokens(call: &mut Call<'_, '_>) -> Result<Value, Fault> {
    charge_search(call)?;
    let (text, separators) = (call.text(0)?, call.text(1)?);
    let has_line_ends = match call.option(2, "")? {
        "" => false,
        "nocrlf" => true,
        other => return Err(call.fault(2, &format!("'{other}'"), "'nocrlf'")),
    };
    let separates = |byte: &u8| separators.contains(byte) || (has_line_ends && matches!(byte, b'\r' | b'\n'));
    call.texts(text.split(separates).filter(|part| !part.is_empty()))
}

fn unescape(call: &mut Call<'_, '_>) -> Result<Value, Fault> {
    let text = call.str(0)?;
    let mut out = String::with_capacity(text.len());
    let mut rest = text.chars();
    while let Some(character) = rest.next() {
        if character != '\\' {
            out.push(character);
            continue;
        }
        let escape = rest.next();
        out.push(match escape {
            Some('n') => '\n',
            Some('t') => '\t',
            Some('r') => '\r',
            Some('b') => '\u{8}',
            Some('f') => '\u{C}',
            Some('v') => '\u{B}',
            Some('a') => '\u{7}',
            Some(same @ ('\\' | '\'' | '"' | '?')) => same,
            Some('x') => {
                let digits = rest.as_str();
                let length = digits.bytes().take_while(u8::is_ascii_hexdigit).count();
                let code = u32::from_str_radix(&digits[..length], 16).ok().and_then(char::from_u32);
                rest = digits[length..].chars();
                code.ok_or_else(|| {
                    call.fault(0, "a string with \\x that is no character", "\\x and the digits of one")
                })?
            }
            Some(other) => return Err(call.fault(0, &format!("a string with \\{other}"), "a known escape sequence")),
            None => return Err(call.fault(0, "a string with \\ at its end", "a known escape sequence")),
        });
    }
    call.make(out)
}
