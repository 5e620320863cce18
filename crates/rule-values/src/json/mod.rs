//! JSON: decodes bytes to a `Tape` (positions, nothing is copied), converts the tape to `Value`s if they are needed,
//! and encodes `Value`s.
//!
//! Strict RFC 8259: no comments, no trailing commas, UTF-8 only, no lone surrogates, numbers in range. Of duplicate
//! keys, the last counts. Nesting and size are limited.

mod encode;
mod tape;

pub use encode::encode_in_string;
pub use encode::{JsonForm, encode, encode_into};
pub use tape::{JsonError, JsonLimits};
pub use tape::{Tape, TapeNode};

use crate::budget::StepBudget;
use crate::error::FunctionError;
use crate::value::Value;

/// Same as `decode`, and charges for the bytes before parsing and for the values before they are created.
pub fn decode_within(
    bytes: &[u8],
    limits: &JsonLimits,
    budget: &mut StepBudget,
) -> Result<Result<Value, JsonError>, FunctionError> {
    budget.read(bytes.len())?;
    let mut tape = Tape::default();
    if let Err(error) = tape.parse(bytes, limits) {
        return Ok(Err(error));
    }
    budget.make(bytes.len() + 24 * tape.node_count())?;
    budget.charge_steps(tape.node_count() as u64 / 2)?;
    Ok(Ok(tape.value(bytes, Tape::ROOT)))
}

/// Returns the complete document as a value.
pub fn decode(bytes: &[u8], limits: &JsonLimits) -> Result<Value, JsonError> {
    let mut tape = Tape::default();
    tape.parse(bytes, limits)?;
    Ok(tape.value(bytes, Tape::ROOT))
}
