//! The configuration in force, the origin of each value, and changes at run time.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::{Extension, Json};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tracing::{error, info};
use web::body;
use web::guard::{AuthenticatedUser, RequiredAccess};
use web::problem::{FieldError, HttpProblem};

use crate::app::Endpoint;
use crate::concurrency::ChangeLock;
use crate::config::{ConfigValue, ShownConfiguration};
use crate::config_admin::{ConfigAdmin, ConfigChangeError, ConfigChanges, ConfigDifference};

const BODY_MAX: usize = 64 * 1024;
/// Limit of one request.
const CHANGES_MAX: usize = 500;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ConfigurationChange {
    /// New values by key, in the syntax of `--set key=`: `15s`, `["a", "b"]`. `null` removes a run-time change, so that
    /// the file or the default applies again.
    changes: ConfigChanges,
}

/// Differences to the configuration in force.
#[derive(Serialize, JsonSchema)]
pub struct ConfigurationPlan {
    /// In the order of the reference. Empty: nothing changes.
    items: Vec<ConfigDifference>,
}

pub fn endpoints() -> Vec<Endpoint> {
    vec![
        Endpoint::get("/api/v1/configuration", "configuration", RequiredAccess::Viewer, configuration)
            .tag("Node")
            .describe(
                "The configuration in force",
                "Every value with its origin, and whether it can be changed here. Secrets are `***`. A value that was reloaded and takes effect \
                 after a restart is shown with its new value.",
            )
            .returns::<Vec<ConfigValue>>("In the order of the reference."),
        Endpoint::post("/api/v1/configuration/check", "check_configuration", RequiredAccess::Admin, check)
            .tag("Node")
            .describe(
                "Check a change of the configuration",
                "Checks the change as `tidewire check` does, and returns the values that would change. Changes nothing.",
            )
            .takes::<ConfigurationChange>(BODY_MAX)
            .fails(StatusCode::CONFLICT)
            .fails(StatusCode::UNPROCESSABLE_ENTITY)
            .returns::<ConfigurationPlan>("The change is valid. The values that would change."),
        Endpoint::put("/api/v1/configuration", "change_configuration", RequiredAccess::Admin, change)
            .tag("Node")
            .describe(
                "Change the configuration",
                "Changes values whose `fixed_reason` is `null`. If one value is invalid, nothing changes. The change is written to `runtime.toml` in \
                 the data directory, which overrides the file, and is in force when the answer is sent. Changes of the files since the last \
                 reload are applied, too, as at SIGHUP.",
            )
            .takes::<ConfigurationChange>(BODY_MAX)
            .fails(StatusCode::CONFLICT)
            .fails(StatusCode::UNPROCESSABLE_ENTITY)
            .returns::<ConfigurationPlan>("The change is in force. The values that changed.")
            .changes(|app, _| {
                let shown: ShownConfiguration = app.part();
                let values = shown.values();
                let options = values.iter().map(|one| (one.key.clone(), one.value.clone().into()));
                Some(Value::Object(options.collect()))
            }),
        Endpoint::post("/api/v1/restart", "restart", RequiredAccess::Admin, restart)
            .tag("Node")
            .describe(
                "Restart the server",
                "Shuts the server down, which disconnects all clients, and starts it again in the same process with the configuration \
                 in its files. Rejected if the configuration is known to prevent a start, while a backup runs, or if a restore is prepared.",
            )
            .fails(StatusCode::CONFLICT)
            .returns_nothing("The server shuts down."),
    ]
}

async fn configuration(State(shown): State<ShownConfiguration>) -> Json<Vec<ConfigValue>> {
    Json(shown.values().as_ref().clone())
}

async fn check(
    State(admin): State<Option<Arc<dyn ConfigAdmin>>>,
    body::Json(request): body::Json<ConfigurationChange>,
) -> Result<Json<ConfigurationPlan>, HttpProblem> {
    let (admin, changes) = requested_changes(admin, request)?;
    let planned = web::block(move || admin.plan(&changes)).await?;
    let items = planned.map_err(changes_problem)?;
    Ok(Json(ConfigurationPlan { items }))
}

async fn change(
    State(admin): State<Option<Arc<dyn ConfigAdmin>>>,
    State(shown): State<ShownConfiguration>,
    State(lock): State<ChangeLock>,
    Extension(login): Extension<AuthenticatedUser>,
    body::Json(request): body::Json<ConfigurationChange>,
) -> Result<Json<ConfigurationPlan>, HttpProblem> {
    let (admin, changes) = requested_changes(admin, request)?;
    let _one_at_a_time = lock.lock().await;
    // The thread continues if the request is cancelled, so it publishes the new configuration itself.
    let apply = move || admin.apply(&changes, &|values| shown.set(values));
    let items = web::block(apply).await?.map_err(changes_problem)?;
    for item in &items {
        info!(user = %login.user, key = item.key, "configuration changed");
    }
    Ok(Json(ConfigurationPlan { items }))
}

async fn restart(
    State(admin): State<Option<Arc<dyn ConfigAdmin>>>,
    State(lock): State<ChangeLock>,
    Extension(login): Extension<AuthenticatedUser>,
) -> Result<StatusCode, HttpProblem> {
    let admin = changeable(admin)?;
    let _one_at_a_time = lock.lock().await;
    web::block(move || admin.restart()).await?.map_err(changes_problem)?;
    info!(user = %login.user, "restarting the server");
    Ok(StatusCode::NO_CONTENT)
}

fn requested_changes(
    admin: Option<Arc<dyn ConfigAdmin>>,
    request: ConfigurationChange,
) -> Result<(Arc<dyn ConfigAdmin>, ConfigChanges), HttpProblem> {
    if request.changes.is_empty() || request.changes.len() > CHANGES_MAX {
        let expected = format!("1 to {CHANGES_MAX} keys");
        return Err(HttpProblem::invalid("changes", "wrong number of changes").expected(expected));
    }
    Ok((changeable(admin)?, request.changes))
}

pub fn changeable(admin: Option<Arc<dyn ConfigAdmin>>) -> Result<Arc<dyn ConfigAdmin>, HttpProblem> {
    let read_only = || {
        HttpProblem::conflict(
            "not-here",
            "The configuration is read-only",
            "this server does not support configuration changes at run time",
        )
    };
    admin.ok_or_else(read_only)
}

fn changes_problem(error: ConfigChangeError) -> HttpProblem {
    problem("changes", error)
}

/// `field`: the field of the body that contains the keys.
pub fn problem(field: &str, error: ConfigChangeError) -> HttpProblem {
    let detail = error.to_string();
    match error {
        ConfigChangeError::Rejected(errors) => {
            let at = |key: &str| match key {
                "" => field.to_owned(),
                key => format!("{field}.{key}"),
            };
            let (field, first) = errors
                .first()
                .map_or((field.to_owned(), detail), |(key, reason)| (at(key), reason.clone()));
            let mut problem = HttpProblem::invalid(field, first);
            if errors.len() > 1 {
                let error = |(key, detail): (String, String)| FieldError {
                    field: at(&key),
                    detail,
                };
                problem.errors = errors.into_iter().map(error).collect();
            }
            problem
        }
        ConfigChangeError::Files { .. } => HttpProblem::conflict(
            "configuration-files",
            "The configuration files prevent the change",
            detail,
        ),
        ConfigChangeError::Busy { .. } => HttpProblem::conflict("busy", "Not possible now", detail),
        ConfigChangeError::Storage { .. } | ConfigChangeError::Workers { .. } => {
            error!(error = detail, "changing the configuration failed");
            HttpProblem::internal(detail)
        }
    }
}
