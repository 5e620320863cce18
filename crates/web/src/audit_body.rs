//! Removes secrets from request bodies and URLs before they are logged.
//!
//! The log keeps the values of fields that the schema of the operation lists. A refused request can contain a password
//! in another field. [`OptionSchemas`] describe fields whose schema depends on a type.

use std::sync::Arc;

use schemars::generate::SchemaSettings;
use schemars::{Schema, SchemaGenerator};
use serde_json::Value;

/// Replaces a value that is or may be a secret.
pub const HIDDEN: &str = "***";
/// Limit of one text.
pub const TEXT_CHARACTERS_MAX: usize = 200;
/// Limit of references and alternatives within one schema, which may be recursive.
const DEPTH_MAX: usize = 32;

/// Parts of the names of fields whose values are hidden, in lower case.
const SECRETS: [&str; 10] = [
    "password",
    "secret",
    "token",
    "credential",
    "private",
    "hash",
    "key",
    "authorization",
    "headers",
    "access.users",
];

/// Returns the possible schemas of a field that the operation describes as any JSON. The second argument is the value
/// of the field `type` next to it.
pub type OptionSchemas = fn(field: &str, kind: &str) -> Vec<Schema>;

/// Fields of a body or a query.
#[derive(Clone, Debug)]
pub struct KnownFields {
    /// As JSON Schema. `None`: no field is known.
    schema: Option<Arc<Value>>,
    options: OptionSchemas,
}

impl Default for KnownFields {
    fn default() -> KnownFields {
        KnownFields {
            schema: None,
            options: |_, _| Vec::new(),
        }
    }
}

impl KnownFields {
    pub fn of(schema: Option<fn(&mut SchemaGenerator) -> Schema>, options: OptionSchemas) -> KnownFields {
        let schema = schema.map(|schema| {
            let mut generator = SchemaSettings::draft2020_12().into_generator();
            let mut root = schema(&mut generator).to_value();
            if let Some(root) = root.as_object_mut() {
                root.insert("$defs".into(), generator.take_definitions(true).into());
            }
            Arc::new(root)
        });
        KnownFields { schema, options }
    }

    /// Hides the values of unknown fields and of secrets, and shortens long texts.
    pub fn redact(&self, body: &mut Value) {
        let none = Value::Bool(false);
        let root = self.schema.as_deref().unwrap_or(&none);
        self.walk(root).redact(body, &[root], 0);
    }

    /// Removes the top-level fields of an answer that the request cannot have, such as counters. Keeps all fields if
    /// the schema lists none.
    pub fn retain(&self, answer: &mut Value) {
        let mut schemas = Vec::new();
        if let Some(root) = self.schema.as_deref() {
            self.walk(root).alternatives(root, &mut schemas, 0);
        }
        schemas.retain(|schema| schema["properties"].is_object());
        if let (Some(fields), false) = (answer.as_object_mut(), schemas.is_empty()) {
            fields.retain(|name, _| schemas.iter().any(|schema| schema["properties"].get(name).is_some()));
        }
    }

    /// Hides the values of unknown and secret parameters in the query of a request target.
    pub fn redact_target(&self, target: &str) -> String {
        let Some((path, query)) = target.split_once('?') else {
            return target.to_owned();
        };
        let mut schemas = Vec::new();
        if let Some(root) = self.schema.as_deref() {
            self.walk(root).alternatives(root, &mut schemas, 0);
        }
        let is_known = |name: &str| schemas.iter().any(|schema| schema["properties"].get(name).is_some());
        let shown = query.split('&').map(|parameter| match parameter.split_once('=') {
            Some((name, _)) if is_secret(name) || !is_known(name) => format!("{name}={HIDDEN}"),
            _ => parameter.to_owned(),
        });
        format!("{path}?{}", shown.collect::<Vec<_>>().join("&"))
    }

    fn walk<'s>(&self, root: &'s Value) -> SchemaWalk<'s> {
        SchemaWalk {
            root,
            options: self.options,
        }
    }
}

struct SchemaWalk<'s> {
    root: &'s Value,
    options: OptionSchemas,
}

