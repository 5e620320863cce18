//! Commands of a client on the WebSocket. The older path has lists of commands by type; the newer path has one list, in
//! which
//! each command has a type.

use platform::ids::{EntityId, EntityType, Uuid};
use platform::model::AttributeScope;
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use web::strict::{Strict, from_value};

use super::super::lists::{comma_separated, without_repeats};
use super::super::query::{EntityDataQuery, EntityKey};

/// The fields of both paths.
#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
pub struct CommandsMessage {
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
pub enum SocketCommand {
    Telemetry(LegacyCommand),
    Attributes(LegacyCommand),
    History(LegacyCommand),
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
    /// Notifications do not exist on this server, so the answer is empty.
    Notifications {
        id: i64,
        is_count: bool,
    },
    Unsubscribe(i64),
    /// A command without an answer.
    Nothing,
}

/// A command of the older path for one entity.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LegacyCommand {
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

/// Whether an entity has an active alarm that matches.
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

/// Fields of a history query.
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
    /// Values until now, updated continuously.
    #[serde(default)]
    pub agg_ts_cmd: Option<AggregateCommand>,
    #[serde(default)]
    pub agg_history_cmd: Option<AggregateCommand>,
}

/// Aggregates of a time range and, for comparison, of an earlier one.
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

impl LegacyCommand {
    pub fn entity(&self) -> Option<EntityId> {
        Some(EntityId::new(self.entity_type?, self.entity_id?))
    }

    /// Keys without duplicates. `None`: all keys.
    pub fn keys(&self) -> Option<Vec<String>> {
        let keys = comma_separated(self.keys.as_deref()?);
        (!keys.is_empty()).then(|| without_repeats(keys.into_iter().map(str::to_owned).collect()))
    }

    /// `None`: all scopes.
    pub fn scope(&self) -> Option<AttributeScope> {
        AttributeScope::parse(self.scope.as_deref()?)
    }
}

impl CommandsMessage {
    pub fn read(text: &str) -> Result<CommandsMessage, serde_json::Error> {
        let mut deserializer = serde_json::Deserializer::from_str(text);
        let message = CommandsMessage::deserialize(Strict(&mut deserializer))?;
        deserializer.end()?;
        Ok(message)
    }

    /// Returns the commands in the order of execution. A command that cannot be parsed is returned as an error with its
    /// ID.
    pub fn commands(self) -> Vec<Result<SocketCommand, (i64, String)>> {
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

fn command(kind: &str, json: Value) -> Result<SocketCommand, (i64, String)> {
    let id = json["cmdId"].as_i64().unwrap_or_default();
    let query = |json: &Value| json["query"].clone();
    let old = |json| from_value::<LegacyCommand>(json).map_err(|error| (id, error));
    Ok(match kind {
        "TIMESERIES" => SocketCommand::Telemetry(old(json)?),
        "ATTRIBUTES" => SocketCommand::Attributes(old(json)?),
        "TIMESERIES_HISTORY" => SocketCommand::History(old(json)?),
        "ENTITY_DATA" => {
            let command = from_value(json).map_err(|error| (id, error))?;
            SocketCommand::Entities(Box::new(command))
        }
        "ENTITY_COUNT" => SocketCommand::EntityCount {
            id,
            query: query(&json),
        },
        "ALARM_DATA" => SocketCommand::Alarms {
            id,
            query: query(&json),
        },
        "ALARM_COUNT" => SocketCommand::AlarmCount {
            id,
            query: query(&json),
        },
        "ALARM_STATUS" => {
            let command = from_value(json).map_err(|error| (id, error))?;
            SocketCommand::AlarmStatus(command)
        }
        "NOTIFICATIONS" => SocketCommand::Notifications { id, is_count: false },
        "NOTIFICATIONS_COUNT" => SocketCommand::Notifications { id, is_count: true },
        "MARK_NOTIFICATIONS_AS_READ" | "MARK_ALL_NOTIFICATIONS_AS_READ" => SocketCommand::Nothing,
        kind if kind.ends_with("_UNSUBSCRIBE") => SocketCommand::Unsubscribe(id),
        other => return Err((id, format!("Command {other:?} is not supported"))),
    })
}
