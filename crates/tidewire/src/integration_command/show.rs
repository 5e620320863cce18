//! One thing in full, for people: a line for each field, longer texts below their names.

use serde_json::Value;

use super::joined;

/// The non-empty fields of an object, in order.
pub fn show(value: &Value) -> String {
    let Some(fields) = value.as_object() else {
        return format!("{value}\n");
    };
    let width = fields.keys().map(|name| name.chars().count()).max().unwrap_or(0);
    let mut text = String::new();
    for (name, value) in fields {
        let shown = field(value);
        if shown.is_empty() {
            continue;
        }
        if shown.contains('\n') {
            let lines: Vec<String> = shown.lines().map(|line| format!("  {line}")).collect();
            text.push_str(&format!("{name}\n{}\n", lines.join("\n")));
        } else {
            text.push_str(&format!("{name:<width$}  {shown}\n"));
        }
    }
    text
}

fn field(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.trim_end().to_owned(),
        Value::Array(items) if items.iter().all(Value::is_string) => joined(value),
        Value::Array(items) if items.is_empty() => String::new(),
        Value::Object(fields) if fields.is_empty() => String::new(),
        Value::Object(_) => nested(value),
        Value::Array(_) => serde_json::to_string_pretty(value).unwrap_or_default(),
        other => other.to_string(),
    }
}

/// An object within: `name: value` by line where that is enough, else JSON.
fn nested(value: &Value) -> String {
    let is_flat = |value: &Value| !value.is_object() && !value.is_array();
    let fields = value.as_object().into_iter().flatten();
    if !fields.clone().all(|(_, value)| is_flat(value)) {
        return serde_json::to_string_pretty(value).unwrap_or_default();
    }
    let lines: Vec<String> = fields
        .map(|(name, value)| format!("{name}: {}", field(value)))
        .collect();
    format!("{}\n", lines.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_has_its_place() {
        let value = serde_json::json!({"id": "r", "sql": "a\nb", "none": null, "actions": ["x", "y"], "n": {"a": 1}});
        assert_eq!(show(&value), "actions  x, y\nid       r\nn\n  a: 1\nsql\n  a\n  b\n");
    }
}
