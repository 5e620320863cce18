//! `sprintf`: texts by a format, in the notation of Erlang's `io:format`, `~F.P.PadModC`.
//!
//! Controls: `s` text, `p w` any value, `b` integer in base P, `B` the same in upper case, `f e g` float, `c` character by its
//! code, `i` nothing, `n` new line, `~` a tilde. `F` is the width (negative: to the left), `*` takes a number from the arguments.

use super::convert::to_text;
use super::{Call, Group, function_table};
use crate::error::Fault;
use crate::json::{self, JsonForm};
use crate::number;
use crate::value::Value;

function_table! { Group::String;
    "sprintf" (format: TEXT) variadic -> TEXT, |c| { let arguments = &c.arguments[1..]; sprintf(c, arguments) }, "A text by a format as Erlang's `io:format` takes it: `~s ~p ~w ~b ~f ~e ~g ~c ~n ~~`, with width, precision and padding.", "sprintf('hello, ~s! ~.2f', 'steve', 1.5) = 'hello, steve! 1.50'";
    "sprintf_s" (format: TEXT, arguments: ARRAY) -> TEXT, |c| { let arguments = c.array(1)?; sprintf(c, arguments) }, "The same, with the arguments as an array.", "sprintf_s('~b of ~b', [1, 2]) = '1 of 2'";
}

/// One control sequence without its letter.
#[derive(Default)]
struct Control {
    width: Option<i64>,
    precision: Option<i64>,
    pad: Option<char>,
}

const FIELD_MAX: i64 = 10_000;

fn sprintf(call: &mut Call<'_, '_>, arguments: &[Value]) -> Result<Value, Fault> {
    let format = call.str(0)?;
    let mut arguments = arguments.iter();
    let mut out = Vec::new();
    let mut rest = format.chars();
    while let Some(character) = rest.next() {
        if character != '~' {
            out.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
            continue;
        }
        let (control, letter) = control(&mut rest, &mut arguments)?;
        let before = out.len();
        match letter {
            '~' => out.push(b'~'),
            'n' => out.push(b'\n'),
            'i' => drop(argument(&mut arguments)?),
            letter => field(&mut out, &control, letter, argument(&mut arguments)?)?,
        }
        call.run.budget.make(out.len() - before)?;
    }
    if arguments.next().is_some() {
        return Err(Fault::from(format!(
            "'{format}' has fewer controls than there are arguments"
        )));
    }
    call.make(out)
}

fn argument<'v>(arguments: &mut std::slice::Iter<'v, Value>) -> Result<&'v Value, Fault> {
    arguments
        .next()
        .ok_or(Fault::from("the format has more controls than there are arguments"))
}

fn control(
    rest: &mut std::str::Chars<'_>,
    arguments: &mut std::slice::Iter<'_, Value>,
) -> Result<(Control, char), Fault> {
    let mut control = Control {
        width: size(rest, arguments)?,
        ..Control::default()
    };
    if rest.as_str().starts_with('.') {
        rest.next();
        control.precision = size(rest, arguments)?;
        if rest.as_str().starts_with('.') {
            rest.next();
            control.pad = rest.next();
        }
    }
    // `t` (Unicode), `l` and `k` change nothing here.
    loop {
        match rest.next() {
            Some('t' | 'l' | 'k' | 'K') => {}
            Some(letter) => return Ok((control, letter)),
            None => return Err(Fault::from("the format ends in the middle of a control")),
        }
    }
}

fn size(rest: &mut std::str::Chars<'_>, arguments: &mut std::slice::Iter<'_, Value>) -> Result<Option<i64>, Fault> {
    let text = rest.as_str();
    if text.starts_with('*') {
        rest.next();
        return match argument(arguments)? {
            Value::Int(size) if size.abs() <= FIELD_MAX.into() => Ok(Some(*size as i64)),
            _ => Err(Fault::from("a width or precision is an integer of at most 10000")),
        };
    }
    let digits = text
        .trim_start_matches('-')
        .bytes()
        .take_while(u8::is_ascii_digit)
        .count();
    let length = digits + usize::from(text.starts_with('-'));
    if digits == 0 {
        return Ok(None);
    }
    *rest = text[length..].chars();
    match text[..length].parse() {
        Ok(size) if (-FIELD_MAX..=FIELD_MAX).contains(&size) => Ok(Some(size)),
        _ => Err(Fault::from("a width or precision is at most 10000")),
    }
}

