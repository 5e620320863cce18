//! Limits the steps, bytes and time of one evaluation.
//!
//! A step is the unit of work: at most some 20 ns on the machines of `docs/internals/performance.md`. A function
//! charges steps in proportion to its work: before the work if the size is known, during the work otherwise.
//! `tests/cost.rs` of the crate `rules` prints how long a step takes in the worst case of each function.

use std::time::Duration;

use crate::error::FunctionError;
use crate::value::{Map, Value, WalkError};

/// Ends evaluations that take too long. The crate does not read a clock; the caller passes a clock function.
#[derive(Clone, Copy, Debug)]
pub struct TimeLimit {
    /// Maximum time for one rule and one message.
    pub max: Duration,
    /// Returns the time since a fixed moment.
    pub clock: fn() -> Duration,
}

/// Number of steps between two readings of the clock. A rule that needs fewer steps never reads it.
const SLICE: u64 = 8_192;

/// Maximum nesting depth of arrays and maps in values.
pub const VALUE_NESTING_MAX: usize = 128;

#[derive(Debug)]
pub struct StepBudget {
    /// Steps until the next reading of the clock.
    slice: u64,
    /// Steps that remain after the current slice.
    rest: u64,
    bytes: usize,
    /// Maximum bytes of all outputs together. Each output is written once per action.
    output_bytes: usize,
    time: Option<TimeLimit>,
    /// Set by the first reading of the clock.
    deadline: Option<Duration>,
}

impl StepBudget {
    /// `bytes_max`: of all values that are created, and of all outputs.
    pub fn new(steps_max: u64, bytes_max: usize, time: Option<TimeLimit>) -> StepBudget {
        StepBudget {
            slice: steps_max.min(SLICE),
            rest: steps_max.saturating_sub(SLICE),
            bytes: bytes_max,
            output_bytes: bytes_max,
            time,
            deadline: None,
        }
    }

    pub fn steps(&self) -> u64 {
        self.slice + self.rest
    }

    #[inline]
    pub fn charge_steps(&mut self, steps: u64) -> Result<(), FunctionError> {
        match self.slice.checked_sub(steps) {
            Some(left) => {
                self.slice = left;
                Ok(())
            }
            None => self.next_slice(steps),
        }
    }

    /// Charges for bytes before they are allocated.
    #[inline]
    pub fn make(&mut self, bytes: usize) -> Result<(), FunctionError> {
        match self.bytes.checked_sub(bytes) {
            Some(left) => self.bytes = left,
            None => return Err(self.exhausted(BYTES)),
        }
        self.charge_steps(bytes as u64 / 64)
    }

    /// Charges for a copy of the value.
    pub fn make_value(&mut self, value: &Value) -> Result<(), FunctionError> {
        let mut left = self.bytes;
        match value.take_size(&mut left) {
            Some(()) => self.make(self.bytes - left),
            None => Err(self.exhausted(BYTES)),
        }
    }

    /// Charges for an output.
    pub fn charge_output(&mut self, output: &Map) -> Result<(), FunctionError> {
        let before = self.output_bytes;
        match output.take_size(&mut self.output_bytes) {
            Some(()) => self.charge_steps((before - self.output_bytes) as u64 / 64),
            None => Err(self.exhausted("the outputs of the rule exceed the byte limit for one message")),
        }
    }

    /// Charges for reading a text of this many bytes once.
    #[inline]
    pub fn read(&mut self, bytes: usize) -> Result<(), FunctionError> {
        self.charge_steps(bytes as u64 / 16)
    }

    /// Charges for reading a value once, for example to compare it or to write it as text. Arrays and maps are walked
    /// as long as steps remain.
    #[inline]
    pub fn charge_value(&mut self, value: &Value) -> Result<(), FunctionError> {
        match value {
            Value::Text(text) => self.charge_steps(text.len() as u64 / 64),
            Value::Float(_) => self.charge_steps(4),
            Value::Array(_) | Value::Map(_) => self.check_nesting(value, 0),
            _ => Ok(()),
        }
    }

    /// Charges for walking a value. Fails if the value nests too deep inside `around` outer levels.
    pub fn check_nesting(&mut self, value: &Value, around: usize) -> Result<(), FunctionError> {
        const UNITS_PER_STEP: u64 = 4;
        let all = self.steps().saturating_mul(UNITS_PER_STEP);
        let mut left = all;
        match value.walk(VALUE_NESTING_MAX.saturating_sub(around), &mut left) {
            Ok(()) => self.charge_steps((all - left) / UNITS_PER_STEP),
            Err(WalkError::TooDeep) => Err(self.exhausted("arrays and maps nest deeper than 128 levels")),
            Err(WalkError::TooLarge) => Err(self.exhausted(STEPS)),
        }
    }

