//! Connectors: where actions send to.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use integration::{CONNECTOR_KINDS, ConnectorDefinition, ConnectorView, config_schema, parameters_schema};
use schemars::{JsonSchema, Schema};
use serde::Serialize;

use super::integration::BODY_MAX;
use crate::app::App;
use crate::body;
use crate::endpoint::Endpoint;
use crate::problem::Problem;

/// What a type of connector and its actions are configured with, as JSON Schema: forms are made from it.
#[derive(Debug, Serialize, JsonSchema)]
pub struct ConnectorType {
    /// Of a connector's `config`.
    config: Option<Schema>,
    /// Of an action's `parameters`.
    parameters: Option<Schema>,
}

pub fn endpoints() -> Vec<Endpoint> {
    const ALL: &str = "/api/v1/connectors";
    const ONE: &str = "/api/v1/connectors/{name}";
    const TAG: &str = "Integration";
    vec![
        Endpoint::get("/api/v1/connector-types", "connector_types", types)
            .tag(TAG)
            .says(
                "Types of connectors",
                "With the JSON Schemas of what they are configured with.",
            )
            .returns::<BTreeMap<String, ConnectorType>>("By type."),
        Endpoint::get(ALL, "connectors", list)
            .tag(TAG)
            .says("All connectors", "Secrets are shown as `***`.")
            .returns::<Vec<ConnectorView>>("Sorted by name."),
        Endpoint::post(ALL, "add_connector", add)
            .tag(TAG)
            .says("Add a connector", "It is in force at once and after a restart.")
            .takes::<ConnectorDefinition>(BODY_MAX)
            .fails(StatusCode::UNPROCESSABLE_ENTITY)
            .fails(StatusCode::CONFLICT)
            .creates::<ConnectorView>("Added."),
        Endpoint::get(ONE, "connector", one)
            .tag(TAG)
            .says("One connector", "Secrets are shown as `***`.")
            .path_parameter("name", "The connector's name.")
            .returns::<ConnectorView>("The connector."),
        Endpoint::put(ONE, "put_connector", put)
            .tag(TAG)
            .says(
                "Add or change a connector",
                "A secret given as `***` stays what it was. Actions that use the connector are started anew.",
            )
            .path_parameter("name", "That of the body.")
            .takes::<ConnectorDefinition>(BODY_MAX)
            .fails(StatusCode::UNPROCESSABLE_ENTITY)
            .returns::<ConnectorView>("The connector."),
        Endpoint::delete(ONE, "delete_connector", delete)
            .tag(TAG)
            .says("Delete a connector", "Only if no action uses it.")
            .path_parameter("name", "The connector's name.")
            .fails(StatusCode::CONFLICT)
            .returns_nothing("Deleted."),
    ]
}

async fn types() -> Json<BTreeMap<String, ConnectorType>> {
    let kind = |kind: &&str| {
        let schemas = ConnectorType {
            config: config_schema(kind),
            parameters: parameters_schema(kind),
        };
        (kind.to_string(), schemas)
    };
    Json(CONNECTOR_KINDS.iter().map(kind).collect())
}

async fn list(State(app): State<App>) -> Result<Json<Vec<ConnectorView>>, Problem> {
    app.engine(|engine| Ok(engine.connectors())).await.map(Json)
}

async fn one(State(app): State<App>, Path(name): Path<String>) -> Result<Json<ConnectorView>, Problem> {
    app.engine(move |engine| engine.connector(&name)).await.map(Json)
}

async fn add(
    State(app): State<App>,
    body::Json(new): body::Json<ConnectorDefinition>,
) -> Result<(StatusCode, Json<ConnectorView>), Problem> {
    let added = app.engine(move |engine| {
        super::integration::is_new("connector", &new.name, engine.connector(&new.name).is_ok())?;
        engine.put_connector(new)
    });
    Ok((StatusCode::CREATED, Json(added.await?)))
}

async fn put(
    State(app): State<App>,
    Path(name): Path<String>,
    body::Json(new): body::Json<ConnectorDefinition>,
) -> Result<Json<ConnectorView>, Problem> {
    super::integration::is_same("name", &name, &new.name)?;
    app.engine(move |engine| engine.put_connector(new)).await.map(Json)
}

async fn delete(State(app): State<App>, Path(name): Path<String>) -> Result<StatusCode, Problem> {
    app.engine(move |engine| engine.delete_connector(&name)).await?;
    Ok(StatusCode::NO_CONTENT)
}
