//! Rules: what is done with messages and events, how it goes, what they were before, and what they would do.

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use integration::{DryRun, DryRunResult, Engine, RuleDefinition, RuleView, Version};
use schemars::JsonSchema;
use serde::Deserialize;

use super::integration::{BODY_MAX, add, command, delete, list, one, put};
use crate::app::App;
use crate::body;
use crate::endpoint::Endpoint;
use crate::problem::Problem;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RollBack {
    /// One of the rule's history.
    version: u64,
}

const ALL: &str = "/api/v1/rules";
const ONE: &str = "/api/v1/rules/{id}";
const TAG: &str = "Integration";
const ID: &str = "The rule's id.";

pub fn endpoints() -> Vec<Endpoint> {
    [definitions(), orders(), versions()].into_iter().flatten().collect()
}

fn definitions() -> Vec<Endpoint> {
    vec![
        list(ALL, "rules", Engine::rules).says("All rules", "With metrics."),
        add::<RuleDefinition>(ALL, "add_rule").says("Add a rule", "It is in force at once and after a restart."),
        one::<RuleDefinition>(ONE, "rule")
            .says("One rule", "With metrics.")
            .path_parameter("id", ID),
        put::<RuleDefinition>(ONE, "put_rule")
            .says("Add or change a rule", "What it was before is kept in its history.")
            .path_parameter("id", "That of the body."),
        delete(ONE, "delete_rule", Engine::delete_rule)
            .says("Delete a rule", "Its history stays, so that it can come back.")
            .path_parameter("id", ID),
    ]
}

fn orders() -> Vec<Endpoint> {
    vec![
        Endpoint::post("/api/v1/rules/test", "test_rule", test)
            .tag(TAG)
            .says(
                "Try a rule",
                "Evaluates SQL on one message or event, as in production; nothing is sent anywhere.",
            )
            .takes::<DryRun>(BODY_MAX)
            .fails(StatusCode::UNPROCESSABLE_ENTITY)
            .returns::<DryRunResult>("What the rule would put out."),
        command("/api/v1/rules/{id}/enable", "enable_rule", |engine, id| {
            engine.enable_rule(id, true)
        })
        .says("Enable a rule", "It is kept: it is in force after a restart, too.")
        .path_parameter("id", ID),
        command("/api/v1/rules/{id}/disable", "disable_rule", |engine, id| {
            engine.enable_rule(id, false)
        })
        .says("Disable a rule", "It stays, and sees nothing.")
        .path_parameter("id", ID),
        command(
            "/api/v1/rules/{id}/reset-metrics",
            "reset_rule_metrics",
            |engine, id| {
                engine.reset_rule_metrics(id)?;
                engine.rule(id)
            },
        )
        .says("Set a rule's counters to 0", "Those of its actions stay.")
        .path_parameter("id", ID),
    ]
}

fn versions() -> Vec<Endpoint> {
    vec![
        Endpoint::get("/api/v1/rules/{id}/history", "rule_history", history)
            .tag(TAG)
            .says("What a rule has been", "Also of a rule that was deleted.")
            .path_parameter("id", ID)
            .returns::<Vec<Version>>("The latest last."),
        Endpoint::post("/api/v1/rules/{id}/roll-back", "roll_back_rule", roll_back)
            .tag(TAG)
            .says("Go back to an earlier version of a rule", "That makes a new version.")
            .path_parameter("id", ID)
            .takes::<RollBack>(BODY_MAX)
            .fails(StatusCode::UNPROCESSABLE_ENTITY)
            .fails(StatusCode::CONFLICT)
            .returns::<RuleView>("The rule."),
    ]
}

async fn history(State(app): State<App>, Path(id): Path<String>) -> Result<Json<Vec<Version>>, Problem> {
    app.engine_beside(move |engine| engine.history(&id)).await.map(Json)
}

async fn roll_back(
    State(app): State<App>,
    Path(id): Path<String>,
    body::Json(RollBack { version }): body::Json<RollBack>,
) -> Result<Json<RuleView>, Problem> {
    app.engine(move |engine| engine.roll_back(&id, version)).await.map(Json)
}

async fn test(State(app): State<App>, body::Json(run): body::Json<DryRun>) -> Result<Json<DryRunResult>, Problem> {
    let result = app.block(move || integration::dry_run(&run)).await?;
    result.map(Json).map_err(super::integration::problem)
}
