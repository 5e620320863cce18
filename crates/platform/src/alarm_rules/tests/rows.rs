//! Rows of the alarm rule tables: each operation on both sides of its threshold, each unit, each kind of clear rule.
//!
//! The parent module covers dynamic thresholds and their owners, schedules, details, propagation and restarts.

use super::*;

/// A threshold of 5, and whether smaller, equal and greater values fire.
#[test]
fn number_operations_compare_with_the_threshold() {
    let rows = [
        ("EQUAL", [false, true, false]),
        ("NOT_EQUAL", [true, false, true]),
        ("GREATER", [false, false, true]),
        ("LESS", [true, false, false]),
        ("GREATER_OR_EQUAL", [false, true, true]),
        ("LESS_OR_EQUAL", [true, true, false]),
    ];
    for (operation, expected) in rows {
        for values in [["4", "5", "6"], ["4.999", "5.0", "5.001"], ["\"4\"", "\"5\"", "\"6\""]] {
            let fires = values.map(|value| {
                let mut device = TestDevice::new(&alarm(
                    &[("MINOR", rule(&[number("k", operation, 5.0)], &simple()))],
                    Json::Null,
                ));
                !device.see(1, &format!("{{\"k\":{value}}}")).is_empty()
            });
            assert_eq!(fires, expected, "{operation} {values:?}");
        }
    }
}

/// For strings: the threshold, whether case matters, and which of `abc`, `ABC`, `x` and the empty string fire.
#[test]
fn string_and_boolean_operations_compare_values() {
    let rows = [
        ("EQUAL", "abc", false, [true, false, false, false]),
        ("EQUAL", "abc", true, [true, true, false, false]),
        ("NOT_EQUAL", "abc", false, [false, true, true, true]),
        ("NOT_EQUAL", "abc", true, [false, false, true, true]),
        ("STARTS_WITH", "ab", false, [true, false, false, false]),
        ("STARTS_WITH", "ab", true, [true, true, false, false]),
        ("ENDS_WITH", "bc", false, [true, false, false, false]),
        ("ENDS_WITH", "bc", true, [true, true, false, false]),
        ("CONTAINS", "b", false, [true, false, false, false]),
        ("CONTAINS", "b", true, [true, true, false, false]),
        ("NOT_CONTAINS", "b", false, [false, true, true, true]),
        ("NOT_CONTAINS", "b", true, [false, false, true, true]),
        ("IN", "abc,x", false, [true, false, true, false]),
        ("IN", "abc,x", true, [true, true, true, false]),
        ("NOT_IN", "abc,x", false, [false, true, false, true]),
        ("NOT_IN", "abc,x", true, [false, false, false, true]),
    ];
    let fires = |kind: &str, predicate: &Json, value: &str| {
        let filter =
            json!({"key": {"type": "TIME_SERIES", "key": "k"}, "valueType": kind, "predicate": predicate.clone()});
        let mut device = TestDevice::new(&alarm(&[("MINOR", rule(&[filter], &simple()))], Json::Null));
        !device.see(1, &format!("{{\"k\":{value}}}")).is_empty()
    };
    for (operation, threshold, ignores_case, expected) in rows {
        let predicate = json!({"type": "STRING", "operation": operation, "ignoreCase": ignores_case,
            "value": {"defaultValue": threshold}});
        let found = ["\"abc\"", "\"ABC\"", "\"x\"", "\"\""].map(|value| fires("STRING", &predicate, value));
        assert_eq!(found, expected, "{operation} {threshold} {ignores_case}");
    }
    for (operation, threshold, expected) in [
        ("EQUAL", true, [true, false]),
        ("EQUAL", false, [false, true]),
        ("NOT_EQUAL", true, [false, true]),
        ("NOT_EQUAL", false, [true, false]),
    ] {
        let predicate = json!({"type": "BOOLEAN", "operation": operation, "value": {"defaultValue": threshold}});
        let found = ["true", "false"].map(|value| fires("BOOLEAN", &predicate, value));
        assert_eq!(found, expected, "{operation} {threshold}");
    }
}

