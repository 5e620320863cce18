//! Telemetry messages in all accepted forms: `{"key": value}`, `{"ts": …, "values": {…}}`, and arrays of both. An
//! object with both `ts` and `values` is of the second form.

use std::ops::Range;

use serde_json::value::RawValue;

use super::error::PayloadDecodeError;
use super::values::{DecodeLimits, KeyValue, Members, for_each_object, push_values, unquote};

/// The largest timestamp of a point. Ranges have an exclusive end, so a later point would be in no range.
pub const TS_MAX_MS: i64 = i64::MAX - 1;

/// Values of a message in order, grouped by timestamp. No group is empty.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Telemetry<'a> {
    values: Vec<KeyValue<'a>>,
    groups: Vec<(i64, Range<usize>)>,
}

impl<'a> Telemetry<'a> {
    /// `now_ms` is the timestamp of values without one.
    pub fn decode(payload: &'a [u8], now_ms: i64, limits: &DecodeLimits) -> Result<Telemetry<'a>, PayloadDecodeError> {
        let mut telemetry = Telemetry::default();
        for_each_object(payload, true, |members| telemetry.push(members, now_ms, limits))?;
        Ok(telemetry)
    }

    /// Decodes a device's array in a gateway's message. Skips the gateway's `metadata`.
    pub(super) fn decode_gateway(
        raw: &'a RawValue,
        now_ms: i64,
        limits: &DecodeLimits,
    ) -> Result<Telemetry<'a>, PayloadDecodeError> {
        let mut telemetry = Telemetry::default();
        let read = for_each_object(raw.get().as_bytes(), false, |members| {
            telemetry.push(members.without("metadata"), now_ms, limits)
        });
        match read {
            Ok(()) => Ok(telemetry),
            Err(PayloadDecodeError::Form { .. }) => Err(PayloadDecodeError::form(
                "an array of telemetry objects for each device",
            )),
            Err(error) => Err(error),
        }
    }

    fn push(&mut self, members: Members<'a>, now_ms: i64, limits: &DecodeLimits) -> Result<(), PayloadDecodeError> {
        let (ts_ms, members) = match timed(&members)? {
            Some(timed) => timed,
            None => (now_ms, members),
        };
        let start = self.values.len();
        push_values(&mut self.values, members, limits)?;
        if self.values.len() > start {
            self.groups.push((ts_ms, start..self.values.len()));
        }
        Ok(())
    }

    /// Groups with their timestamp, in the order of the message.
    pub fn groups(&self) -> impl Iterator<Item = (i64, &[KeyValue<'a>])> {
        self.groups
            .iter()
            .map(|(ts_ms, range)| (*ts_ms, &self.values[range.clone()]))
    }

    pub fn point_count(&self) -> usize {
        self.values.len()
    }
}

/// The timestamp and values, if the object has both members.
fn timed<'a>(members: &Members<'a>) -> Result<Option<(i64, Members<'a>)>, PayloadDecodeError> {
    let (Some(ts), Some(values)) = (members.find("ts"), members.find("values")) else {
        return Ok(None);
    };
    let ts_ms = time(ts).ok_or_else(|| PayloadDecodeError::form("milliseconds since 1970 in ts"))?;
    let values = serde_json::from_str(values).map_err(|_| PayloadDecodeError::form("an object in values"))?;
    Ok(Some((ts_ms.min(TS_MAX_MS), values)))
}

/// Parses a number, or a string with one. Truncates decimal places.
pub(super) fn time(raw: &str) -> Option<i64> {
    let text = if raw.starts_with('"') {
        unquote(raw).ok()?
    } else {
        raw.into()
    };
    if let Ok(millis) = text.parse() {
        return Some(millis);
    }
    let millis: f64 = text.parse().ok()?;
    let is_in_range = millis.is_finite() && millis.abs() < 9.2e18;
    #[expect(clippy::cast_possible_truncation, reason = "in range, and truncation is intended")]
    is_in_range.then_some(millis as i64)
}

#[cfg(test)]
mod tests {
    use timeseries::PointValue;

    use super::*;

    const NOW: i64 = 1_700_000_000_000;

