//! Types of other crates as option values: rules, hashed passwords and secrets.

use auth::{AccessRule, Acl, AclOptions, PasswordHash};

use super::value::{OptionValue, Reject};
use connectors::{REDACTED, Secret};

/// The rules of `access.rules`, each of them checked.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CheckedRules(pub Vec<AccessRule>);

impl OptionValue for CheckedRules {
    fn type_name() -> String {
        "list of tables".into()
    }

    fn expected() -> String {
        "a list of rules, each a table such as { permission = \"allow\", topics = [\"a/#\"] }".into()
    }

    fn from_text(text: &str) -> Result<CheckedRules, Reject> {
        if text.is_empty() {
            return Ok(CheckedRules::default());
        }
        let value = text
            .parse::<toml::Value>()
            .map_err(|error| Reject::WithReason(error.message().to_string()))?;
        CheckedRules::from_toml(&value)
    }

    fn from_toml(value: &toml::Value) -> Result<CheckedRules, Reject> {
        let items = value.as_array().ok_or(Reject::Mismatch)?;
        let mut rules = Vec::new();
        let mut complaints = Vec::new();
        for (index, item) in items.iter().enumerate() {
            match item.clone().try_into::<AccessRule>() {
                Ok(rule) => rules.push(rule),
                Err(error) => complaints.push(format!("rule {}: {}", index + 1, input_errors::plain(error.message()))),
            }
        }
        if complaints.is_empty()
            && let Err(errors) = Acl::compile(&rules, AclOptions::default())
        {
            complaints.push(errors.to_string().replace('\n', "; "));
        }
        if complaints.is_empty() {
            Ok(CheckedRules(rules))
        } else {
            Err(Reject::WithReason(complaints.join("; ")))
        }
    }

    fn to_toml(&self) -> toml::Value {
        let rules = self
            .0
            .iter()
            .map(|rule| toml::Value::try_from(rule).expect("a rule is plain data"));
        toml::Value::Array(rules.collect())
    }
}

impl OptionValue for PasswordHash {
    const IS_SECRET: bool = true;

    fn type_name() -> String {
        "hashed password".into()
    }

    fn expected() -> String {
        "a hashed password, as `tidewire passwd` prints it".into()
    }

    fn example() -> Option<toml::Value> {
        Some("$argon2id$...".into())
    }

    fn from_text(text: &str) -> Result<PasswordHash, Reject> {
        PasswordHash::parse(text).map_err(|error| Reject::WithReason(error.to_string()))
    }

    fn to_toml(&self) -> toml::Value {
        toml::Value::String(REDACTED.into())
    }
}

impl OptionValue for Secret {
    const IS_SECRET: bool = true;

    fn type_name() -> String {
        "secret string".into()
    }

    fn expected() -> String {
        "a string".into()
    }

    fn from_text(text: &str) -> Result<Secret, Reject> {
        Ok(Secret::new(text))
    }

    fn to_toml(&self) -> toml::Value {
        toml::Value::String(REDACTED.into())
    }
}
