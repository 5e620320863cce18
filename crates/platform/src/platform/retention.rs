//! Times to live: assigns classes of the time-series store to entities and series, and finds expired alarms and RPC
//! requests.
//!
//! The store has classes of points, each with a time to live. Points of class 0 never expire. Writes do no extra work:
//! a separate thread assigns the class of the tenant to an entity shortly after its first points, and again when the
//! profile changes. A message with its own time to live sets the class of its series before its points are written.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{MutexGuard, PoisonError};

use timeseries::{RetentionClass, Series, StoreError};

use super::{Platform, PlatformCore, PlatformOutlet};
use crate::entities::EntityError;
use crate::ids::{AlarmId, DeviceId, EntityId, EntityType, TenantId, Uuid};
use crate::model::{Alarm, Rpc};
use crate::page::{PageLink, Sort, SortDirection};
use crate::repository::{AlarmSelection, RepositoryError};
use crate::retention::DAY_MS;

/// Entities processed in one step.
const ENTITIES_MAX: usize = 10_000;
/// Alarms or RPC requests read in one page.
const ROWS_MAX: usize = 1_000;
/// Alarms deleted in one round. The rest follow in the next round.
const ALARMS_MAX: usize = 100_000;

/// Entity types with telemetry besides devices, the most frequent first.
const KINDS: [EntityType; 10] = [
    EntityType::Asset,
    EntityType::ApiUsageState,
    EntityType::QueueStats,
    EntityType::Tenant,
    EntityType::Customer,
    EntityType::User,
    EntityType::Dashboard,
    EntityType::RuleChain,
    EntityType::DeviceProfile,
    EntityType::AssetProfile,
];

#[derive(Default)]
pub(super) struct Retention {
    /// By time to live in milliseconds.
    classes: BTreeMap<u64, RetentionClass>,
    /// Entities of the store with a lower number have their classes, as of `version` of the profiles.
    classified_count: usize,
    version: Option<u64>,
    /// True while all entities are processed again, not only new ones.
    is_full_pass: bool,
}

impl Retention {
    pub fn new(known: Vec<(RetentionClass, u64)>) -> Retention {
        Retention {
            classes: known.into_iter().map(|(class, ttl_ms)| (ttl_ms, class)).collect(),
            ..Retention::default()
        }
    }
}

#[derive(Debug)]
pub enum RetentionError {
    Store(StoreError),
    Repository(RepositoryError),
}

impl fmt::Display for RetentionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("setting the time to live of telemetry failed; retrying")
    }
}

impl std::error::Error for RetentionError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            RetentionError::Store(error) => Some(error),
            RetentionError::Repository(error) => Some(error),
        }
    }
}

impl From<StoreError> for RetentionError {
    fn from(error: StoreError) -> RetentionError {
        RetentionError::Store(error)
    }
}

impl From<RepositoryError> for RetentionError {
    fn from(error: RepositoryError) -> RetentionError {
        RetentionError::Repository(error)
    }
}

impl Platform {
    fn retention(&self) -> MutexGuard<'_, Retention> {
        self.retention.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Assigns classes to some new entities with telemetry, and to some entities whose profile changed. Returns true if
    /// there may be more. Called by the thread that calls [`timeseries::Store::maintain`].
    pub fn classify(&self) -> Result<bool, RetentionError> {
        let mut retention = self.retention();
        let version = self.entities.directory().ttls_version();
        if retention.version != Some(version) {
            (retention.version, retention.classified_count, retention.is_full_pass) = (Some(version), 0, true);
        }
        let found = self.store.entities(retention.classified_count, ENTITIES_MAX);
        for (entity, class) in &found {
            // Telemetry of a deleted entity is deleted anyway.
            let Some(days) = self.days_of(Uuid(entity.0))? else {
                continue;
            };
            let wanted = self.class_for(&mut retention, u64::from(days) * DAY_MS)?;
            if wanted != *class {
                self.store.set_class(*entity, wanted)?;
            }
        }
        retention.classified_count += found.len();
        if found.is_empty() && retention.is_full_pass {
            retention.is_full_pass = false;
            self.remove_unused(&mut retention)?;
        }
        Ok(!found.is_empty())
    }

    /// Days to store an entity's telemetry; 0 for ever. `None` if the entity is unknown.
    fn days_of(&self, entity: Uuid) -> Result<Option<u32>, RepositoryError> {
        let device = self
            .entities
            .directory()
            .device(DeviceId(entity))
            .map(|device| device.tenant);
        if let Some(tenant) = device {
            return Ok(Some(self.storage_days(tenant)));
        }
        for kind in KINDS {
            let Some(record) = self.entities.repository().get(EntityId::new(kind, entity))? else {
                continue;
            };
            let tenant = match kind {
                EntityType::ApiUsageState | EntityType::QueueStats => return Ok(Some(self.options.usage_days)),
                EntityType::Tenant => TenantId(entity),
                _ => TenantId(record.row.tenant),
            };
            return Ok(Some(self.storage_days(tenant)));
        }
        Ok(None)
    }

    fn storage_days(&self, tenant: TenantId) -> u32 {
        let of_profile = self.entities.directory().times_to_live(tenant).storage;
        of_profile.unwrap_or(self.options.telemetry_days)
    }

