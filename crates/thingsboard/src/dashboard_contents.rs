//! The contents of a dashboard. A screen may read nothing else.

use std::collections::HashSet;

use platform::ids::Uuid;
use platform::model::Dashboard;
use serde_json::Value;

/// Alarms that the widgets of a dashboard show.
#[derive(Default)]
pub struct ShownAlarms {
    /// A widget without an entity shows alarms of the whole tenant.
    pub has_all: bool,
    /// A widget shows alarms of the current state's entity, which may be any entity on the dashboard.
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

    /// Whether the alarms of an entity on the dashboard are shown.
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

/// Names of the attributes that the widgets show. A screen must not read other attributes of the same entities.
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

/// Whether the dashboard contains the ID.
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
