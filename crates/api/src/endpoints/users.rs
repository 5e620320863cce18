//! MQTT users: whom devices and applications log in as. Hashes go in and never come out.

use auth::{PasswordHash, UserError, UserSummary};
use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use broker::Shard;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tracing::error;

use super::login::Secret;
use crate::access_admin::ChangeError;
use crate::app::App;
use crate::body;
use crate::endpoint::Endpoint;
use crate::if_match;
use crate::paging::{self, Page};
use crate::problem::{FieldError, Problem};
use crate::query::Params;

const BODY_MAX: usize = 256 * 1024;

/// An MQTT user.
#[derive(Debug, Serialize, JsonSchema)]
pub struct User {
    pub name: String,
    /// No access rule applies to it.
    pub is_superuser: bool,
    /// How the password is hashed.
    pub scheme: &'static str,
    /// The hash is weaker than one made now; setting the password again mends that.
    pub is_outdated: bool,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NewUser {
    #[schemars(length(min = 1, max = 1024))]
    name: String,
    /// In plain text; either this or `password_hash`.
    password: Option<Secret>,
    /// In one of the forms that password files have.
    password_hash: Option<String>,
    #[serde(default)]
    is_superuser: bool,
}

/// What is absent stays as it is.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct UserChange {
    /// In plain text.
    password: Option<Secret>,
    password_hash: Option<String>,
    is_superuser: Option<bool>,
    /// Ends connections of this user, so that they have to log in again.
    #[serde(default)]
    disconnect: bool,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct UsersQuery {
    #[schemars(range(min = 1, max = 1000))]
    limit: Option<usize>,
    /// The last name of the page before.
    cursor: Option<String>,
}

pub fn endpoints() -> Vec<Endpoint> {
    const ONE: &str = "/api/v1/users/{name}";
    const NAME: &str = "Percent-encoded.";
    vec![
        Endpoint::get("/api/v1/users", "users", list)
            .tag("Access")
            .says("MQTT users, page by page", "Sorted by name.")
            .query::<UsersQuery>()
            .returns::<Page<User>>("A page."),
        Endpoint::post("/api/v1/users", "add_user", add)
            .tag("Access")
            .says("Add an MQTT user", "Holds at once and after a restart.")
            .takes::<NewUser>(BODY_MAX)
            .fails(StatusCode::UNPROCESSABLE_ENTITY)
            .fails(StatusCode::CONFLICT)
            .creates::<User>("Added."),
        Endpoint::put(ONE, "change_user", change)
            .tag("Access")
            .says(
                "Change an MQTT user",
                "What it may do changes at once; its connections stay unless `disconnect` is set.",
            )
            .path_parameter("name", NAME)
            .takes::<UserChange>(BODY_MAX)
            .fails(StatusCode::UNPROCESSABLE_ENTITY)
            .fails(StatusCode::CONFLICT)
            .returns::<User>("Changed."),
        Endpoint::delete(ONE, "remove_user", remove)
            .tag("Access")
            .says("Remove an MQTT user", "Its connections are ended.")
            .path_parameter("name", NAME)
            .fails(StatusCode::CONFLICT)
            .returns_nothing("Removed."),
    ]
}

async fn list(State(app): State<App>, Params(query): Params<UsersQuery>) -> Result<Json<Page<User>>, Problem> {
    let limit = paging::limit(query.limit)?;
    let access = app.access().clone();
    let users = app.block(move || access.users()).await?;
    let after = |user: &UserSummary| query.cursor.as_ref().is_none_or(|cursor| user.name > *cursor);
    let mut items: Vec<User> = users.into_iter().filter(after).take(limit + 1).map(view).collect();
    let is_more = items.len() > limit;
    items.truncate(limit);
    let cursor = items.last().filter(|_| is_more).map(|user| user.name.clone());
    Ok(Json(Page { items, cursor }))
}

async fn add(
    State(app): State<App>,
    body::Json(new): body::Json<NewUser>,
) -> Result<(StatusCode, Json<User>), Problem> {
    let hash = hash(&app, new.password, new.password_hash).await?;
    let hash = hash
        .ok_or_else(|| Problem::invalid("password", "a password is missing").expected("password or password_hash"))?;
    let (access, name) = (app.access().clone(), new.name.clone());
    change_access(&app, move || access.add_user(&name, hash, new.is_superuser)).await?;
    Ok((StatusCode::CREATED, Json(find(&app, &new.name).await?)))
}

async fn change(
    State(app): State<App>,
    Path(name): Path<String>,
    body::Json(change): body::Json<UserChange>,
) -> Result<Json<User>, Problem> {
    let hash = hash(&app, change.password, change.password_hash).await?;
    let (access, user) = (app.access().clone(), name.clone());
    change_access(&app, move || access.change_user(&user, hash, change.is_superuser)).await?;
    if change.disconnect {
        disconnect(&app, &name).await?;
    }
    Ok(Json(find(&app, &name).await?))
}

async fn remove(State(app): State<App>, Path(name): Path<String>) -> Result<StatusCode, Problem> {
    let (access, user) = (app.access().clone(), name.clone());
    change_access(&app, move || access.remove_user(&user)).await?;
    disconnect(&app, &name).await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn hash(app: &App, password: Option<Secret>, hash: Option<String>) -> Result<Option<PasswordHash>, Problem> {
    match (password, hash) {
        (Some(_), Some(_)) => {
            Err(Problem::invalid("password_hash", "there is a `password`, too").expected("one of the two"))
        }
        (Some(password), None) => {
            let password = password.to_password();
            let hash = app.hash(move || PasswordHash::create(&password)).await?;
            hash.map(Some)
                .map_err(|error| Problem::invalid("password", error.to_string()))
        }
        (None, Some(text)) => PasswordHash::parse(&text)
            .map(Some)
            .map_err(|error| Problem::invalid("password_hash", error.to_string())),
        (None, None) => Ok(None),
    }
}

/// One change at a time, and never on the runtime's threads.
pub async fn change_access(
    app: &App,
    change: impl FnOnce() -> Result<(), ChangeError> + Send + 'static,
) -> Result<(), Problem> {
    let _one_at_a_time = app.changes().lock().await;
    app.block(change).await?.map_err(refused)
}

fn refused(error: ChangeError) -> Problem {
    let detail = error.to_string();
    match error {
        ChangeError::Pinned { source } => {
            let mut problem = Problem::conflict("pinned", "The configuration pins this value", detail);
            problem.source = Some(source);
            problem
        }
        ChangeError::Changed => if_match::changed("the list of access rules"),
        ChangeError::User(UserError::Exists) => Problem::conflict("exists", "It exists already", detail).at("name"),
        ChangeError::User(UserError::Unknown) => Problem::not_found(detail),
        ChangeError::User(_) => Problem::invalid("name", detail),
        ChangeError::Rules(errors) => {
            let mut problem = Problem::invalid("rules", "rules are not valid; nothing was changed");
            problem.errors = errors.0.iter().map(rule_error).collect();
            problem
        }
        ChangeError::Storage(source) => {
            error!(error = %source, "a change of users or rules could not be kept");
            Problem::internal(detail)
        }
    }
}

fn rule_error(error: &auth::AclError) -> FieldError {
    FieldError {
        field: format!("rules[{}]", error.rule),
        detail: error.kind.to_string(),
    }
}

async fn find(app: &App, name: &str) -> Result<User, Problem> {
    let access = app.access().clone();
    let users = app.block(move || access.users()).await?;
    users
        .into_iter()
        .find(|user| user.name == name)
        .map(view)
        .ok_or_else(|| Problem::not_found("the user is gone again"))
}

fn view(user: UserSummary) -> User {
    User {
        name: user.name,
        is_superuser: user.is_superuser,
        scheme: user.scheme,
        is_outdated: user.is_outdated,
    }
}

/// Ends every connection of a user; sessions stay.
async fn disconnect(app: &App, name: &str) -> Result<(), Problem> {
    for shard in 0..app.net().shards() {
        let mut from = Some(0);
        while let Some(slot) = from {
            let wanted = name.to_owned();
            let visit = move |shard: &mut Shard, now| shard.kick_users(now, slot, |user| user == wanted);
            from = app.on_shard(broker::ShardId(shard), visit).await?;
        }
    }
    Ok(())
}
