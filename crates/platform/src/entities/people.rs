//! Tenants with their initial entities, customers, users and passwords.

use auth::{Password, PasswordHash};

use super::{Entities, EntityError, check_name, delete_with_all, random_text};
use crate::chain::default_root_chain;
use crate::ids::{CustomerId, EntityType, TenantId, UserId};
use crate::model::{
    ApiKey, ApiUsageState, Asset, AssetProfile, AuditLog, Authority, Customer, Dashboard, Device, DeviceProfile,
    Entity, OtaPackage, QueueStats, Rpc, RuleChain, Tenant, User, UserCredentials,
};
use crate::page::PageLink;
use crate::repository::{RepositoryChange, Selection};

/// The initial entities of a tenant.
#[derive(Clone, Debug)]
pub struct NewTenant {
    pub tenant: Tenant,
    pub device_profile: DeviceProfile,
    pub root_chain: RuleChain,
}

impl Entities {
    /// Creates a tenant with default profiles and a root rule chain.
    pub fn create_tenant(&self, mut tenant: Tenant, now_ms: i64) -> Result<NewTenant, EntityError> {
        let _changing = self.changing();
        check_name("Tenant title", &tenant.title)?;
        tenant.name.clone_from(&tenant.title);
        self.resolve_tenant_profile(&mut tenant, now_ms)?;
        let mut changes = vec![self.put(&mut tenant, None, now_ms)?];
        let tenant_id = tenant.id.unwrap_or_default();
        let mut device_profile = DeviceProfile {
            tenant_id,
            name: "default".to_owned(),
            description: Some("Default device profile".to_owned()),
            default: true,
            ..DeviceProfile::default()
        };
        let mut asset_profile = AssetProfile {
            tenant_id,
            name: "default".to_owned(),
            description: Some("Default asset profile".to_owned()),
            default: true,
            ..AssetProfile::default()
        };
        let mut root_chain = default_root_chain(tenant_id);
        if let Some(metadata) = &mut root_chain.metadata {
            self.identify_nodes(metadata, &[], now_ms);
        }
        changes.push(self.put(&mut device_profile, None, now_ms)?);
        changes.push(self.put(&mut asset_profile, None, now_ms)?);
        changes.push(self.put(&mut root_chain, None, now_ms)?);
        self.repository.apply(&changes)?;
        self.directory_mut().put_profile(device_profile.clone());
        self.reload_limits()?;
        Ok(NewTenant {
            tenant,
            device_profile,
            root_chain,
        })
    }

    pub fn save_tenant(&self, mut tenant: Tenant, now_ms: i64) -> Result<Tenant, EntityError> {
        if tenant.id.is_none() {
            return Ok(self.create_tenant(tenant, now_ms)?.tenant);
        }
        let _changing = self.changing();
        check_name("Tenant title", &tenant.title)?;
        tenant.name.clone_from(&tenant.title);
        self.resolve_tenant_profile(&mut tenant, now_ms)?;
        let stored = self.stored(&tenant, "tenant")?;
        let saved = self.put_one(tenant, stored.as_ref(), now_ms)?;
        self.reload_limits()?;
        Ok(saved)
    }

    pub fn save_customer(&self, mut customer: Customer, now_ms: i64) -> Result<Customer, EntityError> {
        let _changing = self.changing();
        check_name("Customer title", &customer.title)?;
        customer.name.clone_from(&customer.title);
        let stored = self.stored(&customer, "customer")?;
        match &stored {
            Some(stored) => customer.tenant_id = stored.tenant_id,
            None if self.find::<Tenant>(customer.tenant_id.0)?.is_none() => {
                return Err(EntityError::invalid("Customer is referencing to non-existent tenant!"));
            }
            None => self.check_limit(Customer::KIND, customer.tenant_id)?,
        }
        self.put_one(customer, stored.as_ref(), now_ms)
    }