#[test]
fn missing_value_is_false_for_each_operation() {
    for (kind, operation, threshold) in [
        ("NUMERIC", "NOT_EQUAL", json!(5)),
        ("STRING", "NOT_EQUAL", json!("x")),
        ("STRING", "NOT_CONTAINS", json!("x")),
        ("STRING", "NOT_IN", json!("x")),
        ("BOOLEAN", "NOT_EQUAL", json!(true)),
    ] {
        let never = json!({"key": {"type": "TIME_SERIES", "key": "never"}, "valueType": kind,
            "predicate": {"type": kind, "operation": operation, "value": {"defaultValue": threshold}}});
        let filters = [number("t", "GREATER", 0.0), never];
        let mut device = TestDevice::new(&alarm(&[("MINOR", rule(&filters, &simple()))], Json::Null));
        assert_eq!(device.see(1, r#"{"t":1}"#), "", "{kind} {operation}");
    }
}

/// Thresholds of all types come from attributes. An attribute of another type is ignored.
#[test]
fn thresholds_of_all_types_come_from_attributes() {
    let rows = [
        ("NUMERIC", json!(100), r#"{"limit":5}"#, "6", true),
        ("NUMERIC", json!(100), r#"{"limit":"5"}"#, "6", true),
        ("NUMERIC", json!(100), r#"{"limit":"five"}"#, "6", false),
        ("STRING", json!("a"), r#"{"limit":"b"}"#, "\"b\"", true),
        ("STRING", json!("a"), r#"{"limit":"b"}"#, "\"a\"", false),
        ("BOOLEAN", json!(true), r#"{"limit":false}"#, "false", true),
        ("BOOLEAN", json!(true), r#"{"limit":false}"#, "true", false),
    ];
    for (kind, default, attribute, value, expected) in rows {
        let operation = if kind == "NUMERIC" { "GREATER" } else { "EQUAL" };
        let filter = json!({"key": {"type": "TIME_SERIES", "key": "k"}, "valueType": kind,
            "predicate": {"type": kind, "operation": operation, "value": {"defaultValue": default,
                "dynamicValue": {"sourceType": "CURRENT_DEVICE", "sourceAttribute": "limit", "inherit": false}}}});
        let mut device = TestDevice::new(&alarm(&[("MINOR", rule(&[filter], &simple()))], Json::Null));
        device.attributes(1, attribute);
        let found = !device.see(2, &format!("{{\"k\":{value}}}")).is_empty();
        assert_eq!(found, expected, "{kind} {attribute} {value}");
    }
}

#[test]
fn durations_use_their_unit() {
    for (unit, millis) in [
        ("SECONDS", 1_000),
        ("MINUTES", 60_000),
        ("HOURS", HOUR),
        ("DAYS", 24 * HOUR),
    ] {
        let spec = json!({"type": "DURATION", "unit": unit, "predicate": {"defaultValue": 2}});
        let mut device = TestDevice::new(&alarm(
            &[("MAJOR", rule(&[number("t", "GREATER", 0.0)], &spec))],
            Json::Null,
        ));
        assert_eq!(device.see(MONDAY, r#"{"t":1}"#), "");
        assert_eq!(
            device.see(MONDAY + 2 * millis, r#"{"t":1}"#),
            "",
            "{unit}: longer is wanted"
        );
        assert_eq!(device.see(MONDAY + 2 * millis + 1, r#"{"t":1}"#), "+MAJOR", "{unit}");
    }
}

/// A clear rule may repeat or last like others. It is evaluated only while an alarm is active and no create rule
/// matches.
#[test]
fn clear_rules_work_with_each_condition_type() {
    let repeating = json!({"type": "REPEATING", "predicate": {"defaultValue": 2}});
    let lasting = json!({"type": "DURATION", "unit": "SECONDS", "predicate": {"defaultValue": 10}});
    let rows = [
        (
            simple(),
            vec![
                (1_000, 1, ""),
                (2_000, 9, "+MAJOR"),
                (3_000, 1, "-MAJOR"),
                (4_000, 1, ""),
            ],
        ),
        (
            repeating,
            vec![
                (1_000, 1, ""),
                (2_000, 9, "+MAJOR"),
                (3_000, 1, ""),
                (4_000, 9, "=MAJOR"),
                (5_000, 1, ""),
                (6_000, 1, "-MAJOR"),
            ],
        ),
        (
            lasting,
            vec![
                (1_000, 9, "+MAJOR"),
                (2_000, 1, ""),
                (12_000, 1, ""),
                (12_001, 1, "-MAJOR"),
                (13_000, 9, "+MAJOR"),
            ],
        ),
    ];
    for (spec, script) in rows {
        let mut device = TestDevice::new(&alarm(
            &[("MAJOR", rule(&[number("t", "GREATER", 5.0)], &simple()))],
            rule(&[number("t", "LESS", 5.0)], &spec),
        ));
        for (ts_ms, value, expected) in script {
            assert_eq!(
                device.see(ts_ms, &format!("{{\"t\":{value}}}")),
                expected,
                "{spec} at {ts_ms}"
            );
        }
    }
    // Both match, so the alarm stays active.
    let mut both = TestDevice::new(&alarm(
        &[("MAJOR", rule(&[number("t", "GREATER", 5.0)], &simple()))],
        rule(&[number("t", "GREATER", 7.0)], &simple()),
    ));
    assert_eq!(
        [6, 8, 9].map(|t| both.see(t, &format!("{{\"t\":{t}}}"))),
        ["+MAJOR", "=MAJOR", "=MAJOR"]
    );
}

#[test]
fn worst_of_five_severities_applies() {
    let thresholds = [
        ("INDETERMINATE", 1.0),
        ("WARNING", 2.0),
        ("MINOR", 3.0),
        ("MAJOR", 4.0),
        ("CRITICAL", 5.0),
    ];
    let rules: Vec<(&str, Json)> = thresholds
        .iter()
        .map(|(severity, limit)| (*severity, rule(&[number("t", "GREATER_OR_EQUAL", *limit)], &simple())))
        .collect();
    for (index, (severity, limit)) in thresholds.iter().enumerate() {
        let mut device = TestDevice::new(&alarm(&rules, Json::Null));
        let value = |limit: f64| format!("{{\"t\":{limit}}}");
        assert_eq!(device.see(1, &value(*limit)), format!("+{severity}"));
        if let Some((worse, limit)) = thresholds.get(index + 1) {
            assert_eq!(device.see(2, &value(*limit)), format!("^{worse}"));
        }
    }
}

/// An event counts for a rule only if it contains one of the rule's keys.
#[test]
fn other_keys_do_not_trigger_a_rule() {
    let spec = json!({"type": "REPEATING", "predicate": {"defaultValue": 2}});
    let mut device = TestDevice::new(&alarm(
        &[("MINOR", rule(&[number("t", "GREATER", 0.0)], &spec))],
        Json::Null,
    ));
    let script = [
        (1, r#"{"t":1}"#, ""),
        (2, r#"{"other":1}"#, ""),
        (3, r#"{"other":2}"#, ""),
        (4, r#"{"t":1,"other":3}"#, "+MINOR"),
    ];
    for (ts_ms, body, expected) in script {
        assert_eq!(device.see(ts_ms, body), expected, "{body}");
    }
}
