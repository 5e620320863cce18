//! `jq(program, json)`. A program that stands in the rule is compiled with it.

use super::{Call, Compiled, Group, function_table};
use crate::error::Fault;
use crate::jq::{Allowance, Program};
use crate::json::{self, JsonForm};
use crate::text::Text;
use crate::value::Value;

function_table! { Group::Map;
    "jq" (program: TEXT, json: ANY; timeout: INT) program -> ARRAY, run, "All that a jq program makes of a value, or of a string that is JSON. The timeout counts as 20,000 steps for each millisecond, within those that a message has.", "jq('.a + 1, .b', '{\"a\": 1, \"b\": \"x\"}') = [2, 'x']";
}

/// For each millisecond of a timeout: about as many as a slow machine makes.
const STEPS_PER_MS: u64 = 20_000;

/// Programs that came with messages, the latest ones.
#[derive(Debug, Default)]
pub(crate) struct ProgramCache {
    entries: Vec<(Text, Program)>,
    next: usize,
}

impl ProgramCache {
    const ENTRIES_MAX: usize = 16;

    fn get(&mut self, text: &[u8]) -> Result<Program, Fault> {
        if let Some((_, program)) = self.entries.iter().find(|entry| *entry.0 == *text) {
            return Ok(program.clone());
        }
        let program = Program::compile(text).map_err(|error| Fault::from(format!("jq: {error}")))?;
        let entry = (Text::new(text), program.clone());
        match self.entries.get_mut(self.next) {
            Some(oldest) => *oldest = entry,
            None => self.entries.push(entry),
        }
        self.next = (self.next + 1) % ProgramCache::ENTRIES_MAX;
        Ok(program)
    }
}

fn run(call: &mut Call<'_, '_>) -> Result<Value, Fault> {
    let program = match call.constant {
        Some(Compiled::Program(program)) => program.clone(),
        _ => {
            let text = call.text(0)?;
            if text.len() > call.run.rule.limits.sql_bytes_max {
                let found = format!("a program of {} bytes", text.len());
                return Err(call.fault(0, &found, &format!("at most {}", call.run.rule.limits.sql_bytes_max)));
            }
            call.run.budget.step(text.len() as u64 * 16)?;
            call.run.programs().get(text)?
        }
    };
    let input = input(call)?;
    let (steps, bytes) = call.run.budget.left();
    let steps_max = match call.has(2) {
        true => (call.count(2)? as u64).saturating_mul(STEPS_PER_MS).min(steps),
        false => steps,
    };
    let limits = &call.run.rule.limits;
    let mut allowance = Allowance {
        steps: steps_max,
        bytes,
        outputs: limits.outputs_max,
        json: limits.json,
        regex_bytes: limits.regex_bytes_max,
        unix_nanoseconds: call.run.environment.unix_nanoseconds(),
    };
    let outputs = program.run(input, &mut allowance);
    call.run
        .budget
        .use_up(steps_max - allowance.steps, bytes - allowance.bytes)?;
    outputs.map(Value::array)
}

/// What is no string goes through JSON: the program sees nothing that JSON has no word for.
fn input(call: &mut Call<'_, '_>) -> Result<Value, Fault> {
    match call.value(1) {
        Value::Text(text) => call.decode_json(text),
        other => {
            call.run.budget.make(other.size())?;
            let json = json::encode(other, JsonForm::UndefinedAsString);
            call.decode_json(&json)
        }
    }
}
