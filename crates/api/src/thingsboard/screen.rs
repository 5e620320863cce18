//! What a screen may read: its dashboard, and of the rest what the dashboard shows. The console asks for no more (`ui/src/platform/dashboard.ts`).
//!
//! Whom an alias stands for that has to be looked for, the server looks for: the screen names an alias of its dashboard, never a query. What was
//! found may be read for as long as [`GRANTED_MS`]; the screen asks again before that.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, PoisonError};

use axum::Json;
use platform::ids::{EntityId, EntityType, Uuid};
use platform::model::Dashboard;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use super::call::{Call, Verb, missing};
use super::failure::Failure;
use super::operation::{Outcome, get};
use super::query::{EntityDataQuery, find};
use crate::endpoint::Endpoint;
use crate::guard::Who;

/// How long what an alias stood for may be read. The console asks every ten seconds.
const GRANTED_MS: i64 = 60_000;
/// Entities of all screens.
const GRANTS_MAX: usize = 100_000;
/// That one alias stands for.
const FOUND_MAX: usize = 100;

/// Until when the screens of a dashboard may read an entity that an alias of it stood for.
#[derive(Default)]
pub struct Grants(Mutex<HashMap<(Uuid, Uuid), i64>>);

impl Grants {
    /// False: there are too many.
    fn give(&self, dashboard: Uuid, entities: &[EntityId], now_ms: i64) -> bool {
        let mut grants = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if grants.len() + entities.len() > GRANTS_MAX {
            grants.retain(|_, until_ms| *until_ms > now_ms);
        }
        if grants.len() + entities.len() > GRANTS_MAX {
            return false;
        }
        let until_ms = now_ms.saturating_add(GRANTED_MS);
        grants.extend(entities.iter().map(|entity| ((dashboard, entity.id), until_ms)));
        true
    }

    pub fn has(&self, dashboard: Uuid, entity: Uuid, now_ms: i64) -> bool {
        let grants = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        grants
            .get(&(dashboard, entity))
            .is_some_and(|until_ms| *until_ms > now_ms)
    }
}

#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct AliasQuery {
    /// Key of an entity alias of the screen's dashboard.
    alias: String,
    /// Key of a filter of the dashboard, which lets through some of them.
    #[serde(default)]
    filter: Option<String>,
    /// Type of what the state that is looked at is about: something that the screen may read.
    #[serde(default)]
    entity_type: Option<String>,
    /// Its identifier.
    #[serde(default)]
    entity_id: Option<String>,
}

pub fn endpoints() -> Vec<Endpoint> {
    vec![
        get("/api/screen/entities", "find_screen_entities", Who::TENANT.and_screens(), entities)
            .says(
                "Find what an alias stands for",
                "For screens: devices and assets, at most 100 by name, that an alias of the screen's own dashboard stands for. The screen may \
                 read them for a minute.",
            )
            .returns_json("Their identifiers.")
            .tag("Dashboards"),
    ]
}

fn entities(call: &Call, (): (), asked: AliasQuery, (): ()) -> Outcome<Vec<EntityId>> {
    let Some(screen) = call.person.screen else {
        return Err(Failure::permission());
    };
    let dashboard: Dashboard = call.entity(screen, Verb::Read)?;
    let current: Option<EntityId> = match (&asked.entity_type, &asked.entity_id) {
        (Some(kind), Some(id)) => Some(
            serde_json::from_value(json!({"entityType": kind, "id": id}))
                .map_err(|error| Failure::bad_request(format!("Entity: {error}")))?,
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
    let Some(filter) = rooted(filter, current) else {
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
    let query: EntityDataQuery = serde_json::from_value(query)
        .map_err(|error| Failure::bad_request(format!("Alias {}: {error}", asked.alias)))?;
    let rows = find(&call.of_tenant(), &query)?.rows;
    let found = rows.iter().map(super::query::Row::id);
    let found: Vec<EntityId> = found
        .filter(|id| matches!(id.kind, EntityType::Device | EntityType::Asset))
        .collect();
    if !call.world.grants().give(screen, &found, call.now_ms) {
        return Err(Failure::bad_request(format!(
            "Screens show more than {GRANTS_MAX} entities"
        )));
    }
    Ok(Json(found))
}

/// The filter with whom it begins at. `None`: it begins at nobody, and stands for nobody.
fn rooted(mut filter: Value, current: Option<EntityId>) -> Option<Value> {
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

/// As a query has them: one of each, without what forms keep beside them.
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

/// Alarms that a dashboard's widgets show.
#[derive(Default)]
pub struct ShownAlarms {
    /// There is a widget without one entity, which shows those of the whole tenant.
    pub has_all: bool,
    /// There is a widget of the entity that the dashboard's state is about, which may be any on it.
    has_states: bool,
    of: Vec<String>,
}

impl ShownAlarms {
    pub fn on(dashboard: &Dashboard) -> ShownAlarms {
        let mut shown = ShownAlarms::default();
        let Some(configuration) = dashboard.configuration.as_ref() else {
            return shown;
        };
        for widget in widgets(configuration).filter(|widget| widget["type"] == "alarm") {
            shown.add(&widget["config"]["datasources"][0], &configuration["entityAliases"]);
        }
        shown
    }

    /// Of an entity that is on the dashboard.
    pub fn has(&self, entity: Uuid) -> bool {
        self.has_all || self.has_states || self.of.contains(&entity.to_string())
    }

    fn add(&mut self, source: &Value, aliases: &Value) {
        let filter = source["entityAliasId"].as_str().map(|alias| &aliases[alias]["filter"]);
        let kind = filter.and_then(|filter| filter["type"].as_str());
        let one = match (filter, kind) {
            _ if source["type"] == "device" => source["deviceId"].as_str(),
            (Some(filter), Some("singleEntity")) => filter["singleEntity"]["id"].as_str(),
            (Some(filter), Some("entityList")) => match filter["entityList"].as_array().map(Vec::as_slice) {
                Some([one]) => one.as_str(),
                _ => None,
            },
            _ => None,
        };
        match one {
            Some(id) => self.of.push(id.to_owned()),
            None if kind == Some("stateEntity") => self.has_states = true,
            None => self.has_all = true,
        }
    }
}

fn widgets(configuration: &Value) -> impl Iterator<Item = &Value> {
    let by_id = configuration["widgets"]
        .as_object()
        .into_iter()
        .flat_map(|all| all.values());
    by_id.chain(configuration["widgets"].as_array().into_iter().flatten())
}

/// Names of attributes that a dashboard's widgets show: others of the same entity may be nobody's business.
pub fn shown_attributes(dashboard: &Dashboard) -> HashSet<String> {
    let sources = dashboard
        .configuration
        .iter()
        .flat_map(widgets)
        .filter_map(|widget| widget["config"]["datasources"].as_array())
        .flatten();
    let keys = sources.filter_map(|source| source["dataKeys"].as_array()).flatten();
    keys.filter(|key| key["type"] == "attribute")
        .filter_map(|key| key["name"].as_str().map(str::to_owned))
        .collect()
}

/// Whether the identifier is anywhere on the dashboard.
pub fn names(dashboard: &Dashboard, id: Uuid) -> bool {
    let id = id.to_string();
    let mut left: Vec<&Value> = dashboard.configuration.iter().collect();
    while let Some(value) = left.pop() {
        match value {
            Value::String(text) if *text == id => return true,
            Value::Array(items) => left.extend(items),
            Value::Object(fields) => left.extend(fields.values()),
            _ => {}
        }
    }
    false
}
