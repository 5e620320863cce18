//! Validates values against the JSON schemas of the document. Stricter than JSON Schema: an object may only have
//! properties that its schema names.

use serde_json::Value;

pub struct Schemas<'a> {
    pub document: &'a Value,
}

impl Schemas<'_> {
    #[track_caller]
    pub fn check(&self, schema: &Value, value: &Value) {
        if let Err(error) = self.matches(schema, value, "") {
            panic!("{error}\n{value}\nagainst {schema}");
        }
    }

    pub fn resolve<'s>(&'s self, schema: &'s Value) -> &'s Value {
        match schema["$ref"].as_str() {
            Some(reference) => {
                let found = self.document.pointer(reference.strip_prefix('#').unwrap());
                self.resolve(found.unwrap_or_else(|| panic!("{reference} is not defined")))
            }
            None => schema,
        }
    }

    fn matches(&self, schema: &Value, value: &Value, at: &str) -> Result<(), String> {
        let schema = self.resolve(schema);
        for keyword in ["anyOf", "oneOf"] {
            if let Some(choices) = schema[keyword].as_array() {
                let fits = choices.iter().any(|choice| self.matches(choice, value, at).is_ok());
                return if fits {
                    Ok(())
                } else {
                    Err(format!("{at}: no alternative of {keyword} matches"))
                };
            }
        }
        if let Some(expected) = schema.get("const") {
            return if expected == value {
                Ok(())
            } else {
                Err(format!("{at}: not {expected}"))
            };
        }
        if let Some(values) = schema["enum"].as_array() {
            return if values.contains(value) {
                Ok(())
            } else {
                Err(format!("{at}: {value} is not one of {values:?}"))
            };
        }
        self.check_type(schema, value, at)?;
        if let (Some(items), Some(list)) = (schema.get("items"), value.as_array()) {
            for (index, item) in list.iter().enumerate() {
                self.matches(items, item, &format!("{at}[{index}]"))?;
            }
        }
        match value.as_object() {
            Some(object) if schema.get("properties").is_some() || schema.get("additionalProperties").is_some() => {
                self.check_object(schema, object, at)
            }
            _ => Ok(()),
        }
    }

    fn check_type(&self, schema: &Value, value: &Value, at: &str) -> Result<(), String> {
        let names: Vec<&str> = match &schema["type"] {
            Value::String(name) => vec![name],
            Value::Array(names) => names.iter().filter_map(Value::as_str).collect(),
            _ => return Ok(()),
        };
        let is_of = |name: &str| match name {
            "null" => value.is_null(),
            "boolean" => value.is_boolean(),
            "integer" => value.is_u64() || value.is_i64(),
            "number" => value.is_number(),
            "string" => value.is_string(),
            "array" => value.is_array(),
            "object" => value.is_object(),
            name => panic!("{name} is not a type"),
        };
        if names.iter().any(|name| is_of(name)) {
            Ok(())
        } else {
            Err(format!("{at}: {value} is not {names:?}"))
        }
    }

    fn check_object(&self, schema: &Value, object: &serde_json::Map<String, Value>, at: &str) -> Result<(), String> {
        for name in schema["required"].as_array().into_iter().flatten() {
            if !object.contains_key(name.as_str().unwrap()) {
                return Err(format!("{at}: {name} is missing"));
            }
        }
        for (name, value) in object {
            let schema = match (&schema["properties"][name], &schema["additionalProperties"]) {
                (Value::Null, additional @ Value::Object(_)) => additional,
                (Value::Null, _) => return Err(format!("{at}: {name} is not in the schema")),
                (property, _) => property,
            };
            self.matches(schema, value, &format!("{at}.{name}"))?;
        }
        Ok(())
    }
}
