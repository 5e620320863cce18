//! The answer of an HTTP service.
//!
//! | status | meaning |
//! |---|---|
//! | 200 | the body decides |
//! | 204 | allow |
//! | 401, 403, 404 | ignore, as in EMQX: the service does not accept the client |
//! | other | failure |
//!
//! With [`HttpAnswerMeaning::Status`], 200 is allow, 400 to 499 are ignore, because such a service has no other answer
//! for a wrong password, and others are failures.
//!
//! An answer that is not understood is a failure as a whole: without its rules, a client would have other rights.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use auth::{ClientAttributes, ClientRules, DenyReason, Login, ProviderOutcome, emqx_acl};
use connectors::http::HttpAnswer;
use serde_json::{Map, Value};

use super::HttpAnswerMeaning;

/// Returns the outcome. The error is for the operator and contains no part of the request.
pub(super) fn outcome(
    answer: &HttpAnswer,
    meaning: HttpAnswerMeaning,
    now: SystemTime,
) -> Result<ProviderOutcome, String> {
    let is_status = meaning == HttpAnswerMeaning::Status;
    let allow = || ProviderOutcome::Allow(Box::new(Login::new(false)));
    match answer.status {
        200 if !is_status => body(answer, now),
        200 => Ok(allow()),
        204 if !is_status => Ok(allow()),
        // The service is busy.
        408 | 425 | 429 => Ok(ProviderOutcome::Deny(DenyReason::Unavailable)),
        400..500 if is_status => Ok(ProviderOutcome::Ignore),
        401 | 403 | 404 => Ok(ProviderOutcome::Ignore),
        // The service refuses this request, for example because a value is too long. Clients must not be able to cause
        // a failure, because `on_failure` can admit them.
        400..500 => Ok(ProviderOutcome::Deny(DenyReason::Unavailable)),
        status => Err(format!("unexpected status {status} {}", answer.reason)),
    }
}

fn body(answer: &HttpAnswer, now: SystemTime) -> Result<ProviderOutcome, String> {
    let fields = fields(answer)?;
    match fields.get("result").and_then(Value::as_str) {
        Some("allow") => Ok(ProviderOutcome::Allow(Box::new(login(&fields, now)?))),
        Some("deny") => Ok(ProviderOutcome::Deny(DenyReason::NotAuthorized)),
        Some("ignore") => Ok(ProviderOutcome::Ignore),
        _ => Err(EXPECTED_RESULT.to_owned()),
    }
}

/// The error for an answer without a decision.
pub(super) const EXPECTED_RESULT: &str = "result: expected \"allow\", \"deny\" or \"ignore\"";

/// Returns the fields of an answer with a JSON object.
pub(super) fn fields(answer: &HttpAnswer) -> Result<Map<String, Value>, String> {
    let is_content_type = |(name, _): &&(String, String)| name.eq_ignore_ascii_case("content-type");
    let content_type = answer
        .headers
        .iter()
        .find(is_content_type)
        .map(|(_, value)| value.as_str());
    let media_type = content_type
        .and_then(|value| value.split(';').next())
        .unwrap_or_default();
    if !media_type.trim().eq_ignore_ascii_case("application/json") {
        return Err(format!("the content type is {media_type:?}, expected application/json"));
    }
    let body: Value =
        serde_json::from_slice(&answer.body).map_err(|error| format!("the answer is not JSON: {error}"))?;
    match body {
        Value::Object(fields) => Ok(fields),
        _ => Err("the answer is not a JSON object".to_owned()),
    }
}

fn login(fields: &Map<String, Value>, now: SystemTime) -> Result<Login, String> {
    if fields.contains_key("clientid_override") {
        return Err("clientid_override: is not supported".to_owned());
    }
    let rules = fields.get("acl").map(rules).transpose();
    let attributes = fields.get("client_attrs").map(attributes).transpose();
    let expires_at = fields.get("expire_at").map(|value| expires_at(value, now)).transpose();
    Ok(Login {
        is_superuser: is_superuser(fields.get("is_superuser"))?,
        attributes: attributes
            .map_err(|error| format!("client_attrs: {error}"))?
            .unwrap_or_default()
            .with_groups(groups(fields.get("groups")).map_err(|error| format!("groups: {error}"))?)
            .map_err(|error| format!("groups: {error}"))?,
        rules: rules.map_err(|error| format!("acl: {error}"))?,
        expires_at: expires_at.map_err(|error| format!("expire_at: {error}"))?,
        ..Login::default()
    })
}

