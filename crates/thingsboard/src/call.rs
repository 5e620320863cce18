//! The calling user and access checks, with ThingsBoard's rules for its three authorities.
//!
//! A system administrator manages tenants and their administrators. A tenant administrator manages everything of the
//! tenant. A customer user can access entities that are assigned to the customer. Entities of another tenant are
//! reported as missing, entities of another customer as forbidden.

use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use auth::LoginLimiter;
use axum::extract::FromRef;
use axum::http::HeaderMap;
use platform::Platform;
use platform::entities::Entities;
use platform::ids::{AlarmId, EntityId, EntityType, TenantId, Uuid};
use platform::model::{Alarm, Authority, Dashboard, Entity};
use platform::repository::{EntityRecord, Selection};
use serde_json::Value;
use web::admins::Admins;
use web::unix_ms;

use super::dashboard_contents::{ShownAlarms, names, shown_attributes};
use super::failure::{ThingsboardError, ThingsboardErrorCode};
use super::platform_access::PlatformAccess;
use super::principal::Principal;
use super::quotas::QuotaPermit;
use crate::services::{IsHttps, ServerVersion, ServiceState};

/// An operation on an entity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    Read,
    Write,
    Delete,
    Assign,
    ReadCredentials,
    WriteCredentials,
    ReadAttributes,
    WriteAttributes,
    ReadTelemetry,
    WriteTelemetry,
    Rpc,
    Claim,
}

/// Data of an entity that the user may read, besides the entity itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadableData {
    pub has_attributes: bool,
    pub has_telemetry: bool,
}

/// The action as the handler reports it; takes precedence over the action derived from the path.
pub struct AuditAction {
    pub action: &'static str,
    pub entity: EntityId,
    pub name: String,
    pub data: Value,
}

/// The parts of the node that operations use. Makes calls.
#[derive(Clone)]
pub struct CallServices {
    pub platform_access: Arc<PlatformAccess>,
    pub admins: Arc<Admins>,
    /// Limits wrong secrets of claims.
    pub login_limiter: Arc<LoginLimiter>,
    /// Version of the server.
    pub version: Arc<str>,
    is_https: bool,
}

impl FromRef<ServiceState> for CallServices {
    fn from_ref(state: &ServiceState) -> CallServices {
        let (ServerVersion(version), IsHttps(is_https)) = (state.part(), state.part());
        CallServices {
            platform_access: state.part(),
            admins: state.part(),
            login_limiter: state.part(),
            version,
            is_https,
        }
    }
}

impl CallServices {
    pub fn call(&self, principal: Principal, headers: &HeaderMap) -> ApiCall {
        ApiCall {
            services: self.clone(),
            platform_access: self.platform_access.clone(),
            principal,
            address: None,
            now_ms: now_ms(),
            audit_actions: Mutex::default(),
            base_url: base_url(headers, self.is_https),
        }
    }
}

/// A request: its user and time, and the services that it can use.
pub struct ApiCall {
    pub services: CallServices,
    pub platform_access: Arc<PlatformAccess>,
    pub principal: Principal,
    /// Address of the client. `None` for commands on a WebSocket.
    pub address: Option<IpAddr>,
    pub now_ms: i64,
    /// URL under which the client has reached this node.
    base_url: String,
    /// Actions for the audit log.
    audit_actions: Mutex<Vec<AuditAction>>,
}

impl ApiCall {
    /// Waits for one of the threads that may work for the tenant. Held during the work.
    pub async fn wait_for_thread(&self) -> QuotaPermit {
        self.platform_access
            .quotas()
            .wait_for_thread(self.principal.tenant)
            .await
    }

    pub fn platform(&self) -> &Platform {
        self.platform_access.platform()
    }

    pub fn entities(&self) -> &Entities {
        self.platform_access.platform().entities()
    }

    pub fn audit_actions(&self) -> MutexGuard<'_, Vec<AuditAction>> {
        self.audit_actions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the name of an entity of the user's tenant for the audit log, or an empty string. The user may be unable
    /// to read the entity.
    pub fn name_of(&self, id: EntityId) -> String {
        let record = self.entities().repository().get(id).ok().flatten();
        let record = record.filter(|record| self.is_of_tenant(record));
        record.map_or_else(String::new, |record| record.row.name)
    }

    pub fn base_url(&self) -> &str {
        &self.base_url
    }

    pub fn tenant(&self) -> TenantId {
        self.principal.tenant
    }

    /// Selects the entities of the tenant or the customer, for lists.
    pub fn own_entities(&self) -> Selection {
        Selection {
            tenant: Some(self.principal.tenant.0),
            customer: (self.principal.authority == Authority::CustomerUser).then_some(self.principal.customer.0),
            ..Selection::default()
        }
    }

