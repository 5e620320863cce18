//! Telemetry and attributes of any entity: keys, values, history with aggregation, saving, deleting.

use std::ops::Range;
use std::sync::Arc;

use axum::Json;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use devices::Devices;
use platform::decode::{Limits, Telemetry, attributes as decode_attributes};
use platform::ids::{EntityId, EntityType, Uuid};
use platform::model::{Attribute, Scope};
use platform::{ApiFeature, ApiState};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::{Value, json};
use timeseries::{
    Aggregation, CalendarUnit, Delete, Interval, LatestAfterDelete, Order, Query, Store, StoreError, TimedValue,
};

use super::call::{Call, Verb};
use super::failure::{Code, Failure};
use super::lists::{comma_separated, empty_is_none};
use super::operation::{FromParameter, Later, NoQuery, Outcome, Raw, delete_later, get, post_later};
use super::values;
use crate::endpoint::Endpoint;
use crate::guard::Who;

const TAG: &str = "Telemetry";
/// Of one key, in one answer.
pub const POINTS_MAX: usize = 50_000;
/// Of all keys of one answer together.
const ANSWER_POINTS_MAX: usize = 1_000_000;
const POINTS_DEFAULT: usize = 100;

pub fn endpoints() -> Vec<Endpoint> {
    [reading(), writing(), deleting()]
        .into_iter()
        .flatten()
        .map(|endpoint| endpoint.tag(TAG))
        .collect()
}

/// Changes of attributes, which wait for what devices said before: no work for the server.
pub fn is_waiting(path: &str) -> bool {
    let Some(rest) = path.strip_prefix("/api/plugins/telemetry/") else {
        return false;
    };
    let mut parts = rest.split('/');
    let is_of_scope = parts.next_back().is_some_and(|scope| Scope::parse(scope).is_some());
    is_of_scope && parts.all(|part| !["timeseries", "values", "keys"].contains(&part))
}

fn reading() -> Vec<Endpoint> {
    vec![
        get("/api/plugins/telemetry/{entityType}/{entityId}/keys/timeseries", "get_timeseries_keys", Who::ANY.and_screens(), keys)
            .says("List keys of telemetry", "Those that have a latest value.")
            .returns_json("The keys."),
        get("/api/plugins/telemetry/{entityType}/{entityId}/keys/attributes", "get_attribute_keys", Who::ANY, attribute_keys)
            .says("List keys of attributes", "Of all scopes.")
            .returns_json("The keys."),
        get("/api/plugins/telemetry/{entityType}/{entityId}/keys/attributes/{scope}", "get_attribute_keys_of_scope", Who::ANY, attribute_keys_of)
            .says("List keys of attributes of one scope", "In the order of the alphabet.")
            .returns_json("The keys."),
        get("/api/plugins/telemetry/{entityType}/{entityId}/values/timeseries", "get_timeseries", Who::ANY.and_screens(), timeseries)
            .says(
                "Read telemetry",
                "Without `startTs` and `endTs` the latest values, else those of the range, newest first; with `agg` and `interval` one \
                 value per interval, at its middle. Values are texts unless `useStrictDataTypes` is true.",
            )
            .returns_json("Per key a list of `ts` and `value`."),
        get("/api/plugins/telemetry/{entityType}/{entityId}/values/attributes", "get_attributes", Who::ANY, attributes)
            .says("Read attributes", "Of all scopes; all of them without `keys`.")
            .returns_json("A list of `key`, `value` and `lastUpdateTs`."),
        get("/api/plugins/telemetry/{entityType}/{entityId}/values/attributes/{scope}", "get_attributes_of_scope", Who::ANY, attributes_of)
            .says("Read attributes of one scope", "All of them without `keys`.")
            .returns_json("A list of `key`, `value` and `lastUpdateTs`."),
    ]
}

