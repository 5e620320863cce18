//! Logins in force: of the own user, and for administrators of all users.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::{Extension, Json};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tracing::info;
use web::admins::Admins;
use web::guard::{AuthenticatedUser, RequiredAccess};
use web::logins::{LoginSummary, Logins, is_provider_user};
use web::paging::{self, Page};
use web::problem::HttpProblem;
use web::query::Params;
use web::unix_ms;

use crate::app::Endpoint;

/// A login, without its token.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Login {
    /// Identifies the login. It is not the token.
    pub id: String,
    pub user: String,
    /// Address from which the user logged in.
    pub address: IpAddr,
    pub since_unix_ms: u64,
    /// Last request with the login.
    pub last_used_unix_ms: u64,
    pub expires_at_unix_ms: u64,
    /// The request was sent with this login.
    pub is_current: bool,
}

/// The number of logins that ended.
#[derive(Debug, Serialize, JsonSchema)]
pub struct EndedLogins {
    pub ended: usize,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LoginsQuery {
    /// Logins of this user.
    user: Option<String>,
    #[schemars(range(min = 1, max = 1000))]
    limit: Option<usize>,
    /// Number of logins on the previous pages.
    cursor: Option<String>,
}

pub fn endpoints() -> Vec<Endpoint> {
    const OWN: &str = "/api/v1/own-logins";
    const ID: &str = "ID from the list.";
    vec![
        Endpoint::get(OWN, "own_logins", RequiredAccess::Viewer, list_own)
            .tag("Login")
            .in_namespace()
            .describe(
                "Your logins",
                "The logins of your user, the last used first. An API key has none.",
            )
            .returns::<Vec<Login>>("The logins."),
        Endpoint::delete(OWN, "end_other_logins", RequiredAccess::Viewer, end_others)
            .tag("Login")
            .in_namespace()
            .describe(
                "End your other logins",
                "Their tokens stop working and their WebSockets close. The login of the request stays.",
            )
            .returns::<EndedLogins>("Ended."),
        Endpoint::delete(
            "/api/v1/own-logins/{id}",
            "end_own_login",
            RequiredAccess::Viewer,
            end_own,
        )
        .tag("Login")
        .in_namespace()
        .describe(
            "End one of your logins",
            "Its token stops working and its WebSockets close.",
        )
        .path_parameter("id", ID)
        .returns_nothing("Ended."),
        Endpoint::get("/api/v1/logins", "logins", RequiredAccess::Admin, list)
            .tag("Login")
            .describe(
                "Logins of all users, page by page",
                "The last used first. The server has at most 64 logins of a user. A restart ends all logins.",
            )
            .query::<LoginsQuery>()
            .returns::<Page<Login>>("A page."),
        Endpoint::delete("/api/v1/logins/{id}", "end_login", RequiredAccess::Admin, end_one)
            .tag("Login")
            .describe("End a login", "Its token stops working and its WebSockets close.")
            .path_parameter("id", ID)
            .returns_nothing("Ended."),
        Endpoint::delete(
            "/api/v1/console-users/{name}/logins",
            "end_logins_of_user",
            RequiredAccess::Admin,
            end_all_of,
        )
        .tag("Login")
        .describe(
            "End all logins of a console user",
            "Their tokens stop working and their WebSockets close. API keys that the user issued stay valid. The name of a user of the \
             identity provider begins with `oidc:`.",
        )
        .path_parameter("name", "Percent-encoded.")
        .returns::<EndedLogins>("Ended."),
    ]
}

async fn list_own(
    State(logins): State<Arc<Logins>>,
    Extension(login): Extension<AuthenticatedUser>,
) -> Json<Vec<Login>> {
    let own = logins.list(Some(&login.user), Instant::now()).into_iter();
    Json(own.map(|one| view(one, &login)).collect())
}

async fn end_others(
    State(logins): State<Arc<Logins>>,
    Extension(login): Extension<AuthenticatedUser>,
) -> Json<EndedLogins> {
    let ended = logins.revoke_others(&login.user, login.login_id.as_deref());
    info!(user = %login.user, logins = ended, "a user ended its other logins");
    Json(EndedLogins { ended })
}

async fn end_own(
    State(logins): State<Arc<Logins>>,
    Extension(login): Extension<AuthenticatedUser>,
    Path(id): Path<String>,
) -> Result<StatusCode, HttpProblem> {
    // A login of another user is unknown here, so that its existence is not revealed.
    logins.revoke_id(&id, Some(&login.user)).ok_or_else(unknown)?;
    Ok(StatusCode::NO_CONTENT)
}

async fn list(
    State(logins): State<Arc<Logins>>,
    Extension(login): Extension<AuthenticatedUser>,
    Params(query): Params<LoginsQuery>,
) -> Result<Json<Page<Login>>, HttpProblem> {
    let limit = paging::limit(query.limit)?;
    let from = query.cursor.as_deref().map_or(Ok(0), str::parse::<usize>);
    let from = from.map_err(|_| paging::malformed())?;
    let all = logins.list(query.user.as_deref(), Instant::now());
    let next = from.saturating_add(limit);
    let cursor = (all.len() > next).then(|| next.to_string());
    let items = all
        .into_iter()
        .skip(from)
        .take(limit)
        .map(|one| view(one, &login))
        .collect();
    Ok(Json(Page { items, cursor }))
}

async fn end_one(
    State(logins): State<Arc<Logins>>,
    Extension(login): Extension<AuthenticatedUser>,
    Path(id): Path<String>,
) -> Result<StatusCode, HttpProblem> {
    let user = logins.revoke_id(&id, None).ok_or_else(unknown)?;
    info!(%user, by = %login.user, "login ended by an administrator");
    Ok(StatusCode::NO_CONTENT)
}

async fn end_all_of(
    State(logins): State<Arc<Logins>>,
    State(admins): State<Arc<Admins>>,
    Extension(login): Extension<AuthenticatedUser>,
    Path(name): Path<String>,
) -> Result<Json<EndedLogins>, HttpProblem> {
    if admins.role(&name).is_none() && !is_provider_user(&name) {
        return Err(HttpProblem::not_found("there is no console user with this name"));
    }
    let ended = logins.revoke_user(&name);
    info!(user = %name, by = %login.user, logins = ended, "all logins of a user ended by an administrator");
    Ok(Json(EndedLogins { ended }))
}

fn unknown() -> HttpProblem {
    HttpProblem::not_found("no login has this ID, or it has ended")
}

fn view(one: LoginSummary, login: &AuthenticatedUser) -> Login {
    let expires_in_ms = u64::try_from(one.expires_in.as_millis()).unwrap_or(u64::MAX);
    Login {
        is_current: login.login_id.as_deref() == Some(&*one.id),
        expires_at_unix_ms: unix_ms(SystemTime::now()).saturating_add(expires_in_ms),
        id: one.id.to_string(),
        user: one.user.to_string(),
        address: one.address,
        since_unix_ms: one.since_unix_ms,
        last_used_unix_ms: one.last_used_unix_ms,
    }
}
