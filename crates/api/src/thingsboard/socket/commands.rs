//! What a client says on the WebSocket: the commands of the old path, in lists by kind, and those of the new one, with a
//! type each.

use platform::ids::{EntityId, EntityType, Uuid};
use platform::model::Scope;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use super::super::lists::{comma_separated, without_repeats};
use super::super::query::{EntityDataQuery, EntityKey};
use crate::strict::{Strict, from_value};

/// Everything of one message.
#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
pub struct Message {
    pub auth_cmd: Option<AuthCommand>,
    cmds: Vec<Value>,
    ts_sub_cmds: Vec<Value>,
    attr_sub_cmds: Vec<Value>,
    history_cmds: Vec<Value>,
    entity_data_cmds: Vec<Value>,
    entity_data_unsubscribe_cmds: Vec<Value>,
    entity_count_cmds: Vec<Value>,
    entity_count_unsubscribe_cmds: Vec<Value>,
    alarm_data_cmds: Vec<Value>,
    alarm_data_unsubscribe_cmds: Vec<Value>,
    alarm_count_cmds: Vec<Value>,
    alarm_count_unsubscribe_cmds: Vec<Value>,
    alarm_status_cmds: Vec<Value>,
    alarm_status_unsubscribe_cmds: Vec<Value>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AuthCommand {
    pub token: String,
}

#[derive(Debug)]
pub enum Command {
    Telemetry(OldCommand),
    Attributes(OldCommand),
    History(OldCommand),
    Entities(Box<EntityDataCommand>),
    EntityCount {
        id: i64,
        query: Value,
    },
    Alarms {
        id: i64,
        query: Value,
    },
    AlarmCount {
        id: i64,
        query: Value,
    },
    AlarmStatus(AlarmStatusCommand),
    /// Of which there are none.
    Notifications {
        id: i64,
        is_count: bool,
    },
    Unsubscribe(i64),
    /// Asks for no answer.
    Nothing,
}

/// Of one entity.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OldCommand {
    pub cmd_id: i64,
    #[serde(default)]
    entity_type: Option<EntityType>,
    #[serde(default)]
    entity_id: Option<Uuid>,
    #[serde(default)]
    keys: Option<String>,
    #[serde(default)]
    scope: Option<String>,
    #[serde(default)]
    pub unsubscribe: bool,
    #[serde(flatten)]
    pub window: WindowFields,
}

/// Whether an entity has any active alarm of these.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AlarmStatusCommand {
    pub cmd_id: i64,
    pub originator_id: EntityId,
    #[serde(default)]
    pub type_list: Option<Vec<String>>,
    #[serde(default)]
    pub severity_list: Option<Vec<String>>,
}

/// Of history.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct WindowFields {
    pub start_ts: i64,
    pub end_ts: i64,
    pub time_window: i64,
    pub interval: Option<Value>,
    pub interval_type: Option<String>,
    pub time_zone_id: Option<String>,
    pub limit: Option<i64>,
    pub agg: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EntityDataCommand {
    pub cmd_id: i64,
    #[serde(default)]
    pub query: Option<EntityDataQuery>,
    #[serde(default)]
    pub latest_cmd: Option<LatestCommand>,
    #[serde(default)]
    pub ts_cmd: Option<SeriesCommand>,
    #[serde(default)]
    pub history_cmd: Option<SeriesCommand>,
    /// Up to now.
    #[serde(default)]
    pub agg_ts_cmd: Option<AggregateCommand>,
    #[serde(default)]
    pub agg_history_cmd: Option<AggregateCommand>,
}

/// One value of a time and, to compare, one of a time before.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AggregateCommand {
    pub keys: Vec<AggregateKey>,
    #[serde(default)]
    pub start_ts: i64,
    #[serde(default)]
    pub end_ts: i64,
    #[serde(default)]
    pub time_window: i64,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AggregateKey {
    pub id: i64,
    pub key: String,
    pub agg: String,
    #[serde(default)]
    pub previous_start_ts: Option<i64>,
    #[serde(default)]
    pub previous_end_ts: Option<i64>,
    #[serde(default)]
    pub previous_value_only: Option<bool>,
}

#[derive(Clone, Debug, Deserialize)]
pub struct LatestCommand {
    pub keys: Vec<EntityKey>,
}

