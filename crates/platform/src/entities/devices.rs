//! Devices, their profiles and credentials.

use super::{Entities, EntityError, check_name, delete_with_all, random_text};
use crate::credentials;
use crate::decode::ProfileTransport;
use crate::ids::{CustomerId, DeviceId, DeviceProfileId, EntityId, TenantId};
use crate::model::{
    CredentialsType, Customer, Device, DeviceCredentials, DeviceProfile, Entity, Relation, RelationGroup,
};
use crate::page::PageLink;
use crate::repository::{RepositoryChange, Selection};

impl Entities {
    /// Creates a device with an access token, or changes a device. A new device gets `token`, or a random one.
    pub fn save_device(&self, device: Device, token: Option<&str>, now_ms: i64) -> Result<Device, EntityError> {
        let token = token
            .filter(|token| !token.is_empty())
            .map_or_else(random_text, str::to_owned);
        let credentials = DeviceCredentials {
            credentials_id: Some(token),
            ..DeviceCredentials::default()
        };
        self.save_device_with_credentials(device, credentials, now_ms)
    }

    /// As [`Entities::save_device`], with credentials for a new device.
    pub fn save_device_with_credentials(
        &self,
        device: Device,
        credentials: DeviceCredentials,
        now_ms: i64,
    ) -> Result<Device, EntityError> {
        let _changing = self.changing();
        self.save_device_along(device, credentials, Vec::new(), now_ms)
    }

    /// Saves a device together with other changes in one transaction. The caller holds [`Entities::changing`].
    pub(super) fn save_device_along(
        &self,
        mut device: Device,
        mut credentials: DeviceCredentials,
        along: Vec<RepositoryChange>,
        now_ms: i64,
    ) -> Result<Device, EntityError> {
        let stored = self.stored(&device, "device")?;
        match &stored {
            Some(stored) => device.tenant_id = stored.tenant_id,
            None => self.check_limit(Device::KIND, device.tenant_id)?,
        }
        check_name("Device name", &device.name)?;
        self.check_customer("device", device.tenant_id, device.customer_id)?;
        let mut changes = self.resolve_profile(&mut device, now_ms)?;
        let packages = (device.firmware_id, device.software_id);
        self.check_ota(packages, device.tenant_id, device.device_profile_id)?;
        changes.extend(self.put_device(&mut device, stored.as_ref(), now_ms)?);
        changes.extend(along);
        if stored.is_none() {
            changes.push(self.put_credentials_of(&device, &mut credentials, now_ms)?);
        }
        self.repository.apply(&changes)?;
        let mut directory = self.directory_mut();
        read_profiles(&changes).for_each(|profile| directory.put_profile(profile));
        directory.put_device(&device);
        if stored.is_none() {
            directory.put_credentials(&credentials);
        }
        Ok(device)
    }

    fn put_device(
        &self,
        device: &mut Device,
        stored: Option<&Device>,
        now_ms: i64,
    ) -> Result<impl Iterator<Item = RepositoryChange>, EntityError> {
        device.customer_id = Some(device.customer_id.unwrap_or_default());
        device.device_data.get_or_insert_with(default_device_data);
        let put = self.put(device, stored, now_ms)?;
        Ok([put].into_iter().chain(self.mark_device_for_ota(device, stored)))
    }

    fn put_credentials_of(
        &self,
        device: &Device,
        credentials: &mut DeviceCredentials,
        now_ms: i64,
    ) -> Result<RepositoryChange, EntityError> {
        credentials.device_id = device.id.unwrap_or_default();
        credentials.id = None;
        credentials::normalize(credentials)?;
        self.put(credentials, None, now_ms)
    }

