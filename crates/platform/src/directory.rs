//! In-memory index of devices, credentials, profiles and tenant limits. It is read for each connection and message, so
//! that they need no access to the repository. Filled at the start, and updated by [`crate::entities::Entities`].

use std::mem::size_of;
use std::sync::Arc;

use hashbrown::HashMap;

use crate::credentials::{Credential, CredentialSecret, MqttLogin, authenticate};
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
pub struct DeviceDirectory {
    devices: HashMap<DeviceId, DeviceEntry, foldhash::fast::RandomState>,
    credentials: HashMap<Box<str>, Credential, foldhash::fast::RandomState>,
    profiles: HashMap<DeviceProfileId, Arc<DeviceProfile>, foldhash::fast::RandomState>,
    /// Limits per tenant. A tenant without limits has no entry.
    limits: std::collections::HashMap<TenantId, Arc<TenantLimits>>,
    /// Increases when `limits` changes.
    limits_version: u64,
    /// Times to live per tenant. A tenant whose profile sets none has no entry.
    ttls: std::collections::HashMap<TenantId, TimesToLive>,
    /// Increases when `ttls` changes.
    ttls_version: u64,
    text_bytes: usize,
}

impl DeviceDirectory {
    pub fn load(repository: &dyn Repository) -> Result<DeviceDirectory, RepositoryError> {
        let mut directory = DeviceDirectory::default();
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

    /// Returns the device of an HTTP request, which is identified by an access token only.
    pub fn device_of_token(&self, token: &str) -> Option<DeviceId> {
        let credential = self.credentials.get(token)?;
        (credential.secret == CredentialSecret::None).then_some(credential.device)
    }

    /// Looks up a device by the SHA3 hash of its client certificate ([`crate::credentials::sha3_hash`]).
    pub fn device_of_certificate(&self, hash: &str) -> Option<DeviceId> {
        let credential = self.credentials.get(hash)?;
        (credential.secret == CredentialSecret::Certificate).then_some(credential.device)
    }

    pub fn device(&self, id: DeviceId) -> Option<&DeviceEntry> {
        self.devices.get(&id)
    }

    pub fn tenant_of(&self, id: DeviceId) -> Option<TenantId> {
        self.device(id).map(|device| device.tenant)
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

    /// Returns `None` if the tenant has no limits.
    pub fn limits(&self, tenant: TenantId) -> Option<&Arc<TenantLimits>> {
        self.limits.get(&tenant)
    }

    pub fn all_limits(&self) -> impl Iterator<Item = (TenantId, &Arc<TenantLimits>)> {
        self.limits.iter().map(|(tenant, limits)| (*tenant, limits))
    }

    /// Lets owners of a copy detect changes of the limits.
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

    /// Times to live of tenants whose profiles set any.
    pub fn all_times_to_live(&self) -> impl Iterator<Item = (TenantId, &TimesToLive)> {
        self.ttls.iter().map(|(tenant, ttls)| (*tenant, ttls))
    }

    /// Lets users of the times to live detect changes.
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

    /// Estimated memory of tables and texts.
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

    /// Removes the device, and its credentials with the given id.
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
            secret: CredentialSecret::of(credentials),
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

// A device has one entry in each of two tables. With its texts and table overhead it takes about 340 bytes.
const _: () = assert!(size_of::<(DeviceId, DeviceEntry)>() + size_of::<(Box<str>, Credential)>() <= 160);
