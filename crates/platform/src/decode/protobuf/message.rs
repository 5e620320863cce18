//! A payload to JSON, as the JSON mapping of Protobuf has it: 64-bit integers as texts, bytes in base64, enums by name, fields
//! without presence by their default value. Unknown fields are left out. Output and depth are bounded.

use std::collections::BTreeMap;

use base64ct::{Base64, Encoding};

use super::schema::{Field, Kind, Label, MessageType, Schema};
use crate::decode::error::DecodeError;

const JSON_BYTES_MAX: usize = 4 << 20;
const DEPTH_MAX: usize = 32;

const EXPECTED: &str = "a Protobuf message of the profile's schema";

fn wrong() -> DecodeError {
    DecodeError::form(EXPECTED)
}

/// One value as it is on the wire.
#[derive(Clone, Copy, Debug)]
enum Wire<'a> {
    Varint(u64),
    Fixed64(u64),
    Bytes(&'a [u8]),
    Fixed32(u32),
}

impl Schema {
    pub fn to_json(&self, payload: &[u8]) -> Result<String, DecodeError> {
        let mut json = String::new();
        self.message(&self.messages[self.root], payload, 0, &mut json)?;
        Ok(json)
    }

    fn message(&self, kind: &MessageType, bytes: &[u8], depth: usize, json: &mut String) -> Result<(), DecodeError> {
        if depth >= DEPTH_MAX || json.len() > JSON_BYTES_MAX {
            return Err(wrong());
        }
        let found = fields(bytes)?;
        json.push('{');
        for field in &kind.fields {
            let values = found.get(&field.number).map_or(&[][..], Vec::as_slice);
            if values.is_empty() && (field.label == Label::Optional || is_message(field)) {
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

    fn field(&self, field: &Field, values: &[Wire<'_>], depth: usize, json: &mut String) -> Result<(), DecodeError> {
        match (&field.kind, field.label) {
            (Kind::Map(key, value), _) => self.map(key, value, values, depth, json),
            (kind, Label::Repeated) => {
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
            // Of several the last one counts.
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
    fn repeated(&self, kind: &Kind, value: Wire<'_>, depth: usize, json: &mut String) -> Result<(), DecodeError> {
        let Wire::Bytes(mut packed) = value else {
            return self.value(kind, value, depth, json);
        };
        if matches!(kind, Kind::String | Kind::Bytes | Kind::Message(_)) {
            return self.value(kind, value, depth, json);
        }
        let mut is_first = true;
        while !packed.is_empty() {
            let one = match kind {
                Kind::Double | Kind::Fixed64 | Kind::Sfixed64 => Wire::Fixed64(u64::from_le_bytes(take(&mut packed)?)),
                Kind::Float | Kind::Fixed32 | Kind::Sfixed32 => Wire::Fixed32(u32::from_le_bytes(take(&mut packed)?)),
                _ => Wire::Varint(varint(&mut packed)?),
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
        key: &Kind,
        value: &Kind,
        entries: &[Wire<'_>],
        depth: usize,
        json: &mut String,
    ) -> Result<(), DecodeError> {
        json.push('{');
        for entry in entries {
            let Wire::Bytes(bytes) = entry else { return Err(wrong()) };
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

    fn value(&self, kind: &Kind, wire: Wire<'_>, depth: usize, json: &mut String) -> Result<(), DecodeError> {
        if json.len() > JSON_BYTES_MAX {
            return Err(wrong());
        }
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_possible_wrap,
            reason = "as the wire format says"
        )]
        let text = match (kind, wire) {
            (Kind::Message(index), Wire::Bytes(bytes)) => {
                return self.message(&self.messages[*index], bytes, depth + 1, json);
            }
            (Kind::Double, Wire::Fixed64(bits)) => double(f64::from_bits(bits)),
            (Kind::Float, Wire::Fixed32(bits)) => float(f32::from_bits(bits)),
            (Kind::Int32, Wire::Varint(value)) => (value as i32).to_string(),
            (Kind::Uint32, Wire::Varint(value)) => (value as u32).to_string(),
            (Kind::Sint32, Wire::Varint(value)) => (zigzag(value) as i32).to_string(),
            (Kind::Fixed32, Wire::Fixed32(value)) => value.to_string(),
            (Kind::Sfixed32, Wire::Fixed32(value)) => (value as i32).to_string(),
            (Kind::Int64, Wire::Varint(value)) => format!("\"{}\"", value as i64),
            (Kind::Uint64, Wire::Varint(value)) | (Kind::Fixed64, Wire::Fixed64(value)) => format!("\"{value}\""),
            (Kind::Sint64, Wire::Varint(value)) => format!("\"{}\"", zigzag(value)),
            (Kind::Sfixed64, Wire::Fixed64(value)) => format!("\"{}\"", value as i64),
            (Kind::Bool, Wire::Varint(value)) => (value != 0).to_string(),
            (Kind::Enum(index), Wire::Varint(value)) => {
                let number = value as i32;
                self.enums[*index]
                    .get(&number)
                    .map_or_else(|| number.to_string(), |name| quoted(name))
            }
            (Kind::String, Wire::Bytes(bytes)) => quoted(std::str::from_utf8(bytes).map_err(|_| wrong())?),
            (Kind::Bytes, Wire::Bytes(bytes)) => format!("\"{}\"", Base64::encode_string(bytes)),
            _ => return Err(wrong()),
        };
        json.push_str(&text);
        Ok(())
    }

    fn default(&self, kind: &Kind) -> String {
        match kind {
            Kind::Double | Kind::Float => "0.0".to_owned(),
            Kind::Int64 | Kind::Uint64 | Kind::Sint64 | Kind::Fixed64 | Kind::Sfixed64 => "\"0\"".to_owned(),
            Kind::Bool => "false".to_owned(),
            Kind::String | Kind::Bytes => "\"\"".to_owned(),
            Kind::Message(_) | Kind::Map(..) => "{}".to_owned(),
            Kind::Enum(index) => self.enums[*index]
                .get(&0)
                .map_or_else(|| "0".to_owned(), |name| quoted(name)),
            _ => "0".to_owned(),
        }
    }
}

fn is_message(field: &Field) -> bool {
    matches!(field.kind, Kind::Message(_)) && field.label == Label::Plain
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

#[expect(clippy::cast_possible_wrap, reason = "as the wire format says")]
fn zigzag(value: u64) -> i64 {
    (value >> 1) as i64 ^ -((value & 1) as i64)
}

/// All values by the number of their field, in the order in which they came.
fn fields(mut bytes: &[u8]) -> Result<BTreeMap<u32, Vec<Wire<'_>>>, DecodeError> {
    let mut found: BTreeMap<u32, Vec<Wire<'_>>> = BTreeMap::new();
    while !bytes.is_empty() {
        let tag = varint(&mut bytes)?;
        let number = u32::try_from(tag >> 3).map_err(|_| wrong())?;
        let wire = match tag & 7 {
            0 => Wire::Varint(varint(&mut bytes)?),
            1 => Wire::Fixed64(u64::from_le_bytes(take(&mut bytes)?)),
            2 => {
                let length = usize::try_from(varint(&mut bytes)?).map_err(|_| wrong())?;
                let (inside, rest) = bytes.split_at_checked(length).ok_or_else(wrong)?;
                bytes = rest;
                Wire::Bytes(inside)
            }
            5 => Wire::Fixed32(u32::from_le_bytes(take(&mut bytes)?)),
            _ => return Err(wrong()),
        };
        if number == 0 {
            return Err(wrong());
        }
        found.entry(number).or_default().push(wire);
    }
    Ok(found)
}

fn varint(bytes: &mut &[u8]) -> Result<u64, DecodeError> {
    let mut value = 0;
    for index in 0..10 {
        let (byte, rest) = bytes.split_first().ok_or_else(wrong)?;
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << (7 * index);
        if byte & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err(wrong())
}

fn take<const N: usize>(bytes: &mut &[u8]) -> Result<[u8; N], DecodeError> {
    let (taken, rest) = bytes.split_first_chunk::<N>().ok_or_else(wrong)?;
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

    fn json(payload: &[u8]) -> Result<String, DecodeError> {
        Schema::parse(SCHEMA).unwrap().to_json(payload)
    }

    #[test]
    fn all_kinds_of_fields() {
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
    fn what_is_absent_has_its_default_or_is_absent() {
        assert_eq!(json(&[]).unwrap(), "{}");
        let defaults = r#"{"values":{"temperature":0.0,"list":[],"mode":"OFF","byName":{},"parts":[],"total":"0","isOn":false,"f":0.0}}"#;
        assert_eq!(json(&[0x12, 0]).unwrap(), defaults);
        // Unknown fields are left out.
        assert_eq!(json(&[0x78, 1]).unwrap(), "{}");
    }

    #[test]
    fn damaged_payloads_are_errors() {
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
    fn schemas_that_cannot_be() {
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
