//! Login with an identity provider. `web::pending_logins` describes the steps.
//!
//! Browsers open the first two addresses, which are not part of the OpenAPI document. They always send the browser to
//! the provider or to the login page, so that no request can choose where it goes. The console requests the token.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use axum::extract::{Query, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{AppendHeaders, IntoResponse, Response};
use axum::{Extension, Json};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::json;
use web::audit::{Audit, AuditEntry};
use web::guard::{PeerAddress, RequiredAccess};
use web::limits::ApiCounters;
use web::pending_logins::{FINISH_LIFETIME, START_LIFETIME};
use web::problem::HttpProblem;
use web::unix_ms;

use super::login::{LoginAnswer, LoginIssuer, NewUserLogin};
use crate::app::Endpoint;
use crate::single_sign_on::{LoginFailure, ReturnOutcome, ReturnParameters, SingleSignOn};

const RETURN_PATH: &str = "/api/v1/oidc/callback";
const TOKEN_PATH: &str = "/api/v1/oidc/token";
/// Page of the console that collects the login, or shows why it failed.
const CONSOLE_PAGE: &str = "/#/single-sign-on";

/// The login with an identity provider, for the login page.
#[derive(Serialize, JsonSchema)]
pub struct SingleSignOnInfo {
    /// Whether an identity provider is configured (`api.oidc.issuer`).
    pub is_configured: bool,
    /// Name of the provider. Empty if none is configured.
    pub label: String,
}

pub fn endpoints() -> Vec<Endpoint> {
    vec![
        Endpoint::get("/api/v1/oidc", "single_sign_on", RequiredAccess::Nothing, info)
            .tag("Login")
            .describe(
                "Login with an identity provider",
                "Whether users can log in with OpenID Connect. Browsers begin such a login at `/api/v1/oidc/login`.",
            )
            .returns::<SingleSignOnInfo>("The provider."),
        Endpoint::get("/api/v1/oidc/login", "start_single_sign_on", RequiredAccess::Nothing, start),
        Endpoint::get(RETURN_PATH, "return_from_provider", RequiredAccess::Nothing, return_from_provider),
        Endpoint::post(TOKEN_PATH, "collect_login", RequiredAccess::Nothing, collect)
            .tag("Login")
            .describe(
                "Token of a login with an identity provider",
                "For the console: returns a bearer token once, after the provider has sent the browser back. The cookie of this login is \
                 needed.",
            )
            .fails(StatusCode::UNAUTHORIZED)
            .fails(StatusCode::NOT_FOUND)
            .returns::<LoginAnswer>("Logged in."),
    ]
}

async fn info(State(sso): State<Option<SingleSignOn>>) -> Json<SingleSignOnInfo> {
    Json(SingleSignOnInfo {
        is_configured: sso.is_some(),
        label: sso.map_or_else(String::new, |sso| sso.label().to_owned()),
    })
}

async fn start(State(sso): State<Option<SingleSignOn>>, headers: HeaderMap) -> Result<Response, HttpProblem> {
    let sso = configured(sso)?;
    if !is_start_allowed(&headers) {
        return Ok(refused(LoginFailure::ForeignPage));
    }
    Ok(match sso.start().await {
        Ok((target, value)) => redirect(&target, Some(LoginCookie::of(&sso).sent(&value, "Lax", START_LIFETIME))),
        Err(failure) => refused(failure),
    })
}

/// Whether the console or the user starts the login, and not a page of another origin, which could log the browser in
/// unnoticed. Browsers send the header only with HTTPS and to this machine; a missing one is accepted.
fn is_start_allowed(headers: &HeaderMap) -> bool {
    let from = headers.get("sec-fetch-site").map(|from| from.as_bytes());
    matches!(from, None | Some(b"same-origin" | b"none"))
}

async fn return_from_provider(
    State(sso): State<Option<SingleSignOn>>,
    State(audit): State<Arc<Audit>>,
    State(counters): State<Arc<ApiCounters>>,
    Extension(peer): Extension<PeerAddress>,
    Query(parameters): Query<HashMap<String, String>>,
    headers: HeaderMap,
) -> Result<Response, HttpProblem> {
    let sso = configured(sso)?;
    let parameter = |name: &str| parameters.get(name).map(String::as_str);
    let returned = ReturnParameters {
        state: parameter("state").unwrap_or_default(),
        code: parameter("code"),
        issuer: parameter("iss"),
        error: parameter("error"),
    };
    let cookie = LoginCookie::of(&sso);
    let outcome = sso.finish(returned, cookie.values(&headers), peer.0).await;
    Ok(match outcome {
        ReturnOutcome::Finished(value) => redirect(CONSOLE_PAGE, Some(cookie.sent(&value, "Strict", FINISH_LIFETIME))),
        ReturnOutcome::Failed(failure) => {
            ApiCounters::add(&counters.logins_failed);
            refused(failure)
        }
        ReturnOutcome::NoRole { user, subject } => {
            ApiCounters::add(&counters.logins_failed);
            record_refusal(audit, user, &subject, peer.0).await?;
            refused(LoginFailure::NoRole)
        }
    })
}

