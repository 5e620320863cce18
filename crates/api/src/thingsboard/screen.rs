//! What a screen may read: its dashboard, and of the rest what the dashboard shows. The console asks for no more (`ui/src/platform/dashboard.ts`).

use platform::ids::Uuid;
use platform::model::Dashboard;
use serde_json::Value;

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
        let widgets: Vec<&Value> = match &configuration["widgets"] {
            Value::Object(widgets) => widgets.values().collect(),
            Value::Array(widgets) => widgets.iter().collect(),
            _ => Vec::new(),
        };
        for widget in widgets.into_iter().filter(|widget| widget["type"] == "alarm") {
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