    /// Deletes a customer and its users. Its devices and assets lose their owner.
    pub fn delete_customer(&self, id: CustomerId, now_ms: i64) -> Result<Customer, EntityError> {
        let _changing = self.changing();
        let customer: Customer = self.get(id.0)?;
        let mut changes = delete_with_all(id.entity());
        let users = self.all_of::<User>(id)?.into_iter();
        let users: Vec<UserId> = users.map(|user| user.id.unwrap_or_default()).collect();
        changes.extend(users.iter().flat_map(|user| delete_user(*user)));
        changes.extend(self.delete_api_keys_of(&users)?);
        let mut devices = self.all_of::<Device>(id)?;
        for device in &mut devices {
            let stored = device.clone();
            device.customer_id = Some(CustomerId::NULL);
            changes.push(self.put(device, Some(&stored), now_ms)?);
        }
        for mut asset in self.all_of::<Asset>(id)? {
            let stored = asset.clone();
            asset.customer_id = Some(CustomerId::NULL);
            changes.push(self.put(&mut asset, Some(&stored), now_ms)?);
        }
        self.repository.apply(&changes)?;
        let mut directory = self.directory_mut();
        devices.iter().for_each(|device| directory.put_device(device));
        Ok(customer)
    }

    fn all_of<E: Entity>(&self, customer: CustomerId) -> Result<Vec<E>, EntityError> {
        let selection = Selection {
            customer: Some(customer.0),
            ..Selection::default()
        };
        let mut all = Vec::new();
        for number in 0.. {
            let page = self.page(&selection, &PageLink::new(1000, number))?;
            all.extend(page.data);
            if !page.has_next {
                break;
            }
        }
        Ok(all)
    }

    /// Saves a user. A new user has no password; the returned token allows setting one.
    pub fn save_user(&self, mut user: User, now_ms: i64) -> Result<(User, Option<String>), EntityError> {
        let _changing = self.changing();
        let stored = self.stored(&user, "user")?;
        check_user(&user, stored.as_ref())?;
        self.check_owner(&user)?;
        user.name.clone_from(&user.email);
        let existing: Option<User> = self.find_by_key(&user.email.to_lowercase())?;
        if existing.is_some_and(|existing| existing.id != user.id) {
            return Err(EntityError::invalid(format!(
                "User with email '{}' already present in database!",
                user.email
            )));
        }
        if stored.is_none() && user.authority != Authority::SysAdmin {
            self.check_limit(User::KIND, user.tenant_id)?;
        }
        let mut changes = vec![self.put(&mut user, stored.as_ref(), now_ms)?];
        let mut token = None;
        if stored.is_none() {
            token = Some(random_text());
            let mut credentials = UserCredentials {
                user_id: user.id.unwrap_or_default(),
                enabled: false,
                password: None,
                activate_token: token.clone(),
                activate_token_time: now_ms,
            };
            changes.push(self.put(&mut credentials, None, now_ms)?);
        }
        self.repository.apply(&changes)?;
        Ok((user, token))
    }

    fn check_owner(&self, user: &User) -> Result<(), EntityError> {
        if user.authority != Authority::SysAdmin && self.find::<Tenant>(user.tenant_id.0)?.is_none() {
            return Err(EntityError::invalid("User is referencing to non-existent tenant!"));
        }
        if user.authority != Authority::CustomerUser {
            return Ok(());
        }
        match self.find::<Customer>(user.customer_id.unwrap_or_default().0)? {
            None => Err(EntityError::invalid("User is referencing to non-existent customer!")),
            Some(customer) if customer.tenant_id != user.tenant_id => Err(EntityError::invalid(
                "User can't be assigned to customer from different tenant!",
            )),
            Some(_) => Ok(()),
        }
    }

    pub fn user_by_email(&self, email: &str) -> Result<Option<User>, EntityError> {
        self.find_by_key(&email.to_lowercase())
    }

    /// Returns the token with which a user can set the first password. Replaces a token that has expired. `None`: the
    /// user has a password.
    pub fn activation_token(&self, user: UserId, max_age_ms: i64, now_ms: i64) -> Result<Option<String>, EntityError> {
        let _changing = self.changing();
        let credentials: UserCredentials = self.get(user.0)?;
        if credentials.enabled || credentials.activate_token.is_none() {
            return Ok(None);
        }
        if !credentials.has_expired_token(max_age_ms, now_ms) {
            return Ok(credentials.activate_token);
        }
        let renewed = UserCredentials {
            activate_token: Some(random_text()),
            activate_token_time: now_ms,
            ..credentials
        };
        Ok(self.put_one(renewed, None, now_ms)?.activate_token)
    }

