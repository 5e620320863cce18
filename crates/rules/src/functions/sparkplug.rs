//! Sparkplug B: payloads to maps and back, with the names of `sparkplug_b.proto` (package `org.eclipse.tahu.protobuf`).
//!
//! The protocol-buffer wire format is read and written here: messages are described by tables, unknown fields (extensions)
//! are skipped, `bytes` are base64 as protocol buffers have them in JSON. Depth is limited: templates nest.

use base64ct::{Base64, Encoding};

use super::{Call, Group, function_table};
use crate::error::Fault;
use crate::text::Text;
use crate::value::{Map, Value};

function_table! { Group::Sparkplug;
    "sparkplug_decode" (bytes: TEXT) -> MAP, decode, "A Sparkplug B payload as a map with the names of `sparkplug_b.proto`; bytes are base64.", "map_get('seq', sparkplug_decode(hexstr2bin('1858'))) = 88";
    "sparkplug_encode" (map: TEXT_OR_MAP) -> TEXT, encode, "A map, or the JSON of one, as a Sparkplug B payload.", "bin2hexstr(sparkplug_encode('{\"seq\": 88}')) = '1858'";
}

#[derive(Clone, Copy)]
enum Type {
    Uint32,
    Uint64,
    Bool,
    Float,
    Double,
    Text,
    Bytes,
    Message(&'static Layout),
}

struct Field {
    number: u64,
    name: &'static str,
    of: Type,
    is_repeated: bool,
}

/// The fields of a message.
struct Layout(&'static [Field]);

const fn one(number: u64, name: &'static str, of: Type) -> Field {
    Field {
        number,
        name,
        of,
        is_repeated: false,
    }
}

const fn many(number: u64, name: &'static str, of: Type) -> Field {
    Field {
        number,
        name,
        of,
        is_repeated: true,
    }
}

static PAYLOAD: Layout = Layout(&[
    one(1, "timestamp", Type::Uint64),
    many(2, "metrics", Type::Message(&METRIC)),
    one(3, "seq", Type::Uint64),
    one(4, "uuid", Type::Text),
    one(5, "body", Type::Bytes),
]);

static METRIC: Layout = Layout(&[
    one(1, "name", Type::Text),
    one(2, "alias", Type::Uint64),
    one(3, "timestamp", Type::Uint64),
    one(4, "datatype", Type::Uint32),
    one(5, "is_historical", Type::Bool),
    one(6, "is_transient", Type::Bool),
    one(7, "is_null", Type::Bool),
    one(8, "metadata", Type::Message(&META_DATA)),
    one(9, "properties", Type::Message(&PROPERTY_SET)),
    one(10, "int_value", Type::Uint32),
    one(11, "long_value", Type::Uint64),
    one(12, "float_value", Type::Float),
    one(13, "double_value", Type::Double),
    one(14, "boolean_value", Type::Bool),
    one(15, "string_value", Type::Text),
    one(16, "bytes_value", Type::Bytes),
    one(17, "dataset_value", Type::Message(&DATA_SET)),
    one(18, "template_value", Type::Message(&TEMPLATE)),
]);

static META_DATA: Layout = Layout(&[
    one(1, "is_multi_part", Type::Bool),
    one(2, "content_type", Type::Text),
    one(3, "size", Type::Uint64),
    one(4, "seq", Type::Uint64),
    one(5, "file_name", Type::Text),
    one(6, "file_type", Type::Text),
    one(7, "md5", Type::Text),
    one(8, "description", Type::Text),
]);

static PROPERTY_SET: Layout = Layout(&[
    many(1, "keys", Type::Text),
    many(2, "values", Type::Message(&PROPERTY_VALUE)),
]);

static PROPERTY_SET_LIST: Layout = Layout(&[many(1, "propertyset", Type::Message(&PROPERTY_SET))]);

static PROPERTY_VALUE: Layout = Layout(&[
    one(1, "type", Type::Uint32),
    one(2, "is_null", Type::Bool),
    one(3, "int_value", Type::Uint32),
    one(4, "long_value", Type::Uint64),
    one(5, "float_value", Type::Float),
    one(6, "double_value", Type::Double),
    one(7, "boolean_value", Type::Bool),
    one(8, "string_value", Type::Text),
    one(9, "propertyset_value", Type::Message(&PROPERTY_SET)),
    one(10, "propertysets_value", Type::Message(&PROPERTY_SET_LIST)),
]);

static DATA_SET: Layout = Layout(&[
    one(1, "num_of_columns", Type::Uint64),
    many(2, "columns", Type::Text),
    many(3, "types", Type::Uint32),
    many(4, "rows", Type::Message(&ROW)),
]);

static ROW: Layout = Layout(&[many(1, "elements", Type::Message(&DATA_SET_VALUE))]);

static DATA_SET_VALUE: Layout = Layout(&[
    one(1, "int_value", Type::Uint32),
    one(2, "long_value", Type::Uint64),
    one(3, "float_value", Type::Float),
    one(4, "double_value", Type::Double),
    one(5, "boolean_value", Type::Bool),
    one(6, "string_value", Type::Text),
]);

static TEMPLATE: Layout = Layout(&[
    one(1, "version", Type::Text),
    many(2, "metrics", Type::Message(&METRIC)),
    many(3, "parameters", Type::Message(&PARAMETER)),
    one(4, "template_ref", Type::Text),
    one(5, "is_definition", Type::Bool),
]);

static PARAMETER: Layout = Layout(&[
    one(1, "name", Type::Text),
    one(2, "type", Type::Uint32),
    one(3, "int_value", Type::Uint32),
    one(4, "long_value", Type::Uint64),
    one(5, "float_value", Type::Float),
    one(6, "double_value", Type::Double),
    one(7, "boolean_value", Type::Bool),
    one(8, "string_value", Type::Text),
]);

const DEPTH_MAX: usize = 32;
/// Wire types.
const VARINT: u64 = 0;
const FIXED64: u64 = 1;
const LENGTH: u64 = 2;
const FIXED32: u64 = 5;

fn decode(call: &mut Call<'_, '_>) -> Result<Value, Fault> {
    let bytes = call.text(0)?;
    // A field of two bytes becomes an entry of a map.
    call.run.budget.make(bytes.len().saturating_mul(24))?;
    Ok(Value::Map(message(&mut Reader(bytes), &PAYLOAD, DEPTH_MAX)?))
}

struct Reader<'a>(&'a [u8]);

const CUT: &str = "sparkplug_decode: the payload ends in the middle of a field";

impl<'a> Reader<'a> {
    fn varint(&mut self) -> Result<u64, Fault> {
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let (&byte, rest) = self.0.split_first().ok_or(Fault::from(CUT))?;
            self.0 = rest;
            value |= u64::from(byte & 0x7F) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(Fault::from("sparkplug_decode: a number has more than 64 bits"))
    }

