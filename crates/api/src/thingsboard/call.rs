//! Who calls, and what they may do with an entity: ThingsBoard's rules for its three authorities.
//!
//! A system administrator has tenants and their administrators, a tenant administrator everything of the tenant, a customer's
//! user what is assigned to the customer. What belongs to another tenant does not exist; what belongs to another customer is
//! refused.

use axum::http::HeaderMap;
use platform::Platform;
use platform::entities::Entities;
use platform::ids::{AlarmId, CustomerId, EntityId, EntityType, TenantId, UserId, Uuid};
use platform::model::{Alarm, Authority, Dashboard, Entity};
use platform::repository::{Record, Selection};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use super::audit_logs::Noted;
use super::failure::{Code, Failure};
use super::screen::{ShownAlarms, names, shown_attributes};
use super::shares::Turn;
use super::world::World;
use crate::app::{App, unix_ms};

/// A user, or an administrator of this node, who is a system administrator of the platform.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Person {
    /// Null for an administrator of the node, who is no user of the platform.
    pub id: UserId,
    pub authority: Authority,
    pub tenant: TenantId,
    pub customer: CustomerId,
    /// An address, or the name of an administrator of the node.
    pub name: String,
    pub session: String,
    /// The administrator of the node who acts as this user.
    pub by: Option<String>,
    /// No person, but a screen with a key for this dashboard.
    pub screen: Option<Uuid>,
}

/// What is done to an entity.
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

/// One request: who, when, and everything it can reach.
pub struct Call {
    pub app: App,
    pub world: Arc<World>,
    pub person: Person,
    pub now_ms: i64,
    /// Where the one who asks has reached this node.
    base_url: String,
    /// What was done, for the audit log.
    noted: Mutex<Vec<Noted>>,
}

impl Call {
    pub fn new(app: &App, person: Person, headers: &HeaderMap) -> Result<Call, Failure> {
        let world = app.world().cloned().ok_or_else(Failure::not_found)?;
        Ok(Call {
            app: app.clone(),
            world,
            person,
            now_ms: now_ms(),
            noted: Mutex::default(),
            base_url: super::users::base_url(headers, app.config().tls.is_some()),
        })
    }

    /// Of the threads that may work for the tenant: to be waited for before, and held during the work.
    pub async fn turn(&self) -> Turn {
        self.world.shares().turn(self.person.tenant).await
    }

    pub fn platform(&self) -> &Platform {
        self.world.platform()
    }

    pub fn entities(&self) -> &Entities {
        self.world.platform().entities()
    }

    pub fn noted(&self) -> MutexGuard<'_, Vec<Noted>> {
        self.noted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Of an entity of the person's tenant, if it is there.
    pub fn name_of(&self, id: EntityId) -> String {
        let record = self.entities().repository().get(id).ok().flatten();
        let record = record.filter(|record| self.is_of_tenant(record));
        record.map_or_else(String::new, |record| record.row.name)
    }

    pub fn base_url(&self) -> &str {
        &self.base_url
    }

    pub fn tenant(&self) -> TenantId {
        self.person.tenant
    }

    /// What lists show to this person: all of the tenant, or of the customer.
    pub fn own(&self) -> Selection {
        Selection {
            tenant: Some(self.person.tenant.0),
            customer: (self.person.authority == Authority::CustomerUser).then_some(self.person.customer.0),
            ..Selection::default()
        }
    }

    /// The entity, if the person may do that to it.
    pub fn entity<E: Entity>(&self, id: Uuid, verb: Verb) -> Result<E, Failure> {
        Ok(self.record(EntityId::new(E::KIND, id), verb)?.read()?)
    }

    pub fn record(&self, id: EntityId, verb: Verb) -> Result<Record, Failure> {
        let record = self.entities().repository().get(id)?.ok_or_else(|| missing(id))?;
        self.check(&record, verb)?;
        Ok(record)
    }

    /// Of any entity that can have telemetry, attributes or relations; alarms are asked for by their originator.
    pub fn check_id(&self, id: EntityId, verb: Verb) -> Result<(), Failure> {
        if id.kind == EntityType::Alarm {
            return self.alarm(AlarmId(id.id), verb).map(drop);
        }
        self.record(id, verb).map(drop)
    }

    pub fn alarm(&self, id: AlarmId, verb: Verb) -> Result<Alarm, Failure> {
        let alarm = self.entities().repository().alarm(id)?;
        let alarm = alarm.filter(|alarm| alarm.tenant_id == self.person.tenant);
        let alarm = alarm.ok_or_else(|| missing(id.entity()))?;
        if self.person.screen.is_some() {
            return Err(Failure::permission());
        }
        match self.person.authority {
            Authority::SysAdmin => Err(Failure::permission()),
            Authority::TenantAdmin => Ok(alarm),
            Authority::CustomerUser => {
                let is_own = alarm.customer_id.unwrap_or_default() == self.person.customer;
                let may = is_own && matches!(verb, Verb::Read | Verb::Write | Verb::Delete);
                if may { Ok(alarm) } else { Err(Failure::permission()) }
            }
        }
    }

