//! String functions. Functions that work on characters require UTF-8; the others accept any bytes.

use memchr::memmem;
use rule_values::{
    FunctionError, Value,
    json::{self, JsonForm},
};

use super::convert::to_text;
use super::{FunctionCall, FunctionGroup, function_table};

function_table! { FunctionGroup::String;
    "ascii" (string: TEXTUAL) -> INT, ascii, "The code of the first character.", "ascii('abc') = 97";
    "concat" (first: ANY; second: ANY) -> TEXT, concat, "Both strings joined, or all elements of an array joined.", "concat('Name:', 'John') = 'Name:John'";
    "find" (string: TEXTUAL, part: TEXT; direction: TEXT) -> TEXT, find, "The string from the first or (`'trailing'`) last occurrence of the part; empty if the part does not occur.", "find('Front, Middle, End', ', ', 'trailing') = ', End'";
    "join_to_string" (separator: TEXT_OR_ARRAY; array: ARRAY) -> TEXT, join_to_string, "The elements joined to one string; the default separator is `', '`.", "join_to_string('-', ['a', 'b', 'c']) = 'a-b-c'";
    "join_to_sql_values_string" (array: ARRAY) -> TEXT, join_to_sql_values_string, "The elements in SQL syntax: strings in single quotes, with inner quotes doubled.", "join_to_sql_values_string([1, 'a']) = '1, ''a'''";
    "lower" (string: TEXTUAL) -> TEXT, |c| { let s = c.str(0)?; charge_characters(c, s)?; c.make(s.to_lowercase()) }, "The string in lower case.", "lower('Hello') = 'hello'";
    "ltrim" (string: TEXTUAL) -> TEXT, |c| { let s = c.str(0)?.trim_start(); c.make(s) }, "The string without leading white space.", "ltrim('  hello ') = 'hello '";
    "pad" (string: TEXTUAL, length: INT; direction: TEXT, character: TEXT) -> TEXT, pad, "The string padded to the length at the end, or at `'leading'`, `'trailing'` or `'both'`.", "pad('hello', 8, 'both') = ' hello  '";
    "replace" (string: TEXTUAL, part: TEXT, by: TEXT; place: TEXT) -> TEXT, replace, "The string with `all` occurrences of the part replaced, or only the `leading` or `trailing` one.", "replace('ab..cd..ef', '..', '**', 'leading') = 'ab**cd..ef'";
    "reverse" (string: TEXTUAL) -> TEXT, reverse, "The characters in reverse order.", "reverse('hello') = 'olleh'";
    "rm_prefix" (string: TEXTUAL, prefix: TEXT) -> TEXT, rm_prefix, "The string without the prefix, if it begins with the prefix.", "rm_prefix('foo/bar', 'foo/') = 'bar'";
    "rtrim" (string: TEXTUAL; characters: TEXT) -> TEXT, rtrim, "The string without trailing white space, or without the given characters at the end.", "rtrim(' hello  ') = ' hello'";
    "split" (string: TEXTUAL, separator: TEXT; option: TEXT) -> ARRAY, split, "The parts between separators. Options: `notrim` keeps empty parts, `leading` and `trailing` split once, `leading_notrim`, `trailing_notrim`.", "split('a;;b', ';') = ['a', 'b']";
    "strlen" (string: TEXTUAL) -> INT, |c| { let s = c.str(0)?; charge_characters(c, s)?; Ok(Value::Int(characters(s).count() as i128)) }, "The number of characters; CR LF counts as one.", "strlen('hello') = 5";
    "substr" (string: TEXTUAL, start: INT; length: INT) -> TEXT, substr, "The part from a position, which begins with 0, to the end or of the given length.", "substr('hello world!', 6, 5) = 'world'";
    "tokens" (string: TEXTUAL, separators: TEXT; nocrlf: TEXT) -> ARRAY, tokens, "The parts between any of the separator characters; `'nocrlf'` adds line ends to the separators.", "tokens('a,b;c', ',;') = ['a', 'b', 'c']";
    "trim" (string: TEXTUAL) -> TEXT, |c| { let s = c.str(0)?.trim(); c.make(s) }, "The string without leading and trailing white space.", "trim('  hello  ') = 'hello'";
    "unescape" (string: TEXTUAL) -> TEXT, unescape, "The string with escape sequences resolved: `\\n`, `\\t`, `\\r`, `\\b`, `\\f`, `\\v`, `\\a`, `\\\\`, `\\'`, `\\\"`, `\\?`, `\\x41`.", "strlen(unescape('\\n')) = 1";
    "upper" (string: TEXTUAL) -> TEXT, |c| { let s = c.str(0)?; charge_characters(c, s)?; c.make(s.to_uppercase()) }, "The string in upper case.", "upper('hello') = 'HELLO'";
}

