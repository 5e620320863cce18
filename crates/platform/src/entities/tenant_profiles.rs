//! Tenant profiles, and the check of their limits before an entity is created.

use std::collections::HashMap;
use std::sync::Arc;

use super::{Entities, EntityError, check_name};
use crate::ids::{EntityType, TenantId, TenantProfileId};
use crate::limits::TenantLimits;
use crate::model::{Entity, Tenant, TenantProfile};
use crate::page::PageLink;
use crate::repository::{RepositoryChange, Selection};
use crate::retention::TimesToLive;

impl Entities {
    /// The profile of tenants without one; created on first use.
    pub fn default_tenant_profile(&self, now_ms: i64) -> Result<TenantProfile, EntityError> {
        let _changing = self.changing();
        self.default_tenant_profile_while_changing(now_ms)
    }

    pub(super) fn default_tenant_profile_while_changing(&self, now_ms: i64) -> Result<TenantProfile, EntityError> {
        if let Some(known) = self.stored_default_tenant_profile()? {
            return Ok(known);
        }
        let profile = TenantProfile {
            name: "Default".to_owned(),
            description: Some("Default tenant profile".to_owned()),
            default: true,
            ..TenantProfile::default()
        };
        self.put_one(profile, None, now_ms)
    }

    fn stored_default_tenant_profile(&self) -> Result<Option<TenantProfile>, EntityError> {
        for number in 0.. {
            let page = self.page::<TenantProfile>(&Selection::default(), &PageLink::new(100, number))?;
            if let Some(default) = page.data.into_iter().find(|profile| profile.default) {
                return Ok(Some(default));
            }
            if !page.has_next {
                break;
            }
        }
        Ok(None)
    }

    pub fn save_tenant_profile(&self, mut profile: TenantProfile, now_ms: i64) -> Result<TenantProfile, EntityError> {
        let changing = self.changing();
        check_name("Tenant profile name", &profile.name)?;
        if profile.profile_data.is_null() {
            profile.profile_data = crate::model::default_tenant_profile_data();
        }
        let configuration = profile.configuration();
        if let Err(error) = TenantLimits::parse(configuration).and_then(|_| TimesToLive::parse(configuration)) {
            return Err(EntityError::invalid(format!(
                "Tenant profile configuration is invalid: {error}"
            )));
        }
        let stored = self.stored(&profile, "tenant profile")?;
        match &stored {
            Some(stored) if stored.default != profile.default => {
                return Err(EntityError::invalid(
                    "The default tenant profile can only be changed by POST /api/tenantProfile/{id}/default!",
                ));
            }
            None if profile.default && self.stored_default_tenant_profile()?.is_some() => {
                return Err(EntityError::invalid("Another default tenant profile is present!"));
            }
            _ => {}
        }
        let saved = self.put_one(profile, stored.as_ref(), now_ms)?;
        drop(changing);
        self.reload_limits()?;
        Ok(saved)
    }

    /// Makes the profile the default in place of the previous one.
    pub fn set_default_tenant_profile(&self, id: TenantProfileId, now_ms: i64) -> Result<TenantProfile, EntityError> {
        let changing = self.changing();
        let mut profile: TenantProfile = self.get(id.0)?;
        let mut changes = Vec::new();
        if let Some(mut old) = self.stored_default_tenant_profile()?.filter(|old| old.id != profile.id) {
            let stored = old.clone();
            old.default = false;
            changes.push(self.put(&mut old, Some(&stored), now_ms)?);
        }
        let stored = profile.clone();
        profile.default = true;
        changes.push(self.put(&mut profile, Some(&stored), now_ms)?);
        self.repository.apply(&changes)?;
        drop(changing);
        self.reload_limits()?;
        Ok(profile)
    }

    pub fn delete_tenant_profile(&self, id: TenantProfileId) -> Result<(), EntityError> {
        let _changing = self.changing();
        let profile: TenantProfile = self.get(id.0)?;
        if profile.default {
            return Err(EntityError::invalid(
                "Deletion of Default Tenant Profile is prohibited!",
            ));
        }
        let mut is_used = false;
        self.repository.for_each(Tenant::KIND, &mut |record| {
            is_used |= record
                .read::<Tenant>()
                .is_ok_and(|tenant| tenant.tenant_profile_id == Some(id));
        })?;
        if is_used {
            return Err(EntityError::invalid(
                "The tenant profile referenced by the tenants cannot be deleted!",
            ));
        }
        Ok(self.repository.apply(&[RepositoryChange::Delete(id.entity())])?)
    }

    /// A tenant without a profile gets the default one.
    pub(super) fn resolve_tenant_profile(&self, tenant: &mut Tenant, now_ms: i64) -> Result<(), EntityError> {
        match tenant.tenant_profile_id {
            Some(id) if self.find::<TenantProfile>(id.0)?.is_none() => Err(EntityError::invalid(
                "Tenant is referencing to non-existent tenant profile!",
            )),
            Some(_) => Ok(()),
            None => {
                tenant.tenant_profile_id = self.default_tenant_profile_while_changing(now_ms)?.id;
                Ok(())
            }
        }
    }

    /// Reloads limits and times to live, at the start and after a tenant or tenant profile was changed.
    pub(super) fn reload_limits(&self) -> Result<(), EntityError> {
        let mut profiles = HashMap::new();
        let mut default = (None, TimesToLive::default());
        self.repository.for_each(TenantProfile::KIND, &mut |record| {
            let Ok(profile) = record.read::<TenantProfile>() else {
                return;
            };
            // Saving a profile rejects an invalid configuration.
            let limits = TenantLimits::parse(profile.configuration()).unwrap_or_default();
            let limits = Some(limits).filter(|limits| !limits.is_unlimited()).map(Arc::new);
            let ttls = TimesToLive::parse(profile.configuration()).unwrap_or_default();
            if profile.default {
                default = (limits.clone(), ttls);
            }
            profiles.insert(profile.id, (limits, ttls));
        })?;
        let mut tenants = HashMap::new();
        let mut ttls_of = HashMap::new();
        self.repository.for_each(Tenant::KIND, &mut |record| {
            let Ok(tenant) = record.read::<Tenant>() else { return };
            let own = match tenant.tenant_profile_id {
                None => &default,
                own => profiles.get(&own).unwrap_or(&default),
            };
            let (Some(id), (limits, ttls)) = (tenant.id, own) else {
                return;
            };
            if let Some(limits) = limits {
                tenants.insert(id, Arc::clone(limits));
            }
            if *ttls != TimesToLive::default() {
                ttls_of.insert(id, *ttls);
            }
        })?;
        let mut directory = self.directory_mut();
        directory.put_limits(tenants);
        directory.put_times_to_live(ttls_of);
        Ok(())
    }

    /// Checks the limit before an entity of the tenant is created.
    pub(super) fn check_limit(&self, kind: EntityType, tenant: TenantId) -> Result<(), EntityError> {
        match self.remaining_capacity(kind, tenant)? {
            0 => Err(EntityError::Limit(kind)),
            _ => Ok(()),
        }
    }

    /// How many more entities of this type the tenant may have.
    pub(super) fn remaining_capacity(&self, kind: EntityType, tenant: TenantId) -> Result<usize, EntityError> {
        let limit = self
            .directory()
            .limits(tenant)
            .map_or(0, |limits| limits.entities(kind));
        if limit == 0 {
            return Ok(usize::MAX);
        }
        let selection = Selection {
            tenant: Some(tenant.0),
            ..Selection::default()
        };
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        Ok(limit.saturating_sub(self.repository.count(kind, &selection)?))
    }
}
