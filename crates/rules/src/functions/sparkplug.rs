//! Sparkplug B: converts payloads to maps and back, with the names of `sparkplug_b.proto` (package
//! `org.eclipse.tahu.protobuf`).
//!
//! This module reads and writes the wire format of protocol buffers. Tables describe the messages. Unknown fields
//! (extensions) are skipped. `bytes` fields are base64, as in the JSON mapping of protocol buffers. The nesting depth
//! is limited because templates can nest.

use base64ct::{Base64, Encoding};
use rule_values::{FunctionError, Map, StepBudget, Text, Value};

use super::{FunctionCall, FunctionGroup, function_table};

function_table! { FunctionGroup::Sparkplug;
    "sparkplug_decode" (bytes: TEXT) -> MAP, decode, "A Sparkplug B payload as a map with the names of `sparkplug_b.proto`; bytes are base64.", "map_get('seq', sparkplug_decode(hexstr2bin('1858'))) = 88";
    "sparkplug_encode" (map: TEXT_OR_MAP) -> TEXT, encode, "A map, or a map as JSON, as a Sparkplug B payload.", "bin2hexstr(sparkplug_encode('{\"seq\": 88}')) = '1858'";
}

#[derive(Clone, Copy)]
enum SparkplugType {
    Uint32,
    Uint64,
    Bool,
    Float,
    Double,
    Text,
    Bytes,
    Message(&'static SparkplugFields),
}

struct SparkplugField {
    number: u64,
    name: &'static str,
    kind: SparkplugType,
    is_repeated: bool,
}

/// The fields of a message type.
struct SparkplugFields(&'static [SparkplugField]);

const fn one(number: u64, name: &'static str, of: SparkplugType) -> SparkplugField {
    SparkplugField {
        number,
        name,
        kind: of,
        is_repeated: false,
    }
}

const fn many(number: u64, name: &'static str, of: SparkplugType) -> SparkplugField {
    SparkplugField {
        number,
        name,
        kind: of,
        is_repeated: true,
    }
}

static PAYLOAD: SparkplugFields = SparkplugFields(&[
    one(1, "timestamp", SparkplugType::Uint64),
    many(2, "metrics", SparkplugType::Message(&METRIC)),
    one(3, "seq", SparkplugType::Uint64),
    one(4, "uuid", SparkplugType::Text),
    one(5, "body", SparkplugType::Bytes),
]);

static METRIC: SparkplugFields = SparkplugFields(&[
    one(1, "name", SparkplugType::Text),
    one(2, "alias", SparkplugType::Uint64),
    one(3, "timestamp", SparkplugType::Uint64),
    one(4, "datatype", SparkplugType::Uint32),
    one(5, "is_historical", SparkplugType::Bool),
    one(6, "is_transient", SparkplugType::Bool),
    one(7, "is_null", SparkplugType::Bool),
    one(8, "metadata", SparkplugType::Message(&META_DATA)),
    one(9, "properties", SparkplugType::Message(&PROPERTY_SET)),
    one(10, "int_value", SparkplugType::Uint32),
    one(11, "long_value", SparkplugType::Uint64),
    one(12, "float_value", SparkplugType::Float),
    one(13, "double_value", SparkplugType::Double),
    one(14, "boolean_value", SparkplugType::Bool),
    one(15, "string_value", SparkplugType::Text),
    one(16, "bytes_value", SparkplugType::Bytes),
    one(17, "dataset_value", SparkplugType::Message(&DATA_SET)),
    one(18, "template_value", SparkplugType::Message(&TEMPLATE)),
]);

static META_DATA: SparkplugFields = SparkplugFields(&[
    one(1, "is_multi_part", SparkplugType::Bool),
    one(2, "content_type", SparkplugType::Text),
    one(3, "size", SparkplugType::Uint64),
    one(4, "seq", SparkplugType::Uint64),
    one(5, "file_name", SparkplugType::Text),
    one(6, "file_type", SparkplugType::Text),
    one(7, "md5", SparkplugType::Text),
    one(8, "description", SparkplugType::Text),
]);

static PROPERTY_SET: SparkplugFields = SparkplugFields(&[
    many(1, "keys", SparkplugType::Text),
    many(2, "values", SparkplugType::Message(&PROPERTY_VALUE)),
]);

static PROPERTY_SET_LIST: SparkplugFields =
    SparkplugFields(&[many(1, "propertyset", SparkplugType::Message(&PROPERTY_SET))]);

static PROPERTY_VALUE: SparkplugFields = SparkplugFields(&[
    one(1, "type", SparkplugType::Uint32),
    one(2, "is_null", SparkplugType::Bool),
    one(3, "int_value", SparkplugType::Uint32),
    one(4, "long_value", SparkplugType::Uint64),
    one(5, "float_value", SparkplugType::Float),
    one(6, "double_value", SparkplugType::Double),
    one(7, "boolean_value", SparkplugType::Bool),
    one(8, "string_value", SparkplugType::Text),
    one(9, "propertyset_value", SparkplugType::Message(&PROPERTY_SET)),
    one(10, "propertysets_value", SparkplugType::Message(&PROPERTY_SET_LIST)),
]);

static DATA_SET: SparkplugFields = SparkplugFields(&[
    one(1, "num_of_columns", SparkplugType::Uint64),
    many(2, "columns", SparkplugType::Text),
    many(3, "types", SparkplugType::Uint32),
    many(4, "rows", SparkplugType::Message(&ROW)),
]);

static ROW: SparkplugFields = SparkplugFields(&[many(1, "elements", SparkplugType::Message(&DATA_SET_VALUE))]);

static DATA_SET_VALUE: SparkplugFields = SparkplugFields(&[
    one(1, "int_value", SparkplugType::Uint32),
    one(2, "long_value", SparkplugType::Uint64),
    one(3, "float_value", SparkplugType::Float),
    one(4, "double_value", SparkplugType::Double),
    one(5, "boolean_value", SparkplugType::Bool),
    one(6, "string_value", SparkplugType::Text),
]);

static TEMPLATE: SparkplugFields = SparkplugFields(&[
    one(1, "version", SparkplugType::Text),
    many(2, "metrics", SparkplugType::Message(&METRIC)),
    many(3, "parameters", SparkplugType::Message(&PARAMETER)),
    one(4, "template_ref", SparkplugType::Text),
    one(5, "is_definition", SparkplugType::Bool),
]);

static PARAMETER: SparkplugFields = SparkplugFields(&[
    one(1, "name", SparkplugType::Text),
    one(2, "type", SparkplugType::Uint32),
    one(3, "int_value", SparkplugType::Uint32),
    one(4, "long_value", SparkplugType::Uint64),
    one(5, "float_value", SparkplugType::Float),
    one(6, "double_value", SparkplugType::Double),
    one(7, "boolean_value", SparkplugType::Bool),
    one(8, "string_value", SparkplugType::Text),
]);

const DEPTH_MAX: usize = 32;
/// Wire types of protocol buffers.
const VARINT: u64 = 0;
const FIXED64: u64 = 1;
const LENGTH: u64 = 2;
const FIXED32: u64 = 5;

fn decode(call: &mut FunctionCall<'_, '_>) -> Result<Value, FunctionError> {
    let bytes = call.text(0)?;
    let budget = &mut call.run.budget;
    Ok(Value::Map(message(
        &mut SparkplugReader(bytes),
        &PAYLOAD,
        DEPTH_MAX,
        budget,
    )?))
}

struct SparkplugReader<'a>(&'a [u8]);

const CUT: &str = "sparkplug_decode: the payload ends in the middle of a field";

impl<'a> SparkplugReader<'a> {
    fn varint(&mut self) -> Result<u64, FunctionError> {
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let (&byte, rest) = self.0.split_first().ok_or(FunctionError::from(CUT))?;
            self.0 = rest;
            value |= u64::from(byte & 0x7F) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(FunctionError::from("sparkplug_decode: a number has more than 64 bits"))
    }

