//! Telemetry and attributes of all entities: keys, values, history with aggregation, saving, deleting.

use std::ops::Range;
use std::sync::Arc;

use axum::Json;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use devices::Devices;
use platform::decode::{DecodeLimits, Telemetry, attributes as decode_attributes};
use platform::ids::{EntityId, EntityType, Uuid};
use platform::model::{Attribute, AttributeScope};
use platform::{ApiFeature, ApiState};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::{Value, json};
use timeseries::{
    Aggregation, BucketInterval, CalendarUnit, Delete, LatestAfterDelete, PointOrder, Query, StoreError, TimedValue,
    TimeseriesStore,
};

use super::authorities::Authorities;
use super::call::{ApiCall, Verb};
use super::failure::{ThingsboardError, ThingsboardErrorCode};
use super::history_answer::{self, HistoryAnswer};
use super::lists::{comma_separated, empty_is_none};
use super::operation::{FromParameter, HandlerResult, NoQuery, RawBody, delete_async, get, post_async};
use super::platform_access::PendingResult;
use super::values::{self, point_json};
use crate::services::Endpoint;

const TAG: &str = "Telemetry";
/// Limit of one key in one answer.
pub const POINTS_MAX: usize = 50_000;
/// Limit of all keys in one answer.
pub(crate) const ANSWER_POINTS_MAX: usize = 1_000_000;
const POINTS_DEFAULT: usize = 100;
/// An answer with more memory for its points is streamed.
const STREAMED_BYTES_MIN: usize = 256 << 10;

pub fn endpoints() -> Vec<Endpoint> {
    [reading(), writing(), deleting()]
        .into_iter()
        .flatten()
        .map(|endpoint| endpoint.tag(TAG))
        .collect()
}

/// Changes of attributes wait for earlier messages of the device. This causes no work for the server.
pub fn may_wait(path: &str) -> bool {
    let Some(rest) = path.strip_prefix("/api/plugins/telemetry/") else {
        return false;
    };
    let mut parts = rest.split('/');
    let is_of_scope = parts
        .next_back()
        .is_some_and(|scope| AttributeScope::parse(scope).is_some());
    is_of_scope && parts.all(|part| !["timeseries", "values", "keys"].contains(&part))
}

fn reading() -> Vec<Endpoint> {
    vec![
        get("/api/plugins/telemetry/{entityType}/{entityId}/keys/timeseries", "get_timeseries_keys", Authorities::ANY.and_screens(), keys)
            .describe("List telemetry keys", "Keys with a latest value.")
            .returns_json("The keys."),
        get("/api/plugins/telemetry/{entityType}/{entityId}/keys/attributes", "get_attribute_keys", Authorities::ANY, attribute_keys)
            .describe("List attribute keys", "Keys of all scopes.")
            .returns_json("The keys."),
        get("/api/plugins/telemetry/{entityType}/{entityId}/keys/attributes/{scope}", "get_attribute_keys_of_scope", Authorities::ANY, attribute_keys_of)
            .describe("List attribute keys of one scope", "In alphabetical order.")
            .returns_json("The keys."),
        get("/api/plugins/telemetry/{entityType}/{entityId}/values/timeseries", "get_timeseries", Authorities::ANY.and_screens(), timeseries)
            .describe(
                "Read telemetry",
                "Without `startTs` and `endTs` the latest values, otherwise the values of the range, newest first. With `agg` and `interval`, one \
                 value per interval, with the time of its middle. Values are strings unless `useStrictDataTypes` is true.",
            )
            .returns_json("A list of `ts` and `value` for each key."),
        get("/api/plugins/telemetry/{entityType}/{entityId}/values/attributes", "get_attributes", Authorities::ANY, attributes)
            .describe("Read attributes", "Attributes of all scopes. Without `keys`, all attributes.")
            .returns_json("A list of `key`, `value` and `lastUpdateTs`."),
        get("/api/plugins/telemetry/{entityType}/{entityId}/values/attributes/{scope}", "get_attributes_of_scope", Authorities::ANY, attributes_of)
            .describe("Read attributes of one scope", "Without `keys`, all attributes.")
            .returns_json("A list of `key`, `value` and `lastUpdateTs`."),
    ]
}

