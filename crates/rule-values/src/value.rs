//! `Value`: the value of an expression. `Map`: the output of a rule.
//!
//! As in EMQX, `Undefined` (the field does not exist) and `Null` (null in JSON) are different. Integers have 128 bits;
//! in EMQX they are unlimited. A result that does not fit is an error, never a wrong number. Floats are always finite.
//!
//! There are two kinds of equality: `==` of this type is exact (`1` is not `1.0`; used for `IN`, `CASE x WHEN` and
//! `contains`). `loosely_equal` and `order` compare numbers by value, and values of any types (used for `=` and `<`).

use std::cmp::Ordering;
use std::fmt;
use std::sync::Arc;

use crate::text::Text;

#[derive(Clone, Debug, Default, PartialEq)]
pub enum Value {
    #[default]
    Undefined,
    Null,
    Bool(bool),
    Int(i128),
    Float(f64),
    Text(Text),
    Array(Arc<Vec<Value>>),
    Map(Map),
}

/// The reason why walking a value ended early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WalkError {
    TooDeep,
    TooLarge,
}

/// Entries are ordered by key, so that equal content gives equal JSON. Clones share the memory until one is changed. An
/// empty map uses no memory.
#[derive(Clone, Default)]
pub struct Map(Option<Arc<Vec<(Text, Value)>>>);

impl Map {
    pub fn new() -> Map {
        Map::default()
    }

    pub fn with_capacity(entries: usize) -> Map {
        Map(Some(Arc::new(Vec::with_capacity(entries))))
    }

    /// The entries can be in any order. Of entries with the same key, the last one remains.
    pub fn from_entries(mut entries: Vec<(Text, Value)>) -> Map {
        if !entries.is_sorted_by(|a, b| a.0 < b.0) {
            entries.reverse();
            entries.sort_by(|a, b| a.0.cmp(&b.0));
            entries.dedup_by(|later, earlier| later.0 == earlier.0);
        }
        Map(Some(Arc::new(entries)))
    }

    fn entries(&self) -> &[(Text, Value)] {
        self.0.as_ref().map_or(&[], |entries| entries.as_slice())
    }

    fn entries_mut(&mut self) -> &mut Vec<(Text, Value)> {
        Arc::make_mut(self.0.get_or_insert_default())
    }

    pub fn len(&self) -> usize {
        self.entries().len()
    }

    pub fn is_empty(&self) -> bool {
        self.entries().is_empty()
    }

    pub fn get(&self, key: &[u8]) -> Option<&Value> {
        let entries = self.entries();
        let index = entries.binary_search_by(|entry| entry.0.as_bytes().cmp(key)).ok()?;
        Some(&entries[index].1)
    }

    pub fn insert(&mut self, key: Text, value: Value) {
        let entries = self.entries_mut();
        match entries.binary_search_by(|entry| entry.0.cmp(&key)) {
            Ok(index) => entries[index].1 = value,
            Err(index) => entries.insert(index, (key, value)),
        }
    }

    /// Returns the number of entries after the removed one.
    pub fn remove(&mut self, key: &[u8]) -> usize {
        let entries = self.entries();
        let Ok(index) = entries.binary_search_by(|entry| entry.0.as_bytes().cmp(key)) else {
            return 0;
        };
        self.entries_mut().remove(index);
        self.len() - index
    }

    /// Returns whether a change would copy the map.
    pub fn is_shared(&self) -> bool {
        self.0.as_ref().is_some_and(|entries| Arc::strong_count(entries) > 1)
    }

    /// Merges two maps in one pass. If both contain a key, `both` combines the two values.
    pub fn merged<E>(self, other: &Map, mut both: impl FnMut(Value, &Value) -> Result<Value, E>) -> Result<Map, E> {
        let entries = self.0.map(Arc::unwrap_or_clone).unwrap_or_default();
        let mut merged = Vec::with_capacity(entries.len() + other.len());
        let mut others = other.iter().peekable();
        for (key, value) in entries {
            while let Some((other_key, other)) = others.next_if(|other| *other.0 < key) {
                merged.push((other_key.clone(), other.clone()));
            }
            let value = match others.next_if(|other| *other.0 == key) {
                Some((_, other)) => both(value, other)?,
                None => value,
            };
            merged.push((key, value));
        }
        merged.extend(others.map(|(key, value)| (key.clone(), value.clone())));
        Ok(Map(Some(Arc::new(merged))))
    }

