//! Actions: what rules send, with their buffers.

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use integration::{ActionDefinition, ActionView};

use super::integration::BODY_MAX;
use crate::app::App;
use crate::body;
use crate::endpoint::Endpoint;
use crate::problem::Problem;

pub fn endpoints() -> Vec<Endpoint> {
    const ALL: &str = "/api/v1/actions";
    const ONE: &str = "/api/v1/actions/{id}";
    const TAG: &str = "Integration";
    const ID: &str = "`type:name`";
    let command = |endpoint: Endpoint, summary, description| {
        endpoint
            .tag(TAG)
            .says(summary, description)
            .path_parameter("id", ID)
            .returns::<ActionView>("The action.")
    };
    vec![
        Endpoint::get(ALL, "actions", list)
            .tag(TAG)
            .says("All actions", "With health and metrics.")
            .returns::<Vec<ActionView>>("Sorted by id."),
        Endpoint::post(ALL, "add_action", add)
            .tag(TAG)
            .says("Add an action", "It is in force at once and after a restart.")
            .takes::<ActionDefinition>(BODY_MAX)
            .fails(StatusCode::UNPROCESSABLE_ENTITY)
            .fails(StatusCode::CONFLICT)
            .creates::<ActionView>("Added."),
        Endpoint::get(ONE, "action", one)
            .tag(TAG)
            .says("One action", "With health and metrics.")
            .path_parameter("id", ID)
            .returns::<ActionView>("The action."),
        Endpoint::put(ONE, "put_action", put)
            .tag(TAG)
            .says("Add or change an action", "What waits in its buffer stays there.")
            .path_parameter("id", "That of the body.")
            .takes::<ActionDefinition>(BODY_MAX)
            .fails(StatusCode::UNPROCESSABLE_ENTITY)
            .returns::<ActionView>("The action."),
        Endpoint::delete(ONE, "delete_action", delete)
            .tag(TAG)
            .says(
                "Delete an action",
                "With all that waits in its buffer; only if no rule uses it.",
            )
            .path_parameter("id", ID)
            .fails(StatusCode::CONFLICT)
            .returns_nothing("Deleted."),
        command(
            Endpoint::post("/api/v1/actions/{id}/pause", "pause_action", pause),
            "Pause an action",
            "Nothing is sent; messages wait in its buffer. Until it is resumed or started anew.",
        ),
        command(
            Endpoint::post("/api/v1/actions/{id}/resume", "resume_action", resume),
            "Resume an action",
            "What has waited is sent.",
        ),
        command(
            Endpoint::post("/api/v1/actions/{id}/restart", "restart_action", restart),
            "Restart an action",
            "What is on its way is finished or sent again; what waits stays.",
        ),
        command(
            Endpoint::post("/api/v1/actions/{id}/purge", "purge_action", purge),
            "Empty an action's buffer",
            "What waits is thrown away, and counted as purged.",
        ),
    ]
}

async fn list(State(app): State<App>) -> Result<Json<Vec<ActionView>>, Problem> {
    app.engine(|engine| Ok(engine.actions())).await.map(Json)
}

async fn one(State(app): State<App>, Path(id): Path<String>) -> Result<Json<ActionView>, Problem> {
    app.engine(move |engine| engine.action(&id)).await.map(Json)
}

async fn add(
    State(app): State<App>,
    body::Json(new): body::Json<ActionDefinition>,
) -> Result<(StatusCode, Json<ActionView>), Problem> {
    let added = app.engine(move |engine| {
        let id = new.id();
        super::integration::is_new("action", &id, engine.action(&id).is_ok())?;
        engine.put_action(new)
    });
    Ok((StatusCode::CREATED, Json(added.await?)))
}

async fn put(
    State(app): State<App>,
    Path(id): Path<String>,
    body::Json(new): body::Json<ActionDefinition>,
) -> Result<Json<ActionView>, Problem> {
    super::integration::is_same("name", &id, &new.id())?;
    app.engine(move |engine| engine.put_action(new)).await.map(Json)
}

async fn delete(State(app): State<App>, Path(id): Path<String>) -> Result<StatusCode, Problem> {
    app.engine(move |engine| engine.delete_action(&id)).await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn pause(State(app): State<App>, Path(id): Path<String>) -> Result<Json<ActionView>, Problem> {
    let changed = app.engine(move |engine| {
        engine.with_action(&id, |action| action.pause())?;
        engine.action(&id)
    });
    changed.await.map(Json)
}

async fn resume(State(app): State<App>, Path(id): Path<String>) -> Result<Json<ActionView>, Problem> {
    let changed = app.engine(move |engine| {
        engine.with_action(&id, |action| action.resume())?;
        engine.action(&id)
    });
    changed.await.map(Json)
}

async fn restart(State(app): State<App>, Path(id): Path<String>) -> Result<Json<ActionView>, Problem> {
    let changed = app.engine(move |engine| {
        engine.restart_action(&id)?;
        engine.action(&id)
    });
    changed.await.map(Json)
}

async fn purge(State(app): State<App>, Path(id): Path<String>) -> Result<Json<ActionView>, Problem> {
    let changed = app.engine(move |engine| {
        engine.with_action(&id, |action| action.purge())?;
        engine.action(&id)
    });
    changed.await.map(Json)
}