    fn check(&self, record: &Record, verb: Verb) -> Result<(), Failure> {
        let id = EntityId::new(record.kind, record.row.id);
        let may = match self.person.authority {
            Authority::SysAdmin => self.admin_may(record),
            _ if !self.is_of_tenant(record) => return Err(missing(id)),
            _ if self.person.screen.is_some() => self.screen_may(record, verb)?,
            Authority::TenantAdmin => tenant_may(record, verb),
            Authority::CustomerUser => self.customer_may(record, verb)?,
        };
        if may { Ok(()) } else { Err(Failure::permission()) }
    }

    fn is_of_tenant(&self, record: &Record) -> bool {
        let tenant = self.person.tenant.0;
        if record.kind == EntityType::Tenant {
            return record.row.id == tenant;
        }
        record.row.tenant == tenant
    }

    /// Users of tenants only as far as they administer them.
    fn admin_may(&self, record: &Record) -> bool {
        match record.kind {
            EntityType::Tenant | EntityType::TenantProfile | EntityType::Queue => true,
            EntityType::User => record.row.customer.is_null(),
            EntityType::ApiKey => record.row.parent == self.person.id.0,
            _ => false,
        }
    }

    fn customer_may(&self, record: &Record, verb: Verb) -> Result<bool, Failure> {
        let is_own = record.row.customer == self.person.customer.0;
        Ok(match record.kind {
            EntityType::Device | EntityType::Asset => {
                is_own && !matches!(verb, Verb::Delete | Verb::Assign | Verb::WriteCredentials)
            }
            EntityType::Customer => record.row.id == self.person.customer.0 && is_reading(verb),
            EntityType::User => {
                is_own && (verb == Verb::Read || (verb == Verb::Write && record.row.id == self.person.id.0))
            }
            EntityType::Dashboard => is_reading(verb) && self.is_shown(&record.read()?),
            EntityType::DeviceProfile | EntityType::AssetProfile => verb == Verb::Read,
            EntityType::ApiKey => record.row.parent == self.person.id.0,
            _ => false,
        })
    }

    /// Its dashboard, and what is on it.
    fn screen_may(&self, record: &Record, verb: Verb) -> Result<bool, Failure> {
        Ok(match record.kind {
            EntityType::Dashboard => self.person.screen == Some(record.row.id) && verb == Verb::Read,
            EntityType::Device | EntityType::Asset => {
                is_reading(verb)
                    && (self.is_granted(record.row.id)
                        || self.screens_dashboard()?.is_some_and(|d| names(&d, record.row.id)))
            }
            _ => false,
        })
    }

    /// A screen sees alarms, of an entity or of all, as far as a widget of its dashboard shows them.
    pub fn check_alarms(&self, of: Option<Uuid>) -> Result<(), Failure> {
        if self.person.screen.is_none() {
            return Ok(());
        }
        let dashboard = self.screens_dashboard()?;
        let shown = dashboard.as_ref().map(ShownAlarms::on).unwrap_or_default();
        let may = of.map_or(shown.has_all, |entity| shown.has(entity));
        if may { Ok(()) } else { Err(Failure::permission()) }
    }

    /// Which of the attributes that are asked for may be shown; `None` is all of them. A screen sees those that its dashboard shows.
    pub fn attributes_shown(&self, asked: Option<Vec<String>>) -> Result<Option<Vec<String>>, Failure> {
        if self.person.screen.is_none() {
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
            true => Err(Failure::permission()),
            false => Ok(Some(shown.into_iter().collect())),
        }
    }

    /// Whether an alias of the screen's dashboard has just stood for it.
    fn is_granted(&self, entity: Uuid) -> bool {
        let screen = self.person.screen;
        screen.is_some_and(|dashboard| self.world.grants().has(dashboard, entity, now_ms()))
    }

    /// For what the server itself looks for in the tenant, on behalf of a screen.
    pub fn of_tenant(&self) -> Call {
        Call {
            app: self.app.clone(),
            world: self.world.clone(),
            person: Person {
                screen: None,
                ..self.person.clone()
            },
            now_ms: self.now_ms,
            base_url: String::new(),
            noted: Mutex::default(),
        }
    }

    fn screens_dashboard(&self) -> Result<Option<Dashboard>, Failure> {
        let Some(id) = self.person.screen else { return Ok(None) };
        Ok(self.entities().find(id)?)
    }

    /// Whether the dashboard is assigned to the person's customer.
    pub fn is_shown(&self, dashboard: &Dashboard) -> bool {
        let customers = dashboard
            .assigned_customers
            .as_ref()
            .and_then(serde_json::Value::as_array);
        let own = self.person.customer.to_string();
        customers.is_some_and(|all| all.iter().any(|customer| customer["customerId"]["id"] == own.as_str()))
    }
}

fn tenant_may(record: &Record, verb: Verb) -> bool {
    record.kind != EntityType::Tenant || !matches!(verb, Verb::Write | Verb::Delete)
}

fn is_reading(verb: Verb) -> bool {
    matches!(verb, Verb::Read | Verb::ReadAttributes | Verb::ReadTelemetry)
}

pub fn missing(id: EntityId) -> Failure {
    let name = id.kind.name().to_lowercase().replace('_', " ");
    let mut letters = name.chars();
    let first = letters
        .next()
        .map(|letter| letter.to_ascii_uppercase())
        .unwrap_or_default();
    Failure::new(
        Code::NotFound,
        format!("{first}{} with id [{}] is not found", letters.as_str(), id.id),
    )
}

pub fn now_ms() -> i64 {
    i64::try_from(unix_ms(SystemTime::now())).unwrap_or(i64::MAX)
}
