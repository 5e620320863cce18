//! Values of telemetry and attributes as JSON: with their types, or as strings like ThingsBoard.

use serde_json::{Value as Json, json};
use timeseries::{PointValue, TimedValue};

pub fn typed(value: &PointValue) -> Json {
    match value {
        PointValue::Bool(value) => (*value).into(),
        PointValue::Long(value) => (*value).into(),
        PointValue::Double(value) => (*value).into(),
        PointValue::String(text) => Json::from(&**text),
        PointValue::Json(text) => serde_json::from_str(text).unwrap_or_else(|_| Json::from(&**text)),
    }
}

pub fn text(value: &PointValue) -> String {
    match value {
        PointValue::Bool(value) => value.to_string(),
        PointValue::Long(value) => value.to_string(),
        PointValue::Double(value) => double_text(*value),
        PointValue::String(text) | PointValue::Json(text) => text.to_string(),
    }
}

/// Returns a point of a history.
pub fn point_json(point: &TimedValue, is_strict: bool) -> Json {
    let value = if is_strict {
        typed(&point.value)
    } else {
        text(&point.value).into()
    };
    json!({"ts": point.ts_ms, "value": value})
}

/// Formats a number like Java: `1.0`, `22.5`, `1.0E7`, `1.0E-4`.
pub fn double_text(value: f64) -> String {
    let size = value.abs();
    if value == 0.0 || (1e-3..1e7).contains(&size) {
        return format!("{value:?}");
    }
    if !value.is_finite() {
        return if value.is_nan() {
            "NaN".to_owned()
        } else {
            format!("{}Infinity", if value < 0.0 { "-" } else { "" })
        };
    }
    let text = format!("{value:e}");
    match text.split_once('e') {
        Some((digits, exponent)) if digits.contains('.') => format!("{digits}E{exponent}"),
        Some((digits, exponent)) => format!("{digits}.0E{exponent}"),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubles_are_formatted_like_java() {
        for (value, text) in [
            (1.0, "1.0"),
            (-22.5, "-22.5"),
            (0.0, "0.0"),
            (0.001, "0.001"),
            (0.0001, "1.0E-4"),
            (9_999_999.0, "9999999.0"),
            (1e7, "1.0E7"),
            (-1.25e22, "-1.25E22"),
            (f64::NAN, "NaN"),
            (f64::NEG_INFINITY, "-Infinity"),
        ] {
            assert_eq!(double_text(value), text);
        }
    }

    #[test]
    fn values_convert_to_typed_json_and_text() {
        for (value, json, words) in [
            (PointValue::Bool(true), serde_json::json!(true), "true"),
            (PointValue::Long(-3), serde_json::json!(-3), "-3"),
            (PointValue::Double(0.5), serde_json::json!(0.5), "0.5"),
            (PointValue::String("a".into()), serde_json::json!("a"), "a"),
            (
                PointValue::Json("{\"a\":[1]}".into()),
                serde_json::json!({"a": [1]}),
                "{\"a\":[1]}",
            ),
        ] {
            assert_eq!(typed(&value), json);
            assert_eq!(text(&value), words);
        }
    }
}
