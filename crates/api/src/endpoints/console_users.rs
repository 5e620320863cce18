//! Users of the console and of this API, and their roles. The server generates their passwords, shows each once, and
//! requires the user to change it.

use std::sync::Arc;

use axum::extract::{FromRef, Path, State};
use axum::http::StatusCode;
use axum::{Extension, Json};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tracing::{error, info};
use web::PasswordHashing;
use web::admins::{AdminSummary, Admins, AdminsError, OneTimePassword};
use web::api_keys::ApiKeys;
use web::audit_state::ChangeTarget;
use web::body;
use web::guard::{AuthenticatedUser, RequiredAccess};
use web::logins::Logins;
use web::paging::{self, Page};
use web::problem::HttpProblem;
use web::query::Params;
use web::role::AssignedRole;

use crate::app::{App, Endpoint};
use crate::concurrency::ChangeLock;
use crate::device_platform::DevicePlatform;

const BODY_MAX: usize = 16 * 1024;
pub(crate) const USERS_MAX: usize = 1000;
/// Limit of a name, which appears in each line of the audit log.
const NAME_BYTES_MAX: usize = 256;

/// A user of the console.
#[derive(Debug, Serialize, JsonSchema)]
pub struct ConsoleUser {
    pub name: String,
    pub role: AssignedRole,
    /// Another user generated the password: it must be changed before anything else.
    pub has_one_time_password: bool,
    /// The password of the first start was not changed yet.
    pub has_first_password: bool,
    /// Logins of the user need a code of an authenticator app.
    pub has_totp: bool,
    /// This is the user who sent the request.
    pub is_self: bool,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NewConsoleUser {
    #[schemars(length(min = 1, max = 256))]
    name: String,
    role: AssignedRole,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ConsoleUserChange {
    role: AssignedRole,
}

/// A generated password.
#[derive(Serialize, JsonSchema)]
pub struct GeneratedPassword {
    pub name: String,
    /// Shown only in this answer. The user can only set another password with it.
    pub password: String,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ConsoleUsersQuery {
    #[schemars(range(min = 1, max = 1000))]
    limit: Option<usize>,
    /// Last name of the previous page.
    cursor: Option<String>,
}

pub fn endpoints() -> Vec<Endpoint> {
    const ALL: &str = "/api/v1/console-users";
    const ONE: &str = "/api/v1/console-users/{name}";
    const NAME: &str = "Percent-encoded.";
    vec![
        Endpoint::get(ALL, "console_users", RequiredAccess::Admin, list)
            .tag("Login")
            .describe(
                "Users of the console, page by page",
                "Users with access to this API. MQTT users are separate. Sorted by name.",
            )
            .query::<ConsoleUsersQuery>()
            .returns::<Page<ConsoleUser>>("A page."),
        Endpoint::post(ALL, "add_console_user", RequiredAccess::Admin, add)
            .tag("Login")
            .describe(
                "Add a console user",
                "The answer contains a password, which is shown once. After the first login, the user must set another password.",
            )
            .takes::<NewConsoleUser>(BODY_MAX)
            .fails(StatusCode::UNPROCESSABLE_ENTITY)
            .fails(StatusCode::CONFLICT)
            .creates::<GeneratedPassword>("Added.")
            .changes(users_state),
        Endpoint::put(ONE, "change_console_user", RequiredAccess::Admin, change)
            .tag("Login")
            .describe(
                "Change the role of a console user",
                "Applies to the next request. WebSockets of the user end at once if the role is lowered. The role of the last administrator \
                 cannot be changed.",
            )
            .path_parameter("name", NAME)
            .takes::<ConsoleUserChange>(BODY_MAX)
            .fails(StatusCode::NOT_FOUND)
            .fails(StatusCode::CONFLICT)
            .returns::<ConsoleUser>("Changed.")
            .changes(users_state),
        Endpoint::post("/api/v1/console-users/{name}/password", "reset_console_password", RequiredAccess::Admin, reset)
            .tag("Login")
            .describe(
                "Reset the password of a console user",
                "All logins of the user end. The answer contains a new password, which is shown once and \
                 must be changed after the next login.",
            )
            .path_parameter("name", NAME)
            .fails(StatusCode::NOT_FOUND)
            .creates::<GeneratedPassword>("Made.")
            .changes(users_state),
        Endpoint::delete(ONE, "remove_console_user", RequiredAccess::Admin, remove)
            .tag("Login")
            .describe(
                "Delete a console user",
                "All logins of the user end, and the API keys that the user issued are deleted. The last administrator cannot be \
                 deleted.",
            )
            .path_parameter("name", NAME)
            .fails(StatusCode::NOT_FOUND)
            .fails(StatusCode::CONFLICT)
            .returns_nothing("Removed.")
            .changes(users_state),
    ]
}

/// All users, for the audit log: it records the changed ones.
pub(super) fn users_state(app: &App, _: &ChangeTarget) -> Option<Value> {
    let admins: Arc<Admins> = app.part();
    // The log hides fields whose names contain `password`.
    let state = |user: AdminSummary| {
        json!({
            "name": user.name, "role": user.role, "is_one_time": user.has_one_time_password, "has_totp": user.has_totp,
        })
    };
    Some(admins.list().into_iter().map(state).collect())
}

/// The users of the console, and what a change of them needs.
pub struct ConsoleUsers {
    pub admins: Arc<Admins>,
    hashing: Arc<PasswordHashing>,
    lock: ChangeLock,
}

impl FromRef<App> for ConsoleUsers {
    fn from_ref(app: &App) -> ConsoleUsers {
        ConsoleUsers {
            admins: app.part(),
            hashing: app.part(),
            lock: app.part(),
        }
    }
}

impl ConsoleUsers {
    /// Runs on a blocking thread, with a permit for hashing: most changes hash a password.
    pub async fn change<R: Send + 'static>(
        &self,
        alter: impl FnOnce(&Admins) -> Result<R, AdminsError> + Send + 'static,
    ) -> Result<Result<R, AdminsError>, HttpProblem> {
        let _one_at_a_time = self.lock.lock().await;
        let admins = self.admins.clone();
        self.hashing.run(move || alter(&admins)).await
    }
}

/// The API keys that console users issued.
struct IssuedKeys {
    keys: Arc<ApiKeys>,
    platform: Option<DevicePlatform>,
}

impl FromRef<App> for IssuedKeys {
    fn from_ref(app: &App) -> IssuedKeys {
        IssuedKeys {
            keys: app.part(),
            platform: app.part(),
        }
    }
}

async fn list(
    State(admins): State<Arc<Admins>>,
    Extension(login): Extension<AuthenticatedUser>,
    Params(query): Params<ConsoleUsersQuery>,
) -> Result<Json<Page<ConsoleUser>>, HttpProblem> {
    let limit = paging::limit(query.limit)?;
    let after = |user: &AdminSummary| query.cursor.as_ref().is_none_or(|cursor| user.name > *cursor);
    let users = admins.list().into_iter().filter(after);
    let mut items: Vec<ConsoleUser> = users.take(limit + 1).map(|user| view(user, &login)).collect();
    let is_more = items.len() > limit;
    items.truncate(limit);
    let cursor = items.last().filter(|_| is_more).map(|user| user.name.clone());
    Ok(Json(Page { items, cursor }))
}

async fn add(
    State(users): State<ConsoleUsers>,
    State(issued): State<IssuedKeys>,
    body::Json(new): body::Json<NewConsoleUser>,
) -> Result<(StatusCode, Json<GeneratedPassword>), HttpProblem> {
    if new.name.len() > NAME_BYTES_MAX {
        return Err(HttpProblem::invalid(
            "name",
            format!("the name is longer than {NAME_BYTES_MAX} bytes"),
        ));
    }
    if users.admins.list().len() >= USERS_MAX {
        return Err(HttpProblem::invalid(
            "name",
            format!("the limit of {USERS_MAX} users is reached"),
        ));
    }
    let name = new.name.clone();
    // The keys of an existing user stay: the name is rejected below.
    if users.admins.role(&name).is_none() {
        remove_keys(issued, &name).await?;
    }
    let password = users
        .change(move |admins| admins.add(&name, &new.role))
        .await?
        .map_err(problem)?;
    info!(user = %new.name, "console user added");
    Ok(made(new.name, &password))
}

async fn change(
    State(users): State<ConsoleUsers>,
    Extension(login): Extension<AuthenticatedUser>,
    Path(name): Path<String>,
    body::Json(change): body::Json<ConsoleUserChange>,
) -> Result<Json<ConsoleUser>, HttpProblem> {
    let user = name.clone();
    users
        .change(move |admins| admins.set_role(&user, &change.role))
        .await?
        .map_err(problem)?;
    let changed = users.admins.list().into_iter().find(|user| user.name == name);
    let changed = changed.ok_or_else(|| problem(AdminsError::User(auth::UserError::Unknown)))?;
    Ok(Json(view(changed, &login)))
}

async fn reset(
    State(users): State<ConsoleUsers>,
    State(logins): State<Arc<Logins>>,
    Path(name): Path<String>,
) -> Result<(StatusCode, Json<GeneratedPassword>), HttpProblem> {
    let user = name.clone();
    let password = users
        .change(move |admins| admins.reset_password(&user))
        .await?
        .map_err(problem)?;
    logins.revoke_user(&name);
    info!(user = %name, "password of a console user reset");
    Ok(made(name, &password))
}

async fn remove(
    State(users): State<ConsoleUsers>,
    State(issued): State<IssuedKeys>,
    State(logins): State<Arc<Logins>>,
    Path(name): Path<String>,
) -> Result<StatusCode, HttpProblem> {
    let user = name.clone();
    users
        .change(move |admins| admins.remove(&user))
        .await?
        .map_err(problem)?;
    logins.revoke_user(&name);
    info!(user = %name, "console user deleted");
    remove_keys(issued, &name).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Deletes the API keys that the user issued, also those of the platform. Otherwise they would be valid for another
/// user with the same name.
async fn remove_keys(issued: IssuedKeys, issuer: &str) -> Result<(), HttpProblem> {
    let issuer = issuer.to_owned();
    let removed = web::block(move || {
        issued.keys.remove_of(&issuer).map_err(|error| error.to_string())?;
        let platform = issued.platform;
        platform.map_or(Ok(()), |platform| platform.delete_api_keys_of(&issuer))
    });
    removed.await?.map_err(|error| {
        error!(%error, "deleting the API keys of a console user failed");
        HttpProblem::internal("cannot delete the API keys of the user")
    })
}

fn problem(error: AdminsError) -> HttpProblem {
    use auth::UserError;
    let detail = error.to_string();
    match error {
        AdminsError::User(UserError::Unknown) => HttpProblem::not_found(detail),
        AdminsError::User(UserError::Exists) => HttpProblem::conflict("exists", "Already exists", detail).at("name"),
        AdminsError::User(_) => HttpProblem::invalid("name", detail),
        AdminsError::LastAdmin => HttpProblem::conflict("last-admin", "The last administrator must stay", detail),
        error => {
            error!(%error, "writing a change of console users failed");
            HttpProblem::internal("cannot write the change to disk")
        }
    }
}

fn made(name: String, password: &OneTimePassword) -> (StatusCode, Json<GeneratedPassword>) {
    let password = password.expose().to_owned();
    (StatusCode::CREATED, Json(GeneratedPassword { name, password }))
}

fn view(user: AdminSummary, login: &AuthenticatedUser) -> ConsoleUser {
    ConsoleUser {
        is_self: *user.name == *login.user,
        name: user.name,
        role: user.role,
        has_one_time_password: user.has_one_time_password,
        has_first_password: user.has_first_password,
        has_totp: user.has_totp,
    }
}
