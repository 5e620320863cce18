//! Features that are off for a tenant because its monthly quota is used up. Checked at each use; changes are
//! reported. Without limits each check looks at an empty table.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::host::PlatformCall;
use super::{Platform, PlatformCore};
use crate::ids::{EntityId, TenantId};
use crate::limits::{ApiFeature, ApiState, TenantLimits};
use crate::usage::UsageCounter;

/// A change of a feature's state for a tenant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiStateChange {
    pub tenant: TenantId,
    pub feature: ApiFeature,
    pub state: ApiState,
    /// `None` for the first report since the start.
    pub before: Option<ApiState>,
}

impl Platform {
    /// Refreshes the copy of the directory's limits.
    pub(super) fn refresh_limits(&self, core: &mut PlatformCore) {
        let directory = self.entities.directory();
        if directory.limits_version() != core.limits_version {
            core.limits_version = directory.limits_version();
            core.limits = directory
                .all_limits()
                .map(|(tenant, limits)| (tenant, Arc::clone(limits)))
                .collect();
        }
        if directory.ttls_version() != core.ttls_version {
            core.ttls_version = directory.ttls_version();
            let all = directory.all_times_to_live();
            core.storage_days = all.filter_map(|(tenant, ttls)| Some((tenant, ttls.storage?))).collect();
        }
    }

    /// Returns the state according to the current limits.
    pub fn api_state(&self, tenant: TenantId, feature: ApiFeature) -> ApiState {
        let mut core = self.core();
        self.refresh_limits(&mut core);
        core.api_state(tenant, feature)
    }

    /// Returns the changes since the last call. The first call returns all states of all tenants.
    pub fn take_api_states(&self) -> Vec<ApiStateChange> {
        let mut core = self.core();
        self.refresh_limits(&mut core);
        let core = &mut *core;
        let has_new = core.roots.keys().any(|tenant| !core.api_states.contains_key(tenant));
        if core.limits.is_empty() && !has_new && core.are_enabled {
            return Vec::new();
        }
        core.api_states.retain(|tenant, _| core.roots.contains_key(tenant));
        let tenants: BTreeSet<TenantId> = core.roots.keys().copied().collect();
        let mut changes = Vec::new();
        for tenant in tenants {
            let now = ApiFeature::ALL.map(|feature| core.api_state(tenant, feature));
            let reported = core.api_states.entry(tenant).or_default();
            for (feature, (reported, state)) in ApiFeature::ALL.into_iter().zip(reported.iter_mut().zip(now)) {
                if *reported != Some(state) {
                    let before = reported.replace(state);
                    changes.push(ApiStateChange {
                        tenant,
                        feature,
                        state,
                        before,
                    });
                }
            }
        }
        let mut reported = core.api_states.values().flatten();
        core.are_enabled = reported.all(|state| *state == Some(ApiState::Enabled));
        changes
    }

    /// Returns monthly limits, 0 for none, of tenants whose limits changed since the last call. The first call
    /// returns all.
    pub fn take_limits(&self) -> Vec<(TenantId, [u64; UsageCounter::ALL.len()])> {
        let mut core = self.core();
        self.refresh_limits(&mut core);
        let core = &mut *core;
        let has_new = core
            .roots
            .keys()
            .any(|tenant| !core.reported_limits.contains_key(tenant));
        if !has_new && core.reported_limits_version == core.limits_version {
            return Vec::new();
        }
        core.reported_limits_version = core.limits_version;
        core.reported_limits.retain(|tenant, _| core.roots.contains_key(tenant));
        let mut changed = Vec::new();
        for tenant in core.roots.keys() {
            let limits = core.limits.get(tenant);
            let now = UsageCounter::ALL.map(|counter| limits.map_or(0, |limits| limits.monthly(counter)));
            if core.reported_limits.insert(*tenant, now) != Some(now) {
                changed.push((*tenant, now));
            }
        }
        changed
    }

    /// Returns `None` if the tenant has no limits.
    pub fn limits(&self, tenant: TenantId) -> Option<Arc<TenantLimits>> {
        self.entities.directory().limits(tenant).cloned()
    }
}

impl PlatformCore {
    fn api_state(&self, tenant: TenantId, feature: ApiFeature) -> ApiState {
        let used = |counter: UsageCounter| self.usage.get(tenant, counter);
        let limits = self.limits.get(&tenant);
        limits.map_or(ApiState::Enabled, |limits| limits.state(feature, used))
    }

    /// Returns true if the feature is off for the tenant until next month.
    pub(super) fn is_off(&self, tenant: TenantId, feature: ApiFeature) -> bool {
        !self.limits.is_empty() && self.api_state(tenant, feature) == ApiState::Disabled
    }
}

impl PlatformCall<'_> {
    /// Whether the feature is off. A replayed message gets the same result as in its first run. All parts of a
    /// message get the result of its first part.
    pub fn is_off(&mut self, tenant: TenantId, feature: ApiFeature) -> bool {
        let Some(at) = self.at else {
            return !self.is_replay && self.core.is_off(tenant, feature);
        };
        if self.is_replay {
            return self.core.off_times.was_off(tenant, feature, at);
        }
        if self.core.limits.is_empty() && self.core.off_times.is_empty() {
            return false;
        }
        let last_checks = &mut self.last_checks[feature as usize];
        // True for deferred work after a checkpoint node, if later messages have been checked before it.
        if last_checks.get(&tenant).is_some_and(|last| at < *last) {
            return self.core.off_times.was_off(tenant, feature, at);
        }
        let previous = last_checks.insert(tenant, at);
        let was_off = self.core.off_times.is_open(tenant, feature);
        let is_off = self.core.is_off(tenant, feature);
        if was_off == is_off || previous == Some(at) {
            return was_off;
        }
        let durable = self.platform.store.durable_position();
        let change = self.core.off_times.turn(tenant, feature, at, durable);
        self.core.pending.push_change(change);
        is_off
    }

    /// The entity's tenant, if any tenant has limits or had some.
    pub fn limited_tenant(&self, entity: EntityId) -> Option<TenantId> {
        let has_any = !self.core.limits.is_empty() || !self.core.off_times.is_empty();
        has_any.then(|| self.tenant_of(entity))
    }
}
