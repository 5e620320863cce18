//! One subscription: what it says at first, and what of an update it shows.

use std::collections::{HashMap, HashSet};

use devices::Update;
use platform::ids::{EntityId, Uuid};
use platform::model::{Alarm, Attribute, Scope};
use serde_json::{Map, Value, json};
use timeseries::{TimedValue, Value as Point};

use super::super::alarms::Names;
use super::super::call::{Call, Verb};
use super::super::failure::Failure;
use super::super::query::{
    EntityDataQuery, EntityKey, KeyType, Room, Row, alarms_page, count, count_of_alarms, find, values_json,
};
use super::super::telemetry::{Window, explain, point_json};
use super::super::values;
use super::commands::{
    AggregateCommand, AggregateKey, AlarmStatusCommand, EntityDataCommand, LatestCommand, OldCommand, SeriesCommand,
    WindowFields,
};
use crate::strict::from_value;

pub enum Subscription {
    Telemetry {
        entity: EntityId,
        keys: Option<Vec<String>>,
        newest: HashMap<String, i64>,
    },
    Attributes {
        entity: EntityId,
        scope: Option<Scope>,
        keys: Option<Vec<String>>,
    },
    Entities(Box<Entities>),
    EntityCount {
        query: EntityDataQuery,
        last: usize,
    },
    Alarms {
        query: Value,
        tenant: Uuid,
    },
    AlarmCount {
        query: Value,
        tenant: Uuid,
        last: usize,
    },
    AlarmStatus {
        entity: EntityId,
        query: Value,
        last: bool,
    },
}

/// Of a page of entities.
pub struct Entities {
    query: EntityDataQuery,
    ids: HashSet<EntityId>,
    latest: Option<LatestCommand>,
    series: Option<SeriesCommand>,
    aggregates: Option<AggregateCommand>,
    newest: HashMap<(Uuid, String), i64>,
}

/// What a client is told.
pub type Frame = Value;

pub fn failure(id: i64, is_old: bool, failure: &Failure) -> Frame {
    let code = match failure.code() {
        super::super::failure::Code::General => 1,
        super::super::failure::Code::PermissionDenied | super::super::failure::Code::Authentication => 3,
        _ => 2,
    };
    let number = if is_old { "subscriptionId" } else { "cmdId" };
    json!({number: id, "errorCode": code, "errorMsg": failure.message(), "data": null})
}

/// `{"k": [[ts, "v"], …]}` with the newest time of each key.
fn old_frame(id: i64, data: Map<String, Value>) -> Frame {
    let latest: Map<String, Value> = data
        .iter()
        .map(|(key, points)| (key.clone(), points[0][0].clone()))
        .collect();
    json!({"subscriptionId": id, "errorCode": 0, "errorMsg": null, "data": data, "latestValues": latest})
}

fn new_frame(id: i64, kind: &str, data: Value, update: Value) -> Frame {
    json!({"cmdId": id, "errorCode": 0, "errorMsg": null, "data": data, "update": update, "cmdUpdateType": kind})
}

fn count_frame(id: i64, kind: &str, count: usize) -> Frame {
    json!({"cmdId": id, "errorCode": 0, "errorMsg": null, "count": count, "cmdUpdateType": kind})
}

fn status_frame(id: i64, is_active: bool) -> Frame {
    json!({"cmdId": id, "errorCode": 0, "errorMsg": null, "active": is_active, "cmdUpdateType": "ALARM_STATUS"})
}

pub fn no_notifications(id: i64, is_count: bool) -> Frame {
    let mut frame = json!({"cmdId": id, "errorCode": 0, "errorMsg": null, "totalUnreadCount": 0, "sequenceNumber": 0,
        "cmdUpdateType": "NOTIFICATIONS_COUNT"});
    if !is_count {
        frame["cmdUpdateType"] = "NOTIFICATIONS".into();
        (frame["update"], frame["notifications"]) = (Value::Null, json!([]));
    }
    frame
}

/// What an entity command asks for now and not again.
#[derive(Default)]
pub struct Once {
    history: Option<SeriesCommand>,
    aggregates: Option<AggregateCommand>,
}

