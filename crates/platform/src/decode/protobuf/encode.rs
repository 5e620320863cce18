//! Messages to devices with Protobuf payloads: ThingsBoard's messages for attributes and responses, the profile's
//! schema for RPC requests.
//!
//! ```text
//! TsKvProto                       1 ts int64 | 2 kv KeyValueProto
//! KeyValueProto                   1 key | 2 type (0 bool, 1 long, 2 double, 3 string, 4 JSON)
//!                                 3 bool | 4 long | 5 double | 6 string | 7 JSON
//! AttributeUpdateNotificationMsg  1 repeated TsKvProto shared, updated | 2 repeated string shared, deleted
//! GetAttributeResponseMsg         1 request id | 2 repeated TsKvProto client | 3 repeated TsKvProto shared
//! ToServerRpcResponseMsg          1 request id | 2 payload
//! ```

use base64ct::{Base64, Encoding};
use serde_json::Value as Json;
use timeseries::PointValue;

use super::schema::{FieldDescriptor, FieldKind, FieldLabel, MessageType, Schema};
use crate::model::Attribute;

/// Changed shared attributes.
pub fn attribute_update(updated: &[Attribute], deleted: &[&str]) -> Vec<u8> {
    let mut out = Vec::new();
    put_attributes(&mut out, 1, updated);
    for key in deleted {
        put_bytes(&mut out, 2, key.as_bytes());
    }
    out
}

pub fn attribute_response(id: i32, client: &[Attribute], shared: &[Attribute]) -> Vec<u8> {
    let mut out = Vec::new();
    put_number(&mut out, 1, i64::from(id));
    put_attributes(&mut out, 2, client);
    put_attributes(&mut out, 3, shared);
    out
}

/// Response to an RPC request of the device.
pub fn rpc_response(id: i32, payload: &str) -> Vec<u8> {
    let mut out = Vec::new();
    put_number(&mut out, 1, i64::from(id));
    put_bytes(&mut out, 2, payload.as_bytes());
    out
}

fn put_attributes(out: &mut Vec<u8>, number: u32, attributes: &[Attribute]) {
    for attribute in attributes {
        let mut value = Vec::new();
        put_bytes(&mut value, 1, attribute.key.as_bytes());
        match &attribute.value {
            PointValue::Bool(is_true) => {
                put_number(&mut value, 3, i64::from(*is_true));
            }
            PointValue::Long(number) => {
                put_number(&mut value, 2, 1);
                put_number(&mut value, 4, *number);
            }
            PointValue::Double(number) => {
                put_number(&mut value, 2, 2);
                put_tag(&mut value, 5, 1);
                value.extend(number.to_le_bytes());
            }
            PointValue::String(text) => {
                put_number(&mut value, 2, 3);
                put_bytes(&mut value, 6, text.as_bytes());
            }
            PointValue::Json(text) => {
                put_number(&mut value, 2, 4);
                put_bytes(&mut value, 7, text.as_bytes());
            }
        }
        let mut point = Vec::new();
        put_number(&mut point, 1, attribute.last_update_ms);
        put_bytes(&mut point, 2, &value);
        put_bytes(out, number, &point);
    }
}

impl Schema {
    /// Encodes the members that are in the schema. Skips values that do not fit their field.
    pub fn encode(&self, json: &Json) -> Vec<u8> {
        self.encode_message(&self.messages[self.root], json)
    }

    fn encode_message(&self, kind: &MessageType, json: &Json) -> Vec<u8> {
        let mut out = Vec::new();
        for field in &kind.fields {
            let value = &json[field.name.as_str()];
            match (&field.kind, field.label) {
                (FieldKind::Map(key, of), _) => {
                    for (name, value) in value.as_object().into_iter().flatten() {
                        let mut entry = Vec::new();
                        self.put(&mut entry, 1, key, &Json::from(name.as_str()));
                        self.put(&mut entry, 2, of, value);
                        put_bytes(&mut out, field.number, &entry);
                    }
                }
                (_, FieldLabel::Repeated) => {
                    for value in value.as_array().into_iter().flatten() {
                        self.put_field(&mut out, field, value);
                    }
                }
                _ => self.put_field(&mut out, field, value),
            }
        }
        out
    }

    fn put_field(&self, out: &mut Vec<u8>, field: &FieldDescriptor, value: &Json) {
        if !value.is_null() {
            self.put(out, field.number, &field.kind, value);
        }
    }

