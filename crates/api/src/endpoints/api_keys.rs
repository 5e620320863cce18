//! API keys: with which programs use this API.

use std::time::SystemTime;

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::{Extension, Json};
use platform::ids::Uuid;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tracing::error;

use crate::admins::Role;
use crate::api_keys::{ApiKey, ApiKeyError, NewApiKey};
use crate::app::{App, unix_ms};
use crate::body;
use crate::endpoint::Endpoint;
use crate::guard::{Login, Need};
use crate::paging::{self, Page};
use crate::problem::Problem;
use crate::query::Params;

const BODY_MAX: usize = 16 * 1024;

/// An API key, without its secret.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "ApiKey")]
pub struct Key {
    pub name: String,
    pub role: Role,
    pub description: String,
    pub enabled: bool,
    pub created_at_unix_ms: u64,
    /// Who has made it.
    pub by: String,
    /// `null`: never.
    pub expires_at_unix_ms: Option<u64>,
    pub is_expired: bool,
    /// `null`: not since the server started.
    pub last_used_unix_ms: Option<u64>,
    /// Of a screen: the only dashboard that the key shows. `null`: a key for this API.
    pub dashboard: Option<String>,
}

/// A key that was just made.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "MadeApiKey")]
pub struct MadeKey {
    /// Send it as `Authorization: Bearer <secret>`. It is shown here and never again.
    pub secret: String,
    pub key: Key,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "NewApiKey")]
pub struct NewKey {
    /// Letters, digits, hyphens, underscores and dots.
    #[schemars(length(min = 1, max = 256))]
    name: String,
    role: Role,
    #[serde(default)]
    #[schemars(length(max = 256))]
    description: String,
    #[serde(default = "yes")]
    enabled: bool,
    /// Without it, never.
    expires_at_unix_ms: Option<u64>,
    /// Makes it the key of a screen, which is good for this dashboard of the device platform and nothing else: it reads the dashboard, telemetry of the
    /// entities that it names, and alarms. The role has to be `viewer`.
    dashboard: Option<String>,
}

