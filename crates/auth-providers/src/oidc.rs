//! Client of an OpenID Connect provider: authorization code flow with PKCE (RFC 7636) and a nonce.
//!
//! The server sends requests only to the issuer of the configuration and to the endpoints that the discovery document
//! of this issuer names. Redirects are not followed. Answers, times and connections are limited. Errors contain no
//! code, token or secret.

mod claims;
mod discovery;

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use base64ct::{Base64, Encoding};
use connectors::http::{HttpAnswer, HttpConnector, HttpConnectorConfig, HttpQuestion, UrlPart};
use connectors::{Secret, TlsConfig};
use serde_json::{Map, Value};
use tokio::sync::Mutex;

use crate::http::{encoded, split_url};
use crate::jwt::JwksConfig;
use crate::jwt::id_token::{self, IdTokenError, IdTokenRules};
use crate::jwt::key_set::RemoteKeys;
use discovery::{Document, SecretField};

/// Time after which the discovery document and the keys are requested again.
const DOCUMENT_AGE_MAX: Duration = Duration::from_secs(600);
/// Time until the next request after a failed discovery, so that logins do not flood a failing provider.
const RETRY_AFTER: Duration = Duration::from_secs(2);
/// Maximum length of an answer of the provider.
const ANSWER_BYTES_MAX: usize = 256 << 10;
/// Maximum number of connections to an endpoint.
const CONNECTIONS_MAX: u32 = 8;
const IDLE_TIMEOUT_MS: u64 = 30_000;
/// Tolerance for the clock of the provider.
const LEEWAY: Duration = Duration::from_secs(30);

#[derive(Clone, Debug)]
pub struct OidcConfig {
    pub issuer: String,
    pub client_id: String,
    /// `None`: a public client, which only PKCE protects.
    pub client_secret: Option<Secret>,
    pub scopes: Vec<String>,
    /// URL of this server to which the provider sends the browser.
    pub redirect_url: String,
    pub user_name_claim: String,
    pub roles_claim: String,
    /// Time limit of each request.
    pub timeout: Duration,
    pub tls: TlsConfig,
}

/// Random values of a login.
#[derive(Clone, Copy)]
pub struct LoginSecrets<'a> {
    pub state: &'a str,
    pub nonce: &'a str,
    /// SHA-256 of the code verifier, in base64url.
    pub code_challenge: &'a str,
}

/// The answer of the provider to a login.
#[derive(Clone, Copy)]
pub struct AuthorizationCode<'a> {
    pub code: &'a str,
    /// Issuer in the answer (RFC 9207).
    pub issuer: Option<&'a str>,
    pub nonce: &'a str,
    pub code_verifier: &'a str,
}

/// An authenticated user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Identifies the user at the provider.
    pub subject: String,
    pub user_name: String,
    /// Values of the claim for roles.
    pub roles: Vec<String>,
}

/// Why a login fails. The text contains no secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OidcError {
    /// The provider does not answer, or not as OpenID Connect requires.
    Unavailable(String),
    /// The provider does not accept the code.
    Refused(String),
    /// The ID token or a claim is not valid.
    Invalid(String),
}

impl fmt::Display for OidcError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (OidcError::Unavailable(text) | OidcError::Refused(text) | OidcError::Invalid(text)) = self;
        f.write_str(text)
    }
}

pub struct OidcClient {
    config: OidcConfig,
    discovery: Endpoint,
    state: Mutex<ProviderState>,
}

#[derive(Default)]
struct ProviderState {
    found: Option<Arc<Provider>>,
    failed: Option<(Instant, String)>,
}

/// The provider as its discovery document describes it.
struct Provider {
    authorization_endpoint: String,
    secret_field: SecretField,
    token: Endpoint,
    userinfo: Option<Endpoint>,
    keys: RemoteKeys,
    found_at: Instant,
}

