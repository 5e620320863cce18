//! Sources: what comes in from other systems.

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use integration::{SourceDefinition, SourceView};

use super::integration::BODY_MAX;
use crate::app::App;
use crate::body;
use crate::endpoint::Endpoint;
use crate::problem::Problem;

pub fn endpoints() -> Vec<Endpoint> {
    const ALL: &str = "/api/v1/sources";
    const ONE: &str = "/api/v1/sources/{id}";
    const TAG: &str = "Integration";
    const ID: &str = "`type:name`";
    vec![
        Endpoint::get(ALL, "sources", list)
            .tag(TAG)
            .says("All sources", "With how they go.")
            .returns::<Vec<SourceView>>("Sorted by id."),
        Endpoint::post(ALL, "add_source", add)
            .tag(TAG)
            .says("Add a source", "It is in force at once and after a restart.")
            .takes::<SourceDefinition>(BODY_MAX)
            .fails(StatusCode::UNPROCESSABLE_ENTITY)
            .fails(StatusCode::CONFLICT)
            .creates::<SourceView>("Added."),
        Endpoint::get(ONE, "source", one)
            .tag(TAG)
            .says("One source", "With how it goes.")
            .path_parameter("id", ID)
            .returns::<SourceView>("The source."),
        Endpoint::put(ONE, "put_source", put)
            .tag(TAG)
            .says(
                "Add or change a source",
                "What it has not confirmed to the outside comes again.",
            )
            .path_parameter("id", "That of the body.")
            .takes::<SourceDefinition>(BODY_MAX)
            .fails(StatusCode::UNPROCESSABLE_ENTITY)
            .returns::<SourceView>("The source."),
        Endpoint::delete(ONE, "delete_source", delete)
            .tag(TAG)
            .says("Delete a source", "What it has not confirmed stays where it came from.")
            .path_parameter("id", ID)
            .returns_nothing("Deleted."),
    ]
}

async fn list(State(app): State<App>) -> Result<Json<Vec<SourceView>>, Problem> {
    app.engine(|engine| Ok(engine.sources())).await.map(Json)
}

async fn one(State(app): State<App>, Path(id): Path<String>) -> Result<Json<SourceView>, Problem> {
    app.engine(move |engine| engine.source(&id)).await.map(Json)
}

async fn add(
    State(app): State<App>,
    body::Json(new): body::Json<SourceDefinition>,
) -> Result<(StatusCode, Json<SourceView>), Problem> {
    let added = app.engine(move |engine| {
        super::integration::is_new("source", &new.id(), engine.source(&new.id()).is_ok())?;
        engine.put_source(new)
    });
    Ok((StatusCode::CREATED, Json(added.await?)))
}

async fn put(
    State(app): State<App>,
    Path(id): Path<String>,
    body::Json(new): body::Json<SourceDefinition>,
) -> Result<Json<SourceView>, Problem> {
    super::integration::is_same("name", &id, &new.id())?;
    app.engine(move |engine| engine.put_source(new)).await.map(Json)
}

async fn delete(State(app): State<App>, Path(id): Path<String>) -> Result<StatusCode, Problem> {
    app.engine(move |engine| engine.delete_source(&id)).await?;
    Ok(StatusCode::NO_CONTENT)
}
