//! `Value`: what expressions work on, and `Map`, what a rule puts out.
//!
//! `Undefined` (there is no such field) and `Null` (JSON's null) are two things, as in EMQX. Integers have 128 bits where
//! EMQX has as many as memory: what does not fit is an error, never a wrong number. Floats are always finite.
//!
//! Two kinds of equality: `==` of this type is exact (`1` is not `1.0`; `IN`, `CASE x WHEN`, `contains`), `loosely_equal` and
//! `order` compare numbers by value and everything with everything (`=`, `<`).

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

/// Ordered by key, so that the same content is the same JSON; shared until it is changed. An empty one has no memory.
#[derive(Clone, Default)]
pub struct Map(Option<Arc<Vec<(Text, Value)>>>);

impl Map {
    pub fn new() -> Map {
        Map::default()
    }

    pub fn with_capacity(entries: usize) -> Map {
        Map(Some(Arc::new(Vec::with_capacity(entries))))
    }

    /// In whatever order; of entries with the same key the last one stays.
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

    pub(crate) fn remove(&mut self, key: &[u8]) {
        let entries = self.entries();
        if let Ok(index) = entries.binary_search_by(|entry| entry.0.as_bytes().cmp(key)) {
            self.entries_mut().remove(index);
        }
    }

    /// The value to change in place; `Undefined` is put there when there is none.
    pub(crate) fn entry(&mut self, key: &Text) -> &mut Value {
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

    /// The type as error messages name it.
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

    /// How much memory the value holds, roughly: what limits count.
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

    /// How many values there are, if they nest so deep at most: what walks a value uses the stack.
    pub(crate) fn count_within(&self, levels: usize) -> Option<u64> {
        let inner = |count: u64, value: &Value| Some(count + value.count_within(levels.checked_sub(1)?)?);
        match self {
            Value::Array(values) => values.iter().try_fold(1, inner),
            Value::Map(map) => map.iter().try_fold(1, |count, (_, value)| inner(count, value)),
            _ => Some(1),
        }
    }

    pub fn loosely_equal(&self, other: &Value) -> bool {
        self.order(other) == Ordering::Equal
    }

    /// EMQX's order of all values: numbers, then null, booleans and undefined by their names, maps, arrays, strings.
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

    /// The name of a value that EMQX keeps as an atom.
    pub(crate) fn word(&self) -> Option<&'static str> {
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