fn writing() -> Vec<Endpoint> {
    vec![
        post_later(
            "/api/plugins/telemetry/{entityType}/{entityId}/timeseries/{scope}",
            "save_timeseries",
            Who::ANY,
            save,
        )
        .says(
            "Save telemetry",
            "In any form that devices send; it is stored past the rule chains.",
        )
        .returns_empty("Kept."),
        post_later(
            "/api/plugins/telemetry/{entityType}/{entityId}/timeseries/{scope}/{ttl}",
            "save_timeseries_with_ttl",
            Who::ANY,
            save_with_ttl,
        )
        .says(
            "Save telemetry with a time to live",
            "Seconds, for all values of these keys, older ones too, until they are saved with another one; 0: as the tenant profile says.",
        )
        .returns_empty("Kept."),
        post_later(
            "/api/plugins/telemetry/{entityType}/{entityId}/attributes/{scope}",
            "save_attributes",
            Who::ANY,
            save_attributes,
        )
        .says(
            "Save attributes",
            "SERVER_SCOPE or SHARED_SCOPE; a device is told of its shared ones.",
        )
        .returns_empty("Saved."),
        post_later(
            "/api/plugins/telemetry/{entityType}/{entityId}/{scope}",
            "save_attributes_v1",
            Who::ANY,
            save_attributes,
        )
        .says("Save attributes", "The older path.")
        .returns_empty("Saved."),
        post_later(
            "/api/plugins/telemetry/{deviceId}/{scope}",
            "save_device_attributes",
            Who::ANY,
            save_device_attributes,
        )
        .says("Save attributes of a device", "SERVER_SCOPE or SHARED_SCOPE.")
        .returns_empty("Saved."),
    ]
}

fn deleting() -> Vec<Endpoint> {
    vec![
        delete_later(
            "/api/plugins/telemetry/{entityType}/{entityId}/timeseries/delete",
            "delete_timeseries",
            Who::ANY,
            delete_timeseries,
        )
        .says(
            "Delete telemetry",
            "Of some keys: all of it, or that of a range of time; that too which was acknowledged and not stored yet.",
        )
        .returns_empty("Deleted."),
        delete_later(
            "/api/plugins/telemetry/{entityType}/{entityId}/{scope}",
            "delete_attributes",
            Who::ANY,
            delete_attributes,
        )
        .says("Delete attributes", "A device is told of its shared ones.")
        .returns_empty("Deleted."),
        delete_later(
            "/api/plugins/telemetry/{deviceId}/{scope}",
            "delete_device_attributes",
            Who::ANY,
            delete_device_attributes,
        )
        .says(
            "Delete attributes of a device",
            "The device is told of its shared ones.",
        )
        .returns_empty("Deleted."),
    ]
}

#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[derive(Default)]
struct TimeseriesQuery {
    /// Keys, with commas between them; all of them if it is not given.
    keys: Option<String>,
    /// From this time on, in milliseconds since 1970.
    #[serde(deserialize_with = "empty_is_none")]
    #[schemars(with = "Option<i64>")]
    start_ts: Option<i64>,
    /// Before this time.
    #[serde(deserialize_with = "empty_is_none")]
    #[schemars(with = "Option<i64>")]
    end_ts: Option<i64>,
    /// MILLISECONDS, WEEK, WEEK_ISO, MONTH or QUARTER.
    interval_type: Option<String>,
    /// Of aggregation, in milliseconds.
    #[serde(deserialize_with = "empty_is_none")]
    #[schemars(with = "Option<i64>")]
    interval: Option<i64>,
    /// In which weeks, months and quarters begin, such as Europe/Kyiv.
    time_zone: Option<String>,
    /// Points per key, 100 if it is not given; without aggregation only.
    #[serde(deserialize_with = "empty_is_none")]
    #[schemars(with = "Option<i64>")]
    limit: Option<i64>,
    /// NONE, MIN, MAX, AVG, SUM or COUNT.
    agg: Option<String>,
    /// DESC or ASC.
    order_by: Option<String>,
    /// Values with their types.
    #[serde(deserialize_with = "empty_is_none")]
    #[schemars(with = "Option<bool>")]
    use_strict_data_types: Option<bool>,
}

#[derive(Deserialize, JsonSchema)]
struct KeysQuery {
    /// Keys, with commas between them.
    keys: Option<String>,
}

#[derive(Deserialize, JsonSchema)]
struct KeysToDelete {
    /// Keys, with commas between them.
    keys: String,
}

