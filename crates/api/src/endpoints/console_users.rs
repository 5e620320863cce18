//! Users of the console and of this API: who may log in, as what. Their passwords are made here, shown once, and have to be
//! changed by whom they are for.

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::{Extension, Json};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tracing::{error, info};

use crate::admins::{AdminSummary, Admins, AdminsError, OneTimePassword, Role};
use crate::app::App;
use crate::body;
use crate::endpoint::Endpoint;
use crate::guard::{Login, Need};
use crate::paging::{self, Page};
use crate::problem::Problem;
use crate::query::Params;

const BODY_MAX: usize = 16 * 1024;
const USERS_MAX: usize = 1000;
/// Of a name: it stands in each line of the audit log.
const NAME_BYTES_MAX: usize = 256;

/// Who may log in to the console.
#[derive(Debug, Serialize, JsonSchema)]
pub struct ConsoleUser {
    pub name: String,
    pub role: Role,
    /// Somebody else has made the password: it has to be changed before anything else.
    pub has_one_time_password: bool,
    /// Nobody has changed the password that the first start made.
    pub has_first_password: bool,
    /// The one who asks.
    pub is_self: bool,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NewConsoleUser {
    #[schemars(length(min = 1, max = 256))]
    name: String,
    role: Role,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ConsoleUserChange {
    role: Role,
}

/// A password that was just made.
#[derive(Serialize, JsonSchema)]
pub struct MadePassword {
    pub name: String,
    /// It is shown here and never again, and is good for one thing: setting another.
    pub password: String,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ConsoleUsersQuery {
    #[schemars(range(min = 1, max = 1000))]
    limit: Option<usize>,
    /// The last name of the page before.
    cursor: Option<String>,
}

pub fn endpoints() -> Vec<Endpoint> {
    const ALL: &str = "/api/v1/console-users";
    const ONE: &str = "/api/v1/console-users/{name}";
    const NAME: &str = "Percent-encoded.";
    vec![
        Endpoint::get(ALL, "console_users", list)
            .tag("Login")
            .says(
                "Users of the console, page by page",
                "Who may log in to this API. MQTT users are others. Sorted by name.",
            )
            .needs(Need::Admin)
            .query::<ConsoleUsersQuery>()
            .returns::<Page<ConsoleUser>>("A page."),
        Endpoint::post(ALL, "add_console_user", add)
            .tag("Login")
            .says(
                "Add a user of the console",
                "The answer has a password, which is shown once. The user logs in with it and has to set another before anything else.",
            )
            .takes::<NewConsoleUser>(BODY_MAX)
            .fails(StatusCode::UNPROCESSABLE_ENTITY)
            .fails(StatusCode::CONFLICT)
            .creates::<MadePassword>("Added."),
        Endpoint::put(ONE, "change_console_user", change)
            .tag("Login")
            .says(
                "Change the role of a user of the console",
                "Holds for the next request. The last administrator stays one.",
            )
            .path_parameter("name", NAME)
            .takes::<ConsoleUserChange>(BODY_MAX)
            .fails(StatusCode::NOT_FOUND)
            .fails(StatusCode::CONFLICT)
            .returns::<ConsoleUser>("Changed."),
        Endpoint::post("/api/v1/console-users/{name}/password", "reset_console_password", reset)
            .tag("Login")
            .says(
                "Make a new password for a user of the console",
                "For one who has forgotten it. Every login of that user ends. The answer has the password, which is shown once and \
                 has to be changed before anything else.",
            )
            .path_parameter("name", NAME)
            .fails(StatusCode::NOT_FOUND)
            .creates::<MadePassword>("Made."),
        Endpoint::delete(ONE, "remove_console_user", remove)
            .tag("Login")
            .says(
                "Remove a user of the console",
                "Its logins end. The last administrator cannot be removed.",
            )
            .path_parameter("name", NAME)
            .fails(StatusCode::NOT_FOUND)
            .fails(StatusCode::CONFLICT)
            .returns_nothing("Removed."),
    ]
}

async fn list(
    State(app): State<App>,
    Extension(login): Extension<Login>,
    Params(query): Params<ConsoleUsersQuery>,
) -> Result<Json<Page<ConsoleUser>>, Problem> {
    let limit = paging::limit(query.limit)?;
    let after = |user: &AdminSummary| query.cursor.as_ref().is_none_or(|cursor| user.name > *cursor);
    let users = app.admins().list().into_iter().filter(after);
    let mut items: Vec<ConsoleUser> = users.take(limit + 1).map(|user| view(user, &login)).collect();
    let is_more = items.len() > limit;
    items.truncate(limit);
    let cursor = items.last().filter(|_| is_more).map(|user| user.name.clone());
    Ok(Json(Page { items, cursor }))
}

async fn add(
    State(app): State<App>,
    body::Json(new): body::Json<NewConsoleUser>,
) -> Result<(StatusCode, Json<MadePassword>), Problem> {
    if new.name.len() > NAME_BYTES_MAX {
        return Err(Problem::invalid(
            "name",
            format!("a name has at most {NAME_BYTES_MAX} bytes"),
        ));
    }
    if app.admins().list().len() >= USERS_MAX {
        return Err(Problem::invalid(
            "name",
            format!("there are {USERS_MAX} users already, which is the limit"),
        ));
    }
    let name = new.name.clone();
    let password = alter(&app, move |admins| admins.add(&name, new.role)).await?;
    info!(user = %new.name, "a user of the console was added");
    Ok(made(new.name, &password))
}

async fn change(
    State(app): State<App>,
    Extension(login): Extension<Login>,
    Path(name): Path<String>,
    body::Json(change): body::Json<ConsoleUserChange>,
) -> Result<Json<ConsoleUser>, Problem> {
    let user = name.clone();
    alter(&app, move |admins| admins.set_role(&user, change.role)).await?;
    let changed = app.admins().list().into_iter().find(|user| user.name == name);
    let changed = changed.ok_or_else(|| problem(AdminsError::User(auth::UserError::Unknown)))?;
    Ok(Json(view(changed, &login)))
}

async fn reset(State(app): State<App>, Path(name): Path<String>) -> Result<(StatusCode, Json<MadePassword>), Problem> {
    let user = name.clone();
    let password = alter(&app, move |admins| admins.reset_password(&user)).await?;
    app.logins().revoke_user(&name);
    info!(user = %name, "the password of a user of the console was reset");
    Ok(made(name, &password))
}

async fn remove(State(app): State<App>, Path(name): Path<String>) -> Result<StatusCode, Problem> {
    let user = name.clone();
    alter(&app, move |admins| admins.remove(&user)).await?;
    app.logins().revoke_user(&name);
    info!(user = %name, "a user of the console was removed");
    Ok(StatusCode::NO_CONTENT)
}

/// Off the runtime's threads, as for hashes: most changes make one.
async fn alter<R: Send + 'static>(
    app: &App,
    alter: impl FnOnce(&Admins) -> Result<R, AdminsError> + Send + 'static,
) -> Result<R, Problem> {
    let _one_at_a_time = app.changes().lock().await;
    let own = app.clone();
    app.hash(move || alter(own.admins())).await?.map_err(problem)
}

fn problem(error: AdminsError) -> Problem {
    use auth::UserError;
    let detail = error.to_string();
    match error {
        AdminsError::User(UserError::Unknown) => Problem::not_found(detail),
        AdminsError::User(UserError::Exists) => Problem::conflict("exists", "It exists already", detail).at("name"),
        AdminsError::User(_) => Problem::invalid("name", detail),
        AdminsError::LastAdmin => Problem::conflict("last-admin", "Somebody has to administer", detail),
        error => {
            error!(%error, "a change of the users of the console could not be kept");
            Problem::internal("the change could not be written to disk")
        }
    }
}

fn made(name: String, password: &OneTimePassword) -> (StatusCode, Json<MadePassword>) {
    let password = password.expose().to_owned();
    (StatusCode::CREATED, Json(MadePassword { name, password }))
}

fn view(user: AdminSummary, login: &Login) -> ConsoleUser {
    ConsoleUser {
        is_self: *user.name == *login.user,
        name: user.name,
        role: user.role,
        has_one_time_password: user.has_one_time_password,
        has_first_password: user.has_first_password,
    }
}