fn field(out: &mut Vec<u8>, control: &Control, letter: char, value: &Value) -> Result<(), Fault> {
    let precision = control.precision;
    let text = match (letter, value) {
        ('s', value) => {
            let mut text = Vec::new();
            to_text(&mut text, value);
            let text = String::from_utf8_lossy(&text).into_owned();
            precision.map_or(text.clone(), |most| {
                text.chars().take(most.unsigned_abs() as usize).collect()
            })
        }
        ('p' | 'w' | 'P' | 'W', value) => shown(value),
        ('b' | 'B' | 'x' | 'X' | '#' | '+', Value::Int(int)) => {
            let digits = in_base(*int, precision.unwrap_or(10))?;
            if letter.is_uppercase() {
                digits.to_uppercase()
            } else {
                digits
            }
        }
        ('c', Value::Int(code)) => {
            let character = u32::try_from(*code).ok().and_then(char::from_u32);
            let character = character.ok_or(Fault::from("~c takes the code of a character"))?;
            String::from(character).repeat(precision.unwrap_or(1).clamp(0, FIELD_MAX) as usize)
        }
        ('f' | 'e' | 'g', Value::Float(float)) => float_text(letter, *float, precision),
        ('f' | 'e' | 'g', Value::Int(int)) => float_text(letter, *int as f64, precision),
        (letter, value) => {
            return Err(Fault::from(format!(
                "~{letter} takes no {}",
                value.type_name().trim_start_matches("an ").trim_start_matches("a ")
            )));
        }
    };
    pad(out, &text, control);
    Ok(())
}

/// To the right, or to the left if the width is negative; what is too long becomes stars.
fn pad(out: &mut Vec<u8>, text: &str, control: &Control) {
    let Some(width) = control.width else {
        return out.extend_from_slice(text.as_bytes());
    };
    let room = width.unsigned_abs() as usize;
    let length = text.chars().count();
    if length > room {
        out.extend(std::iter::repeat_n(b'*', room));
        return;
    }
    let padding = String::from(control.pad.unwrap_or(' ')).repeat(room - length);
    let (before, after) = if width < 0 {
        ("", padding.as_str())
    } else {
        (padding.as_str(), "")
    };
    out.extend_from_slice([before, text, after].concat().as_bytes());
}

/// Any value: texts in quotes, the rest as JSON.
fn shown(value: &Value) -> String {
    let mut text = Vec::new();
    match value {
        Value::Float(float) => number::shortest(&mut text, *float),
        Value::Undefined => text.extend_from_slice(b"undefined"),
        other => json::encode_into(&mut text, other, JsonForm::default()),
    }
    String::from_utf8_lossy(&text).into_owned()
}

fn in_base(int: i128, base: i64) -> Result<String, Fault> {
    let base = u32::try_from(base)
        .ok()
        .filter(|base| (2..=36).contains(base))
        .ok_or(Fault::from("a base is 2 to 36"))?;
    let mut rest = int.unsigned_abs();
    let mut digits = Vec::new();
    loop {
        digits.extend(char::from_digit((rest % u128::from(base)) as u32, base));
        rest /= u128::from(base);
        if rest == 0 {
            break;
        }
    }
    if int < 0 {
        digits.push('-');
    }
    Ok(digits.iter().rev().collect())
}

fn float_text(letter: char, float: f64, precision: Option<i64>) -> String {
    let precision = precision.unwrap_or(6).clamp(0, 253) as usize;
    match letter {
        'f' => format!("{float:.precision$}"),
        'g' if float == 0.0 || (0.1..10_000.0).contains(&float.abs()) => format!("{float:.precision$}"),
        // Precision counts the digit before the point as well.
        _ => {
            let text = format!("{float:.*e}", precision.saturating_sub(1));
            let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
            let sign = if exponent.starts_with('-') { "-" } else { "+" };
            format!("{mantissa}e{sign}{}", exponent.trim_start_matches('-'))
        }
    }
}