    /// Creates devices behind a gateway from a template, with relations to the gateway, in one transaction. Skips
    /// devices beyond the tenant's limit and invalid names. A single name that is invalid is an error.
    pub fn create_gateway_devices(
        &self,
        gateway: EntityId,
        mut like: Device,
        names: &[&str],
        now_ms: i64,
    ) -> Result<Vec<Device>, EntityError> {
        let _changing = self.changing();
        let capacity = self.remaining_capacity(Device::KIND, like.tenant_id)?;
        if capacity == 0 {
            return Err(EntityError::Limit(Device::KIND));
        }
        if let [name] = names {
            check_name("Device name", name)?;
        }
        self.check_customer("device", like.tenant_id, like.customer_id)?;
        let mut changes = self.resolve_profile(&mut like, now_ms)?;
        let mut made = Vec::new();
        let names = names.iter().filter(|name| check_name("Device name", name).is_ok());
        for name in names.take(capacity) {
            let mut device = Device {
                name: (*name).to_owned(),
                ..like.clone()
            };
            let mut credentials = DeviceCredentials {
                credentials_id: Some(random_text()),
                ..DeviceCredentials::default()
            };
            changes.extend(self.put_device(&mut device, None, now_ms)?);
            changes.push(self.put_credentials_of(&device, &mut credentials, now_ms)?);
            changes.push(RepositoryChange::PutRelation(Relation {
                from: gateway,
                to: device.id.unwrap_or_default().entity(),
                kind: Relation::CREATED.to_owned(),
                group: RelationGroup::Common,
                additional_info: None,
            }));
            made.push((device, credentials));
        }
        self.repository.apply(&changes)?;
        let mut directory = self.directory_mut();
        read_profiles(&changes).for_each(|profile| directory.put_profile(profile));
        for (device, credentials) in &made {
            directory.put_device(device);
            directory.put_credentials(credentials);
        }
        Ok(made.into_iter().map(|(device, _)| device).collect())
    }

    pub(super) fn check_customer(
        &self,
        what: &str,
        tenant: TenantId,
        customer: Option<CustomerId>,
    ) -> Result<(), EntityError> {
        let Some(id) = customer.filter(|id| *id != CustomerId::NULL) else {
            return Ok(());
        };
        match self.find::<Customer>(id.0)? {
            None => Err(EntityError::invalid(format!(
                "Can't assign {what} to non-existent customer!"
            ))),
            Some(customer) if customer.tenant_id != tenant => Err(EntityError::invalid(format!(
                "Can't assign {what} to customer from different tenant!"
            ))),
            Some(_) => Ok(()),
        }
    }

    /// Resolves the profile by id, or by the name in `type`, creating it if necessary, or takes the default profile.
    fn resolve_profile(&self, device: &mut Device, now_ms: i64) -> Result<Vec<RepositoryChange>, EntityError> {
        let tenant = device.tenant_id;
        if let Some(id) = device.device_profile_id {
            let profile: Option<DeviceProfile> = self.find(id.0)?;
            let profile = profile.filter(|profile| profile.tenant_id == tenant);
            let profile =
                profile.ok_or_else(|| EntityError::invalid("Device is referencing to non existing device profile!"))?;
            device.kind = profile.name;
            return Ok(Vec::new());
        }
        if device.kind.is_empty() {
            let profile = self.default_device_profile(tenant)?;
            (device.kind, device.device_profile_id) = (profile.name, profile.id);
            return Ok(Vec::new());
        }
        if let Some(profile) = self.find_by_name::<DeviceProfile>(tenant.0, &device.kind)? {
            device.device_profile_id = profile.id;
            return Ok(Vec::new());
        }
        let mut profile = DeviceProfile {
            tenant_id: tenant,
            name: device.kind.clone(),
            ..DeviceProfile::default()
        };
        let change = self.put(&mut profile, None, now_ms)?;
        device.device_profile_id = profile.id;
        Ok(vec![change])
    }

    pub fn default_device_profile(&self, tenant: TenantId) -> Result<DeviceProfile, EntityError> {
        let directory = self.directory();
        let mut profiles = directory.profiles();
        let default = profiles.find(|profile| profile.default && profile.tenant_id == tenant);
        default
            .map(|profile| DeviceProfile::clone(profile))
            .ok_or(EntityError::NotFound)
    }

    /// Deletes a device with its credentials, relations, attributes and alarms. The time-series store's points are
    /// deleted later.
    pub fn delete_device(&self, id: DeviceId) -> Result<Device, EntityError> {
        let _changing = self.changing();
        let device: Device = self.get(id.0)?;
        let credentials = self.device_credentials(id)?;
        let mut changes = delete_with_all(id.entity());
        if let Some(credentials_id) = credentials.id {
            changes.push(RepositoryChange::Delete(crate::ids::EntityId::new(
                DeviceCredentials::KIND,
                credentials_id.id,
            )));
        }
        changes.extend(self.rpcs_of(id)?.map(RepositoryChange::Delete));
        changes.extend(self.claims().change_without(id));
        self.repository.apply(&changes)?;
        self.claims().remove(id);
        self.directory_mut()
            .remove_device(id, credentials.credentials_id.as_deref());
        Ok(device)
    }