impl AggregateCommand {
    fn compared(&self, call: &Call, entity: EntityId, key: &AggregateKey) -> Result<Value, Failure> {
        let value = |start: i64, end: i64| {
            let window = WindowFields {
                start_ts: start,
                end_ts: end,
                interval: Some(end.saturating_sub(start).max(1).into()),
                limit: Some(1),
                agg: Some(key.agg.clone()),
                ..WindowFields::default()
            };
            let all = history(call, entity, std::slice::from_ref(&key.key), &window)?;
            let point = all.first().and_then(|points| points.first());
            Ok::<_, Failure>(point.map(|point| point_json(point, false)))
        };
        let end = match self.time_window {
            0 => self.end_ts,
            window if self.end_ts == 0 => call.now_ms.max(self.start_ts.saturating_add(window)),
            _ => self.end_ts,
        };
        let start = match self.time_window {
            0 => self.start_ts,
            window => end.saturating_sub(window),
        };
        let current = match key.previous_value_only {
            Some(true) => None,
            _ => value(start, end)?,
        };
        let previous = match (key.previous_start_ts, key.previous_end_ts) {
            (Some(start), Some(end)) => value(start, end)?,
            _ => None,
        };
        Ok(json!({"current": current, "previous": previous}))
    }
}

impl WindowFields {
    /// `keys`: how many share the answer.
    fn query(&self, keys: usize) -> Result<timeseries::Query, Failure> {
        let end = if self.end_ts > 0 {
            self.end_ts
        } else {
            self.start_ts.saturating_add(self.time_window)
        };
        let window = Window {
            range: self.start_ts..end,
            interval: self.interval.as_ref().and_then(Value::as_i64).unwrap_or(0),
            interval_type: self.interval_type.as_deref().unwrap_or_default(),
            time_zone: self.time_zone_id.as_deref().unwrap_or("UTC"),
            aggregation: self.agg.as_deref().unwrap_or_default(),
            limit: self.limit,
            is_ascending: false,
        };
        window.query(keys)
    }
}

fn history(
    call: &Call,
    entity: EntityId,
    keys: &[String],
    window: &WindowFields,
) -> Result<Vec<Vec<TimedValue>>, Failure> {
    let names: Vec<&str> = keys.iter().map(String::as_str).collect();
    let query = window.query(keys.len())?;
    call.platform()
        .store()
        .query(entity.id.into(), &names, &query)
        .map_err(explain)
}

fn all_keys(call: &Call, entity: EntityId) -> Result<Vec<String>, Failure> {
    let keys = call.platform().store().keys(entity.id.into())?;
    Ok(keys.into_iter().map(String::from).collect())
}

fn latest(call: &Call, entity: EntityId, keys: &[String]) -> Result<Vec<Vec<TimedValue>>, Failure> {
    let names: Vec<&str> = keys.iter().map(String::as_str).collect();
    let latest = call.platform().store().latest(entity.id.into(), &names)?;
    Ok(latest.into_iter().map(|point| point.into_iter().collect()).collect())
}

fn newest_of(keys: &[String], all: &[Vec<TimedValue>]) -> impl Iterator<Item = (String, i64)> {
    let newest = |(key, points): (&String, &Vec<TimedValue>)| {
        let newest = points.iter().map(|point| point.ts_ms).max()?;
        Some((key.clone(), newest))
    };
    keys.iter().zip(all).filter_map(newest)
}

fn attributes(
    call: &Call,
    entity: EntityId,
    scope: Option<Scope>,
    keys: Option<&[String]>,
) -> Result<Map<String, Value>, Failure> {
    let names: Option<Vec<&str>> = keys.map(|keys| keys.iter().map(String::as_str).collect());
    let scopes: &[Scope] = scope.as_ref().map_or(&Scope::ALL, std::slice::from_ref);
    let mut data = Map::new();
    for scope in scopes {
        let found = call.platform().attributes(entity, *scope, names.as_deref())?;
        data.extend(found.iter().map(attribute_pair));
    }
    Ok(data)
}

fn pairs(keys: &[String], all: &[Vec<TimedValue>]) -> Map<String, Value> {
    let with_points = keys.iter().zip(all).filter(|(_, points)| !points.is_empty());
    let pairs = with_points.map(|(key, points)| {
        let points = points
            .iter()
            .map(|point| json!([point.ts_ms, values::text(&point.value)]));
        (key.clone(), points.collect())
    });
    pairs.collect()
}