fn writing() -> Vec<Endpoint> {
    vec![
        post_async(
            "/api/plugins/telemetry/{entityType}/{entityId}/timeseries/{scope}",
            "save_timeseries",
            Authorities::ANY,
            save,
        )
        .describe(
            "Save telemetry",
            "In any format that devices can send. The values bypass the rule chains.",
        )
        .returns_empty("Kept."),
        post_async(
            "/api/plugins/telemetry/{entityType}/{entityId}/timeseries/{scope}/{ttl}",
            "save_timeseries_with_ttl",
            Authorities::ANY,
            save_with_ttl,
        )
        .describe(
            "Save telemetry with a time to live",
            "Time to live in seconds, for all values of these keys, including older ones, until they are saved with another one. 0: the default of the tenant profile.",
        )
        .returns_empty("Kept."),
        post_async(
            "/api/plugins/telemetry/{entityType}/{entityId}/attributes/{scope}",
            "save_attributes",
            Authorities::ANY,
            save_attributes,
        )
        .describe(
            "Save attributes",
            "SERVER_SCOPE or SHARED_SCOPE. A device receives its shared attributes.",
        )
        .returns_empty("Saved."),
        post_async(
            "/api/plugins/telemetry/{entityType}/{entityId}/{scope}",
            "save_attributes_v1",
            Authorities::ANY,
            save_attributes,
        )
        .describe("Save attributes", "The older path.")
        .returns_empty("Saved."),
        post_async(
            "/api/plugins/telemetry/{deviceId}/{scope}",
            "save_device_attributes",
            Authorities::ANY,
            save_device_attributes,
        )
        .describe("Save attributes of a device", "SERVER_SCOPE or SHARED_SCOPE.")
        .returns_empty("Saved."),
    ]
}

fn deleting() -> Vec<Endpoint> {
    vec![
        delete_async(
            "/api/plugins/telemetry/{entityType}/{entityId}/timeseries/delete",
            "delete_timeseries",
            Authorities::ANY,
            delete_timeseries,
        )
        .describe(
            "Delete telemetry",
            "Deletes all values of some keys, or those of a time range, including acknowledged values that are not stored yet.",
        )
        .returns_empty("Deleted."),
        delete_async(
            "/api/plugins/telemetry/{entityType}/{entityId}/{scope}",
            "delete_attributes",
            Authorities::ANY,
            delete_attributes,
        )
        .describe("Delete attributes", "A device is notified of its shared attributes.")
        .returns_empty("Deleted."),
        delete_async(
            "/api/plugins/telemetry/{deviceId}/{scope}",
            "delete_device_attributes",
            Authorities::ANY,
            delete_device_attributes,
        )
        .describe(
            "Delete attributes of a device",
            "The device is notified of its shared attributes.",
        )
        .returns_empty("Deleted."),
    ]
}

#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[derive(Default)]
struct TimeseriesQuery {
    /// Keys, separated by commas. Default: all.
    keys: Option<String>,
    /// Only values at or after this time, in milliseconds since 1970.
    #[serde(deserialize_with = "empty_is_none")]
    #[schemars(with = "Option<i64>")]
    start_ts: Option<i64>,
    /// Only values before this time.
    #[serde(deserialize_with = "empty_is_none")]
    #[schemars(with = "Option<i64>")]
    end_ts: Option<i64>,
    /// MILLISECONDS, WEEK, WEEK_ISO, MONTH or QUARTER.
    interval_type: Option<String>,
    /// Interval of the aggregation, in milliseconds.
    #[serde(deserialize_with = "empty_is_none")]
    #[schemars(with = "Option<i64>")]
    interval: Option<i64>,
    /// Time zone of weeks, months and quarters, such as Europe/Kyiv.
    time_zone: Option<String>,
    /// Points per key without aggregation. Default: 100.
    #[serde(deserialize_with = "empty_is_none")]
    #[schemars(with = "Option<i64>")]
    limit: Option<i64>,
    /// NONE, MIN, MAX, AVG, SUM or COUNT.
    agg: Option<String>,
    /// DESC or ASC.
    order_by: Option<String>,
    /// Return values with their types.
    #[serde(deserialize_with = "empty_is_none")]
    #[schemars(with = "Option<bool>")]
    use_strict_data_types: Option<bool>,
}

