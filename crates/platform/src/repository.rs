//! The contract of an entity store, independent of its implementation and query language. The embedded implementation
//! is [`crate::SqliteRepository`].
//!
//! # Guarantees of every repository
//!
//! - [`Repository::apply`] applies all changes in order, or none. They are durable when it returns.
//! - A read that begins after `apply` has returned sees the changes.
//! - For the types of [`has_unique_names`], a name is unique within a tenant and type. The unique key of an entity is
//!   unique within its type. An originator has at most one uncleared alarm of each alarm type. A change that violates
//!   this is rejected with [`RepositoryError::UniqueConstraint`].
//! - Deleting a missing entity is not an error.

use std::fmt;
use std::ops::Range;

use serde::de::DeserializeOwned;

use crate::ids::{AlarmId, EntityId, EntityType, Uuid};
use crate::model::{
    Alarm, AlarmSeverity, AlarmStatus, Attribute, AttributeScope, Entity, IndexColumns, Relation, RelationGroup,
};
use crate::page::{PageData, PageLink};

/// A stored entity: its index columns and its JSON.
#[derive(Clone, Debug, PartialEq)]
pub struct EntityRecord {
    pub kind: EntityType,
    pub row: IndexColumns,
    pub version: i64,
    pub body: String,
}

impl EntityRecord {
    pub fn of<E: Entity>(entity: &E, version: i64) -> Result<EntityRecord, RepositoryError> {
        Ok(EntityRecord {
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

/// Whether names of this type are unique within a tenant.
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
pub enum RepositoryChange {
    /// Creates or replaces an entity. If `replaces` has a version, the stored version must be equal.
    Put {
        record: EntityRecord,
        replaces: Option<i64>,
    },
    Delete(EntityId),
    PutRelation(Relation),
    DeleteRelation(Relation),
    /// Deletes all relations from or to the entity, in all groups.
    DeleteRelationsOf(EntityId),
    PutAttribute {
        entity: Uuid,
        scope: AttributeScope,
        attribute: Attribute,
    },
    DeleteAttribute {
        entity: Uuid,
        scope: AttributeScope,
        key: String,
    },
    DeleteAttributesOf(Uuid),
    /// `propagated_to`: entities besides the originator that show the alarm.
    PutAlarm {
        alarm: Alarm,
        propagated_to: Vec<Uuid>,
    },
    DeleteAlarm(AlarmId),
    DeleteAlarmsOf(Uuid),
    /// `None` removes the state.
    PutState {
        state: StateKind,
        id: Uuid,
        bytes: Option<Vec<u8>>,
    },
    /// Stores one part of a large value, such as an OTA package. Parts are numbered from 0.
    PutPart {
        owner: Uuid,
        number: u32,
        bytes: Vec<u8>,
    },
    DeleteParts(Uuid),
}

/// Kinds of state. The component that owns a state defines its format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum StateKind {
    AlarmRules = 0,
    Activity = 1,
    Usage = 2,
    /// The platform's position in its log.
    Position = 3,
    /// Failed messages, and those that wait behind them.
    Retry = 4,
    /// Per tenant: ranges of the log in which a feature was off.
    OffTimes = 5,
    // 6 was used for whole OTA packages, which are now stored in parts. Do not reuse the number.
    /// Debug events of a rule node.
    NodeEvents = 7,
    /// Lifecycle and error events of an entity.
    EntityEvents = 8,
    /// The time and secret with which a device may be claimed.
    Claim = 9,
    /// A deleted entity whose points and states are still to be deleted.
    Deleted = 10,
    /// A device or device profile whose packages changed, and whose devices are still to be notified.
    OtaPending = 11,
}

/// Selects entities. `None` matches all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    pub tenant: Option<Uuid>,
    pub customer: Option<Uuid>,
    pub parent: Option<Uuid>,
    pub subtype: Option<String>,
    /// Any of these; all if empty.
    pub subtypes: Vec<String>,
    /// Prefix of the label.
    pub label: Option<String>,
    /// Range of the creation time, in milliseconds.
    pub created: Option<Range<i64>>,
}

/// Selects relations. `None` matches all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RelationSelection {
    pub from: Option<EntityId>,
    pub to: Option<EntityId>,
    pub kind: Option<String>,
    pub group: Option<RelationGroup>,
}

/// Selects alarms. `None` or empty matches all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AlarmSelection {
    pub tenant: Option<Uuid>,
    pub customer: Option<Uuid>,
    /// The originator, or an entity to which the alarm was propagated.
    pub entity: Option<Uuid>,
    pub statuses: Vec<AlarmStatus>,
    pub severities: Vec<AlarmSeverity>,
    pub types: Vec<String>,
    pub assignee: Option<Uuid>,
    /// Range of the creation time, in milliseconds.
    pub created: Option<Range<i64>>,
}

