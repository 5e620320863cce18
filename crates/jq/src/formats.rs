//! `@json`, `@csv` and the other formats, and `tostring`.

use base64ct::{Base64, Base64Unpadded, Encoding};
use rule_values::Value;

use super::machine::{JqMachine, JqStop};
use super::term::TextFormat;
use super::values;

pub(super) fn to_text(machine: &mut JqMachine, value: &Value) -> Result<Vec<u8>, JqStop> {
    match value {
        Value::Text(text) => {
            machine.make(text.len())?;
            Ok(text.as_bytes().to_vec())
        }
        other => values::json(machine, other),
    }
}

pub(super) fn format(machine: &mut JqMachine, format: TextFormat, value: &Value) -> Result<Value, JqStop> {
    // A few nanoseconds per byte, more for bytes that must be escaped or encoded.
    if !matches!(format, TextFormat::Text | TextFormat::Json) {
        machine.read(4 * value.as_bytes().map_or(0, <[u8]>::len))?;
    }
    let text = match format {
        TextFormat::Text => to_text(machine, value)?,
        TextFormat::Json => values::json(machine, value)?,
        TextFormat::Html => escaped(&to_text(machine, value)?, |byte| {
            Some(match byte {
                b'<' => b"&lt;",
                b'>' => b"&gt;",
                b'&' => b"&amp;",
                b'\'' => b"&#39;",
                b'"' => b"&quot;",
                _ => return None,
            })
        }),
        TextFormat::Uri => {
            let text = to_text(machine, value)?;
            machine.read(4 * text.len())?;
            uri(&text)
        }
        TextFormat::Csv => row(machine, value, b",", |text| {
            [
                b"\"",
                &escaped(text, |byte| (byte == b'"').then_some(b"\"\""))[..],
                b"\"",
            ]
            .concat()
        })?,
        TextFormat::Tsv => row(machine, value, b"\t", |text| {
            escaped(text, |byte| {
                Some(match byte {
                    b'\t' => b"\\t",
                    b'\n' => b"\\n",
                    b'\r' => b"\\r",
                    b'\\' => b"\\\\",
                    _ => return None,
                })
            })
        })?,
        TextFormat::Sh => shell(machine, value)?,
        TextFormat::Base64 => Base64::encode_string(&to_text(machine, value)?).into_bytes(),
        TextFormat::Base64Decode => {
            let text = to_text(machine, value)?;
            let unpadded = String::from_utf8_lossy(&text).trim_end_matches('=').to_owned();
            let decoded = Base64Unpadded::decode_vec(&unpadded);
            let decoded =
                decoded.map_err(|_| JqStop::error(format!("{} is not valid base64 data", values::described(value))))?;
            String::from_utf8_lossy(&decoded).into_owned().into_bytes()
        }
    };
    machine.text(text)
}

fn escaped(text: &[u8], escape: impl Fn(u8) -> Option<&'static [u8]>) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    for byte in text {
        match escape(*byte) {
            Some(instead) => out.extend_from_slice(instead),
            None => out.push(*byte),
        }
    }
    out
}

const HEX: &[u8; 16] = b"0123456789ABCDEF";

fn uri(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    for &byte in text {
        match byte {
            byte if byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) => out.push(byte),
            byte => out.extend([b'%', HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]]),
        }
    }
    out
}

fn row(
    machine: &mut JqMachine,
    value: &Value,
    separator: &[u8],
    quoted: impl Fn(&[u8]) -> Vec<u8>,
) -> Result<Vec<u8>, JqStop> {
    let Value::Array(elements) = value else {
        return Err(JqStop::error(format!(
            "{} cannot be formatted as a row, only an array",
            values::described(value)
        )));
    };
    let mut cells = Vec::with_capacity(elements.len());
    for element in elements.iter() {
        machine.charge_steps(8)?;
        machine.check_nesting(element, 0)?;
        cells.push(match element {
            Value::Text(text) => quoted(text),
            Value::Null | Value::Undefined => Vec::new(),
            Value::Array(_) | Value::Map(_) => {
                return Err(JqStop::error(format!(
                    "{} is not valid in a row",
                    values::described(element)
                )));
            }
            other => values::json(machine, other)?,
        });
    }
    Ok(cells.join(separator))
}

fn shell(machine: &mut JqMachine, value: &Value) -> Result<Vec<u8>, JqStop> {
    let mut one = |value: &Value| {
        machine.charge_steps(8)?;
        match value {
            Value::Text(text) => {
                machine.read(4 * text.len())?;
                let inner = escaped(text, |byte| (byte == b'\'').then_some(b"'\\''"));
                Ok([b"'", &inner[..], b"'"].concat())
            }
            Value::Array(_) | Value::Map(_) => Err(JqStop::error(format!(
                "{} cannot be escaped for a shell",
                values::described(value)
            ))),
            other => values::json(machine, other),
        }
    };
    match value {
        Value::Array(elements) => {
            let words: Result<Vec<Vec<u8>>, JqStop> = elements.iter().map(one).collect();
            Ok(words?.join(&b' '))
        }
        other => one(other),
    }
}