    /// Returns the entity, if the user may perform the operation on it.
    pub fn entity<E: Entity>(&self, id: Uuid, verb: Verb) -> Result<E, ThingsboardError> {
        Ok(self.record(EntityId::new(E::KIND, id), verb)?.read()?)
    }

    pub fn record(&self, id: EntityId, verb: Verb) -> Result<EntityRecord, ThingsboardError> {
        let record = self.entities().repository().get(id)?.ok_or_else(|| missing(id))?;
        self.check(&record, verb)?;
        Ok(record)
    }

    /// Checks access to an entity that can have telemetry, attributes or relations. For alarms, checks the originator.
    pub fn check_id(&self, id: EntityId, verb: Verb) -> Result<(), ThingsboardError> {
        if id.kind == EntityType::Alarm {
            return self.alarm(AlarmId(id.id), verb).map(drop);
        }
        self.record(id, verb).map(drop)
    }

    pub fn alarm(&self, id: AlarmId, verb: Verb) -> Result<Alarm, ThingsboardError> {
        let alarm = self.entities().repository().alarm(id)?;
        let alarm = alarm.filter(|alarm| alarm.tenant_id == self.principal.tenant);
        let alarm = alarm.ok_or_else(|| missing(id.entity()))?;
        if self.principal.screen.is_some() {
            return Err(ThingsboardError::permission());
        }
        match self.principal.authority {
            Authority::SysAdmin => Err(ThingsboardError::permission()),
            Authority::TenantAdmin => Ok(alarm),
            Authority::CustomerUser => {
                let is_own = alarm.customer_id.unwrap_or_default() == self.principal.customer;
                let may = is_own && matches!(verb, Verb::Read | Verb::Write | Verb::Delete);
                if may {
                    Ok(alarm)
                } else {
                    Err(ThingsboardError::permission())
                }
            }
        }
    }

    /// Returns which data of an entity queries and subscriptions may show: what REST requests may read.
    pub fn readable_data(&self, record: &EntityRecord) -> Result<ReadableData, ThingsboardError> {
        Ok(ReadableData {
            has_attributes: self.may(record, Verb::ReadAttributes)?,
            has_telemetry: self.may(record, Verb::ReadTelemetry)?,
        })
    }

    /// Whether the user may perform the operation. Entities of other tenants are inaccessible, too.
    pub fn may(&self, record: &EntityRecord, verb: Verb) -> Result<bool, ThingsboardError> {
        match self.check(record, verb) {
            Ok(()) => Ok(true),
            Err(refused) if refused.hides_entity() => Ok(false),
            Err(other) => Err(other),
        }
    }

    fn check(&self, record: &EntityRecord, verb: Verb) -> Result<(), ThingsboardError> {
        let id = EntityId::new(record.kind, record.row.id);
        let may = match self.principal.authority {
            Authority::SysAdmin => self.admin_can_access(record),
            _ if !self.is_of_tenant(record) => return Err(missing(id)),
            _ if self.principal.screen.is_some() => self.screen_can_access(record, verb)?,
            Authority::TenantAdmin => tenant_can_access(record, verb),
            Authority::CustomerUser => self.customer_can_access(record, verb)?,
        };
        if may {
            Ok(())
        } else {
            Err(ThingsboardError::permission())
        }
    }

    fn is_of_tenant(&self, record: &EntityRecord) -> bool {
        let tenant = self.principal.tenant.0;
        if record.kind == EntityType::Tenant {
            return record.row.id == tenant;
        }
        record.row.tenant == tenant
    }

    /// A system administrator can access users of tenants only if they are tenant administrators.
    fn admin_can_access(&self, record: &EntityRecord) -> bool {
        match record.kind {
            EntityType::Tenant | EntityType::TenantProfile | EntityType::Queue => true,
            EntityType::User => record.row.customer.is_null(),
            EntityType::ApiKey => record.row.parent == self.principal.id.0,
            _ => false,
        }
    }

    fn customer_can_access(&self, record: &EntityRecord, verb: Verb) -> Result<bool, ThingsboardError> {
        let is_own = record.row.customer == self.principal.customer.0;
        Ok(match record.kind {
            EntityType::Device | EntityType::Asset => {
                is_own && !matches!(verb, Verb::Delete | Verb::Assign | Verb::WriteCredentials)
            }
            EntityType::Customer => record.row.id == self.principal.customer.0 && is_reading(verb),
            EntityType::User if record.row.id == self.principal.id.0 => is_reading(verb) || verb == Verb::Write,
            EntityType::User => is_own && verb == Verb::Read,
            EntityType::Dashboard => is_reading(verb) && self.is_shown(&record.read()?),
            EntityType::DeviceProfile | EntityType::AssetProfile => verb == Verb::Read,
            EntityType::ApiKey => record.row.parent == self.principal.id.0,
            _ => false,
        })
    }

