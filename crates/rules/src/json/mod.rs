//! JSON: bytes to a `Tape` (positions, nothing copied), from there to `Value`s where one is wanted, and `Value`s to bytes.
//!
//! Strict as RFC 8259: no comments, no trailing commas, UTF-8 only, no lone surrogates, numbers in range. Of two equal keys
//! the last one counts. Nesting and size are limited.

mod encode;
mod tape;

pub use encode::{JsonForm, encode, encode_into};
pub use tape::{JsonError, JsonLimits};
pub(crate) use tape::{Node, Tape};

use crate::value::Value;

/// The whole document as a value.
pub fn decode(bytes: &[u8], limits: &JsonLimits) -> Result<Value, JsonError> {
    let mut tape = Tape::default();
    tape.parse(bytes, limits)?;
    Ok(tape.value(bytes, Tape::ROOT))
}
