//! `jq(program, json)`. A constant program is compiled with the rule.

use rule_values::{FunctionError, Value, json::JsonForm};

use super::{CompiledArgument, FunctionCall, FunctionGroup, function_table};
use crate::context::ProgramCache;
use jq::{Program, ProgramLimits};

function_table! { FunctionGroup::Map;
    "jq" (program: TEXT, json: ANY; timeout: INT) program -> ARRAY, run, "All outputs of a jq program for a value, or for a string that is parsed as JSON. The timeout counts as 20,000 steps per millisecond, within the step limit of the message.", "jq('.a + 1, .b', '{\"a\": 1, \"b\": \"x\"}') = [2, 'x']";
}

/// Steps per millisecond of timeout: about the number that a slow machine executes.
const STEPS_PER_MS: u64 = 20_000;

/// Compiles the program if it is not cached.
fn compile(programs: &mut ProgramCache, text: &[u8]) -> Result<Program, FunctionError> {
    if let Some(program) = programs.find(text) {
        return Ok(program);
    }
    let program = Program::compile(text).map_err(|error| FunctionError::from(format!("jq: {error}")))?;
    programs.insert(text, program.clone());
    Ok(program)
}

fn run(call: &mut FunctionCall<'_, '_>) -> Result<Value, FunctionError> {
    let program = match call.constant {
        Some(CompiledArgument::Program(program)) => program.clone(),
        _ => {
            let text = call.text(0)?;
            if text.len() > call.run.limits.sql_bytes_max {
                let found = format!("a program of {} bytes", text.len());
                return Err(call.type_error(0, &found, &format!("at most {}", call.run.limits.sql_bytes_max)));
            }
            // Each name is searched among all definitions before it.
            let length = text.len() as u64;
            call.run.budget.charge_steps(length * 16 + length * length / 256)?;
            compile(call.run.programs(), text)?
        }
    };
    let input = input(call)?;
    let steps_max = match call.has(2) {
        true => (call.count(2)? as u64).saturating_mul(STEPS_PER_MS),
        false => u64::MAX,
    };
    let limits = call.run.limits;
    let allowance = ProgramLimits {
        budget: call.run.budget.split_off(steps_max),
        patterns: std::mem::take(call.run.patterns()),
        outputs: limits.outputs_max,
        json: limits.json,
        regex_bytes: limits.regex_bytes_max,
        unix_nanoseconds: call.run.environment.unix_nanoseconds(),
    };
    let (outputs, allowance) = program.run(input, allowance);
    call.run.budget.rejoin(&allowance.budget);
    *call.run.patterns() = allowance.patterns;
    outputs.map(Value::array)
}

/// A value that is not a string is converted to JSON and back, so that the program sees only JSON types.
fn input(call: &mut FunctionCall<'_, '_>) -> Result<Value, FunctionError> {
    match call.value(1) {
        Value::Text(text) => call.decode_json(text),
        other => {
            let json = call.encode_json(other, JsonForm::UndefinedAsString)?;
            call.run.budget.make(json.len())?;
            call.decode_json(&json)
        }
    }
}
