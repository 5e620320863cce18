//! Fuzzes a rule, a template and a payload, separated by NUL: no panic, bounded cost, and the same output
//! on a second run.

#![no_main]

use libfuzzer_sys::fuzz_target;
use rules::{
    Column, Environment, Evaluator, EventKind, JsonForm, JsonLimits, Map, MissingText, Rule, RuleLimits, SampleEvent,
    Template, UnknownColumns, Value, decode_json, encode_json,
};

struct World(u64);

impl Environment for World {
    fn unix_nanoseconds(&self) -> i128 {
        1_708_671_600_500_000_000
    }

    fn random(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        self.0
    }
}

fn limits() -> RuleLimits {
    RuleLimits {
        unknown_columns: UnknownColumns::Undefined,
        steps_max: 100_000,
        result_bytes_max: 1 << 20,
        ..RuleLimits::default()
    }
}

fn outputs(evaluator: &mut Evaluator, rule: &Rule, event: &SampleEvent) -> Vec<Map> {
    let mut out = Vec::new();
    if evaluator.message(event, &mut World(0)).run(rule, &mut out).is_err() {
        assert!(out.is_empty(), "an error comes with outputs");
    }
    out
}

fuzz_target!(|bytes: &[u8]| {
    let mut parts = bytes.splitn(3, |byte| *byte == 0);
    let mut text = || std::str::from_utf8(parts.next().unwrap_or_default());
    let (Ok(sql), Ok(template)) = (text(), text()) else {
        return;
    };
    let payload = parts.next().unwrap_or(b"{}");
    let rule = match Rule::compile(sql, &limits()) {
        Ok(rule) => rule,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    let mut event = SampleEvent::example(EventKind::MessagePublish, 1_708_671_600_500);
    event.set(Column::Payload, Value::text(payload));
    let mut evaluator = Evaluator::new();
    let out = outputs(&mut evaluator, &rule, &event);
    assert_eq!(
        out,
        outputs(&mut evaluator, &rule, &event),
        "the second time is different"
    );
    let template = Template::compile(template);
    for output in out {
        let json = encode_json(&Value::Map(output.clone()), JsonForm::UndefinedAsNull);
        let deep = JsonLimits {
            depth_max: 1_000,
            ..JsonLimits::default()
        };
        assert!(decode_json(&json, &deep).is_ok(), "an output is no JSON");
        if let Ok(template) = &template {
            let _ = template.render(&output, MissingText::Null, &mut Vec::new());
        }
    }
});