    /// Charges for reading both values up to the first difference or the end of the shorter one.
    pub fn compare(&mut self, left: &Value, right: &Value) -> Result<(), FunctionError> {
        match (left, right) {
            (Value::Text(left), Value::Text(right)) => self.charge_steps(left.len().min(right.len()) as u64 / 64),
            (Value::Array(_), Value::Array(_)) | (Value::Map(_), Value::Map(_)) => {
                self.charge_value(left)?;
                self.charge_value(right)
            }
            // The text is parsed as a number.
            (Value::Text(_), Value::Int(_) | Value::Float(_)) | (Value::Int(_) | Value::Float(_), Value::Text(_)) => {
                self.read_both(left, right)
            }
            _ => Ok(()),
        }
    }

    /// Charges for reading two texts once.
    pub fn read_both(&mut self, left: &Value, right: &Value) -> Result<(), FunctionError> {
        let length = |value: &Value| value.as_bytes().map_or(0, <[u8]>::len);
        self.read(length(left) + length(right))
    }

    /// Splits off a budget with at most this many steps and with all bytes.
    pub fn split_off(&mut self, steps_max: u64) -> StepBudget {
        let steps = self.steps().min(steps_max);
        let slice = self.slice.min(steps);
        self.slice -= slice;
        self.rest -= steps - slice;
        StepBudget {
            slice,
            rest: steps - slice,
            bytes: std::mem::take(&mut self.bytes),
            output_bytes: 0,
            time: self.time,
            deadline: self.deadline,
        }
    }

    /// Returns the rest of a budget that was created by `split_off`.
    pub fn rejoin(&mut self, lent: &StepBudget) {
        self.slice += lent.slice;
        self.rest += lent.rest;
        self.bytes += lent.bytes;
        self.deadline = lent.deadline;
    }

    #[cold]
    fn next_slice(&mut self, steps: u64) -> Result<(), FunctionError> {
        let Some(left) = self.steps().checked_sub(steps) else {
            return Err(self.exhausted(STEPS));
        };
        self.slice = left.min(SLICE);
        self.rest = left - self.slice;
        let Some(limit) = self.time else {
            return Ok(());
        };
        let now = (limit.clock)();
        // The first slice does not count towards the deadline: it takes a fraction of a millisecond.
        if now >= *self.deadline.get_or_insert(now + limit.max) {
            return Err(self.exhausted("the rule exceeds the time limit for one message"));
        }
        Ok(())
    }

    /// Some callers treat an error as a missing value. Their next step fails because no steps remain.
    #[cold]
    fn exhausted(&mut self, message: &'static str) -> FunctionError {
        (self.slice, self.rest) = (0, 0);
        FunctionError::limit(message)
    }
}

const BYTES: &str = "the rule exceeds the byte limit for one message";
const STEPS: &str = "the rule exceeds the step limit for one message";

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    thread_local! {
        static READINGS: Cell<u64> = const { Cell::new(0) };
    }

    fn clock() -> Duration {
        READINGS.with(|readings| {
            readings.set(readings.get() + 1);
            Duration::from_millis(readings.get())
        })
    }

    fn budget(steps_max: u64, max: Duration) -> StepBudget {
        StepBudget::new(steps_max, 16 << 20, Some(TimeLimit { max, clock }))
    }

    #[test]
    fn cheap_rules_never_read_the_clock() {
        let mut budget = budget(1_000_000, Duration::ZERO);
        budget.charge_steps(SLICE).unwrap();
        assert_eq!(READINGS.get(), 0);
        let fault = budget.charge_steps(1).unwrap_err();
        assert_eq!(READINGS.get(), 1);
        assert!(fault.is_limit && fault.message.contains("time limit"), "{fault:?}");
    }

    #[test]
    fn deadline_starts_at_the_first_reading() {
        let mut budget = budget(u64::MAX, Duration::from_millis(10));
        let slices = (0..).take_while(|_| budget.charge_steps(SLICE + 1).is_ok()).count();
        // The clock advances by a millisecond per reading.
        assert_eq!(slices, 10);
        assert!(budget.charge_steps(1).is_err(), "nothing is left after the limit");
    }

    #[test]
    fn unused_lent_steps_are_returned() {
        let mut budget = budget(20_000, Duration::from_secs(1));
        let mut lent = budget.split_off(10_000);
        assert_eq!((budget.steps(), lent.steps()), (10_000, 10_000));
        lent.charge_steps(9_000).unwrap();
        budget.rejoin(&lent);
        assert_eq!(budget.steps(), 11_000);
        let mut lent = budget.split_off(u64::MAX);
        assert!(lent.charge_steps(11_001).is_err());
        budget.rejoin(&lent);
        assert_eq!(budget.steps(), 0);
    }
}
