//! JSON objects of keys and values, with ThingsBoard's types: numbers by how they are written, strings cast to numbers where
//! they look like one, objects and arrays as JSON without spaces, `null` left out.

use std::borrow::Cow;
use std::fmt;

use serde::de::{self, Deserialize, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;
use timeseries::Value;

use super::error::DecodeError;
use super::number;

#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Keys with a value, of all times of a message together.
    pub points_max: usize,
    pub key_bytes_max: usize,
    pub text_bytes_max: usize,
    /// Texts that look like numbers are numbers.
    pub casts_texts: bool,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            points_max: 10_000,
            key_bytes_max: 255,
            text_bytes_max: 1 << 20,
            casts_texts: true,
        }
    }
}

impl Limits {
    /// Of attributes that people save: what they write as text stays text.
    pub fn of_people() -> Limits {
        Limits {
            casts_texts: false,
            ..Limits::default()
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct KeyValue<'a> {
    pub key: Cow<'a, str>,
    pub value: Value,
}

impl KeyValue<'_> {
    /// In memory, about, when it is kept.
    pub fn weight(&self) -> usize {
        let text = match &self.value {
            Value::String(text) | Value::Json(text) => text.len(),
            _ => 0,
        };
        96 + self.key.len() + text
    }
}

/// Members that are looked at, `null` included: of a gateway they are devices.
const MEMBERS_MAX: usize = 100_000;

/// Members of an object, values as they are written.
pub(super) struct Members<'a> {
    kept: Vec<(Cow<'a, str>, &'a RawValue)>,
    has_more: bool,
}

impl<'a> Members<'a> {
    /// Without those of a name.
    pub fn without(mut self, name: &str) -> Members<'a> {
        self.kept.retain(|(key, _)| key != name);
        self
    }

    /// The last one of a name.
    pub fn find(&self, name: &str) -> Option<&'a str> {
        let mut newest_first = self.kept.iter().rev();
        let found = newest_first.find(|(key, _)| key == name)?;
        Some(found.1.get())
    }

    pub fn all(self) -> Result<Vec<(Cow<'a, str>, &'a RawValue)>, DecodeError> {
        match self.has_more {
            true => Err(DecodeError::TooManyPoints { max: MEMBERS_MAX }),
            false => Ok(self.kept),
        }
    }
}

/// A key, borrowed where it has no escapes.
struct Key<'a>(Cow<'a, str>);

impl<'de> Deserialize<'de> for Key<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Key<'de>, D::Error> {
        struct KeyVisitor;
        impl<'de> Visitor<'de> for KeyVisitor {
            type Value = Key<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a key")
            }

            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Key<'de>, E> {
                Ok(Key(Cow::Borrowed(text)))
            }

            fn visit_str<E>(self, text: &str) -> Result<Key<'de>, E> {
                Ok(Key(Cow::Owned(text.to_owned())))
            }
        }
        deserializer.deserialize_str(KeyVisitor)
    }
}

impl<'de> Deserialize<'de> for Members<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Members<'de>, D::Error> {
        deserializer.deserialize_map(MembersVisitor)
    }
}

struct MembersVisitor;

impl<'de> Visitor<'de> for MembersVisitor {
    type Value = Members<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Members<'de>, A::Error> {
        let mut kept = Vec::new();
        let mut has_more = false;
        while let Some(Key(key)) = map.next_key()? {
            let value = map.next_value()?;
            if kept.len() < MEMBERS_MAX {
                kept.push((key, value));
            } else {
                has_more = true;
            }
        }
        Ok(Members { kept, has_more })
    }
}

/// Gives a document of an array of objects, or of a bare one where that is taken, object by object to `each`: none of them is kept.
pub(super) fn for_each_object<'a>(
    document: &'a [u8],
    takes_bare: bool,
    each: impl FnMut(Members<'a>) -> Result<(), DecodeError>,
) -> Result<(), DecodeError> {
    let mut refused = None;
    let mut deserializer = serde_json::Deserializer::from_slice(document);
    let objects = Objects {
        takes_bare,
        each,
        refused: &mut refused,
    };
    let read = deserializer.deserialize_any(objects).and_then(|()| deserializer.end());
    match refused {
        Some(error) => Err(error),
        None => read.map_err(DecodeError::from),
    }
}

struct Objects<'r, F> {
    takes_bare: bool,
    each: F,
    refused: &'r mut Option<DecodeError>,
}

impl<F> Objects<'_, F> {
    fn give<'de, E: de::Error>(&mut self, members: Members<'de>) -> Result<(), E>
    where
        F: FnMut(Members<'de>) -> Result<(), DecodeError>,
    {
        (self.each)(members).map_err(|error| {
            let told = E::custom(&error);
            *self.refused = Some(error);
            told
        })
    }
}

impl<'de, F: FnMut(Members<'de>) -> Result<(), DecodeError>> Visitor<'de> for Objects<'_, F> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object or an array of objects")
    }

    fn visit_map<A: MapAccess<'de>>(mut self, map: A) -> Result<(), A::Error> {
        if !self.takes_bare {
            return Err(de::Error::invalid_type(de::Unexpected::Map, &"an array of objects"));
        }
        let members = MembersVisitor.visit_map(map)?;
        self.give(members)
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut seq: A) -> Result<(), A::Error> {
        while let Some(members) = seq.next_element()? {
            self.give(members)?;
        }
        Ok(())
    }
}

