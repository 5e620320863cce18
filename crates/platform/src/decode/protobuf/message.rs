//! Converts a payload to JSON with the JSON mapping of Protobuf: 64-bit integers as strings, bytes in base64, enums
//! by name, missing fields without presence by their default. Skips unknown fields. Output and depth are bounded.

use std::collections::BTreeMap;

use base64ct::{Base64, Encoding};

use super::schema::{FieldDescriptor, FieldKind, FieldLabel, MessageType, Schema};
use crate::decode::error::PayloadDecodeError;

const JSON_BYTES_MAX: usize = 4 << 20;
const DEPTH_MAX: usize = 32;

const EXPECTED: &str = "a Protobuf message of the profile's schema";

fn unexpected_format() -> PayloadDecodeError {
    PayloadDecodeError::form(EXPECTED)
}

/// A value in the wire format.
#[derive(Clone, Copy, Debug)]
enum WireValue<'a> {
    Varint(u64),
    Fixed64(u64),
    Bytes(&'a [u8]),
    Fixed32(u32),
}

impl Schema {
    pub fn to_json(&self, payload: &[u8]) -> Result<String, PayloadDecodeError> {
        let mut json = String::new();
        self.message(&self.messages[self.root], payload, 0, &mut json)?;
        Ok(json)
    }

    fn message(
        &self,
        kind: &MessageType,
        bytes: &[u8],
        depth: usize,
        json: &mut String,
    ) -> Result<(), PayloadDecodeError> {
        if depth >= DEPTH_MAX || json.len() > JSON_BYTES_MAX {
            return Err(unexpected_format());
        }
        let found = fields(bytes)?;
        json.push('{');
        for field in &kind.fields {
            let values = found.get(&field.number).map_or(&[][..], Vec::as_slice);
            if values.is_empty() && (field.label == FieldLabel::Optional || is_message(field)) {
                continue;
            }
            if !json.ends_with('{') {
                json.push(',');
            }
            json.push_str(&quoted(&field.name));
            json.push(':');
            self.field(field, values, depth, json)?;
        }
        json.push('}');
        Ok(())
    }