#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct DeleteQuery {
    /// Keys, with commas between them.
    keys: String,
    /// Whatever its time.
    delete_all_data_for_keys: Option<bool>,
    /// From this time on, in milliseconds since 1970.
    start_ts: Option<i64>,
    /// Before this time.
    end_ts: Option<i64>,
    /// The latest value too, if its time is in the range; true if it is not given.
    delete_latest: Option<bool>,
    /// The newest value that is left becomes the latest.
    rewrite_latest_if_deleted: Option<bool>,
}

type Of = (EntityType, Uuid);

fn entity(call: &Call, (kind, id): Of, verb: Verb) -> Result<EntityId, Failure> {
    let entity = EntityId::new(kind, id);
    call.check_id(entity, verb)?;
    Ok(entity)
}

fn store(call: &Call) -> &dyn Store {
    &**call.platform().store()
}

fn keys(call: &Call, of: Of, _: NoQuery, (): ()) -> Outcome<Vec<Box<str>>> {
    let entity = entity(call, of, Verb::ReadTelemetry)?;
    Ok(Json(store(call).keys(entity.id.into())?))
}

fn attribute_keys(call: &Call, of: Of, _: NoQuery, (): ()) -> Outcome<Vec<String>> {
    let entity = entity(call, of, Verb::ReadAttributes)?;
    let mut keys = Vec::new();
    for scope in Scope::ALL {
        keys.extend(
            call.platform()
                .attributes(entity, scope, None)?
                .into_iter()
                .map(|attribute| attribute.key),
        );
    }
    keys.sort();
    keys.dedup();
    Ok(Json(keys))
}

fn attribute_keys_of(
    call: &Call,
    (kind, id, scope): (EntityType, Uuid, Scope),
    _: NoQuery,
    (): (),
) -> Outcome<Vec<String>> {
    let entity = entity(call, (kind, id), Verb::ReadAttributes)?;
    let attributes = call.platform().attributes(entity, scope, None)?;
    Ok(Json(attributes.into_iter().map(|attribute| attribute.key).collect()))
}

fn attributes(call: &Call, of: Of, query: KeysQuery, (): ()) -> Outcome<Vec<Value>> {
    let entity = entity(call, of, Verb::ReadAttributes)?;
    let mut all = Vec::new();
    for scope in Scope::ALL {
        all.extend(attributes_in(call, entity, scope, query.keys.as_deref())?);
    }
    Ok(Json(all.iter().map(attribute_json).collect()))
}

fn attributes_of(
    call: &Call,
    (kind, id, scope): (EntityType, Uuid, Scope),
    query: KeysQuery,
    (): (),
) -> Outcome<Vec<Value>> {
    let entity = entity(call, (kind, id), Verb::ReadAttributes)?;
    let all = attributes_in(call, entity, scope, query.keys.as_deref())?;
    Ok(Json(all.iter().map(attribute_json).collect()))
}

fn attributes_in(call: &Call, entity: EntityId, scope: Scope, keys: Option<&str>) -> Result<Vec<Attribute>, Failure> {
    let keys = keys.map(comma_separated).filter(|keys| !keys.is_empty());
    Ok(call.platform().attributes(entity, scope, keys.as_deref())?)
}

fn attribute_json(attribute: &Attribute) -> Value {
    json!({"lastUpdateTs": attribute.last_update_ms, "key": attribute.key, "value": values::typed(&attribute.value)})
}

