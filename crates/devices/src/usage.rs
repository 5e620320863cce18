//! What tenants use, as time series of their usage states, and how their messages fared, as those of queues: saved through the log, as
//! people's telemetry is.

use std::collections::BTreeMap;

use platform::entities::EntityError;
use platform::ids::{EntityType, TenantId, Uuid};
use platform::model::RuleChain;
use platform::{ApiState, Counter, QueueCounts};
use serde_json::{Map, Value as Json, json};

use crate::entry::{Entry, Kind};
use crate::hub::Hub;
use crate::stats::Counters;

/// Values by time: months and hours begin at different ones.
type Points = BTreeMap<i64, Map<String, Json>>;

impl Hub {
    /// What changed since the last time. What cannot be kept now is said with the next change.
    pub fn report_usage(&self, now_ms: i64) {
        let mut tenants: BTreeMap<TenantId, Points> = BTreeMap::new();
        let devices = self.platform.take_device_counts(now_ms);
        for point in self.platform.take_usage().into_iter().chain(devices) {
            let points = tenants.entry(point.tenant).or_default();
            points
                .entry(point.ts_ms)
                .or_default()
                .insert(point.key, point.value.into());
        }
        self.save_all_usage(tenants, now_ms);
    }

    /// What tenants may not do any more, or again, and what their limits are: for operators, and as time series of their usage states.
    pub fn report_api_states(&self, now_ms: i64) {
        let mut tenants: BTreeMap<TenantId, Points> = BTreeMap::new();
        for change in self.platform.take_api_states() {
            let (key, state) = (change.feature.key(), change.state.name());
            match change.state {
                // Of most tenants it never is anything else.
                ApiState::Enabled if change.before.is_none() => {}
                ApiState::Enabled => tracing::info!(tenant = %change.tenant.0, "{key} is {state}"),
                ApiState::Warning => {
                    tracing::warn!(tenant = %change.tenant.0, "{key} is {state}: most of what the tenant profile allows this month is used");
                }
                ApiState::Disabled => {
                    tracing::warn!(tenant = %change.tenant.0, "{key} is {state}: all that the tenant profile allows this month is used");
                }
            }
            let points = tenants.entry(change.tenant).or_default().entry(now_ms).or_default();
            points.insert(key.to_owned(), state.into());
        }
        for (tenant, limits) in self.platform.take_limits() {
            let points = tenants.entry(tenant).or_default().entry(now_ms).or_default();
            for (counter, limit) in Counter::ALL.into_iter().zip(limits) {
                points.insert(counter.limit_key().to_owned(), limit.into());
            }
        }
        self.save_all_usage(tenants, now_ms);
    }

    fn save_all_usage(&self, tenants: BTreeMap<TenantId, Points>, now_ms: i64) {
        for (tenant, points) in tenants {
            match self.save_usage(tenant, points, now_ms) {
                // Its last messages were counted when it was deleted.
                Ok(()) | Err(EntityError::NotFound) => {}
                Err(error) => tracing::warn!(tenant = %tenant.0, %error, "the usage of a tenant cannot be saved"),
            }
        }
    }

    fn save_usage(&self, tenant: TenantId, points: Points, now_ms: i64) -> Result<(), EntityError> {
        let state = self.platform.entities().api_usage_state(tenant, now_ms)?;
        let id = state.id.unwrap_or_default().0;
        self.save_points(EntityType::ApiUsageState, id, points, now_ms);
        Ok(())
    }

    /// How messages fared in the queues of tenants since the last time.
    pub fn report_queues(&self, now_ms: i64) {
        for (tenant, queues) in self.platform.take_queue_counts() {
            for counts in queues {
                match self.save_queue_counts(tenant, &counts, now_ms) {
                    // Its last messages were counted when it was deleted.
                    Ok(()) | Err(EntityError::NotFound) => {}
                    Err(error) => {
                        tracing::warn!(tenant = %tenant.0, queue = %counts.queue, %error, "statistics of a queue cannot be saved");
                    }
                }
            }
        }
    }

    fn save_queue_counts(&self, tenant: TenantId, counts: &QueueCounts, now_ms: i64) -> Result<(), EntityError> {
        let entities = self.platform.entities();
        let service = &self.options.platform.service;
        let stats = entities.queue_stats(tenant, &counts.queue, service, now_ms)?;
        let mut values = Map::new();
        for (key, value) in [
            ("totalMsgs", counts.total()),
            ("successfulMsgs", counts.successful),
            ("failedMsgs", counts.failed),
            ("tmpFailed", counts.failed_for_now),
            // Nothing here is given up because it takes long.
            ("timeoutMsgs", 0),
            ("tmpTimeout", 0),
        ] {
            values.insert(key.to_owned(), value.into());
        }
        if let Some(exception) = &counts.exception {
            let chain: Option<RuleChain> = entities.find(exception.chain.0)?;
            let said = json!({"ruleChainId": exception.chain.0, "ruleChainName": chain.map(|chain| chain.name),
                "ruleNodeName": exception.node, "message": exception.message});
            values.insert("ruleEngineException".to_owned(), said);
        }
        let points = Points::from([(now_ms, values)]);
        self.save_points(EntityType::QueueStats, stats.id.unwrap_or_default().0, points, now_ms);
        Ok(())
    }

    fn save_points(&self, kind: EntityType, id: Uuid, points: Points, now_ms: i64) {
        let telemetry: Vec<Json> = points
            .into_iter()
            .map(|(ts_ms, values)| json!({"ts": ts_ms, "values": values}))
            .collect();
        let body = Json::from(telemetry).to_string();
        let number = EntityType::ALL
            .iter()
            .position(|known| *known == kind)
            .unwrap_or_default();
        let entry = Entry {
            id: number as i32,
            ..Entry::new(Kind::Save, id, now_ms, body.as_bytes())
        };
        if self.log.append_entry(&entry).is_ok() {
            Counters::add(&self.counters.appended, 1);
        }
    }
}
