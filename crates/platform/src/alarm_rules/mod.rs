//! Alarm rules of device profiles as a state machine: the state of a device and an event go in, the new state and
//! changed alarms come out. Deterministic: it uses no clock and no store.
//!
//! - The create rules of an alarm are evaluated from the worst severity down, and the first match applies. The clear
//!   rule is evaluated only if none matches and an alarm is active.
//! - Rules are evaluated when one of their values arrives, and by a tick for durations.
//! - There is at most one active alarm per device and type. Updates can only raise its severity.

mod definition;
mod filter;
mod machine;
mod predicate;
mod schedule;
#[cfg(test)]
mod tests;

pub use definition::{AlarmRuleError, AlarmRuleKey, AlarmRules, KeySource};
pub use filter::ValueFilter;
pub use machine::{AlarmEffect, AlarmRuleContext, AlarmRuleEvent, AlarmRulesState, AlarmTransition, FiredCondition};
pub use predicate::{DynamicSource, OwnerAttributeSource};