    /// Returns the class with this time to live; 0 means that points never expire. If all classes are in use, returns
    /// the class with the next longer time.
    fn class_for(&self, retention: &mut Retention, ttl_ms: u64) -> Result<RetentionClass, StoreError> {
        if ttl_ms == 0 {
            return Ok(RetentionClass(0));
        }
        if let Some(class) = retention.classes.get(&ttl_ms) {
            return Ok(*class);
        }
        let is_free = |retention: &Retention, class: u8| !retention.classes.values().any(|taken| taken.0 == class);
        let mut free = (1..=u8::MAX).find(|class| is_free(retention, *class));
        if free.is_none() {
            self.remove_unused(retention)?;
            free = (1..=u8::MAX).find(|class| is_free(retention, *class));
        }
        match free {
            Some(class) => {
                self.store.set_ttl(RetentionClass(class), Some(ttl_ms))?;
                retention.classes.insert(ttl_ms, RetentionClass(class));
                Ok(RetentionClass(class))
            }
            None => {
                let longer = retention.classes.range(ttl_ms..).next();
                Ok(longer.map_or(RetentionClass(0), |(_, class)| *class))
            }
        }
    }

    fn remove_unused(&self, retention: &mut Retention) -> Result<(), StoreError> {
        let used = self.store.used_classes();
        let unused: Vec<(u64, RetentionClass)> = retention
            .classes
            .iter()
            .filter(|(_, class)| !used.contains(class))
            .map(|(ttl_ms, class)| (*ttl_ms, *class))
            .collect();
        for (ttl_ms, class) in unused {
            self.store.set_ttl(class, None)?;
            retention.classes.remove(&ttl_ms);
        }
        Ok(())
    }

    /// Sets the classes of series before points are written: the time to live of the message, or the tenant's.
    pub(super) fn set_series_classes(&self, core: &PlatformCore) -> Result<(), StoreError> {
        if !core.pending.has_ttls() && !self.store.has_series_classes() {
            return Ok(());
        }
        let mut retention = self.retention();
        let mut classes = Vec::new();
        for (entity, key, ttl_s) in core.pending.ttls() {
            let class = match ttl_s {
                0 => None,
                ttl_s => Some(self.class_for(&mut retention, u64::from(ttl_s) * 1000)?),
            };
            classes.push((Series { entity, key }, class));
        }
        self.store.set_series_classes(&classes)
    }

    /// Deletes alarms whose end is older than their tenant's time to live, and returns them.
    pub fn delete_old_alarms(&self, now_ms: i64, outlet: &mut dyn PlatformOutlet) -> Result<Vec<Alarm>, EntityError> {
        let mut deleted = Vec::new();
        for (tenant, days) in self.tenants_with_ttl(|ttls| ttls.alarms) {
            let before = now_ms.saturating_sub_unsigned(u64::from(days) * DAY_MS);
            for id in self.old_alarms(tenant, before)? {
                match self.delete_alarm(id, now_ms, outlet) {
                    Ok(alarm) => deleted.push(alarm),
                    Err(EntityError::NotFound) => continue,
                    Err(error) => return Err(error),
                }
                self.entities.delete_alarm_comments_of(id)?;
            }
        }
        Ok(deleted)
    }

    fn old_alarms(&self, tenant: TenantId, before: i64) -> Result<Vec<AlarmId>, EntityError> {
        let selection = AlarmSelection {
            tenant: Some(tenant.0),
            created: Some(0..before),
            ..AlarmSelection::default()
        };
        let mut old = Vec::new();
        for number in 0.. {
            let page = self.entities.repository().alarms(&selection, &oldest_first(number))?;
            let ended = page.data.iter().filter(|alarm| alarm.end_ts < before);
            old.extend(ended.filter_map(|alarm| alarm.id));
            if !page.has_next || old.len() >= ALARMS_MAX {
                break;
            }
        }
        Ok(old)
    }

    /// Returns some RPC requests older than their tenant's time to live. The caller deletes them and calls again.
    pub fn old_rpcs(&self, now_ms: i64) -> Result<Vec<Rpc>, EntityError> {
        for (tenant, days) in self.tenants_with_ttl(|ttls| ttls.rpcs) {
            let before = now_ms.saturating_sub_unsigned(u64::from(days) * DAY_MS);
            let page = self.entities.rpcs_of_tenant(tenant, &oldest_first(0))?;
            let old: Vec<Rpc> = page.data.into_iter().filter(|rpc| rpc.created_time < before).collect();
            if !old.is_empty() {
                return Ok(old);
            }
        }
        Ok(Vec::new())
    }

    /// Tenants that set this time to live.
    fn tenants_with_ttl(&self, days: impl Fn(&crate::retention::TimesToLive) -> u32) -> Vec<(TenantId, u32)> {
        let directory = self.entities.directory();
        let all = directory.all_times_to_live().map(|(tenant, ttls)| (tenant, days(ttls)));
        all.filter(|(_, days)| *days > 0).collect()
    }
}

fn oldest_first(page: usize) -> PageLink {
    PageLink {
        sort: Some(Sort {
            property: "createdTime".to_owned(),
            order: SortDirection::Ascending,
        }),
        ..PageLink::new(ROWS_MAX, page)
    }
}
