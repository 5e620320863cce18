//! Checks the claims of a token whose signature is valid, and makes a login of them.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use auth::{ClientAttributes, ClientRules, Credentials, Login, Template};
use serde_json::{Map, Value};

/// Name of the provider in logins.
pub const PROVIDER: &str = "jwt";
/// Later times are treated as this one: the end of the year 9999.
const TIME_MAX_S: f64 = 253_402_300_799.0;
/// Maximum length of a user name [MQTT-1.5.4].
const USER_NAME_BYTES_MAX: usize = 65_535;

/// How claims are checked.
#[derive(Clone, Debug)]
pub struct ClaimRules {
    /// Reject tokens without `exp`.
    pub expiry_required: bool,
    /// Tolerance for clocks that differ, for `exp`, `nbf` and `iat`.
    pub leeway: Duration,
    pub disconnect_after_expiry: bool,
    /// Names of claims, and the values that they must have.
    pub verify: Vec<(String, Template)>,
    /// Claim with the user name of the session. `None`: the user name of CONNECT.
    pub user_name: Option<String>,
    /// Claim with access rules.
    pub acl: String,
    /// Claim with the groups of the client, or the path to it: `realm_access.roles`. `None`: groups are not used.
    pub groups: Option<String>,
}

/// The claims of a token that are used, checked as far as they do not depend on the client and the time.
#[derive(Debug)]
pub struct Claims {
    /// Seconds since 1970.
    expires: Option<f64>,
    not_before: Option<f64>,
    issued: Option<f64>,
    /// The claims of [`ClaimRules::verify`], in its order.
    verified: Vec<Value>,
    user_name: Option<Box<str>>,
    is_superuser: bool,
    attributes: ClientAttributes,
    rules: Option<Arc<ClientRules>>,
}

/// Why the claims are rejected. Contains no values of the token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClaimError {
    Expired,
    NoExpiry,
    NotYetValid,
    /// The claim is missing or has another value or type.
    Mismatch(String),
    /// The access rules are not valid.
    Rules(String),
    Attributes(String),
    /// The claim with this name has no groups.
    Groups(String, String),
}

impl fmt::Display for ClaimError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ClaimError::Expired => f.write_str("the token has expired"),
            ClaimError::NoExpiry => f.write_str("the token has no exp (access.jwt.require_expiry)"),
            ClaimError::NotYetValid => f.write_str("the token is not valid yet (nbf or iat)"),
            ClaimError::Mismatch(name) => write!(f, "the claim {name} is missing or has another value"),
            ClaimError::Rules(reason) => write!(f, "the access rules of the token are not valid: {reason}"),
            ClaimError::Groups(name, reason) => write!(f, "the claim {name} of the token is not valid: {reason}"),
            ClaimError::Attributes(reason) => write!(f, "client_attrs of the token is not valid: {reason}"),
        }
    }
}

impl Claims {
    pub fn read(rules: &ClaimRules, claims: &Map<String, Value>) -> Result<Claims, ClaimError> {
        let verified = rules.verify.iter().map(|(name, _)| match claims.get(name) {
            Some(value) => Ok(value.clone()),
            None => Err(ClaimError::Mismatch(name.clone())),
        });
        let expires = time(claims, "exp")?;
        if expires.is_none() && rules.expiry_required {
            return Err(ClaimError::NoExpiry);
        }
        Ok(Claims {
            expires,
            not_before: time(claims, "nbf")?,
            issued: time(claims, "iat")?,
            verified: verified.collect::<Result<_, _>>()?,
            user_name: rules
                .user_name
                .as_deref()
                .map(|name| user_name(claims, name))
                .transpose()?,
            is_superuser: claims.get("is_superuser").is_some_and(is_true),
            attributes: with_groups(attributes(claims.get("client_attrs"))?, claims, rules.groups.as_deref())?,
            rules: claims.get(&rules.acl).map(access_rules).transpose()?,
        })
    }