impl OidcClient {
    /// Sends no request. The error names the option below `api.oidc`.
    pub fn new(config: OidcConfig) -> Result<OidcClient, String> {
        let url = format!("{}{}", config.issuer.trim_end_matches('/'), discovery::PATH);
        Ok(OidcClient {
            discovery: Endpoint::new(&url, &config).map_err(|error| format!("issuer: {error}"))?,
            state: Mutex::default(),
            config,
        })
    }

    /// Returns the address to which the browser is sent.
    pub async fn authorization_url(&self, login: LoginSecrets<'_>) -> Result<String, OidcError> {
        let provider = self.provider().await?;
        let scope = self.config.scopes.join(" ");
        let parameters = [
            ("response_type", "code"),
            ("client_id", &self.config.client_id),
            ("redirect_uri", &self.config.redirect_url),
            ("scope", &scope),
            ("state", login.state),
            ("nonce", login.nonce),
            ("code_challenge", login.code_challenge),
            ("code_challenge_method", "S256"),
        ];
        let separator = if provider.authorization_endpoint.contains('?') {
            '&'
        } else {
            '?'
        };
        Ok(format!(
            "{}{separator}{}",
            provider.authorization_endpoint,
            form(&parameters)
        ))
    }

    /// Exchanges the code for an ID token, and returns the user.
    pub async fn identity(&self, answer: AuthorizationCode<'_>) -> Result<Identity, OidcError> {
        if answer.issuer.is_some_and(|issuer| issuer != self.config.issuer) {
            return Err(OidcError::Invalid("the answer is from another issuer".to_owned()));
        }
        let provider = self.provider().await?;
        let tokens = self.exchange(&provider, answer).await?;
        let text = |name: &str| tokens.get(name).and_then(Value::as_str);
        let invalid = |detail: &str| OidcError::Invalid(detail.to_owned());
        let id_token = text("id_token").ok_or_else(|| invalid("the token endpoint returned no id_token"))?;
        let rules = IdTokenRules {
            issuer: &self.config.issuer,
            client_id: &self.config.client_id,
            nonce: answer.nonce,
            leeway: LEEWAY,
        };
        let verified = id_token::verify(id_token, &provider.keys, &rules).await;
        let mut claims = verified.map_err(|error| match error {
            IdTokenError::Keys(reason) => OidcError::Unavailable(format!("cannot request the keys: {reason}")),
            IdTokenError::Invalid(reason) => OidcError::Invalid(format!("ID token: {reason}")),
        })?;
        let is_missing = |name: &String| claims::find(&claims, name).is_none();
        if [&self.config.user_name_claim, &self.config.roles_claim]
            .into_iter()
            .any(is_missing)
            && let (Some(userinfo), Some(token)) = (&provider.userinfo, text("access_token"))
        {
            add_userinfo(&mut claims, userinfo, token).await?;
        }
        self.identity_of(&claims)
    }

    fn identity_of(&self, claims: &Map<String, Value>) -> Result<Identity, OidcError> {
        let name = &self.config.user_name_claim;
        let user_name = claims::user_name(claims, name);
        Ok(Identity {
            subject: claims.get("sub").and_then(Value::as_str).unwrap_or_default().to_owned(),
            user_name: user_name.ok_or_else(|| {
                OidcError::Invalid(format!(
                    "the claim {name} (api.oidc.user_name_claim) is missing or is not a user name of up to 200 bytes"
                ))
            })?,
            roles: claims::values(claims, &self.config.roles_claim).unwrap_or_default(),
        })
    }