/// History of an entity, once.
pub fn history_frame(call: &Call, command: &OldCommand) -> Result<Frame, Failure> {
    let entity = entity_of(call, command, Verb::ReadTelemetry)?;
    let keys = match command.keys() {
        Some(keys) => keys,
        None => all_keys(call, entity)?,
    };
    let all = history(call, entity, &keys, &command.window)?;
    Ok(old_frame(command.cmd_id, pairs(&keys, &all)))
}

pub fn entity_of(call: &Call, command: &OldCommand, verb: Verb) -> Result<EntityId, Failure> {
    let entity = command
        .entity()
        .ok_or_else(|| Failure::bad_request("Device id is empty!"))?;
    call.check_id(entity, verb)?;
    Ok(entity)
}

impl Subscription {
    pub fn telemetry(call: &Call, command: &OldCommand) -> Result<(Subscription, Frame), Failure> {
        let entity = entity_of(call, command, Verb::ReadTelemetry)?;
        let keys = match command.keys() {
            Some(keys) => keys,
            None => all_keys(call, entity)?,
        };
        let all = if command.window.time_window > 0 {
            history(call, entity, &keys, &command.window)?
        } else {
            latest(call, entity, &keys)?
        };
        let subscription = Subscription::Telemetry {
            entity,
            newest: newest_of(&keys, &all).collect(),
            keys: command.keys(),
        };
        Ok((subscription, old_frame(command.cmd_id, pairs(&keys, &all))))
    }

    pub fn attributes(call: &Call, command: &OldCommand) -> Result<(Subscription, Frame), Failure> {
        let entity = entity_of(call, command, Verb::ReadAttributes)?;
        let (scope, keys) = (command.scope(), call.attributes_shown(command.keys())?);
        let data = attributes(call, entity, scope, keys.as_deref())?;
        Ok((
            Subscription::Attributes { entity, scope, keys },
            old_frame(command.cmd_id, data),
        ))
    }

    pub fn entity_count(call: &Call, id: i64, query: &Value) -> Result<(Subscription, Frame), Failure> {
        let query: EntityDataQuery = read(query)?;
        let last = count(call, &query)?;
        Ok((
            Subscription::EntityCount { query, last },
            count_frame(id, "COUNT_DATA", last),
        ))
    }

    pub fn alarms(call: &Call, id: i64, query: &Value) -> Result<(Subscription, Frame), Failure> {
        let page = alarms_page(call, query)?;
        let frame = alarms_frame(id, json!(page), Value::Null);
        let subscription = Subscription::Alarms {
            query: query.clone(),
            tenant: call.tenant().0,
        };
        Ok((subscription, frame))
    }

    pub fn alarm_count(call: &Call, id: i64, query: &Value) -> Result<(Subscription, Frame), Failure> {
        let last = count_of_alarms(call, query)?;
        let subscription = Subscription::AlarmCount {
            query: query.clone(),
            tenant: call.tenant().0,
            last,
        };
        Ok((subscription, count_frame(id, "ALARM_COUNT_DATA", last)))
    }

    pub fn alarm_status(call: &Call, id: i64, command: &AlarmStatusCommand) -> Result<(Subscription, Frame), Failure> {
        let entity = command.originator_id;
        call.check_id(entity, Verb::Read)?;
        let query = json!({"entityFilter": {"type": "singleEntity", "singleEntity": entity}, "statusList": ["ACTIVE"],
            "typeList": command.type_list, "severityList": command.severity_list});
        let last = count_of_alarms(call, &query)? > 0;
        Ok((
            Subscription::AlarmStatus { entity, query, last },
            status_frame(id, last),
        ))
    }

    /// Whether it is of the older kind of commands.
    pub fn is_old(&self) -> bool {
        matches!(self, Subscription::Telemetry { .. } | Subscription::Attributes { .. })
    }

    /// Leaves out attributes that a screen's dashboard shows no more; an error if that is all of them.
    pub fn forget_attributes(&mut self, call: &Call) -> Result<(), Failure> {
        if let Subscription::Attributes { keys, .. } = self {
            *keys = call.attributes_shown(keys.take())?;
        }
        Ok(())
    }

