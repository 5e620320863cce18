//! JSON objects of keys and values, with ThingsBoard's types. Numbers are typed by their notation. Strings that look
//! like numbers are converted. Objects and arrays are stored as JSON without whitespace, and `null` is skipped.

use std::borrow::Cow;
use std::fmt;

use serde::de::{self, Deserialize, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;
use timeseries::PointValue;

use super::error::PayloadDecodeError;
use super::number;

#[derive(Clone, Copy, Debug)]
pub struct DecodeLimits {
    /// Values in a message, over all timestamps.
    pub points_max: usize,
    pub key_bytes_max: usize,
    pub text_bytes_max: usize,
    /// Converts strings that look like numbers.
    pub casts_texts: bool,
}

impl Default for DecodeLimits {
    fn default() -> DecodeLimits {
        DecodeLimits {
            points_max: 10_000,
            key_bytes_max: 255,
            text_bytes_max: 1 << 20,
            casts_texts: true,
        }
    }
}

impl DecodeLimits {
    /// Limits for attributes that users save: strings are not converted.
    pub fn of_users() -> DecodeLimits {
        DecodeLimits {
            casts_texts: false,
            ..DecodeLimits::default()
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct KeyValue<'a> {
    pub key: Cow<'a, str>,
    pub value: PointValue,
}

impl KeyValue<'_> {
    /// Approximate size in memory when stored.
    pub fn weight(&self) -> usize {
        let text = match &self.value {
            PointValue::String(text) | PointValue::Json(text) => text.len(),
            _ => 0,
        };
        96 + self.key.len() + text
    }
}

/// Maximum number of members of an object, including `null`. In a message of a gateway, each member is a device.
const MEMBERS_MAX: usize = 100_000;

/// Members of an object, with unparsed values.
pub(super) struct Members<'a> {
    list: Vec<(Cow<'a, str>, &'a RawValue)>,
    has_more: bool,
}

impl<'a> Members<'a> {
    /// Removes the members of this name.
    pub fn without(mut self, name: &str) -> Members<'a> {
        self.list.retain(|(key, _)| key != name);
        self
    }

    /// The last member of this name.
    pub fn find(&self, name: &str) -> Option<&'a str> {
        let mut newest_first = self.list.iter().rev();
        let found = newest_first.find(|(key, _)| key == name)?;
        Some(found.1.get())
    }

    pub fn all(self) -> Result<Vec<(Cow<'a, str>, &'a RawValue)>, PayloadDecodeError> {
        match self.has_more {
            true => Err(PayloadDecodeError::TooManyPoints { max: MEMBERS_MAX }),
            false => Ok(self.list),
        }
    }
}

/// A key, borrowed unless it has escapes.
struct MemberKey<'a>(Cow<'a, str>);

impl<'de> Deserialize<'de> for MemberKey<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<MemberKey<'de>, D::Error> {
        struct KeyVisitor;
        impl<'de> Visitor<'de> for KeyVisitor {
            type Value = MemberKey<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a key")
            }

            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<MemberKey<'de>, E> {
                Ok(MemberKey(Cow::Borrowed(text)))
            }

            fn visit_str<E>(self, text: &str) -> Result<MemberKey<'de>, E> {
                Ok(MemberKey(Cow::Owned(text.to_owned())))
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
        let mut list = Vec::new();
        let mut has_more = false;
        while let Some(MemberKey(key)) = map.next_key()? {
            let value = map.next_value()?;
            if list.len() < MEMBERS_MAX {
                list.push((key, value));
            } else {
                has_more = true;
            }
        }
        Ok(Members { list, has_more })
    }
}

/// Calls `each` for each object of an array, or for a single object if `accepts_single_object`. Does not collect the
/// objects.
pub(super) fn for_each_object<'a>(
    document: &'a [u8],
    takes_bare: bool,
    each: impl FnMut(Members<'a>) -> Result<(), PayloadDecodeError>,
) -> Result<(), PayloadDecodeError> {
    let mut refused = None;
    let mut deserializer = serde_json::Deserializer::from_slice(document);
    let objects = Objects {
        accepts_single_object: takes_bare,
        each,
        refused: &mut refused,
    };
    let read = deserializer.deserialize_any(objects).and_then(|()| deserializer.end());
    match refused {
        Some(error) => Err(error),
        None => read.map_err(PayloadDecodeError::from),
    }
}

struct Objects<'r, F> {
    accepts_single_object: bool,
    each: F,
    refused: &'r mut Option<PayloadDecodeError>,
}

impl<F> Objects<'_, F> {
    fn pass<'de, E: de::Error>(&mut self, members: Members<'de>) -> Result<(), E>
    where
        F: FnMut(Members<'de>) -> Result<(), PayloadDecodeError>,
    {
        (self.each)(members).map_err(|error| {
            let serde_error = E::custom(&error);
            *self.refused = Some(error);
            serde_error
        })
    }
}

impl<'de, F: FnMut(Members<'de>) -> Result<(), PayloadDecodeError>> Visitor<'de> for Objects<'_, F> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object or an array of objects")
    }

    fn visit_map<A: MapAccess<'de>>(mut self, map: A) -> Result<(), A::Error> {
        if !self.accepts_single_object {
            return Err(de::Error::invalid_type(de::Unexpected::Map, &"an array of objects"));
        }
        let members = MembersVisitor.visit_map(map)?;
        self.pass(members)
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut seq: A) -> Result<(), A::Error> {
        while let Some(members) = seq.next_element()? {
            self.pass(members)?;
        }
        Ok(())
    }
}

