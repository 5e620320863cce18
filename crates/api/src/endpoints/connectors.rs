//! Connectors: where actions send to.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use integration::{
    CONNECTOR_KINDS, ConnectorDefinition, ConnectorTest, Engine, LOCAL_KINDS, config_schema, parameters_schema,
    source_schema,
};
use schemars::{JsonSchema, Schema};
use serde::Serialize;

use super::integration::{BODY_MAX, add, command, delete, list, one, put};
use crate::app::App;
use crate::body;
use crate::endpoint::Endpoint;
use crate::problem::Problem;

/// What a type of connector, its actions and its sources are configured with, as JSON Schema: forms are made from it.
#[derive(Debug, Serialize, JsonSchema)]
pub struct ConnectorType {
    /// Of a connector's `config`; null: actions of the type need no connector.
    config: Option<Schema>,
    /// Of an action's `parameters`.
    parameters: Option<Schema>,
    /// Of a source's `parameters`; null: the type has no sources.
    source: Option<Schema>,
}

const ALL: &str = "/api/v1/connectors";
const ONE: &str = "/api/v1/connectors/{name}";
const NAME: &str = "The connector's name.";

pub fn endpoints() -> Vec<Endpoint> {
    [definitions(), orders()].into_iter().flatten().collect()
}

fn definitions() -> Vec<Endpoint> {
    vec![
        Endpoint::get("/api/v1/connector-types", "connector_types", types)
            .tag("Integration")
            .says(
                "Types of connectors, actions and sources",
                "With the JSON Schemas of what they are configured with, from which forms are made.",
            )
            .returns::<BTreeMap<String, ConnectorType>>("By type."),
        list(ALL, "connectors", Engine::connectors).says("All connectors", "Secrets are shown as `***`."),
        add::<ConnectorDefinition>(ALL, "add_connector")
            .says("Add a connector", "It is in force at once and after a restart."),
        one::<ConnectorDefinition>(ONE, "connector")
            .says("One connector", "Secrets are shown as `***`.")
            .path_parameter("name", NAME),
        put::<ConnectorDefinition>(ONE, "put_connector")
            .says(
                "Add or change a connector",
                "A secret given as `***` stays what it was. Actions and sources that use the connector are started anew.",
            )
            .path_parameter("name", "That of the body."),
        delete(ONE, "delete_connector", Engine::delete_connector)
            .says("Delete a connector", "Only if no action and no source uses it.")
            .path_parameter("name", NAME),
    ]
}

fn orders() -> Vec<Endpoint> {
    vec![
        command(
            "/api/v1/connectors/{name}/enable",
            "enable_connector",
            |engine, name| engine.enable_connector(name, true),
        )
        .says("Enable a connector", "Actions and sources that use it run again.")
        .path_parameter("name", NAME),
        command(
            "/api/v1/connectors/{name}/disable",
            "disable_connector",
            |engine, name| engine.enable_connector(name, false),
        )
        .says("Disable a connector", "Actions and sources that use it do not run.")
        .path_parameter("name", NAME),
        Endpoint::post("/api/v1/connectors/{name}/test", "test_connector", test)
            .tag("Integration")
            .says(
                "Test a connector",
                "Asks its target whether it can be reached and takes the credentials; 15 seconds at most.",
            )
            .path_parameter("name", NAME)
            .fails(StatusCode::UNPROCESSABLE_ENTITY)
            .returns::<ConnectorTest>("How it went."),
        Endpoint::post("/api/v1/connector-test", "try_connector", try_out)
            .tag("Integration")
            .says(
                "Test a connector that is not defined yet",
                "As for one that is; a secret given as `***` is that of the connector of this name.",
            )
            .takes::<ConnectorDefinition>(BODY_MAX)
            .fails(StatusCode::UNPROCESSABLE_ENTITY)
            .returns::<ConnectorTest>("How it went."),
    ]
}

async fn types() -> Json<BTreeMap<String, ConnectorType>> {
    let kind = |kind: &&str| {
        let schemas = ConnectorType {
            config: config_schema(kind),
            parameters: parameters_schema(kind),
            source: source_schema(kind),
        };
        (kind.to_string(), schemas)
    };
    Json(CONNECTOR_KINDS.iter().chain(LOCAL_KINDS).map(kind).collect())
}

async fn test(State(app): State<App>, Path(name): Path<String>) -> Result<Json<ConnectorTest>, Problem> {
    let tested = app.engine_beside(move |engine| engine.test_connector(&name));
    tested.await.map(Json)
}

async fn try_out(
    State(app): State<App>,
    body::Json(new): body::Json<ConnectorDefinition>,
) -> Result<Json<ConnectorTest>, Problem> {
    let tested = app.engine_beside(move |engine| engine.try_connector(new));
    tested.await.map(Json)
}
