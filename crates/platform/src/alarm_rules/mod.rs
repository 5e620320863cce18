//! Alarm rules of device profiles as a machine: what is known of a device and an event at a time go in, the new state and
//! what becomes of alarms come out. No clock, no store; the same input gives the same output.
//!
//! - Rules of a type are tried from the worst severity down; the first that is true wins. The clear rule is looked at only
//!   if none is and an alarm is active.
//! - Rules are tried when a value they speak of came, and by a tick, for durations.
//! - An active alarm is updated, its severity only raised. There is one per device and type.

mod definition;
mod filter;
mod machine;
mod predicate;
mod schedule;
#[cfg(test)]
mod tests;

pub use definition::{Key, KeySource, RuleError, Rules};
pub use filter::ValueFilter;
pub use machine::{Action, Condition, Context, Effect, Event, State};
pub use predicate::{DynamicSource, Lookup};