    /// Returns the provider, and requests its discovery document if it is old. Only one request runs at a time.
    async fn provider(&self) -> Result<Arc<Provider>, OidcError> {
        let late = |_| OidcError::Unavailable("too many logins wait for the identity provider".to_owned());
        let locked = tokio::time::timeout(self.config.timeout, self.state.lock()).await;
        let mut state = locked.map_err(late)?;
        if let Some(provider) = state
            .found
            .as_ref()
            .filter(|one| one.found_at.elapsed() < DOCUMENT_AGE_MAX)
        {
            return Ok(provider.clone());
        }
        if let Some((at, reason)) = &state.failed
            && at.elapsed() < RETRY_AFTER
        {
            return Err(OidcError::Unavailable(reason.clone()));
        }
        match self.discover().await {
            Ok(provider) => {
                let provider = Arc::new(provider);
                *state = ProviderState {
                    found: Some(provider.clone()),
                    failed: None,
                };
                Ok(provider)
            }
            Err(reason) => {
                tracing::warn!(issuer = %self.config.issuer, reason,
                    "the identity provider cannot be used; logins with OpenID Connect fail");
                state.failed = Some((Instant::now(), reason.clone()));
                Err(OidcError::Unavailable(reason))
            }
        }
    }

    async fn discover(&self) -> Result<Provider, String> {
        let answer = self.discovery.ask("GET", Vec::new(), String::new()).await?;
        let Document {
            authorization_endpoint,
            token_endpoint,
            key_set,
            userinfo_endpoint,
            secret_field,
        } = discovery::parse(&successful(&answer)?.body, &self.config.issuer)?;
        let endpoint = |url: &str| Endpoint::new(url, &self.config);
        // Only checks it: the browser sends this request.
        endpoint(&authorization_endpoint)?;
        let keys = JwksConfig {
            server: connector(&key_set, &self.config),
            refresh_interval: DOCUMENT_AGE_MAX,
            max_age: None,
            timeout: self.config.timeout,
        };
        Ok(Provider {
            authorization_endpoint,
            secret_field,
            token: endpoint(&token_endpoint)?,
            userinfo: userinfo_endpoint.as_deref().map(endpoint).transpose()?,
            keys: RemoteKeys::new(keys, Vec::new())?,
            found_at: Instant::now(),
        })
    }

    /// Asks the token endpoint (RFC 6749, 4.1.3).
    async fn exchange(
        &self,
        provider: &Provider,
        answer: AuthorizationCode<'_>,
    ) -> Result<Map<String, Value>, OidcError> {
        let mut parameters = vec![
            ("grant_type", "authorization_code"),
            ("code", answer.code),
            ("redirect_uri", &self.config.redirect_url),
            ("code_verifier", answer.code_verifier),
        ];
        let mut headers = vec![header("content-type", "application/x-www-form-urlencoded")];
        let (id, secret) = (
            &self.config.client_id,
            self.config.client_secret.as_ref().map(Secret::expose),
        );
        match (secret, provider.secret_field) {
            (Some(secret), SecretField::Header) => {
                // RFC 6749, 2.3.1: both are encoded as in a form.
                let pair = format!("{}:{}", encoded(id), encoded(secret));
                let basic = format!("Basic {}", Base64::encode_string(pair.as_bytes()));
                headers.push(header("authorization", &basic));
            }
            (Some(secret), SecretField::Body) => {
                parameters.extend([("client_id", id.as_str()), ("client_secret", secret)])
            }
            (None, _) => parameters.push(("client_id", id)),
        }
        let asked = provider.token.ask("POST", headers, form(&parameters)).await;
        let answer = asked.map_err(|error| OidcError::Unavailable(format!("token endpoint: {error}")))?;
        if answer.status != 200 {
            return Err(token_error(&answer));
        }
        serde_json::from_slice(&answer.body)
            .map_err(|_| OidcError::Unavailable("the token endpoint returned no JSON object".to_owned()))
    }
}

/// Returns the reason of an error of the token endpoint (RFC 6749, 5.2).
fn token_error(answer: &HttpAnswer) -> OidcError {
    let body: Map<String, Value> = serde_json::from_slice(&answer.body).unwrap_or_default();
    // The description of the error is not used: it may contain the code.
    match body.get("error").and_then(Value::as_str) {
        Some("invalid_grant") => OidcError::Refused("the token endpoint does not accept the code".to_owned()),
        Some("invalid_client" | "unauthorized_client") => OidcError::Unavailable(
            "the token endpoint does not accept the client: check api.oidc.client_id and api.oidc.client_secret"
                .to_owned(),
        ),
        _ => OidcError::Unavailable(format!(
            "the token endpoint answered {} {}",
            answer.status, answer.reason
        )),
    }
}