    fn take(&mut self, length: u64) -> Result<&'a [u8], Fault> {
        let split = usize::try_from(length)
            .ok()
            .and_then(|length| self.0.split_at_checked(length));
        let (taken, rest) = split.ok_or(Fault::from(CUT))?;
        self.0 = rest;
        Ok(taken)
    }

    fn skip(&mut self, wire_type: u64) -> Result<(), Fault> {
        match wire_type {
            VARINT => self.varint().map(drop),
            FIXED64 => self.take(8).map(drop),
            LENGTH => {
                let length = self.varint()?;
                self.take(length).map(drop)
            }
            FIXED32 => self.take(4).map(drop),
            other => Err(Fault::from(format!("sparkplug_decode: there is no wire type {other}"))),
        }
    }
}

fn message(reader: &mut Reader<'_>, layout: &Layout, depth: usize) -> Result<Map, Fault> {
    let depth = depth
        .checked_sub(1)
        .ok_or(Fault::from("sparkplug_decode: the payload nests too deep"))?;
    let mut entries: Vec<(Text, Value)> = Vec::new();
    let mut repeated: Vec<(&'static str, Vec<Value>)> = Vec::new();
    while !reader.0.is_empty() {
        let tag = reader.varint()?;
        let (number, wire_type) = (tag >> 3, tag & 7);
        let Some(field) = layout.0.iter().find(|field| field.number == number) else {
            reader.skip(wire_type)?;
            continue;
        };
        let values = values(reader, field, wire_type, depth)?;
        if !field.is_repeated {
            entries.extend(values.into_iter().map(|value| (Text::from(field.name), value)));
        } else if let Some((_, list)) = repeated.iter_mut().find(|list| list.0 == field.name) {
            list.extend(values);
        } else {
            repeated.push((field.name, values));
        }
    }
    let lists = repeated
        .into_iter()
        .map(|(name, values)| (Text::from(name), Value::array(values)));
    entries.extend(lists);
    Ok(Map::from_entries(entries))
}

/// One value, or several numbers that are packed into one field.
fn values(reader: &mut Reader<'_>, field: &Field, wire_type: u64, depth: usize) -> Result<Vec<Value>, Fault> {
    let wrong = || Fault::from(format!("sparkplug_decode: {} has wire type {wire_type}", field.name));
    Ok(vec![match (field.of, wire_type) {
        (Type::Uint32, VARINT) => Value::from(u64::from(reader.varint()? as u32)),
        (Type::Uint64, VARINT) => Value::from(reader.varint()?),
        (Type::Bool, VARINT) => Value::Bool(reader.varint()? != 0),
        (Type::Float, FIXED32) => float(f32::from_le_bytes(four(reader.take(4)?)).into()),
        (Type::Double, FIXED64) => float(f64::from_le_bytes(eight(reader.take(8)?))),
        (Type::Uint32, LENGTH) if field.is_repeated => {
            let length = reader.varint()?;
            let mut packed = Reader(reader.take(length)?);
            let mut values = Vec::new();
            while !packed.0.is_empty() {
                values.push(Value::from(u64::from(packed.varint()? as u32)));
            }
            return Ok(values);
        }
        (of @ (Type::Text | Type::Bytes | Type::Message(_)), LENGTH) => {
            let length = reader.varint()?;
            let bytes = reader.take(length)?;
            match of {
                Type::Message(layout) => Value::Map(message(&mut Reader(bytes), layout, depth)?),
                Type::Bytes => Value::from(Base64::encode_string(bytes)),
                _ => Value::text(bytes),
            }
        }
        _ => return Err(wrong()),
    }])
}

/// JSON has no infinity and no NaN; protocol buffers write these as texts.
fn float(float: f64) -> Value {
    if float.is_finite() {
        Value::Float(float)
    } else {
        Value::from(float.to_string())
    }
}

fn four(bytes: &[u8]) -> [u8; 4] {
    bytes.try_into().unwrap_or_default()
}

fn eight(bytes: &[u8]) -> [u8; 8] {
    bytes.try_into().unwrap_or_default()
}

fn encode(call: &mut Call<'_, '_>) -> Result<Value, Fault> {
    let map = call.map(0)?;
    let mut out = Vec::new();
    write_message(&mut out, &map, &PAYLOAD, DEPTH_MAX)?;
    call.make(out)
}

fn write_message(out: &mut Vec<u8>, map: &Map, layout: &Layout, depth: usize) -> Result<(), Fault> {
    let depth = depth
        .checked_sub(1)
        .ok_or(Fault::from("sparkplug_encode: the map nests too deep"))?;
    for (name, _) in map.iter() {
        if !layout.0.iter().any(|field| field.name.as_bytes() == name.as_bytes()) {
            return Err(Fault::from(format!("sparkplug_encode: there is no field {name} here")));
        }
    }
    for field in layout.0 {
        match map.get(field.name.as_bytes()) {
            None | Some(Value::Null | Value::Undefined) => {}
            Some(Value::Array(values)) if field.is_repeated => {
                values
                    .iter()
                    .try_for_each(|value| write_value(out, field, value, depth))?;
            }
            Some(value) => write_value(out, field, value, depth)?,
        }
    }
    Ok(())
}

fn write_value(out: &mut Vec<u8>, field: &Field, value: &Value, depth: usize) -> Result<(), Fault> {
    let tag = |out: &mut Vec<u8>, wire_type| write_varint(out, field.number << 3 | wire_type);
    let wrong = |expected: &str| {
        let found = value.type_name();
        Err(Fault::from(format!(
            "sparkplug_encode: {} is {found}, expected {expected}",
            field.name
        )))
    };
    match (field.of, value) {
        (Type::Uint32 | Type::Uint64, Value::Int(int)) => {
            let bits = if matches!(field.of, Type::Uint32) { 32 } else { 64 };
            // Negative numbers stand for their two's complement, as Sparkplug has it.
            if *int >= 1 << bits || *int < -(1 << (bits - 1)) {
                return wrong(&format!("an integer of {bits} bits"));
            }
            tag(out, VARINT);
            write_varint(out, (*int & ((1 << bits) - 1)) as u64);
        }
        (Type::Bool, Value::Bool(truth)) => {
            tag(out, VARINT);
            out.push(u8::from(*truth));
        }
        (Type::Float | Type::Double, _) => {
            let Some(float) = to_float(value) else {
                return wrong("a number");
            };
            if matches!(field.of, Type::Float) {
                tag(out, FIXED32);
                out.extend_from_slice(&(float as f32).to_le_bytes());
            } else {
                tag(out, FIXED64);
                out.extend_from_slice(&float.to_le_bytes());
            }
        }
        (Type::Text, Value::Text(text)) => {
            tag(out, LENGTH);
            write_bytes(out, text);
        }
        (Type::Bytes, Value::Text(text)) => {
            let bytes = text.as_str().and_then(|text| Base64::decode_vec(text).ok());
            let Some(bytes) = bytes else {
                return wrong("base64");
            };
            tag(out, LENGTH);
            write_bytes(out, &bytes);
        }
        (Type::Message(layout), Value::Map(map)) => {
            let mut inner = Vec::new();
            write_message(&mut inner, map, layout, depth)?;
            tag(out, LENGTH);
            write_bytes(out, &inner);
        }
        (Type::Message(_), _) => return wrong("a map"),
        (Type::Bool, _) => return wrong("a boolean"),
        (Type::Uint32 | Type::Uint64, _) => return wrong("an integer"),
        (Type::Text | Type::Bytes, _) => return wrong("a string"),
    }
    Ok(())
}

fn to_float(value: &Value) -> Option<f64> {
    match value {
        Value::Int(int) => Some(*int as f64),
        Value::Float(float) => Some(*float),
        Value::Text(text) => match text.as_bytes() {
            b"NaN" => Some(f64::NAN),
            b"inf" | b"Infinity" => Some(f64::INFINITY),
            b"-inf" | b"-Infinity" => Some(f64::NEG_INFINITY),
            _ => None,
        },
        _ => None,
    }
}

fn write_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn write_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    write_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}
