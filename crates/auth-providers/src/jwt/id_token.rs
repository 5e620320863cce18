//! ID tokens of OpenID Connect (OpenID Connect Core 1.0, 3.1.3.7).
//!
//! Only keys of the provider's key set verify an ID token, so an algorithm with a shared secret is never allowed.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::{Map, Value};

use super::claims::time;
use super::key_set::RemoteKeys;
use super::token::{TokenError, UnverifiedToken};

/// Maximum length of `sub` (OpenID Connect Core 1.0, 2).
const SUBJECT_BYTES_MAX: usize = 255;

/// Values that an ID token must have.
pub struct IdTokenRules<'a> {
    pub issuer: &'a str,
    pub client_id: &'a str,
    pub nonce: &'a str,
    /// Tolerance for clocks that differ.
    pub leeway: Duration,
}

/// Why an ID token is rejected. Contains nothing from the token.
#[derive(Debug, PartialEq, Eq)]
pub enum IdTokenError {
    /// The keys of the provider cannot be requested.
    Keys(String),
    Invalid(String),
}

/// Verifies signature and claims of an ID token. Requests the keys if none of the current ones can have signed it.
pub async fn verify(
    token: &str,
    keys: &RemoteKeys,
    rules: &IdTokenRules<'_>,
) -> Result<Map<String, Value>, IdTokenError> {
    let invalid = |error: TokenError| IdTokenError::Invalid(error.text().to_owned());
    let token = UnverifiedToken::parse(token.as_bytes()).ok_or_else(|| invalid(TokenError::Malformed))?;
    let header = token.header.as_ref().map_err(|error| invalid(*error))?;
    let current = || keys.current(Instant::now());
    if !current().is_some_and(|keys| keys.have_candidate(header)) {
        keys.request_now().await.map_err(IdTokenError::Keys)?;
    }
    let verifying = current().filter(|keys| keys.have_candidate(header));
    let verifying = verifying.ok_or_else(|| invalid(TokenError::NoKey))?;
    if !verifying.have_signed(&token, header) {
        return Err(invalid(TokenError::Signature));
    }
    let claims = token.claims().map_err(invalid)?;
    check(&claims, rules, SystemTime::now()).map_err(IdTokenError::Invalid)?;
    Ok(claims)
}

fn check(claims: &Map<String, Value>, rules: &IdTokenRules<'_>, now: SystemTime) -> Result<(), String> {
    let text = |name: &str| claims.get(name).and_then(Value::as_str);
    if text("iss") != Some(rules.issuer) {
        return Err("the claim iss is not the issuer of api.oidc.issuer".to_owned());
    }
    let is_client = |value: &Value| value.as_str() == Some(rules.client_id);
    let (is_for_client, has_others) = match claims.get("aud") {
        Some(Value::Array(audience)) => (audience.iter().any(is_client), audience.len() > 1),
        Some(audience) => (is_client(audience), false),
        None => (false, false),
    };
    if !is_for_client {
        return Err("the claim aud does not contain api.oidc.client_id".to_owned());
    }
    match claims.get("azp") {
        None if has_others => return Err("the claim aud has several values, and azp is missing".to_owned()),
        Some(party) if !is_client(party) => return Err("the claim azp is not api.oidc.client_id".to_owned()),
        _ => {}
    }
    check_times(claims, rules.leeway, now)?;
    if text("nonce") != Some(rules.nonce) {
        return Err("the claim nonce is not the one of this login".to_owned());
    }
    match text("sub") {
        Some(subject) if !subject.is_empty() && subject.len() <= SUBJECT_BYTES_MAX => Ok(()),
        _ => Err("the claim sub is missing, or is not a text of up to 255 bytes".to_owned()),
    }
}

fn check_times(claims: &Map<String, Value>, leeway: Duration, now: SystemTime) -> Result<(), String> {
    let now = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
    let leeway = leeway.as_secs_f64();
    let read = |name: &str| time(claims, name).map_err(|error| error.to_string());
    let expires = read("exp")?.ok_or("the claim exp is missing")?;
    if now >= expires + leeway {
        return Err("the token has expired; compare the clocks of both servers".to_owned());
    }
    let issued = read("iat")?.ok_or("the claim iat is missing")?;
    let is_early = |from: f64| now + leeway < from;
    if is_early(issued) || read("nbf")?.is_some_and(is_early) {
        return Err("the token is not valid yet (nbf or iat); compare the clocks of both servers".to_owned());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const RULES: IdTokenRules<'static> = IdTokenRules {
        issuer: "https://sso.example",
        client_id: "tidewire",
        nonce: "n1",
        leeway: Duration::from_secs(30),
    };
    const NOW_S: u64 = 1_700_000_000;

    /// Checks the claims of a valid token after `change`.
    fn checked(change: Value) -> Result<(), String> {
        let mut claims = json!({
            "iss": RULES.issuer, "aud": RULES.client_id, "nonce": RULES.nonce, "sub": "s", "iat": NOW_S,
            "exp": NOW_S + 60,
        });
        for (name, value) in change.as_object().unwrap() {
            claims[name] = value.clone();
        }
        let mut claims = claims.as_object().unwrap().clone();
        claims.retain(|_, value| !value.is_null());
        check(&claims, &RULES, UNIX_EPOCH + Duration::from_secs(NOW_S))
    }

    #[test]
    fn valid_claims_are_accepted() {
        for valid in [
            json!({}),
            json!({"aud": ["tidewire"]}),
            json!({"aud": ["other", "tidewire"], "azp": "tidewire"}),
            json!({"azp": "tidewire"}),
            json!({"exp": NOW_S - 29}),
            json!({"iat": NOW_S + 30, "nbf": NOW_S + 30}),
        ] {
            assert_eq!(checked(valid.clone()), Ok(()), "{valid}");
        }
    }

    #[test]
    fn wrong_and_missing_claims_are_rejected() {
        for (claim, wrong) in [
            ("iss", json!({"iss": "https://sso.example/"})),
            ("iss", json!({"iss": null})),
            ("aud", json!({"aud": "other"})),
            ("aud", json!({"aud": []})),
            ("aud", json!({"aud": null})),
            ("aud", json!({"aud": {"tidewire": true}})),
            ("azp", json!({"aud": ["other", "tidewire"]})),
            ("azp", json!({"azp": "other"})),
            ("azp", json!({"azp": ["tidewire"]})),
            ("expired", json!({"exp": NOW_S - 30})),
            ("exp", json!({"exp": null})),
            ("exp", json!({"exp": {}})),
            ("iat", json!({"iat": null})),
            ("not valid yet", json!({"iat": NOW_S + 31})),
            ("not valid yet", json!({"nbf": NOW_S + 31})),
            ("nonce", json!({"nonce": "n2"})),
            ("nonce", json!({"nonce": null})),
            ("nonce", json!({"nonce": ["n1"]})),
            ("sub", json!({"sub": null})),
            ("sub", json!({"sub": ""})),
            ("sub", json!({"sub": 7})),
            ("sub", json!({"sub": "s".repeat(256)})),
        ] {
            let error = checked(wrong.clone()).expect_err(&wrong.to_string());
            assert!(error.contains(claim), "{wrong}: {error}");
        }
    }
}
