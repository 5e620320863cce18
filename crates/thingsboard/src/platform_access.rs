//! State that all operations share: the platform, the key of tokens, and sessions of logins. The user of a token is
//! looked up for each request, so that a change of the user applies at once.

use std::io;
use std::path::Path;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use auth::Password;
use axum::body::Bytes;
use axum::http::StatusCode;
use base64ct::{Base64UrlUnpadded, Encoding};
use devices::{AttributeChangeError, DeviceOutlet, Devices, LogFull, PendingAppend, WaitingChange};
use platform::entities::Entities;
use platform::ids::{DeviceId, EntityId, EntityType, TenantId, UserId, Uuid};
use platform::model::{ApiKey, AttributeScope, Authority, Issuer, User, UserCredentials};
use platform::{Platform, SocketLimits};
use tokio::sync::Semaphore;
use web::admins::{Admins, RequiredStep};
use web::logins::Logins;
use web::problem::HttpProblem;

use super::audit_log_counts::AuditLogCounts;
use super::console_access;
use super::console_logins::ConsoleLogins;
use super::failure::{ThingsboardError, ThingsboardErrorCode};
use super::grants::Grants;
use super::login_sessions::LoginSessions;
use super::principal::Principal;
use super::quotas::TenantQuotas;
use super::socket::connection_limits::ConnectionLimits;
use super::token::{REFRESH_SCOPE, Signer, TokenClaims, TokenError};

/// Limit of concurrent exports of all tenants.
pub const EXPORTS_MAX: usize = 4;

/// The rest of an operation, which is awaited without a thread.
pub type PendingResult = Pin<Box<dyn Future<Output = Result<(), ThingsboardError>> + Send>>;

/// Access of users to the device platform.
pub struct PlatformAccess {
    devices: Arc<Devices>,
    signer: Signer,
    sessions: LoginSessions,
    console_logins: ConsoleLogins,
    options: AccessOptions,
    docs: OnceLock<Bytes>,
    watchers: Arc<ConnectionLimits>,
    exports: Arc<Semaphore>,
    quotas: Arc<TenantQuotas>,
    audit_counts: AuditLogCounts,
    grants: Grants,
}

/// Settings of logins.
#[derive(Clone, Copy, Debug)]
pub struct AccessOptions {
    /// Time after which a user must log in again, however often the tokens were refreshed.
    pub login_max_age: Duration,
    /// Time for which an activation link is valid.
    pub activation_link_max_age: Duration,
}

impl AccessOptions {
    pub fn activation_link_max_age_ms(&self) -> i64 {
        i64::try_from(self.activation_link_max_age.as_millis()).unwrap_or(i64::MAX)
    }
}

impl Default for AccessOptions {
    fn default() -> AccessOptions {
        AccessOptions {
            login_max_age: Duration::from_secs(30 * 24 * 3600),
            activation_link_max_age: Duration::from_secs(24 * 3600),
        }
    }
}

/// A user whose password was right.
pub struct VerifiedLogin {
    pub principal: Principal,
    /// The stamp of the credentials with which the password was compared. `None`: that of the time at which the tokens
    /// are issued.
    pub stamp: Option<String>,
}

/// An access token and its refresh token.
pub struct TokenPair {
    pub token: String,
    pub refresh_token: String,
}