    /// Leaves out what may not be seen any more; an error if that is all of it.
    pub fn forget_strangers(&mut self, call: &Call) -> Result<(), Failure> {
        match self {
            Subscription::Telemetry { entity, .. } => call.check_id(*entity, Verb::ReadTelemetry),
            Subscription::Attributes { entity, .. } => call.check_id(*entity, Verb::ReadAttributes),
            Subscription::AlarmStatus { entity, .. } => call.check_id(*entity, Verb::Read),
            Subscription::Entities(entities) => {
                entities.ids.retain(|id| call.check_id(*id, Verb::Read).is_ok());
                Ok(())
            }
            // They are asked for anew each time.
            Subscription::EntityCount { .. } | Subscription::Alarms { .. } | Subscription::AlarmCount { .. } => Ok(()),
        }
    }

    /// Whom to watch for it.
    pub fn watched(&self) -> Vec<Uuid> {
        match self {
            Subscription::Telemetry { entity, .. }
            | Subscription::Attributes { entity, .. }
            | Subscription::AlarmStatus { entity, .. } => vec![entity.id],
            Subscription::Entities(entities) => entities.watched(),
            Subscription::EntityCount { .. } => Vec::new(),
            Subscription::Alarms { tenant, .. } | Subscription::AlarmCount { tenant, .. } => vec![*tenant],
        }
    }

    /// Whether an update says something to it at all, without looking anything up.
    pub fn shows(&mut self, id: i64, update: &Update) -> Option<Frame> {
        match (self, update) {
            (
                Subscription::Telemetry { entity, keys, newest },
                Update::Telemetry {
                    entity: of,
                    ts_ms,
                    values,
                },
            ) if entity == of => {
                let mut data = Map::new();
                for (key, value) in values {
                    let is_wanted = keys
                        .as_ref()
                        .is_none_or(|keys| keys.iter().any(|wanted| **wanted == **key));
                    if is_wanted && is_newer(newest, key.to_string(), *ts_ms) {
                        data.insert(key.to_string(), json!([[ts_ms, values::text(value)]]));
                    }
                }
                (!data.is_empty()).then(|| old_frame(id, data))
            }
            (
                Subscription::Attributes { entity, scope, keys },
                Update::Attributes {
                    entity: of,
                    scope: in_scope,
                    updated,
                    ..
                },
            ) if entity == of && scope.is_none_or(|scope| scope == *in_scope) => {
                let is_wanted = |attribute: &&Attribute| keys.as_ref().is_none_or(|keys| keys.contains(&attribute.key));
                let data: Map<String, Value> = updated.iter().filter(is_wanted).map(attribute_pair).collect();
                (!data.is_empty()).then(|| old_frame(id, data))
            }
            (Subscription::Entities(entities), update) => {
                let changed = entities.changed(update)?;
                Some(new_frame(id, "ENTITY_DATA", Value::Null, json!([changed])))
            }
            _ => None,
        }
    }

    /// As it is now, after updates were missed.
    pub fn anew(&mut self, call: &Call, id: i64) -> Result<Option<Frame>, Failure> {
        Ok(match self {
            Subscription::Telemetry { entity, keys, newest } => {
                let keys = match keys {
                    Some(keys) => keys.clone(),
                    None => all_keys(call, *entity)?,
                };
                let all = latest(call, *entity, &keys)?;
                newest.extend(newest_of(&keys, &all));
                Some(old_frame(id, pairs(&keys, &all)))
            }
            Subscription::Attributes { entity, scope, keys } => {
                let data = attributes(call, *entity, *scope, keys.as_deref())?;
                Some(old_frame(id, data))
            }
            Subscription::Entities(entities) => Some(entities.frame(call, id, &Once::default())?),
            Subscription::Alarms { query, .. } => Some(alarms_frame(id, json!(alarms_page(call, query)?), Value::Null)),
            Subscription::EntityCount { .. } | Subscription::AlarmCount { .. } | Subscription::AlarmStatus { .. } => {
                self.look(call, id, &[])?
            }
        })
    }

