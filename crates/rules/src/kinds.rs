//! Sets of types: the possible types of an expression before a message is evaluated.

use std::fmt;
use std::ops::BitOr;

use rule_values::Value;

/// The types that a value can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kinds(u8);

impl Kinds {
    pub const UNDEFINED: Kinds = Kinds(1);
    pub const NULL: Kinds = Kinds(2);
    pub const BOOL: Kinds = Kinds(4);
    pub const INT: Kinds = Kinds(8);
    pub const FLOAT: Kinds = Kinds(16);
    pub const TEXT: Kinds = Kinds(32);
    pub const ARRAY: Kinds = Kinds(64);
    pub const MAP: Kinds = Kinds(128);
    pub const NUMBER: Kinds = Kinds(8 | 16);
    /// Accepted by string functions. `true` and `false` count as texts.
    pub const TEXTUAL: Kinds = Kinds(32 | 4);
    pub const TEXT_OR_INT: Kinds = Kinds(32 | 8);
    pub const TEXT_OR_ARRAY: Kinds = Kinds(32 | 64);
    pub const TEXT_OR_MAP: Kinds = Kinds(32 | 128);
    /// Accepted by `int`, `float` and `bool`.
    pub const SCALAR: Kinds = Kinds(4 | 8 | 16 | 32);
    pub const ANY: Kinds = Kinds(255);

    pub const fn or(self, other: Kinds) -> Kinds {
        Kinds(self.0 | other.0)
    }

    pub fn of(value: &Value) -> Kinds {
        match value {
            Value::Undefined => Kinds::UNDEFINED,
            Value::Null => Kinds::NULL,
            Value::Bool(_) => Kinds::BOOL,
            Value::Int(_) => Kinds::INT,
            Value::Float(_) => Kinds::FLOAT,
            Value::Text(_) => Kinds::TEXT,
            Value::Array(_) => Kinds::ARRAY,
            Value::Map(_) => Kinds::MAP,
        }
    }

    /// Returns whether both sets have a type in common.
    pub fn overlaps(self, other: Kinds) -> bool {
        self.0 & other.0 != 0
    }
}

impl BitOr for Kinds {
    type Output = Kinds;

    fn bitor(self, other: Kinds) -> Kinds {
        self.or(other)
    }
}

impl fmt::Display for Kinds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Kinds::ANY {
            return f.write_str("any value");
        }
        let names = [
            (Kinds::NUMBER, "a number"),
            (Kinds::INT, "an integer"),
            (Kinds::FLOAT, "a float"),
            (Kinds::TEXT, "a string"),
            (Kinds::BOOL, "a boolean"),
            (Kinds::ARRAY, "an array"),
            (Kinds::MAP, "a map"),
            (Kinds::NULL, "null"),
            (Kinds::UNDEFINED, "undefined"),
        ];
        let mut rest = *self;
        let mut separator = "";
        for (kinds, name) in names {
            if rest.0 & kinds.0 == kinds.0 {
                write!(f, "{separator}{name}")?;
                separator = " or ";
                rest.0 &= !kinds.0;
            }
        }
        Ok(())
    }
}