    fn field(
        &self,
        field: &FieldDescriptor,
        values: &[WireValue<'_>],
        depth: usize,
        json: &mut String,
    ) -> Result<(), PayloadDecodeError> {
        match (&field.kind, field.label) {
            (FieldKind::Map(key, value), _) => self.map(key, value, values, depth, json),
            (kind, FieldLabel::Repeated) => {
                json.push('[');
                for (index, value) in values.iter().enumerate() {
                    if index > 0 {
                        json.push(',');
                    }
                    self.repeated(kind, *value, depth, json)?;
                }
                json.push(']');
                Ok(())
            }
            // The last of several values applies.
            (kind, _) => match values.last() {
                Some(value) => self.value(kind, *value, depth, json),
                None => {
                    json.push_str(&self.default(kind));
                    Ok(())
                }
            },
        }
    }

    /// Numbers may be packed.
    fn repeated(
        &self,
        kind: &FieldKind,
        value: WireValue<'_>,
        depth: usize,
        json: &mut String,
    ) -> Result<(), PayloadDecodeError> {
        let WireValue::Bytes(mut packed) = value else {
            return self.value(kind, value, depth, json);
        };
        if matches!(kind, FieldKind::String | FieldKind::Bytes | FieldKind::Message(_)) {
            return self.value(kind, value, depth, json);
        }
        let mut is_first = true;
        while !packed.is_empty() {
            let one = match kind {
                FieldKind::Double | FieldKind::Fixed64 | FieldKind::Sfixed64 => {
                    WireValue::Fixed64(u64::from_le_bytes(take(&mut packed)?))
                }
                FieldKind::Float | FieldKind::Fixed32 | FieldKind::Sfixed32 => {
                    WireValue::Fixed32(u32::from_le_bytes(take(&mut packed)?))
                }
                _ => WireValue::Varint(varint(&mut packed)?),
            };
            if !std::mem::take(&mut is_first) {
                json.push(',');
            }
            self.value(kind, one, depth, json)?;
        }
        Ok(())
    }

    fn map(
        &self,
        key: &FieldKind,
        value: &FieldKind,
        entries: &[WireValue<'_>],
        depth: usize,
        json: &mut String,
    ) -> Result<(), PayloadDecodeError> {
        json.push('{');
        for entry in entries {
            let WireValue::Bytes(bytes) = entry else {
                return Err(unexpected_format());
            };
            let found = fields(bytes)?;
            let last = |number: u32| found.get(&number).and_then(|values| values.last());
            if !json.ends_with('{') {
                json.push(',');
            }
            let mut name = String::new();
            match last(1) {
                Some(wire) => self.value(key, *wire, depth, &mut name)?,
                None => name.push_str(&self.default(key)),
            }
            json.push_str(&if name.starts_with('"') {
                name
            } else {
                format!("\"{name}\"")
            });
            json.push(':');
            match last(2) {
                Some(wire) => self.value(value, *wire, depth, json)?,
                None => json.push_str(&self.default(value)),
            }
        }
        json.push('}');
        Ok(())
    }

    fn value(
        &self,
        kind: &FieldKind,
        wire: WireValue<'_>,
        depth: usize,
        json: &mut String,
    ) -> Result<(), PayloadDecodeError> {
        if json.len() > JSON_BYTES_MAX {
            return Err(unexpected_format());
        }
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_possible_wrap,
            reason = "defined by the wire format"
        )]
        let text = match (kind, wire) {
            (FieldKind::Message(index), WireValue::Bytes(bytes)) => {
                return self.message(&self.messages[*index], bytes, depth + 1, json);
            }
            (FieldKind::Double, WireValue::Fixed64(bits)) => double(f64::from_bits(bits)),
            (FieldKind::Float, WireValue::Fixed32(bits)) => float(f32::from_bits(bits)),
            (FieldKind::Int32, WireValue::Varint(value)) => (value as i32).to_string(),
            (FieldKind::Uint32, WireValue::Varint(value)) => (value as u32).to_string(),
            (FieldKind::Sint32, WireValue::Varint(value)) => (zigzag(value) as i32).to_string(),
            (FieldKind::Fixed32, WireValue::Fixed32(value)) => value.to_string(),
            (FieldKind::Sfixed32, WireValue::Fixed32(value)) => (value as i32).to_string(),
            (FieldKind::Int64, WireValue::Varint(value)) => format!("\"{}\"", value as i64),
            (FieldKind::Uint64, WireValue::Varint(value)) | (FieldKind::Fixed64, WireValue::Fixed64(value)) => {
                format!("\"{value}\"")
            }
            (FieldKind::Sint64, WireValue::Varint(value)) => format!("\"{}\"", zigzag(value)),
            (FieldKind::Sfixed64, WireValue::Fixed64(value)) => format!("\"{}\"", value as i64),
            (FieldKind::Bool, WireValue::Varint(value)) => (value != 0).to_string(),
            (FieldKind::Enum(index), WireValue::Varint(value)) => {
                let number = value as i32;
                self.enums[*index]
                    .get(&number)
                    .map_or_else(|| number.to_string(), |name| quoted(name))
            }
            (FieldKind::String, WireValue::Bytes(bytes)) => {
                quoted(std::str::from_utf8(bytes).map_err(|_| unexpected_format())?)
            }
            (FieldKind::Bytes, WireValue::Bytes(bytes)) => format!("\"{}\"", Base64::encode_string(bytes)),
            _ => return Err(unexpected_format()),
        };
        json.push_str(&text);
        Ok(())
    }

    fn default(&self, kind: &FieldKind) -> String {
        match kind {
            FieldKind::Double | FieldKind::Float => "0.0".to_owned(),
            FieldKind::Int64 | FieldKind::Uint64 | FieldKind::Sint64 | FieldKind::Fixed64 | FieldKind::Sfixed64 => {
                "\"0\"".to_owned()
            }
            FieldKind::Bool => "false".to_owned(),
            FieldKind::String | FieldKind::Bytes => "\"\"".to_owned(),
            FieldKind::Message(_) | FieldKind::Map(..) => "{}".to_owned(),
            FieldKind::Enum(index) => self.enums[*index]
                .get(&0)
                .map_or_else(|| "0".to_owned(), |name| quoted(name)),
            _ => "0".to_owned(),
        }
    }
}

fn is_message(field: &FieldDescriptor) -> bool {
    matches!(field.kind, FieldKind::Message(_)) && field.label == FieldLabel::Plain
}

fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

fn double(value: f64) -> String {
    if value.is_finite() {
        format!("{value:?}")
    } else {
        not_finite(value.is_nan(), value > 0.0)
    }
}

fn float(value: f32) -> String {
    if value.is_finite() {
        format!("{value:?}")
    } else {
        not_finite(value.is_nan(), value > 0.0)
    }
}

fn not_finite(is_nan: bool, is_positive: bool) -> String {
    match (is_nan, is_positive) {
        (true, _) => "\"NaN\"",
        (false, true) => "\"Infinity\"",
        (false, false) => "\"-Infinity\"",
    }
    .to_owned()
}

#[expect(clippy::cast_possible_wrap, reason = "defined by the wire format")]
fn zigzag(value: u64) -> i64 {
    (value >> 1) as i64 ^ -((value & 1) as i64)
}