fn is_superuser(value: Option<&Value>) -> Result<bool, String> {
    match value {
        None | Some(Value::Null) => Ok(false),
        Some(Value::Bool(is_superuser)) => Ok(*is_superuser),
        Some(Value::String(text)) if matches!(text.as_str(), "" | "0" | "false") => Ok(false),
        Some(Value::String(text)) if matches!(text.as_str(), "1" | "true") => Ok(true),
        Some(Value::Number(number)) if number.as_u64() == Some(0) => Ok(false),
        Some(Value::Number(number)) if number.as_u64() == Some(1) => Ok(true),
        Some(_) => Err("is_superuser: expected true or false".to_owned()),
    }
}

fn rules(acl: &Value) -> Result<Arc<ClientRules>, String> {
    let rules = ClientRules::compile(&emqx_acl(acl)?);
    rules
        .map(Arc::new)
        .map_err(|errors| errors.to_string().replace('\n', "; "))
}

fn attributes(value: &Value) -> Result<ClientAttributes, String> {
    let expected = || "expected an object with strings".to_owned();
    let mut attributes = BTreeMap::new();
    for (name, value) in value.as_object().ok_or_else(expected)? {
        attributes.insert(name.as_str().into(), value.as_str().ok_or_else(expected)?.into());
    }
    ClientAttributes::new(attributes).map_err(|error| error.to_string())
}

fn groups(value: Option<&Value>) -> Result<Vec<Box<str>>, String> {
    let expected = || "expected an array of strings".to_owned();
    match value {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::Array(groups)) => {
            let groups = groups
                .iter()
                .map(|group| group.as_str().map(Box::from).ok_or_else(expected));
            groups.collect()
        }
        Some(_) => Err(expected()),
    }
}

