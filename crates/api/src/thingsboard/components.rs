//! What an editor of rule chains offers: the nodes that run here.

use axum::Json;
use axum::http::StatusCode;
use platform::chain::{COMPONENTS, Component, Connections};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use super::call::Call;
use super::failure::{Code, Failure};
use super::operation::{NoQuery, Outcome, get};
use crate::endpoint::Endpoint;
use crate::guard::Who;

pub fn endpoints() -> Vec<Endpoint> {
    let components = [
        get("/api/components", "list_components", Who::ADMINS, of_types)
            .says(
                "Rule nodes of some kinds",
                "Those that run here, with the connections that go out of them.",
            )
            .returns_json("Descriptions of nodes."),
        get(
            "/api/components/{componentType}",
            "list_components_of_type",
            Who::ADMINS,
            of_type,
        )
        .says(
            "Rule nodes of one kind",
            "FILTER, ENRICHMENT, TRANSFORMATION, ACTION, EXTERNAL or FLOW.",
        )
        .returns_json("Descriptions of nodes."),
        get("/api/component/{clazz}", "get_component", Who::ADMINS, by_class)
            .says("A rule node by its class", "As it is named in rule chains.")
            .fails(StatusCode::NOT_FOUND)
            .returns_json("The description of a node."),
    ];
    let components = components.into_iter().map(|endpoint| endpoint.tag("Rule chains"));
    components.collect()
}

#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct TypesQuery {
    /// Kinds with commas between them; all without it.
    component_types: Option<String>,
}

fn of_types(_: &Call, (): (), query: TypesQuery, (): ()) -> Outcome<Vec<Value>> {
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

fn of_type(_: &Call, kind: String, _: NoQuery, (): ()) -> Outcome<Vec<Value>> {
    Ok(Json(described(|component| component.kind.name() == kind)))
}

fn by_class(_: &Call, class: String, _: NoQuery, (): ()) -> Outcome<Value> {
    let found = described(|component| component.class() == class).into_iter().next();
    found
        .map(Json)
        .ok_or_else(|| Failure::new(Code::NotFound, format!("Rule node {class} is not found")))
}

fn described(is_wanted: impl Fn(&Component) -> bool) -> Vec<Value> {
    COMPONENTS
        .iter()
        .filter(|component| is_wanted(component))
        .map(description)
        .collect()
}

fn description(component: &Component) -> Value {
    let (labels, is_own) = match component.connections {
        Connections::Fixed(labels) => (labels, false),
        Connections::Own => (&["Failure"][..], true),
    };
    json!({
        "type": component.kind.name(),
        "scope": "TENANT",
        "clusteringMode": "ENABLED",
        "name": component.name,
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
            "ruleChainNode": component.name == "rule chain",
            "defaultConfiguration": {},
        }},
    })
}
