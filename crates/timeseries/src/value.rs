//! Points: entity, key, time and value. Values have the five types of ThingsBoard.

use std::fmt;

/// A device, asset or other entity with telemetry: 16 bytes, usually a UUID.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TelemetryEntityId(pub [u8; 16]);

impl fmt::Debug for TelemetryEntityId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

/// Retention class of an entity. [`crate::Store::set_ttl`] sets the TTL of each class. Entities start in class 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RetentionClass(pub u8);

/// Position in the caller's log at which a write ends. Increases with every write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct LogPosition(pub u64);

#[derive(Clone, Debug, PartialEq)]
pub enum PointValue {
    Bool(bool),
    Long(i64),
    Double(f64),
    String(Box<str>),
    /// A JSON text, stored unchanged.
    Json(Box<str>),
}

/// A borrowed value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ValueRef<'a> {
    Bool(bool),
    Long(i64),
    Double(f64),
    String(&'a str),
    Json(&'a str),
}

impl PointValue {
    pub fn as_ref(&self) -> ValueRef<'_> {
        match self {
            PointValue::Bool(value) => ValueRef::Bool(*value),
            PointValue::Long(value) => ValueRef::Long(*value),
            PointValue::Double(value) => ValueRef::Double(*value),
            PointValue::String(text) => ValueRef::String(text),
            PointValue::Json(text) => ValueRef::Json(text),
        }
    }

    /// Returns the size of the heap allocation, in bytes.
    pub fn heap_bytes(&self) -> usize {
        match self {
            PointValue::String(text) | PointValue::Json(text) => text.len(),
            _ => 0,
        }
    }
}

impl ValueRef<'_> {
    pub(crate) fn text_bytes(self) -> usize {
        match self {
            ValueRef::String(text) | ValueRef::Json(text) => text.len(),
            _ => 0,
        }
    }

    pub fn to_owned(self) -> PointValue {
        match self {
            ValueRef::Bool(value) => PointValue::Bool(value),
            ValueRef::Long(value) => PointValue::Long(value),
            ValueRef::Double(value) => PointValue::Double(value),
            ValueRef::String(text) => PointValue::String(text.into()),
            ValueRef::Json(text) => PointValue::Json(text.into()),
        }
    }

    pub(crate) fn kind(self) -> PointValueKind {
        match self {
            ValueRef::Bool(_) => PointValueKind::Bool,
            ValueRef::Long(_) => PointValueKind::Long,
            ValueRef::Double(_) => PointValueKind::Double,
            ValueRef::String(_) => PointValueKind::String,
            ValueRef::Json(_) => PointValueKind::Json,
        }
    }
}

/// A point to write.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point<'a> {
    pub entity: TelemetryEntityId,
    pub key: &'a str,
    pub ts_ms: i64,
    pub value: ValueRef<'a>,
    pub destination: PointDestination,
}

/// Which parts of the store receive a point.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PointDestination {
    #[default]
    HistoryAndLatest,
    /// History only. The latest value does not change, even if the point is newer.
    HistoryOnly,
    /// Latest value only, if the point is the newest.
    LatestOnly,
}

/// A point that was read.
#[derive(Clone, Debug, PartialEq)]
pub struct TimedValue {
    pub ts_ms: i64,
    pub value: PointValue,
}

/// Type of a value. The numbers are part of the file format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum PointValueKind {
    Bool = 0,
    Long = 1,
    Double = 2,
    String = 3,
    Json = 4,
}

pub(crate) const KINDS: [PointValueKind; 5] = [
    PointValueKind::Bool,
    PointValueKind::Long,
    PointValueKind::Double,
    PointValueKind::String,
    PointValueKind::Json,
];

impl PointValueKind {
    pub(crate) fn from_tag(tag: u64) -> Option<PointValueKind> {
        KINDS.get(usize::try_from(tag).ok()?).copied()
    }

    pub(crate) fn is_text(self) -> bool {
        matches!(self, PointValueKind::String | PointValueKind::Json)
    }
}