/// Iterates over code points, with CR LF as one character.
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

/// Charges for reading each character, which takes longer than reading each byte.
fn charge_characters(call: &mut FunctionCall<'_, '_>, text: &str) -> Result<(), FunctionError> {
    call.run.budget.charge_steps(text.len() as u64 / 4)
}

/// Returns the position of `part`. The search algorithm (Two-Way) is linear in the length of the text.
fn position(text: &[u8], part: &[u8]) -> Option<usize> {
    memmem::find(text, part).filter(|_| !part.is_empty())
}

fn last_position(text: &[u8], part: &[u8]) -> Option<usize> {
    memmem::rfind(text, part).filter(|_| !part.is_empty())
}

/// Returns all positions without overlaps.
fn positions(call: &mut FunctionCall<'_, '_>, text: &[u8], part: &[u8]) -> Result<Vec<usize>, FunctionError> {
    let mut found = Vec::new();
    for at in memmem::find_iter(text, part).take_while(|_| !part.is_empty()) {
        call.run.budget.charge_steps(1)?;
        found.push(at);
    }
    Ok(found)
}

fn ascii(call: &mut FunctionCall<'_, '_>) -> Result<Value, FunctionError> {
    match call.text(0)?.first() {
        Some(byte) => Ok(Value::Int((*byte).into())),
        None => Err(call.type_error(0, "empty", "a character")),
    }
}

fn concat(call: &mut FunctionCall<'_, '_>) -> Result<Value, FunctionError> {
    let values = match call.arguments {
        [Value::Array(values)] => values,
        arguments => arguments,
    };
    join(call, values, b"")
}

fn join_to_string(call: &mut FunctionCall<'_, '_>) -> Result<Value, FunctionError> {
    if call.has(1) {
        join(call, call.array(1)?, call.text(0)?)
    } else {
        join(call, call.array(0)?, b", ")
    }
}

fn join(call: &mut FunctionCall<'_, '_>, values: &[Value], separator: &[u8]) -> Result<Value, FunctionError> {
    let mut joined = Vec::new();
    for (i, value) in values.iter().enumerate() {
        if i > 0 {
            joined.extend_from_slice(separator);
        }
        let before = joined.len();
        call.run.budget.charge_steps(1)?;
        call.run.budget.charge_value(value)?;
        to_text(&mut joined, value);
        call.run.budget.make(joined.len() - before + separator.len())?;
    }
    Ok(Value::Text(joined.into()))
}

/// Quotes are doubled, as in standard SQL. EMQX escapes them with a backslash, which ends the string in PostgreSQL.
fn join_to_sql_values_string(call: &mut FunctionCall<'_, '_>) -> Result<Value, FunctionError> {
    let mut joined = Vec::new();
    for (i, value) in call.array(0)?.iter().enumerate() {
        if i > 0 {
            joined.extend_from_slice(b", ");
        }
        call.run.budget.check_nesting(value, 0)?;
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
        call.run.budget.read(4 * text.len())?;
        joined.push(b'\'');
        for byte in text {
            joined.extend(std::iter::repeat_n(byte, if byte == b'\'' { 2 } else { 1 }));
        }
        joined.push(b'\'');
    }
    call.make(joined)
}

fn find(call: &mut FunctionCall<'_, '_>) -> Result<Value, FunctionError> {
    let (text, part) = (call.text(0)?, call.text(1)?);
    let found = match call.option(2, "leading")? {
        _ if part.is_empty() => Some(0),
        "leading" => position(text, part),
        "trailing" => last_position(text, part),
        other => return Err(call.type_error(2, &format!("'{other}'"), "'leading' or 'trailing'")),
    };
    call.make(found.map_or(&b""[..], |at| &text[at..]))
}

