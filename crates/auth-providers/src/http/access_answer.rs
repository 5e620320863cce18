//! The answer of an HTTP service to the question whether a client may publish or subscribe.
//!
//! | status | meaning |
//! |---|---|
//! | 200 | the body decides: `{"result": "allow"}`, `"deny"` or `"ignore"` |
//! | 204 | allow |
//! | 400 to 499 | deny: the service refuses the request |
//! | other | failure |
//!
//! With [`HttpAnswerMeaning::Status`], 200 is allow, 400 to 499 are deny, and others are failures.
//!
//! An answer that is not understood is a failure that denies, whatever `on_failure` is: topics, which clients choose,
//! can cause it.

use auth::{DenyReason, Login, ProviderOutcome};
use connectors::http::HttpAnswer;
use serde_json::Value;

use super::HttpAnswerMeaning;
use super::answer::{EXPECTED_RESULT, fields};

/// Returns the outcome. The error is for the operator and contains no part of the request.
pub(super) fn outcome(answer: &HttpAnswer, meaning: HttpAnswerMeaning) -> Result<ProviderOutcome, String> {
    let is_status = meaning == HttpAnswerMeaning::Status;
    let allow = || ProviderOutcome::Allow(Box::new(Login::new(false)));
    match answer.status {
        200 if !is_status => match fields(answer)?.get("result").and_then(Value::as_str) {
            Some("allow") => Ok(allow()),
            Some("deny") => Ok(ProviderOutcome::Deny(DenyReason::NotAuthorized)),
            Some("ignore") => Ok(ProviderOutcome::Ignore),
            _ => Err(EXPECTED_RESULT.to_owned()),
        },
        200 => Ok(allow()),
        204 if !is_status => Ok(allow()),
        400..500 => Ok(ProviderOutcome::Deny(DenyReason::NotAuthorized)),
        status => Err(format!("unexpected status {status} {}", answer.reason)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_decides_alone() {
        for (status, expected) in [
            (200, "allow"),
            (204, "failure"),
            (403, "deny"),
            (302, "failure"),
            (500, "failure"),
        ] {
            let answer = HttpAnswer {
                status,
                reason: "",
                headers: Vec::new(),
                body: br#"{"result":"ignore"}"#.to_vec(),
            };
            let found = match outcome(&answer, HttpAnswerMeaning::Status) {
                Ok(ProviderOutcome::Allow(_)) => "allow",
                Ok(ProviderOutcome::Deny(_)) => "deny",
                Ok(ProviderOutcome::Ignore) => "ignore",
                Err(_) => "failure",
            };
            assert_eq!(found, expected, "{status}");
        }
    }

    #[test]
    fn status_and_result_decide() {
        for (status, content_type, body, expected) in [
            (204, "", "", "allow"),
            (200, "application/json", r#"{"result":"allow"}"#, "allow"),
            (200, "application/json; charset=utf-8", r#"{"result":"deny"}"#, "deny"),
            (200, "application/json", r#"{"result":"ignore","more":1}"#, "ignore"),
            (401, "application/json", r#"{"result":"allow"}"#, "deny"),
            (403, "", "", "deny"),
            (404, "", "", "deny"),
            (414, "", "", "deny"),
            (429, "", "", "deny"),
            (200, "text/plain", r#"{"result":"allow"}"#, "failure"),
            (200, "application/json", r#"{"result":"Allow"}"#, "failure"),
            (200, "application/json", r#"{"result":true}"#, "failure"),
            (200, "application/json", "{}", "failure"),
            (200, "application/json", "[]", "failure"),
            (200, "application/json", "allow", "failure"),
            (200, "application/json", "", "failure"),
            (201, "application/json", r#"{"result":"allow"}"#, "failure"),
            (302, "application/json", r#"{"result":"allow"}"#, "failure"),
            (500, "application/json", r#"{"result":"allow"}"#, "failure"),
            (503, "", "", "failure"),
        ] {
            let answer = HttpAnswer {
                status,
                reason: "",
                headers: vec![("content-type".to_owned(), content_type.to_owned())],
                body: body.as_bytes().to_vec(),
            };
            let found = match outcome(&answer, HttpAnswerMeaning::Body) {
                Ok(ProviderOutcome::Allow(_)) => "allow",
                Ok(ProviderOutcome::Deny(DenyReason::NotAuthorized)) => "deny",
                Ok(ProviderOutcome::Deny(_)) => "another reason",
                Ok(ProviderOutcome::Ignore) => "ignore",
                Err(_) => "failure",
            };
            assert_eq!(found, expected, "{status} {content_type} {body}");
        }
    }
}
