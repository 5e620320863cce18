//! Properties for any text and any message: no panic, no cost beyond the limits, and the same JSON as an independent
//! parser.

#![allow(clippy::unwrap_used, reason = "tests and their helpers")]

use crate::support;
use crate::support::{World, publish};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::scale::scaled;
use rules::{
    Evaluator, EventKind, JsonForm, JsonLimits, MissingText, Rule, RuleLimits, SampleEvent, Template, UnknownColumns,
    Value, decode_json, encode_json, functions,
};

/// Random parts of rules. The result is mostly invalid, and sometimes a rule.
fn random_rule() -> impl Strategy<Value = String> {
    let words: Vec<String> = [
        "SELECT",
        "FOREACH",
        "FROM",
        "WHERE",
        "AS",
        "DO",
        "INCASE",
        "CASE",
        "WHEN",
        "THEN",
        "ELSE",
        "END",
        "AND",
        "OR",
        "NOT",
        "IN",
        "div",
        "mod",
        "(",
        ")",
        "[",
        "]",
        ",",
        ".",
        "*",
        "+",
        "-",
        "/",
        "=",
        "=~",
        "<",
        ">=",
        "..",
        "'a'",
        "'",
        "\"t/#\"",
        "\"",
        "1",
        "2.5",
        "0",
        "99999999999999999999999999999999999999999",
        "payload",
        "payload.a",
        "topic",
        "item",
        "true",
        "--",
        "\n",
        "é",
    ]
    .into_iter()
    .map(str::to_owned)
    .chain(functions().map(|function| format!("{}(", function.name)))
    .collect();
    vec(proptest::sample::select(words), 0..40).prop_map(|words| format!("SELECT {} FROM \"t/#\"", words.join(" ")))
}

/// Random valid expressions.
fn expression() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        Just("payload".to_owned()),
        Just("payload.a".to_owned()),
        Just("payload.b[1].c".to_owned()),
        Just("payload.b[-1]".to_owned()),
        Just("topic".to_owned()),
        Just("qos".to_owned()),
        Just("pub_props".to_owned()),
        Just("null".to_owned()),
        Just("true".to_owned()),
        Just("[1..5]".to_owned()),
        any::<i32>().prop_map(|int| format!("({int})")),
        (-1e6..1e6).prop_map(|float: f64| format!("({float:?})")),
        "[a-z0-9 .:%~+-]{0,8}".prop_map(|text| format!("'{text}'")),
    ];
    let names: Vec<(&str, usize)> = functions()
        .map(|function| (function.name, function.signature().matches(',').count() + 1))
        .collect();
    leaf.prop_recursive(4, 40, 4, move |inner| {
        prop_oneof![
            (
                inner.clone(),
                proptest::sample::select(vec!["+", "-", "*", "/", "div", "mod"]),
                inner.clone()
            )
                .prop_map(|(a, operator, b)| format!("({a} {operator} {b})")),
            (
                inner.clone(),
                proptest::sample::select(vec!["=", "<", ">=", "!=", "=~", "AND", "OR"]),
                inner.clone()
            )
                .prop_map(|(a, operator, b)| format!("({a} {operator} {b})")),
            vec(inner.clone(), 0..4).prop_map(|items| format!("[{}]", items.join(", "))),
            (inner.clone(), inner.clone(), inner.clone())
                .prop_map(|(a, b, c)| format!("CASE {a} WHEN {b} THEN {c} ELSE {b} END")),
            (proptest::sample::select(names.clone()), vec(inner, 6))
                .prop_map(|((name, count), arguments)| { format!("{name}({})", arguments[..count.min(6)].join(", ")) }),
        ]
    })
}

fn payload() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        vec(any::<u8>(), 0..60),
        json().prop_map(|json| json.to_string().into_bytes()),
        Just(br#"{"a":"warm","b":[{"c":2},{"c":"{\"d\":1}"}]}"#.to_vec()),
    ]
}

fn json() -> impl Strategy<Value = serde_json::Value> {
    let leaf = prop_oneof![
        Just(serde_json::Value::Null),
        any::<bool>().prop_map(serde_json::Value::from),
        any::<i64>().prop_map(serde_json::Value::from),
        any::<f64>().prop_map(serde_json::Value::from),
        ".{0,8}".prop_map(serde_json::Value::from),
    ];
    leaf.prop_recursive(5, 40, 6, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..5).prop_map(serde_json::Value::from),
            proptest::collection::btree_map("[a-c\"\\\\é]{0,3}", inner, 0..5)
                .prop_map(|entries| serde_json::Value::Object(entries.into_iter().collect())),
        ]
    })
}