    /// Sets the first password, with the token of [`Entities::save_user`] or [`Entities::activation_token`].
    pub fn activate_user(
        &self,
        token: &str,
        password: &Password,
        max_age_ms: i64,
        now_ms: i64,
    ) -> Result<User, EntityError> {
        let credentials: Option<UserCredentials> = self.find_by_key(token)?;
        let credentials = credentials.ok_or_else(|| {
            EntityError::invalid(format!("Unable to find user credentials by activateToken [{token}]"))
        })?;
        if credentials.has_expired_token(max_age_ms, now_ms) {
            return Err(EntityError::invalid(
                "The activation link has expired: ask your administrator for a new one",
            ));
        }
        let user = self.get(credentials.user_id.0)?;
        self.set_password(credentials.user_id, password, now_ms)?;
        Ok(user)
    }

    /// Takes tens of milliseconds.
    pub fn set_password(&self, user: UserId, password: &Password, now_ms: i64) -> Result<(), EntityError> {
        let hash = PasswordHash::create(password).map_err(|error| EntityError::invalid(error.to_string()))?;
        let _changing = self.changing();
        let credentials = UserCredentials {
            user_id: user,
            enabled: true,
            password: Some(hash.as_str().to_owned()),
            activate_token: None,
            activate_token_time: 0,
        };
        self.put_one(credentials, None, now_ms)?;
        Ok(())
    }

    /// Returns the user if the password is right and the user is enabled. Takes tens of milliseconds, also for an
    /// unknown user.
    pub fn login(&self, email: &str, password: &Password) -> Result<Option<User>, EntityError> {
        let user = self.user_by_email(email)?;
        let credentials = match &user {
            Some(user) => self.find::<UserCredentials>(user.id.unwrap_or_default().0)?,
            None => None,
        };
        let hash = credentials
            .filter(|credentials| credentials.enabled)
            .and_then(|credentials| credentials.password);
        let Some(hash) = hash.and_then(|hash| PasswordHash::parse(&hash).ok()) else {
            // Prevents response times from revealing whether the user exists.
            let _ = PasswordHash::create(password);
            return Ok(None);
        };
        Ok(user.filter(|_| hash.verify(password)))
    }

    pub fn delete_user(&self, id: UserId) -> Result<User, EntityError> {
        let _changing = self.changing();
        let user = self.get(id.0)?;
        let mut changes = delete_user(id);
        changes.extend(self.delete_api_keys_of(&[id])?);
        self.repository.apply(&changes)?;
        Ok(user)
    }

    /// The entity of the tenant's usage; created on first use.
    pub fn api_usage_state(&self, tenant: TenantId, now_ms: i64) -> Result<ApiUsageState, EntityError> {
        let _changing = self.changing();
        self.get::<Tenant>(tenant.0)?;
        let selection = Selection {
            tenant: Some(tenant.0),
            ..Selection::default()
        };
        let known = self.page(&selection, &PageLink::new(1, 0))?.data.into_iter().next();
        if let Some(known) = known {
            return Ok(known);
        }
        let state = ApiUsageState {
            tenant_id: tenant,
            entity_id: Some(tenant.entity()),
            ..ApiUsageState::default()
        };
        self.put_one(state, None, now_ms)
    }

    /// The entity of a queue's statistics on this node; created on first use.
    pub fn queue_stats(
        &self,
        tenant: TenantId,
        queue: &str,
        service: &str,
        now_ms: i64,
    ) -> Result<QueueStats, EntityError> {
        let _changing = self.changing();
        self.get::<Tenant>(tenant.0)?;
        let name = format!("{queue}_{service}");
        if let Some(known) = self.find_by_name(tenant.0, &name)? {
            return Ok(known);
        }
        let stats = QueueStats {
            tenant_id: tenant,
            queue_name: queue.to_owned(),
            service_id: service.to_owned(),
            name,
            ..QueueStats::default()
        };
        self.put_one(stats, None, now_ms)
    }

