//! Properties that callers rely on: rules can be shared between threads, a payload is parsed once, conditions protect
//! fields, and state is stored.

#![allow(clippy::unwrap_used, reason = "tests and their helpers")]

use std::cell::Cell;

use crate::support::{World, compile, evaluate, json_lines, publish, run};
use rules::{Column, EvalOutcome, Evaluator, EventKind, FromEntry, Map, Rule, RuleEvent, RuleLimits, Value};

#[test]
fn rules_and_outputs_can_be_sent_to_other_threads() {
    fn check<T: Send + Sync>() {}
    check::<Rule>();
    check::<Map>();
    check::<rules::Template>();
    check::<rules::RuleIndex<u32>>();
}

/// Counts how often its columns are read.
struct Counting {
    columns: Cell<usize>,
}

impl RuleEvent for Counting {
    fn kind(&self) -> EventKind {
        EventKind::MessagePublish
    }

    fn column(&self, _: Column) -> Value {
        self.columns.set(self.columns.get() + 1);
        Value::from("t/a")
    }

    fn payload(&self) -> &[u8] {
        br#"{"x": 1}"#
    }
}

#[test]
fn only_named_columns_are_read() {
    let event = Counting { columns: Cell::new(0) };
    let mut out = Vec::new();
    let (mut evaluator, mut world) = (Evaluator::new(), World::default());
    let mut message = evaluator.message(&event, &mut world);
    let rule = compile("SELECT payload.x AS x FROM \"t/#\"");
    assert_eq!(message.run(&rule, &mut out), Ok(EvalOutcome::Passed(1)));
    assert_eq!(event.columns.get(), 0);
    let rule = compile("SELECT topic FROM \"t/#\" WHERE payload.x = 2");
    assert_eq!(message.run(&rule, &mut out), Ok(EvalOutcome::NotMatched));
    assert_eq!(event.columns.get(), 0);
    let rule = compile("SELECT topic FROM \"t/#\"");
    assert_eq!(message.run(&rule, &mut out), Ok(EvalOutcome::Passed(1)));
    assert_eq!(event.columns.get(), 1);
    assert_eq!(json_lines(out), "{\"x\":1}\n{\"topic\":\"t/a\"}");
}

/// Returns the correct payload once, and then a payload with another first byte. A second parse gives a different
/// result.
struct ChangingPayload {
    first: &'static [u8],
    then: &'static [u8],
    is_read: Cell<bool>,
}

impl RuleEvent for ChangingPayload {
    fn kind(&self) -> EventKind {
        EventKind::MessagePublish
    }

    fn column(&self, _: Column) -> Value {
        Value::Undefined
    }

    fn payload(&self) -> &[u8] {
        if self.is_read.replace(true) {
            self.then
        } else {
            self.first
        }
    }
}

/// Runs several rules that name fields of the payload, one after the other, and returns their results.
fn read_by_many(first: &'static [u8], then: &'static [u8]) -> Vec<String> {
    let rules = [
        "SELECT payload.a AS r FROM \"t/#\" WHERE payload.b = 'two'",
        "SELECT payload.b AS r FROM \"t/#\"",
        "SELECT topic, payload.c[1] AS r FROM \"t/+\" WHERE payload.a > 0",
        "FOREACH payload.c AS e DO e AS r, payload.a AS a FROM \"t/#\"",
    ];
    let event = ChangingPayload {
        first,
        then,
        is_read: Cell::new(false),
    };
    let (mut evaluator, mut world) = (Evaluator::new(), World::default());
    let mut message = evaluator.message(&event, &mut world);
    let mut run = |sql: &&str| {
        let mut out = Vec::new();
        let ran = message.run(&compile(sql), &mut out);
        ran.map_or_else(|error| error.to_string(), |_| json_lines(out))
    };
    rules.iter().map(&mut run).collect()
}