    fn take(&mut self, length: u64) -> Result<&'a [u8], FunctionError> {
        let split = usize::try_from(length)
            .ok()
            .and_then(|length| self.0.split_at_checked(length));
        let (taken, rest) = split.ok_or(FunctionError::from(CUT))?;
        self.0 = rest;
        Ok(taken)
    }

    fn skip(&mut self, wire_type: u64) -> Result<(), FunctionError> {
        match wire_type {
            VARINT => self.varint().map(drop),
            FIXED64 => self.take(8).map(drop),
            LENGTH => {
                let length = self.varint()?;
                self.take(length).map(drop)
            }
            FIXED32 => self.take(4).map(drop),
            other => Err(FunctionError::from(format!(
                "sparkplug_decode: unknown wire type {other}"
            ))),
        }
    }
}

fn message(
    reader: &mut SparkplugReader<'_>,
    layout: &SparkplugFields,
    depth: usize,
    budget: &mut StepBudget,
) -> Result<Map, FunctionError> {
    let depth = depth
        .checked_sub(1)
        .ok_or(FunctionError::from("sparkplug_decode: the payload nests too deep"))?;
    let mut entries: Vec<(Text, Value)> = Vec::new();
    let mut repeated: Vec<(&'static str, Vec<Value>)> = Vec::new();
    while !reader.0.is_empty() {
        let tag = reader.varint()?;
        budget.charge_steps(2)?;
        let (number, wire_type) = (tag >> 3, tag & 7);
        let Some(field) = layout.0.iter().find(|field| field.number == number) else {
            reader.skip(wire_type)?;
            continue;
        };
        let values = values(reader, field, wire_type, depth, budget)?;
        budget.make(64)?;
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

/// Reads one value, or several numbers that are packed into one field.
fn values(
    reader: &mut SparkplugReader<'_>,
    field: &SparkplugField,
    wire_type: u64,
    depth: usize,
    budget: &mut StepBudget,
) -> Result<Vec<Value>, FunctionError> {
    let wrong = || FunctionError::from(format!("sparkplug_decode: {} has wire type {wire_type}", field.name));
    Ok(vec![match (field.kind, wire_type) {
        (SparkplugType::Uint32, VARINT) => Value::from(u64::from(reader.varint()? as u32)),
        (SparkplugType::Uint64, VARINT) => Value::from(reader.varint()?),
        (SparkplugType::Bool, VARINT) => Value::Bool(reader.varint()? != 0),
        (SparkplugType::Float, FIXED32) => float(f32::from_le_bytes(four(reader.take(4)?)).into()),
        (SparkplugType::Double, FIXED64) => float(f64::from_le_bytes(eight(reader.take(8)?))),
        (SparkplugType::Uint32, LENGTH) if field.is_repeated => {
            let length = reader.varint()?;
            let mut packed = SparkplugReader(reader.take(length)?);
            let mut values = Vec::new();
            while !packed.0.is_empty() {
                budget.make(32)?;
                values.push(Value::from(u64::from(packed.varint()? as u32)));
            }
            return Ok(values);
        }
        (of @ (SparkplugType::Text | SparkplugType::Bytes | SparkplugType::Message(_)), LENGTH) => {
            let length = reader.varint()?;
            let bytes = reader.take(length)?;
            match of {
                SparkplugType::Message(layout) => {
                    Value::Map(message(&mut SparkplugReader(bytes), layout, depth, budget)?)
                }
                SparkplugType::Bytes => {
                    budget.make(2 * bytes.len())?;
                    Value::from(Base64::encode_string(bytes))
                }
                _ => {
                    budget.make(bytes.len())?;
                    Value::text(bytes)
                }
            }
        }
        _ => return Err(wrong()),
    }])
}

/// JSON has no infinity and no NaN: the JSON mapping of protocol buffers writes them as texts.
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

fn encode(call: &mut FunctionCall<'_, '_>) -> Result<Value, FunctionError> {
    let map = call.map(0)?;
    // Charges for base64 decoding and for copying nested data once per level.
    let map_value = Value::Map(map.clone());
    for _ in 0..4 {
        call.run.budget.charge_value(&map_value)?;
    }
    let mut out = Vec::new();
    write_message(&mut out, &map, &PAYLOAD, DEPTH_MAX)?;
    call.make(out)
}

fn write_message(out: &mut Vec<u8>, map: &Map, layout: &SparkplugFields, depth: usize) -> Result<(), FunctionError> {
    let depth = depth
        .checked_sub(1)
        .ok_or(FunctionError::from("sparkplug_encode: the map nests too deep"))?;
    for (name, _) in map.iter() {
        if !layout.0.iter().any(|field| field.name.as_bytes() == name.as_bytes()) {
            return Err(FunctionError::from(format!("sparkplug_encode: unknown field {name}")));
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

fn write_value(out: &mut Vec<u8>, field: &SparkplugField, value: &Value, depth: usize) -> Result<(), FunctionError> {
    let tag = |out: &mut Vec<u8>, wire_type| write_varint(out, field.number << 3 | wire_type);
    let wrong = |expected: &str| {
        let found = value.type_name();
        Err(FunctionError::from(format!(
            "sparkplug_encode: {} is {found}, expected {expected}",
            field.name
        )))
    };
    match (field.kind, value) {
        (SparkplugType::Uint32 | SparkplugType::Uint64, Value::Int(int)) => {
            let bits = if matches!(field.kind, SparkplugType::Uint32) {
                32
            } else {
                64
            };
            // As in Sparkplug, negative numbers are encoded as two's complement.
            if *int >= 1 << bits || *int < -(1 << (bits - 1)) {
                return wrong(&format!("an integer of {bits} bits"));
            }
            tag(out, VARINT);
            write_varint(out, (*int & ((1 << bits) - 1)) as u64);
        }
        (SparkplugType::Bool, Value::Bool(truth)) => {
            tag(out, VARINT);
            out.push(u8::from(*truth));
        }
        (SparkplugType::Float | SparkplugType::Double, _) => {
            let Some(float) = to_float(value) else {
                return wrong("a number");
            };
            if matches!(field.kind, SparkplugType::Float) {
                tag(out, FIXED32);
                out.extend_from_slice(&(float as f32).to_le_bytes());
            } else {
                tag(out, FIXED64);
                out.extend_from_slice(&float.to_le_bytes());
            }
        }
        (SparkplugType::Text, Value::Text(text)) => {
            tag(out, LENGTH);
            write_bytes(out, text);
        }
        (SparkplugType::Bytes, Value::Text(text)) => {
            let bytes = text.as_str().and_then(|text| Base64::decode_vec(text).ok());
            let Some(bytes) = bytes else {
                return wrong("base64");
            };
            tag(out, LENGTH);
            write_bytes(out, &bytes);
        }
        (SparkplugType::Message(layout), Value::Map(map)) => {
            let mut inner = Vec::new();
            write_message(&mut inner, map, layout, depth)?;
            tag(out, LENGTH);
            write_bytes(out, &inner);
        }
        (SparkplugType::Message(_), _) => return wrong("a map"),
        (SparkplugType::Bool, _) => return wrong("a boolean"),
        (SparkplugType::Uint32 | SparkplugType::Uint64, _) => return wrong("an integer"),
        (SparkplugType::Text | SparkplugType::Bytes, _) => return wrong("a string"),
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
