//! A value of a configuration that must never come back out: not in a log, an error, a form or an answer of the API.
//!
//! It is read from text and written as `***`. A configuration that was shown and is sent back has that: whoever stores configurations puts the
//! old value in its place.

use std::borrow::Cow;
use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize, Serializer};

pub const REDACTED: &str = "***";

/// Prints as `***`, whatever the format. `expose` is the one way to the text, so that every use can be found.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    pub fn new(text: impl Into<String>) -> Secret {
        Secret(text.into())
    }

    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(REDACTED)
    }
}

impl fmt::Display for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(REDACTED)
    }
}

impl Serialize for Secret {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(REDACTED)
    }
}

impl JsonSchema for Secret {
    fn schema_name() -> Cow<'static, str> {
        "Secret".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "format": "password", "writeOnly": true })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn never_prints_itself() {
        let secret = Secret::new("hunter2");
        let json = serde_json::to_string(&secret).expect("a string");
        let all = format!("{secret} {secret:?} {:?} {:#?} {json}", Some(&secret), vec![&secret]);
        assert!(!all.contains("hunter2"), "{all}");
        assert_eq!(secret.expose(), "hunter2");
    }
}
