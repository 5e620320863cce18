//! API keys: credentials of programs that use this API.

use std::sync::Arc;
use std::time::SystemTime;

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::{Extension, Json};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tracing::error;
use web::api_keys::{ApiKeyError, ApiKeys, KEY_PREFIX, NewApiKey, StoredApiKey};
use web::audit_state::ChangeTarget;
use web::body;
use web::guard::{AuthenticatedUser, RequiredAccess};
use web::logins::is_provider_user;
use web::paging::{self, Page};
use web::problem::HttpProblem;
use web::query::Params;
use web::role::AssignedRole;
use web::scope::Scope;
use web::unix_ms;

use crate::app::{App, Endpoint};
use crate::device_platform::{DashboardLookup, DevicePlatform};

const BODY_MAX: usize = 16 * 1024;

/// An API key, without its secret.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "ApiKey")]
pub struct ApiKeyView {
    pub name: String,
    pub role: AssignedRole,
    pub description: String,
    pub enabled: bool,
    pub created_at_unix_ms: u64,
    /// User or API key that created the key.
    pub by: String,
    /// Console user who created the key, directly or with another key. The key has at most the rights of this user, and
    /// is deleted with this user.
    pub issuer: String,
    /// `null`: it never expires.
    pub expires_at_unix_ms: Option<u64>,
    pub is_expired: bool,
    /// `null`: not used since the server started.
    pub last_used_unix_ms: Option<u64>,
    /// For the key of a screen: the only dashboard that it can show. `null`: a key for this API.
    pub dashboard: Option<String>,
    /// Groups of operations that the key can use. `null`: all operations of the role.
    pub scopes: Option<Vec<Scope>>,
}

/// A new API key.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "CreatedApiKey")]
pub struct MadeKey {
    /// The secret. It is sent as `Authorization: Bearer <secret>`, and is shown only in this answer.
    pub secret: String,
    pub key: ApiKeyView,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "NewApiKey")]
pub struct NewKey {
    /// Letters, digits, hyphens, underscores and dots.
    #[schemars(length(min = 1, max = 256))]
    name: String,
    role: AssignedRole,
    #[serde(default)]
    #[schemars(length(max = 256))]
    description: String,
    #[serde(default = "enabled_by_default")]
    enabled: bool,
    /// Absent: the key never expires.
    expires_at_unix_ms: Option<u64>,
    /// Creates the key of a screen: it can read this dashboard of the device platform, telemetry of the entities that
    /// the dashboard names, and alarms. The role must be `viewer`.
    dashboard: Option<String>,
    /// Groups of operations that the key can use, as far as its role allows them. They cannot be changed later. Absent:
    /// all operations of the role.
    scopes: Option<Vec<Scope>>,
}

