//! Values of rules and of jq programs, and work on them whose cost is counted: JSON, numbers, regular expressions.
//!
//! The crate has no I/O, clock or random numbers. Nothing in it panics on any input.

mod budget;
pub mod calendar;
mod compiled_cache;
mod error;
pub mod json;
pub mod number;
mod pattern;
mod text;
mod value;

pub use budget::{StepBudget, TimeLimit, VALUE_NESTING_MAX};
pub use compiled_cache::CompiledCache;
pub use error::FunctionError;
pub use input_errors::nearest;
pub use pattern::{PatternCache, RegexPattern};
pub use text::Text;
pub use value::{Map, Value};