/// The provider denies a time in the past.
fn expires_at(value: &Value, now: SystemTime) -> Result<SystemTime, String> {
    let expected = || "expected seconds since 1970".to_owned();
    let seconds = value.as_u64().ok_or_else(expected)?;
    // As in EMQX: a time far in the future is one in milliseconds.
    let now = now.duration_since(UNIX_EPOCH).unwrap_or_default();
    if u128::from(seconds) > now.as_millis() / 2 {
        return Err(format!("{} and not milliseconds", expected()));
    }
    Ok(UNIX_EPOCH + Duration::from_secs(seconds))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const NOW: Duration = Duration::from_secs(1_700_000_000);

    fn answer(status: u16, content_type: &str, body: &str) -> Result<ProviderOutcome, String> {
        let answer = HttpAnswer {
            status,
            reason: "",
            headers: vec![("content-type".to_owned(), content_type.to_owned())],
            body: body.as_bytes().to_vec(),
        };
        outcome(&answer, HttpAnswerMeaning::Body, UNIX_EPOCH + NOW)
    }

    #[test]
    fn status_decides_alone() {
        for (status, expected) in [
            (200, "allow"),
            (204, "failure"),
            (400, "ignore"),
            (401, "ignore"),
            (404, "ignore"),
            (429, "another outcome"),
            (201, "failure"),
            (302, "failure"),
            (500, "failure"),
        ] {
            let answer = HttpAnswer {
                status,
                reason: "",
                headers: Vec::new(),
                body: br#"{"result":"deny","is_superuser":true}"#.to_vec(),
            };
            let found = match outcome(&answer, HttpAnswerMeaning::Status, UNIX_EPOCH + NOW) {
                Ok(ProviderOutcome::Allow(login)) if !login.is_superuser => "allow",
                Ok(ProviderOutcome::Ignore) => "ignore",
                Ok(_) => "another outcome",
                Err(_) => "failure",
            };
            assert_eq!(found, expected, "{status}");
        }
    }

    fn json(body: &Value) -> Result<ProviderOutcome, String> {
        answer(200, "application/json; charset=utf-8", &body.to_string())
    }

    fn login(body: &Value) -> Login {
        match json(body) {
            Ok(ProviderOutcome::Allow(login)) => *login,
            other => panic!("{body}: {other:?}"),
        }
    }

    #[test]
    fn status_and_result_decide() {
        for (status, body, expected) in [
            (204, "", "allow"),
            (200, r#"{"result":"allow"}"#, "allow"),
            (200, r#"{"result":"deny","acl":1}"#, "deny"),
            (200, r#"{"result":"ignore"}"#, "ignore"),
            (401, r#"{"result":"allow"}"#, "ignore"),
            (403, "", "ignore"),
            (404, "", "ignore"),
            (201, r#"{"result":"allow"}"#, "failure"),
            (302, r#"{"result":"allow"}"#, "failure"),
            (400, "", "unavailable"),
            (413, "", "unavailable"),
            (429, "", "unavailable"),
            (431, "", "unavailable"),
            (500, r#"{"result":"allow"}"#, "failure"),
            (503, "", "failure"),
            (200, "", "failure"),
            (200, "allow", "failure"),
            (200, "[]", "failure"),
            (200, "{}", "failure"),
            (200, r#"{"result":"Allow"}"#, "failure"),
            (200, r#"{"result":true}"#, "failure"),
            (200, r#"{"result":"allow"} x"#, "failure"),
        ] {
            let found = match answer(status, "application/json", body) {
                Ok(ProviderOutcome::Allow(_)) => "allow",
                Ok(ProviderOutcome::Deny(DenyReason::NotAuthorized)) => "deny",
                Ok(ProviderOutcome::Deny(DenyReason::Unavailable)) => "unavailable",
                Ok(ProviderOutcome::Deny(_)) => "another reason",
                Ok(ProviderOutcome::Ignore) => "ignore",
                Err(_) => "failure",
            };
            assert_eq!(found, expected, "{status} {body}");
        }
        assert!(answer(200, "text/html", r#"{"result":"allow"}"#).is_err());
        assert!(answer(200, "", r#"{"result":"allow"}"#).is_err());
    }

    #[test]
    fn login_has_the_properties_of_the_answer() {
        let plain = login(&json!({ "result": "allow" }));
        assert!(!plain.is_superuser && plain.rules.is_none() && plain.expires_at.is_none());
        assert!(plain.attributes.is_empty());
        let full = login(&json!({
            "result": "allow",
            "is_superuser": true,
            "client_attrs": { "role": "admin", "sn": "10c6" },
            "groups": ["operators"],
            "expire_at": 1_700_000_060,
            "acl": [{ "permission": "allow", "action": "publish", "topic": "t/${clientid}" }],
            "comment": "other fields are not used",
        }));
        assert!(full.is_superuser && full.rules.is_some());
        assert_eq!(
            full.attributes.iter().collect::<Vec<_>>(),
            [("role", "admin"), ("sn", "10c6")]
        );
        assert_eq!(full.attributes.groups(), [Box::from("operators")]);
        assert_eq!(full.expires_at, Some(UNIX_EPOCH + NOW + Duration::from_secs(60)));
        for (value, expected) in [
            (json!(null), false),
            (json!("false"), false),
            (json!("1"), true),
            (json!(0), false),
            (json!(1), true),
        ] {
            assert_eq!(
                login(&json!({ "result": "allow", "is_superuser": value })).is_superuser,
                expected
            );
        }
    }

    #[test]
    fn fields_that_are_not_understood_are_failures() {
        for (field, value) in [
            ("is_superuser", json!("yes")),
            ("is_superuser", json!([])),
            ("client_attrs", json!({ "a": 1 })),
            ("client_attrs", json!(null)),
            ("groups", json!("operators")),
            ("groups", json!(["a", 1])),
            ("groups", json!(vec!["a"; 1001])),
            ("client_attrs", json!({ "a": "x".repeat(9000) })),
            ("expire_at", json!("1700000060")),
            ("expire_at", json!(1_700_000_060.5)),
            ("expire_at", json!(-1)),
            ("expire_at", json!(null)),
            ("expire_at", json!(1_700_000_060_000_u64)),
            ("acl", json!(null)),
            ("acl", json!("all")),
            ("acl", json!([{ "permission": "allow", "action": "publish" }])),
            (
                "acl",
                json!([{ "permission": "allow", "action": "publish", "topic": "a/#/b" }]),
            ),
            ("acl", json!({ "pub": vec!["t"; 1001] })),
            ("clientid_override", json!("c2")),
        ] {
            let error = json(&json!({ "result": "allow", field: value })).expect_err(field);
            assert!(error.starts_with(field), "{field}: {error}");
        }
    }
}
