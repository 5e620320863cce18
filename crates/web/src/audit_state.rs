//! The state before and after a change, for the audit log: only the parts that differ, without secrets.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::Value;

use crate::audit_body::redact;

/// Limit of a recorded state, as JSON.
const STATE_BYTES_MAX: usize = 4096;

/// The entity that a request changes.
#[derive(Clone, Debug, Default)]
pub struct ChangeTarget {
    path_parameters: Vec<(String, String)>,
}

impl ChangeTarget {
    pub fn new(path_parameters: Vec<(String, String)>) -> ChangeTarget {
        ChangeTarget { path_parameters }
    }

    /// Returns a decoded parameter of the path.
    pub fn parameter(&self, name: &str) -> &str {
        let found = self.path_parameters.iter().find(|(known, _)| known == name);
        found.map_or("", |(_, value)| value)
    }
}

/// Reads the state of an entity; `None` if it does not exist. May block.
pub type StateReader<S> = fn(&S, &ChangeTarget) -> Option<Value>;

/// A reader with its state.
pub type BoundStateReader = Arc<dyn Fn(&ChangeTarget) -> Option<Value> + Send + Sync>;

/// Returns the parts that differ, without secrets.
pub fn differences(before: Option<Value>, after: Option<Value>) -> (Option<Value>, Option<Value>) {
    let (before, after) = match (before, after) {
        (Some(before), Some(after)) => differing(before, after),
        only_one => only_one,
    };
    (before.map(shown), after.map(shown))
}

/// Returns a value as the audit log may contain it.
pub fn shown(mut value: Value) -> Value {
    redact(&mut value);
    let bytes = value.to_string().len();
    match bytes > STATE_BYTES_MAX {
        true => format!("{bytes} bytes").into(),
        false => value,
    }
}

fn differing(before: Value, after: Value) -> (Option<Value>, Option<Value>) {
    if before == after {
        return (None, None);
    }
    match (before, after) {
        (Value::Object(mut before), Value::Object(mut after)) => {
            let names: BTreeSet<String> = before.keys().chain(after.keys()).cloned().collect();
            for name in names {
                let (old, new) = differences_of_field(before.remove(&name), after.remove(&name));
                old.into_iter().for_each(|old| _ = before.insert(name.clone(), old));
                new.into_iter().for_each(|new| _ = after.insert(name.clone(), new));
            }
            (Some(before.into()), Some(after.into()))
        }
        (Value::Array(before), Value::Array(after)) => {
            let texts = |items: &[Value]| items.iter().map(Value::to_string).collect::<BTreeSet<_>>();
            let (old, new) = (texts(&before), texts(&after));
            if old == new {
                // Only the order has changed.
                return (Some(before.into()), Some(after.into()));
            }
            let without = |items: Vec<Value>, others: &BTreeSet<String>| {
                let own = items.into_iter().filter(|item| !others.contains(&item.to_string()));
                own.collect::<Vec<_>>()
            };
            let (before, after) = (without(before, &new), without(after, &old));
            (not_empty(before), not_empty(after))
        }
        (before, after) => (Some(before), Some(after)),
    }
}

fn differences_of_field(before: Option<Value>, after: Option<Value>) -> (Option<Value>, Option<Value>) {
    match (before, after) {
        (Some(before), Some(after)) => differing(before, after),
        only_one => only_one,
    }
}

fn not_empty(items: Vec<Value>) -> Option<Value> {
    (!items.is_empty()).then(|| items.into())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_differences_are_recorded() {
        let ada = |role: &str| json!({ "name": "ada", "role": role });
        let eve = json!({ "name": "eve", "role": "viewer" });
        for (before, after, expected) in [
            (
                Some(json!({ "a": 1, "b": { "c": 2, "d": 3 } })),
                Some(json!({ "a": 1, "b": { "c": 4, "d": 3 } })),
                json!([{ "b": { "c": 2 } }, { "b": { "c": 4 } }]),
            ),
            (
                Some(json!([eve, ada("viewer")])),
                Some(json!([eve, ada("admin")])),
                json!([[ada("viewer")], [ada("admin")]]),
            ),
            (
                Some(json!([eve])),
                Some(json!([eve, ada("admin")])),
                json!([null, [ada("admin")]]),
            ),
            (Some(json!([1, 2])), Some(json!([2, 1])), json!([[1, 2], [2, 1]])),
            (Some(json!({ "a": 1 })), None, json!([{ "a": 1 }, null])),
            (None, Some(json!({ "a": 1 })), json!([null, { "a": 1 }])),
            (Some(json!({ "a": 1 })), Some(json!({ "a": 1 })), json!([null, null])),
            (
                Some(json!({ "a": 1 })),
                Some(json!({ "b": 1 })),
                json!([{ "a": 1 }, { "b": 1 }]),
            ),
        ] {
            let (before, after) = differences(before, after);
            assert_eq!(json!([before, after]), expected);
        }
    }

    #[test]
    fn secrets_are_hidden_and_long_states_are_shortened() {
        let (before, after) = differences(
            Some(json!({ "password": "sesame", "n": 1 })),
            Some(json!({ "password": "open", "n": 1 })),
        );
        assert_eq!(
            (before, after),
            (Some(json!({ "password": "***" })), Some(json!({ "password": "***" })))
        );
        let long: Vec<String> = (0..1000).map(|n| format!("item {n}")).collect();
        assert_eq!(shown(json!(long)), json!("10891 bytes"));
    }

    #[test]
    fn unknown_parameter_is_empty() {
        let target = ChangeTarget::new(vec![("name".into(), "a/b".into())]);
        assert_eq!((target.parameter("name"), target.parameter("id")), ("a/b", ""));
    }
}