fn timeseries(call: &Call, of: Of, query: TimeseriesQuery, (): ()) -> Result<Response, Failure> {
    let entity = entity(call, of, Verb::ReadTelemetry)?;
    let mut keys: Vec<Box<str>> = match query.keys.as_deref().map(comma_separated) {
        Some(keys) if !keys.is_empty() => keys.into_iter().map(Box::from).collect(),
        _ => store(call).keys(entity.id.into())?,
    };
    keys.sort_unstable();
    keys.dedup();
    let keys: Vec<&str> = keys.iter().map(|key| &**key).collect();
    let is_strict = query.use_strict_data_types == Some(true);
    let all = match wanted(&query, keys.len())? {
        None => latest(call, entity, &keys)?,
        Some(wanted) => store(call).query(entity.id.into(), &keys, &wanted).map_err(explain)?,
    };
    let is_latest = query.start_ts.is_none() && query.end_ts.is_none();
    let nothing = json!([{"ts": call.now_ms, "value": null}]);
    let answer = keys
        .iter()
        .zip(&all)
        .filter_map(|(key, points)| match points.is_empty() {
            false => Some((key, Points::Some { points, is_strict })),
            true => is_latest.then_some((key, Points::Nothing(&nothing))),
        });
    // Written at once: a tree of a million points is several times as large.
    let mut body = Vec::new();
    let written = serde_json::Serializer::new(&mut body).collect_map(answer);
    written.map_err(|error| Failure::new(Code::General, error.to_string()))?;
    Ok(([(header::CONTENT_TYPE, "application/json")], body).into_response())
}

/// Of one key.
enum Points<'a> {
    Some { points: &'a [TimedValue], is_strict: bool },
    Nothing(&'a Value),
}

impl Serialize for Points<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Points::Some { points, is_strict } => {
                serializer.collect_seq(points.iter().map(|point| point_json(point, *is_strict)))
            }
            Points::Nothing(nothing) => nothing.serialize(serializer),
        }
    }
}

fn latest(call: &Call, entity: EntityId, keys: &[&str]) -> Result<Vec<Vec<TimedValue>>, Failure> {
    let latest = store(call).latest(entity.id.into(), keys)?;
    Ok(latest.into_iter().map(|value| value.into_iter().collect()).collect())
}

pub fn point_json(point: &TimedValue, is_strict: bool) -> Value {
    let value = if is_strict {
        values::typed(&point.value)
    } else {
        values::text(&point.value).into()
    };
    json!({"ts": point.ts_ms, "value": value})
}

/// `None`: the latest values.
fn wanted(query: &TimeseriesQuery, keys: usize) -> Result<Option<Query>, Failure> {
    let (start, end) = match (query.start_ts, query.end_ts) {
        (None, None) => return Ok(None),
        (Some(start), Some(end)) => (start, end),
        (None, Some(_)) => {
            return Err(Failure::bad_request(
                "Required request parameter 'startTs' is not present",
            ));
        }
        (Some(_), None) => {
            return Err(Failure::bad_request(
                "Required request parameter 'endTs' is not present",
            ));
        }
    };
    let window = Window {
        range: start..end,
        interval: query.interval.unwrap_or(0),
        interval_type: query.interval_type.as_deref().unwrap_or_default(),
        time_zone: query.time_zone.as_deref().unwrap_or("UTC"),
        aggregation: query.agg.as_deref().unwrap_or_default(),
        limit: query.limit,
        is_ascending: query
            .order_by
            .as_deref()
            .is_some_and(|order| order.eq_ignore_ascii_case("ASC")),
    };
    window.query(keys).map(Some)
}

/// A question for history, as it comes in requests and subscriptions.
pub struct Window<'a> {
    pub range: Range<i64>,
    pub interval: i64,
    pub interval_type: &'a str,
    pub time_zone: &'a str,
    pub aggregation: &'a str,
    pub limit: Option<i64>,
    pub is_ascending: bool,
}

