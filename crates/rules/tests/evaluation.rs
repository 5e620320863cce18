//! What a host relies on: rules are shared between threads, a payload is read once, conditions guard fields, state is kept.

#![allow(clippy::unwrap_used, reason = "tests and their helpers")]

mod support;

use std::cell::Cell;

use rules::{Column, Evaluator, Event, EventKind, Limits, Map, Outcome, Rule, Source, Value};
use support::{World, compile, json_lines, publish, run};

#[test]
fn rules_and_outputs_may_cross_threads() {
    fn check<T: Send + Sync>() {}
    check::<Rule>();
    check::<Map>();
    check::<rules::Template>();
    check::<rules::RuleIndex<u32>>();
}

/// Counts how often its columns are asked for.
struct Counting {
    columns: Cell<usize>,
}

impl Event for Counting {
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
fn columns_are_asked_for_only_when_named() {
    let event = Counting { columns: Cell::new(0) };
    let mut out = Vec::new();
    let (mut evaluator, mut world) = (Evaluator::new(), World::default());
    let mut message = evaluator.message(&event, &mut world);
    let rule = compile("SELECT payload.x AS x FROM \"t/#\"");
    assert_eq!(message.run(&rule, &mut out), Ok(Outcome::Passed(1)));
    assert_eq!(event.columns.get(), 0);
    let rule = compile("SELECT topic FROM \"t/#\" WHERE payload.x = 2");
    assert_eq!(message.run(&rule, &mut out), Ok(Outcome::NotMatched));
    assert_eq!(event.columns.get(), 0);
    let rule = compile("SELECT topic FROM \"t/#\"");
    assert_eq!(message.run(&rule, &mut out), Ok(Outcome::Passed(1)));
    assert_eq!(event.columns.get(), 1);
    assert_eq!(json_lines(out), "{\"x\":1}\n{\"topic\":\"t/a\"}");
}

#[test]
fn an_evaluator_forgets_the_payload_of_the_message_before() {
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
fn a_condition_guards_the_fields() {
    let rule = compile("SELECT upper(payload.name) AS n FROM \"t/#\" WHERE is_not_null(payload.name)");
    assert!(run(&rule, &publish("t/a", b"{}")).unwrap().is_empty());
    // One that names a field has to wait for it.
    let rule = compile("SELECT upper(payload.name) AS n FROM \"t/#\" WHERE n = 'A'");
    assert!(run(&rule, &publish("t/a", b"{}")).is_err());
}

#[test]
fn an_error_takes_back_outputs_of_the_same_rule_only() {
    let good = compile("SELECT topic FROM \"t/#\"");
    let bad = compile("FOREACH payload.list DO 1 / item AS r FROM \"t/#\"");
    let event = publish("t/a", b"{\"list\":[1,2,0]}");
    let (mut evaluator, mut world) = (Evaluator::new(), World::default());
    let mut out = Vec::new();
    let mut message = evaluator.message(&event, &mut world);
    assert_eq!(message.run(&good, &mut out), Ok(Outcome::Passed(1)));
    let error = message.run(&bad, &mut out).unwrap_err();
    assert_eq!(error.to_string(), "line 1, column 27: division by zero");
    assert_eq!(out.len(), 1);
}

#[test]
fn the_store_lives_from_message_to_message() {
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
fn sources_are_told_apart() {
    let rule = compile(r##"SELECT event FROM "t/#", 'u/+', "$events/client/connected", "$bridges/mqtt:a", "$SYS/#""##);
    let expected = [
        Source::Topic("t/#".to_owned()),
        Source::Topic("u/+".to_owned()),
        Source::Event(EventKind::ClientConnected),
        Source::Bridge("$bridges/mqtt:a".to_owned()),
        Source::Topic("$SYS/#".to_owned()),
    ];
    assert_eq!(rule.sources(), expected);
    let all = compile("SELECT event FROM \"$events/client/+\"");
    assert_eq!(all.sources().len(), 4);
    assert_eq!(
        Rule::compile("SELECT event FROM \"$events/#\"", &Limits::default())
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
