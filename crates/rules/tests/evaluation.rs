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

/// Gives its payload whole once, and then with another first byte: whoever reads it as JSON after that gets another result.
struct Torn {
    first: &'static [u8],
    then: &'static [u8],
    is_read: Cell<bool>,
}

impl Event for Torn {
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

/// What many rules that name fields of a payload give for it, one after the other.
fn read_by_many(first: &'static [u8], then: &'static [u8]) -> Vec<String> {
    let rules = [
        "SELECT payload.a AS r FROM \"t/#\" WHERE payload.b = 'two'",
        "SELECT payload.b AS r FROM \"t/#\"",
        "SELECT topic, payload.c[1] AS r FROM \"t/+\" WHERE payload.a > 0",
        "FOREACH payload.c AS e DO e AS r, payload.a AS a FROM \"t/#\"",
    ];
    let event = Torn {
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
fn a_payload_is_read_once_for_all_rules() {
    let (whole, torn) = (br#"{"a":1,"b":"two","c":[3]}"#, br#"x"a":1,"b":"two","c":[3]}"#);
    let expected = [
        r#"{"r":1}"#,
        r#"{"r":"two"}"#,
        r#"{"r":3,"topic":"undefined"}"#,
        r#"{"a":1,"r":3}"#,
    ];
    assert_eq!(read_by_many(whole, torn), expected);
    // The rules would tell if one of them read it again.
    assert!(
        read_by_many(torn, torn)
            .iter()
            .all(|told| told.contains("payload is not JSON"))
    );
    // An error is found once, too.
    assert!(
        read_by_many(torn, whole)
            .iter()
            .all(|told| told.contains("payload is not JSON"))
    );
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