impl Window<'_> {
    /// `keys`: how many share the answer.
    pub fn query(self, keys: usize) -> Result<Query, Failure> {
        let limit = match self.limit.unwrap_or(0) {
            0 => POINTS_DEFAULT,
            limit => usize::try_from(limit).map_err(|_| {
                Failure::bad_request(format!("Incorrect TsKvQuery. Limit '{limit}' must not be negative"))
            })?,
        };
        let limit = limit.min(POINTS_MAX);
        if limit.saturating_mul(keys) > ANSWER_POINTS_MAX {
            let message =
                format!("More than {ANSWER_POINTS_MAX} points in one answer: ask for fewer keys or a smaller limit");
            return Err(Failure::bad_request(message));
        }
        let order = if self.is_ascending {
            Order::Ascending
        } else {
            Order::Descending
        };
        let aggregation = match self.aggregation {
            "" | "NONE" => {
                return Ok(Query::Points {
                    range: self.range,
                    order,
                    limit,
                });
            }
            "MIN" => Aggregation::Min,
            "MAX" => Aggregation::Max,
            "AVG" => Aggregation::Avg,
            "SUM" => Aggregation::Sum,
            "COUNT" => Aggregation::Count,
            other => return Err(Failure::bad_request(format!("No enum constant Aggregation.{other}"))),
        };
        Ok(Query::Aggregate {
            interval: self.interval()?,
            range: self.range,
            aggregation,
            order,
            limit,
        })
    }

    fn interval(&self) -> Result<Interval, Failure> {
        let unit = match self.interval_type {
            "" | "MILLISECONDS" => return Ok(Interval::Millis(self.interval)),
            "WEEK" => CalendarUnit::Week,
            "WEEK_ISO" => CalendarUnit::WeekIso,
            "MONTH" => CalendarUnit::Month,
            "QUARTER" => CalendarUnit::Quarter,
            other => return Err(Failure::bad_request(format!("No enum constant IntervalType.{other}"))),
        };
        Ok(Interval::Calendar {
            unit,
            time_zone: self.time_zone.to_owned(),
        })
    }
}

pub fn explain(error: StoreError) -> Failure {
    match error {
        StoreError::Query(timeseries::QueryError::TooManyBuckets { max }) => Failure::bad_request(format!(
            "Incorrect TsKvQuery. Number of intervals is to high - more than {max}. Please increase 'interval' parameter for your \
             query or reduce the time range of the query."
        )),
        error => error.into(),
    }
}

fn save(
    call: &Call,
    (kind, id, scope): (EntityType, Uuid, String),
    query: NoQuery,
    body: Raw,
) -> Result<Later, Failure> {
    save_with_ttl(call, (kind, id, scope, 0), query, body)
}

fn save_with_ttl(
    call: &Call,
    (kind, id, _scope, ttl): (EntityType, Uuid, String, i64),
    _: NoQuery,
    Raw(body): Raw,
) -> Result<Later, Failure> {
    let entity = entity(call, (kind, id), Verb::WriteTelemetry)?;
    let ttl_s = u32::try_from(ttl).map_err(|_| {
        Failure::bad_request(format!(
            "{ttl}: expected a time to live in seconds, from 0 to {}",
            u32::MAX
        ))
    })?;
    let telemetry = Telemetry::decode(&body, call.now_ms, &Limits::default());
    let telemetry = telemetry.map_err(|error| Failure::bad_request(error.to_string()))?;
    if telemetry.point_count() == 0 {
        return Err(Failure::bad_request("No timeseries data found in request body!"));
    }
    if call.platform().api_state(call.tenant(), ApiFeature::Storage) == ApiState::Disabled {
        let text = "DB storage writes are disabled due to API limits!";
        return Err(Failure::new(Code::TooManyRequests, text));
    }
    let saved = call.world.begin_telemetry(entity, &body, ttl_s, call.now_ms)?;
    let groups = telemetry.groups().map(|(ts_ms, values)| {
        let members = values
            .iter()
            .map(|value| (value.key.to_string(), values::typed(&value.value)));
        json!({"ts": ts_ms, "values": members.collect::<serde_json::Map<_, _>>()})
    });
    let data = json!({"timeseries": groups.collect::<Vec<_>>()});
    call.told("TIMESERIES_UPDATED", entity, data);
    Ok(saved)
}

fn save_attributes(
    call: &Call,
    (kind, id, scope): (EntityType, Uuid, Scope),
    _: NoQuery,
    Raw(body): Raw,
) -> Result<Later, Failure> {
    let entity = entity(call, (kind, id), Verb::WriteAttributes)?;
    if scope == Scope::ClientScope {
        return Err(Failure::bad_request(format!("Invalid scope: {}", scope.name())));
    }
    let values = decode_attributes(&body, &Limits::of_people());
    let values = values.map_err(|error| Failure::bad_request(error.to_string()))?;
    if values.is_empty() {
        return Err(Failure::bad_request("No attributes data found in request body!"));
    }
    call.world.save_attributes((entity, scope), &body, call.now_ms)
}

