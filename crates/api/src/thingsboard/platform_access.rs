//! State that all operations share: the platform, the key of tokens, and logged-out sessions. The user of a token is
//! looked up for each request, so that a change of the user applies at once.

use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use auth::Password;
use axum::body::Bytes;
use axum::http::StatusCode;
use devices::{DeviceOutlet, Devices, LogFull, PendingAppend, WaitingChange};
use platform::entities::Entities;
use platform::ids::{CustomerId, DeviceId, EntityId, EntityType, TenantId, UserId, Uuid};
use platform::model::{ApiKey, AttributeScope, Authority, User, UserCredentials};
use platform::{Platform, SocketLimits};

use tokio::sync::Semaphore;

use super::audit_logs::AuditLogCounts;
use super::call::Principal;
use super::console_access;
use super::export::EXPORTS_MAX;
use super::failure::{ThingsboardError, ThingsboardErrorCode};
use super::operation::PendingResult;
use super::quotas::TenantQuotas;
use super::screen::Grants;
use super::socket::ConnectionLimits;
use super::token::{REFRESH_SCOPE, Signer, TokenClaims, TokenError};
use crate::admins::{Admins, Role};
use crate::guard::KEY_PREFIX;

/// Limit of logged-out sessions whose tokens have not expired yet. Above it, the one that expires first is dropped.
const LOGGED_OUT_MAX: usize = 100_000;

/// Access of users to the device platform.
pub struct PlatformAccess {
    devices: Arc<Devices>,
    signer: Signer,
    logged_out: Mutex<HashMap<String, i64>>,
    docs: OnceLock<Bytes>,
    watchers: Arc<ConnectionLimits>,
    exports: Arc<Semaphore>,
    quotas: Arc<TenantQuotas>,
    audit_counts: AuditLogCounts,
    grants: Grants,
}

/// An access token and its refresh token.
pub struct TokenPair {
    pub token: String,
    pub refresh_token: String,
}

impl PlatformAccess {
    /// Reads the key of tokens from the data directory, or creates it.
    pub fn open(devices: Arc<Devices>, data_dir: &Path) -> io::Result<PlatformAccess> {
        Ok(PlatformAccess {
            devices,
            signer: Signer::open_or_create(data_dir)?,
            logged_out: Mutex::default(),
            docs: OnceLock::new(),
            watchers: Arc::default(),
            exports: Arc::new(Semaphore::new(EXPORTS_MAX)),
            quotas: Arc::default(),
            audit_counts: AuditLogCounts::default(),
            grants: Grants::default(),
        })
    }

    pub fn platform(&self) -> &Platform {
        self.devices.platform()
    }

    /// Entities that screens may read.
    pub fn grants(&self) -> &Grants {
        &self.grants
    }

    pub fn devices(&self) -> &Arc<Devices> {
        &self.devices
    }