/// Adds the claims of the userinfo endpoint that the ID token does not have.
async fn add_userinfo(
    claims: &mut Map<String, Value>,
    userinfo: &Endpoint,
    access_token: &str,
) -> Result<(), OidcError> {
    if !access_token.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(OidcError::Invalid(
            "the access token has characters that are not allowed".to_owned(),
        ));
    }
    let headers = vec![header("authorization", &format!("Bearer {access_token}"))];
    let answer = userinfo.ask("GET", headers, String::new()).await;
    let failed = |error: String| OidcError::Unavailable(format!("userinfo endpoint: {error}"));
    let answer = answer.map_err(failed)?;
    let body = &successful(&answer).map_err(failed)?.body;
    let found: Map<String, Value> =
        serde_json::from_slice(body).map_err(|_| failed("the answer is not a JSON object".to_owned()))?;
    // OpenID Connect Core 1.0, 5.3.2: otherwise the answer may be about another user.
    if found
        .get("sub")
        .is_none_or(|subject| Some(subject) != claims.get("sub"))
    {
        return Err(OidcError::Invalid(
            "the userinfo endpoint has another sub than the ID token".to_owned(),
        ));
    }
    for (name, value) in found {
        claims.entry(name).or_insert(value);
    }
    Ok(())
}

fn successful(answer: &HttpAnswer) -> Result<&HttpAnswer, String> {
    match answer.status {
        200 => Ok(answer),
        status => Err(format!("the server answered {status} {}", answer.reason)),
    }
}

fn header(name: &str, value: &str) -> (String, String) {
    (name.to_owned(), value.to_owned())
}

fn form(parameters: &[(&str, &str)]) -> String {
    let fields = parameters
        .iter()
        .map(|(name, value)| format!("{name}={}", encoded(value)));
    fields.collect::<Vec<_>>().join("&")
}

fn connector(url: &str, config: &OidcConfig) -> HttpConnectorConfig {
    HttpConnectorConfig {
        url: url.to_owned(),
        headers: Default::default(),
        connections_max: CONNECTIONS_MAX,
        connect_timeout_ms: config.timeout.as_millis().max(1) as u64,
        idle_timeout_ms: IDLE_TIMEOUT_MS,
        tls: config.tls.clone(),
    }
}

/// A URL of the provider to which this server sends requests.
struct Endpoint {
    connector: HttpConnector,
    /// Path and query.
    target: String,
    timeout: Duration,
}

impl Endpoint {
    fn new(url: &str, config: &OidcConfig) -> Result<Endpoint, String> {
        let (origin, target) = split_url(url);
        let connector = HttpConnector::new(&connector(origin, config)).map_err(|problems| problems.join("; "))?;
        Ok(Endpoint {
            connector,
            target: target.to_owned(),
            timeout: config.timeout,
        })
    }

    async fn ask(&self, method: &str, mut headers: Vec<(String, String)>, body: String) -> Result<HttpAnswer, String> {
        headers.push(header("accept", "application/json"));
        let question = HttpQuestion {
            method: method.to_owned(),
            path: match self.target.as_str() {
                "" => Vec::new(),
                target => vec![UrlPart::Literal(target.to_owned())],
            },
            headers,
            body: body.into_bytes(),
            timeout: self.timeout,
            answer_bytes_max: ANSWER_BYTES_MAX,
        };
        // The time limit of the question does not include waiting for a connection.
        let answer = tokio::time::timeout(self.timeout, self.connector.ask(question)).await;
        answer.map_err(|_| format!("no response within {} ms", self.timeout.as_millis()))?
    }
}