impl<'s> SchemaWalk<'s> {
    fn redact(&self, value: &mut Value, schemas: &[&'s Value], depth: usize) {
        let mut all = Vec::new();
        schemas.iter().for_each(|schema| self.alternatives(schema, &mut all, 0));
        if depth > DEPTH_MAX || all.iter().any(|schema| schema["writeOnly"] == true) {
            hide(value);
            return;
        }
        match value {
            Value::String(text) if all.iter().any(|schema| is_of_text(schema)) => clean(text),
            Value::String(_) => hide(value),
            Value::Array(items) => {
                let of_items: Vec<&Value> = all.iter().filter_map(|schema| schema.get("items")).collect();
                items
                    .iter_mut()
                    .for_each(|item| self.redact(item, &of_items, depth + 1));
            }
            Value::Object(fields) => {
                let kind = fields.get("type").and_then(Value::as_str).map(str::to_owned);
                for (name, value) in fields.iter_mut() {
                    self.redact_field((name, value), &all, kind.as_deref(), depth);
                }
            }
            _ => {}
        }
    }

    fn redact_field(
        &self,
        (name, value): (&String, &mut Value),
        object: &[&'s Value],
        kind: Option<&str>,
        depth: usize,
    ) {
        if is_secret(name) {
            return hide(value);
        }
        let known: Vec<&Value> = object
            .iter()
            .filter_map(|schema| schema["properties"].get(name))
            .collect();
        let is_open = |schema: &&Value| **schema == Value::Bool(true) || schema.as_object().is_some_and(is_untyped);
        if !known.is_empty() && known.iter().all(is_open) {
            return self.redact_options(name, value, kind);
        }
        if !known.is_empty() {
            return self.redact(value, &known, depth + 1);
        }
        let others: Vec<&Value> = object
            .iter()
            .filter_map(|schema| schema.get("additionalProperties"))
            .filter(|schema| **schema != Value::Bool(false))
            .collect();
        match others.is_empty() {
            true => hide(value),
            // The names of such a map are data, for example names of options.
            false if others.iter().all(is_open) => redact(value),
            false => self.redact(value, &others, depth + 1),
        }
    }

    /// Adds the schema and its alternatives, without references.
    fn alternatives(&self, schema: &'s Value, all: &mut Vec<&'s Value>, depth: usize) {
        if depth > DEPTH_MAX {
            return;
        }
        if let Some(reference) = schema["$ref"].as_str()
            && let Some(target) = self.root.pointer(reference.trim_start_matches('#'))
        {
            self.alternatives(target, all, depth + 1);
        }
        for name in ["anyOf", "oneOf", "allOf"] {
            let listed = schema[name].as_array().into_iter().flatten();
            listed.for_each(|one| self.alternatives(one, all, depth + 1));
        }
        all.push(schema);
    }

    /// Redacts a field that the schema of the operation does not describe.
    fn redact_options(&self, name: &str, value: &mut Value, kind: Option<&str>) {
        let schemas = kind.map(|kind| (self.options)(name, kind));
        let mut best: Option<Value> = None;
        for root in schemas.into_iter().flatten().map(Schema::to_value) {
            let walk = SchemaWalk { root: &root, ..*self };
            let mut shown = value.clone();
            walk.redact(&mut shown, &[&root], 0);
            // An action and a source of one type have different options.
            if best
                .as_ref()
                .is_none_or(|best| hidden_values(&shown) < hidden_values(best))
            {
                best = Some(shown);
            }
        }
        match best {
            Some(shown) => *value = shown,
            None => hide_texts(value),
        }
    }
}

fn hidden_values(value: &Value) -> usize {
    match value {
        Value::String(text) => usize::from(text == HIDDEN),
        Value::Array(items) => items.iter().map(hidden_values).sum(),
        Value::Object(fields) => fields.values().map(hidden_values).sum(),
        _ => 0,
    }
}

fn is_untyped(schema: &serde_json::Map<String, Value>) -> bool {
    let says_something = |name: &String| !matches!(name.as_str(), "description" | "title" | "default" | "examples");
    !schema.keys().any(says_something)
}

fn is_of_text(schema: &Value) -> bool {
    let is_text = |kind: &Value| kind == "string";
    is_text(&schema["type"])
        || schema["type"].as_array().is_some_and(|kinds| kinds.iter().any(is_text))
        || schema.get("enum").is_some()
        || schema["const"].is_string()
}

/// Whether the name of a field says that its value is a secret.
fn is_secret(name: &str) -> bool {
    let name = name.to_lowercase();
    SECRETS.iter().any(|secret| name.contains(secret))
}

fn hide(value: &mut Value) {
    if !value.is_null() {
        *value = HIDDEN.into();
    }
}

fn hide_texts(value: &mut Value) {
    match value {
        Value::String(_) => hide(value),
        Value::Array(items) => items.iter_mut().for_each(hide_texts),
        Value::Object(fields) => fields.values_mut().for_each(hide_texts),
        _ => {}
    }
}

/// Hides secrets by the names of their fields, for entities that the server has read and written itself.
pub fn redact(value: &mut Value) {
    match value {
        Value::String(text) => clean(text),
        Value::Array(items) => items.iter_mut().for_each(redact),
        Value::Object(fields) => {
            for (name, value) in fields {
                match is_secret(name) {
                    true => hide(value),
                    false => redact(value),
                }
            }
        }
        _ => {}
    }
}

/// Removes user information and query from a URL, the query from the path of a URL, and shortens a long text.
fn clean(text: &mut String) {
    if text.starts_with(['/', '?'])
        && let Some((path, _)) = text.split_once('?')
    {
        *text = format!("{path}?{HIDDEN}");
    }
    if let Some((scheme, rest)) = text.split_once("://") {
        let end_from = |from: usize| rest[from..].find(['/', '?', '#']).map_or(rest.len(), |at| from + at);
        let end = match rest[..end_from(0)].split_once(':') {
            // A password may contain these characters, although they should be encoded.
            Some((user, _)) if !user.contains('@') => end_from(rest.rfind('@').unwrap_or(0)),
            _ => end_from(0),
        };
        let (authority, rest) = rest.split_at(end);
        let host = authority
            .rsplit_once('@')
            .map_or(authority.to_owned(), |(_, host)| format!("{HIDDEN}@{host}"));
        let rest = match rest.split_once('?') {
            Some((path, _)) => format!("{path}?{HIDDEN}"),
            None => rest.to_owned(),
        };
        *text = format!("{scheme}://{host}{rest}");
    }
    if let Some((end, _)) = text.char_indices().nth(TEXT_CHARACTERS_MAX) {
        text.truncate(end);
        text.push('…');
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use schemars::JsonSchema;
    use serde_json::json;
    use std::collections::BTreeMap;

    #[allow(dead_code, reason = "only the schema is used")]
    #[derive(JsonSchema)]
    struct Body {
        name: String,
        password: String,
        #[serde(rename = "type")]
        kind: Option<String>,
        config: Option<Value>,
        list: Vec<Item>,
        options: BTreeMap<String, Value>,
    }

    #[allow(dead_code, reason = "only the schema is used")]
    #[derive(JsonSchema)]
    struct Item {
        topic: String,
    }

    #[allow(dead_code, reason = "only the schema is used")]
    #[derive(JsonSchema)]
    struct HttpOptions {
        url: String,
        headers: BTreeMap<String, String>,
    }

    fn fields() -> KnownFields {
        KnownFields::of(
            Some(|generator| generator.subschema_for::<Body>()),
            |field, kind| match (field, kind) {
                ("config", "http") => vec![SchemaGenerator::default().into_root_schema_for::<HttpOptions>()],
                _ => Vec::new(),
            },
        )
    }

    fn redacted(mut body: Value) -> Value {
        fields().redact(&mut body);
        body
    }

    #[test]
    fn values_of_unknown_fields_and_secrets_are_hidden() {
        let body = json!({"name": "ada", "password": "sesame", "passwrd": "sesame", "current_passwort": {"a": "sesame"},
            "list": [{"topic": "a/b", "x": "sesame"}, "sesame"], "options": {"log.level": "debug", "a.secret": "sesame"}});
        let shown = redacted(body);
        assert!(!shown.to_string().contains("sesame"), "{shown}");
        assert_eq!((&shown["name"], &shown["passwrd"]), (&json!("ada"), &json!("***")));
        assert_eq!(
            (&shown["list"][0]["topic"], &shown["options"]["log.level"]),
            (&json!("a/b"), &json!("debug"))
        );
        let mut body = json!({"anything": "sesame", "n": 1});
        KnownFields::default().redact(&mut body);
        assert_eq!(body, json!({"anything": "***", "n": "***"}));
    }

    #[test]
    fn options_follow_the_schema_of_their_type() {
        let config =
            json!({"url": "https://u:sesame@host/x?token=sesame", "headers": {"a": "sesame"}, "pasword": "sesame"});
        let shown = redacted(json!({"type": "http", "config": config}));
        assert!(!shown.to_string().contains("sesame"), "{shown}");
        assert_eq!(shown["config"]["url"], "https://***@host/x?***");
        let shown = redacted(json!({"type": "unknown", "config": {"x": "sesame", "n": 1}}));
        assert_eq!(shown["config"], json!({"x": "***", "n": 1}));
    }

    #[test]
    fn answer_keeps_the_fields_of_its_request() {
        let mut answer = json!({"name": "ada", "list": [], "metrics": {"n": 0}});
        fields().retain(&mut answer);
        assert_eq!(answer, json!({"name": "ada", "list": []}));
        KnownFields::default().retain(&mut answer);
        assert_eq!(answer, json!({"name": "ada", "list": []}));
    }

    #[test]
    fn unknown_and_secret_query_parameters_are_hidden() {
        let target = fields().redact_target("/api/x?name=ada&token=sesame&password=sesame&flag");
        assert_eq!(target, "/api/x?name=ada&token=***&password=***&flag");
        assert_eq!(fields().redact_target("/api/x"), "/api/x");
    }

    #[test]
    fn urls_lose_user_and_query_and_long_texts_are_shortened() {
        for (text, expected) in [
            ("redis://u:p@host/0", "redis://***@host/0"),
            ("https://host:1/p?a=b#c", "https://host:1/p?***"),
            ("https://host?a@b", "https://host?***"),
            ("redis://u:p/w@host/0", "redis://***@host/0"),
            ("redis://u:p?w#x@host", "redis://***@host"),
            ("/a/b?token=x", "/a/b?***"),
            ("?token=x", "?***"),
            ("/a/b", "/a/b"),
            ("plain", "plain"),
        ] {
            let mut text = text.to_owned();
            clean(&mut text);
            assert_eq!(text, expected);
        }
        let mut long = "S".repeat(1000);
        clean(&mut long);
        assert_eq!(long.chars().count(), TEXT_CHARACTERS_MAX + 1);
    }
}
