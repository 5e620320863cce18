//! jq: the language of EMQX's `jq(program, json)`, as far as a rule has a use for it.
//!
//! An interpreter of our own, because a rule runs where messages are published: a program must end by itself, after so many steps, with
//! so many bytes and so deep on the stack, whatever stands in it. The library that there is (jaq) says of itself that it may take unlimited
//! time, memory and stack. `docs/rules.md` says what is left out.

mod assign;
mod builtins;
mod folds;
mod formats;
mod lex;
mod machine;
mod natives;
mod parse;
mod paths;
mod patterns;
mod prelude;
#[cfg(test)]
mod random;
mod search;
mod term;
#[cfg(test)]
mod tests;
mod times;
mod values;

use std::fmt;
use std::sync::Arc;

use machine::{Machine, Stop};

use crate::error::Fault;
use crate::json::JsonLimits;
use crate::value::Value;

/// What a program may use. What is left afterwards stands there.
pub(crate) struct Allowance {
    pub steps: u64,
    pub bytes: usize,
    pub outputs: usize,
    pub json: JsonLimits,
    pub regex_bytes: usize,
    pub unix_nanoseconds: i128,
}

/// A compiled program.
#[derive(Clone)]
pub(crate) struct Program {
    text: Arc<str>,
    term: Arc<term::Term>,
}

impl fmt::Debug for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Program {
    /// The error says where in the program: `line 1, column 4: found …`.
    pub fn compile(text: &[u8]) -> Result<Program, String> {
        let text = std::str::from_utf8(text).map_err(|_| "the program is not UTF-8".to_owned())?;
        let term = parse::program(text, prelude::names()).map_err(|error| place(text, error.at, &error.message))?;
        Ok(Program {
            text: text.into(),
            term: Arc::new(term),
        })
    }

    /// All outputs. The allowance says afterwards what is left of it.
    pub fn run(&self, input: Value, allowance: &mut Allowance) -> Result<Vec<Value>, Fault> {
        let mut machine = Machine::new(
            allowance.steps,
            allowance.bytes,
            allowance.json,
            allowance.regex_bytes,
            allowance.unix_nanoseconds,
        );
        let (mut outputs, outputs_max) = (Vec::new(), allowance.outputs);
        let flow = machine.run(&self.term, input, &mut |_, value| {
            if outputs.len() >= outputs_max {
                let message = format!("the program has more than {outputs_max} outputs");
                return Err(Stop::Limit(Fault::from(message)));
            }
            outputs.push(values::finished(&value));
            Ok(())
        });
        (allowance.steps, allowance.bytes) = (machine.steps, machine.bytes);
        match flow {
            Ok(()) => Ok(outputs),
            Err(Stop::Limit(fault)) => Err(Fault::from(format!("jq: {}", fault.0))),
            Err(Stop::Error { value, at }) => Err(self.fault(&value, at)),
            // The parser lets nobody break out of a label that is not around it.
            Err(Stop::Break(_) | Stop::Below) => Err(Fault::from("jq: break without its label")),
        }
    }

    fn fault(&self, value: &Value, at: Option<u32>) -> Fault {
        let message = match value {
            Value::Text(text) => text.to_string(),
            Value::Null => "error(null)".to_owned(),
            other => format!("error with {}", values::told(other)),
        };
        let at = at.unwrap_or_default() as usize;
        Fault::from(format!("jq: {}", place(&self.text, at, &message)))
    }
}

/// With line and column, from 1, in characters.
fn place(text: &str, at: usize, message: &str) -> String {
    let before = text.get(..at).unwrap_or(text);
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
    format!("line {line}, column {column} of the program: {message}")
}
