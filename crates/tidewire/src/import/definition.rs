//! Parts of definitions that several brokers have in common.

use serde_json::Value as Json;

/// A topic filter in FROM.
pub fn quoted(topic: &str) -> Result<String, String> {
    match topic.contains(['"', '\\']) {
        true => Err("its topic contains a quotation mark or a backslash".to_owned()),
        false => Ok(format!("\"{topic}\"")),
    }
}

/// A text in SQL.
pub fn sql_text(text: &str) -> String {
    format!("'{}'", text.replace('\\', "\\\\").replace('\'', "\\'"))
}

/// Removes fields without a value, and objects without fields.
pub fn without_nulls(json: Json) -> Json {
    match json {
        Json::Object(fields) => {
            let fields = fields.into_iter().map(|(key, value)| (key, without_nulls(value)));
            let is_empty = |value: &Json| value.is_null() || value.as_object().is_some_and(serde_json::Map::is_empty);
            Json::Object(fields.filter(|(_, value)| !is_empty(value)).collect())
        }
        json => json,
    }
}