/// All values by field number, in order.
fn fields(mut bytes: &[u8]) -> Result<BTreeMap<u32, Vec<WireValue<'_>>>, PayloadDecodeError> {
    let mut found: BTreeMap<u32, Vec<WireValue<'_>>> = BTreeMap::new();
    while !bytes.is_empty() {
        let tag = varint(&mut bytes)?;
        let number = u32::try_from(tag >> 3).map_err(|_| unexpected_format())?;
        let wire = match tag & 7 {
            0 => WireValue::Varint(varint(&mut bytes)?),
            1 => WireValue::Fixed64(u64::from_le_bytes(take(&mut bytes)?)),
            2 => {
                let length = usize::try_from(varint(&mut bytes)?).map_err(|_| unexpected_format())?;
                let (inside, rest) = bytes.split_at_checked(length).ok_or_else(unexpected_format)?;
                bytes = rest;
                WireValue::Bytes(inside)
            }
            5 => WireValue::Fixed32(u32::from_le_bytes(take(&mut bytes)?)),
            _ => return Err(unexpected_format()),
        };
        if number == 0 {
            return Err(unexpected_format());
        }
        found.entry(number).or_default().push(wire);
    }
    Ok(found)
}

fn varint(bytes: &mut &[u8]) -> Result<u64, PayloadDecodeError> {
    let mut value = 0;
    for index in 0..10 {
        let (byte, rest) = bytes.split_first().ok_or_else(unexpected_format)?;
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << (7 * index);
        if byte & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err(unexpected_format())
}

fn take<const N: usize>(bytes: &mut &[u8]) -> Result<[u8; N], PayloadDecodeError> {
    let (taken, rest) = bytes.split_first_chunk::<N>().ok_or_else(unexpected_format)?;
    *bytes = rest;
    Ok(*taken)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCHEMA: &str = r#"
        syntax = "proto3"; // of the sensors
        package sensors;
        enum Mode { OFF = 0; ON = 1; }
        message Part { int32 n = 1; }
        message Reading {
            reserved 99;
            optional int64 ts = 1;
            Values values = 2;
            message Values {
                double temperature = 1;
                repeated sint32 list = 2;
                Mode mode = 3;
                map<string, int32> by_name = 4;
                oneof either { string a_text = 5; bytes raw = 6; }
                repeated sensors.Part parts = 7;
                uint64 total = 8 [deprecated = true];
                bool is_on = 9;
                float f = 10;
            }
        }"#;

    fn json(payload: &[u8]) -> Result<String, PayloadDecodeError> {
        Schema::parse(SCHEMA).unwrap().to_json(payload)
    }

    #[test]
    fn all_field_types_are_decoded() {
        let values = [
            &[0x09][..],
            &1.5_f64.to_le_bytes(),
            &[0x12, 3, 1, 2, 3], // packed: -1, 1, -2
            &[0x18, 1],
            &[0x22, 5, 0x0a, 1, b'k', 0x10, 7],
            &[0x2a, 1, b'x'],
            &[0x3a, 2, 0x08, 5, 0x3a, 0],
            &[0x40, 0x96, 0x01],
            &[0x48, 1],
            &[0x55],
            &2.5_f32.to_le_bytes(),
        ]
        .concat();
        let mut payload = vec![0x08, 42, 0x12, u8::try_from(values.len()).unwrap()];
        payload.extend(values);
        assert_eq!(
            json(&payload).unwrap(),
            r#"{"ts":"42","values":{"temperature":1.5,"list":[-1,1,-2],"mode":"ON","byName":{"k":7},"aText":"x","parts":[{"n":5},{"n":0}],"total":"150","isOn":true,"f":2.5}}"#
        );
    }

    #[test]
    fn missing_fields_have_defaults_or_are_absent() {
        assert_eq!(json(&[]).unwrap(), "{}");
        let defaults = r#"{"values":{"temperature":0.0,"list":[],"mode":"OFF","byName":{},"parts":[],"total":"0","isOn":false,"f":0.0}}"#;
        assert_eq!(json(&[0x12, 0]).unwrap(), defaults);
        // Unknown fields are skipped.
        assert_eq!(json(&[0x78, 1]).unwrap(), "{}");
    }

    #[test]
    fn damaged_payloads_are_rejected() {
        for payload in [
            &[0x08][..],
            &[0x12, 5, 1],
            &[0x0b],
            &[0x08, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1],
            &[0x12, 2, 0x08, 1],
            &[0, 0],
        ] {
            assert!(json(payload).is_err(), "{payload:?}");
        }
    }

    #[test]
    fn invalid_schemas_are_rejected() {
        for schema in [
            "",
            "message A {",
            "message A { B b = 1; }",
            "syntax = \"proto2\"; message A {}",
            "import \"x\"; message A {}",
            "message A { required int32 a = 1; }",
            "message A { int32 a = x; }",
            "/* ",
        ] {
            assert!(Schema::parse(schema).is_err(), "{schema}");
        }
    }
}
