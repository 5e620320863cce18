//! Access rights of a screen: its dashboard, and the data that the dashboard shows. The console requests nothing else
//! (`ui/src/platform/dashboard.ts`).
//!
//! The server resolves aliases that need a query. The screen only names an alias of its dashboard, never a query. It
//! may read the entities that were found for one minute (`grants.rs`), and repeats the request before that.

use axum::Json;
use platform::ids::{EntityId, EntityType};
use platform::model::Dashboard;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use web::strict::from_value;

use super::authorities::Authorities;
use super::call::{ApiCall, Verb, missing};
use super::failure::ThingsboardError;
use super::grants::GRANTS_MAX;
use super::operation::{HandlerResult, get};
use super::query::{EntityDataQuery, find};
use crate::services::Endpoint;

/// Limit of entities of one alias.
const FOUND_MAX: usize = 100;

#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct AliasQuery {
    /// Key of an entity alias of the screen's dashboard.
    alias: String,
    /// Key of a filter of the dashboard, which is applied to the entities.
    #[serde(default)]
    filter: Option<String>,
    /// Type of the current state's entity, which the screen must be allowed to read.
    #[serde(default)]
    entity_type: Option<String>,
    /// ID of the current state's entity.
    #[serde(default)]
    entity_id: Option<String>,
}

pub fn endpoints() -> Vec<Endpoint> {
    vec![
        get("/api/screen/entities", "find_screen_entities", Authorities::TENANT.and_screens(), entities)
            .describe(
                "Resolve an entity alias",
                "For screens: returns the devices and assets of an alias of the screen's dashboard, at most 100 by name. The screen may \
                 read them for a minute.",
            )
            .returns_json("IDs of the entities.")
            .tag("Dashboards"),
    ]
}

fn entities(call: &ApiCall, (): (), asked: AliasQuery, (): ()) -> HandlerResult<Vec<EntityId>> {
    let Some(screen) = call.principal.screen else {
        return Err(ThingsboardError::permission());
    };
    let dashboard: Dashboard = call.entity(screen, Verb::Read)?;
    let current: Option<EntityId> = match (&asked.entity_type, &asked.entity_id) {
        (Some(kind), Some(id)) => Some(
            from_value(json!({"entityType": kind, "id": id}))
                .map_err(|error| ThingsboardError::bad_request(format!("Entity: {error}")))?,
        ),
        _ => None,
    };
    if let Some(current) = current {
        call.record(current, Verb::Read)?;
    }
    let configuration = dashboard.configuration.unwrap_or_default();
    let unknown = || missing(EntityId::new(EntityType::Dashboard, screen));
    let filter = configuration["entityAliases"][&asked.alias]["filter"].as_object();
    let filter = Value::Object(filter.ok_or_else(unknown)?.clone());
    let conditions = match &asked.filter {
        None => Vec::new(),
        Some(name) if configuration["filters"][name].is_object() => conditions(&configuration["filters"][name]),
        Some(_) => return Err(unknown()),
    };
    let Some(filter) = with_root_entity(filter, current) else {
        return Ok(Json(Vec::new()));
    };
    let size = if filter["resolveMultiple"] == false {
        1
    } else {
        FOUND_MAX
    };
    let name = json!({"type": "ENTITY_FIELD", "key": "name"});
    let query = json!({
        "entityFilter": filter, "keyFilters": conditions, "entityFields": [name], "latestValues": [],
        "pageLink": {"page": 0, "pageSize": size, "sortOrder": {"key": name, "direction": "ASC"}},
    });
    let query: EntityDataQuery =
        from_value(query).map_err(|error| ThingsboardError::bad_request(format!("Alias {}: {error}", asked.alias)))?;
    let rows = find(&call.of_tenant(), &query)?.rows;
    let found = rows.iter().map(super::query::QueriedEntity::id);
    let found: Vec<EntityId> = found
        .filter(|id| matches!(id.kind, EntityType::Device | EntityType::Asset))
        .collect();
    if !call.platform_access.grants().grant(screen, &found, call.now_ms) {
        return Err(ThingsboardError::bad_request(format!(
            "Screens show more than {GRANTS_MAX} entities"
        )));
    }
    Ok(Json(found))
}

/// Sets the root entity of the filter. `None`: there is no root, so the alias has no entities.
fn with_root_entity(mut filter: Value, current: Option<EntityId>) -> Option<Value> {
    let default = || {
        filter["defaultStateEntity"]
            .get("id")
            .is_some_and(Value::is_string)
            .then(|| filter["defaultStateEntity"].clone())
    };
    let state = current.map(|current| json!(current)).or_else(default);
    if filter["type"] == "stateEntity" {
        return Some(json!({"type": "singleEntity", "singleEntity": state?}));
    }
    if filter["rootStateEntity"] == true {
        filter["rootEntity"] = state?;
    }
    Some(filter)
}

/// Converts conditions to those of queries: one predicate each, without data of the editor.
fn conditions(filter: &Value) -> Vec<Value> {
    let all = filter["keyFilters"].as_array().into_iter().flatten();
    let of_key = |one: &Value| -> Vec<Value> {
        let with = |predicate: Value| json!({"key": one["key"], "valueType": one["valueType"], "predicate": predicate});
        if !one["predicate"].is_null() {
            return vec![with(one["predicate"].clone())];
        }
        let predicates = one["predicates"].as_array().into_iter().flatten();
        predicates.map(|predicate| with(plain(predicate))).collect()
    };
    all.flat_map(of_key).collect()
}

fn plain(info: &Value) -> Value {
    let predicate = info.get("keyFilterPredicate").unwrap_or(info);
    let mut plain_one = predicate.clone();
    if predicate["type"] == "COMPLEX" {
        let parts = predicate["predicates"].as_array().into_iter().flatten();
        plain_one["predicates"] = parts.map(plain).collect();
    }
    plain_one
}