    /// Checks the times and the claims that depend on the client.
    pub fn login(
        &self,
        rules: &ClaimRules,
        credentials: &Credentials,
        now: SystemTime,
    ) -> Result<Box<Login>, ClaimError> {
        let now = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        let leeway = rules.leeway.as_secs_f64();
        // As in EMQX, a token is not valid any more at the time of `exp`, and valid at that of `nbf`.
        if self.expires.is_some_and(|expires| now >= expires + leeway) {
            return Err(ClaimError::Expired);
        }
        let is_early = |from: Option<f64>| from.is_some_and(|from| now + leeway < from);
        if is_early(self.not_before) || is_early(self.issued) {
            return Err(ClaimError::NotYetValid);
        }
        let client = match &self.user_name {
            Some(name) if !rules.verify.is_empty() => Cow::Owned(Credentials {
                user_name: Some(name.to_string()),
                ..credentials.clone()
            }),
            _ => Cow::Borrowed(credentials),
        };
        for ((name, template), value) in rules.verify.iter().zip(&self.verified) {
            let expected = template.render(&client);
            if !expected.is_ok_and(|expected| is_value(name, value, &expected)) {
                return Err(ClaimError::Mismatch(name.clone()));
            }
        }
        let expires_at = self.expires.filter(|_| rules.disconnect_after_expiry);
        Ok(Box::new(Login {
            is_superuser: self.is_superuser,
            provider: Some(PROVIDER),
            user_name: self.user_name.clone(),
            attributes: self.attributes.clone(),
            rules: self.rules.clone(),
            expires_at: expires_at.map(|at| UNIX_EPOCH + Duration::from_secs_f64(at + leeway)),
            is_unchecked: false,
        }))
    }
}

/// Texts are compared exactly. An audience can be a list that contains the value (RFC 7519, 4.1.3).
fn is_value(name: &str, found: &Value, expected: &str) -> bool {
    let is_equal = |value: &Value| !expected.is_empty() && value.as_str() == Some(expected);
    match found {
        Value::Array(values) if name == "aud" => values.iter().any(is_equal),
        value => is_equal(value),
    }
}

/// Reads a time in seconds since 1970: a number, or text with a number as EMQX allows.
pub(super) fn time(claims: &Map<String, Value>, name: &str) -> Result<Option<f64>, ClaimError> {
    let seconds = match claims.get(name) {
        None => return Ok(None),
        Some(Value::Number(number)) => number.as_f64(),
        Some(Value::String(text)) => text.parse().ok(),
        Some(_) => None,
    };
    match seconds.filter(|seconds: &f64| seconds.is_finite()) {
        Some(seconds) => Ok(Some(seconds.clamp(0.0, TIME_MAX_S))),
        None => Err(ClaimError::Mismatch(name.to_owned())),
    }
}

fn user_name(claims: &Map<String, Value>, name: &str) -> Result<Box<str>, ClaimError> {
    let user_name = claims.get(name).and_then(Value::as_str);
    let is_valid = |name: &&str| !name.is_empty() && name.len() <= USER_NAME_BYTES_MAX && !name.contains('\0');
    user_name
        .filter(is_valid)
        .map(Box::from)
        .ok_or_else(|| ClaimError::Mismatch(name.to_owned()))
}

/// As in EMQX: `true`, and numbers from 1 on, also as text.
fn is_true(value: &Value) -> bool {
    match value {
        Value::Bool(value) => *value,
        Value::Number(number) => number.as_u64().is_some_and(|number| number >= 1),
        Value::String(text) => text == "true" || text.parse().is_ok_and(|number: u64| number >= 1),
        _ => false,
    }
}

fn attributes(claim: Option<&Value>) -> Result<ClientAttributes, ClaimError> {
    let invalid = |reason: String| ClaimError::Attributes(reason);
    let attributes = match claim {
        None | Some(Value::Null) => return Ok(ClientAttributes::default()),
        Some(Value::Object(attributes)) => attributes,
        Some(_) => return Err(invalid("expected an object".to_owned())),
    };
    let texts = attributes.iter().map(|(name, value)| match value.as_str() {
        Some(value) => Ok((name.as_str().into(), value.into())),
        None => Err(invalid("expected only texts".to_owned())),
    });
    let texts: BTreeMap<Box<str>, Box<str>> = texts.collect::<Result<_, _>>()?;
    ClientAttributes::new(texts).map_err(|error| invalid(error.to_string()))
}

