//! Values of telemetry and attributes as JSON: with their types, or as the texts that ThingsBoard gives.

use serde_json::Value as Json;
use timeseries::Value;

pub fn typed(value: &Value) -> Json {
    match value {
        Value::Bool(value) => (*value).into(),
        Value::Long(value) => (*value).into(),
        Value::Double(value) => (*value).into(),
        Value::String(text) => Json::from(&**text),
        Value::Json(text) => serde_json::from_str(text).unwrap_or_else(|_| Json::from(&**text)),
    }
}

pub fn text(value: &Value) -> String {
    match value {
        Value::Bool(value) => value.to_string(),
        Value::Long(value) => value.to_string(),
        Value::Double(value) => double_text(*value),
        Value::String(text) | Value::Json(text) => text.to_string(),
    }
}

/// As Java writes it: `1.0`, `22.5`, `1.0E7`, `1.0E-4`.
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
    fn doubles_are_written_as_java_does() {
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
    fn every_type_as_it_is_and_as_text() {
        for (value, json, words) in [
            (Value::Bool(true), serde_json::json!(true), "true"),
            (Value::Long(-3), serde_json::json!(-3), "-3"),
            (Value::Double(0.5), serde_json::json!(0.5), "0.5"),
            (Value::String("a".into()), serde_json::json!("a"), "a"),
            (
                Value::Json("{\"a\":[1]}".into()),
                serde_json::json!({"a": [1]}),
                "{\"a\":[1]}",
            ),
        ] {
            assert_eq!(typed(&value), json);
            assert_eq!(text(&value), words);
        }
    }
}
