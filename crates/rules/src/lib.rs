//! Rules over messages and events: EMQX's rule SQL, compiled once and evaluated per message.
//!
//! A machine without I/O, clock or randomness of its own: [`Rule::compile`] takes text, [`Evaluator::message`] takes an
//! [`Event`] and gives output [`Map`]s, [`Template`]s make texts of those, and [`RuleIndex`] finds the rules of a topic.
//!
//! Invariants: no text and no message panics or takes more than its [`Limits`] allow (nesting, steps, bytes, outputs); a
//! payload is read once per message whatever the number of rules, and not at all if no rule names a field of it; the same
//! rule, event and environment give the same output, byte for byte.
//!
//! `docs/rules.md` is the reference for users; what it says of functions and columns is generated from this crate.

mod access;
mod compare;
mod error;
mod eval;
mod event;
mod expr;
mod functions;
mod index;
mod jq;
mod json;
mod kinds;
mod lex;
mod number;
mod parse;
mod resolve;
mod rule;
mod sample;
mod template;
mod text;
mod value;

pub use error::{EvalError, Position, RuleError};
pub use eval::{Evaluator, Message, Outcome};
pub use event::{Column, Environment, Event, EventKind, Store};
pub use functions::{Function, Group, absent_functions, functions};
pub use index::RuleIndex;
pub use json::{
    JsonError, JsonForm, JsonLimits, decode as decode_json, encode as encode_json, encode_into as encode_json_into,
};
pub use kinds::Kinds;
pub use rule::{Limits, Rule, Source, UnknownColumns};
pub use sample::SampleEvent;
pub use template::{Missing, Single, Template, TemplateOverflow};
pub use text::Text;
pub use value::{Map, Value};
