//! Values to JSON bytes: keys in order, floats in their shortest form, as EMQX's encoder writes them.
//!
//! Bytes that are not UTF-8 become U+FFFD, as there.

use crate::number;
use crate::value::Value;

/// What stands for a field that does not exist: JSON has no word for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum JsonForm {
    /// The string `"undefined"`, as in EMQX.
    #[default]
    UndefinedAsString,
    UndefinedAsNull,
}

pub fn encode(value: &Value, form: JsonForm) -> Vec<u8> {
    let mut out = Vec::with_capacity(64);
    encode_into(&mut out, value, form);
    out
}

pub fn encode_into(out: &mut Vec<u8>, value: &Value, form: JsonForm) {
    match value {
        Value::Undefined if form == JsonForm::UndefinedAsString => out.extend_from_slice(b"\"undefined\""),
        Value::Undefined | Value::Null => out.extend_from_slice(b"null"),
        Value::Bool(true) => out.extend_from_slice(b"true"),
        Value::Bool(false) => out.extend_from_slice(b"false"),
        Value::Int(int) => number::integer(out, *int),
        Value::Float(float) => number::shortest(out, *float),
        Value::Text(text) => string(out, text),
        Value::Array(values) => {
            out.push(b'[');
            for (i, value) in values.iter().enumerate() {
                if i > 0 {
                    out.push(b',');
                }
                encode_into(out, value, form);
            }
            out.push(b']');
        }
        Value::Map(map) => {
            out.push(b'{');
            for (i, (key, value)) in map.iter().enumerate() {
                if i > 0 {
                    out.push(b',');
                }
                string(out, key);
                out.push(b':');
                encode_into(out, value, form);
            }
            out.push(b'}');
        }
    }
}

fn string(out: &mut Vec<u8>, bytes: &[u8]) {
    out.push(b'"');
    match std::str::from_utf8(bytes) {
        Ok(text) => escaped(out, text.as_bytes()),
        Err(_) => escaped(out, String::from_utf8_lossy(bytes).as_bytes()),
    }
    out.push(b'"');
}

fn escaped(out: &mut Vec<u8>, bytes: &[u8]) {
    let mut copied = 0;
    for (i, &byte) in bytes.iter().enumerate() {
        if byte >= 0x20 && byte != b'"' && byte != b'\\' {
            continue;
        }
        out.extend_from_slice(&bytes[copied..i]);
        copied = i + 1;
        match byte {
            b'"' => out.extend_from_slice(b"\\\""),
            b'\\' => out.extend_from_slice(b"\\\\"),
            b'\n' => out.extend_from_slice(b"\\n"),
            b'\r' => out.extend_from_slice(b"\\r"),
            b'\t' => out.extend_from_slice(b"\\t"),
            0x08 => out.extend_from_slice(b"\\b"),
            0x0C => out.extend_from_slice(b"\\f"),
            _ => out.extend_from_slice(format!("\\u{byte:04X}").as_bytes()),
        }
    }
    out.extend_from_slice(&bytes[copied..]);
}