    #[expect(clippy::cast_possible_truncation, reason = "the field type defines the width")]
    fn put(&self, out: &mut Vec<u8>, number: u32, kind: &FieldKind, value: &Json) {
        match kind {
            FieldKind::Message(index) => {
                let inside = self.encode_message(&self.messages[*index], value);
                put_bytes(out, number, &inside);
            }
            FieldKind::String => {
                let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
                put_bytes(out, number, text.as_bytes());
            }
            FieldKind::Bytes => {
                if let Some(bytes) = value.as_str().and_then(|text| Base64::decode_vec(text).ok()) {
                    put_bytes(out, number, &bytes);
                }
            }
            FieldKind::Double => {
                if let Some(value) = decimal(value) {
                    put_tag(out, number, 1);
                    out.extend(value.to_le_bytes());
                }
            }
            FieldKind::Float => {
                if let Some(value) = decimal(value) {
                    put_tag(out, number, 5);
                    out.extend((value as f32).to_le_bytes());
                }
            }
            FieldKind::Bool => {
                if let Some(is_true) = value.as_bool() {
                    put_varint_field(out, number, u64::from(is_true));
                }
            }
            FieldKind::Enum(index) => {
                let named = |name: &str| self.enums[*index].iter().find(|(_, known)| *known == name);
                let found = value.as_str().and_then(named).map(|(value, _)| i64::from(*value));
                if let Some(value) = found.or_else(|| value.as_i64()) {
                    put_number(out, number, value);
                }
            }
            FieldKind::Fixed64 | FieldKind::Sfixed64 => {
                if let Some(value) = whole(value) {
                    put_tag(out, number, 1);
                    out.extend(value.to_le_bytes());
                }
            }
            FieldKind::Fixed32 | FieldKind::Sfixed32 => {
                if let Some(value) = whole(value) {
                    put_tag(out, number, 5);
                    out.extend((value as i32).to_le_bytes());
                }
            }
            FieldKind::Sint32 | FieldKind::Sint64 => {
                if let Some(value) = whole(value) {
                    put_number(out, number, value << 1 ^ value >> 63);
                }
            }
            FieldKind::Int32 | FieldKind::Int64 | FieldKind::Uint32 | FieldKind::Uint64 => {
                if let Some(value) = whole(value) {
                    put_number(out, number, value);
                }
            }
            // A map is a field and not a value. Names are resolved when the schema is parsed.
            FieldKind::Map(..) | FieldKind::Named(_) => {}
        }
    }
}

/// 64-bit integers are strings in JSON.
#[expect(clippy::cast_possible_wrap, reason = "the wire format has no signs")]
fn whole(value: &Json) -> Option<i64> {
    let of_text = || value.as_str().and_then(|text| text.parse().ok());
    value
        .as_i64()
        .or_else(|| value.as_u64().map(|value| value as i64))
        .or_else(of_text)
}

fn decimal(value: &Json) -> Option<f64> {
    value.as_f64().or_else(|| value.as_str()?.parse().ok())
}

fn put_tag(out: &mut Vec<u8>, number: u32, wire: u8) {
    put_varint(out, u64::from(number) << 3 | u64::from(wire));
}

pub(super) fn put_bytes(out: &mut Vec<u8>, number: u32, bytes: &[u8]) {
    put_tag(out, number, 2);
    put_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Negative numbers take ten bytes.
#[expect(clippy::cast_sign_loss, reason = "defined by the wire format")]
pub(super) fn put_number(out: &mut Vec<u8>, number: u32, value: i64) {
    put_varint_field(out, number, value as u64);
}

fn put_varint_field(out: &mut Vec<u8>, number: u32, value: u64) {
    put_tag(out, number, 0);
    put_varint(out, value);
}

#[expect(clippy::cast_possible_truncation, reason = "seven bits at a time")]
fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn encoded_messages_are_decoded() {
        let schema = Schema::parse(
            "syntax = \"proto3\"; enum Mode { OFF = 0; ON = 1; } message Part { optional int32 n = 1; }
             message All { optional double d = 1; optional float f = 2; optional int32 i = 3; optional uint64 u = 4; optional sint64 s = 5;
                 optional fixed32 f4 = 6; optional sfixed64 f8 = 7; optional bool b = 8; optional string t = 9; optional bytes raw = 10;
                 optional Mode mode = 11; optional Part part = 12; repeated int32 list = 13; map<string, int32> named = 14; repeated Part parts = 15; }",
        )
        .unwrap();
        let json = json!({"d": 1.5, "f": -2.5, "i": -3, "u": "4", "s": "-5", "f4": 6, "f8": "-7", "b": true, "t": "x", "raw": "AQI=",
            "mode": "ON", "part": {"n": 1}, "list": [1, -2], "named": {"k": 7}, "parts": [{"n": 2}, {}]});
        let decoded = schema.to_json(&schema.encode(&json)).unwrap();
        assert_eq!(serde_json::from_str::<Json>(&decoded).unwrap(), json);
        // A value that is not a string becomes its JSON. A value that does not fit is skipped.
        let odd = schema.encode(&json!({"t": {"a": [1]}, "i": "many", "unknown": 1}));
        assert_eq!(
            schema.to_json(&odd).unwrap(),
            r#"{"t":"{\"a\":[1]}","list":[],"named":{},"parts":[]}"#
        );
    }

    #[test]
    fn response_bytes_match_thingsboard() {
        let attribute = |key: &str, value: PointValue| Attribute {
            key: key.to_owned(),
            value,
            last_update_ms: 5,
        };
        let update = attribute_update(&[attribute("a", PointValue::Bool(true))], &["b"]);
        assert_eq!(
            update,
            [0x0a, 9, 0x08, 5, 0x12, 5, 0x0a, 1, b'a', 0x18, 1, 0x12, 1, b'b']
        );
        let response = attribute_response(
            7,
            &[attribute("n", PointValue::Long(300))],
            &[attribute("t", PointValue::String("x".into()))],
        );
        let expected = [
            &[0x08, 7][..],
            &[0x12, 12, 0x08, 5, 0x12, 8, 0x0a, 1, b'n', 0x10, 1, 0x20, 0xac, 0x02],
            &[0x1a, 12, 0x08, 5, 0x12, 8, 0x0a, 1, b't', 0x10, 3, 0x32, 1, b'x'],
        ];
        assert_eq!(response, expected.concat());
        assert_eq!(rpc_response(1, "{}"), [0x08, 1, 0x12, 2, b'{', b'}']);
    }
}
