//! `@json`, `@csv` and the other formats; `tostring`.

use base64ct::{Base64, Base64Unpadded, Encoding};

use super::machine::{Machine, Stop};
use super::term::TextFormat;
use super::values;
use crate::value::Value;

pub(super) fn to_text(value: &Value) -> Vec<u8> {
    match value {
        Value::Text(text) => text.as_bytes().to_vec(),
        other => values::json(other),
    }
}

pub(super) fn format(machine: &mut Machine, format: TextFormat, value: &Value) -> Result<Value, Stop> {
    machine.make(value.size())?;
    let text = match format {
        TextFormat::Text => to_text(value),
        TextFormat::Json => values::json(value),
        TextFormat::Html => escaped(&to_text(value), |byte| {
            Some(match byte {
                b'<' => b"&lt;",
                b'>' => b"&gt;",
                b'&' => b"&amp;",
                b'\'' => b"&#39;",
                b'"' => b"&quot;",
                _ => return None,
            })
        }),
        TextFormat::Uri => uri(&to_text(value)),
        TextFormat::Csv => row(value, b",", |text| {
            [
                b"\"",
                &escaped(text, |byte| (byte == b'"').then_some(b"\"\""))[..],
                b"\"",
            ]
            .concat()
        })?,
        TextFormat::Tsv => row(value, b"\t", |text| {
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
        TextFormat::Sh => shell(value)?,
        TextFormat::Base64 => Base64::encode_string(&to_text(value)).into_bytes(),
        TextFormat::Base64Decode => {
            let text = to_text(value);
            let unpadded = String::from_utf8_lossy(&text).trim_end_matches('=').to_owned();
            let decoded = Base64Unpadded::decode_vec(&unpadded);
            let decoded =
                decoded.map_err(|_| Stop::error(format!("{} is not valid base64 data", values::told(value))))?;
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

fn uri(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    for &byte in text {
        match byte {
            byte if byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) => out.push(byte),
            byte => out.extend_from_slice(format!("%{byte:02X}").as_bytes()),
        }
    }
    out
}

fn row(value: &Value, separator: &[u8], quoted: impl Fn(&[u8]) -> Vec<u8>) -> Result<Vec<u8>, Stop> {
    let Value::Array(elements) = value else {
        return Err(Stop::error(format!(
            "{} cannot be formatted as a row, only an array",
            values::told(value)
        )));
    };
    let mut cells = Vec::with_capacity(elements.len());
    for element in elements.iter() {
        cells.push(match element {
            Value::Text(text) => quoted(text),
            Value::Null | Value::Undefined => Vec::new(),
            Value::Array(_) | Value::Map(_) => {
                return Err(Stop::error(format!("{} is not valid in a row", values::told(element))));
            }
            other => values::json(other),
        });
    }
    Ok(cells.join(separator))
}

fn shell(value: &Value) -> Result<Vec<u8>, Stop> {
    let one = |value: &Value| match value {
        Value::Text(text) => {
            let inner = escaped(text, |byte| (byte == b'\'').then_some(b"'\\''"));
            Ok([b"'", &inner[..], b"'"].concat())
        }
        Value::Array(_) | Value::Map(_) => Err(Stop::error(format!(
            "{} cannot be escaped for a shell",
            values::told(value)
        ))),
        other => Ok(values::json(other)),
    };
    match value {
        Value::Array(elements) => {
            let words: Result<Vec<Vec<u8>>, Stop> = elements.iter().map(one).collect();
            Ok(words?.join(&b' '))
        }
        other => one(other),
    }
}
