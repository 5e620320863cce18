//! Encodes values as JSON: keys in order, floats in their shortest form, like the encoder of EMQX.
//!
//! As in EMQX, bytes that are not UTF-8 become U+FFFD.

use crate::number;
use crate::value::Value;

/// The JSON value for a missing field.
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
    encode_in_string(out, bytes);
    out.push(b'"');
}

/// Appends a text as JSON string content, without the quotation marks.
pub fn encode_in_string(out: &mut Vec<u8>, bytes: &[u8]) {
    match std::str::from_utf8(bytes) {
        Ok(text) => escaped(out, text.as_bytes()),
        Err(_) => escaped(out, String::from_utf8_lossy(bytes).as_bytes()),
    }
}

const HEX: &[u8; 16] = b"0123456789ABCDEF";

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
            _ => {
                let [high, low] = [byte >> 4, byte & 15].map(|digit| HEX[usize::from(digit)]);
                out.extend_from_slice(&[b'\\', b'u', b'0', b'0', high, low]);
            }
        }
    }
    out.extend_from_slice(&bytes[copied..]);
}