impl PlatformAccess {
    /// Reads the key of tokens from the data directory, or creates it.
    pub fn open(devices: Arc<Devices>, data_dir: &Path, options: AccessOptions) -> io::Result<PlatformAccess> {
        Ok(PlatformAccess {
            devices,
            signer: Signer::open_or_create(data_dir)?,
            sessions: LoginSessions::default(),
            console_logins: ConsoleLogins::default(),
            options,
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

    pub fn options(&self) -> AccessOptions {
        self.options
    }

    /// Entities that screens may read.
    pub fn grants(&self) -> &Grants {
        &self.grants
    }

    /// Ends tokens with the login to the console from which they come. Without this call, such tokens are not valid.
    pub fn connect_console_logins(&self, logins: Arc<Logins>) {
        self.console_logins.connect(logins);
    }

    pub(crate) fn console_logins(&self) -> &ConsoleLogins {
        &self.console_logins
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

    /// Like [`PlatformAccess::save_attributes`], for callers that wait later.
    pub fn append_attributes(
        &self,
        of: (EntityId, AttributeScope),
        body: &[u8],
        now_ms: i64,
    ) -> Result<WaitingChange, ThingsboardError> {
        self.devices.save_attributes(of, body, now_ms).map_err(full)
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
    /// administrator of the node, who cannot log in here with a second factor.
    pub fn login(
        &self,
        admins: &Admins,
        name: &str,
        password: Password,
    ) -> Result<Option<VerifiedLogin>, ThingsboardError> {
        if name.contains('@') {
            let user = self.entities().login(name, &password)?;
            return Ok(user.map(|user| VerifiedLogin {
                principal: Principal::of(&user),
                stamp: None,
            }));
        }
        let principal = Principal::of_admin(name);
        // Before the check: credentials that change at the same time make the tokens invalid.
        let stamp = self.stamp(admins, &principal)?;
        let is_admin = admins
            .verify(name, password)
            .is_some_and(|role| role.is_admin_of_server());
        if is_admin && admins.has_totp(name) {
            let message = "This administrator has a second factor: log in to the console, or use an API key";
            return Err(ThingsboardError::new(ThingsboardErrorCode::Authentication, message));
        }
        match (is_admin, stamp) {
            (true, None) => Err(ThingsboardError::unauthorized()),
            (true, stamp) => Ok(Some(VerifiedLogin { principal, stamp })),
            (false, _) => Ok(None),
        }
    }

    /// Issues the tokens of a new session after a login.
    pub fn issue_after_login(
        &self,
        admins: &Admins,
        login: VerifiedLogin,
        now_ms: i64,
    ) -> Result<TokenPair, ThingsboardError> {
        let VerifiedLogin { mut principal, stamp } = login;
        if principal.console_login.is_none() {
            principal.console_login = self.console_logins.of_user(principal.id);
        }
        if principal.session.is_empty() {
            principal.session = self.entities().new_id(now_ms).to_string();
        }
        match stamp {
            Some(stamp) => self.issue_with_stamp(&principal, &stamp, now_ms),
            None => self.issue(admins, &principal, now_ms),
        }
    }

    /// Issues the tokens of a new session for an administrator of the node. They end with the user's login to the
    /// console. The caller has authenticated the user.
    pub fn issue_for_administrator(
        &self,
        admins: &Admins,
        (name, console_login): (&str, Arc<str>),
        now_ms: i64,
    ) -> Result<TokenPair, ThingsboardError> {
        let mut principal = Principal::of_admin(name);
        principal.console_login = Some(console_login);
        principal.session = self.entities().new_id(now_ms).to_string();
        self.issue(admins, &principal, now_ms)
    }

    /// Issues tokens of a new or an existing session. An earlier refresh token of the session becomes invalid.
    pub fn issue(&self, admins: &Admins, principal: &Principal, now_ms: i64) -> Result<TokenPair, ThingsboardError> {
        let stamp = self
            .stamp(admins, principal)?
            .ok_or_else(ThingsboardError::unauthorized)?;
        self.issue_with_stamp(principal, &stamp, now_ms)
    }

    fn issue_with_stamp(&self, principal: &Principal, stamp: &str, now_ms: i64) -> Result<TokenPair, ThingsboardError> {
        let (sub, id) = (principal.name.as_str(), principal.id.to_string());
        let claims = |scope| {
            let mut claims = TokenClaims::new(sub, &id, scope, &principal.session, stamp, now_ms);
            claims.login_at = principal.login_at.unwrap_or(claims.iat);
            claims.exp = claims.exp.min(self.login_end_s(claims.login_at));
            claims.console_login = principal.console_login.as_deref().map(str::to_owned);
            claims.issuers.clone_from(&principal.issuers);
            claims
        };
        let access = TokenClaims {
            enabled: Some(true),
            tenant_id: Some(principal.tenant.to_string()),
            customer_id: Some(principal.customer.to_string()),
            ..claims(authority_name(principal.authority))
        };
        let mut refresh = claims(REFRESH_SCOPE);
        let number = random_id()?;
        refresh.jti = Some(number.clone());
        self.sessions
            .issued(&principal.session, number, refresh.exp.saturating_mul(1000), now_ms);
        Ok(TokenPair {
            token: self.signer.sign(&access),
            refresh_token: self.signer.sign(&refresh),
        })
    }

    fn login_end_s(&self, login_at: i64) -> i64 {
        let max_age_s = i64::try_from(self.options.login_max_age.as_secs()).unwrap_or(i64::MAX);
        login_at.saturating_add(max_age_s)
    }

    /// Returns the user of an access token.
    pub fn principal_of_token(&self, admins: &Admins, token: &str, now_ms: i64) -> Result<Principal, ThingsboardError> {
        let claims = self.claims(token, now_ms)?;
        if claims.is_refresh() {
            return Err(ThingsboardError::unauthorized());
        }
        self.principal_of(admins, &claims)
    }

    /// Exchanges a refresh token for new tokens. The refresh token becomes invalid. If it is used twice, it may be
    /// stolen, so the login ends.
    pub fn refresh(&self, admins: &Admins, token: &str, now_ms: i64) -> Result<TokenPair, ThingsboardError> {
        let claims = self.claims(token, now_ms)?;
        if !claims.is_refresh() {
            return Err(ThingsboardError::unauthorized());
        }
        let principal = self.principal_of(admins, &claims)?;
        let number = claims.jti.as_deref().unwrap_or_default();
        let expires_ms = claims.exp.saturating_mul(1000);
        if self
            .sessions
            .use_refresh_token(&claims.session_id, number, expires_ms, now_ms)
        {
            // With the stamp of the used token: if the password has just changed, the new tokens are invalid, too.
            let issued = self.issue_with_stamp(&principal, &claims.stamp, now_ms);
            if issued.is_err() {
                self.sessions
                    .issued(&claims.session_id, number.to_owned(), expires_ms, now_ms);
            }
            return issued;
        }
        tracing::warn!(
            user = %principal.name_with_issuers(),
            "a refresh token was used twice; the login ends, because the token may be stolen"
        );
        Err(ThingsboardError::unauthorized())
    }

    fn claims(&self, token: &str, now_ms: i64) -> Result<TokenClaims, ThingsboardError> {
        let expired = || ThingsboardError::new(ThingsboardErrorCode::TokenExpired, "Token has expired");
        let claims = self.signer.verify(token, now_ms).map_err(|error| match error {
            TokenError::Wrong => ThingsboardError::unauthorized(),
            TokenError::Expired => expired(),
        })?;
        // The option may have changed since the token was signed.
        if self.login_end_s(claims.login_at) <= now_ms.div_euclid(1000) {
            return Err(expired());
        }
        Ok(claims)
    }

    fn principal_of(&self, admins: &Admins, claims: &TokenClaims) -> Result<Principal, ThingsboardError> {
        let console_login = claims.console_login.as_deref();
        let has_logged_out = console_login.is_some_and(|login| !self.console_logins.is_open(login));
        if has_logged_out || self.sessions.has_ended(&claims.session_id) {
            return Err(ThingsboardError::unauthorized());
        }
        let id = Uuid::parse(&claims.user_id).ok_or_else(ThingsboardError::unauthorized)?;
        let mut principal = if id.is_null() {
            Principal::of_admin(&claims.sub)
        } else {
            let user: User = self.entities().find(id)?.ok_or_else(ThingsboardError::unauthorized)?;
            Principal::of(&user)
        };
        principal.issuers.clone_from(&claims.issuers);
        if self.stamp(admins, &principal)?.as_deref() != Some(&claims.stamp) {
            return Err(ThingsboardError::unauthorized());
        }
        principal.session.clone_from(&claims.session_id);
        principal.console_login = console_login.map(Arc::from);
        principal.login_at = Some(claims.login_at);
        Ok(principal)
    }

    /// Changes with the credentials of the user and those of the issuers. `None`: the login is no longer allowed.
    fn stamp(&self, admins: &Admins, principal: &Principal) -> Result<Option<String>, ThingsboardError> {
        let own = match principal.is_node_admin() {
            true => hash_of_admin(admins, &principal.name),
            false => self.hash_of_user(admins, principal.id, &principal.name)?,
        };
        let Some(mut hashes) = own else { return Ok(None) };
        for issuer in &principal.issuers {
            let Some(hash) = self.hash_of_issuer(admins, issuer)? else {
                return Ok(None);
            };
            hashes.push_str(&hash);
        }
        Ok(Some(self.signer.stamp(&hashes)))
    }

    /// If the console has created the user, the result also changes with the administrator's credentials. `None`: the
    /// user is missing or disabled.
    fn hash_of_user(&self, admins: &Admins, id: UserId, email: &str) -> Result<Option<String>, ThingsboardError> {
        let credentials: Option<UserCredentials> = self.entities().find(id.0)?;
        let credentials = credentials.filter(|credentials| credentials.enabled);
        let hash = credentials.and_then(|credentials| credentials.password);
        Ok(match console_access::administrator(email) {
            None => hash,
            Some(name) => hash
                .zip(console_access::credentials_stamps(admins, name))
                .map(|(own, theirs)| own + &theirs),
        })
    }

    fn hash_of_issuer(&self, admins: &Admins, issuer: &Issuer) -> Result<Option<String>, ThingsboardError> {
        match issuer {
            // API keys need no second factor.
            Issuer::NodeAdministrator(name) => {
                Ok(stamp_of_admin(admins, name).filter(|_| admins.required_step(name) != Some(RequiredStep::Password)))
            }
            Issuer::User { id, .. } => match self.entities().find::<User>(id.0)? {
                None => Ok(None),
                Some(user) => self.hash_of_user(admins, *id, &user.email),
            },
        }
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
        let principal = Principal {
            issuers: key.issuers,
            ..Principal::of(&user)
        };
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

    /// Invalidates the tokens of the session.
    pub fn log_out(&self, session: &str, now_ms: i64) {
        let lifetime_ms = super::token::REFRESH_S * 1000;
        self.sessions.end(session, now_ms.saturating_add(lifetime_ms), now_ms);
    }
}

fn random_id() -> Result<String, ThingsboardError> {
    let mut random = [0_u8; 16];
    getrandom::fill(&mut random).map_err(|_| HttpProblem::internal("the system has no random bytes"))?;
    Ok(Base64UrlUnpadded::encode_string(&random))
}

/// `None`: not an administrator of the node, or one with a required step. Another user knows a one-time password.
fn hash_of_admin(admins: &Admins, name: &str) -> Option<String> {
    stamp_of_admin(admins, name).filter(|_| admins.required_step(name).is_none())
}

/// `None`: not an administrator of the node.
fn stamp_of_admin(admins: &Admins, name: &str) -> Option<String> {
    let is_admin = admins.role(name).is_some_and(|role| role.is_admin_of_server());
    admins.credentials_stamp(name).filter(|_| is_admin)
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
    Ok(Box::pin(async { change.done().await.map_err(not_saved) }))
}

/// The attributes were not stored, or not all of them.
pub fn not_saved(error: AttributeChangeError) -> ThingsboardError {
    match error {
        AttributeChangeError::Log(error) => full(error),
        AttributeChangeError::Refused(reason) => ThingsboardError::bad_request(reason),
    }
}

/// The log cannot accept records now.
pub fn full(full: LogFull) -> ThingsboardError {
    ThingsboardError::new(ThingsboardErrorCode::General, full.to_string()).with_status(StatusCode::SERVICE_UNAVAILABLE)
}