    /// What has to be looked up: alarms that changed, counts.
    pub fn look(&mut self, call: &Call, id: i64, alarms: &[Alarm]) -> Result<Option<Frame>, Failure> {
        Ok(match self {
            Subscription::Alarms { query, .. } => alarm_update(call, id, query, alarms)?,
            Subscription::AlarmCount { query, last, .. } => changed_count(last, count_of_alarms(call, query)?)
                .map(|count| count_frame(id, "ALARM_COUNT_DATA", count)),
            Subscription::AlarmStatus { query, last, .. } => {
                let is_active = count_of_alarms(call, query)? > 0;
                (std::mem::replace(last, is_active) != is_active).then(|| status_frame(id, is_active))
            }
            // Of a time that goes on.
            Subscription::Entities(entities) if alarms.is_empty() && entities.aggregates.is_some() => {
                Some(entities.frame(call, id, &Once::default())?)
            }
            Subscription::EntityCount { query, last } if alarms.is_empty() => {
                changed_count(last, count(call, query)?).map(|count| count_frame(id, "COUNT_DATA", count))
            }
            _ => None,
        })
    }
}

fn changed_count(last: &mut usize, count: usize) -> Option<usize> {
    (std::mem::replace(last, count) != count).then_some(count)
}

/// Those alarms that are of the query as it is now; its page is asked for, so that one rule says which.
fn alarm_update(call: &Call, id: i64, query: &Value, alarms: &[Alarm]) -> Result<Option<Frame>, Failure> {
    if alarms.is_empty() {
        return Ok(None);
    }
    let page = alarms_page(call, query)?;
    let mut updates = Vec::new();
    for alarm in alarms {
        let wanted = json!(alarm.id);
        match page.data.iter().find(|shown| shown["id"] == wanted) {
            Some(shown) => updates.push(shown.clone()),
            // It was shown, perhaps, and is not any more: the client drops what no longer fits.
            None if call.alarm(alarm.id.unwrap_or_default(), Verb::Read).is_ok() => {
                updates.push(Names::new(call).info(alarm)?);
            }
            None => {}
        }
    }
    Ok((!updates.is_empty()).then(|| alarms_frame(id, Value::Null, updates.into())))
}

fn alarms_frame(id: i64, data: Value, update: Value) -> Frame {
    let mut frame = new_frame(id, "ALARM_DATA", data, update);
    frame["allowedEntities"] = super::super::query::CANDIDATES_MAX.into();
    frame["totalEntities"] = frame["data"]["totalElements"].as_u64().unwrap_or(0).into();
    frame
}

fn read<T: serde::de::DeserializeOwned>(json: &Value) -> Result<T, Failure> {
    from_value(json.clone()).map_err(|error| Failure::bad_request(error.to_string()))
}

fn attribute_pair(attribute: &Attribute) -> (String, Value) {
    let pair = json!([[attribute.last_update_ms, values::text(&attribute.value)]]);
    (attribute.key.clone(), pair)
}

/// Late points are history, no news.
fn is_newer<K: std::hash::Hash + Eq>(newest: &mut HashMap<K, i64>, key: K, ts_ms: i64) -> bool {
    let known = newest.entry(key).or_insert(i64::MIN);
    let is_newer = ts_ms >= *known;
    *known = ts_ms.max(*known);
    is_newer
}

impl Entities {
    pub fn new(query: EntityDataQuery) -> Entities {
        Entities {
            query,
            ids: HashSet::new(),
            latest: None,
            series: None,
            aggregates: None,
            newest: HashMap::new(),
        }
    }

    /// A command for entities that are shown already changes what is asked of them. Gives what is asked once.
    pub fn change(&mut self, command: EntityDataCommand) -> Once {
        if let Some(query) = command.query {
            self.query = query;
        }
        if command.latest_cmd.is_some() {
            self.latest = command.latest_cmd;
        }
        if command.ts_cmd.is_some() {
            self.series = command.ts_cmd;
        }
        if command.agg_ts_cmd.is_some() {
            self.aggregates = command.agg_ts_cmd;
        }
        Once {
            history: command.history_cmd,
            aggregates: command.agg_history_cmd,
        }
    }

    /// Which they are now.
    pub fn find(&mut self, call: &Call) -> Result<(), Failure> {
        let found = find(call, &self.query)?;
        self.ids = found.rows.iter().map(Row::id).collect();
        Ok(())
    }

    pub fn watched(&self) -> Vec<Uuid> {
        self.ids.iter().map(|id| id.id).collect()
    }

