//! Access rules of a client that a database contains, with the fields of EMQX's tables and hashes.
//!
//! A rule that is not understood makes the whole list invalid: without this rule, the client could have more rights.

use std::sync::Arc;

use auth::{ClientRules, Login, ProviderOutcome, emqx_acl};
use serde_json::Value;

use crate::source::SourceError;

/// Maximum number of rules of a client.
pub(crate) const RULES_MAX: usize = 1000;

/// Columns and fields of EMQX with conditions that are not supported. Without its condition, a rule would allow more.
#[cfg(any(feature = "mongodb", feature = "mysql", feature = "postgresql", feature = "sqlite"))]
pub(crate) const CONDITIONS: [&str; 6] = [
    "clientid_re",
    "username_re",
    "zone",
    "zone_re",
    "listener",
    "listener_re",
];

/// Returns the rules of a client. Without rules, the next source decides. `source` begins the error.
pub(crate) fn outcome(source: &str, rules: Vec<Value>) -> Result<ProviderOutcome, SourceError> {
    if rules.is_empty() {
        return Ok(ProviderOutcome::Ignore);
    }
    if rules.len() > RULES_MAX {
        return Err(SourceError::Invalid(format!(
            "{source}: a client has more than {RULES_MAX} rules"
        )));
    }
    let rules = emqx_acl(&Value::Array(rules));
    let compiled = rules.and_then(|rules| {
        let compiled = ClientRules::compile(&rules);
        compiled.map_err(|errors| errors.to_string().replace('\n', "; "))
    });
    match compiled {
        Ok(rules) => Ok(ProviderOutcome::Allow(Box::new(Login {
            rules: Some(Arc::new(rules)),
            ..Login::default()
        }))),
        Err(error) => Err(SourceError::Invalid(format!("{source}: {error}"))),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_list_is_valid_as_a_whole() {
        let rule = json!({ "permission": "allow", "action": "publish", "topic": "a/${clientid}" });
        let login = match outcome("x", vec![rule.clone(), rule.clone()]) {
            Ok(ProviderOutcome::Allow(login)) => login,
            other => panic!("{other:?}"),
        };
        assert!(login.rules.is_some() && !login.is_superuser);
        assert!(matches!(outcome("x", Vec::new()), Ok(ProviderOutcome::Ignore)));
        for (field, value) in [
            ("permission", json!("maybe")),
            ("action", json!("connect")),
            ("topic", json!("a/#/b")),
            ("qos", json!("3")),
        ] {
            let mut wrong = rule.clone();
            wrong[field] = value;
            let error = outcome("the table", vec![rule.clone(), wrong]).expect_err(field);
            let SourceError::Invalid(text) = error else {
                panic!("{error:?}");
            };
            assert!(text.starts_with("the table: rule 2: "), "{text}");
        }
        assert!(outcome("x", vec![rule; RULES_MAX + 1]).is_err());
    }
}