#[derive(Deserialize, JsonSchema)]
struct TimeseriesKeysQuery {
    /// Keys, separated by commas.
    keys: Option<String>,
}

#[derive(Deserialize, JsonSchema)]
struct KeysToDelete {
    /// Keys, separated by commas.
    keys: String,
}

#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct DeleteQuery {
    /// Keys, separated by commas.
    keys: String,
    /// Delete all values, regardless of their time.
    delete_all_data_for_keys: Option<bool>,
    /// Only values at or after this time, in milliseconds since 1970.
    start_ts: Option<i64>,
    /// Only values before this time.
    end_ts: Option<i64>,
    /// Also delete the latest value if its time is in the range. Default: true.
    delete_latest: Option<bool>,
    /// Use the newest remaining value as the latest value.
    rewrite_latest_if_deleted: Option<bool>,
}

type EntityPath = (EntityType, Uuid);

fn entity(call: &ApiCall, (kind, id): EntityPath, verb: Verb) -> Result<EntityId, ThingsboardError> {
    let entity = EntityId::new(kind, id);
    call.check_id(entity, verb)?;
    Ok(entity)
}

fn store(call: &ApiCall) -> &dyn TimeseriesStore {
    &**call.platform().store()
}

fn keys(call: &ApiCall, of: EntityPath, _: NoQuery, (): ()) -> HandlerResult<Vec<Box<str>>> {
    let entity = entity(call, of, Verb::ReadTelemetry)?;
    Ok(Json(store(call).keys(entity.id.into())?))
}

