//! What all operations share: the platform, the key of tokens, the sessions that were logged out. Who a token belongs to is
//! looked up anew each time, so that a change of a user holds at once.

use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use auth::Password;
use axum::body::Bytes;
use axum::http::StatusCode;
use devices::{Devices, Full, Kept, Out, WaitingChange};
use platform::entities::Entities;
use platform::ids::{CustomerId, DeviceId, EntityId, EntityType, TenantId, UserId, Uuid};
use platform::model::{ApiKey, Authority, Scope, User, UserCredentials};
use platform::{Platform, Sockets};

use tokio::sync::Semaphore;

use super::audit_logs::Counts;
use super::call::Person;
use super::export::EXPORTS_MAX;
use super::failure::{Code, Failure};
use super::let_in;
use super::operation::Later;
use super::screen::Grants;
use super::shares::Shares;
use super::socket::Seats;
use super::token::{Claims, REFRESH_SCOPE, Signer, TokenError};
use crate::admins::{Admins, Role};
use crate::guard::KEY_PREFIX;

/// Sessions that were logged out and whose tokens have not expired yet. Beyond them the one that expires first is forgotten.
const LOGGED_OUT_MAX: usize = 100_000;

/// The device platform as its users reach it.
pub struct World {
    devices: Arc<Devices>,
    signer: Signer,
    logged_out: Mutex<HashMap<String, i64>>,
    docs: OnceLock<Bytes>,
    watchers: Arc<Seats>,
    exports: Arc<Semaphore>,
    shares: Arc<Shares>,
    audit_counts: Counts,
    grants: Grants,
}

/// An access token and the token to get the next one with.
pub struct TokenPair {
    pub token: String,
    pub refresh_token: String,
}

impl World {
    /// The key of tokens is kept in the data directory.
    pub fn open(devices: Arc<Devices>, data_dir: &Path) -> io::Result<World> {
        Ok(World {
            devices,
            signer: Signer::open_or_create(data_dir)?,
            logged_out: Mutex::default(),
            docs: OnceLock::new(),
            watchers: Arc::default(),
            exports: Arc::new(Semaphore::new(EXPORTS_MAX)),
            shares: Arc::default(),
            audit_counts: Counts::default(),
            grants: Grants::default(),
        })
    }

    pub fn platform(&self) -> &Platform {
        self.devices.platform()
    }

    /// Of screens.
    pub fn grants(&self) -> &Grants {
        &self.grants
    }

    pub fn devices(&self) -> &Arc<Devices> {
        &self.devices
    }

