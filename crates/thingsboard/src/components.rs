//! The rule nodes that this server supports, for rule chain editors.

use axum::Json;
use axum::http::StatusCode;
use platform::chain::{COMPONENTS, Component, NodeConnections};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use super::authorities::Authorities;
use super::call::ApiCall;
use super::failure::{ThingsboardError, ThingsboardErrorCode};
use super::operation::{HandlerResult, NoQuery, get};
use crate::services::Endpoint;

pub fn endpoints() -> Vec<Endpoint> {
    let components = [
        get("/api/components", "list_components", Authorities::ADMINS, of_types)
            .describe(
                "List rule nodes of some types",
                "The supported nodes with their outgoing connections.",
            )
            .returns_json("Descriptions of nodes."),
        get(
            "/api/components/{componentType}",
            "list_components_of_type",
            Authorities::ADMINS,
            of_type,
        )
        .describe(
            "List rule nodes of one type",
            "FILTER, ENRICHMENT, TRANSFORMATION, ACTION, EXTERNAL or FLOW.",
        )
        .returns_json("Descriptions of nodes."),
        get("/api/component/{clazz}", "get_component", Authorities::ADMINS, by_class)
            .describe("Read a rule node by its class", "The class name, as in rule chains.")
            .fails(StatusCode::NOT_FOUND)
            .returns_json("The description of a node."),
    ];
    let components = components.into_iter().map(|endpoint| endpoint.tag("Rule chains"));
    components.collect()
}

#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct TypesQuery {
    /// Types, separated by commas. Default: all.
    component_types: Option<String>,
}

fn of_types(_: &ApiCall, (): (), query: TypesQuery, (): ()) -> HandlerResult<Vec<Value>> {
    let wanted = query.component_types.unwrap_or_default();
    let kinds: Vec<&str> = wanted
        .split(',')
        .map(str::trim)
        .filter(|kind| !kind.is_empty())
        .collect();
    Ok(Json(described(|component| {
        kinds.is_empty() || kinds.contains(&component.kind.name())
    })))
}

fn of_type(_: &ApiCall, kind: String, _: NoQuery, (): ()) -> HandlerResult<Vec<Value>> {
    Ok(Json(described(|component| component.kind.name() == kind)))
}

fn by_class(_: &ApiCall, class: String, _: NoQuery, (): ()) -> HandlerResult<Value> {
    let found = described(|component| component.class() == class).into_iter().next();
    found.map(Json).ok_or_else(|| {
        ThingsboardError::new(
            ThingsboardErrorCode::NotFound,
            format!("Rule node {class} is not found"),
        )
    })
}

fn described(is_wanted: impl Fn(&Component) -> bool) -> Vec<Value> {
    COMPONENTS
        .iter()
        .filter(|component| is_wanted(component))
        .map(description)
        .collect()
}

fn description(component: &Component) -> Value {
    let labels = component.labels();
    let is_own = matches!(component.connections, NodeConnections::Own(_));
    json!({
        "type": component.kind.name(),
        "scope": "TENANT",
        "clusteringMode": "ENABLED",
        "name": component.name(),
        "clazz": component.class(),
        "configurationVersion": 0,
        "hasQueueName": false,
        "actions": null,
        "configurationDescriptor": {"nodeDefinition": {
            "description": component.description,
            "details": component.description,
            "inEnabled": component.class() != "org.thingsboard.rule.engine.debug.TbMsgGeneratorNode",
            "outEnabled": is_own || !labels.is_empty(),
            "relationTypes": labels,
            "customRelations": is_own,
            "ruleChainNode": component.title == "rule chain",
            "defaultConfiguration": component.default_configuration(),
        }},
    })
}
