//! What tenants may not do any more this month, by the limits of their profiles: asked where something is used, told when it changes.
//! Without limits all of it is a look at an empty table.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::host::Visit;
use super::{Core, Platform};
use crate::ids::{EntityId, TenantId};
use crate::limits::{ApiFeature, ApiState, TenantLimits};
use crate::usage::Counter;

/// What became of a feature of a tenant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiStateChange {
    pub tenant: TenantId,
    pub feature: ApiFeature,
    pub state: ApiState,
    /// `None`: nothing has been said of it since the start.
    pub before: Option<ApiState>,
}

impl Platform {
    /// The copy follows the directory.
    pub(super) fn look_at_limits(&self, core: &mut Core) {
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

    /// By the limits that are in force now.
    pub fn api_state(&self, tenant: TenantId, feature: ApiFeature) -> ApiState {
        let mut core = self.core();
        self.look_at_limits(&mut core);
        core.api_state(tenant, feature)
    }

    /// What changed since the last time; at first all states of all tenants, as whoever shows them expects.
    pub fn take_api_states(&self) -> Vec<ApiStateChange> {
        let mut core = self.core();
        self.look_at_limits(&mut core);
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
            let told = core.api_states.entry(tenant).or_default();
            for (feature, (told, state)) in ApiFeature::ALL.into_iter().zip(told.iter_mut().zip(now)) {
                if *told != Some(state) {
                    let before = told.replace(state);
                    changes.push(ApiStateChange {
                        tenant,
                        feature,
                        state,
                        before,
                    });
                }
            }
        }
        let mut told = core.api_states.values().flatten();
        core.are_enabled = told.all(|state| *state == Some(ApiState::Enabled));
        changes
    }

    /// Monthly limits, 0 is none, of tenants whose limits changed since the last time; at first of all.
    pub fn take_limits(&self) -> Vec<(TenantId, [u64; Counter::ALL.len()])> {
        let mut core = self.core();
        self.look_at_limits(&mut core);
        let core = &mut *core;
        let has_new = core.roots.keys().any(|tenant| !core.told_limits.contains_key(tenant));
        if !has_new && core.told_limits_version == core.limits_version {
            return Vec::new();
        }
        core.told_limits_version = core.limits_version;
        core.told_limits.retain(|tenant, _| core.roots.contains_key(tenant));
        let mut changed = Vec::new();
        for tenant in core.roots.keys() {
            let limits = core.limits.get(tenant);
            let now = Counter::ALL.map(|counter| limits.map_or(0, |limits| limits.monthly(counter)));
            if core.told_limits.insert(*tenant, now) != Some(now) {
                changed.push((*tenant, now));
            }
        }
        changed
    }

    /// `None`: the tenant has no limits.
    pub fn limits(&self, tenant: TenantId) -> Option<Arc<TenantLimits>> {
        self.entities.directory().limits(tenant).cloned()
    }
}

impl Core {
    fn api_state(&self, tenant: TenantId, feature: ApiFeature) -> ApiState {
        let used = |counter: Counter| self.usage.get(tenant, counter);
        let limits = self.limits.get(&tenant);
        limits.map_or(ApiState::Enabled, |limits| limits.state(feature, used))
    }

    /// The tenant may not use it until the next month.
    pub(super) fn is_off(&self, tenant: TenantId, feature: ApiFeature) -> bool {
        !self.limits.is_empty() && self.api_state(tenant, feature) == ApiState::Disabled
    }
}

impl Visit<'_> {
    /// What was processed before a crash meets what it met then. A message finds it as it was for its first part.
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
        let asked = &mut self.asked[feature as usize];
        // Behind a checkpoint, and later ones have been told how it is already.
        if asked.get(&tenant).is_some_and(|last| at < *last) {
            return self.core.off_times.was_off(tenant, feature, at);
        }
        let asked = asked.insert(tenant, at);
        let was_off = self.core.off_times.is_open(tenant, feature);
        let is_off = self.core.is_off(tenant, feature);
        if was_off == is_off || asked == Some(at) {
            return was_off;
        }
        let durable = self.platform.store.durable_position();
        let change = self.core.off_times.turn(tenant, feature, at, durable);
        self.core.pending.push_change(change);
        is_off
    }

    /// Whose entity it is, if any tenant has limits or had some.
    pub fn limited_tenant(&self, entity: EntityId) -> Option<TenantId> {
        let has_any = !self.core.limits.is_empty() || !self.core.off_times.is_empty();
        has_any.then(|| self.tenant_of(entity))
    }
}
