//! The contract of what keeps entities, whatever is below it: what callers may ask and rely on. The embedded one is
//! [`crate::SqliteRepository`]. Nothing here speaks of a query language.
//!
//! # What holds for every repository
//!
//! - [`Repository::apply`] does all changes or none, in their order, and they are durable when it returns.
//! - Whoever reads after `apply` returned sees the changes.
//! - Names are unique per tenant for the kinds of [`has_unique_names`], unique keys per kind, and an originator has one alarm
//!   of a type that is not cleared: a change that would break that is refused as [`RepositoryError::Unique`].
//! - Deleting what is not there is no error.

use std::fmt;
use std::ops::Range;

use serde::de::DeserializeOwned;

use crate::ids::{AlarmId, EntityId, EntityType, Uuid};
use crate::model::{Alarm, AlarmSeverity, AlarmStatus, Attribute, Entity, Relation, RelationGroup, Row, Scope};
use crate::page::{Page, PageLink};

/// An entity as it is stored: what it is found by, and its JSON.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    pub kind: EntityType,
    pub row: Row,
    pub version: i64,
    pub body: String,
}

impl Record {
    pub fn of<E: Entity>(entity: &E, version: i64) -> Result<Record, RepositoryError> {
        Ok(Record {
            kind: E::KIND,
            row: entity.row(),
            version,
            body: serde_json::to_string(entity).map_err(|error| RepositoryError::body(E::KIND, &error))?,
        })
    }

    pub fn read<E: DeserializeOwned>(&self) -> Result<E, RepositoryError> {
        serde_json::from_str(&self.body).map_err(|error| RepositoryError::body(self.kind, &error))
    }
}

/// Whether a tenant cannot have two of them with one name.
pub fn has_unique_names(kind: EntityType) -> bool {
    matches!(
        kind,
        EntityType::Customer
            | EntityType::Asset
            | EntityType::AssetProfile
            | EntityType::Device
            | EntityType::DeviceProfile
            | EntityType::TenantProfile
            | EntityType::Queue
    )
}

#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// Creates or replaces. With a version, only if that is the one that is stored.
    Put {
        record: Record,
        replaces: Option<i64>,
    },
    Delete(EntityId),
    PutRelation(Relation),
    DeleteRelation(Relation),
    /// All that lead from or to it, of all groups.
    DeleteRelationsOf(EntityId),
    PutAttribute {
        entity: Uuid,
        scope: Scope,
        attribute: Attribute,
    },
    DeleteAttribute {
        entity: Uuid,
        scope: Scope,
        key: String,
    },
    DeleteAttributesOf(Uuid),
    /// `propagated_to`: who else shows the alarm, beside its originator.
    PutAlarm {
        alarm: Alarm,
        propagated_to: Vec<Uuid>,
    },
    DeleteAlarm(AlarmId),
    DeleteAlarmsOf(Uuid),
    /// `None` removes it.
    PutState {
        state: StateKind,
        id: Uuid,
        bytes: Option<Vec<u8>>,
    },
    /// A piece of something large, by its number.
    PutPart {
        of: Uuid,
        number: u32,
        bytes: Vec<u8>,
    },
    DeleteParts(Uuid),
}

/// What machines keep between starts, in a form of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum StateKind {
    AlarmRules = 0,
    Activity = 1,
    Usage = 2,
    /// Where the platform is in its log.
    Position = 3,
    /// Messages that failed, and what waits behind them.
    Retry = 4,
    /// Of tenants: which messages met a limit.
    OffTimes = 5,
    // 6 was all bytes of a package of firmware, which are parts now.
    /// What went through a rule node that is debugged.
    NodeEvents = 7,
    /// What happened to an entity beside messages.
    EntityEvents = 8,
    /// Until when and with which secret a device may be claimed.
    Claim = 9,
    /// Of an entity that was deleted: its points and states are to go too.
    Deleted = 10,
    /// Of a device or a profile of devices: its packages were changed, and devices are to be told.
    OtaUntold = 11,
}

/// Which entities; what is `None` does not matter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    pub tenant: Option<Uuid>,
    pub customer: Option<Uuid>,
    pub parent: Option<Uuid>,
    pub subtype: Option<String>,
    /// One of these; any if there are none.
    pub subtypes: Vec<String>,
    /// What the label begins with.
    pub label: Option<String>,
    /// Of the time of creation, in milliseconds.
    pub created: Option<Range<i64>>,
}

/// Which relations; what is `None` does not matter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RelationSelection {
    pub from: Option<EntityId>,
    pub to: Option<EntityId>,
    pub kind: Option<String>,
    pub group: Option<RelationGroup>,
}