    pub fn device_credentials(&self, device: DeviceId) -> Result<DeviceCredentials, EntityError> {
        let selection = Selection {
            parent: Some(device.0),
            ..Selection::default()
        };
        let page = self.page(&selection, &PageLink::new(1, 0))?;
        page.data.into_iter().next().ok_or(EntityError::NotFound)
    }

    pub fn find_credentials(&self, credentials_id: &str) -> Result<Option<DeviceCredentials>, EntityError> {
        self.find_by_key(credentials_id)
    }

    /// Replaces the credentials of a device. The caller must close sessions that used the old ones.
    pub fn save_device_credentials(
        &self,
        mut credentials: DeviceCredentials,
        now_ms: i64,
    ) -> Result<DeviceCredentials, EntityError> {
        let _changing = self.changing();
        if self.find::<Device>(credentials.device_id.0)?.is_none() {
            return Err(EntityError::invalid(
                "Can't assign device credentials to non-existent device!",
            ));
        }
        let stored = self.device_credentials(credentials.device_id)?;
        match credentials.id {
            None => {
                return Err(EntityError::invalid(
                    "Unable to update non-existent device credentials!",
                ));
            }
            id if id != stored.id => {
                return Err(EntityError::invalid(
                    "Unable to update non-existent device credentials!",
                ));
            }
            Some(_) => {}
        }
        let is_token = credentials.credentials_type == CredentialsType::AccessToken;
        if is_token && credentials.credentials_id.as_deref().is_none_or(str::is_empty) {
            credentials.credentials_id = Some(random_text());
        }
        credentials::normalize(&mut credentials)?;
        let saved = self.put_one(credentials, Some(&stored), now_ms)?;
        let mut directory = self.directory_mut();
        if let Some(old) = stored.credentials_id.as_deref() {
            directory.remove_credentials(old);
        }
        directory.put_credentials(&saved);
        Ok(saved)
    }

    pub fn save_device_profile(&self, mut profile: DeviceProfile, now_ms: i64) -> Result<DeviceProfile, EntityError> {
        let _changing = self.changing();
        let stored = self.stored(&profile, "device profile")?;
        if let Some(stored) = &stored {
            profile.tenant_id = stored.tenant_id;
        }
        self.check_profile(&profile)?;
        if let Some(stored) = &stored {
            self.check_same_kind(stored, &profile)?;
        }
        self.check_ota(
            (profile.firmware_id, profile.software_id),
            profile.tenant_id,
            profile.id,
        )?;
        self.check_defaults(
            "Device",
            profile.tenant_id,
            profile.default_rule_chain_id,
            profile.default_dashboard_id,
            profile.default_queue_name.as_deref(),
        )?;
        if profile.profile_data.is_null() {
            profile.profile_data = crate::model::default_profile_data();
        }
        let mut changes = vec![self.put(&mut profile, stored.as_ref(), now_ms)?];
        changes.extend(Entities::mark_profile_for_ota(&profile, stored.as_ref()));
        if let Some(stored) = stored.filter(|stored| stored.name != profile.name) {
            changes.extend(self.rename_type(&stored, &profile.name, now_ms)?);
        }
        self.repository.apply(&changes)?;
        self.directory_mut().put_profile(profile.clone());
        Ok(profile)
    }

    fn check_profile(&self, profile: &DeviceProfile) -> Result<(), EntityError> {
        check_name("Device profile name", &profile.name)?;
        if profile.kind.is_none() {
            return Err(EntityError::invalid("Device profile type should be specified!"));
        }
        if profile.transport_type.is_none() {
            return Err(EntityError::invalid(
                "Device profile transport type should be specified!",
            ));
        }
        if profile.default {
            let another = self.default_device_profile(profile.tenant_id).ok();
            if another.is_some_and(|another| another.id != profile.id) {
                return Err(EntityError::invalid(
                    "Another default device profile is present in scope of current tenant!",
                ));
            }
        }
        if let Err(problem) = ProfileTransport::of(profile) {
            return Err(EntityError::invalid(format!(
                "[Transport Configuration] invalid schema provided: {problem}"
            )));
        }
        check_alarms(profile)
    }