async fn collect(
    State(sso): State<Option<SingleSignOn>>,
    State(issuer): State<LoginIssuer>,
    Extension(peer): Extension<PeerAddress>,
    headers: HeaderMap,
) -> Result<Response, HttpProblem> {
    let sso = configured(sso)?;
    let cookie = LoginCookie::of(&sso);
    let user = sso.collect(cookie.values(&headers)).ok_or_else(|| {
        HttpProblem::unauthorized(
            "no login with the identity provider waits for this browser: it has expired or was used",
        )
    })?;
    let new = NewUserLogin {
        user: &user.name,
        role: &user.role,
        path: TOKEN_PATH,
        body: Some(subject_body(&user.subject)),
    };
    let issued = issuer.issue(peer.0, new).await?;
    let answer = LoginAnswer {
        token: issued.token.to_string(),
        expires_at_unix_ms: issued.expires_at_unix_ms,
        user: user.name,
        role: user.role,
        has_first_password: false,
        must_change_password: false,
        must_set_up_totp: false,
    };
    let cookie = [(header::SET_COOKIE, cookie.deleted())];
    Ok((AppendHeaders(cookie), Json(answer)).into_response())
}

fn configured(sso: Option<SingleSignOn>) -> Result<SingleSignOn, HttpProblem> {
    sso.ok_or_else(|| HttpProblem::not_found("no identity provider is configured (api.oidc.issuer)"))
}

/// Sends the browser to the login page, which shows the reason.
fn refused(failure: LoginFailure) -> Response {
    // The cookie stays: it may belong to another login of this browser, and it is worthless if that has ended.
    redirect(&format!("{CONSOLE_PAGE}?problem={}", failure.name()), None)
}

fn redirect(target: &str, cookie: Option<String>) -> Response {
    let cookie = cookie.map(|cookie| [(header::SET_COOKIE, cookie)]);
    (StatusCode::SEE_OTHER, [(header::LOCATION, target)], cookie, ()).into_response()
}

/// Records an authenticated user without a role.
async fn record_refusal(audit: Arc<Audit>, user: String, subject: &str, address: IpAddr) -> Result<(), HttpProblem> {
    let entry = AuditEntry {
        number: 0,
        at_unix_ms: unix_ms(SystemTime::now()),
        user,
        namespace: None,
        address: address.to_string(),
        operation: "login".into(),
        method: "GET".into(),
        // Without its parameters, which contain the code.
        path: RETURN_PATH.into(),
        body: Some(subject_body(subject)),
        before: None,
        after: None,
        status: StatusCode::FORBIDDEN.as_u16(),
    };
    web::block(move || audit.write(entry)).await
}

/// Names of users can change at the provider; the subject identifies them.
fn subject_body(subject: &str) -> serde_json::Value {
    json!({ "subject": subject })
}

/// The cookie that binds a login to a browser.
struct LoginCookie {
    name: &'static str,
    attributes: &'static str,
}

impl LoginCookie {
    fn of(sso: &SingleSignOn) -> LoginCookie {
        match sso.is_https() {
            // With this prefix, browsers accept the cookie only from this host and with HTTPS.
            true => LoginCookie {
                name: "__Host-tidewire-login",
                attributes: "Path=/; HttpOnly; Secure",
            },
            false => LoginCookie {
                name: "tidewire-login",
                attributes: "Path=/; HttpOnly",
            },
        }
    }

    /// Returns the values that the browser has sent. A cookie of another path can have the same name.
    fn values<'a>(&self, headers: &'a HeaderMap) -> impl Iterator<Item = &'a str> + use<'a> {
        let name = self.name;
        let lines = headers
            .get_all(header::COOKIE)
            .into_iter()
            .filter_map(|line| line.to_str().ok());
        let pairs = lines
            .flat_map(|line| line.split(';'))
            .filter_map(|pair| pair.trim().split_once('='));
        pairs.filter(move |(found, _)| *found == name).map(|(_, value)| value)
    }

    fn sent(&self, value: &str, same_site: &str, lifetime: Duration) -> String {
        let (name, attributes, seconds) = (self.name, self.attributes, lifetime.as_secs());
        format!("{name}={value}; {attributes}; SameSite={same_site}; Max-Age={seconds}")
    }

    fn deleted(&self) -> String {
        self.sent("", "Lax", Duration::ZERO)
    }
}
