//! Rules that cost too much end with an error that names the limit.

#![allow(clippy::unwrap_used, reason = "tests and their helpers")]

use std::time::{Duration, Instant};

use crate::support;
use crate::support::{compile, evaluate, publish, run};
use rules::{Rule, RuleLimits};

#[test]
fn costly_rules_end() {
    let big = "x".repeat(20_000);
    let spaces = " ".repeat(3_000);
    let cases = [
        format!("pad('{big}', 1000000000)"),
        format!("replace('{big}', 'x', '{spaces}')"),
        format!("regex_replace('{big}', 'x', '{spaces}')"),
        "[1..100000000]".to_owned(),
        "bitsl(1, 1000000)".to_owned(),
        "sprintf('~10001s', 'a')".to_owned(),
        "regex_match('a', '(a{1000}){1000}')".to_owned(),
        format!("regex_match('{}', concat('(', payload.p))", "a".repeat(100)),
        "subbits('abc', 1, 1000000000000, 'bits')".to_owned() + " + subbits('aaaaaaaaaaaaaaaaaaaaaaaaaaa', 1, 200)",
        "int('1e40')".to_owned(),
        "170141183460469231731687303715884105727 + 1".to_owned(),
        "exp(1000)".to_owned(),
    ];
    for case in cases {
        let start = Instant::now();
        let shown: String = case.chars().take(60).collect();
        assert!(evaluate(&case, r#"{"p":"x"}"#).is_err(), "{shown}");
        assert!(start.elapsed() < Duration::from_secs(5), "{shown}");
    }
}

#[test]
fn decompression_stops_at_the_limit() {
    // 40 MB of zeros, compressed twice.
    let rule = compile("SELECT zip(zip(pad('', 8000000, 'trailing', '00000'))) AS bomb FROM \"t\"");
    let error = run(&rule, &publish("t", b"")).unwrap_err().to_string();
    assert!(error.contains("byte limit for one message"), "{error}");
    let rule = compile("SELECT unzip(unzip(hexstr2bin(payload))) AS x FROM \"t\"");
    let packed = evaluate("bin2hexstr(zip(zip(pad('', 3000000, 'trailing', '0'))))", "{}").unwrap();
    let event = publish("t", packed.as_bytes().unwrap());
    // A payload of three million bytes fits once, but not three times with the derived values.
    assert!(run(&rule, &event).is_ok());
    let once = "unzip(unzip(hexstr2bin(payload)))";
    let thrice = compile(&format!("SELECT {once} + {once} + {once} AS x FROM \"t\""));
    assert!(run(&thrice, &event).is_err());
}

#[test]
fn deep_rules_and_payloads_are_rejected() {
    let nested = |open: &str, close: &str, depth: usize| format!("{}1{}", open.repeat(depth), close.repeat(depth));
    for expression in [
        nested("(", ")", 100_000),
        nested("[", "]", 10_000),
        nested("abs(", ")", 10_000),
        "-".repeat(50_000) + "1",
        "NOT ".repeat(10_000) + "true",
        "1".to_owned() + &" + 1".repeat(10_000),
        "payload".to_owned() + &"[payload".repeat(5_000),
    ] {
        let sql = format!("SELECT {expression} AS x FROM \"t\"");
        assert!(Rule::compile(&sql, &RuleLimits::default()).is_err(), "{}", &sql[..40]);
    }
    let chain = "topic = 'a'".to_owned() + &" OR topic = 'b'".repeat(3_000);
    let rule = compile(&format!("SELECT topic FROM \"t\" WHERE {chain}"));
    assert!(run(&rule, &publish("t", b"")).unwrap().is_empty());
    let deep = "[".repeat(100_000);
    let error = run(
        &compile("SELECT payload.x AS x FROM \"t\""),
        &publish("t", deep.as_bytes()),
    )
    .unwrap_err();
    assert_eq!(
        error.to_string(),
        "line 1, column 8: payload is not JSON: expected less nesting at byte 64"
    );
}

#[test]
fn outputs_of_foreach_are_limited() {
    let rule = compile("FOREACH payload.list DO item FROM \"t\"");
    let payload = format!("{{\"list\":[{}1]}}", "1,".repeat(10_000));
    let error = run(&rule, &publish("t", payload.as_bytes())).unwrap_err();
    assert_eq!(
        error.to_string(),
        "line 1, column 9: FOREACH has more than 10000 outputs"
    );
}

#[test]
fn copies_of_a_large_payload_are_limited() {
    let fields: Vec<String> = (0..500).map(|i| format!("payload AS p{i}")).collect();
    let rule = compile(&format!("SELECT {} FROM \"t\"", fields.join(", ")));
    let error = run(&rule, &publish("t", &vec![b'x'; 1 << 20])).unwrap_err();
    assert!(error.to_string().contains("byte limit for one message"), "{error}");
}

#[test]
fn nesting_of_values_is_limited() {
    let wrapped = ["[1] AS a".to_owned()]
        .into_iter()
        .chain((0..5_000).map(|_| "[a] AS a".to_owned()));
    let rule = compile(&format!("SELECT {} FROM \"t\"", wrapped.collect::<Vec<_>>().join(", ")));
    let error = run(&rule, &publish("t", b"")).unwrap_err().to_string();
    assert!(
        error.ends_with("arrays and maps nest deeper than 128 levels"),
        "{error}"
    );
    let wrapped = ["[1] AS a".to_owned()]
        .into_iter()
        .chain((0..2_000).map(|_| "a AS b.c, b AS a".to_owned()));
    let rule = compile(&format!("SELECT {} FROM \"t\"", wrapped.collect::<Vec<_>>().join(", ")));
    assert!(run(&rule, &publish("t", b"")).is_err());
    let path = ".a".repeat(10_000);
    assert!(Rule::compile(&format!("SELECT 1 AS a{path} FROM \"t\""), &RuleLimits::default()).is_err());
    // The stored value grows by one level with every message, up to the limit.
    let rule = compile("SELECT kv_store_put('k', [kv_store_get('k', 0)]) AS ok FROM \"t\"");
    let (mut evaluator, mut world, mut out) = (rules::Evaluator::new(), support::World::default(), Vec::new());
    let event = publish("t", b"");
    let failed = (0..300)
        .filter(|_| evaluator.message(&event, &mut world).run(&rule, &mut out).is_err())
        .count();
    assert_eq!(failed, 300 - 128);
}