    /// Rejects a new type or transport type if the profile has devices. With another transport, the payload format may
    /// change, and the server would reject messages of these devices.
    fn check_same_kind(&self, stored: &DeviceProfile, profile: &DeviceProfile) -> Result<(), EntityError> {
        let what = if stored.kind != profile.kind {
            "type"
        } else if stored.transport_type != profile.transport_type {
            "transport type"
        } else {
            return Ok(());
        };
        let of_profile = Selection {
            parent: profile.id.map(|id| id.0),
            ..Selection::default()
        };
        match self.repository.count(Device::KIND, &of_profile)? {
            0 => Ok(()),
            _ => Err(EntityError::invalid(format!(
                "Can't change device profile {what} because devices referenced it!"
            ))),
        }
    }

    /// Renames the type of a profile's devices, which is the profile's name.
    fn rename_type(&self, old: &DeviceProfile, name: &str, now_ms: i64) -> Result<Vec<RepositoryChange>, EntityError> {
        let selection = Selection {
            parent: old.id.map(|id| id.0),
            ..Selection::default()
        };
        let mut changes = Vec::new();
        for number in 0.. {
            let page = self.page::<Device>(&selection, &PageLink::new(1000, number))?;
            for mut device in page.data {
                let stored = device.clone();
                name.clone_into(&mut device.kind);
                changes.push(self.put(&mut device, Some(&stored), now_ms)?);
            }
            if !page.has_next {
                break;
            }
        }
        Ok(changes)
    }

    /// Makes the profile the default in place of the previous one.
    pub fn set_default_device_profile(&self, id: DeviceProfileId, now_ms: i64) -> Result<DeviceProfile, EntityError> {
        let _changing = self.changing();
        let mut profile: DeviceProfile = self.get(id.0)?;
        let mut changes = Vec::new();
        if let Ok(mut old) = self.default_device_profile(profile.tenant_id)
            && old.id != profile.id
        {
            let stored = old.clone();
            old.default = false;
            changes.push(self.put(&mut old, Some(&stored), now_ms)?);
        }
        let stored = profile.clone();
        profile.default = true;
        changes.push(self.put(&mut profile, Some(&stored), now_ms)?);
        self.repository.apply(&changes)?;
        let mut directory = self.directory_mut();
        read_profiles(&changes).for_each(|profile| directory.put_profile(profile));
        Ok(profile)
    }

    pub fn delete_device_profile(&self, id: DeviceProfileId) -> Result<(), EntityError> {
        let _changing = self.changing();
        let profile: DeviceProfile = self.get(id.0)?;
        if profile.default {
            return Err(EntityError::invalid(
                "Deletion of Default Device Profile is prohibited!",
            ));
        }
        let selection = Selection {
            parent: Some(id.0),
            ..Selection::default()
        };
        if self.repository.count(Device::KIND, &selection)? > 0 {
            return Err(EntityError::invalid(
                "The device profile referenced by the devices cannot be deleted!",
            ));
        }
        self.repository.apply(&delete_with_all(id.entity()))?;
        self.directory_mut().remove_profile(id);
        Ok(())
    }
}

fn default_device_data() -> serde_json::Value {
    serde_json::json!({"configuration": {"type": "DEFAULT"}, "transportConfiguration": {"type": "DEFAULT"}})
}

fn read_profiles(changes: &[RepositoryChange]) -> impl Iterator<Item = DeviceProfile> {
    changes.iter().filter_map(|change| match change {
        RepositoryChange::Put { record, .. } if record.kind == DeviceProfile::KIND => record.read().ok(),
        _ => None,
    })
}

fn check_alarms(profile: &DeviceProfile) -> Result<(), EntityError> {
    let mut types = Vec::new();
    for alarm in profile.alarms() {
        let kind = alarm["alarmType"].as_str().unwrap_or_default();
        if kind.is_empty() {
            return Err(EntityError::invalid("Alarm rule type should be specified!"));
        }
        if types.contains(&kind) {
            return Err(EntityError::invalid(format!(
                "Can't create device profile with the same alarm rule types: \"{kind}\"!"
            )));
        }
        types.push(kind);
    }
    match crate::alarm_rules::AlarmRules::parse(profile.alarms()) {
        Ok(_) => Ok(()),
        Err(error) => Err(EntityError::invalid(error.to_string())),
    }
}