    /// A screen can access its dashboard and the entities on it.
    fn screen_can_access(&self, record: &EntityRecord, verb: Verb) -> Result<bool, ThingsboardError> {
        Ok(match record.kind {
            EntityType::Dashboard => self.principal.screen == Some(record.row.id) && verb == Verb::Read,
            EntityType::Device | EntityType::Asset => {
                is_reading(verb)
                    && (self.is_granted(record.row.id)
                        || self.screens_dashboard()?.is_some_and(|d| names(&d, record.row.id)))
            }
            _ => false,
        })
    }

    /// Checks that a widget of the screen's dashboard shows the alarms of an entity, or of all entities.
    pub fn check_alarms(&self, of: Option<Uuid>) -> Result<(), ThingsboardError> {
        if self.principal.screen.is_none() {
            return Ok(());
        }
        let dashboard = self.screens_dashboard()?;
        let shown = dashboard.as_ref().map(ShownAlarms::on).unwrap_or_default();
        let may = of.map_or(shown.has_all, |entity| shown.has(entity));
        if may {
            Ok(())
        } else {
            Err(ThingsboardError::permission())
        }
    }

    /// Returns the requested attributes that may be shown; `None`: all of them. A screen may see those that its
    /// dashboard shows.
    pub fn attributes_shown(&self, asked: Option<Vec<String>>) -> Result<Option<Vec<String>>, ThingsboardError> {
        if self.principal.screen.is_none() {
            return Ok(asked);
        }
        let mut shown = self
            .screens_dashboard()?
            .as_ref()
            .map(shown_attributes)
            .unwrap_or_default();
        if let Some(asked) = asked {
            shown.retain(|key| asked.contains(key));
        }
        match shown.is_empty() {
            true => Err(ThingsboardError::permission()),
            false => Ok(Some(shown.into_iter().collect())),
        }
    }

    /// Whether an alias of the screen's dashboard was recently resolved to this entity.
    fn is_granted(&self, entity: Uuid) -> bool {
        let screen = self.principal.screen;
        screen.is_some_and(|dashboard| self.platform_access.grants().has(dashboard, entity, now_ms()))
    }

    /// A call with the rights of the tenant, for lookups of the server on behalf of a screen.
    pub fn of_tenant(&self) -> ApiCall {
        ApiCall {
            services: self.services.clone(),
            platform_access: self.platform_access.clone(),
            principal: Principal {
                screen: None,
                ..self.principal.clone()
            },
            address: self.address,
            now_ms: self.now_ms,
            base_url: String::new(),
            audit_actions: Mutex::default(),
        }
    }

    fn screens_dashboard(&self) -> Result<Option<Dashboard>, ThingsboardError> {
        let Some(id) = self.principal.screen else {
            return Ok(None);
        };
        Ok(self.entities().find(id)?)
    }

    /// Whether the dashboard is assigned to the user's customer.
    pub fn is_shown(&self, dashboard: &Dashboard) -> bool {
        let customers = dashboard.assigned_customers.as_ref().and_then(Value::as_array);
        let own = self.principal.customer.to_string();
        customers.is_some_and(|all| all.iter().any(|customer| customer["customerId"]["id"] == own.as_str()))
    }
}

/// Returns the URL under which the client has reached this node.
fn base_url(headers: &HeaderMap, is_tls: bool) -> String {
    let host = headers
        .get("host")
        .and_then(|host| host.to_str().ok())
        .unwrap_or("localhost");
    format!("{}://{host}", if is_tls { "https" } else { "http" })
}

fn tenant_can_access(record: &EntityRecord, verb: Verb) -> bool {
    record.kind != EntityType::Tenant || !matches!(verb, Verb::Write | Verb::Delete)
}

fn is_reading(verb: Verb) -> bool {
    matches!(verb, Verb::Read | Verb::ReadAttributes | Verb::ReadTelemetry)
}

pub fn missing(id: EntityId) -> ThingsboardError {
    let name = id.kind.name().to_lowercase().replace('_', " ");
    let mut letters = name.chars();
    let first = letters
        .next()
        .map(|letter| letter.to_ascii_uppercase())
        .unwrap_or_default();
    ThingsboardError::new(
        ThingsboardErrorCode::NotFound,
        format!("{first}{} with id [{}] is not found", letters.as_str(), id.id),
    )
}

pub fn now_ms() -> i64 {
    i64::try_from(unix_ms(SystemTime::now())).unwrap_or(i64::MAX)
}