/// What is absent stays as it is.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "ApiKeyChange")]
pub struct KeyChange {
    role: Option<Role>,
    #[schemars(length(max = 256))]
    description: Option<String>,
    enabled: Option<bool>,
    /// 0: it never expires.
    expires_at_unix_ms: Option<u64>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct KeysQuery {
    #[schemars(range(min = 1, max = 1000))]
    limit: Option<usize>,
    /// The last name of the page before.
    cursor: Option<String>,
}

fn yes() -> bool {
    true
}

pub fn endpoints() -> Vec<Endpoint> {
    const ALL: &str = "/api/v1/api-keys";
    const ONE: &str = "/api/v1/api-keys/{name}";
    vec![
        Endpoint::get(ALL, "api_keys", list)
            .tag("Login")
            .says("API keys, page by page", "Sorted by name, without their secrets.")
            .needs(Need::Admin)
            .query::<KeysQuery>()
            .returns::<Page<Key>>("A page."),
        Endpoint::post(ALL, "add_api_key", add)
            .tag("Login")
            .says(
                "Make an API key",
                "The answer has the secret, which is shown once and kept as a hash. It is sent as `Authorization: Bearer <secret>`. With `dashboard` \
                 it is the key of a screen: the console shows that dashboard at `#/screen/<dashboard>?key=<secret>`, without a login.",
            )
            .takes::<NewKey>(BODY_MAX)
            .fails(StatusCode::UNPROCESSABLE_ENTITY)
            .fails(StatusCode::CONFLICT)
            .creates::<MadeKey>("Made."),
        Endpoint::put(ONE, "change_api_key", change)
            .tag("Login")
            .says("Change an API key", "Holds for the next request with it.")
            .path_parameter("name", "The key's name.")
            .takes::<KeyChange>(BODY_MAX)
            .fails(StatusCode::UNPROCESSABLE_ENTITY)
            .returns::<Key>("Changed."),
        Endpoint::delete(ONE, "remove_api_key", remove)
            .tag("Login")
            .says("Remove an API key", "It is worth nothing from the next request on.")
            .path_parameter("name", "The key's name.")
            .returns_nothing("Removed."),
    ]
}

async fn list(State(app): State<App>, Params(query): Params<KeysQuery>) -> Result<Json<Page<Key>>, Problem> {
    let limit = paging::limit(query.limit)?;
    let after = |key: &ApiKey| query.cursor.as_ref().is_none_or(|cursor| key.name > *cursor);
    let keys = app.api_keys().list().into_iter();
    let mut items: Vec<Key> = keys.filter(after).take(limit + 1).map(view).collect();
    let is_more = items.len() > limit;
    items.truncate(limit);
    let cursor = items.last().filter(|_| is_more).map(|key| key.name.clone());
    Ok(Json(Page { items, cursor }))
}

async fn add(
    State(app): State<App>,
    Extension(login): Extension<Login>,
    body::Json(new): body::Json<NewKey>,
) -> Result<(StatusCode, Json<MadeKey>), Problem> {
    check_expiry(new.expires_at_unix_ms)?;
    let dashboard = match new.dashboard {
        Some(id) => Some(known_dashboard(&app, id).await?),
        None => None,
    };
    let new = NewApiKey {
        dashboard,
        name: new.name,
        role: new.role,
        description: new.description,
        is_enabled: new.enabled,
        created_at_unix_ms: unix_ms(SystemTime::now()),
        by: login.user.to_string(),
        expires_at_unix_ms: new.expires_at_unix_ms,
    };
    let made = change_keys(&app, |app| app.api_keys().add(new)).await?;
    let (key, secret) = made;
    Ok((
        StatusCode::CREATED,
        Json(MadeKey {
            secret: secret.to_string(),
            key: view(key),
        }),
    ))
}

async fn known_dashboard(app: &App, id: String) -> Result<Uuid, Problem> {
    let wrong = |detail: &str| Problem::invalid("dashboard", detail);
    let id = Uuid::parse(&id).ok_or_else(|| wrong("this is no UUID").expected("the dashboard's identifier"))?;
    let world = app.world().cloned();
    let world = world.ok_or_else(|| wrong("the device platform is off").expected("platform.enabled = true"))?;
    let found = app.block(move || world.tenant_of_dashboard(id)).await?;
    match found {
        Ok(Some(_)) => Ok(id),
        Ok(None) => Err(wrong("there is no such dashboard")),
        Err(_) => Err(Problem::internal("the dashboard could not be read")),
    }
}

async fn change(
    State(app): State<App>,
    Path(name): Path<String>,
    body::Json(change): body::Json<KeyChange>,
) -> Result<Json<Key>, Problem> {
    let expires_at_unix_ms = change.expires_at_unix_ms.map(|at| Some(at).filter(|at| *at > 0));
    check_expiry(expires_at_unix_ms.flatten())?;
    let alter = move |key: &mut ApiKey| {
        key.role = change.role.unwrap_or(key.role);
        key.is_enabled = change.enabled.unwrap_or(key.is_enabled);
        if let Some(description) = change.description {
            key.description = description;
        }
        key.expires_at_unix_ms = expires_at_unix_ms.unwrap_or(key.expires_at_unix_ms);
    };
    let key = change_keys(&app, move |app| app.api_keys().alter(&name, alter)).await?;
    Ok(Json(view(key)))
}

async fn remove(State(app): State<App>, Path(name): Path<String>) -> Result<StatusCode, Problem> {
    change_keys(&app, move |app| app.api_keys().remove(&name)).await?;
    Ok(StatusCode::NO_CONTENT)
}

fn check_expiry(at_unix_ms: Option<u64>) -> Result<(), Problem> {
    let now = unix_ms(SystemTime::now());
    match at_unix_ms {
        Some(at) if at <= now => {
            Err(Problem::invalid("expires_at_unix_ms", "is in the past").expected(format!("more than {now}")))
        }
        _ => Ok(()),
    }
}

/// Off the runtime's threads.
async fn change_keys<R: Send + 'static>(
    app: &App,
    change: impl FnOnce(&App) -> Result<R, ApiKeyError> + Send + 'static,
) -> Result<R, Problem> {
    let own = app.clone();
    app.block(move || change(&own)).await?.map_err(problem)
}

fn problem(error: ApiKeyError) -> Problem {
    let detail = error.to_string();
    match error {
        ApiKeyError::Exists => Problem::conflict("exists", "It exists already", detail).at("name"),
        ApiKeyError::Unknown => Problem::not_found(detail),
        ApiKeyError::TooMany | ApiKeyError::Name => Problem::invalid("name", detail),
        ApiKeyError::Description => Problem::invalid("description", detail),
        ApiKeyError::RoleOfScreen => Problem::invalid("role", detail),
        ApiKeyError::NoRandomness => Problem::internal(detail),
        ApiKeyError::Storage(source) => {
            error!(error = %source, "a change of API keys could not be kept");
            Problem::internal(detail)
        }
    }
}

fn view(key: ApiKey) -> Key {
    let now = unix_ms(SystemTime::now());
    Key {
        last_used_unix_ms: key.last_used_unix_ms(),
        is_expired: key.expires_at_unix_ms.is_some_and(|at| at <= now),
        name: key.name,
        role: key.role,
        description: key.description,
        enabled: key.is_enabled,
        created_at_unix_ms: key.created_at_unix_ms,
        by: key.by,
        expires_at_unix_ms: key.expires_at_unix_ms,
        dashboard: key.dashboard.map(|id| id.to_string()),
    }
}
