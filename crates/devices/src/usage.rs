//! What tenants use, as time series of their usage states: saved through the log, as people's telemetry is.

use std::collections::BTreeMap;

use platform::entities::EntityError;
use platform::ids::{EntityType, TenantId};
use platform::{ApiState, Counter};
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
        for point in self.platform.take_usage() {
            let points = tenants.entry(point.tenant).or_default();
            points
                .entry(point.ts_ms)
                .or_default()
                .insert(point.key, point.value.into());
        }
        self.save_all_usage(tenants, now_ms);
    }

    /// What tenants may not do any more, or again: for operators, and as time series of their usage states.
    pub fn report_api_states(&self, now_ms: i64) {
        let mut tenants: BTreeMap<TenantId, Points> = BTreeMap::new();
        for change in self.platform.take_api_states() {
            let (key, state) = (change.feature.key(), change.state.name());
            match change.state {
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
            if let Some(limits) = self.platform.limits(change.tenant) {
                for counter in Counter::ALL.into_iter().filter(|counter| limits.monthly(*counter) > 0) {
                    points.insert(counter.limit_key().to_owned(), limits.monthly(counter).into());
                }
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
        let telemetry: Vec<Json> = points
            .into_iter()
            .map(|(ts_ms, values)| json!({"ts": ts_ms, "values": values}))
            .collect();
        let body = Json::from(telemetry).to_string();
        let kind = EntityType::ALL
            .iter()
            .position(|kind| *kind == EntityType::ApiUsageState)
            .unwrap_or_default();
        let entry = Entry {
            id: kind as i32,
            ..Entry::new(Kind::Save, state.id.unwrap_or_default().0, now_ms, body.as_bytes())
        };
        if self.log.append_entry(&entry).is_ok() {
            Counters::add(&self.counters.appended, 1);
        }
        Ok(())
    }
}
