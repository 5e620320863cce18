//! Shared helpers of the rule tests: a fixed environment, and functions that run a rule in one line.

#![allow(dead_code, reason = "each test uses a part")]

use std::collections::BTreeMap;

use rules::{
    Column, Environment, EvalError, EvalOutcome, Evaluator, EventKind, JsonForm, Map, Rule, RuleLimits, SampleEvent,
    Value, ValueStore, encode_json,
};

/// Time 2024-02-23 07:00:00.5 UTC, one hour east of Greenwich. The random numbers are a counter.
#[derive(Default)]
pub struct World {
    dice: u64,
    store: Memory,
}

#[derive(Default)]
pub struct Memory(BTreeMap<Vec<u8>, Value>);

impl Environment for World {
    fn unix_nanoseconds(&self) -> i128 {
        1_708_671_600_500_000_000
    }

    fn random(&mut self) -> u64 {
        self.dice = self.dice.wrapping_add(0x9E37_79B9_7F4A_7C15);
        self.dice
    }

    fn utc_offset_seconds(&self) -> i32 {
        8 * 3600
    }

    fn variable(&self, name: &str) -> Option<String> {
        (name == "HOME").then(|| "/root".to_owned())
    }

    fn store(&mut self) -> Option<&mut dyn ValueStore> {
        Some(&mut self.store)
    }
}

impl ValueStore for Memory {
    fn get(&self, key: &[u8]) -> Option<Value> {
        self.0.get(key).cloned()
    }

    fn put(&mut self, key: &[u8], value: Value) -> Result<(), &'static str> {
        if self.0.len() >= 100 {
            return Err("the store is full");
        }
        self.0.insert(key.to_vec(), value);
        Ok(())
    }

    fn delete(&mut self, key: &[u8]) {
        self.0.remove(key);
    }
}

pub fn publish(topic: &str, payload: &[u8]) -> SampleEvent {
    let mut event = SampleEvent::example(EventKind::MessagePublish, 1_708_671_600_500);
    event.set(Column::Topic, Value::from(topic));
    event.set(Column::Payload, Value::text(payload));
    event
}

pub fn compile(sql: &str) -> Rule {
    Rule::compile(sql, &RuleLimits::default()).unwrap_or_else(|error| panic!("{sql}: {error}"))
}

pub fn run(rule: &Rule, event: &SampleEvent) -> Result<Vec<Map>, EvalError> {
    let mut out = Vec::new();
    let outcome = Evaluator::new()
        .message(event, &mut World::default())
        .run(rule, &mut out)?;
    let passed = match outcome {
        EvalOutcome::Passed(count) => count,
        EvalOutcome::NotMatched => 0,
    };
    assert_eq!(passed, out.len());
    Ok(out)
}

/// Returns the outputs as JSON, one per line.
pub fn json_lines(outputs: Vec<Map>) -> String {
    let lines = outputs.into_iter().map(|output| {
        let json = encode_json(&Value::Map(output), JsonForm::UndefinedAsString);
        String::from_utf8(json).expect("JSON is UTF-8")
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// Evaluates one expression on a message.
pub fn evaluate(expression: &str, payload: &str) -> Result<Value, String> {
    let sql = format!("SELECT {expression} AS result FROM \"t/#\"");
    let rule = Rule::compile(&sql, &RuleLimits::default()).map_err(|error| error.to_string())?;
    let outputs = run(&rule, &publish("t/a", payload.as_bytes())).map_err(|error| error.to_string())?;
    Ok(outputs[0].get(b"result").cloned().expect("the field is there"))
}
