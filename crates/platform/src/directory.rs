//! What is asked with every connection and every message, in memory: which device has these credentials, and what is to be
//! known of a device. A mirror of the repository, filled at the start and kept up by [`crate::entities::Entities`].

use std::mem::size_of;
use std::sync::Arc;

use hashbrown::HashMap;

use crate::credentials::{Credential, MqttLogin, Secret, authenticate};
use crate::ids::{CustomerId, DeviceId, DeviceProfileId, EntityType, TenantId};
use crate::limits::TenantLimits;
use crate::model::{Device, DeviceCredentials, DeviceProfile};
use crate::repository::{Repository, RepositoryError};
use crate::retention::TimesToLive;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceEntry {
    pub tenant: TenantId,
    pub customer: CustomerId,
    pub profile: DeviceProfileId,
    pub name: Box<str>,
    pub is_gateway: bool,
    pub overwrites_activity_time: bool,
}

#[derive(Debug, Default)]
pub struct Directory {
    devices: HashMap<DeviceId, DeviceEntry, foldhash::fast::RandomState>,
    credentials: HashMap<Box<str>, Credential, foldhash::fast::RandomState>,
    profiles: HashMap<DeviceProfileId, Arc<DeviceProfile>, foldhash::fast::RandomState>,
    /// Of tenants that have any.
    limits: std::collections::HashMap<TenantId, Arc<TenantLimits>>,
    /// Grows when `limits` changes.
    limits_version: u64,
    /// Of tenants whose profiles say something.
    ttls: std::collections::HashMap<TenantId, TimesToLive>,
    /// Grows when `ttls` changes.
    ttls_version: u64,
    text_bytes: usize,
}

impl Directory {
    pub fn load(repository: &dyn Repository) -> Result<Directory, RepositoryError> {
        let mut directory = Directory::default();
        let mut problem = Ok(());
        repository.for_each(EntityType::DeviceProfile, &mut |record| match record.read() {
            Ok(profile) => directory.put_profile(profile),
            Err(error) => problem = Err(error),
        })?;
        repository.for_each(EntityType::Device, &mut |record| match record.read() {
            Ok(device) => directory.put_device(&device),
            Err(error) => problem = Err(error),
        })?;
        repository.for_each(EntityType::DeviceCredentials, &mut |record| match record.read() {
            Ok(credentials) => directory.put_credentials(&credentials),
            Err(error) => problem = Err(error),
        })?;
        problem.map(|()| directory)
    }

    pub fn authenticate(&self, login: &MqttLogin<'_>) -> Option<DeviceId> {
        authenticate(login, |id| self.credentials.get(id))
    }

    /// HTTP has nothing but the token.
    pub fn device_of_token(&self, token: &str) -> Option<DeviceId> {
        let credential = self.credentials.get(token)?;
        (credential.secret == Secret::None).then_some(credential.device)
    }

    /// By the SHA3 hash of a client certificate ([`crate::credentials::sha3_hash`]).
    pub fn device_of_certificate(&self, hash: &str) -> Option<DeviceId> {
        let credential = self.credentials.get(hash)?;
        (credential.secret == Secret::Certificate).then_some(credential.device)
    }

    pub fn device(&self, id: DeviceId) -> Option<&DeviceEntry> {
        self.devices.get(&id)
    }

    pub fn profile(&self, id: DeviceProfileId) -> Option<&Arc<DeviceProfile>> {
        self.profiles.get(&id)
    }

    pub fn devices(&self) -> impl Iterator<Item = (DeviceId, &DeviceEntry)> {
        self.devices.iter().map(|(id, entry)| (*id, entry))
    }

    pub fn profiles(&self) -> impl Iterator<Item = &Arc<DeviceProfile>> {
        self.profiles.values()
    }

    /// `None`: the tenant may use all it wants.
    pub fn limits(&self, tenant: TenantId) -> Option<&Arc<TenantLimits>> {
        self.limits.get(&tenant)
    }

    pub fn all_limits(&self) -> impl Iterator<Item = (TenantId, &Arc<TenantLimits>)> {
        self.limits.iter().map(|(tenant, limits)| (*tenant, limits))
    }

    /// Whoever has a copy of limits looks at this.
    pub fn limits_version(&self) -> u64 {
        self.limits_version
    }

    pub fn put_limits(&mut self, limits: std::collections::HashMap<TenantId, Arc<TenantLimits>>) {
        if !(self.limits.is_empty() && limits.is_empty()) {
            self.limits_version += 1;
        }
        self.limits = limits;
    }

    pub fn times_to_live(&self, tenant: TenantId) -> TimesToLive {
        self.ttls.get(&tenant).copied().unwrap_or_default()
    }

    /// Of tenants whose profiles say something.
    pub fn all_times_to_live(&self) -> impl Iterator<Item = (TenantId, &TimesToLive)> {
        self.ttls.iter().map(|(tenant, ttls)| (*tenant, ttls))
    }

    /// Whoever has done something by them looks at this.
    pub fn ttls_version(&self) -> u64 {
        self.ttls_version
    }

    pub fn put_times_to_live(&mut self, ttls: std::collections::HashMap<TenantId, TimesToLive>) {
        if self.ttls != ttls {
            self.ttls_version += 1;
            self.ttls = ttls;
        }
    }

    pub fn device_count(&self) -> usize {
        self.devices.len()
    }

    /// An estimate: tables and texts.
    pub fn bytes(&self) -> usize {
        self.devices.allocation_size() + self.credentials.allocation_size() + self.text_bytes
    }

    pub fn put_profile(&mut self, profile: DeviceProfile) {
        if let Some(id) = profile.id {
            self.profiles.insert(id, Arc::new(profile));
        }
    }

    pub fn remove_profile(&mut self, id: DeviceProfileId) {
        self.profiles.remove(&id);
    }

    pub fn put_device(&mut self, device: &Device) {
        let Some(id) = device.id else { return };
        let entry = DeviceEntry {
            tenant: device.tenant_id,
            customer: device.customer_id.unwrap_or_default(),
            profile: device.device_profile_id.unwrap_or_default(),
            name: device.name.as_str().into(),
            is_gateway: device.is_gateway(),
            overwrites_activity_time: device.overwrites_activity_time(),
        };
        self.text_bytes += entry.name.len();
        if let Some(old) = self.devices.insert(id, entry) {
            self.text_bytes -= old.name.len();
        }
    }

    /// Of the device and its credentials, whose identifier the caller knows.
    pub fn remove_device(&mut self, id: DeviceId, credentials_id: Option<&str>) {
        if let Some(old) = self.devices.remove(&id) {
            self.text_bytes -= old.name.len();
        }
        if let Some(credentials_id) = credentials_id {
            self.remove_credentials(credentials_id);
        }
    }

    pub fn put_credentials(&mut self, credentials: &DeviceCredentials) {
        let Some(id) = credentials.credentials_id.as_deref() else {
            return;
        };
        let credential = Credential {
            device: credentials.device_id,
            secret: Secret::of(credentials),
        };
        self.text_bytes += id.len();
        if self.credentials.insert(id.into(), credential).is_some() {
            self.text_bytes -= id.len();
        }
    }

    pub fn remove_credentials(&mut self, credentials_id: &str) {
        if self.credentials.remove(credentials_id).is_some() {
            self.text_bytes -= credentials_id.len();
        }
    }
}

// One device costs an entry in two tables; `docs/platform.md` has the measured sum.
const _: () = assert!(size_of::<(DeviceId, DeviceEntry)>() + size_of::<(Box<str>, Credential)>() <= 160);