/// A change of an API key. Absent fields stay as they are.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "ApiKeyChange")]
pub struct KeyChange {
    /// The namespace of a role cannot be changed.
    role: Option<AssignedRole>,
    #[schemars(length(max = 256))]
    description: Option<String>,
    enabled: Option<bool>,
    /// 0: the key never expires.
    expires_at_unix_ms: Option<u64>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ApiKeysQuery {
    #[schemars(range(min = 1, max = 1000))]
    limit: Option<usize>,
    /// Last name of the previous page.
    cursor: Option<String>,
}

fn enabled_by_default() -> bool {
    true
}

pub fn endpoints() -> Vec<Endpoint> {
    const ALL: &str = "/api/v1/api-keys";
    const ONE: &str = "/api/v1/api-keys/{name}";
    vec![
        Endpoint::get(ALL, "api_keys", RequiredAccess::Admin, list)
            .tag("Login")
            .describe("API keys, page by page", "Sorted by name, without their secrets.")
            .query::<ApiKeysQuery>()
            .returns::<Page<ApiKeyView>>("A page."),
        Endpoint::post(ALL, "add_api_key", RequiredAccess::Admin, add)
            .tag("Login")
            .describe(
                "Create an API key",
                "The answer contains the secret, which is shown once and stored as a hash. Send it as `Authorization: Bearer <secret>`. With \
                 `scopes` the key can only use operations with one of these values of `x-scope`. With `dashboard` it is the key of a screen: the \
                 console shows that dashboard at `#/screen/<dashboard>?key=<secret>` without a login.",
            )
            .takes::<NewKey>(BODY_MAX)
            .fails(StatusCode::UNPROCESSABLE_ENTITY)
            .fails(StatusCode::CONFLICT)
            .creates::<MadeKey>("Made.")
            .changes(keys_state),
        Endpoint::put(ONE, "change_api_key", RequiredAccess::Admin, change)
            .tag("Login")
            .describe("Change an API key", "Applies to the next request with the key.")
            .path_parameter("name", "The key's name.")
            .takes::<KeyChange>(BODY_MAX)
            .fails(StatusCode::UNPROCESSABLE_ENTITY)
            .returns::<ApiKeyView>("Changed.")
            .changes(keys_state),
        Endpoint::delete(ONE, "remove_api_key", RequiredAccess::Admin, remove)
            .tag("Login")
            .describe("Delete an API key", "Requests with the key fail from now on.")
            .path_parameter("name", "The key's name.")
            .returns_nothing("Removed.")
            .changes(keys_state),
    ]
}

/// All keys, for the audit log: it records the changed ones.
fn keys_state(app: &App, _: &ChangeTarget) -> Option<Value> {
    let keys: Arc<ApiKeys> = app.part();
    let state = |key: StoredApiKey| {
        json!({
            "name": key.name,
            "role": key.role(),
            "description": key.description,
            "enabled": key.is_enabled,
            "expires_at_unix_ms": key.expires_at_unix_ms,
            "issuer": key.issuer,
            "dashboard": key.dashboard,
            "scopes": key.scopes,
        })
    };
    Some(keys.list().into_iter().map(state).collect())
}

async fn list(
    State(keys): State<Arc<ApiKeys>>,
    Params(query): Params<ApiKeysQuery>,
) -> Result<Json<Page<ApiKeyView>>, HttpProblem> {
    let limit = paging::limit(query.limit)?;
    let after = |key: &StoredApiKey| query.cursor.as_ref().is_none_or(|cursor| key.name > *cursor);
    let keys = keys.list().into_iter();
    let mut items: Vec<ApiKeyView> = keys.filter(after).take(limit + 1).map(view).collect();
    let is_more = items.len() > limit;
    items.truncate(limit);
    let cursor = items.last().filter(|_| is_more).map(|key| key.name.clone());
    Ok(Json(Page { items, cursor }))
}

async fn add(
    State(keys): State<Arc<ApiKeys>>,
    State(platform): State<Option<DevicePlatform>>,
    Extension(login): Extension<AuthenticatedUser>,
    body::Json(new): body::Json<NewKey>,
) -> Result<(StatusCode, Json<MadeKey>), HttpProblem> {
    check_expiry(new.expires_at_unix_ms)?;
    // A key ends with its issuer, but this server does not learn when the provider removes a user.
    let issuer = issuer(&keys, &login);
    if is_provider_user(&issuer) {
        return Err(HttpProblem::forbidden(
            "an API key belongs to a console user: log in with a user name and a password to create it",
        ));
    }
    let dashboard = match new.dashboard {
        Some(id) => Some(known_dashboard(platform, id).await?),
        None => None,
    };
    let new = NewApiKey {
        dashboard,
        name: new.name,
        role: new.role,
        description: new.description,
        is_enabled: new.enabled,
        created_at_unix_ms: unix_ms(SystemTime::now()),
        issuer,
        by: login.user.to_string(),
        expires_at_unix_ms: new.expires_at_unix_ms,
        scopes: new.scopes,
    };
    let made = change_keys(keys, |keys| keys.add(new)).await?;
    let (key, secret) = made;
    Ok((
        StatusCode::CREATED,
        Json(MadeKey {
            secret: secret.to_string(),
            key: view(key),
        }),
    ))
}

/// Returns the user, or the issuer of the key with which the request was sent.
fn issuer(keys: &ApiKeys, login: &AuthenticatedUser) -> String {
    let by_key = login.user.strip_prefix(KEY_PREFIX);
    by_key
        .and_then(|name| keys.issuer_of(name))
        .unwrap_or_else(|| login.user.to_string())
}

async fn known_dashboard(platform: Option<DevicePlatform>, id: String) -> Result<String, HttpProblem> {
    let wrong = |detail: &str| HttpProblem::invalid("dashboard", detail);
    let platform = platform.ok_or_else(|| wrong("the device platform is off").expected("platform.enabled = true"))?;
    match web::block(move || platform.find_dashboard(&id)).await?? {
        DashboardLookup::Found(id) => Ok(id),
        DashboardLookup::Missing => Err(wrong("no dashboard has this ID")),
        DashboardLookup::InvalidId => Err(wrong("not a UUID").expected("the UUID of a dashboard")),
    }
}

async fn change(
    State(keys): State<Arc<ApiKeys>>,
    Path(name): Path<String>,
    body::Json(change): body::Json<KeyChange>,
) -> Result<Json<ApiKeyView>, HttpProblem> {
    let expires_at_unix_ms = change.expires_at_unix_ms.map(|at| Some(at).filter(|at| *at > 0));
    check_expiry(expires_at_unix_ms.flatten())?;
    let alter = move |key: &mut StoredApiKey| {
        key.is_enabled = change.enabled.unwrap_or(key.is_enabled);
        if let Some(description) = change.description {
            key.description = description;
        }
        key.expires_at_unix_ms = expires_at_unix_ms.unwrap_or(key.expires_at_unix_ms);
    };
    let key = change_keys(keys, move |keys| keys.change_key(&name, change.role, alter)).await?;
    Ok(Json(view(key)))
}

async fn remove(State(keys): State<Arc<ApiKeys>>, Path(name): Path<String>) -> Result<StatusCode, HttpProblem> {
    change_keys(keys, move |keys| keys.remove(&name)).await?;
    Ok(StatusCode::NO_CONTENT)
}

fn check_expiry(at_unix_ms: Option<u64>) -> Result<(), HttpProblem> {
    let now = unix_ms(SystemTime::now());
    match at_unix_ms {
        Some(at) if at <= now => {
            Err(HttpProblem::invalid("expires_at_unix_ms", "is in the past").expected(format!("more than {now}")))
        }
        _ => Ok(()),
    }
}

/// Runs on a blocking thread: the change is written to disk.
async fn change_keys<R: Send + 'static>(
    keys: Arc<ApiKeys>,
    change: impl FnOnce(&ApiKeys) -> Result<R, ApiKeyError> + Send + 'static,
) -> Result<R, HttpProblem> {
    web::block(move || change(&keys)).await?.map_err(problem)
}

