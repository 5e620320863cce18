//! The discovery document of a provider (OpenID Connect Discovery 1.0, 3).

use serde_json::{Map, Value};

/// Path of the document below the issuer.
pub const PATH: &str = "/.well-known/openid-configuration";
/// Maximum length of the URL of an endpoint.
const URL_BYTES_MAX: usize = 2000;

/// The parts of the document that are used.
#[derive(Debug, PartialEq, Eq)]
pub struct Document {
    pub authorization_endpoint: String,
    pub token_endpoint: String,
    pub key_set: String,
    pub userinfo_endpoint: Option<String>,
    pub secret_field: SecretField,
}

/// How a client with a secret authenticates at the token endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SecretField {
    /// `client_secret_basic`
    Header,
    /// `client_secret_post`
    Body,
}

/// Reads a document. The error says which field is wrong, and does not quote what could be long.
pub fn parse(bytes: &[u8], issuer: &str) -> Result<Document, String> {
    let document: Map<String, Value> =
        serde_json::from_slice(bytes).map_err(|_| "the discovery document is not a JSON object".to_owned())?;
    match document.get("issuer").and_then(Value::as_str) {
        Some(found) if found == issuer => {}
        found => {
            let found = found.map_or_else(String::new, |found| found.chars().take(200).collect());
            return Err(format!(
                "the discovery document names the issuer {found:?}, but api.oidc.issuer is {issuer:?}: they must be equal"
            ));
        }
    }
    let required = |name: &str| endpoint(&document, name, issuer)?.ok_or_else(|| missing(name));
    Ok(Document {
        authorization_endpoint: required("authorization_endpoint")?,
        token_endpoint: required("token_endpoint")?,
        key_set: required("jwks_uri")?,
        userinfo_endpoint: endpoint(&document, "userinfo_endpoint", issuer)?,
        secret_field: secret_field(&document)?,
    })
}

fn missing(name: &str) -> String {
    format!("the discovery document has no {name}")
}

fn endpoint(document: &Map<String, Value>, name: &str, issuer: &str) -> Result<Option<String>, String> {
    let url = match document.get(name) {
        None | Some(Value::Null) => return Ok(None),
        Some(Value::String(url)) => url,
        Some(_) => return Err(format!("{name} of the discovery document is not a text")),
    };
    let is_plain = url.len() <= URL_BYTES_MAX && url.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'#');
    let is_secure = url.starts_with("https://") || (url.starts_with("http://") && issuer.starts_with("http://"));
    match is_plain && is_secure {
        true => Ok(Some(url.clone())),
        false => Err(format!(
            "{name} of the discovery document is not a URL with https and without a fragment"
        )),
    }
}

/// Without the field, the method is `client_secret_basic` (OpenID Connect Discovery 1.0, 3).
fn secret_field(document: &Map<String, Value>) -> Result<SecretField, String> {
    let Some(methods) = document.get("token_endpoint_auth_methods_supported") else {
        return Ok(SecretField::Header);
    };
    let methods = methods.as_array().map(Vec::as_slice).unwrap_or_default();
    let has = |method: &str| methods.iter().any(|one| one == method);
    if has("client_secret_basic") {
        Ok(SecretField::Header)
    } else if has("client_secret_post") || has("none") {
        Ok(SecretField::Body)
    } else {
        Err("the provider accepts neither client_secret_basic nor client_secret_post".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const ISSUER: &str = "https://sso.example/realm";

    fn document(change: Value) -> Vec<u8> {
        let mut document = json!({
            "issuer": ISSUER, "authorization_endpoint": "https://sso.example/auth?p=1",
            "token_endpoint": "https://sso.example/token/", "jwks_uri": "https://keys.example/jwks",
        });
        for (name, value) in change.as_object().unwrap() {
            document[name] = value.clone();
        }
        document.to_string().into_bytes()
    }

    #[test]
    fn document_of_the_issuer_is_read() {
        let parsed = parse(&document(json!({})), ISSUER).unwrap();
        assert_eq!(parsed.token_endpoint, "https://sso.example/token/");
        assert_eq!(
            (parsed.userinfo_endpoint, parsed.secret_field),
            (None, SecretField::Header)
        );
        let post = json!({"token_endpoint_auth_methods_supported": ["private_key_jwt", "client_secret_post"]});
        assert_eq!(parse(&document(post), ISSUER).unwrap().secret_field, SecretField::Body);
    }

    #[test]
    fn wrong_documents_are_rejected() {
        for (part, change) in [
            ("issuer", json!({"issuer": "https://sso.example/realm/"})),
            ("issuer", json!({"issuer": "https://evil.example"})),
            ("issuer", json!({"issuer": null})),
            ("token_endpoint", json!({"token_endpoint": null})),
            ("token_endpoint", json!({"token_endpoint": ["https://sso.example"]})),
            ("token_endpoint", json!({"token_endpoint": "http://sso.example/token"})),
            ("token_endpoint", json!({"token_endpoint": "file:///etc/passwd"})),
            (
                "authorization_endpoint",
                json!({"authorization_endpoint": "javascript:alert(1)"}),
            ),
            (
                "authorization_endpoint",
                json!({"authorization_endpoint": "https://sso.example/a\r\nb"}),
            ),
            (
                "authorization_endpoint",
                json!({"authorization_endpoint": "https://sso.example/a#b"}),
            ),
            (
                "jwks_uri",
                json!({"jwks_uri": "https://".to_owned() + &"x".repeat(2000)}),
            ),
            (
                "userinfo_endpoint",
                json!({"userinfo_endpoint": "http://sso.example/me"}),
            ),
            (
                "client_secret_post",
                json!({"token_endpoint_auth_methods_supported": ["private_key_jwt"]}),
            ),
        ] {
            let error = parse(&document(change.clone()), ISSUER).expect_err(&change.to_string());
            assert!(error.contains(part) && error.len() < 600, "{change}: {error}");
        }
        for garbage in [&b""[..], b"[]", b"<html>", b"\xff\xfe", b"{\"issuer\""] {
            assert!(parse(garbage, ISSUER).unwrap_err().contains("JSON object"));
        }
    }

    #[test]
    fn http_is_allowed_only_if_the_issuer_has_it() {
        let change = json!({"issuer": "http://sso.local", "token_endpoint": "http://sso.local/token"});
        assert!(parse(&document(change), "http://sso.local").is_ok());
    }
}