    /// All of it, anew.
    pub fn frame(&mut self, call: &Call, id: i64, once: &Once) -> Result<Frame, Failure> {
        let mut found = find(call, &self.query)?;
        let mut room = Room::default();
        let mut page = found.page(call, &self.query, &mut room)?;
        self.ids.clear();
        for (row, shown) in found.rows.iter_mut().zip(&mut page.data) {
            self.ids.insert(row.id());
            if let Some(latest) = &self.latest {
                let more = values_json(call, row, &latest.keys, &mut room)?;
                merge(&mut shown["latest"], more);
            }
            let mut series = Map::new();
            for command in self.series.iter().chain(&once.history) {
                let all = history(call, row.id(), &command.keys, &command.window)?;
                for (key, points) in command.keys.iter().zip(&all) {
                    let mut shown = Vec::with_capacity(points.len());
                    for point in points {
                        room.take(point.value.heap_bytes())?;
                        shown.push(point_json(point, false));
                    }
                    series.insert(key.clone(), shown.into());
                }
            }
            shown["timeseries"] = series.into();
            for command in self.aggregates.iter().chain(&once.aggregates) {
                for key in &command.keys {
                    room.take(key.key.len())?;
                    shown["aggLatest"][key.id.to_string()] = command.compared(call, row.id(), key)?;
                }
            }
        }
        let mut frame = new_frame(id, "ENTITY_DATA", json!(page), Value::Null);
        frame["allowedEntities"] = super::super::query::CANDIDATES_MAX.into();
        Ok(frame)
    }

    fn changed(&mut self, update: &Update) -> Option<Value> {
        let (entity, latest, series) = match update {
            Update::Telemetry { entity, ts_ms, values } if self.ids.contains(entity) => {
                let (latest, series) = self.of_telemetry(*entity, *ts_ms, values);
                (*entity, latest, series)
            }
            Update::Attributes {
                entity, scope, updated, ..
            } if self.ids.contains(entity) => (*entity, self.of_attributes(*scope, updated), Map::new()),
            _ => return None,
        };
        let is_empty = latest.is_empty() && series.is_empty();
        (!is_empty).then(|| json!({"entityId": entity, "latest": latest, "timeseries": series, "aggLatest": {}}))
    }

    fn asked(&self) -> impl Iterator<Item = &EntityKey> {
        let of_query = self.query.latest_values.iter().flatten();
        of_query.chain(self.latest.iter().flat_map(|latest| &latest.keys))
    }

    fn of_telemetry(
        &mut self,
        entity: EntityId,
        ts_ms: i64,
        all: &[(Box<str>, Point)],
    ) -> (Map<String, Value>, Map<String, Value>) {
        let (mut latest, mut series) = (Map::new(), Map::new());
        for (key, value) in all {
            let shown = json!({"ts": ts_ms, "value": values::text(value)});
            let is_asked = self
                .asked()
                .any(|asked| asked.kind == KeyType::TimeSeries && *asked.key == **key);
            if is_asked && is_newer(&mut self.newest, (entity.id, key.to_string()), ts_ms) {
                latest.insert(key.to_string(), shown.clone());
            }
            let keys = self.series.iter().flat_map(|series| &series.keys);
            if keys.into_iter().any(|wanted| **wanted == **key) {
                series.insert(key.to_string(), json!([shown]));
            }
        }
        let latest = match latest.is_empty() {
            true => Map::new(),
            false => Map::from_iter([("TIME_SERIES".to_owned(), latest.into())]),
        };
        (latest, series)
    }

    fn of_attributes(&self, scope: Scope, updated: &[Attribute]) -> Map<String, Value> {
        let mut latest = Map::new();
        for asked in self.asked() {
            let found = updated.iter().find(|attribute| attribute.key == asked.key);
            let Some(attribute) = found.filter(|_| asked.kind.scopes().contains(&scope)) else {
                continue;
            };
            let of_kind = latest.entry(asked.kind.name()).or_insert_with(|| json!({}));
            of_kind[asked.key.as_str()] =
                json!({"ts": attribute.last_update_ms, "value": values::text(&attribute.value)});
        }
        latest
    }
}

/// Adds the inner members of one object of objects to another's.
fn merge(into: &mut Value, more: Value) {
    let Value::Object(more) = more else { return };
    for (kind, keys) in more {
        let Value::Object(keys) = keys else { continue };
        for (key, value) in keys {
            into[kind.as_str()][key.as_str()] = value;
        }
    }
}