    /// Returns the value for changes. Inserts `Undefined` if the key is missing.
    pub fn entry(&mut self, key: &Text) -> &mut Value {
        let entries = self.entries_mut();
        let index = match entries.binary_search_by(|entry| entry.0.cmp(key)) {
            Ok(index) => index,
            Err(index) => {
                entries.insert(index, (key.clone(), Value::Undefined));
                index
            }
        };
        &mut entries[index].1
    }

    /// `Value::take_size` for all entries.
    pub fn take_size(&self, left: &mut usize) -> Option<()> {
        self.iter().try_for_each(|(key, value)| {
            *left = left.checked_sub(24 + key.len())?;
            value.take_size(left)
        })
    }

    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&Text, &Value)> {
        self.entries().iter().map(|(key, value)| (key, value))
    }
}

impl PartialEq for Map {
    fn eq(&self, other: &Map) -> bool {
        self.entries() == other.entries()
    }
}

impl fmt::Debug for Map {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

impl FromIterator<(Text, Value)> for Map {
    fn from_iter<I: IntoIterator<Item = (Text, Value)>>(entries: I) -> Map {
        Map::from_entries(entries.into_iter().collect())
    }
}

impl Value {
    pub fn text(text: impl Into<Text>) -> Value {
        Value::Text(text.into())
    }

    pub fn array(values: Vec<Value>) -> Value {
        Value::Array(Arc::new(values))
    }

    pub fn as_bytes(&self) -> Option<&[u8]> {
        match self {
            Value::Text(text) => Some(text.as_bytes()),
            _ => None,
        }
    }

    pub fn as_str(&self) -> Option<&str> {
        match self {
            Value::Text(text) => text.as_str(),
            _ => None,
        }
    }

    /// Returns the name of the type for error messages.
    pub fn type_name(&self) -> &'static str {
        match self {
            Value::Undefined => "undefined",
            Value::Null => "null",
            Value::Bool(_) => "a boolean",
            Value::Int(_) => "an integer",
            Value::Float(_) => "a float",
            Value::Text(_) => "a string",
            Value::Array(_) => "an array",
            Value::Map(_) => "a map",
        }
    }

    /// Returns roughly how many bytes of memory the value uses. Limits count this size.
    pub fn size(&self) -> usize {
        match self {
            Value::Text(text) => 32 + text.len(),
            Value::Array(values) => 32 + values.iter().map(Value::size).sum::<usize>(),
            Value::Map(map) => {
                32 + map
                    .iter()
                    .map(|(key, value)| 24 + key.len() + value.size())
                    .sum::<usize>()
            }
            _ => 32,
        }
    }

    /// Walks the value. Arrays and maps may nest at most `levels` deep, because walking uses the stack. Subtracts the
    /// cost of writing the value as text from `left`, in units of about 5 ns. A shared value counts once per
    /// occurrence, which can be very often.
    pub fn walk(&self, levels: usize, left: &mut u64) -> Result<(), WalkError> {
        // Writing a float takes far longer than writing any other value.
        let cost = match self {
            Value::Undefined | Value::Null | Value::Bool(_) => 1,
            Value::Int(_) | Value::Array(_) | Value::Map(_) => 2,
            Value::Float(_) => 16,
            Value::Text(text) => 2 + text.len() as u64 / 4,
        };
        *left = left.checked_sub(cost).ok_or(WalkError::TooLarge)?;
        let inner = || levels.checked_sub(1).ok_or(WalkError::TooDeep);
        match self {
            Value::Array(values) => values.iter().try_for_each(|value| value.walk(inner()?, left)),
            Value::Map(map) => map.iter().try_for_each(|(key, value)| {
                *left = left.checked_sub(1 + key.len() as u64 / 16).ok_or(WalkError::TooLarge)?;
                value.walk(inner()?, left)
            }),
            _ => Ok(()),
        }
    }