    /// Deletes all entities of the tenant. Its telemetry is deleted later (`follow_up.rs`).
    pub fn delete_tenant(&self, id: TenantId) -> Result<Tenant, EntityError> {
        let _changing = self.changing();
        let tenant: Tenant = self.get(id.0)?;
        let mut changes = delete_with_all(id.entity());
        let mut devices = Vec::new();
        for kind in [
            ApiKey::KIND,
            Dashboard::KIND,
            RuleChain::KIND,
            Asset::KIND,
            AssetProfile::KIND,
            Device::KIND,
            DeviceProfile::KIND,
            Rpc::KIND,
            OtaPackage::KIND,
            AuditLog::KIND,
            ApiUsageState::KIND,
            QueueStats::KIND,
            User::KIND,
            Customer::KIND,
        ] {
            self.repository.for_each(kind, &mut |record| {
                if record.row.tenant == id.0 {
                    changes.extend(delete_with_all(crate::ids::EntityId::new(kind, record.row.id)));
                    if kind == OtaPackage::KIND {
                        changes.push(RepositoryChange::DeleteParts(record.row.id));
                    }
                    if kind == Device::KIND {
                        devices.push(crate::ids::DeviceId(record.row.id));
                    }
                    if kind == User::KIND {
                        changes.extend(delete_user(UserId(record.row.id)));
                    }
                }
            })?;
        }
        let credentials = self.credentials_of(&devices)?;
        changes.extend(credentials.iter().map(|(_, _, id)| RepositoryChange::Delete(*id)));
        {
            let claims = self.claims();
            changes.extend(devices.iter().filter_map(|device| claims.change_without(*device)));
        }
        self.repository.apply(&changes)?;
        self.remove_claims_of(&devices);
        let mut directory = self.directory_mut();
        for (device, credentials_id, _) in &credentials {
            directory.remove_device(*device, credentials_id.as_deref());
        }
        drop(directory);
        self.reload_limits()?;
        Ok(tenant)
    }

    fn credentials_of(
        &self,
        devices: &[crate::ids::DeviceId],
    ) -> Result<Vec<(crate::ids::DeviceId, Option<String>, crate::ids::EntityId)>, EntityError> {
        let mut all = Vec::with_capacity(devices.len());
        for device in devices {
            let credentials = self.device_credentials(*device)?;
            let id = credentials.id().unwrap_or(crate::ids::Uuid::NULL);
            let entity = crate::ids::EntityId::new(EntityType::DeviceCredentials, id);
            all.push((*device, credentials.credentials_id, entity));
        }
        Ok(all)
    }
}

fn delete_user(id: UserId) -> Vec<RepositoryChange> {
    let mut changes = delete_with_all(id.entity());
    changes.push(RepositoryChange::Delete(crate::ids::EntityId::new(
        UserCredentials::KIND,
        id.0,
    )));
    changes
}

fn check_user(user: &User, stored: Option<&User>) -> Result<(), EntityError> {
    if let Some(stored) = stored {
        if stored.tenant_id != user.tenant_id {
            return Err(EntityError::invalid("Can't update user tenant id!"));
        }
        if stored.authority != user.authority {
            return Err(EntityError::invalid("Can't update user authority!"));
        }
        if stored.customer_id.unwrap_or_default() != user.customer_id.unwrap_or_default() {
            return Err(EntityError::invalid("Can't update user customer id!"));
        }
    }
    check_name("User email", &user.email)?;
    if !is_email(&user.email) {
        return Err(EntityError::invalid(format!(
            "Invalid email address format '{}'!",
            user.email
        )));
    }
    let (has_tenant, has_customer) = (
        user.tenant_id != TenantId::NULL,
        user.customer_id.unwrap_or_default() != CustomerId::NULL,
    );
    match user.authority {
        Authority::SysAdmin if has_tenant || has_customer => Err(EntityError::invalid(
            "System administrator can't be assigned neither to tenant nor to customer!",
        )),
        Authority::TenantAdmin if !has_tenant => Err(EntityError::invalid(
            "Tenant administrator should be assigned to tenant!",
        )),
        Authority::TenantAdmin if has_customer => Err(EntityError::invalid(
            "Tenant administrator can't be assigned to customer!",
        )),
        Authority::CustomerUser if !has_customer => {
            Err(EntityError::invalid("Customer user should be assigned to customer!"))
        }
        _ => Ok(()),
    }
}

/// A local part, an at sign, and a domain with a dot.
fn is_email(text: &str) -> bool {
    let Some((local, domain)) = text.split_once('@') else {
        return false;
    };
    let is_plain = |text: &str| !text.is_empty() && !text.chars().any(|c| c.is_whitespace() || c == '@');
    is_plain(local) && is_plain(domain) && domain.contains('.') && !domain.starts_with('.') && !domain.ends_with('.')
}
