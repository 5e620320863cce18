//! Rules for messages and events: the rule SQL of EMQX, compiled once and evaluated per message.
//!
//! The crate itself has no I/O, clock or random numbers: [`Rule::compile`] compiles text, [`Evaluator::message`]
//! evaluates an [`RuleEvent`] and returns output [`Map`]s, [`Template`]s convert these to texts, and [`RuleIndex`]
//! finds the rules of a topic.
//!
//! Invariants: no text and no message causes a panic or exceeds the [`RuleLimits`] (nesting, steps, bytes, outputs). A
//! payload is parsed once per message for all rules, and not at all if no rule names one of its fields. The same rule,
//! event and environment give the same output, byte for byte.
//!
//! `docs/reference/rule-sql.md` is the reference for users. The pages of functions and events are generated from this
//! crate.

mod access;
mod compare;
mod context;
mod error;
mod eval;
mod event;
mod expr;
mod fixed_limits;
mod functions;
mod index;
mod kinds;
mod lex;
mod limits;
mod parse;
mod resolve;
mod rule;
mod sample;
mod template;

pub use error::{EvalError, RuleError, TextPosition};
pub use eval::{EvalOutcome, Evaluator, MessageEvaluation, UsedResources};
pub use event::{Column, Environment, EventKind, RuleEvent, ValueStore};
pub use fixed_limits::fixed_limits;
pub use functions::{Function, FunctionGroup, functions, unsupported_functions};
pub use index::RuleIndex;
pub use kinds::Kinds;
pub use limits::{RuleLimits, UnknownColumns};
pub use rule::{FromEntry, Rule};
pub use rule_values::json::{
    JsonError, JsonForm, JsonLimits, decode as decode_json, encode as encode_json, encode_into as encode_json_into,
};
pub use rule_values::{Map, Text, TimeLimit, Value};
pub use sample::SampleEvent;
pub use template::{MissingText, SingleValue, Template, TemplateOverflow};