pub trait Repository: Send + Sync {
    fn apply(&self, changes: &[RepositoryChange]) -> Result<(), RepositoryError>;

    /// Shortens the write-ahead log, if the repository has one. Part of regular maintenance and of a clean stop.
    fn checkpoint(&self) -> Result<(), RepositoryError> {
        Ok(())
    }

    /// Returns the error of the last change if the database could not store it, with the file.
    fn write_failure(&self) -> Option<String> {
        None
    }

    fn get(&self, id: EntityId) -> Result<Option<EntityRecord>, RepositoryError>;

    fn find_by_key(&self, kind: EntityType, unique_key: &str) -> Result<Option<EntityRecord>, RepositoryError>;

    fn find_by_name(&self, kind: EntityType, tenant: Uuid, name: &str)
    -> Result<Option<EntityRecord>, RepositoryError>;

    fn page(
        &self,
        kind: EntityType,
        selection: &Selection,
        link: &PageLink,
    ) -> Result<PageData<EntityRecord>, RepositoryError>;

    fn count(&self, kind: EntityType, selection: &Selection) -> Result<usize, RepositoryError>;

    /// Visits all entities of a type in the order of creation.
    fn for_each(&self, kind: EntityType, visit: &mut dyn FnMut(EntityRecord)) -> Result<(), RepositoryError>;

    /// Returns relations in the order of their types and identifiers.
    fn relations(&self, selection: &RelationSelection) -> Result<Vec<Relation>, RepositoryError>;

    /// Returns attributes in the order of their keys. Returns all attributes if `keys` is `None`.
    fn attributes(
        &self,
        entity: Uuid,
        scope: AttributeScope,
        keys: Option<&[&str]>,
    ) -> Result<Vec<Attribute>, RepositoryError>;

    /// Number of an entity's attributes in all scopes.
    fn attribute_count(&self, entity: Uuid) -> Result<usize, RepositoryError>;

    fn alarm(&self, id: AlarmId) -> Result<Option<Alarm>, RepositoryError>;

    /// Returns the alarm of this type that is not cleared, if any.
    fn active_alarm(&self, originator: Uuid, kind: &str) -> Result<Option<Alarm>, RepositoryError>;

    /// As [`Repository::alarms`], for several entities. Returns each alarm with the entity that shows it; an alarm
    /// shown by several entities is returned for each.
    fn alarms_of(
        &self,
        entities: &[Uuid],
        selection: &AlarmSelection,
        link: &PageLink,
    ) -> Result<PageData<(Uuid, Alarm)>, RepositoryError>;

    /// Returns the newest first, unless the link specifies an order.
    fn alarms(&self, selection: &AlarmSelection, link: &PageLink) -> Result<PageData<Alarm>, RepositoryError>;

    fn alarm_types(&self, tenant: Uuid) -> Result<Vec<String>, RepositoryError>;

    fn state(&self, state: StateKind, id: Uuid) -> Result<Option<Vec<u8>>, RepositoryError>;

    fn for_each_state(&self, state: StateKind, visit: &mut dyn FnMut(Uuid, &[u8])) -> Result<(), RepositoryError>;

    fn part(&self, of: Uuid, number: u32) -> Result<Option<Vec<u8>>, RepositoryError>;
}

/// The constraint that a change would violate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UniqueConstraint {
    Name,
    Key,
    ActiveAlarm,
}

#[derive(Debug)]
pub enum RepositoryError {
    Unique {
        kind: EntityType,
        constraint: UniqueConstraint,
    },
    /// A concurrent change was applied first.
    Version { kind: EntityType, id: Uuid },
    /// The stored value cannot be decoded.
    Body { kind: EntityType, problem: String },
    /// The database failed. A retry may succeed.
    Storage {
        operation: &'static str,
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

impl RepositoryError {
    pub(crate) fn body(kind: EntityType, error: &serde_json::Error) -> RepositoryError {
        RepositoryError::Body {
            kind,
            problem: input_errors::plain(error),
        }
    }
}

impl fmt::Display for RepositoryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RepositoryError::Unique { kind, constraint: what } => match what {
                UniqueConstraint::Name => write!(f, "a {kind} with this name exists already"),
                UniqueConstraint::Key => write!(f, "a {kind} with this key exists already"),
                UniqueConstraint::ActiveAlarm => {
                    f.write_str("the originator already has an alarm of this type that is not cleared")
                }
            },
            RepositoryError::Version { kind, id } => {
                write!(
                    f,
                    "{kind} {id} was changed concurrently: read it again and repeat the change"
                )
            }
            RepositoryError::Body { kind, problem } => write!(f, "cannot decode a stored {kind}: {problem}"),
            RepositoryError::Storage { operation: doing, .. } => write!(f, "the entity database failed to {doing}"),
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
