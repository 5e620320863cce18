//! Usage of tenants and queue statistics, as time series of their entities. Saved through the device log, like
//! telemetry of users.

use std::collections::BTreeMap;

use platform::entities::EntityError;
use platform::ids::{EntityType, TenantId, Uuid};
use platform::model::RuleChain;
use platform::{ApiState, QueueCounts, UsageCounter};
use serde_json::{Map, Value as Json, json};

use crate::entry::{EntryKind, IngestEntry, entity_type_number};
use crate::hub::Hub;

/// Values by timestamp. Monthly and hourly values have different timestamps.
type UsagePoints = BTreeMap<i64, Map<String, Json>>;

/// Saves usage that changed since the last call. Values that cannot be saved are saved with their next change.
pub fn report_usage(hub: &Hub, now_ms: i64) {
    let mut tenants: BTreeMap<TenantId, UsagePoints> = BTreeMap::new();
    let devices = hub.platform().take_device_counts(now_ms);
    for point in hub.platform().take_usage().into_iter().chain(devices) {
        let points = tenants.entry(point.tenant).or_default();
        points
            .entry(point.ts_ms)
            .or_default()
            .insert(point.key, point.value.into());
    }
    save_all_usage(hub, tenants, now_ms);
}

/// Logs changed feature states of tenants, and saves the states and limits as time series of the usage state.
pub fn report_api_states(hub: &Hub, now_ms: i64) {
    let mut tenants: BTreeMap<TenantId, UsagePoints> = BTreeMap::new();
    for change in hub.platform().take_api_states() {
        let (key, state) = (change.feature.key(), change.state.name());
        match change.state {
            // The state of most tenants never changes, so this is not logged.
            ApiState::Enabled if change.before.is_none() => {}
            ApiState::Enabled => tracing::info!(tenant = %change.tenant.0, "{key} is {state}"),
            ApiState::Warning => {
                tracing::warn!(tenant = %change.tenant.0, "{key} is {state}: most of the monthly quota of the tenant profile is used");
            }
            ApiState::Disabled => {
                tracing::warn!(tenant = %change.tenant.0, "{key} is {state}: the monthly quota of the tenant profile is used up");
            }
        }
        let points = tenants.entry(change.tenant).or_default().entry(now_ms).or_default();
        points.insert(key.to_owned(), state.into());
    }
    for (tenant, limits) in hub.platform().take_limits() {
        let points = tenants.entry(tenant).or_default().entry(now_ms).or_default();
        for (counter, limit) in UsageCounter::ALL.into_iter().zip(limits) {
            points.insert(counter.limit_key(), limit.into());
        }
    }
    save_all_usage(hub, tenants, now_ms);
}

fn save_all_usage(hub: &Hub, tenants: BTreeMap<TenantId, UsagePoints>, now_ms: i64) {
    for (tenant, points) in tenants {
        match save_usage(hub, tenant, points, now_ms) {
            // The tenant was deleted after its last messages.
            Ok(()) | Err(EntityError::NotFound) => {}
            Err(error) => tracing::warn!(tenant = %tenant.0, %error, "saving the usage of a tenant failed"),
        }
    }
}

fn save_usage(hub: &Hub, tenant: TenantId, points: UsagePoints, now_ms: i64) -> Result<(), EntityError> {
    let state = hub.platform().entities().api_usage_state(tenant, now_ms)?;
    let id = state.id.unwrap_or_default().0;
    save_points(hub, EntityType::ApiUsageState, id, points, now_ms);
    Ok(())
}

/// Saves the queue statistics of tenants since the last call.
pub fn report_queues(hub: &Hub, now_ms: i64) {
    for (tenant, queues) in hub.platform().take_queue_counts() {
        for counts in queues {
            match save_queue_counts(hub, tenant, &counts, now_ms) {
                // The tenant was deleted after its last messages.
                Ok(()) | Err(EntityError::NotFound) => {}
                Err(error) => {
                    tracing::warn!(tenant = %tenant.0, queue = %counts.queue, %error, "saving the statistics of a queue failed");
                }
            }
        }
    }
}

fn save_queue_counts(hub: &Hub, tenant: TenantId, counts: &QueueCounts, now_ms: i64) -> Result<(), EntityError> {
    let entities = hub.platform().entities();
    let service = &hub.options().platform.service;
    let stats = entities.queue_stats(tenant, &counts.queue, service, now_ms)?;
    let mut values = Map::new();
    for (key, value) in [
        ("totalMsgs", counts.total()),
        ("successfulMsgs", counts.successful),
        ("failedMsgs", counts.failed),
        ("tmpFailed", counts.will_retry),
        // This server has no processing timeout.
        ("timeoutMsgs", 0),
        ("tmpTimeout", 0),
    ] {
        values.insert(key.to_owned(), value.into());
    }
    if let Some(exception) = &counts.exception {
        let chain: Option<RuleChain> = entities.find(exception.chain.0)?;
        let details = json!({"ruleChainId": exception.chain.0, "ruleChainName": chain.map(|chain| chain.name),
            "ruleNodeName": exception.node, "message": exception.message});
        values.insert("ruleEngineException".to_owned(), details);
    }
    let points = UsagePoints::from([(now_ms, values)]);
    save_points(
        hub,
        EntityType::QueueStats,
        stats.id.unwrap_or_default().0,
        points,
        now_ms,
    );
    Ok(())
}

fn save_points(hub: &Hub, kind: EntityType, id: Uuid, points: UsagePoints, now_ms: i64) {
    let telemetry: Vec<Json> = points
        .into_iter()
        .map(|(ts_ms, values)| json!({"ts": ts_ms, "values": values}))
        .collect();
    let body = Json::from(telemetry).to_string();
    let entry = IngestEntry {
        id: entity_type_number(kind),
        ..IngestEntry::new(EntryKind::Save, id, now_ms, body.as_bytes())
    };
    // A full log drops the values; the next change saves them.
    _ = hub.log().append_entry(&entry);
}