fn pad(call: &mut FunctionCall<'_, '_>) -> Result<Value, FunctionError> {
    let (text, length) = (call.str(0)?, call.count(1)?);
    charge_characters(call, text)?;
    let (direction, character) = (call.option(2, "trailing")?, call.option(3, " ")?);
    let missing = length.saturating_sub(characters(text).count());
    let (before, after) = match direction {
        "leading" => (missing, 0),
        "trailing" => (0, missing),
        "both" => (missing / 2, missing - missing / 2),
        other => return Err(call.type_error(2, &format!("'{other}'"), "'leading', 'trailing' or 'both'")),
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

fn replace(call: &mut FunctionCall<'_, '_>) -> Result<Value, FunctionError> {
    let (text, part, by) = (call.text(0)?, call.text(1)?, call.text(2)?);
    let found = match call.option(3, "all")? {
        "all" => positions(call, text, part)?,
        "leading" => position(text, part).into_iter().collect(),
        "trailing" => last_position(text, part).into_iter().collect(),
        other => return Err(call.type_error(3, &format!("'{other}'"), "'all', 'leading' or 'trailing'")),
    };
    call.run
        .budget
        .make(text.len() + found.len().saturating_mul(by.len()))?;
    let mut replaced = Vec::with_capacity(text.len());
    let mut copied = 0;
    for at in found {
        replaced.extend_from_slice(&text[copied..at]);
        replaced.extend_from_slice(by);
        copied = at + part.len();
    }
    replaced.extend_from_slice(&text[copied..]);
    Ok(Value::Text(replaced.into()))
}

fn reverse(call: &mut FunctionCall<'_, '_>) -> Result<Value, FunctionError> {
    let text = call.str(0)?;
    charge_characters(call, text)?;
    charge_characters(call, text)?;
    let mut characters: Vec<&str> = characters(text).collect();
    characters.reverse();
    call.make(characters.concat())
}

fn rm_prefix(call: &mut FunctionCall<'_, '_>) -> Result<Value, FunctionError> {
    let (text, prefix) = (call.text(0)?, call.text(1)?);
    call.make(text.strip_prefix(prefix).unwrap_or(text))
}

fn rtrim(call: &mut FunctionCall<'_, '_>) -> Result<Value, FunctionError> {
    let text = call.str(0)?;
    let trimmed = if call.has(1) {
        let characters = call.str(1)?;
        charge_characters(call, text)?;
        call.run
            .budget
            .charge_steps((text.len() as u64).saturating_mul(characters.len() as u64) / 64)?;
        text.trim_end_matches(|character| characters.contains(character))
    } else {
        text.trim_end()
    };
    call.make(trimmed)
}

fn split(call: &mut FunctionCall<'_, '_>) -> Result<Value, FunctionError> {
    let (text, separator) = (call.text(0)?, call.text(1)?);
    let option = call.option(2, "")?;
    let found = match option {
        "" | "notrim" => positions(call, text, separator)?,
        "leading" | "leading_notrim" => position(text, separator).into_iter().collect(),
        "trailing" | "trailing_notrim" => last_position(text, separator).into_iter().collect(),
        other => {
            let expected = "'notrim', 'leading', 'leading_notrim', 'trailing' or 'trailing_notrim'";
            return Err(call.type_error(2, &format!("'{other}'"), expected));
        }
    };
    let starts = std::iter::once(0).chain(found.iter().map(|at| at + separator.len()));
    let ends = found.iter().copied().chain(std::iter::once(text.len()));
    let keeps_empty = option.ends_with("notrim");
    let parts = starts.zip(ends).map(|(start, end)| &text[start..end]);
    call.texts(parts.filter(|part| keeps_empty || !part.is_empty()))
}

fn substr(call: &mut FunctionCall<'_, '_>) -> Result<Value, FunctionError> {
    let (text, start) = (call.str(0)?, call.count(1)?);
    let length = if call.has(2) { call.count(2)? } else { usize::MAX };
    charge_characters(call, text)?;
    let part: String = characters(text).skip(start).take(length).collect();
    call.make(part)
}

fn tokens(call: &mut FunctionCall<'_, '_>) -> Result<Value, FunctionError> {
    let (text, separators) = (call.text(0)?, call.text(1)?);
    let mut separates = [false; 256];
    match call.option(2, "")? {
        "" => {}
        "nocrlf" => b"\r\n".iter().for_each(|byte| separates[usize::from(*byte)] = true),
        other => return Err(call.type_error(2, &format!("'{other}'"), "'nocrlf'")),
    }
    separators.iter().for_each(|byte| separates[usize::from(*byte)] = true);
    call.run.budget.read(text.len())?;
    call.texts(
        text.split(|byte| separates[usize::from(*byte)])
            .filter(|part| !part.is_empty()),
    )
}

fn unescape(call: &mut FunctionCall<'_, '_>) -> Result<Value, FunctionError> {
    let text = call.str(0)?;
    charge_characters(call, text)?;
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
                    call.type_error(
                        0,
                        "a string with \\x that is not a character",
                        "\\x and the digits of one",
                    )
                })?
            }
            Some(other) => {
                return Err(call.type_error(0, &format!("a string with \\{other}"), "a known escape sequence"));
            }
            None => return Err(call.type_error(0, "a string with \\ at its end", "a known escape sequence")),
        });
    }
    call.make(out)
}
