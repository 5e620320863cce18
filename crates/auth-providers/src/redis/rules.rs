//! Access rules of clients in hashes of Redis or Valkey, as in EMQX: a field is a topic filter, and its value the
//! allowed action: `publish`, `subscribe` or `all`, or a JSON object with `action`, `qos` and `retain`.
//!
//! All rules allow, because the fields of a hash have no order.

use std::sync::Arc;

use auth::{Credentials, ProviderOutcome, TemplateUse};
use connectors::redis::{RedisConnectorConfig, RedisLookup, RedisLookupError};
use serde_json::{Map, Value};

use super::{NAME, words};
use crate::ACCESS_SOURCE;
use crate::provider::{SourceLimits, SourceProvider};
use crate::rows::Parameters;
use crate::source::{LoginSource, QuestionKey, SourceError, SourceFuture};
use crate::source_rules::outcome;

/// Fields of a JSON value.
const FIELDS: [&str; 3] = ["action", "qos", "retain"];

/// Configuration of the source.
pub struct RedisRulesConfig {
    pub connection: RedisConnectorConfig,
    /// `HGETALL key`, with placeholders in the key.
    pub command: String,
}

/// A server with hashes of access rules.
pub struct RedisRules {
    lookup: RedisLookup,
    /// The key.
    parameters: Parameters,
}

/// Creates the source. Does not connect. The error names the field.
pub fn rules(config: &RedisRulesConfig, limits: SourceLimits) -> Result<Arc<SourceProvider<RedisRules>>, String> {
    let key = key(&config.command)?;
    let lookup = RedisLookup::new(&config.connection).map_err(|problems| problems.join("; "))?;
    let source = RedisRules {
        lookup,
        parameters: Parameters::parse(TemplateUse::Rules, "cmd", &[key])?,
    };
    Ok(SourceProvider::new(source, limits))
}

/// Returns the key of the command.
fn key(command: &str) -> Result<String, String> {
    let words = words(command)?;
    match words.as_slice() {
        [name, key] if name.eq_ignore_ascii_case("HGETALL") && key.contains("${") => Ok(key.clone()),
        [name, _] if name.eq_ignore_ascii_case("HGETALL") => {
            Err("cmd: the key needs a placeholder such as ${username}".to_owned())
        }
        _ => Err(format!(
            "cmd: found {command:?}, expected HGETALL and a key, for example HGETALL mqtt_acl:${{username}}"
        )),
    }
}

impl RedisRules {
    async fn rules(&self, client: &Credentials) -> Result<ProviderOutcome, SourceError> {
        let Some(values) = self.parameters.values(client) else {
            return Ok(ProviderOutcome::Ignore);
        };
        let fields = match self.lookup.all_fields(&values[0]).await {
            Ok(fields) => fields,
            Err(RedisLookupError::NoHash) => {
                return Err(SourceError::Invalid(
                    "the key belongs to a value that is not a hash".to_owned(),
                ));
            }
            Err(RedisLookupError::Failed(reason)) => return Err(SourceError::Failed(reason)),
        };
        let rules: Result<Vec<Value>, String> = fields.into_iter().map(rule).collect();
        let rules = rules.map_err(|error| SourceError::Invalid(format!("a field of the hash: {error}")))?;
        outcome("the fields of the hash", rules)
    }
}

impl LoginSource for RedisRules {
    fn name(&self) -> &'static str {
        NAME
    }

    fn role(&self) -> &'static str {
        ACCESS_SOURCE
    }

    /// A client without a value for a placeholder has no hash.
    fn question(&self, client: &Credentials) -> Option<QuestionKey> {
        self.parameters.question(NAME, client)
    }

    fn ask<'a>(&'a self, client: &'a Credentials) -> SourceFuture<'a> {
        Box::pin(async { Ok(self.rules(client).await?.into()) })
    }
}

/// Returns a rule in the JSON form of EMQX.
fn rule((topic, value): (Vec<u8>, Vec<u8>)) -> Result<Value, String> {
    let topic = String::from_utf8(topic).map_err(|_| "the topic is not text")?;
    let value = str::from_utf8(&value).map_err(|_| "the action is not text")?.trim();
    let mut fields = match value.starts_with('{') {
        false => Map::from_iter([("action".to_owned(), Value::String(value.to_owned()))]),
        true => match serde_json::from_str(value) {
            Ok(Value::Object(fields)) => fields,
            _ => return Err("the value is neither an action nor a JSON object".to_owned()),
        },
    };
    if let Some(unknown) = fields.keys().find(|name| !FIELDS.contains(&name.as_str())) {
        return Err(format!("unknown field {unknown:?}, expected action, qos or retain"));
    }
    fields.insert("permission".to_owned(), Value::String("allow".to_owned()));
    fields.insert("topic".to_owned(), Value::String(topic));
    Ok(Value::Object(fields))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn parsed(topic: &str, value: &str) -> Result<Value, String> {
        rule((topic.as_bytes().to_vec(), value.as_bytes().to_vec()))
    }

    #[test]
    fn fields_are_rules_that_allow() {
        let expected = json!({ "permission": "allow", "action": "subscribe", "topic": "a/#" });
        assert_eq!(parsed("a/#", "subscribe"), Ok(expected));
        let value = r#"{ "action": "publish", "qos": [1], "retain": true }"#;
        let expected = json!({ "permission": "allow", "action": "publish", "qos": [1], "retain": true, "topic": "a" });
        assert_eq!(parsed("a", value), Ok(expected));
        for value in ["{", r#"{"permission":"deny"}"#, r#"{"topic":"b"}"#] {
            assert!(parsed("a", value).is_err(), "{value}");
        }
    }

    #[test]
    fn command_has_a_key_with_a_placeholder() {
        assert_eq!(
            key("hgetall mqtt_acl:${username}").as_deref(),
            Ok("mqtt_acl:${username}")
        );
        for command in [
            "",
            "HGETALL",
            "HGETALL k",
            "HGETALL ${username} f",
            "GET ${username}",
            "DEL ${username}",
        ] {
            assert!(key(command).is_err(), "{command}");
        }
    }
}