/// Appends the values of an object, up to the limits.
pub(super) fn push_values<'a>(
    into: &mut Vec<KeyValue<'a>>,
    members: Members<'a>,
    limits: &DecodeLimits,
) -> Result<(), PayloadDecodeError> {
    for (key, raw) in members.all()? {
        let Some(value) = value(raw.get(), limits)? else {
            continue;
        };
        if key.is_empty() || key.contains('\0') {
            return Err(PayloadDecodeError::form(
                "keys of at least one character, without U+0000",
            ));
        }
        if key.len() > limits.key_bytes_max {
            return Err(PayloadDecodeError::KeyTooLong {
                max: limits.key_bytes_max,
            });
        }
        if into.len() == limits.points_max {
            return Err(PayloadDecodeError::TooManyPoints { max: limits.points_max });
        }
        into.push(KeyValue { key, value });
    }
    Ok(())
}

/// `raw` is valid JSON without surrounding whitespace.
pub(super) fn value(raw: &str, limits: &DecodeLimits) -> Result<Option<PointValue>, PayloadDecodeError> {
    let value = match raw.as_bytes().first() {
        Some(b'n') => return Ok(None),
        Some(b't') => PointValue::Bool(true),
        Some(b'f') => PointValue::Bool(false),
        Some(b'"') if limits.casts_texts => string_value(&unquote(raw)?),
        Some(b'"') => PointValue::String(unquote(raw)?.into()),
        Some(b'{' | b'[') => PointValue::Json(compact(raw).into_owned().into()),
        _ => number::typed(raw),
    };
    match &value {
        PointValue::String(text) | PointValue::Json(text) if text.len() > limits.text_bytes_max => {
            Err(PayloadDecodeError::TextTooLong {
                max: limits.text_bytes_max,
            })
        }
        _ => Ok(Some(value)),
    }
}

fn string_value(text: &str) -> PointValue {
    if number::is_castable(text) {
        number::typed(text)
    } else {
        PointValue::String(text.into())
    }
}

/// The text of a JSON string.
pub(super) fn unquote(raw: &str) -> Result<Cow<'_, str>, PayloadDecodeError> {
    let inner = &raw[1..raw.len() - 1];
    if inner.contains('\\') {
        Ok(Cow::Owned(serde_json::from_str(raw)?))
    } else {
        Ok(Cow::Borrowed(inner))
    }
}

/// Removes whitespace between values.
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

/// Decodes the attributes of a message: `{"key": value, …}`.
pub fn attributes<'a>(payload: &'a [u8], limits: &DecodeLimits) -> Result<Vec<KeyValue<'a>>, PayloadDecodeError> {
    let members: Members<'a> =
        serde_json::from_slice(payload).map_err(|error| match PayloadDecodeError::from(error) {
            PayloadDecodeError::Form { .. } => PayloadDecodeError::form("an object of attributes"),
            other => other,
        })?;
    let mut values = Vec::new();
    push_values(&mut values, members, limits)?;
    Ok(values)
}

/// Decodes an object. Derived deserializers also accept an array of field values, which is rejected here.
pub(super) fn object<'de, T: Deserialize<'de>>(
    payload: &'de [u8],
    expected: &'static str,
) -> Result<T, PayloadDecodeError> {
    let is_array = payload.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'[');
    if is_array {
        check_json(payload)?;
        return Err(PayloadDecodeError::form(expected));
    }
    serde_json::from_slice(payload).map_err(|error| match PayloadDecodeError::from(error) {
        PayloadDecodeError::Form { .. } => PayloadDecodeError::form(expected),
        other => other,
    })
}

/// Checks that a document is valid JSON of any form.
pub(super) fn check_json(payload: &[u8]) -> Result<(), PayloadDecodeError> {
    serde_json::from_slice::<IgnoredAny>(payload)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_have_thingsboards_types() {
        let payload = r#"{"b":true,"n":null,"s":"text","cast":"22.5","int":"7","esc":"a\"\u00e4","obj":{ "a": [1, "x y"] },"long":1,"double":1.0}"#;
        let found = attributes(payload.as_bytes(), &DecodeLimits::default()).unwrap();
        let found: Vec<(&str, &PointValue)> = found.iter().map(|value| (&*value.key, &value.value)).collect();
        let json = PointValue::Json(r#"{"a":[1,"x y"]}"#.into());
        assert_eq!(
            found,
            [
                ("b", &PointValue::Bool(true)),
                ("s", &PointValue::String("text".into())),
                ("cast", &PointValue::Double(22.5)),
                ("int", &PointValue::Long(7)),
                ("esc", &PointValue::String("a\"ä".into())),
                ("obj", &json),
                ("long", &PointValue::Long(1)),
                ("double", &PointValue::Double(1.0)),
            ]
        );
    }

    #[test]
    fn exceeded_limits_are_errors() {
        let limits = DecodeLimits {
            points_max: 1,
            key_bytes_max: 3,
            text_bytes_max: 3,
            ..DecodeLimits::default()
        };
        let cases = [
            (r#"{"a":1,"b":2}"#, PayloadDecodeError::TooManyPoints { max: 1 }),
            (r#"{"long":1}"#, PayloadDecodeError::KeyTooLong { max: 3 }),
            (r#"{"a":"text"}"#, PayloadDecodeError::TextTooLong { max: 3 }),
            ("[1]", PayloadDecodeError::form("an object of attributes")),
            ("", PayloadDecodeError::NotJson { line: 1, column: 0 }),
        ];
        for (payload, error) in cases {
            assert_eq!(attributes(payload.as_bytes(), &limits), Err(error), "{payload}");
        }
    }
}
