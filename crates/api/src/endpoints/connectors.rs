//! Connectors: the external systems that actions send to and sources read from.

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
use web::body;
use web::guard::RequiredAccess;
use web::problem::HttpProblem;

use super::integration::{BODY_MAX, RuleEngine, add, command, definition_state, delete, list, one, put};
use crate::app::Endpoint;
use crate::concurrency::ConnectorTests;

/// JSON Schemas of a connector type, its actions and its sources. Forms are generated from them.
#[derive(Debug, Serialize, JsonSchema)]
pub struct ConnectorType {
    /// Schema of a connector's `config`. `null`: actions of this type need no connector.
    config: Option<Schema>,
    /// Schema of an action's `parameters`.
    parameters: Option<Schema>,
    /// Schema of a source's `parameters`. `null`: this type has no sources.
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
        Endpoint::get(
            "/api/v1/connector-types",
            "connector_types",
            RequiredAccess::Viewer,
            types,
        )
        .tag("Integration")
        .describe(
            "Types of connectors, actions and sources",
            "With the JSON Schemas of their configuration, from which forms are generated.",
        )
        .returns::<BTreeMap<String, ConnectorType>>("Schemas by type."),
        list(ALL, "connectors", Engine::connectors).describe("All connectors", "Secrets are shown as `***`."),
        add::<ConnectorDefinition>(ALL, "add_connector")
            .describe("Add a connector", "It can be used at once, and after a restart."),
        one::<ConnectorDefinition>(ONE, "connector")
            .describe("One connector", "Secrets are shown as `***`.")
            .path_parameter("name", NAME),
        put::<ConnectorDefinition>(ONE, "put_connector")
            .describe(
                "Add or change a connector",
                "A secret given as `***` keeps its value. Actions and sources that use the connector restart.",
            )
            .path_parameter("name", "The same name as in the body."),
        delete::<ConnectorDefinition>(ONE, "delete_connector", Engine::delete_connector)
            .describe("Delete a connector", "Fails if an action or a source uses it.")
            .path_parameter("name", NAME),
    ]
}

fn orders() -> Vec<Endpoint> {
    vec![
        command("/api/v1/connectors/{name}/enable", "enable_connector", RequiredAccess::Admin, |engine, name| engine.enable_connector(name, true))
        .describe("Enable a connector", "Actions and sources that use it start again.")
        .path_parameter("name", NAME).changes(definition_state::<ConnectorDefinition>),
        command("/api/v1/connectors/{name}/disable", "disable_connector", RequiredAccess::Admin, |engine, name| engine.enable_connector(name, false))
        .describe("Disable a connector", "Actions and sources that use it stop.")
        .path_parameter("name", NAME).changes(definition_state::<ConnectorDefinition>),
        Endpoint::post("/api/v1/connectors/{name}/test", "test_connector", RequiredAccess::Operator, test)
            .tag("Integration")
            .describe(
                "Test a connector",
                "Checks whether the target can be reached and accepts the credentials. Takes at most 15 seconds.",
            )
            .path_parameter("name", NAME)
            .fails(StatusCode::UNPROCESSABLE_ENTITY)
            .returns::<ConnectorTest>("Result of the test."),
        Endpoint::post("/api/v1/connector-test", "try_connector", RequiredAccess::Admin, test_definition)
            .tag("Integration")
            .describe(
                "Test a connector that is not defined yet",
                "Like the test of a defined connector. A secret given as `***` is taken from the defined connector with this name.",
            )
            .takes::<ConnectorDefinition>(BODY_MAX)
            .fails(StatusCode::UNPROCESSABLE_ENTITY)
            .returns::<ConnectorTest>("Result of the test."),
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

async fn test(
    State(engine): State<RuleEngine>,
    State(tests): State<ConnectorTests>,
    Path(name): Path<String>,
) -> Result<Json<ConnectorTest>, HttpProblem> {
    let permit = tests.admit()?;
    let tested = engine.read(move |engine| {
        let _permit = permit;
        engine.test_connector(&name)
    });
    tested.await.map(Json)
}

async fn test_definition(
    State(engine): State<RuleEngine>,
    State(tests): State<ConnectorTests>,
    body::Json(new): body::Json<ConnectorDefinition>,
) -> Result<Json<ConnectorTest>, HttpProblem> {
    let permit = tests.admit()?;
    let tested = engine.read(move |engine| {
        let _permit = permit;
        engine.try_connector(new)
    });
    tested.await.map(Json)
}