fn attribute_keys(call: &ApiCall, of: EntityPath, _: NoQuery, (): ()) -> HandlerResult<Vec<String>> {
    let entity = entity(call, of, Verb::ReadAttributes)?;
    let mut keys = Vec::new();
    for scope in AttributeScope::ALL {
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
    call: &ApiCall,
    (kind, id, scope): (EntityType, Uuid, AttributeScope),
    _: NoQuery,
    (): (),
) -> HandlerResult<Vec<String>> {
    let entity = entity(call, (kind, id), Verb::ReadAttributes)?;
    let attributes = call.platform().attributes(entity, scope, None)?;
    Ok(Json(attributes.into_iter().map(|attribute| attribute.key).collect()))
}

fn attributes(call: &ApiCall, of: EntityPath, query: TimeseriesKeysQuery, (): ()) -> HandlerResult<Vec<Value>> {
    let entity = entity(call, of, Verb::ReadAttributes)?;
    let mut all = Vec::new();
    for scope in AttributeScope::ALL {
        all.extend(attributes_in(call, entity, scope, query.keys.as_deref())?);
    }
    Ok(Json(all.iter().map(attribute_json).collect()))
}

fn attributes_of(
    call: &ApiCall,
    (kind, id, scope): (EntityType, Uuid, AttributeScope),
    query: TimeseriesKeysQuery,
    (): (),
) -> HandlerResult<Vec<Value>> {
    let entity = entity(call, (kind, id), Verb::ReadAttributes)?;
    let all = attributes_in(call, entity, scope, query.keys.as_deref())?;
    Ok(Json(all.iter().map(attribute_json).collect()))
}

fn attributes_in(
    call: &ApiCall,
    entity: EntityId,
    scope: AttributeScope,
    keys: Option<&str>,
) -> Result<Vec<Attribute>, ThingsboardError> {
    let keys = keys.map(comma_separated).filter(|keys| !keys.is_empty());
    Ok(call.platform().attributes(entity, scope, keys.as_deref())?)
}

fn attribute_json(attribute: &Attribute) -> Value {
    json!({"lastUpdateTs": attribute.last_update_ms, "key": attribute.key, "value": values::typed(&attribute.value)})
}

fn timeseries(call: &ApiCall, of: EntityPath, query: TimeseriesQuery, (): ()) -> Result<Response, ThingsboardError> {
    let entity = entity(call, of, Verb::ReadTelemetry)?;
    let mut keys: Vec<Box<str>> = match query.keys.as_deref().map(comma_separated) {
        Some(keys) if !keys.is_empty() => keys.into_iter().map(Box::from).collect(),
        _ => store(call).keys(entity.id.into())?,
    };
    keys.sort_unstable();
    keys.dedup();
    let keys: Vec<&str> = keys.iter().map(|key| &**key).collect();
    let is_strict = query.use_strict_data_types == Some(true);
    let all = match series_query(&query, keys.len())? {
        None => latest(call, entity, &keys)?,
        Some(wanted) => store(call)
            .query(entity.id.into(), &keys, &wanted)
            .map_err(store_error)?,
    };
    let is_latest = query.start_ts.is_none() && query.end_ts.is_none();
    let bytes: usize = all.iter().map(|points| history_answer::memory_of(points)).sum();
    if !is_latest && bytes > STREAMED_BYTES_MIN {
        let keys = keys.iter().map(|key| Box::from(*key)).zip(all);
        let keys = keys.filter(|(_, points)| !points.is_empty()).collect();
        return Ok(HistoryAnswer::new(keys, is_strict).into_response(bytes));
    }
    let nothing = json!([{"ts": call.now_ms, "value": null}]);
    let answer = keys
        .iter()
        .zip(&all)
        .filter_map(|(key, points)| match points.is_empty() {
            false => Some((key, KeyPoints::Points { points, is_strict })),
            true => is_latest.then_some((key, KeyPoints::Missing(&nothing))),
        });
    // Serialized directly: a JSON tree would need several times as much memory.
    let mut body = Vec::new();
    let written = serde_json::Serializer::new(&mut body).collect_map(answer);
    written.map_err(|error| ThingsboardError::new(ThingsboardErrorCode::General, error.to_string()))?;
    Ok(([(header::CONTENT_TYPE, "application/json")], body).into_response())
}

/// The points of one key.
enum KeyPoints<'a> {
    Points { points: &'a [TimedValue], is_strict: bool },
    Missing(&'a Value),
}

impl Serialize for KeyPoints<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            KeyPoints::Points { points, is_strict } => {
                serializer.collect_seq(points.iter().map(|point| point_json(point, *is_strict)))
            }
            KeyPoints::Missing(nothing) => nothing.serialize(serializer),
        }
    }
}

fn latest(call: &ApiCall, entity: EntityId, keys: &[&str]) -> Result<Vec<Vec<TimedValue>>, ThingsboardError> {
    let latest = store(call).latest(entity.id.into(), keys)?;
    Ok(latest.into_iter().map(|value| value.into_iter().collect()).collect())
}