fn save_device_attributes(
    call: &Call,
    (id, scope): (Uuid, Scope),
    query: NoQuery,
    body: Raw,
) -> Result<Later, Failure> {
    save_attributes(call, (EntityType::Device, id, scope), query, body)
}

fn delete_attributes(
    call: &Call,
    (kind, id, scope): (EntityType, Uuid, Scope),
    query: KeysToDelete,
    (): (),
) -> Result<Later, Failure> {
    let entity = entity(call, (kind, id), Verb::WriteAttributes)?;
    let keys: Vec<String> = comma_separated(&query.keys).into_iter().map(str::to_owned).collect();
    if keys.is_empty() {
        return Err(Failure::bad_request("Empty keys: ''"));
    }
    call.world.delete_attributes((entity, scope), &keys, call.now_ms)
}

fn delete_device_attributes(
    call: &Call,
    (id, scope): (Uuid, Scope),
    query: KeysToDelete,
    (): (),
) -> Result<Later, Failure> {
    delete_attributes(call, (EntityType::Device, id, scope), query, ())
}

fn delete_timeseries(call: &Call, of: Of, query: DeleteQuery, (): ()) -> Result<Later, Failure> {
    let entity = entity(call, of, Verb::WriteTelemetry)?;
    let keys: Vec<String> = comma_separated(&query.keys).into_iter().map(str::to_owned).collect();
    if keys.is_empty() {
        return Err(Failure::bad_request("Empty keys: ''"));
    }
    let range = match (query.delete_all_data_for_keys, query.start_ts, query.end_ts) {
        (Some(true), ..) => i64::MIN..i64::MAX,
        (_, Some(start), Some(end)) => start..end,
        _ => {
            return Err(Failure::bad_request(
                "When deleteAllDataForKeys is false, start and end timestamp values shouldn't be empty",
            ));
        }
    };
    let latest = match (query.delete_latest, query.rewrite_latest_if_deleted) {
        (Some(false), _) => LatestAfterDelete::Keep,
        (_, Some(true)) => LatestAfterDelete::Rewrite,
        _ => LatestAfterDelete::Remove,
    };
    let said = json!({"timeseries": keys, "startTs": query.start_ts, "endTs": query.end_ts});
    call.told("TIMESERIES_DELETED", entity, said);
    let devices = Arc::clone(call.world.devices());
    let delete = move |devices: &Devices| {
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        devices.platform().store().delete(&Delete {
            entity: entity.id.into(),
            keys: Some(&keys),
            range,
            latest,
        })
    };
    Ok(Box::pin(async move {
        // Points that are acknowledged and come into the store behind the deletion would stay.
        if !devices.catch_up().await {
            return Err(Failure::new(
                Code::General,
                "what devices said is processed with a delay of more than 10 seconds; try again later",
            )
            .with_status(StatusCode::SERVICE_UNAVAILABLE));
        }
        let deleted = tokio::task::spawn_blocking(move || delete(&devices)).await;
        Ok(deleted.map_err(|error| Failure::new(Code::General, error.to_string()))??)
    }))
}

impl FromParameter for Scope {
    fn from_parameter(text: &str) -> Result<Scope, Failure> {
        Scope::parse(text).ok_or_else(|| Failure::bad_request(format!("Invalid scope: {text}")))
    }
}

#[cfg(test)]
mod tests {
    use super::is_waiting;

    #[test]
    fn changes_of_attributes_wait_and_nothing_else_does() {
        let rows = [
            ("DEVICE/1/attributes/SERVER_SCOPE", true),
            ("DEVICE/1/SHARED_SCOPE", true),
            ("1/SERVER_SCOPE", true),
            ("DEVICE/1/timeseries/SERVER_SCOPE", false),
            ("DEVICE/1/timeseries/delete", false),
            ("DEVICE/1/values/attributes/SERVER_SCOPE", false),
            ("DEVICE/1/keys/attributes/SERVER_SCOPE", false),
            ("DEVICE/1/values/timeseries", false),
        ];
        for (rest, expected) in rows {
            assert_eq!(
                is_waiting(&format!("/api/plugins/telemetry/{rest}")),
                expected,
                "{rest}"
            );
        }
        assert!(!is_waiting("/api/devices/SERVER_SCOPE"));
    }
}