    fn decode(payload: &str) -> Result<Vec<(i64, String, PointValue)>, PayloadDecodeError> {
        let telemetry = Telemetry::decode(payload.as_bytes(), NOW, &DecodeLimits::default())?;
        let points = telemetry.groups().flat_map(|(ts_ms, values)| {
            values
                .iter()
                .map(move |value| (ts_ms, value.key.to_string(), value.value.clone()))
        });
        Ok(points.collect())
    }

    fn point(ts_ms: i64, key: &str, value: i64) -> (i64, String, PointValue) {
        (ts_ms, key.to_owned(), PointValue::Long(value))
    }

    #[test]
    fn accepted_forms_are_decoded() {
        let cases = [
            (r#"{"a":1,"b":2}"#, vec![point(NOW, "a", 1), point(NOW, "b", 2)]),
            (r#"{"ts":5,"values":{"a":1}}"#, vec![point(5, "a", 1)]),
            (
                r#"{"ts":9223372036854775807,"values":{"a":1}}"#,
                vec![point(TS_MAX_MS, "a", 1)],
            ),
            (r#"{"values":{"a":1},"ts":"5"}"#, vec![point(5, "a", 1)]),
            (r#"[{"a":1},{"b":2}]"#, vec![point(NOW, "a", 1), point(NOW, "b", 2)]),
            (
                r#" [ {"ts":1,"values":{"a":1}}, {"ts":2,"values":{"a":2}}, {"a":3} ] "#,
                vec![point(1, "a", 1), point(2, "a", 2), point(NOW, "a", 3)],
            ),
            // With only one of the two names, it is an ordinary key.
            (r#"{"ts":5}"#, vec![point(NOW, "ts", 5)]),
            (r#"{"ts":5,"values":{}}"#, vec![]),
            ("{}", vec![]),
            ("[]", vec![]),
        ];
        for (payload, points) in cases {
            assert_eq!(decode(payload).unwrap(), points, "{payload}");
        }
    }

    #[test]
    fn invalid_forms_are_rejected() {
        for payload in [
            "",
            "1",
            "null",
            "\"text\"",
            "[1]",
            "[[{}]]",
            "{\"a\":1",
            "{\"a\":1}}",
            "{'a':1}",
            r#"{"ts":"soon","values":{}}"#,
            r#"{"ts":1,"values":[]}"#,
            r#"{"ts":1,"values":1}"#,
            "{\"a\":\u{1}}",
        ] {
            assert!(decode(payload).is_err(), "{payload}");
        }
        assert!(Telemetry::decode(b"{\"a\":\"\xff\"}", NOW, &DecodeLimits::default()).is_err());
    }

    #[test]
    fn objects_without_values_make_no_groups() {
        let many = format!("[{}{{\"a\":1}},{{\"a\":null}}]", "{},".repeat(100_000));
        let telemetry = Telemetry::decode(many.as_bytes(), NOW, &DecodeLimits::default()).unwrap();
        assert_eq!(telemetry.groups().count(), 1);
    }

    #[test]
    fn oversized_messages_are_not_read_to_the_end() {
        let members: String = (0..100_001).map(|n| format!("\"{n}\":null,")).collect();
        let cases = [
            format!("[{}broken", "{\"a\":1},".repeat(10_001)),
            format!("{{{members}\"a\":1}}"),
            format!("{{\"ts\":1,\"values\":{{{members}\"a\":1}}}}"),
        ];
        for payload in cases {
            let refused = decode(&payload);
            assert!(
                matches!(refused, Err(PayloadDecodeError::TooManyPoints { .. })),
                "{refused:?}"
            );
        }
    }

    #[test]
    fn load_tool_payloads_are_decoded() {
        let meter = decode(r#"{"ts":1640995200123,"values":{"pulseCounter":874231,"leakage":true,"batteryLevel":72}}"#);
        let expected = [
            (1_640_995_200_123, "pulseCounter".to_owned(), PointValue::Long(874_231)),
            (1_640_995_200_123, "leakage".to_owned(), PointValue::Bool(true)),
            (1_640_995_200_123, "batteryLevel".to_owned(), PointValue::Long(72)),
        ];
        assert_eq!(meter.unwrap(), expected);
        let tracker = decode(r#"{"ts":1,"values":{"latitude":"42.222222","speed":"60"}}"#).unwrap();
        assert_eq!(tracker[0].2, PointValue::Double(42.222_222));
        assert_eq!(tracker[1].2, PointValue::Long(60));
    }
}