/// `None`: the query is for the latest values.
fn series_query(query: &TimeseriesQuery, keys: usize) -> Result<Option<Query>, ThingsboardError> {
    let (start, end) = match (query.start_ts, query.end_ts) {
        (None, None) => return Ok(None),
        (Some(start), Some(end)) => (start, end),
        (None, Some(_)) => {
            return Err(ThingsboardError::bad_request(
                "Required request parameter 'startTs' is not present",
            ));
        }
        (Some(_), None) => {
            return Err(ThingsboardError::bad_request(
                "Required request parameter 'endTs' is not present",
            ));
        }
    };
    let window = HistoryQueryRange {
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

/// A history query of a request or subscription.
pub struct HistoryQueryRange<'a> {
    pub range: Range<i64>,
    pub interval: i64,
    pub interval_type: &'a str,
    pub time_zone: &'a str,
    pub aggregation: &'a str,
    pub limit: Option<i64>,
    pub is_ascending: bool,
}

impl HistoryQueryRange<'_> {
    /// `keys`: number of keys that share the limit of the answer.
    pub fn query(self, keys: usize) -> Result<Query, ThingsboardError> {
        let limit = match self.limit.unwrap_or(0) {
            0 => POINTS_DEFAULT,
            limit => usize::try_from(limit).map_err(|_| {
                ThingsboardError::bad_request(format!("Incorrect TsKvQuery. Limit '{limit}' must not be negative"))
            })?,
        };
        let limit = limit.min(POINTS_MAX);
        if limit.saturating_mul(keys) > ANSWER_POINTS_MAX {
            let message =
                format!("More than {ANSWER_POINTS_MAX} points in one answer: request fewer keys or a smaller limit");
            return Err(ThingsboardError::bad_request(message));
        }
        let order = if self.is_ascending {
            PointOrder::Ascending
        } else {
            PointOrder::Descending
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
            other => {
                return Err(ThingsboardError::bad_request(format!(
                    "No enum constant Aggregation.{other}"
                )));
            }
        };
        Ok(Query::Aggregate {
            interval: self.interval()?,
            range: self.range,
            aggregation,
            order,
            limit,
        })
    }

    fn interval(&self) -> Result<BucketInterval, ThingsboardError> {
        let unit = match self.interval_type {
            "" | "MILLISECONDS" => return Ok(BucketInterval::Millis(self.interval)),
            "WEEK" => CalendarUnit::Week,
            "WEEK_ISO" => CalendarUnit::WeekIso,
            "MONTH" => CalendarUnit::Month,
            "QUARTER" => CalendarUnit::Quarter,
            other => {
                return Err(ThingsboardError::bad_request(format!(
                    "No enum constant IntervalType.{other}"
                )));
            }
        };
        Ok(BucketInterval::Calendar {
            unit,
            time_zone: self.time_zone.to_owned(),
        })
    }
}

pub fn store_error(error: StoreError) -> ThingsboardError {
    match error {
        StoreError::Query(timeseries::QueryError::TooManyBuckets { max }) => ThingsboardError::bad_request(format!(
            "Incorrect TsKvQuery. Number of intervals is to high - more than {max}. Please increase 'interval' parameter for your \
             query or reduce the time range of the query."
        )),
        error => error.into(),
    }
}

fn save(
    call: &ApiCall,
    (kind, id, scope): (EntityType, Uuid, String),
    query: NoQuery,
    body: RawBody,
) -> Result<PendingResult, ThingsboardError> {
    save_with_ttl(call, (kind, id, scope, 0), query, body)
}

fn save_with_ttl(
    call: &ApiCall,
    (kind, id, _scope, ttl): (EntityType, Uuid, String, i64),
    _: NoQuery,
    RawBody(body): RawBody,
) -> Result<PendingResult, ThingsboardError> {
    let entity = entity(call, (kind, id), Verb::WriteTelemetry)?;
    let ttl_s = u32::try_from(ttl).map_err(|_| {
        ThingsboardError::bad_request(format!(
            "{ttl}: expected a time to live in seconds, from 0 to {}",
            u32::MAX
        ))
    })?;
    let telemetry = Telemetry::decode(&body, call.now_ms, &DecodeLimits::default());
    let telemetry = telemetry.map_err(|error| ThingsboardError::bad_request(error.to_string()))?;
    if telemetry.point_count() == 0 {
        return Err(ThingsboardError::bad_request(
            "No timeseries data found in request body!",
        ));
    }
    if call.platform().api_state(call.tenant(), ApiFeature::Storage) == ApiState::Disabled {
        let text = "DB storage writes are disabled due to API limits!";
        return Err(ThingsboardError::new(ThingsboardErrorCode::TooManyRequests, text));
    }
    let saved = call
        .platform_access
        .begin_telemetry(entity, &body, ttl_s, call.now_ms)?;
    let groups = telemetry.groups().map(|(ts_ms, values)| {
        let members = values
            .iter()
            .map(|value| (value.key.to_string(), values::typed(&value.value)));
        json!({"ts": ts_ms, "values": members.collect::<serde_json::Map<_, _>>()})
    });
    let data = json!({"timeseries": groups.collect::<Vec<_>>()});
    call.send_unlogged("TIMESERIES_UPDATED", entity, data);
    Ok(saved)
}