/// Which alarms; what is `None` or empty does not matter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AlarmSelection {
    pub tenant: Option<Uuid>,
    pub customer: Option<Uuid>,
    /// The originator, or one that the alarm was propagated to.
    pub entity: Option<Uuid>,
    pub statuses: Vec<AlarmStatus>,
    pub severities: Vec<AlarmSeverity>,
    pub types: Vec<String>,
    pub assignee: Option<Uuid>,
    /// Of the time of creation, in milliseconds.
    pub created: Option<Range<i64>>,
}

pub trait Repository: Send + Sync {
    fn apply(&self, changes: &[Change]) -> Result<(), RepositoryError>;

    fn get(&self, id: EntityId) -> Result<Option<Record>, RepositoryError>;

    fn find_by_key(&self, kind: EntityType, unique_key: &str) -> Result<Option<Record>, RepositoryError>;

    fn find_by_name(&self, kind: EntityType, tenant: Uuid, name: &str) -> Result<Option<Record>, RepositoryError>;

    fn page(&self, kind: EntityType, selection: &Selection, link: &PageLink) -> Result<Page<Record>, RepositoryError>;

    fn count(&self, kind: EntityType, selection: &Selection) -> Result<usize, RepositoryError>;

    /// All of a kind, in the order in which they were created.
    fn for_each(&self, kind: EntityType, visit: &mut dyn FnMut(Record)) -> Result<(), RepositoryError>;

    /// In the order of their types and identifiers.
    fn relations(&self, selection: &RelationSelection) -> Result<Vec<Relation>, RepositoryError>;

    /// In the order of their keys; all without `keys`.
    fn attributes(&self, entity: Uuid, scope: Scope, keys: Option<&[&str]>) -> Result<Vec<Attribute>, RepositoryError>;

    fn alarm(&self, id: AlarmId) -> Result<Option<Alarm>, RepositoryError>;

    /// The one of this type that is not cleared.
    fn active_alarm(&self, originator: Uuid, kind: &str) -> Result<Option<Alarm>, RepositoryError>;

    /// The newest first, unless the link says otherwise.
    /// As [`Repository::alarms`], of these entities, each with the one that shows it: one that several of them show is there for each.
    fn alarms_of(
        &self,
        entities: &[Uuid],
        selection: &AlarmSelection,
        link: &PageLink,
    ) -> Result<Page<(Uuid, Alarm)>, RepositoryError>;

    fn alarms(&self, selection: &AlarmSelection, link: &PageLink) -> Result<Page<Alarm>, RepositoryError>;

    fn alarm_types(&self, tenant: Uuid) -> Result<Vec<String>, RepositoryError>;

    fn state(&self, state: StateKind, id: Uuid) -> Result<Option<Vec<u8>>, RepositoryError>;

    fn for_each_state(&self, state: StateKind, visit: &mut dyn FnMut(Uuid, &[u8])) -> Result<(), RepositoryError>;

    fn part(&self, of: Uuid, number: u32) -> Result<Option<Vec<u8>>, RepositoryError>;
}

/// Which rule a change would have broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unique {
    Name,
    Key,
    ActiveAlarm,
}

#[derive(Debug)]
pub enum RepositoryError {
    Unique {
        kind: EntityType,
        what: Unique,
    },
    /// Somebody else changed it in between.
    Version {
        kind: EntityType,
        id: Uuid,
    },
    /// What is stored is not what was written.
    Body {
        kind: EntityType,
        problem: String,
    },
    /// The database failed; the same call can succeed later.
    Storage {
        doing: &'static str,
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

impl RepositoryError {
    fn body(kind: EntityType, error: &serde_json::Error) -> RepositoryError {
        RepositoryError::Body {
            kind,
            problem: error.to_string(),
        }
    }
}

impl fmt::Display for RepositoryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RepositoryError::Unique { kind, what } => match what {
                Unique::Name => write!(f, "a {kind} with this name exists already"),
                Unique::Key => write!(f, "a {kind} with this key exists already"),
                Unique::ActiveAlarm => f.write_str("the originator has an alarm of this type that is not cleared"),
            },
            RepositoryError::Version { kind, id } => {
                write!(
                    f,
                    "{kind} {id} was changed by somebody else: read it again and repeat the change"
                )
            }
            RepositoryError::Body { kind, problem } => write!(f, "a stored {kind} cannot be read: {problem}"),
            RepositoryError::Storage { doing, .. } => write!(f, "the entity database could not {doing}"),
        }
    }
}

impl std::error::Error for RepositoryError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            RepositoryError::Storage { source, .. } => Some(&**source),
            _ => None,
        }
    }
}
