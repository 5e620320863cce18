//! The node's alarms: problems that need an operator, with their begin and end. They are only in memory; a problem that
//! persists after a restart begins a new alarm.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use schemars::JsonSchema;
use serde::Serialize;

/// Limit of ended alarms; the oldest are dropped.
pub const ENDED_MAX: usize = 1000;

/// An alarm ends after this many checks in a row without its problem, so that an intermittent problem is one alarm.
const ENDS_AFTER: u32 = 3;

/// A problem that a check found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AlarmCondition {
    pub name: String,
    pub message: String,
    pub details: BTreeMap<String, String>,
}

/// An alarm of the node.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[schemars(rename = "Alarm")]
pub struct NodeAlarm {
    /// Subject of the alarm: `journal_full`, `action:http:orders`, …
    pub name: String,
    /// Description of the problem; for an active alarm, the current one.
    pub message: String,
    pub details: BTreeMap<String, String>,
    pub activated_at_unix_ms: u64,
    /// `null`: the alarm is active.
    pub deactivated_at_unix_ms: Option<u64>,
}

#[derive(Default)]
pub struct Alarms {
    state: Mutex<AlarmsState>,
}

#[derive(Default)]
struct AlarmsState {
    active: BTreeMap<String, ActiveAlarm>,
    /// Oldest first.
    ended: VecDeque<NodeAlarm>,
}

struct ActiveAlarm {
    alarm: NodeAlarm,
    not_found: u32,
}

impl Alarms {
    /// Processes the result of one check, and returns the alarms that began or ended. `unsure` names alarms whose state
    /// is unknown; they neither begin nor end.
    pub fn update(&self, found: Vec<AlarmCondition>, unsure: &HashSet<String>, unix_ms: u64) -> Vec<NodeAlarm> {
        let mut state = self.state();
        let mut changed = Vec::new();
        for active in state.active.values_mut() {
            active.not_found += 1;
        }
        for condition in found {
            let alarm = NodeAlarm {
                name: condition.name.clone(),
                message: condition.message,
                details: condition.details,
                activated_at_unix_ms: unix_ms,
                deactivated_at_unix_ms: None,
            };
            let active = state.active.entry(condition.name).or_insert_with(|| {
                changed.push(alarm.clone());
                ActiveAlarm {
                    alarm: alarm.clone(),
                    not_found: 0,
                }
            });
            active.not_found = 0;
            (active.alarm.message, active.alarm.details) = (alarm.message, alarm.details);
        }
        let AlarmsState { active, ended } = &mut *state;
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

    /// Newest first.
    pub fn active(&self) -> Vec<NodeAlarm> {
        let state = self.state();
        let mut alarms: Vec<NodeAlarm> = state.active.values().map(|active| active.alarm.clone()).collect();
        alarms.sort_by_key(|alarm| std::cmp::Reverse(alarm.activated_at_unix_ms));
        alarms
    }

    pub fn active_count(&self) -> usize {
        self.state().active.len()
    }

    /// Most recently ended first.
    pub fn ended(&self) -> Vec<NodeAlarm> {
        self.state().ended.iter().rev().cloned().collect()
    }

    /// Returns the number of deleted alarms.
    pub fn forget_ended(&self) -> usize {
        std::mem::take(&mut self.state().ended).len()
    }

    fn state(&self) -> MutexGuard<'_, AlarmsState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn condition(name: &str, message: &str) -> AlarmCondition {
        AlarmCondition {
            name: name.into(),
            message: message.into(),
            details: BTreeMap::new(),
        }
    }

    fn names(alarms: &[NodeAlarm]) -> Vec<(&str, bool)> {
        alarms
            .iter()
            .map(|alarm| (alarm.name.as_str(), alarm.deactivated_at_unix_ms.is_none()))
            .collect()
    }

    #[test]
    fn alarm_begins_at_once_and_ends_after_three_checks() {
        let alarms = Alarms::default();
        let none = HashSet::new();
        let begun = alarms.update(vec![condition("a", "first")], &none, 10);
        assert_eq!(names(&begun), [("a", true)]);
        assert!(alarms.update(vec![condition("a", "second")], &none, 11).is_empty());
        assert_eq!(alarms.active()[0].message, "second");
        assert_eq!(alarms.active()[0].activated_at_unix_ms, 10);
        assert!(alarms.update(Vec::new(), &none, 12).is_empty());
        assert!(alarms.update(Vec::new(), &none, 13).is_empty());
        // It returns before the alarm has ended.
        assert!(alarms.update(vec![condition("a", "third")], &none, 14).is_empty());
        assert!(alarms.update(Vec::new(), &none, 15).is_empty());
        assert!(alarms.update(Vec::new(), &none, 16).is_empty());
        let ended = alarms.update(Vec::new(), &none, 17);
        assert_eq!(names(&ended), [("a", false)]);
        assert_eq!(alarms.ended()[0].deactivated_at_unix_ms, Some(17));
        assert!(alarms.active().is_empty());
    }

    #[test]
    fn unknown_state_neither_begins_nor_ends_an_alarm() {
        let alarms = Alarms::default();
        let unsure: HashSet<String> = ["a".to_owned(), "b".to_owned()].into();
        alarms.update(vec![condition("a", "")], &HashSet::new(), 0);
        for second in 1..20 {
            assert!(alarms.update(Vec::new(), &unsure, second).is_empty());
        }
        assert_eq!(names(&alarms.active()), [("a", true)]);
    }

    #[test]
    fn oldest_ended_alarms_are_dropped() {
        let alarms = Alarms::default();
        let none = HashSet::new();
        for number in 0..ENDED_MAX as u64 + 5 {
            alarms.update(vec![condition(&number.to_string(), "")], &none, number);
        }
        for _ in 0..ENDS_AFTER {
            alarms.update(Vec::new(), &none, 5000);
        }
        assert_eq!(alarms.ended().len(), ENDED_MAX);
        assert_eq!(alarms.forget_ended(), ENDED_MAX);
        assert!(alarms.ended().is_empty());
    }
}
