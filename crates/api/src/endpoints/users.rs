//! MQTT users, with which devices and applications connect. The API accepts password hashes and never returns them.

use std::sync::Arc;

use auth::{PasswordHash, UserError, UserSummary};
use axum::Json;
use axum::extract::{FromRef, Path, State};
use axum::http::StatusCode;
use broker::{SessionSlot, Shard};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tracing::error;
use web::PasswordHashing;
use web::audit_state::ChangeTarget;
use web::body;
use web::guard::RequiredAccess;
use web::if_match;
use web::paging::{self, Page};
use web::problem::{FieldError, HttpProblem};
use web::query::Params;

use super::login::PasswordInput;
use crate::access_admin::{AccessAdmin, ChangeError};
use crate::app::{App, Endpoint};
use crate::concurrency::ChangeLock;
use crate::shards::Shards;

const BODY_MAX: usize = 256 * 1024;

/// An MQTT user.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "User")]
pub struct MqttUser {
    pub name: String,
    /// Access rules do not apply to this user.
    pub is_superuser: bool,
    /// Hash algorithm of the password.
    pub scheme: &'static str,
    /// The hash is weaker than a new one would be. Setting the password again replaces it.
    pub is_outdated: bool,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NewUser {
    #[schemars(length(min = 1, max = 1024))]
    name: String,
    /// Password in plain text: at least 8 characters, and not a common password. Either this or `password_hash`. With
    /// `access.scram`, it is stored as a SCRAM verifier and must be printable ASCII.
    password: Option<PasswordInput>,
    /// Password hash, in one of the formats of password files.
    password_hash: Option<String>,
    #[serde(default)]
    is_superuser: bool,
}

/// A change of an MQTT user. Absent fields stay as they are.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct UserChange {
    /// Password in plain text.
    password: Option<PasswordInput>,
    password_hash: Option<String>,
    is_superuser: Option<bool>,
    /// Disconnects clients of this user, so that they must authenticate again.
    #[serde(default)]
    disconnect: bool,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct UsersQuery {
    #[schemars(range(min = 1, max = 1000))]
    limit: Option<usize>,
    /// Last name of the previous page.
    cursor: Option<String>,
}

pub fn endpoints() -> Vec<Endpoint> {
    const ONE: &str = "/api/v1/users/{name}";
    const NAME: &str = "Percent-encoded.";
    vec![
        Endpoint::get("/api/v1/users", "users", RequiredAccess::Viewer, list)
            .tag("Access")
            .describe("MQTT users, page by page", "Sorted by name.")
            .query::<UsersQuery>()
            .returns::<Page<MqttUser>>("A page."),
        Endpoint::post("/api/v1/users", "add_user", RequiredAccess::Admin, add)
            .tag("Access")
            .describe("Add an MQTT user", "Applies at once, and after a restart.")
            .takes::<NewUser>(BODY_MAX)
            .fails(StatusCode::UNPROCESSABLE_ENTITY)
            .fails(StatusCode::CONFLICT)
            .creates::<MqttUser>("Added."),
        Endpoint::put(ONE, "change_user", RequiredAccess::Admin, change)
            .tag("Access")
            .describe(
                "Change an MQTT user",
                "The user's permissions change at once; connections stay unless `disconnect` is set. A user that is no superuser any more is disconnected if `access.sources` names other systems.",
            )
            .path_parameter("name", NAME)
            .takes::<UserChange>(BODY_MAX)
            .fails(StatusCode::UNPROCESSABLE_ENTITY)
            .fails(StatusCode::CONFLICT)
            .returns::<MqttUser>("Changed.")
            .changes(user_state),
        Endpoint::delete(ONE, "remove_user", RequiredAccess::Admin, remove)
            .tag("Access")
            .describe("Delete an MQTT user", "Disconnects the clients of this user.")
            .path_parameter("name", NAME)
            .fails(StatusCode::CONFLICT)
            .returns_nothing("Removed.")
            .changes(user_state),
    ]
}

/// For the audit log.
fn user_state(app: &App, target: &ChangeTarget) -> Option<Value> {
    let access: Arc<dyn AccessAdmin> = app.part();
    let name = target.parameter("name");
    let user = access.users().into_iter().find(|user| user.name == name)?;
    serde_json::to_value(view(user)).ok()
}

async fn list(
    State(access): State<Arc<dyn AccessAdmin>>,
    Params(query): Params<UsersQuery>,
) -> Result<Json<Page<MqttUser>>, HttpProblem> {
    let limit = paging::limit(query.limit)?;
    let users = web::block(move || access.users()).await?;
    let after = |user: &UserSummary| query.cursor.as_ref().is_none_or(|cursor| user.name > *cursor);
    let mut items: Vec<MqttUser> = users.into_iter().filter(after).take(limit + 1).map(view).collect();
    let is_more = items.len() > limit;
    items.truncate(limit);
    let cursor = items.last().filter(|_| is_more).map(|user| user.name.clone());
    Ok(Json(Page { items, cursor }))
}

/// The MQTT users, and what a change of a user needs.
struct UserChanges {
    access: Arc<dyn AccessAdmin>,
    hashing: Arc<PasswordHashing>,
    lock: ChangeLock,
}

impl FromRef<App> for UserChanges {
    fn from_ref(app: &App) -> UserChanges {
        UserChanges {
            access: app.part(),
            hashing: app.part(),
            lock: app.part(),
        }
    }
}

impl UserChanges {
    async fn apply(
        &self,
        change: impl FnOnce(&dyn AccessAdmin) -> Result<(), ChangeError> + Send + 'static,
    ) -> Result<(), HttpProblem> {
        let access = self.access.clone();
        change_access(&self.lock, move || change(&*access)).await
    }