fn small_limits() -> RuleLimits {
    RuleLimits {
        unknown_columns: UnknownColumns::Undefined,
        steps_max: 20_000,
        result_bytes_max: 100_000,
        ..RuleLimits::default()
    }
}

fn run_on_everything(rule: &Rule, event: &SampleEvent) {
    let mut out = Vec::new();
    let mut evaluator = Evaluator::new();
    let mut world = World::default();
    let result = evaluator.message(event, &mut world).run(rule, &mut out);
    assert!(result.is_ok() || out.is_empty(), "after an error there are no outputs");
    for output in out {
        let value = Value::Map(output.clone());
        let json = encode_json(&value, JsonForm::UndefinedAsNull);
        assert!(
            serde_json::from_slice::<serde_json::Value>(&json).is_ok(),
            "{}",
            String::from_utf8_lossy(&json)
        );
        let mut text = Vec::new();
        let template = Template::compile("${.} ${r} ${r.a[1]}").unwrap();
        template.render(&output, MissingText::Undefined, &mut text).unwrap();
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: scaled(1500) as u32,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn the_compiler_never_panics(text in "\\PC{0,80}", random_rule in random_rule()) {
        let _ = Rule::compile(&text, &RuleLimits::default());
        let _ = Template::compile(&text);
        if let Ok(rule) = Rule::compile(&random_rule, &small_limits()) {
            run_on_everything(&rule, &publish("t/a", b"{\"a\":[1]}"));
        }
    }

    #[test]
    fn rules_never_panic(expression in expression(), payload in payload()) {
        for sql in [
            format!("SELECT {expression} AS r FROM \"t/#\""),
            format!("FOREACH {expression} AS i DO i, i.a AS a, {expression} AS r INCASE i != 2 FROM \"t/#\""),
        ] {
            if let Ok(rule) = Rule::compile(&sql, &small_limits()) {
                run_on_everything(&rule, &publish("t/a", &payload));
            }
        }
    }

    #[test]
    fn json_is_parsed_like_by_another_parser(payload in payload(), changes in vec((any::<prop::sample::Index>(), any::<u8>()), 0..3)) {
        let mut bytes = payload;
        for (index, byte) in changes {
            if !bytes.is_empty() {
                let at = index.index(bytes.len());
                bytes[at] = byte;
            }
        }
        let ours = decode_json(&bytes, &JsonLimits::default());
        let theirs = serde_json::from_slice::<serde_json::Value>(&bytes);
        prop_assert_eq!(ours.is_ok(), theirs.is_ok(), "{:?} {:?}", ours, theirs);
        if let (Ok(ours), Ok(theirs)) = (ours, theirs) {
            let again = encode_json(&ours, JsonForm::UndefinedAsNull);
            prop_assert!(decode_json(&again, &JsonLimits::default()).unwrap().loosely_equal(&ours));
            let again: serde_json::Value = serde_json::from_slice(&again).unwrap();
            prop_assert!(is_same(&again, &theirs), "{} {}", again, theirs);
        }
    }

    #[test]
    fn order_is_a_total_order(a in json(), b in json(), c in json()) {
        let decode = |json: &serde_json::Value| decode_json(json.to_string().as_bytes(), &JsonLimits::default()).unwrap();
        let (a, b, c) = (decode(&a), decode(&b), decode(&c));
        prop_assert_eq!(a.order(&b), b.order(&a).reverse());
        if a.order(&b).is_le() && b.order(&c).is_le() {
            prop_assert!(a.order(&c).is_le());
        }
    }
}

/// Compares two values. A number can be a float in only one of the two, and the last digit can differ because the other
/// parser is not exact.
fn is_same(a: &serde_json::Value, b: &serde_json::Value) -> bool {
    match (a, b) {
        (serde_json::Value::Number(a), serde_json::Value::Number(b)) => {
            let (a, b) = (a.as_f64().unwrap(), b.as_f64().unwrap());
            (a - b).abs() <= 4.0 * f64::EPSILON * a.abs()
        }
        (serde_json::Value::Array(a), serde_json::Value::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| is_same(a, b))
        }
        (serde_json::Value::Object(a), serde_json::Value::Object(b)) => {
            a.len() == b.len()
                && a.iter()
                    .all(|(key, value)| b.get(key).is_some_and(|other| is_same(value, other)))
        }
        _ => a == b,
    }
}

#[test]
fn events_without_payload_have_undefined_fields_of_it() {
    let rule = support::compile(r##"SELECT payload.x AS x, event FROM "#", "$events/client/connected""##);
    let event = SampleEvent::example(EventKind::ClientConnected, 0);
    let outputs = support::run(&rule, &event).unwrap();
    assert_eq!(
        support::json_lines(outputs),
        r#"{"event":"client.connected","x":"undefined"}"#
    );
}
