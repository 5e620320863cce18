//! Rules: definitions, metrics, version history and tests.

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use integration::{DryRun, DryRunResult, Engine, RuleDefinition, RuleView, Version};
use schemars::JsonSchema;
use serde::Deserialize;
use web::body;
use web::guard::RequiredAccess;
use web::problem::HttpProblem;

use super::integration::{BODY_MAX, RuleEngine, add, command, definition_state, delete, list, one, put};
use crate::app::Endpoint;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RollbackRequest {
    /// A version of the rule's history.
    version: u64,
}

const ALL: &str = "/api/v1/rules";
const ONE: &str = "/api/v1/rules/{id}";
const TAG: &str = "Integration";
const ID: &str = "ID of the rule.";

pub fn endpoints() -> Vec<Endpoint> {
    [definitions(), orders(), versions()].into_iter().flatten().collect()
}

fn definitions() -> Vec<Endpoint> {
    vec![
        list(ALL, "rules", Engine::rules).describe("All rules", "With their metrics."),
        add::<RuleDefinition>(ALL, "add_rule").describe("Add a rule", "It runs at once, and after a restart."),
        one::<RuleDefinition>(ONE, "rule")
            .describe("One rule", "With its metrics.")
            .path_parameter("id", ID),
        put::<RuleDefinition>(ONE, "put_rule")
            .describe("Add or change a rule", "Its history keeps the previous version.")
            .path_parameter("id", "The same ID as in the body."),
        delete::<RuleDefinition>(ONE, "delete_rule", Engine::delete_rule)
            .describe("Delete a rule", "Its history stays, so that the rule can be restored.")
            .path_parameter("id", ID),
    ]
}

fn orders() -> Vec<Endpoint> {
    vec![
        Endpoint::post("/api/v1/rules/test", "test_rule", RequiredAccess::Admin, test)
            .tag(TAG)
            .describe(
                "Test a rule",
                "Evaluates SQL on one message or event, as in production; no action runs.",
            )
            .takes::<DryRun>(BODY_MAX)
            .fails(StatusCode::UNPROCESSABLE_ENTITY)
            .returns::<DryRunResult>("Output of the rule."),
        command(
            "/api/v1/rules/{id}/enable",
            "enable_rule",
            RequiredAccess::Admin,
            |engine, id| engine.enable_rule(id, true),
        )
        .describe("Enable a rule", "The rule also runs after a restart.")
        .path_parameter("id", ID)
        .changes(definition_state::<RuleDefinition>),
        command(
            "/api/v1/rules/{id}/disable",
            "disable_rule",
            RequiredAccess::Admin,
            |engine, id| engine.enable_rule(id, false),
        )
        .describe("Disable a rule", "The rule stays defined and receives no messages.")
        .path_parameter("id", ID)
        .changes(definition_state::<RuleDefinition>),
        command(
            "/api/v1/rules/{id}/reset-metrics",
            "reset_rule_metrics",
            RequiredAccess::Operator,
            |engine, id| {
                engine.reset_rule_metrics(id)?;
                engine.rule(id)
            },
        )
        .describe("Set a rule's counters to 0", "The counters of its actions stay.")
        .path_parameter("id", ID),
    ]
}

fn versions() -> Vec<Endpoint> {
    vec![
        Endpoint::get(
            "/api/v1/rules/{id}/history",
            "rule_history",
            RequiredAccess::Viewer,
            history,
        )
        .tag(TAG)
        .describe("Version history of a rule", "Also available for deleted rules.")
        .path_parameter("id", ID)
        .returns::<Vec<Version>>("Oldest first."),
        Endpoint::post(
            "/api/v1/rules/{id}/roll-back",
            "roll_back_rule",
            RequiredAccess::Admin,
            roll_back,
        )
        .tag(TAG)
        .describe(
            "Restore an earlier version of a rule",
            "This adds a new version to the history.",
        )
        .path_parameter("id", ID)
        .takes::<RollbackRequest>(BODY_MAX)
        .fails(StatusCode::UNPROCESSABLE_ENTITY)
        .fails(StatusCode::CONFLICT)
        .returns::<RuleView>("The rule.")
        .changes(definition_state::<RuleDefinition>),
    ]
}

async fn history(State(engine): State<RuleEngine>, Path(id): Path<String>) -> Result<Json<Vec<Version>>, HttpProblem> {
    engine.read(move |engine| engine.history(&id)).await.map(Json)
}

async fn roll_back(
    State(engine): State<RuleEngine>,
    Path(id): Path<String>,
    body::Json(RollbackRequest { version }): body::Json<RollbackRequest>,
) -> Result<Json<RuleView>, HttpProblem> {
    engine
        .change(move |engine| engine.roll_back(&id, version))
        .await
        .map(Json)
}

async fn test(body::Json(run): body::Json<DryRun>) -> Result<Json<DryRunResult>, HttpProblem> {
    let result = web::block(move || integration::dry_run(&run)).await?;
    result.map(Json).map_err(super::integration::problem)
}