fn problem(error: ApiKeyError) -> HttpProblem {
    let detail = error.to_string();
    match error {
        ApiKeyError::Exists => HttpProblem::conflict("exists", "Already exists", detail).at("name"),
        ApiKeyError::Unknown => HttpProblem::not_found(detail),
        ApiKeyError::TooMany | ApiKeyError::Name => HttpProblem::invalid("name", detail),
        ApiKeyError::Description => HttpProblem::invalid("description", detail),
        ApiKeyError::RoleOfScreen | ApiKeyError::OtherNamespace => HttpProblem::invalid("role", detail),
        ApiKeyError::ScopesOfScreen => HttpProblem::invalid("scopes", detail),
        ApiKeyError::NoScopes => {
            HttpProblem::invalid("scopes", detail).expected("at least one scope, or no field `scopes`")
        }
        ApiKeyError::NoRandomness => HttpProblem::internal(detail),
        ApiKeyError::Storage(source) => {
            error!(error = %source, "writing a change of API keys failed");
            HttpProblem::internal(detail)
        }
    }
}

fn view(key: StoredApiKey) -> ApiKeyView {
    let now = unix_ms(SystemTime::now());
    ApiKeyView {
        last_used_unix_ms: key.last_used_unix_ms(),
        is_expired: key.expires_at_unix_ms.is_some_and(|at| at <= now),
        role: key.role(),
        name: key.name,
        description: key.description,
        enabled: key.is_enabled,
        created_at_unix_ms: key.created_at_unix_ms,
        by: key.by,
        issuer: key.issuer,
        expires_at_unix_ms: key.expires_at_unix_ms,
        dashboard: key.dashboard,
        scopes: key.scopes,
    }
}
