//! The configuration in force, where each value comes from, and changes of what can change while the server runs.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::{Extension, Json};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tracing::{error, info};

use crate::app::App;
use crate::body;
use crate::config::ConfigValue;
use crate::config_admin::{ConfigAdmin, ConfigChanges, ConfigDifference, ConfigError};
use crate::endpoint::Endpoint;
use crate::guard::Login;
use crate::problem::{FieldError, Problem};

const BODY_MAX: usize = 64 * 1024;
/// In one request.
const CHANGES_MAX: usize = 500;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ConfigurationChange {
    /// By key the new value, as it is typed after `--set key=`: `15s`, `["a", "b"]`. `null` forgets what was changed at run time, so that
    /// the file or the default holds again.
    changes: ConfigChanges,
}

/// What is another value then.
#[derive(Serialize, JsonSchema)]
pub struct ConfigurationPlan {
    /// In the order of the reference. Empty: nothing changes.
    items: Vec<ConfigDifference>,
}

pub fn endpoints() -> Vec<Endpoint> {
    vec![
        Endpoint::get("/api/v1/configuration", "configuration", configuration)
            .tag("Node")
            .says(
                "The configuration in force",
                "Every value with its origin, and whether it can be changed here. Secrets are `***`. What was reloaded and waits for a \
                 restart is shown as it will be.",
            )
            .returns::<Vec<ConfigValue>>("In the order of the reference."),
        Endpoint::post("/api/v1/configuration/check", "check_configuration", check)
            .tag("Node")
            .says(
                "Try a change of the configuration",
                "Checks it as `tidewire check` does and says what would change. Changes nothing.",
            )
            .takes::<ConfigurationChange>(BODY_MAX)
            .fails(StatusCode::CONFLICT)
            .fails(StatusCode::UNPROCESSABLE_ENTITY)
            .returns::<ConfigurationPlan>("It is good; what would change."),
        Endpoint::put("/api/v1/configuration", "change_configuration", change)
            .tag("Node")
            .says(
                "Change the configuration",
                "Of values whose `fixed_because` is `null`. All of it or, when something is wrong, none. It is kept in `runtime.toml` of the \
                 data directory, which beats the file, and is in force when the answer comes. What the files say since they were read \
                 last is taken over, too, as at SIGHUP.",
            )
            .takes::<ConfigurationChange>(BODY_MAX)
            .fails(StatusCode::CONFLICT)
            .fails(StatusCode::UNPROCESSABLE_ENTITY)
            .returns::<ConfigurationPlan>("In force; what has changed."),
        Endpoint::post("/api/v1/restart", "restart", restart)
            .tag("Node")
            .says(
                "Restart the server",
                "It ends in an orderly way, which disconnects all clients, and starts anew in the same process, with the configuration as it \
                 is in its files. Not done when that is known to keep it from starting, while a backup is made, or when one is to be restored.",
            )
            .fails(StatusCode::CONFLICT)
            .returns_nothing("It ends now."),
    ]
}

async fn configuration(State(app): State<App>) -> Json<Vec<ConfigValue>> {
    Json(app.configuration().as_ref().clone())
}

async fn check(
    State(app): State<App>,
    body::Json(request): body::Json<ConfigurationChange>,
) -> Result<Json<ConfigurationPlan>, Problem> {
    let (admin, changes) = wanted(&app, request)?;
    let planned = app.block(move || admin.plan(&changes)).await?;
    let items = planned.map_err(problem)?;
    Ok(Json(ConfigurationPlan { items }))
}

async fn change(
    State(app): State<App>,
    Extension(login): Extension<Login>,
    body::Json(request): body::Json<ConfigurationChange>,
) -> Result<Json<ConfigurationPlan>, Problem> {
    let (admin, changes) = wanted(&app, request)?;
    let _one_at_a_time = app.changes().lock().await;
    let shown = app.clone();
    // The thread goes on when nobody waits for the answer any more, so that it is the one that tells.
    let apply = move || admin.apply(&changes, &|values| shown.set_configuration(values));
    let items = app.block(apply).await?.map_err(problem)?;
    for item in &items {
        info!(user = %login.user, key = item.key, "the configuration was changed");
    }
    Ok(Json(ConfigurationPlan { items }))
}

async fn restart(State(app): State<App>, Extension(login): Extension<Login>) -> Result<StatusCode, Problem> {
    let admin = admin(&app)?;
    let _one_at_a_time = app.changes().lock().await;
    app.block(move || admin.restart()).await?.map_err(problem)?;
    info!(user = %login.user, "the server starts anew");
    Ok(StatusCode::NO_CONTENT)
}

fn wanted(app: &App, request: ConfigurationChange) -> Result<(Arc<dyn ConfigAdmin>, ConfigChanges), Problem> {
    if request.changes.is_empty() || request.changes.len() > CHANGES_MAX {
        let expected = format!("1 to {CHANGES_MAX} keys");
        return Err(Problem::invalid("changes", "there are none, or too many").expected(expected));
    }
    Ok((admin(app)?, request.changes))
}

fn admin(app: &App) -> Result<Arc<dyn ConfigAdmin>, Problem> {
    let nobody = || {
        Problem::conflict(
            "not-here",
            "It is not changed here",
            "this server's configuration is fixed",
        )
    };
    app.config().configuration.clone().ok_or_else(nobody)
}

fn problem(error: ConfigError) -> Problem {
    let detail = error.to_string();
    match error {
        ConfigError::Rejected(errors) => {
            let at = |key: &str| format!("changes.{key}");
            let (field, first) = errors.first().map_or(("changes".to_owned(), detail), |(key, because)| {
                (at(key), because.clone())
            });
            let mut problem = Problem::invalid(field, first);
            if errors.len() > 1 {
                let error = |(key, detail): (String, String)| FieldError {
                    field: at(&key),
                    detail,
                };
                problem.errors = errors.into_iter().map(error).collect();
            }
            problem
        }
        ConfigError::Files { .. } => Problem::conflict("configuration-files", "The files stand in the way", detail),
        ConfigError::Busy { .. } => Problem::conflict("busy", "Not now", detail),
        ConfigError::Storage { .. } | ConfigError::Workers { .. } => {
            error!(error = detail, "the configuration");
            Problem::internal(detail)
        }
    }
}