#[test]
fn a_payload_is_parsed_once_for_all_rules() {
    let (whole, torn) = (br#"{"a":1,"b":"two","c":[3]}"#, br#"x"a":1,"b":"two","c":[3]}"#);
    let expected = [
        r#"{"r":1}"#,
        r#"{"r":"two"}"#,
        r#"{"r":3,"topic":"undefined"}"#,
        r#"{"a":1,"r":3}"#,
    ];
    assert_eq!(read_by_many(whole, torn), expected);
    // A second parse by one of the rules would change the result.
    assert!(
        read_by_many(torn, torn)
            .iter()
            .all(|error| error.contains("payload is not JSON"))
    );
    // A parse error is also found only once.
    assert!(
        read_by_many(torn, whole)
            .iter()
            .all(|error| error.contains("payload is not JSON"))
    );
}

#[test]
fn evaluator_discards_the_previous_payload() {
    let rule = compile("SELECT payload.x AS x FROM \"t/#\"");
    let (mut evaluator, mut world) = (Evaluator::new(), World::default());
    let mut out = Vec::new();
    for payload in ["{\"x\":1}", "none", "{\"x\":2}"] {
        let event = publish("t/a", payload.as_bytes());
        let _ = evaluator.message(&event, &mut world).run(&rule, &mut out);
    }
    assert_eq!(json_lines(out), "{\"x\":1}\n{\"x\":2}");
}

#[test]
fn fields_are_not_computed_if_the_condition_is_false() {
    let rule = compile("SELECT upper(payload.name) AS n FROM \"t/#\" WHERE is_not_null(payload.name)");
    assert!(run(&rule, &publish("t/a", b"{}")).unwrap().is_empty());
    // A condition that names a field is evaluated after the field.
    let rule = compile("SELECT upper(payload.name) AS n FROM \"t/#\" WHERE n = 'A'");
    assert!(run(&rule, &publish("t/a", b"{}")).is_err());
}

#[test]
fn an_error_removes_only_the_outputs_of_the_same_rule() {
    let good = compile("SELECT topic FROM \"t/#\"");
    let bad = compile("FOREACH payload.list DO 1 / item AS r FROM \"t/#\"");
    let event = publish("t/a", b"{\"list\":[1,2,0]}");
    let (mut evaluator, mut world) = (Evaluator::new(), World::default());
    let mut out = Vec::new();
    let mut message = evaluator.message(&event, &mut world);
    assert_eq!(message.run(&good, &mut out), Ok(EvalOutcome::Passed(1)));
    let error = message.run(&bad, &mut out).unwrap_err();
    assert_eq!(error.to_string(), "line 1, column 27: division by zero");
    assert_eq!(out.len(), 1);
}

#[test]
fn stored_values_remain_between_messages() {
    let sql =
        "SELECT kv_store_get('n', 0) + 1 AS n, kv_store_put('n', n) AS ok, proc_dict_put('m', n) AS before FROM \"t\"";
    let rule = compile(sql);
    let (mut evaluator, mut world) = (Evaluator::new(), World::default());
    let mut out = Vec::new();
    for _ in 0..3 {
        evaluator
            .message(&publish("t", b""), &mut world)
            .run(&rule, &mut out)
            .unwrap();
    }
    let expected = [
        r#"{"before":"undefined","n":1,"ok":true}"#,
        r#"{"before":1,"n":2,"ok":true}"#,
        r#"{"before":2,"n":3,"ok":true}"#,
    ];
    assert_eq!(json_lines(out), expected.join("\n"));
}

#[test]
fn sources_are_distinguished() {
    let rule = compile(r##"SELECT event FROM "t/#", 'u/+', "$events/client/connected", "$bridges/mqtt:a", "$SYS/#""##);
    let expected = [
        FromEntry::Topic("t/#".to_owned()),
        FromEntry::Topic("u/+".to_owned()),
        FromEntry::Event(EventKind::ClientConnected),
        FromEntry::Bridge("$bridges/mqtt:a".to_owned()),
        FromEntry::Topic("$SYS/#".to_owned()),
    ];
    assert_eq!(rule.sources(), expected);
    let all = compile("SELECT event FROM \"$events/client/+\"");
    assert_eq!(all.sources().len(), 4);
    assert_eq!(
        Rule::compile("SELECT event FROM \"$events/#\"", &RuleLimits::default())
            .unwrap()
            .sources()
            .len(),
        16
    );
}

#[test]
fn select_star_has_every_column() {
    let rule = compile("SELECT *, payload.x AS x FROM \"t/#\"").with_id("r1");
    let output = run(&rule, &publish("t/a", b"{\"x\":5}")).unwrap().remove(0);
    let mut names: Vec<&str> = EventKind::MessagePublish
        .columns()
        .map(Column::name)
        .chain(["x"])
        .collect();
    names.sort_unstable();
    let found: Vec<String> = output.iter().map(|(name, _)| name.to_string()).collect();
    assert_eq!(found, names);
    assert_eq!(output.get(b"x"), Some(&Value::Int(5)));
}

#[test]
fn not_requires_true_or_false() {
    for (payload, expected) in [
        (r#"{"x": true}"#, false),
        (r#"{"x": false}"#, true),
        (r#"{"x": null}"#, false),
        ("{}", false),
    ] {
        assert_eq!(
            evaluate("NOT payload.x", payload),
            Ok(Value::Bool(expected)),
            "{payload}"
        );
    }
    for payload in [r#"{"x": 5}"#, r#"{"x": "true"}"#] {
        let error = evaluate("NOT payload.x", payload).unwrap_err();
        assert!(error.contains("NOT requires true or false"), "{error}");
    }
}