/// Appends the values of an object, at most as many as the limits leave room for.
pub(super) fn push_values<'a>(
    into: &mut Vec<KeyValue<'a>>,
    members: Members<'a>,
    limits: &Limits,
) -> Result<(), DecodeError> {
    for (key, raw) in members.all()? {
        let Some(value) = value(raw.get(), limits)? else {
            continue;
        };
        if key.is_empty() || key.contains('\0') {
            return Err(DecodeError::form("keys of one character at least, without U+0000"));
        }
        if key.len() > limits.key_bytes_max {
            return Err(DecodeError::KeyTooLong {
                max: limits.key_bytes_max,
            });
        }
        if into.len() == limits.points_max {
            return Err(DecodeError::TooManyPoints { max: limits.points_max });
        }
        into.push(KeyValue { key, value });
    }
    Ok(())
}

/// `raw` is a valid JSON text without spaces around it.
pub(super) fn value(raw: &str, limits: &Limits) -> Result<Option<Value>, DecodeError> {
    let value = match raw.as_bytes().first() {
        Some(b'n') => return Ok(None),
        Some(b't') => Value::Bool(true),
        Some(b'f') => Value::Bool(false),
        Some(b'"') if limits.casts_texts => string_value(&unquote(raw)?),
        Some(b'"') => Value::String(unquote(raw)?.into()),
        Some(b'{' | b'[') => Value::Json(compact(raw).into_owned().into()),
        _ => number::typed(raw),
    };
    match &value {
        Value::String(text) | Value::Json(text) if text.len() > limits.text_bytes_max => {
            Err(DecodeError::TextTooLong {
                max: limits.text_bytes_max,
            })
        }
        _ => Ok(Some(value)),
    }
}

fn string_value(text: &str) -> Value {
    if number::is_castable(text) {
        number::typed(text)
    } else {
        Value::String(text.into())
    }
}

/// The text of a JSON string.
pub(super) fn unquote(raw: &str) -> Result<Cow<'_, str>, DecodeError> {
    let inner = &raw[1..raw.len() - 1];
    if inner.contains('\\') {
        Ok(Cow::Owned(serde_json::from_str(raw)?))
    } else {
        Ok(Cow::Borrowed(inner))
    }
}

/// Without the spaces between values.
fn compact(raw: &str) -> Cow<'_, str> {
    if !raw.bytes().any(|byte| byte.is_ascii_whitespace()) {
        return Cow::Borrowed(raw);
    }
    let mut is_in_string = false;
    let mut is_escaped = false;
    let keep = |c: &char| {
        let was_in_string = is_in_string;
        match c {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = is_in_string,
            '"' => is_in_string = !is_in_string,
            _ => {}
        }
        was_in_string || !c.is_ascii_whitespace()
    };
    Cow::Owned(raw.chars().filter(keep).collect())
}

/// `{"key": value, …}`: the attributes of a message.
pub fn attributes<'a>(payload: &'a [u8], limits: &Limits) -> Result<Vec<KeyValue<'a>>, DecodeError> {
    let members: Members<'a> = serde_json::from_slice(payload).map_err(|error| match DecodeError::from(error) {
        DecodeError::Form { .. } => DecodeError::form("an object of attributes"),
        other => other,
    })?;
    let mut values = Vec::new();
    push_values(&mut values, members, limits)?;
    Ok(values)
}

/// A document that is an object: what is derived for a struct takes an array for one, field by field, which no device means.
pub(super) fn object<'de, T: Deserialize<'de>>(payload: &'de [u8], expected: &'static str) -> Result<T, DecodeError> {
    let is_array = payload.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'[');
    if is_array {
        check_json(payload)?;
        return Err(DecodeError::form(expected));
    }
    serde_json::from_slice(payload).map_err(|error| match DecodeError::from(error) {
        DecodeError::Form { .. } => DecodeError::form(expected),
        other => other,
    })
}

/// Reads past a document of any form; used where only validity matters.
pub(super) fn check_json(payload: &[u8]) -> Result<(), DecodeError> {
    serde_json::from_slice::<IgnoredAny>(payload)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_of_values() {
        let payload = r#"{"b":true,"n":null,"s":"text","cast":"22.5","int":"7","esc":"a\"\u00e4","obj":{ "a": [1, "x y"] },"long":1,"double":1.0}"#;
        let found = attributes(payload.as_bytes(), &Limits::default()).unwrap();
        let found: Vec<(&str, &Value)> = found.iter().map(|value| (&*value.key, &value.value)).collect();
        let json = Value::Json(r#"{"a":[1,"x y"]}"#.into());
        assert_eq!(
            found,
            [
                ("b", &Value::Bool(true)),
                ("s", &Value::String("text".into())),
                ("cast", &Value::Double(22.5)),
                ("int", &Value::Long(7)),
                ("esc", &Value::String("a\"ä".into())),
                ("obj", &json),
                ("long", &Value::Long(1)),
                ("double", &Value::Double(1.0)),
            ]
        );
    }

    #[test]
    fn limits_are_errors() {
        let limits = Limits {
            points_max: 1,
            key_bytes_max: 3,
            text_bytes_max: 3,
            ..Limits::default()
        };
        let cases = [
            (r#"{"a":1,"b":2}"#, DecodeError::TooManyPoints { max: 1 }),
            (r#"{"long":1}"#, DecodeError::KeyTooLong { max: 3 }),
            (r#"{"a":"text"}"#, DecodeError::TextTooLong { max: 3 }),
            ("[1]", DecodeError::form("an object of attributes")),
            ("", DecodeError::NotJson { line: 1, column: 0 }),
        ];
        for (payload, error) in cases {
            assert_eq!(attributes(payload.as_bytes(), &limits), Err(error), "{payload}");
        }
    }
}
