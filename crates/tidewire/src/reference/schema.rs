//! Renders a JSON Schema of options as a list: name, type, default, range, description, choices.

use std::fmt::Write;

use serde_json::{Map, Value};

/// Returns one list item per option. Options of nested objects follow theirs, with dotted names.
pub fn options(schema: &Value) -> String {
    let mut text = String::new();
    let root = SchemaRoot { schema };
    root.object(schema, "", &mut text);
    text
}

struct SchemaRoot<'a> {
    schema: &'a Value,
}

impl<'a> SchemaRoot<'a> {
    fn object(&self, schema: &'a Value, prefix: &str, text: &mut String) {
        let required: Vec<&str> = schema["required"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .collect();
        let mut properties: Vec<(&String, &Value)> = schema["properties"].as_object().into_iter().flatten().collect();
        // Required options first; each part stays in the order of names.
        properties.sort_by_key(|(name, _)| !required.contains(&name.as_str()));
        for (name, property) in properties {
            self.option(
                &format!("{prefix}{name}"),
                property,
                required.contains(&name.as_str()),
                text,
            );
        }
    }

    fn option(&self, name: &str, property: &'a Value, is_required: bool, text: &mut String) {
        let target = self.resolve(property);
        let own = property["description"].as_str();
        let description = own.or_else(|| target["description"].as_str()).unwrap_or_default();
        let mut facts = vec![type_name(property, target)];
        let default = &property["default"];
        if is_required {
            facts.push("required".into());
        } else if !matches!(default, Value::Null | Value::Object(_)) {
            facts.push(format!("default `{}`", plain(default)));
        }
        let range = |key: &str| target[key].as_u64().map(|number| number.to_string());
        match (range("minimum"), range("maximum")) {
            (Some(min), Some(max)) => facts.push(format!("{min} to {max}")),
            (Some(min), None) if min != "0" => facts.push(format!("at least {min}")),
            (None, Some(max)) => facts.push(format!("at most {max}")),
            _ => {}
        }
        let description = super::sentence(description);
        let colon = if description.is_empty() { "" } else { ": " };
        let _ = writeln!(text, "- `{name}` ({}){colon}{description}", facts.join(", "));
        let has_fields = !target["properties"].is_null() || !target["oneOf"].is_null();
        if let Some(values) = default.as_object().filter(|_| !has_fields) {
            defaults(values, text);
        }
        self.alternatives(name, target, text);
        self.object(target, &format!("{name}."), text);
        let items = self.resolve(&target["items"]);
        self.object(items, &format!("{name}[]."), text);
    }

    /// Values to choose from, with what each means.
    fn alternatives(&self, name: &str, target: &'a Value, text: &mut String) {
        let all = target["oneOf"].as_array().or_else(|| target["anyOf"].as_array());
        for alternative in all.into_iter().flatten() {
            let description = super::sentence(alternative["description"].as_str().unwrap_or_default());
            if let Some(value) = alternative["const"].as_str() {
                let colon = if description.is_empty() { "" } else { ": " };
                let _ = writeln!(text, "  - `{value}`{colon}{description}");
            }
            for value in alternative["enum"].as_array().into_iter().flatten() {
                let _ = writeln!(text, "  - `{}`", plain(value));
            }
            let tag = alternative["properties"].as_object().and_then(tag);
            if let Some((key, value)) = tag {
                let _ = writeln!(
                    text,
                    "  - `{name}.{key}` `{value}`: {}",
                    self.fields(alternative, key, &description)
                );
            } else if alternative["const"].is_null() && !description.is_empty() {
                let _ = writeln!(text, "  - {description}");
            }
        }
        for value in target["enum"].as_array().into_iter().flatten() {
            let _ = writeln!(text, "  - `{}`", plain(value));
        }
    }

    fn fields(&self, alternative: &Value, tag: &str, description: &str) -> String {
        let fields: Vec<String> = alternative["properties"]
            .as_object()
            .into_iter()
            .flatten()
            .filter(|(name, _)| *name != tag)
            .map(|(name, _)| format!("`{name}`"))
            .collect();
        let fields = match fields.as_slice() {
            [] => "no other field.".to_owned(),
            fields => format!("needs {}.", fields.join(", ")),
        };
        format!("{description} {fields}").trim().to_owned()
    }

    /// Follows a reference, and the one alternative that is not null.
    fn resolve(&self, schema: &'a Value) -> &'a Value {
        if let Some(name) = schema["$ref"].as_str() {
            let name = name.rsplit('/').next().unwrap_or_default();
            return &self.schema["$defs"][name];
        }
        let alternatives = schema["anyOf"].as_array();
        let other: Vec<&Value> = alternatives
            .into_iter()
            .flatten()
            .filter(|alternative| alternative["type"] != "null")
            .collect();
        match other.as_slice() {
            [one] => self.resolve(one),
            _ => schema,
        }
    }
}

fn defaults(values: &Map<String, Value>, text: &mut String) {
    for (name, value) in values {
        let _ = writeln!(text, "  - `{name}`: default `{}`", plain(value));
    }
}

/// Returns the field that tells the alternatives of an enum apart.
fn tag(properties: &Map<String, Value>) -> Option<(&str, &str)> {
    properties
        .iter()
        .find_map(|(name, property)| Some((name.as_str(), property["const"].as_str()?)))
}

fn type_name(property: &Value, target: &Value) -> String {
    let has_alternatives = !target["oneOf"].is_null() || !target["anyOf"].is_null() || !target["enum"].is_null();
    let name = match &target["type"] {
        _ if target["writeOnly"] == true => "secret",
        Value::String(name) if has_alternatives && name == "string" => "choice",
        Value::String(name) => name,
        Value::Array(names) => names
            .iter()
            .filter_map(Value::as_str)
            .find(|name| *name != "null")
            .unwrap_or("any"),
        _ if has_alternatives => "choice",
        _ => "any",
    };
    let is_optional = target["type"].is_array() || !property["anyOf"].is_null() && target != property;
    let optional = if is_optional { ", optional" } else { "" };
    format!("{name}{optional}")
}

fn plain(value: &Value) -> String {
    match value {
        Value::String(text) if text.is_empty() => "\"\"".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}