    /// The destination of side effects of users' requests.
    pub fn outlet(&self) -> DeviceOutlet<'_> {
        self.devices.outlet()
    }

    /// Applies changed limits after a change of a tenant or a tenant profile.
    pub fn limits_changed(&self) {
        self.devices.limits_changed();
    }

    /// Disconnects a device that was deleted or has new credentials.
    pub fn device_changed(&self, device: DeviceId) {
        self.devices.disconnect(device);
    }

    /// Resolves after the telemetry is committed. It is stored shortly afterwards.
    pub fn begin_telemetry(
        &self,
        entity: EntityId,
        body: &[u8],
        ttl_s: u32,
        now_ms: i64,
    ) -> Result<PendingResult, ThingsboardError> {
        let committed = self.devices.save_telemetry(entity, body, ttl_s, now_ms);
        let committed = committed.map_err(full)?;
        Ok(Box::pin(async { committed.await.map_err(full) }))
    }

    /// Like [`PlatformAccess::begin_telemetry`], for callers that wait later.
    pub fn append_telemetry(
        &self,
        entity: EntityId,
        body: &[u8],
        now_ms: i64,
    ) -> Result<PendingAppend, ThingsboardError> {
        self.devices.save_telemetry(entity, body, 0, now_ms).map_err(full)
    }

    /// The attributes can be read shortly after they are committed.
    pub fn append_attributes(
        &self,
        of: (EntityId, AttributeScope),
        body: &[u8],
        now_ms: i64,
    ) -> Result<PendingAppend, ThingsboardError> {
        let change = self.devices.save_attributes(of, body, now_ms);
        change.map(WaitingChange::pending).map_err(full)
    }

    /// Saves attributes after earlier messages of the device. They can be read when the future resolves.
    pub fn save_attributes(
        &self,
        of: (EntityId, AttributeScope),
        body: &[u8],
        now_ms: i64,
    ) -> Result<PendingResult, ThingsboardError> {
        when_done(self.devices.save_attributes(of, body, now_ms))
    }

    pub fn delete_attributes(
        &self,
        of: (EntityId, AttributeScope),
        keys: &[String],
        now_ms: i64,
    ) -> Result<PendingResult, ThingsboardError> {
        when_done(self.devices.delete_attributes(of, keys, now_ms))
    }

    /// The OpenAPI document, generated once.
    pub fn docs(&self) -> &OnceLock<Bytes> {
        &self.docs
    }

    pub fn audit_counts(&self) -> &AuditLogCounts {
        &self.audit_counts
    }

    /// Limits concurrent exports.
    pub fn exports(&self) -> &Arc<Semaphore> {
        &self.exports
    }

    /// Limits of the tenants.
    pub fn quotas(&self) -> &Arc<TenantQuotas> {
        &self.quotas
    }

    /// Returns the limits of WebSockets from the tenant profile.
    pub fn sockets_of(&self, principal: &Principal) -> SocketLimits {
        let directory = self.entities().directory();
        directory
            .limits(principal.tenant)
            .map(|limits| limits.sockets)
            .unwrap_or_default()
    }

    /// Limits open WebSockets.
    pub fn watchers(&self) -> &Arc<ConnectionLimits> {
        &self.watchers
    }

    fn entities(&self) -> &Entities {
        self.devices.entities()
    }

    /// Slow. `None`: the user is unknown or disabled, or the password is wrong. A name without an at sign belongs to an
    /// administrator of the node.
    pub fn login(
        &self,
        admins: &Admins,
        name: &str,
        password: Password,
    ) -> Result<Option<Principal>, ThingsboardError> {
        if name.contains('@') {
            return Ok(self.entities().login(name, &password)?.map(|user| Principal::of(&user)));
        }
        let role = admins.verify(name, password);
        Ok((role == Some(Role::Admin)).then(|| Principal::of_admin(name)))
    }

    /// Issues tokens of a new or an existing session.
    pub fn issue(&self, admins: &Admins, principal: &Principal, now_ms: i64) -> Result<TokenPair, ThingsboardError> {
        let stamp = self
            .stamp(admins, principal)?
            .ok_or_else(ThingsboardError::unauthorized)?;
        let (sub, id) = (principal.name.as_str(), principal.id.to_string());
        let claims = |scope| TokenClaims {
            by: principal.by.clone(),
            ..TokenClaims::new(sub, &id, scope, &principal.session, &stamp, now_ms)
        };
        let access = TokenClaims {
            enabled: Some(true),
            tenant_id: Some(principal.tenant.to_string()),
            customer_id: Some(principal.customer.to_string()),
            ..claims(authority_name(principal.authority))
        };
        Ok(TokenPair {
            token: self.signer.sign(&access),
            refresh_token: self.signer.sign(&claims(REFRESH_SCOPE)),
        })
    }

    /// Returns the user of an access token.
    pub fn principal_of_token(&self, admins: &Admins, token: &str, now_ms: i64) -> Result<Principal, ThingsboardError> {
        let claims = self.claims(token, now_ms)?;
        if claims.is_refresh() {
            return Err(ThingsboardError::unauthorized());
        }
        self.principal_of(admins, &claims)
    }

    /// Returns the user of a refresh token.
    pub fn principal_of_refresh_token(
        &self,
        admins: &Admins,
        token: &str,
        now_ms: i64,
    ) -> Result<Principal, ThingsboardError> {
        let claims = self.claims(token, now_ms)?;
        if !claims.is_refresh() {
            return Err(ThingsboardError::unauthorized());
        }
        self.principal_of(admins, &claims)
    }

    fn claims(&self, token: &str, now_ms: i64) -> Result<TokenClaims, ThingsboardError> {
        self.signer.verify(token, now_ms).map_err(|error| match error {
            TokenError::Wrong => ThingsboardError::unauthorized(),
            TokenError::Expired => ThingsboardError::new(ThingsboardErrorCode::TokenExpired, "Token has expired"),
        })
    }

    fn principal_of(&self, admins: &Admins, claims: &TokenClaims) -> Result<Principal, ThingsboardError> {
        if self.lock().contains_key(&claims.session_id) {
            return Err(ThingsboardError::unauthorized());
        }
        let id = Uuid::parse(&claims.user_id).ok_or_else(ThingsboardError::unauthorized)?;
        let mut principal = if id.is_null() {
            Principal::of_admin(&claims.sub)
        } else {
            let user: User = self.entities().find(id)?.ok_or_else(ThingsboardError::unauthorized)?;
            Principal::of(&user)
        };
        principal.by.clone_from(&claims.by);
        if self.stamp(admins, &principal)?.as_deref() != Some(&claims.stamp) {
            return Err(ThingsboardError::unauthorized());
        }
        principal.session.clone_from(&claims.session_id);
        Ok(principal)
    }

    /// Changes with the user's password. If the console has created the user, or an administrator of the node acts as
    /// the user, it changes with the administrator's password. `None`: the login is no longer allowed.
    fn stamp(&self, admins: &Admins, principal: &Principal) -> Result<Option<String>, ThingsboardError> {
        let hash = if principal.is_node_admin() {
            hash_of_admin(admins, &principal.name)
        } else {
            let credentials: Option<UserCredentials> = self.entities().find(principal.id.0)?;
            let credentials = credentials.filter(|credentials| credentials.enabled);
            let hash = credentials.and_then(|credentials| credentials.password);
            match console_access::administrator(&principal.name) {
                None => hash,
                Some(name) => hash
                    .zip(console_access::password_hashes(admins, name))
                    .map(|(own, theirs)| own + &theirs),
            }
        };
        let hash = match &principal.by {
            None => hash,
            Some(name) => hash.zip(hash_of_admin(admins, name)).map(|(own, theirs)| own + &theirs),
        };
        Ok(hash.map(|hash| self.signer.stamp(&hash)))
    }

    /// Returns the user of a valid API key.
    pub fn principal_of_key(&self, admins: &Admins, key: &str, now_ms: i64) -> Result<Principal, ThingsboardError> {
        let key: Option<ApiKey> = self.entities().find_api_key(key)?;
        let key = key
            .filter(|key| key.is_valid(now_ms))
            .ok_or_else(ThingsboardError::unauthorized)?;
        let user: User = self
            .entities()
            .find(key.user_id.0)?
            .ok_or_else(ThingsboardError::unauthorized)?;
        let principal = Principal::of(&user);
        self.stamp(admins, &principal)?
            .ok_or_else(ThingsboardError::unauthorized)?;
        Ok(principal)
    }

    /// Returns the principal of a screen, if its dashboard exists.
    pub fn principal_of_screen(&self, key: &str, dashboard: Uuid) -> Result<Principal, ThingsboardError> {
        let tenant = self
            .tenant_of_dashboard(dashboard)?
            .ok_or_else(ThingsboardError::unauthorized)?;
        Ok(Principal::of_screen(key, tenant, dashboard))
    }

    /// `None`: the dashboard does not exist.
    pub fn tenant_of_dashboard(&self, dashboard: Uuid) -> Result<Option<TenantId>, ThingsboardError> {
        let id = EntityId::new(EntityType::Dashboard, dashboard);
        let record = self.entities().repository().get(id)?;
        Ok(record.map(|record| TenantId(record.row.tenant)))
    }

    /// Invalidates the tokens of the session. Only in memory: a restart forgets it, as in ThingsBoard.
    pub fn log_out(&self, session: &str, now_ms: i64) {
        let mut sessions = self.lock();
        let lifetime_ms = super::token::REFRESH_S * 1000;
        if sessions.len() >= LOGGED_OUT_MAX {
            sessions.retain(|_, expires_ms| *expires_ms > now_ms);
        }
        if sessions.len() >= LOGGED_OUT_MAX {
            let first = sessions.iter().min_by_key(|(_, expires_ms)| **expires_ms);
            if let Some(first) = first.map(|(session, _)| session.clone()) {
                sessions.remove(&first);
            }
        }
        sessions.insert(session.to_owned(), now_ms.saturating_add(lifetime_ms));
    }

    // Each update leaves the map consistent, so a panic in another thread cannot break it.
    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<String, i64>> {
        self.logged_out.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Principal {
    pub fn of(user: &User) -> Principal {
        Principal {
            id: user.id.unwrap_or_default(),
            authority: user.authority,
            tenant: user.tenant_id,
            customer: user.customer_id.unwrap_or_default(),
            name: user.email.clone(),
            session: String::new(),
            by: None,
            screen: None,
        }
    }

    fn of_admin(name: &str) -> Principal {
        Principal {
            id: UserId::NULL,
            authority: Authority::SysAdmin,
            tenant: TenantId::NULL,
            customer: CustomerId::NULL,
            name: name.to_owned(),
            session: String::new(),
            by: None,
            screen: None,
        }
    }

    /// A screen of a dashboard of this tenant.
    pub fn of_screen(key: &str, tenant: TenantId, dashboard: Uuid) -> Principal {
        Principal {
            id: UserId::NULL,
            authority: Authority::TenantAdmin,
            tenant,
            customer: CustomerId::NULL,
            name: format!("{KEY_PREFIX}{key}"),
            session: String::new(),
            by: None,
            screen: Some(dashboard),
        }
    }

    pub fn is_node_admin(&self) -> bool {
        self.id == UserId::NULL && self.screen.is_none()
    }
}

/// `None`: not an administrator of the node.
fn hash_of_admin(admins: &Admins, name: &str) -> Option<String> {
    let is_admin = admins.role(name) == Some(Role::Admin);
    // Another user knows a one-time password.
    let is_own = !admins.has_one_time_password(name);
    admins.password_hash(name).filter(|_| is_admin && is_own)
}

pub fn authority_name(authority: Authority) -> &'static str {
    match authority {
        Authority::SysAdmin => "SYS_ADMIN",
        Authority::TenantAdmin => "TENANT_ADMIN",
        Authority::CustomerUser => "CUSTOMER_USER",
    }
}

fn when_done(change: Result<WaitingChange, LogFull>) -> Result<PendingResult, ThingsboardError> {
    let change = change.map_err(full)?;
    Ok(Box::pin(async { change.done().await.map_err(full) }))
}

/// The log cannot accept records now.
pub fn full(full: LogFull) -> ThingsboardError {
    ThingsboardError::new(ThingsboardErrorCode::General, full.to_string()).with_status(StatusCode::SERVICE_UNAVAILABLE)
}