#[derive(Clone, Debug, Deserialize)]
pub struct SeriesCommand {
    #[serde(deserialize_with = "each_once")]
    pub keys: Vec<String>,
    #[serde(flatten)]
    pub window: WindowFields,
}

fn each_once<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    Vec::deserialize(deserializer).map(without_repeats)
}

impl OldCommand {
    pub fn entity(&self) -> Option<EntityId> {
        Some(EntityId::new(self.entity_type?, self.entity_id?))
    }

    /// Each once. `None`: all of them.
    pub fn keys(&self) -> Option<Vec<String>> {
        let keys = comma_separated(self.keys.as_deref()?);
        (!keys.is_empty()).then(|| without_repeats(keys.into_iter().map(str::to_owned).collect()))
    }

    /// `None`: all of them.
    pub fn scope(&self) -> Option<Scope> {
        Scope::parse(self.scope.as_deref()?)
    }
}

impl Message {
    pub fn read(text: &str) -> Result<Message, serde_json::Error> {
        let mut deserializer = serde_json::Deserializer::from_str(text);
        let message = Message::deserialize(Strict(&mut deserializer))?;
        deserializer.end()?;
        Ok(message)
    }

    /// In the order in which they are carried out; what cannot be read comes with its number.
    pub fn commands(self) -> Vec<Result<Command, (i64, String)>> {
        let lists = [
            (self.ts_sub_cmds, "TIMESERIES"),
            (self.attr_sub_cmds, "ATTRIBUTES"),
            (self.history_cmds, "TIMESERIES_HISTORY"),
            (self.entity_data_cmds, "ENTITY_DATA"),
            (self.entity_count_cmds, "ENTITY_COUNT"),
            (self.alarm_data_cmds, "ALARM_DATA"),
            (self.alarm_count_cmds, "ALARM_COUNT"),
            (self.alarm_status_cmds, "ALARM_STATUS"),
            (self.entity_data_unsubscribe_cmds, "ENTITY_DATA_UNSUBSCRIBE"),
            (self.entity_count_unsubscribe_cmds, "ENTITY_COUNT_UNSUBSCRIBE"),
            (self.alarm_data_unsubscribe_cmds, "ALARM_DATA_UNSUBSCRIBE"),
            (self.alarm_count_unsubscribe_cmds, "ALARM_COUNT_UNSUBSCRIBE"),
            (self.alarm_status_unsubscribe_cmds, "ALARM_STATUS_UNSUBSCRIBE"),
        ];
        let typed = self.cmds.into_iter().map(|json| {
            let kind = json["type"].as_str().unwrap_or_default().to_owned();
            command(&kind, json)
        });
        let listed = lists
            .into_iter()
            .flat_map(|(all, kind)| all.into_iter().map(move |json| command(kind, json)));
        typed.chain(listed).collect()
    }
}

fn command(kind: &str, json: Value) -> Result<Command, (i64, String)> {
    let id = json["cmdId"].as_i64().unwrap_or_default();
    let query = |json: &Value| json["query"].clone();
    let old = |json| from_value::<OldCommand>(json).map_err(|error| (id, error.to_string()));
    Ok(match kind {
        "TIMESERIES" => Command::Telemetry(old(json)?),
        "ATTRIBUTES" => Command::Attributes(old(json)?),
        "TIMESERIES_HISTORY" => Command::History(old(json)?),
        "ENTITY_DATA" => {
            let command = from_value(json).map_err(|error| (id, error.to_string()))?;
            Command::Entities(Box::new(command))
        }
        "ENTITY_COUNT" => Command::EntityCount {
            id,
            query: query(&json),
        },
        "ALARM_DATA" => Command::Alarms {
            id,
            query: query(&json),
        },
        "ALARM_COUNT" => Command::AlarmCount {
            id,
            query: query(&json),
        },
        "ALARM_STATUS" => {
            let command = from_value(json).map_err(|error| (id, error.to_string()))?;
            Command::AlarmStatus(command)
        }
        "NOTIFICATIONS" => Command::Notifications { id, is_count: false },
        "NOTIFICATIONS_COUNT" => Command::Notifications { id, is_count: true },
        "MARK_NOTIFICATIONS_AS_READ" | "MARK_ALL_NOTIFICATIONS_AS_READ" => Command::Nothing,
        kind if kind.ends_with("_UNSUBSCRIBE") => Command::Unsubscribe(id),
        other => return Err((id, format!("Command {other:?} is not supported"))),
    })
}