    /// Subtracts the size of the value from `left`, or returns `None` if less remains. Shared values count once per
    /// occurrence.
    pub fn take_size(&self, left: &mut usize) -> Option<()> {
        let own = 32 + self.as_bytes().map_or(0, <[u8]>::len);
        *left = left.checked_sub(own)?;
        match self {
            Value::Array(values) => values.iter().try_for_each(|value| value.take_size(left)),
            Value::Map(map) => map.take_size(left),
            _ => Some(()),
        }
    }

    pub fn loosely_equal(&self, other: &Value) -> bool {
        self.order(other) == Ordering::Equal
    }

    /// The order of EMQX for all values: numbers, then null, booleans and undefined by their names, maps, arrays,
    /// strings.
    pub fn order(&self, other: &Value) -> Ordering {
        match (self, other) {
            (Value::Int(a), Value::Int(b)) => a.cmp(b),
            (Value::Float(a), Value::Float(b)) => order_floats(*a, *b),
            (Value::Int(a), Value::Float(b)) => order_int_float(*a, *b),
            (Value::Float(a), Value::Int(b)) => order_int_float(*b, *a).reverse(),
            (Value::Text(a), Value::Text(b)) => a.cmp(b),
            (Value::Array(a), Value::Array(b)) => order_all(a.iter().zip(b.iter())).then(a.len().cmp(&b.len())),
            (Value::Map(a), Value::Map(b)) => order_maps(a, b),
            _ => match (self.word(), other.word()) {
                (Some(a), Some(b)) => a.cmp(b),
                _ => self.rank().cmp(&other.rank()),
            },
        }
    }

    /// Returns the name of a value that is an atom in EMQX.
    pub fn word(&self) -> Option<&'static str> {
        match self {
            Value::Undefined => Some("undefined"),
            Value::Null => Some("null"),
            Value::Bool(true) => Some("true"),
            Value::Bool(false) => Some("false"),
            _ => None,
        }
    }

    fn rank(&self) -> u8 {
        match self {
            Value::Int(_) | Value::Float(_) => 0,
            Value::Undefined | Value::Null | Value::Bool(_) => 1,
            Value::Map(_) => 2,
            Value::Array(_) => 3,
            Value::Text(_) => 4,
        }
    }
}

fn order_floats(a: f64, b: f64) -> Ordering {
    a.partial_cmp(&b).unwrap_or(Ordering::Equal)
}

fn order_int_float(int: i128, float: f64) -> Ordering {
    const TWO_POW_127: f64 = 170_141_183_460_469_231_731_687_303_715_884_105_728.0;
    if float >= TWO_POW_127 {
        return Ordering::Less;
    }
    if float < -TWO_POW_127 {
        return Ordering::Greater;
    }
    let whole = float.trunc();
    int.cmp(&(whole as i128)).then(order_floats(0.0, float - whole))
}

fn order_all<'a>(mut pairs: impl Iterator<Item = (&'a Value, &'a Value)>) -> Ordering {
    pairs
        .find_map(|(a, b)| Some(a.order(b)).filter(|order| order.is_ne()))
        .unwrap_or(Ordering::Equal)
}

fn order_maps(a: &Map, b: &Map) -> Ordering {
    let keys = a.iter().map(|entry| entry.0).cmp(b.iter().map(|entry| entry.0));
    let values = a.iter().map(|entry| entry.1).zip(b.iter().map(|entry| entry.1));
    a.len().cmp(&b.len()).then(keys).then_with(|| order_all(values))
}

impl From<bool> for Value {
    fn from(value: bool) -> Value {
        Value::Bool(value)
    }
}

impl From<i64> for Value {
    fn from(value: i64) -> Value {
        Value::Int(value.into())
    }
}

impl From<u64> for Value {
    fn from(value: u64) -> Value {
        Value::Int(value.into())
    }
}

impl From<&str> for Value {
    fn from(value: &str) -> Value {
        Value::Text(value.into())
    }
}

impl From<String> for Value {
    fn from(value: String) -> Value {
        Value::Text(value.into())
    }
}
