//! What tenants may not do any more this month, by the limits of their profiles: asked where something is used, told when it changes.
//! Without limits all of it is a look at an empty table.

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
    }

    /// By the limits that are in force now.
    pub fn api_state(&self, tenant: TenantId, feature: ApiFeature) -> ApiState {
        let mut core = self.core();
        self.look_at_limits(&mut core);
        core.api_state(tenant, feature)
    }

    /// What changed since the last time.
    pub fn take_api_states(&self) -> Vec<ApiStateChange> {
        let mut core = self.core();
        self.look_at_limits(&mut core);
        let core = &mut *core;
        if core.limits.is_empty() && core.api_states.is_empty() {
            return Vec::new();
        }
        let mut tenants: Vec<TenantId> = core.limits.keys().chain(core.api_states.keys()).copied().collect();
        tenants.sort();
        tenants.dedup();
        let mut changes = Vec::new();
        for tenant in tenants {
            let now = ApiFeature::ALL.map(|feature| core.api_state(tenant, feature));
            let told = core.api_states.entry(tenant).or_default();
            for (feature, (told, state)) in ApiFeature::ALL.into_iter().zip(told.iter_mut().zip(now)) {
                if *told != state {
                    *told = state;
                    changes.push(ApiStateChange { tenant, feature, state });
                }
            }
            if !core.limits.contains_key(&tenant) {
                core.api_states.remove(&tenant);
            }
        }
        changes
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
    /// What was processed before a crash is not asked again.
    pub fn is_off(&self, tenant: TenantId, feature: ApiFeature) -> bool {
        !self.is_replay && self.core.is_off(tenant, feature)
    }

    /// Whose entity it is, if any tenant has limits.
    pub fn limited_tenant(&self, entity: EntityId) -> Option<TenantId> {
        (!self.core.limits.is_empty()).then(|| self.tenant_of(entity))
    }
}