    /// Where effects of what people do go.
    pub fn outlet(&self) -> Out<'_> {
        self.devices.outlet()
    }

    /// A tenant or a profile of tenants was changed.
    pub fn limits_changed(&self) {
        self.devices.limits_changed();
    }

    /// It was deleted, or has other credentials: whoever is connected as it goes.
    pub fn device_changed(&self, device: DeviceId) {
        self.devices.disconnect(device);
    }

    /// Kept when it is done, stored a moment later.
    pub fn begin_telemetry(&self, entity: EntityId, body: &[u8], ttl_s: u32, now_ms: i64) -> Result<Later, Failure> {
        let kept = self.devices.save_telemetry(entity, body, ttl_s, now_ms);
        let kept = kept.map_err(full)?;
        Ok(Box::pin(async { kept.await.map_err(full) }))
    }

    /// As [`World::begin_telemetry`], for somebody who waits later.
    pub fn keep_telemetry(&self, entity: EntityId, body: &[u8], now_ms: i64) -> Result<Kept, Failure> {
        self.devices.save_telemetry(entity, body, 0, now_ms).map_err(full)
    }

    /// To be read a moment after it is kept.
    pub fn keep_attributes(&self, of: (EntityId, Scope), body: &[u8], now_ms: i64) -> Result<Kept, Failure> {
        let change = self.devices.save_attributes(of, body, now_ms);
        change.map(WaitingChange::kept).map_err(full)
    }

    /// Behind what devices said before, and to be read when it is done.
    pub fn save_attributes(&self, of: (EntityId, Scope), body: &[u8], now_ms: i64) -> Result<Later, Failure> {
        when_done(self.devices.save_attributes(of, body, now_ms))
    }

    pub fn delete_attributes(&self, of: (EntityId, Scope), keys: &[String], now_ms: i64) -> Result<Later, Failure> {
        when_done(self.devices.delete_attributes(of, keys, now_ms))
    }

    /// The OpenAPI document, made once.
    pub fn docs(&self) -> &OnceLock<Bytes> {
        &self.docs
    }

    pub fn audit_counts(&self) -> &Counts {
        &self.audit_counts
    }

    /// Exports at the same time.
    pub fn exports(&self) -> &Arc<Semaphore> {
        &self.exports
    }

    /// What tenants have of all of this.
    pub fn shares(&self) -> &Arc<Shares> {
        &self.shares
    }

    /// As the profile of the person's tenant says.
    pub fn sockets_of(&self, person: &Person) -> Sockets {
        let directory = self.entities().directory();
        directory
            .limits(person.tenant)
            .map(|limits| limits.sockets)
            .unwrap_or_default()
    }

    /// WebSockets at the same time.
    pub fn watchers(&self) -> &Arc<Seats> {
        &self.watchers
    }

    fn entities(&self) -> &Entities {
        self.devices.entities()
    }

    /// Slow. `None`: unknown, disabled or a wrong password. A name without an at sign is that of an administrator of the node.
    pub fn login(&self, admins: &Admins, name: &str, password: Password) -> Result<Option<Person>, Failure> {
        if name.contains('@') {
            return Ok(self.entities().login(name, &password)?.map(|user| Person::of(&user)));
        }
        let role = admins.verify(name, password);
        Ok((role == Some(Role::Admin)).then(|| Person::of_admin(name)))
    }

    /// Of a new session, or of one that goes on.
    pub fn issue(&self, admins: &Admins, person: &Person, now_ms: i64) -> Result<TokenPair, Failure> {
        let stamp = self.stamp(admins, person)?.ok_or_else(Failure::unauthorized)?;
        let (sub, id) = (person.name.as_str(), person.id.to_string());
        let claims = |scope| Claims {
            by: person.by.clone(),
            ..Claims::new(sub, &id, scope, &person.session, &stamp, now_ms)
        };
        let access = Claims {
            enabled: Some(true),
            tenant_id: Some(person.tenant.to_string()),
            customer_id: Some(person.customer.to_string()),
            ..claims(authority_name(person.authority))
        };
        Ok(TokenPair {
            token: self.signer.sign(&access),
            refresh_token: self.signer.sign(&claims(REFRESH_SCOPE)),
        })
    }

    /// The person of an access token.
    pub fn person_of_token(&self, admins: &Admins, token: &str, now_ms: i64) -> Result<Person, Failure> {
        let claims = self.claims(token, now_ms)?;
        if claims.is_refresh() {
            return Err(Failure::unauthorized());
        }
        self.person_of(admins, &claims)
    }

    /// The person of a refresh token.
    pub fn person_of_refresh_token(&self, admins: &Admins, token: &str, now_ms: i64) -> Result<Person, Failure> {
        let claims = self.claims(token, now_ms)?;
        if !claims.is_refresh() {
            return Err(Failure::unauthorized());
        }
        self.person_of(admins, &claims)
    }

    fn claims(&self, token: &str, now_ms: i64) -> Result<Claims, Failure> {
        self.signer.verify(token, now_ms).map_err(|error| match error {
            TokenError::Wrong => Failure::unauthorized(),
            TokenError::Expired => Failure::new(Code::TokenExpired, "Token has expired"),
        })
    }

    fn person_of(&self, admins: &Admins, claims: &Claims) -> Result<Person, Failure> {
        if self.lock().contains_key(&claims.session_id) {
            return Err(Failure::unauthorized());
        }
        let id = Uuid::parse(&claims.user_id).ok_or_else(Failure::unauthorized)?;
        let mut person = if id.is_null() {
            Person::of_admin(&claims.sub)
        } else {
            let user: User = self.entities().find(id)?.ok_or_else(Failure::unauthorized)?;
            Person::of(&user)
        };
        person.by.clone_from(&claims.by);
        if self.stamp(admins, &person)?.as_deref() != Some(&claims.stamp) {
            return Err(Failure::unauthorized());
        }
        person.session.clone_from(&claims.session_id);
        Ok(person)
    }

    /// Changes with the password, and for whom the console has let in, or an administrator of the node acts as, with that of the console; `None`: may not log in any more.
    fn stamp(&self, admins: &Admins, person: &Person) -> Result<Option<String>, Failure> {
        let hash = if person.is_node_admin() {
            hash_of_admin(admins, &person.name)
        } else {
            let credentials: Option<UserCredentials> = self.entities().find(person.id.0)?;
            let credentials = credentials.filter(|credentials| credentials.enabled);
            let hash = credentials.and_then(|credentials| credentials.password);
            match let_in::administrator(&person.name) {
                None => hash,
                Some(name) => hash
                    .zip(let_in::password_hashes(admins, name))
                    .map(|(own, theirs)| own + &theirs),
            }
        };
        let hash = match &person.by {
            None => hash,
            Some(name) => hash.zip(hash_of_admin(admins, name)).map(|(own, theirs)| own + &theirs),
        };
        Ok(hash.map(|hash| self.signer.stamp(&hash)))
    }

    /// The user of an API key that is enabled and has not expired.
    pub fn person_of_key(&self, admins: &Admins, key: &str, now_ms: i64) -> Result<Person, Failure> {
        let key: Option<ApiKey> = self.entities().find_api_key(key)?;
        let key = key
            .filter(|key| key.is_valid(now_ms))
            .ok_or_else(Failure::unauthorized)?;
        let user: User = self.entities().find(key.user_id.0)?.ok_or_else(Failure::unauthorized)?;
        let person = Person::of(&user);
        self.stamp(admins, &person)?.ok_or_else(Failure::unauthorized)?;
        Ok(person)
    }

    /// The person that a screen is, while its dashboard is there.
    pub fn person_of_screen(&self, key: &str, dashboard: Uuid) -> Result<Person, Failure> {
        let tenant = self.tenant_of_dashboard(dashboard)?.ok_or_else(Failure::unauthorized)?;
        Ok(Person::of_screen(key, tenant, dashboard))
    }

    /// `None`: there is no such dashboard.
    pub fn tenant_of_dashboard(&self, dashboard: Uuid) -> Result<Option<TenantId>, Failure> {
        let id = EntityId::new(EntityType::Dashboard, dashboard);
        let record = self.entities().repository().get(id)?;
        Ok(record.map(|record| TenantId(record.row.tenant)))
    }

    /// Its tokens are worth nothing from now on. In memory: a restart forgets it, as ThingsBoard's does.
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

    // Every update leaves the map valid, so a panic elsewhere cannot have broken it.
    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<String, i64>> {
        self.logged_out.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Person {
    pub fn of(user: &User) -> Person {
        Person {
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

    fn of_admin(name: &str) -> Person {
        Person {
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

    /// A screen shows a dashboard of this tenant.
    pub fn of_screen(key: &str, tenant: TenantId, dashboard: Uuid) -> Person {
        Person {
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

/// `None`: nobody who administers the node.
fn hash_of_admin(admins: &Admins, name: &str) -> Option<String> {
    let is_admin = admins.role(name) == Some(Role::Admin);
    // Somebody else knows a one-time password.
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

fn when_done(change: Result<WaitingChange, Full>) -> Result<Later, Failure> {
    let change = change.map_err(full)?;
    Ok(Box::pin(async { change.done().await.map_err(full) }))
}

/// The log takes nothing now.
pub fn full(full: Full) -> Failure {
    Failure::new(Code::General, full.to_string()).with_status(StatusCode::SERVICE_UNAVAILABLE)
}
