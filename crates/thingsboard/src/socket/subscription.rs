//! A subscription: its first answer, and the parts of updates that it sends.

use std::collections::HashMap;

use devices::Update;
use platform::ids::{EntityId, Uuid};
use platform::model::{Alarm, Attribute, AttributeScope};
use serde_json::{Map, Value, json};
use timeseries::{PointValue as Point, TimedValue};
use web::strict::from_value;

use super::super::alarms::NameCache;
use super::super::call::{ApiCall, ReadableData, Verb};
use super::super::failure::ThingsboardError;
use super::super::query::{
    EntityDataQuery, EntityKey, KeyType, QueryAnswerBudget, alarms_page, count, count_of_alarms, find, values_json,
};
use super::super::telemetry::{HistoryQueryRange, store_error};
use super::super::values::{self, point_json};
use super::commands::{
    AggregateCommand, AggregateKey, AlarmStatusCommand, EntityDataCommand, LatestCommand, LegacyCommand, SeriesCommand,
    WindowFields,
};

pub enum SocketSubscription {
    Telemetry {
        entity: EntityId,
        keys: Option<Vec<String>>,
        newest: HashMap<String, i64>,
    },
    Attributes {
        entity: EntityId,
        scope: Option<AttributeScope>,
        keys: Option<Vec<String>>,
    },
    Entities(Box<EntityPageSubscription>),
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

/// A page of entities.
pub struct EntityPageSubscription {
    query: EntityDataQuery,
    shown: HashMap<EntityId, ReadableData>,
    latest: Option<LatestCommand>,
    series: Option<SeriesCommand>,
    aggregates: Option<AggregateCommand>,
    newest: HashMap<(Uuid, String), i64>,
}

/// A message to the client.
pub type SocketUpdate = Value;

pub fn failure(id: i64, is_old: bool, failure: &ThingsboardError) -> SocketUpdate {
    let code = match failure.code() {
        super::super::failure::ThingsboardErrorCode::General => 1,
        super::super::failure::ThingsboardErrorCode::PermissionDenied
        | super::super::failure::ThingsboardErrorCode::Authentication => 3,
        _ => 2,
    };
    let number = if is_old { "subscriptionId" } else { "cmdId" };
    json!({number: id, "errorCode": code, "errorMsg": failure.message(), "data": null})
}

/// Returns `{"k": [[ts, "v"], …]}` with the newest time of each key.
fn telemetry_frame(id: i64, data: Map<String, Value>) -> SocketUpdate {
    let latest: Map<String, Value> = data
        .iter()
        .map(|(key, points)| (key.clone(), points[0][0].clone()))
        .collect();
    json!({"subscriptionId": id, "errorCode": 0, "errorMsg": null, "data": data, "latestValues": latest})
}

fn data_frame(id: i64, kind: &str, data: Value, update: Value) -> SocketUpdate {
    json!({"cmdId": id, "errorCode": 0, "errorMsg": null, "data": data, "update": update, "cmdUpdateType": kind})
}

fn count_frame(id: i64, kind: &str, count: usize) -> SocketUpdate {
    json!({"cmdId": id, "errorCode": 0, "errorMsg": null, "count": count, "cmdUpdateType": kind})
}

fn status_frame(id: i64, is_active: bool) -> SocketUpdate {
    json!({"cmdId": id, "errorCode": 0, "errorMsg": null, "active": is_active, "cmdUpdateType": "ALARM_STATUS"})
}

pub fn no_notifications(id: i64, is_count: bool) -> SocketUpdate {
    let mut frame = json!({"cmdId": id, "errorCode": 0, "errorMsg": null, "totalUnreadCount": 0, "sequenceNumber": 0,
        "cmdUpdateType": "NOTIFICATIONS_COUNT"});
    if !is_count {
        frame["cmdUpdateType"] = "NOTIFICATIONS".into();
        (frame["update"], frame["notifications"]) = (Value::Null, json!([]));
    }
    frame
}

/// Requests of an entity command that are answered once.
#[derive(Default)]
pub struct OneTimeRequests {
    history: Option<SeriesCommand>,
    aggregates: Option<AggregateCommand>,
}

impl AggregateCommand {
    fn value_with_comparison(
        &self,
        call: &ApiCall,
        entity: EntityId,
        key: &AggregateKey,
    ) -> Result<Value, ThingsboardError> {
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
            Ok::<_, ThingsboardError>(point.map(|point| point_json(point, false)))
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
    /// `keys`: number of keys that share the limit of the answer.
    fn query(&self, keys: usize) -> Result<timeseries::Query, ThingsboardError> {
        let end = if self.end_ts > 0 {
            self.end_ts
        } else {
            self.start_ts.saturating_add(self.time_window)
        };
        let window = HistoryQueryRange {
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
    call: &ApiCall,
    entity: EntityId,
    keys: &[String],
    window: &WindowFields,
) -> Result<Vec<Vec<TimedValue>>, ThingsboardError> {
    let names: Vec<&str> = keys.iter().map(String::as_str).collect();
    let query = window.query(keys.len())?;
    call.platform()
        .store()
        .query(entity.id.into(), &names, &query)
        .map_err(store_error)
}

fn all_keys(call: &ApiCall, entity: EntityId) -> Result<Vec<String>, ThingsboardError> {
    let keys = call.platform().store().keys(entity.id.into())?;
    Ok(keys.into_iter().map(String::from).collect())
}

fn latest(call: &ApiCall, entity: EntityId, keys: &[String]) -> Result<Vec<Vec<TimedValue>>, ThingsboardError> {
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
    call: &ApiCall,
    entity: EntityId,
    scope: Option<AttributeScope>,
    keys: Option<&[String]>,
) -> Result<Map<String, Value>, ThingsboardError> {
    let names: Option<Vec<&str>> = keys.map(|keys| keys.iter().map(String::as_str).collect());
    let scopes: &[AttributeScope] = scope.as_ref().map_or(&AttributeScope::ALL, std::slice::from_ref);
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

/// Returns the history of an entity, once.
pub fn history_frame(call: &ApiCall, command: &LegacyCommand) -> Result<SocketUpdate, ThingsboardError> {
    let entity = entity_of(call, command, Verb::ReadTelemetry)?;
    let keys = match command.keys() {
        Some(keys) => keys,
        None => all_keys(call, entity)?,
    };
    let all = history(call, entity, &keys, &command.window)?;
    Ok(telemetry_frame(command.cmd_id, pairs(&keys, &all)))
}

pub fn entity_of(call: &ApiCall, command: &LegacyCommand, verb: Verb) -> Result<EntityId, ThingsboardError> {
    let entity = command
        .entity()
        .ok_or_else(|| ThingsboardError::bad_request("Device id is empty!"))?;
    call.check_id(entity, verb)?;
    Ok(entity)
}

impl SocketSubscription {
    pub fn telemetry(
        call: &ApiCall,
        command: &LegacyCommand,
    ) -> Result<(SocketSubscription, SocketUpdate), ThingsboardError> {
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
        let subscription = SocketSubscription::Telemetry {
            entity,
            newest: newest_of(&keys, &all).collect(),
            keys: command.keys(),
        };
        Ok((subscription, telemetry_frame(command.cmd_id, pairs(&keys, &all))))
    }

    pub fn attributes(
        call: &ApiCall,
        command: &LegacyCommand,
    ) -> Result<(SocketSubscription, SocketUpdate), ThingsboardError> {
        let entity = entity_of(call, command, Verb::ReadAttributes)?;
        let (scope, keys) = (command.scope(), call.attributes_shown(command.keys())?);
        let data = attributes(call, entity, scope, keys.as_deref())?;
        Ok((
            SocketSubscription::Attributes { entity, scope, keys },
            telemetry_frame(command.cmd_id, data),
        ))
    }

    pub fn entity_count(
        call: &ApiCall,
        id: i64,
        query: &Value,
    ) -> Result<(SocketSubscription, SocketUpdate), ThingsboardError> {
        let query: EntityDataQuery = read(query)?;
        let last = count(call, &query)?;
        Ok((
            SocketSubscription::EntityCount { query, last },
            count_frame(id, "COUNT_DATA", last),
        ))
    }

    pub fn alarms(
        call: &ApiCall,
        id: i64,
        query: &Value,
    ) -> Result<(SocketSubscription, SocketUpdate), ThingsboardError> {
        let page = alarms_page(call, query)?;
        let frame = alarms_frame(id, json!(page), Value::Null);
        let subscription = SocketSubscription::Alarms {
            query: query.clone(),
            tenant: call.tenant().0,
        };
        Ok((subscription, frame))
    }

    pub fn alarm_count(
        call: &ApiCall,
        id: i64,
        query: &Value,
    ) -> Result<(SocketSubscription, SocketUpdate), ThingsboardError> {
        let last = count_of_alarms(call, query)?;
        let subscription = SocketSubscription::AlarmCount {
            query: query.clone(),
            tenant: call.tenant().0,
            last,
        };
        Ok((subscription, count_frame(id, "ALARM_COUNT_DATA", last)))
    }

    pub fn alarm_status(
        call: &ApiCall,
        id: i64,
        command: &AlarmStatusCommand,
    ) -> Result<(SocketSubscription, SocketUpdate), ThingsboardError> {
        let entity = command.originator_id;
        call.check_id(entity, Verb::Read)?;
        let query = json!({"entityFilter": {"type": "singleEntity", "singleEntity": entity}, "statusList": ["ACTIVE"],
            "typeList": command.type_list, "severityList": command.severity_list});
        let last = count_of_alarms(call, &query)? > 0;
        Ok((
            SocketSubscription::AlarmStatus { entity, query, last },
            status_frame(id, last),
        ))
    }

    /// Whether the subscription uses the older commands.
    pub fn is_old(&self) -> bool {
        matches!(
            self,
            SocketSubscription::Telemetry { .. } | SocketSubscription::Attributes { .. }
        )
    }

    /// Drops attributes that the screen's dashboard no longer shows. Fails if none remain.
    pub fn drop_hidden_attributes(&mut self, call: &ApiCall) -> Result<(), ThingsboardError> {
        if let SocketSubscription::Attributes { keys, .. } = self {
            *keys = call.attributes_shown(keys.take())?;
        }
        Ok(())
    }

    /// Drops entities that the user may no longer read. Fails if none remain.
    pub fn drop_inaccessible(&mut self, call: &ApiCall) -> Result<(), ThingsboardError> {
        match self {
            SocketSubscription::Telemetry { entity, .. } => call.check_id(*entity, Verb::ReadTelemetry),
            SocketSubscription::Attributes { entity, .. } => call.check_id(*entity, Verb::ReadAttributes),
            SocketSubscription::AlarmStatus { entity, .. } => call.check_id(*entity, Verb::Read),
            SocketSubscription::Entities(entities) => {
                entities.drop_inaccessible(call);
                Ok(())
            }
            // These are queried again for each update.
            SocketSubscription::EntityCount { .. }
            | SocketSubscription::Alarms { .. }
            | SocketSubscription::AlarmCount { .. } => Ok(()),
        }
    }

    /// Returns the entities to watch for this subscription.
    pub fn watched(&self) -> Vec<Uuid> {
        match self {
            SocketSubscription::Telemetry { entity, .. }
            | SocketSubscription::Attributes { entity, .. }
            | SocketSubscription::AlarmStatus { entity, .. } => vec![entity.id],
            SocketSubscription::Entities(entities) => entities.watched(),
            SocketSubscription::EntityCount { .. } => Vec::new(),
            SocketSubscription::Alarms { tenant, .. } | SocketSubscription::AlarmCount { tenant, .. } => vec![*tenant],
        }
    }

    /// Returns the part of an update that the subscription shows. Reads nothing from the store.
    pub fn frame_of_update(&mut self, id: i64, update: &Update) -> Option<SocketUpdate> {
        match (self, update) {
            (
                SocketSubscription::Telemetry { entity, keys, newest },
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
                (!data.is_empty()).then(|| telemetry_frame(id, data))
            }
            (
                SocketSubscription::Attributes { entity, scope, keys },
                Update::Attributes {
                    entity: of,
                    scope: in_scope,
                    updated,
                    ..
                },
            ) if entity == of && scope.is_none_or(|scope| scope == *in_scope) => {
                let is_wanted = |attribute: &&Attribute| keys.as_ref().is_none_or(|keys| keys.contains(&attribute.key));
                let data: Map<String, Value> = updated.iter().filter(is_wanted).map(attribute_pair).collect();
                (!data.is_empty()).then(|| telemetry_frame(id, data))
            }
            (SocketSubscription::Entities(entities), update) => {
                let changed = entities.changed(update)?;
                Some(data_frame(id, "ENTITY_DATA", Value::Null, json!([changed])))
            }
            _ => None,
        }
    }

    /// Returns the current state, after updates were dropped.
    pub fn current_state(&mut self, call: &ApiCall, id: i64) -> Result<Option<SocketUpdate>, ThingsboardError> {
        Ok(match self {
            SocketSubscription::Telemetry { entity, keys, newest } => {
                let keys = match keys {
                    Some(keys) => keys.clone(),
                    None => all_keys(call, *entity)?,
                };
                let all = latest(call, *entity, &keys)?;
                newest.extend(newest_of(&keys, &all));
                Some(telemetry_frame(id, pairs(&keys, &all)))
            }
            SocketSubscription::Attributes { entity, scope, keys } => {
                let data = attributes(call, *entity, *scope, keys.as_deref())?;
                Some(telemetry_frame(id, data))
            }
            SocketSubscription::Entities(entities) => Some(entities.frame(call, id, &OneTimeRequests::default())?),
            SocketSubscription::Alarms { query, .. } => {
                Some(alarms_frame(id, json!(alarms_page(call, query)?), Value::Null))
            }
            SocketSubscription::EntityCount { .. }
            | SocketSubscription::AlarmCount { .. }
            | SocketSubscription::AlarmStatus { .. } => self.query_updates(call, id, &[])?,
        })
    }

    /// Returns updates that need a query: changed alarms, counts.
    pub fn query_updates(
        &mut self,
        call: &ApiCall,
        id: i64,
        alarms: &[Alarm],
    ) -> Result<Option<SocketUpdate>, ThingsboardError> {
        Ok(match self {
            SocketSubscription::Alarms { query, .. } => alarm_update(call, id, query, alarms)?,
            SocketSubscription::AlarmCount { query, last, .. } => changed_count(last, count_of_alarms(call, query)?)
                .map(|count| count_frame(id, "ALARM_COUNT_DATA", count)),
            SocketSubscription::AlarmStatus { query, last, .. } => {
                let is_active = count_of_alarms(call, query)? > 0;
                (std::mem::replace(last, is_active) != is_active).then(|| status_frame(id, is_active))
            }
            // The time range ends now, so it moves.
            SocketSubscription::Entities(entities) if alarms.is_empty() && entities.aggregates.is_some() => {
                Some(entities.frame(call, id, &OneTimeRequests::default())?)
            }
            SocketSubscription::EntityCount { query, last } if alarms.is_empty() => {
                changed_count(last, count(call, query)?).map(|count| count_frame(id, "COUNT_DATA", count))
            }
            _ => None,
        })
    }
}

fn changed_count(last: &mut usize, count: usize) -> Option<usize> {
    (std::mem::replace(last, count) != count).then_some(count)
}

/// Returns the changed alarms that match the query. Reads the page of the query, so that the same rule selects them.
fn alarm_update(
    call: &ApiCall,
    id: i64,
    query: &Value,
    alarms: &[Alarm],
) -> Result<Option<SocketUpdate>, ThingsboardError> {
    if alarms.is_empty() {
        return Ok(None);
    }
    let page = alarms_page(call, query)?;
    let mut updates = Vec::new();
    for alarm in alarms {
        let wanted = json!(alarm.id);
        match page.data.iter().find(|shown| shown["id"] == wanted) {
            Some(shown) => updates.push(shown.clone()),
            // The alarm may have been shown before and no longer match; the client removes alarms that do not match.
            None if call.alarm(alarm.id.unwrap_or_default(), Verb::Read).is_ok() => {
                updates.push(NameCache::new(call).info(alarm)?);
            }
            None => {}
        }
    }
    Ok((!updates.is_empty()).then(|| alarms_frame(id, Value::Null, updates.into())))
}

fn alarms_frame(id: i64, data: Value, update: Value) -> SocketUpdate {
    let mut frame = data_frame(id, "ALARM_DATA", data, update);
    frame["allowedEntities"] = super::super::query::CANDIDATES_MAX.into();
    frame["totalEntities"] = frame["data"]["totalElements"].as_u64().unwrap_or(0).into();
    frame
}

fn read<T: serde::de::DeserializeOwned>(json: &Value) -> Result<T, ThingsboardError> {
    from_value(json.clone()).map_err(ThingsboardError::bad_request)
}

fn attribute_pair(attribute: &Attribute) -> (String, Value) {
    let pair = json!([[attribute.last_update_ms, values::text(&attribute.value)]]);
    (attribute.key.clone(), pair)
}

/// Points with an earlier time do not change the latest value.
fn is_newer<K: std::hash::Hash + Eq>(newest: &mut HashMap<K, i64>, key: K, ts_ms: i64) -> bool {
    let known = newest.entry(key).or_insert(i64::MIN);
    let is_newer = ts_ms >= *known;
    *known = ts_ms.max(*known);
    is_newer
}

impl EntityPageSubscription {
    pub fn new(query: EntityDataQuery) -> EntityPageSubscription {
        EntityPageSubscription {
            query,
            shown: HashMap::new(),
            latest: None,
            series: None,
            aggregates: None,
            newest: HashMap::new(),
        }
    }

    /// Changes the query of entities that are already shown. Returns the requests that are answered once.
    pub fn change(&mut self, command: EntityDataCommand) -> OneTimeRequests {
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
        OneTimeRequests {
            history: command.history_cmd,
            aggregates: command.agg_history_cmd,
        }
    }

    /// Finds the current entities.
    pub fn find(&mut self, call: &ApiCall) -> Result<(), ThingsboardError> {
        let found = find(call, &self.query)?;
        self.shown = found.rows.iter().map(|row| (row.id(), row.readable)).collect();
        Ok(())
    }

    pub fn watched(&self) -> Vec<Uuid> {
        self.shown.keys().map(|id| id.id).collect()
    }

    /// Drops entities that the user may no longer read.
    fn drop_inaccessible(&mut self, call: &ApiCall) {
        self.shown.retain(|id, readable| {
            let record = call.record(*id, Verb::Read);
            let now = record.and_then(|record| call.readable_data(&record));
            now.inspect(|now| *readable = *now).is_ok()
        });
    }

    /// Returns all entities again.
    pub fn frame(&mut self, call: &ApiCall, id: i64, once: &OneTimeRequests) -> Result<SocketUpdate, ThingsboardError> {
        let mut found = find(call, &self.query)?;
        let mut budget = QueryAnswerBudget::default();
        let mut page = found.page(call, &self.query, &mut budget)?;
        self.shown.clear();
        for (row, shown) in found.rows.iter_mut().zip(&mut page.data) {
            self.shown.insert(row.id(), row.readable);
            if let Some(latest) = &self.latest {
                let more = values_json(call, row, &latest.keys, &mut budget)?;
                merge(&mut shown["latest"], more);
            }
            let mut series = Map::new();
            for command in self.series.iter().chain(&once.history) {
                let all = match row.readable.has_telemetry {
                    true => history(call, row.id(), &command.keys, &command.window)?,
                    false => vec![Vec::new(); command.keys.len()],
                };
                for (key, points) in command.keys.iter().zip(&all) {
                    let mut shown = Vec::with_capacity(points.len());
                    for point in points {
                        budget.take(point.value.heap_bytes())?;
                        shown.push(point_json(point, false));
                    }
                    series.insert(key.clone(), shown.into());
                }
            }
            shown["timeseries"] = series.into();
            for command in self.aggregates.iter().chain(&once.aggregates) {
                for key in &command.keys {
                    budget.take(key.key.len())?;
                    shown["aggLatest"][key.id.to_string()] = match row.readable.has_telemetry {
                        true => command.value_with_comparison(call, row.id(), key)?,
                        false => json!({"current": null, "previous": null}),
                    };
                }
            }
        }
        let mut frame = data_frame(id, "ENTITY_DATA", json!(page), Value::Null);
        frame["allowedEntities"] = super::super::query::CANDIDATES_MAX.into();
        Ok(frame)
    }

    fn changed(&mut self, update: &Update) -> Option<Value> {
        let may_show = |entity, is_shown: fn(&ReadableData) -> bool| self.shown.get(entity).is_some_and(is_shown);
        let (entity, latest, series) = match update {
            Update::Telemetry { entity, ts_ms, values } if may_show(entity, |readable| readable.has_telemetry) => {
                let (latest, series) = self.of_telemetry(*entity, *ts_ms, values);
                (*entity, latest, series)
            }
            Update::Attributes {
                entity, scope, updated, ..
            } if may_show(entity, |readable| readable.has_attributes) => {
                (*entity, self.of_attributes(*scope, updated), Map::new())
            }
            _ => return None,
        };
        let is_empty = latest.is_empty() && series.is_empty();
        (!is_empty).then(|| json!({"entityId": entity, "latest": latest, "timeseries": series, "aggLatest": {}}))
    }

    fn requested_keys(&self) -> impl Iterator<Item = &EntityKey> {
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
                .requested_keys()
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

    fn of_attributes(&self, scope: AttributeScope, updated: &[Attribute]) -> Map<String, Value> {
        let mut latest = Map::new();
        for asked in self.requested_keys() {
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

/// Merges the inner members of one object of objects into another.
fn merge(into: &mut Value, more: Value) {
    let Value::Object(more) = more else { return };
    for (kind, keys) in more {
        let Value::Object(keys) = keys else { continue };
        for (key, value) in keys {
            into[kind.as_str()][key.as_str()] = value;
        }
    }
}
