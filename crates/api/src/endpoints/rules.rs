//! Rules: what is done with messages and events, how it goes, what they were before, and what they would do.

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use integration::{DryRun, DryRunResult, RuleDefinition, RuleView, Version};
use schemars::JsonSchema;
use serde::Deserialize;

use super::integration::BODY_MAX;
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

pub fn endpoints() -> Vec<Endpoint> {
    const ALL: &str = "/api/v1/rules";
    const ONE: &str = "/api/v1/rules/{id}";
    const TAG: &str = "Integration";
    vec![
        Endpoint::get(ALL, "rules", list)
            .tag(TAG)
            .says("All rules", "With metrics.")
            .returns::<Vec<RuleView>>("Sorted by id."),
        Endpoint::post(ALL, "add_rule", add)
            .tag(TAG)
            .says("Add a rule", "It is in force at once and after a restart.")
            .takes::<RuleDefinition>(BODY_MAX)
            .fails(StatusCode::UNPROCESSABLE_ENTITY)
            .fails(StatusCode::CONFLICT)
            .creates::<RuleView>("Added."),
        Endpoint::post("/api/v1/rules/test", "test_rule", test)
            .tag(TAG)
            .says(
                "Try a rule",
                "Evaluates SQL on one message or event, as in production; nothing is sent anywhere.",
            )
            .takes::<DryRun>(BODY_MAX)
            .fails(StatusCode::UNPROCESSABLE_ENTITY)
            .returns::<DryRunResult>("What the rule would put out."),
        Endpoint::get(ONE, "rule", one)
            .tag(TAG)
            .says("One rule", "With metrics.")
            .path_parameter("id", "The rule's id.")
            .returns::<RuleView>("The rule."),
        Endpoint::put(ONE, "put_rule", put)
            .tag(TAG)
            .says("Add or change a rule", "What it was before is kept in its history.")
            .path_parameter("id", "That of the body.")
            .takes::<RuleDefinition>(BODY_MAX)
            .fails(StatusCode::UNPROCESSABLE_ENTITY)
            .returns::<RuleView>("The rule."),
        Endpoint::delete(ONE, "delete_rule", delete)
            .tag(TAG)
            .says("Delete a rule", "Its history stays, so that it can come back.")
            .path_parameter("id", "The rule's id.")
            .returns_nothing("Deleted."),
        Endpoint::get("/api/v1/rules/{id}/history", "rule_history", history)
            .tag(TAG)
            .says("What a rule has been", "Also of a rule that was deleted.")
            .path_parameter("id", "The rule's id.")
            .returns::<Vec<Version>>("The latest last."),
        Endpoint::post("/api/v1/rules/{id}/roll-back", "roll_back_rule", roll_back)
            .tag(TAG)
            .says("Go back to an earlier version of a rule", "That makes a new version.")
            .path_parameter("id", "The rule's id.")
            .takes::<RollBack>(BODY_MAX)
            .fails(StatusCode::UNPROCESSABLE_ENTITY)
            .returns::<RuleView>("The rule."),
        Endpoint::post("/api/v1/rules/{id}/reset-metrics", "reset_rule_metrics", reset)
            .tag(TAG)
            .says("Set a rule's counters to 0", "Those of its actions stay.")
            .path_parameter("id", "The rule's id.")
            .returns::<RuleView>("The rule."),
    ]
}

async fn list(State(app): State<App>) -> Result<Json<Vec<RuleView>>, Problem> {
    app.engine(|engine| Ok(engine.rules())).await.map(Json)
}

async fn one(State(app): State<App>, Path(id): Path<String>) -> Result<Json<RuleView>, Problem> {
    app.engine(move |engine| engine.rule(&id)).await.map(Json)
}

async fn add(
    State(app): State<App>,
    body::Json(new): body::Json<RuleDefinition>,
) -> Result<(StatusCode, Json<RuleView>), Problem> {
    let added = app.engine(move |engine| {
        super::integration::is_new("rule", &new.id, engine.rule(&new.id).is_ok())?;
        engine.put_rule(new)
    });
    Ok((StatusCode::CREATED, Json(added.await?)))
}

async fn put(
    State(app): State<App>,
    Path(id): Path<String>,
    body::Json(new): body::Json<RuleDefinition>,
) -> Result<Json<RuleView>, Problem> {
    super::integration::is_same("id", &id, &new.id)?;
    app.engine(move |engine| engine.put_rule(new)).await.map(Json)
}

async fn delete(State(app): State<App>, Path(id): Path<String>) -> Result<StatusCode, Problem> {
    app.engine(move |engine| engine.delete_rule(&id)).await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn history(State(app): State<App>, Path(id): Path<String>) -> Result<Json<Vec<Version>>, Problem> {
    app.engine(move |engine| engine.history(&id)).await.map(Json)
}

async fn roll_back(
    State(app): State<App>,
    Path(id): Path<String>,
    body::Json(RollBack { version }): body::Json<RollBack>,
) -> Result<Json<RuleView>, Problem> {
    app.engine(move |engine| engine.roll_back(&id, version)).await.map(Json)
}

async fn reset(State(app): State<App>, Path(id): Path<String>) -> Result<Json<RuleView>, Problem> {
    let reset = app.engine(move |engine| {
        engine.reset_rule_metrics(&id)?;
        engine.rule(&id)
    });
    reset.await.map(Json)
}

async fn test(State(app): State<App>, body::Json(run): body::Json<DryRun>) -> Result<Json<DryRunResult>, Problem> {
    let result = app.block(move || integration::dry_run(&run)).await?;
    result.map(Json).map_err(super::integration::problem)
}