    async fn hash(
        &self,
        password: Option<PasswordInput>,
        hash: Option<String>,
    ) -> Result<Option<PasswordHash>, HttpProblem> {
        match (password, hash) {
            (Some(_), Some(_)) => Err(HttpProblem::invalid(
                "password_hash",
                "`password` and `password_hash` exclude each other",
            )
            .expected("one of the two")),
            (Some(password), None) => {
                password.check_strength("password")?;
                let password = password.to_password();
                let access = self.access.clone();
                let hash = self.hashing.run(move || access.hash_password(&password)).await?;
                hash.map(Some)
                    .map_err(|error| HttpProblem::invalid("password", error.to_string()))
            }
            (None, Some(text)) => PasswordHash::parse(&text)
                .map(Some)
                .map_err(|error| HttpProblem::invalid("password_hash", error.to_string())),
            (None, None) => Ok(None),
        }
    }
}

async fn add(
    State(users): State<UserChanges>,
    body::Json(new): body::Json<NewUser>,
) -> Result<(StatusCode, Json<MqttUser>), HttpProblem> {
    let hash = users.hash(new.password, new.password_hash).await?;
    let hash = hash.ok_or_else(|| {
        HttpProblem::invalid("password", "a password is missing").expected("password or password_hash")
    })?;
    let name = new.name.clone();
    users
        .apply(move |access| access.add_user(&name, hash, new.is_superuser))
        .await?;
    Ok((StatusCode::CREATED, Json(find(users.access, &new.name).await?)))
}

async fn change(
    State(users): State<UserChanges>,
    State(shards): State<Shards>,
    Path(name): Path<String>,
    body::Json(change): body::Json<UserChange>,
) -> Result<Json<MqttUser>, HttpProblem> {
    let hash = users.hash(change.password, change.password_hash).await?;
    let user = name.clone();
    users
        .apply(move |access| access.change_user(&user, hash, change.is_superuser))
        .await?;
    if change.disconnect {
        disconnect(&shards, &name).await?;
    }
    Ok(Json(find(users.access, &name).await?))
}

async fn remove(
    State(users): State<UserChanges>,
    State(shards): State<Shards>,
    Path(name): Path<String>,
) -> Result<StatusCode, HttpProblem> {
    let user = name.clone();
    users.apply(move |access| access.remove_user(&user)).await?;
    disconnect(&shards, &name).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Serializes changes, and runs each on a blocking thread.
pub async fn change_access(
    lock: &ChangeLock,
    change: impl FnOnce() -> Result<(), ChangeError> + Send + 'static,
) -> Result<(), HttpProblem> {
    let _one_at_a_time = lock.lock().await;
    web::block(change).await?.map_err(refused)
}

fn refused(error: ChangeError) -> HttpProblem {
    let detail = error.to_string();
    match error {
        ChangeError::Pinned { source } => {
            let mut problem = HttpProblem::conflict("pinned", "Set by the configuration", detail);
            problem.source = Some(source);
            problem
        }
        ChangeError::Changed => if_match::changed("the list of access rules"),
        ChangeError::User(UserError::Exists) => HttpProblem::conflict("exists", "Already exists", detail).at("name"),
        ChangeError::User(UserError::Unknown) => HttpProblem::not_found(detail),
        ChangeError::User(_) => HttpProblem::invalid("name", detail),
        ChangeError::Rules(errors) => {
            let mut problem = HttpProblem::invalid("rules", "the rules are invalid; nothing was changed");
            problem.errors = errors.0.iter().map(rule_error).collect();
            problem
        }
        ChangeError::Files { .. } => HttpProblem::conflict(
            "configuration-files",
            "The configuration files prevent the change",
            detail,
        ),
        ChangeError::Storage(source) => {
            error!(error = %source, "writing a change of users or rules failed");
            HttpProblem::internal(detail)
        }
    }
}

fn rule_error(error: &auth::AclError) -> FieldError {
    FieldError {
        field: format!("rules[{}]", error.rule),
        detail: error.kind.to_string(),
    }
}

async fn find(access: Arc<dyn AccessAdmin>, name: &str) -> Result<MqttUser, HttpProblem> {
    let users = web::block(move || access.users()).await?;
    users
        .into_iter()
        .find(|user| user.name == name)
        .map(view)
        .ok_or_else(|| HttpProblem::not_found("the user was deleted by another request"))
}

fn view(user: UserSummary) -> MqttUser {
    MqttUser {
        name: user.name,
        is_superuser: user.is_superuser,
        scheme: user.scheme,
        is_outdated: user.is_outdated,
    }
}

/// Disconnects all clients of a user; their sessions stay.
async fn disconnect(shards: &Shards, name: &str) -> Result<(), HttpProblem> {
    for shard in 0..shards.count() {
        let mut from = Some(SessionSlot::FIRST);
        while let Some(slot) = from {
            let wanted = name.to_owned();
            let visit = move |shard: &mut Shard, now| shard.operator(now).kick_users(slot, |user| user == wanted);
            from = shards.on_shard(broker::ShardId(shard), visit).await?;
        }
    }
    Ok(())
}