fn save_attributes(
    call: &ApiCall,
    (kind, id, scope): (EntityType, Uuid, AttributeScope),
    _: NoQuery,
    RawBody(body): RawBody,
) -> Result<PendingResult, ThingsboardError> {
    let entity = entity(call, (kind, id), Verb::WriteAttributes)?;
    if scope == AttributeScope::ClientScope {
        return Err(ThingsboardError::bad_request(format!(
            "Invalid scope: {}",
            scope.name()
        )));
    }
    let values = decode_attributes(&body, &DecodeLimits::of_users());
    let values = values.map_err(|error| ThingsboardError::bad_request(error.to_string()))?;
    if values.is_empty() {
        return Err(ThingsboardError::bad_request(
            "No attributes data found in request body!",
        ));
    }
    call.platform_access
        .save_attributes((entity, scope), &body, call.now_ms)
}

fn save_device_attributes(
    call: &ApiCall,
    (id, scope): (Uuid, AttributeScope),
    query: NoQuery,
    body: RawBody,
) -> Result<PendingResult, ThingsboardError> {
    save_attributes(call, (EntityType::Device, id, scope), query, body)
}

fn delete_attributes(
    call: &ApiCall,
    (kind, id, scope): (EntityType, Uuid, AttributeScope),
    query: KeysToDelete,
    (): (),
) -> Result<PendingResult, ThingsboardError> {
    let entity = entity(call, (kind, id), Verb::WriteAttributes)?;
    let keys: Vec<String> = comma_separated(&query.keys).into_iter().map(str::to_owned).collect();
    if keys.is_empty() {
        return Err(ThingsboardError::bad_request("Empty keys: ''"));
    }
    call.platform_access
        .delete_attributes((entity, scope), &keys, call.now_ms)
}

fn delete_device_attributes(
    call: &ApiCall,
    (id, scope): (Uuid, AttributeScope),
    query: KeysToDelete,
    (): (),
) -> Result<PendingResult, ThingsboardError> {
    delete_attributes(call, (EntityType::Device, id, scope), query, ())
}

fn delete_timeseries(
    call: &ApiCall,
    of: EntityPath,
    query: DeleteQuery,
    (): (),
) -> Result<PendingResult, ThingsboardError> {
    let entity = entity(call, of, Verb::WriteTelemetry)?;
    let keys: Vec<String> = comma_separated(&query.keys).into_iter().map(str::to_owned).collect();
    if keys.is_empty() {
        return Err(ThingsboardError::bad_request("Empty keys: ''"));
    }
    let range = match (query.delete_all_data_for_keys, query.start_ts, query.end_ts) {
        (Some(true), ..) => i64::MIN..i64::MAX,
        (_, Some(start), Some(end)) => start..end,
        _ => {
            return Err(ThingsboardError::bad_request(
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
    call.send_unlogged("TIMESERIES_DELETED", entity, said);
    let devices = Arc::clone(call.platform_access.devices());
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
        // Acknowledged points that are stored after the deletion would remain.
        if !devices.wait_until_processed().await {
            return Err(ThingsboardError::new(
                ThingsboardErrorCode::General,
                "processing of device messages is delayed by more than 10 seconds; try again later",
            )
            .with_status(StatusCode::SERVICE_UNAVAILABLE));
        }
        let deleted = tokio::task::spawn_blocking(move || delete(&devices)).await;
        Ok(deleted.map_err(|error| ThingsboardError::new(ThingsboardErrorCode::General, error.to_string()))??)
    }))
}

impl FromParameter for AttributeScope {
    fn from_parameter(text: &str) -> Result<AttributeScope, ThingsboardError> {
        AttributeScope::parse(text).ok_or_else(|| ThingsboardError::bad_request(format!("Invalid scope: {text}")))
    }
}

#[cfg(test)]
mod tests {
    use super::may_wait;

    #[test]
    fn only_attribute_changes_wait() {
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
            assert_eq!(may_wait(&format!("/api/plugins/telemetry/{rest}")), expected, "{rest}");
        }
        assert!(!may_wait("/api/devices/SERVER_SCOPE"));
    }
}
