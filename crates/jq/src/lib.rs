//! jq: the language of the `jq(program, json)` function of EMQX, limited to the parts that are useful in a rule.
//!
//! This is our own interpreter, because rules run in the publish path: every program must stay within a limit of steps,
//! bytes and stack depth. The documentation of the existing library (jaq) says that it may use unlimited time, memory
//! and stack. `docs/reference/rule-sql.md` lists the unsupported parts.

mod assign;
mod builtins;
#[cfg(test)]
mod cost;
mod eval;
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
mod scope;
mod search;
mod sorting;
mod term;
#[cfg(test)]
mod tests;
mod times;
mod values;

/// For the page of limits.
pub const PROGRAM_NESTING_MAX: u64 = parse::HEIGHT_MAX as u64;
pub const CALL_NESTING_MAX: u64 = machine::DEPTH_MAX as u64;

use std::fmt;
use std::sync::Arc;

use machine::{JqMachine, JqStop};
use rule_values::{FunctionError, PatternCache, StepBudget, Value, json::JsonLimits};

/// The limits of a program. After the run, it contains the rest.
pub struct ProgramLimits {
    pub budget: StepBudget,
    /// Compiled regular expressions.
    pub patterns: PatternCache,
    pub outputs: usize,
    pub json: JsonLimits,
    pub regex_bytes: usize,
    pub unix_nanoseconds: i128,
}

/// A compiled program.
#[derive(Clone)]
pub struct Program {
    text: Arc<str>,
    term: Arc<term::Term>,
}

impl fmt::Debug for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Program {
    /// The error includes the position in the program: `line 1, column 4: found …`.
    pub fn compile(text: &[u8]) -> Result<Program, String> {
        let text = std::str::from_utf8(text).map_err(|_| "the program is not UTF-8".to_owned())?;
        let term = parse::program(text, prelude::names()).map_err(|error| place(text, error.at, &error.message))?;
        Ok(Program {
            text: text.into(),
            term: Arc::new(term),
        })
    }

    /// Returns all outputs and the rest of the limits.
    pub fn run(&self, input: Value, allowance: ProgramLimits) -> (Result<Vec<Value>, FunctionError>, ProgramLimits) {
        let mut machine = JqMachine::new(allowance);
        let mut outputs = Vec::new();
        let flow = machine.run(&self.term, input, &mut |machine, value| {
            let outputs_max = machine.allowance.outputs;
            if outputs.len() >= outputs_max {
                let message = format!("the program has more than {outputs_max} outputs");
                return Err(JqStop::Limit(FunctionError::limit(message)));
            }
            machine.charge_value(&value)?;
            outputs.push(values::to_json_numbers(&value));
            Ok(())
        });
        let result = match flow {
            Ok(()) => Ok(outputs),
            Err(JqStop::Limit(fault)) => Err(FunctionError::limit(format!("jq: {}", fault.message))),
            Err(JqStop::Error { value, at }) => Err(self.fault(&value, at)),
            // The parser rejects a break without an enclosing label.
            Err(JqStop::Break(_) | JqStop::Receiver) => Err(FunctionError::from("jq: break without its label")),
        };
        (result, machine.allowance)
    }

    fn fault(&self, value: &Value, at: Option<u32>) -> FunctionError {
        let message = match value {
            Value::Text(text) => text.to_string(),
            Value::Null => "error(null)".to_owned(),
            other => format!("error with {}", values::described(other)),
        };
        let at = at.unwrap_or_default() as usize;
        FunctionError::from(format!("jq: {}", place(&self.text, at, &message)))
    }
}

/// Adds line and column to the message. Both begin with 1; columns count characters.
fn place(text: &str, at: usize, message: &str) -> String {
    let before = text.get(..at).unwrap_or(text);
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
    format!("line {line}, column {column} of the program: {message}")
}
