//! Points: whose, which key, when, what. Values have the five types that ThingsBoard has.

use std::fmt;

/// A device, asset or whatever has telemetry: 16 bytes, as a rule a UUID.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EntityId(pub [u8; 16]);

impl fmt::Debug for EntityId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

/// How long points of an entity are kept is said per class ([`crate::Store::set_ttl`]); every entity begins in class 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Class(pub u8);

/// Where in the caller's log a write ends. Grows with every write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position(pub u64);

#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    Bool(bool),
    Long(i64),
    Double(f64),
    String(Box<str>),
    /// A JSON text, kept as it came.
    Json(Box<str>),
}

/// A value that lies elsewhere.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ValueRef<'a> {
    Bool(bool),
    Long(i64),
    Double(f64),
    String(&'a str),
    Json(&'a str),
}

impl Value {
    pub fn as_ref(&self) -> ValueRef<'_> {
        match self {
            Value::Bool(value) => ValueRef::Bool(*value),
            Value::Long(value) => ValueRef::Long(*value),
            Value::Double(value) => ValueRef::Double(*value),
            Value::String(text) => ValueRef::String(text),
            Value::Json(text) => ValueRef::Json(text),
        }
    }

    /// Bytes on the heap.
    pub fn heap_bytes(&self) -> usize {
        match self {
            Value::String(text) | Value::Json(text) => text.len(),
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

    pub fn to_owned(self) -> Value {
        match self {
            ValueRef::Bool(value) => Value::Bool(value),
            ValueRef::Long(value) => Value::Long(value),
            ValueRef::Double(value) => Value::Double(value),
            ValueRef::String(text) => Value::String(text.into()),
            ValueRef::Json(text) => Value::Json(text.into()),
        }
    }

    pub(crate) fn kind(self) -> Kind {
        match self {
            ValueRef::Bool(_) => Kind::Bool,
            ValueRef::Long(_) => Kind::Long,
            ValueRef::Double(_) => Kind::Double,
            ValueRef::String(_) => Kind::String,
            ValueRef::Json(_) => Kind::Json,
        }
    }
}

/// What is written.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point<'a> {
    pub entity: EntityId,
    pub key: &'a str,
    pub ts_ms: i64,
    pub value: ValueRef<'a>,
    pub kept: Kept,
}

/// Where a point is kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kept {
    #[default]
    Everywhere,
    /// Not as the latest value, however new it is.
    InHistory,
    /// As the latest value only, if it is the newest.
    AsLatest,
}

/// What is read.
#[derive(Clone, Debug, PartialEq)]
pub struct TimedValue {
    pub ts_ms: i64,
    pub value: Value,
}

/// The type of a value; the numbers are on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    Bool = 0,
    Long = 1,
    Double = 2,
    String = 3,
    Json = 4,
}

pub(crate) const KINDS: [Kind; 5] = [Kind::Bool, Kind::Long, Kind::Double, Kind::String, Kind::Json];

impl Kind {
    pub(crate) fn from_tag(tag: u64) -> Option<Kind> {
        KINDS.get(usize::try_from(tag).ok()?).copied()
    }

    pub(crate) fn is_text(self) -> bool {
        matches!(self, Kind::String | Kind::Json)
    }
}
