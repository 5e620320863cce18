//! The node's alarms: what an operator has to do something about, from when it began until it is over. In memory only: what still
//! holds after a restart begins anew.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use schemars::JsonSchema;
use serde::Serialize;

/// Of those that have ended; the oldest go.
pub const ENDED_MAX: usize = 1000;

/// Looks in a row that must not find it any more: what comes and goes is one alarm.
const ENDS_AFTER: u32 = 3;

/// What is wrong at one look.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Condition {
    pub name: String,
    pub message: String,
    pub details: BTreeMap<String, String>,
}

/// One alarm of the node.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Alarm {
    /// What it is about: `journal_full`, `action:http:orders`, …
    pub name: String,
    /// What is wrong, in words; of an active alarm as it is now.
    pub message: String,
    pub details: BTreeMap<String, String>,
    pub activated_at_unix_ms: u64,
    /// `null`: it is active.
    pub deactivated_at_unix_ms: Option<u64>,
}

#[derive(Default)]
pub struct Alarms {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    active: BTreeMap<String, Active>,
    /// The newest last.
    ended: VecDeque<Alarm>,
}

struct Active {
    alarm: Alarm,
    not_found: u32,
}

impl Alarms {
    /// Takes what one look has found. `unsure` names what may hold or not: it neither begins nor ends. Returns what has begun or ended.
    pub fn look(&self, found: Vec<Condition>, unsure: &HashSet<String>, unix_ms: u64) -> Vec<Alarm> {
        let mut state = self.state();
        let mut changed = Vec::new();
        for active in state.active.values_mut() {
            active.not_found += 1;
        }
        for condition in found {
            let alarm = Alarm {
                name: condition.name.clone(),
                message: condition.message,
                details: condition.details,
                activated_at_unix_ms: unix_ms,
                deactivated_at_unix_ms: None,
            };
            let active = state.active.entry(condition.name).or_insert_with(|| {
                changed.push(alarm.clone());
                Active {
                    alarm: alarm.clone(),
                    not_found: 0,
                }
            });
            active.not_found = 0;
            (active.alarm.message, active.alarm.details) = (alarm.message, alarm.details);
        }
        let State { active, ended } = &mut *state;
        active.retain(|name, active| {
            if unsure.contains(name) {
                active.not_found = 0;
            }
            let goes_on = active.not_found < ENDS_AFTER;
            if !goes_on {
                let mut alarm = active.alarm.clone();
                alarm.deactivated_at_unix_ms = Some(unix_ms);
                ended.push_back(alarm.clone());
                changed.push(alarm);
            }
            goes_on
        });
        let too_many = ended.len().saturating_sub(ENDED_MAX);
        ended.drain(..too_many);
        changed
    }

    /// The newest first.
    pub fn active(&self) -> Vec<Alarm> {
        let state = self.state();
        let mut alarms: Vec<Alarm> = state.active.values().map(|active| active.alarm.clone()).collect();
        alarms.sort_by_key(|alarm| std::cmp::Reverse(alarm.activated_at_unix_ms));
        alarms
    }

    pub fn active_count(&self) -> usize {
        self.state().active.len()
    }

    /// The last to end first.
    pub fn ended(&self) -> Vec<Alarm> {
        self.state().ended.iter().rev().cloned().collect()
    }

    /// Returns how many there were.
    pub fn forget_ended(&self) -> usize {
        std::mem::take(&mut self.state().ended).len()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn condition(name: &str, message: &str) -> Condition {
        Condition {
            name: name.into(),
            message: message.into(),
            details: BTreeMap::new(),
        }
    }

    fn names(alarms: &[Alarm]) -> Vec<(&str, bool)> {
        alarms
            .iter()
            .map(|alarm| (alarm.name.as_str(), alarm.deactivated_at_unix_ms.is_none()))
            .collect()
    }

    #[test]
    fn an_alarm_begins_at_once_and_ends_when_it_is_over_for_three_looks() {
        let alarms = Alarms::default();
        let none = HashSet::new();
        let begun = alarms.look(vec![condition("a", "first")], &none, 10);
        assert_eq!(names(&begun), [("a", true)]);
        assert!(alarms.look(vec![condition("a", "second")], &none, 11).is_empty());
        assert_eq!(alarms.active()[0].message, "second");
        assert_eq!(alarms.active()[0].activated_at_unix_ms, 10);
        assert!(alarms.look(Vec::new(), &none, 12).is_empty());
        assert!(alarms.look(Vec::new(), &none, 13).is_empty());
        // It is back before it was over.
        assert!(alarms.look(vec![condition("a", "third")], &none, 14).is_empty());
        assert!(alarms.look(Vec::new(), &none, 15).is_empty());
        assert!(alarms.look(Vec::new(), &none, 16).is_empty());
        let ended = alarms.look(Vec::new(), &none, 17);
        assert_eq!(names(&ended), [("a", false)]);
        assert_eq!(alarms.ended()[0].deactivated_at_unix_ms, Some(17));
        assert!(alarms.active().is_empty());
    }

    #[test]
    fn what_is_not_known_neither_begins_nor_ends_an_alarm() {
        let alarms = Alarms::default();
        let unsure: HashSet<String> = ["a".to_owned(), "b".to_owned()].into();
        alarms.look(vec![condition("a", "")], &HashSet::new(), 0);
        for second in 1..20 {
            assert!(alarms.look(Vec::new(), &unsure, second).is_empty());
        }
        assert_eq!(names(&alarms.active()), [("a", true)]);
    }

    #[test]
    fn the_oldest_that_have_ended_are_forgotten() {
        let alarms = Alarms::default();
        let none = HashSet::new();
        for number in 0..ENDED_MAX as u64 + 5 {
            alarms.look(vec![condition(&number.to_string(), "")], &none, number);
        }
        for _ in 0..ENDS_AFTER {
            alarms.look(Vec::new(), &none, 5000);
        }
        assert_eq!(alarms.ended().len(), ENDED_MAX);
        assert_eq!(alarms.forget_ended(), ENDED_MAX);
        assert!(alarms.ended().is_empty());
    }
}
