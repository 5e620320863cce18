//! `sprintf`: formats text in the notation of `io:format` of Erlang, `~F.P.PadModC`.
//!
//! Control characters: `s` text, `p w` any value, `b` integer in base P, `B` the same in upper case, `f e g` float, `c`
//! character by its code, `i` nothing, `n` new line, `~` a tilde. `F` is the width (negative: left-aligned). `*` takes
//! a number from the arguments.

use rule_values::{
    FunctionError, Value,
    json::{self, JsonForm},
    number,
};

use super::convert::to_text;
use super::{FunctionCall, FunctionGroup, function_table};

function_table! { FunctionGroup::String;
    "sprintf" (format: TEXT) variadic -> TEXT, |c| { let arguments = &c.arguments[1..]; sprintf(c, arguments) }, "Formatted text in the syntax of `io:format` of Erlang: `~s ~p ~w ~b ~f ~e ~g ~c ~n ~~`, with width, precision and padding.", "sprintf('hello, ~s! ~.2f', 'steve', 1.5) = 'hello, steve! 1.50'";
    "sprintf_s" (format: TEXT, arguments: ARRAY) -> TEXT, |c| { let arguments = c.array(1)?; sprintf(c, arguments) }, "Same as `sprintf`, with the arguments in an array.", "sprintf_s('~b of ~b', [1, 2]) = '1 of 2'";
}

/// A control sequence without its letter.
#[derive(Default)]
struct ControlSequence {
    width: Option<i64>,
    precision: Option<i64>,
    pad: Option<char>,
}

const FIELD_MAX: i64 = 10_000;

fn sprintf(call: &mut FunctionCall<'_, '_>, arguments: &[Value]) -> Result<Value, FunctionError> {
    let format = call.str(0)?;
    call.run.budget.read(4 * format.len())?;
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
            letter => {
                let value = argument(&mut arguments)?;
                call.run.budget.check_nesting(value, 0)?;
                // Digits of numbers are computed one by one.
                call.run
                    .budget
                    .charge_steps(8 + control.precision.unwrap_or(0).unsigned_abs())?;
                field(&mut out, &control, letter, value)?;
            }
        }
        call.run.budget.make(out.len() - before)?;
    }
    if arguments.next().is_some() {
        return Err(FunctionError::from(format!(
            "'{format}' has fewer control sequences than arguments"
        )));
    }
    call.make(out)
}

fn argument<'v>(arguments: &mut std::slice::Iter<'v, Value>) -> Result<&'v Value, FunctionError> {
    arguments.next().ok_or(FunctionError::from(
        "the format has more control sequences than arguments",
    ))
}

fn control(
    rest: &mut std::str::Chars<'_>,
    arguments: &mut std::slice::Iter<'_, Value>,
) -> Result<(ControlSequence, char), FunctionError> {
    let mut control = ControlSequence {
        width: size(rest, arguments)?,
        ..ControlSequence::default()
    };
    if rest.as_str().starts_with('.') {
        rest.next();
        control.precision = size(rest, arguments)?;
        if rest.as_str().starts_with('.') {
            rest.next();
            control.pad = rest.next();
        }
    }
    // `t` (Unicode), `l` and `k` have no effect.
    loop {
        match rest.next() {
            Some('t' | 'l' | 'k' | 'K') => {}
            Some(letter) => return Ok((control, letter)),
            None => return Err(FunctionError::from("the format ends inside a control sequence")),
        }
    }
}

fn size(
    rest: &mut std::str::Chars<'_>,
    arguments: &mut std::slice::Iter<'_, Value>,
) -> Result<Option<i64>, FunctionError> {
    let text = rest.as_str();
    if text.starts_with('*') {
        rest.next();
        return match argument(arguments)? {
            Value::Int(size) if size.abs() <= FIELD_MAX.into() => Ok(Some(*size as i64)),
            _ => Err(FunctionError::from(
                "a width or precision must be an integer of at most 10000",
            )),
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
        _ => Err(FunctionError::from("a width or precision must be at most 10000")),
    }
}

fn field(out: &mut Vec<u8>, control: &ControlSequence, letter: char, value: &Value) -> Result<(), FunctionError> {
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
        ('p' | 'w' | 'P' | 'W', value) => format_value(value),
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
            let character = character.ok_or(FunctionError::from("~c requires a character code"))?;
            String::from(character).repeat(precision.unwrap_or(1).clamp(0, FIELD_MAX) as usize)
        }
        ('f' | 'e' | 'g', Value::Float(float)) => float_text(letter, *float, precision),
        ('f' | 'e' | 'g', Value::Int(int)) => float_text(letter, *int as f64, precision),
        (letter, value) => {
            return Err(FunctionError::from(format!(
                "~{letter} does not accept {}",
                value.type_name().trim_start_matches("an ").trim_start_matches("a ")
            )));
        }
    };
    pad(out, &text, control);
    Ok(())
}

/// Aligns right, or left if the width is negative. A text that is too long is replaced by stars.
fn pad(out: &mut Vec<u8>, text: &str, control: &ControlSequence) {
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

/// Formats any value: texts in quotes, all others as JSON.
fn format_value(value: &Value) -> String {
    let mut text = Vec::new();
    match value {
        Value::Float(float) => number::shortest(&mut text, *float),
        Value::Undefined => text.extend_from_slice(b"undefined"),
        other => json::encode_into(&mut text, other, JsonForm::default()),
    }
    String::from_utf8_lossy(&text).into_owned()
}

fn in_base(int: i128, base: i64) -> Result<String, FunctionError> {
    let base = u32::try_from(base)
        .ok()
        .filter(|base| (2..=36).contains(base))
        .ok_or(FunctionError::from("the base must be from 2 to 36"))?;
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
        // The precision includes the digit before the point.
        _ => {
            let text = format!("{float:.*e}", precision.saturating_sub(1));
            let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
            let sign = if exponent.starts_with('-') { "-" } else { "+" };
            format!("{mantissa}e{sign}{}", exponent.trim_start_matches('-'))
        }
    }
}