/// Adds the groups of the claim `name`: an array of texts, or one text. A token without the claim has no groups.
fn with_groups(
    attributes: ClientAttributes,
    claims: &Map<String, Value>,
    name: Option<&str>,
) -> Result<ClientAttributes, ClaimError> {
    let Some(name) = name else {
        return Ok(attributes);
    };
    let invalid = |reason: String| ClaimError::Groups(name.to_owned(), reason);
    // Microsoft Entra ID leaves out the groups of a user with more than 200, and names the place where to ask for them.
    if claims
        .get("_claim_names")
        .is_some_and(|names| names.get(name).is_some())
    {
        return Err(invalid(
            "the token refers to the groups instead of containing them".to_owned(),
        ));
    }
    let Some(claim) = claim_at(claims, name) else {
        return Ok(attributes);
    };
    let text = |value: &Value| value.as_str().map(Box::from);
    let groups: Option<Vec<Box<str>>> = match claim {
        Value::Null => Some(Vec::new()),
        Value::Array(values) => values.iter().map(text).collect(),
        value => text(value).map(|group| vec![group]),
    };
    // Without some of its groups, a rule that denies could not apply.
    let groups = groups.ok_or_else(|| invalid("expected an array of texts".to_owned()))?;
    attributes
        .with_groups(groups)
        .map_err(|error| invalid(error.to_string()))
}

/// Returns the claim with this name, or the one at this path: names that are joined by dots.
fn claim_at<'a>(claims: &'a Map<String, Value>, name: &str) -> Option<&'a Value> {
    if let Some(claim) = claims.get(name) {
        return Some(claim);
    }
    let (first, rest) = name.split_once('.')?;
    claim_at(claims.get(first)?.as_object()?, rest)
}

fn access_rules(claim: &Value) -> Result<Arc<ClientRules>, ClaimError> {
    let rules = auth::emqx_acl(claim).map_err(ClaimError::Rules)?;
    let rules = ClientRules::compile(&rules).map_err(|errors| ClaimError::Rules(errors.to_string()))?;
    Ok(Arc::new(rules))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn groups(name: &str, claims: &Value) -> Result<Vec<String>, ClaimError> {
        let claims = claims.as_object().expect("an object");
        let found = with_groups(ClientAttributes::default(), claims, Some(name))?;
        Ok(found.groups().iter().map(|group| group.to_string()).collect())
    }

    #[test]
    fn groups_are_read_from_a_claim() {
        for (name, claims, expected) in [
            ("groups", json!({"groups": ["b", "/a"]}), &["/a", "b"][..]),
            ("groups", json!({"groups": "a"}), &["a"]),
            ("groups", json!({"groups": []}), &[]),
            ("groups", json!({"groups": null}), &[]),
            ("groups", json!({"roles": ["a"]}), &[]),
            ("realm_access.roles", json!({"realm_access": {"roles": ["a"]}}), &["a"]),
            ("realm_access.roles", json!({"realm_access": ["a"]}), &[]),
            (
                "https://example.org/groups",
                json!({"https://example.org/groups": ["a"]}),
                &["a"],
            ),
        ] {
            let expected: Vec<String> = expected.iter().map(|group| (*group).to_owned()).collect();
            assert_eq!(groups(name, &claims), Ok(expected), "{claims}");
        }
        for claims in [
            json!({"_claim_names": {"groups": "src1"}, "_claim_sources": {"src1": {"endpoint": "https://graph"}}}),
            json!({"groups": {"a": true}}),
            json!({"groups": ["a", 1]}),
            json!({"groups": 7}),
            json!({"groups": vec!["a"; 1001]}),
        ] {
            let error = groups("groups", &claims).expect_err("invalid").to_string();
            assert!(error.contains("claim groups"), "{error}");
        }
    }
}
