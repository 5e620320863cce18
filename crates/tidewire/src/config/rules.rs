//! Types of the `auth` crate as option values: rules and hashed passwords.

use auth::{Acl, AclOptions, PasswordHash, Rule};

use super::value::{OptionValue, Reject};
use crate::secret::REDACTED;

/// The rules of `access.rules`, each of them checked.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rules(pub Vec<Rule>);

impl OptionValue for Rules {
    fn type_name() -> String {
        "list of tables".into()
    }

    fn expected() -> String {
        "a list of rules, each a table such as { permission = \"allow\", topics = [\"a/#\"] }".into()
    }

    fn from_text(text: &str) -> Result<Rules, Reject> {
        if text.is_empty() {
            return Ok(Rules::default());
        }
        let value = text
            .parse::<toml::Value>()
            .map_err(|error| Reject::Because(error.message().to_string()))?;
        Rules::from_toml(&value)
    }

    fn from_toml(value: &toml::Value) -> Result<Rules, Reject> {
        let items = value.as_array().ok_or(Reject::Mismatch)?;
        let mut rules = Vec::new();
        let mut complaints = Vec::new();
        for (index, item) in items.iter().enumerate() {
            match item.clone().try_into::<Rule>() {
                Ok(rule) => rules.push(rule),
                Err(error) => complaints.push(format!("rule {}: {}", index + 1, error.message())),
            }
        }
        if complaints.is_empty()
            && let Err(errors) = Acl::compile(&rules, AclOptions::default())
        {
            complaints.push(errors.to_string().replace('\n', "; "));
        }
        if complaints.is_empty() {
            Ok(Rules(rules))
        } else {
            Err(Reject::Because(complaints.join("; ")))
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

    fn from_text(text: &str) -> Result<PasswordHash, Reject> {
        PasswordHash::parse(text).map_err(|error| Reject::Because(error.to_string()))
    }

    fn to_toml(&self) -> toml::Value {
        toml::Value::String(REDACTED.into())
    }
}
