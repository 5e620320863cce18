//! Tests of all documented alarm rule features, as scripts of events and expected effects.

mod rows;

use std::cell::Cell;

use serde_json::{Value as Json, json};
use timeseries::PointValue;

use super::*;
use crate::decode::{DecodeLimits, attributes};
use crate::ids::{AlarmId, CustomerId, DeviceId, TenantId, Uuid};
use crate::model::AlarmSeverity;

#[derive(Default)]
struct TestOwners {
    customer: Vec<(&'static str, PointValue)>,
    tenant: Vec<(&'static str, PointValue)>,
}

impl OwnerAttributeSource for TestOwners {
    fn attribute(&self, source: DynamicSource, name: &str) -> Option<PointValue> {
        let all = match source {
            DynamicSource::Customer => &self.customer,
            DynamicSource::Tenant => &self.tenant,
        };
        all.iter().find(|(key, _)| *key == name).map(|(_, value)| value.clone())
    }
}

/// A device with rules. Its clock is the time of its messages.
struct TestDevice {
    rules: AlarmRules,
    state: AlarmRulesState,
    owners: TestOwners,
    ids: Cell<u8>,
}

impl TestDevice {
    fn new(alarms: &Json) -> TestDevice {
        let rules = AlarmRules::parse(alarms.as_array().unwrap()).unwrap();
        let state = AlarmRulesState::new(&rules, |_| None);
        TestDevice {
            rules,
            state,
            owners: TestOwners::default(),
            ids: Cell::new(0),
        }
    }

    fn handle(&mut self, now_ms: i64, event: AlarmRuleEvent<'_>) -> Vec<AlarmEffect> {
        let ids = &self.ids;
        let new_id = || {
            ids.set(ids.get() + 1);
            AlarmId(Uuid([ids.get(); 16]))
        };
        let context = AlarmRuleContext {
            tenant: TenantId(Uuid([1; 16])),
            customer: CustomerId::NULL,
            device: DeviceId(Uuid([2; 16])),
            now_ms,
            new_id: &new_id,
            lookup: &self.owners,
        };
        let mut effects = Vec::new();
        self.state.handle(&self.rules, event, &context, &mut effects);
        effects
    }

    fn telemetry(&mut self, ts_ms: i64, body: &str) -> Vec<AlarmEffect> {
        let values = attributes(body.as_bytes(), &DecodeLimits::default()).unwrap();
        self.handle(ts_ms, AlarmRuleEvent::Telemetry { ts_ms, values: &values })
    }

    fn attributes(&mut self, now_ms: i64, body: &str) -> Vec<AlarmEffect> {
        let values = attributes(body.as_bytes(), &DecodeLimits::default()).unwrap();
        self.handle(now_ms, AlarmRuleEvent::Attributes { values: &values })
    }

    /// Effects in short: `+` created, `=` updated, `^` severity raised, `-` cleared.
    fn see(&mut self, ts_ms: i64, body: &str) -> String {
        short(&self.telemetry(ts_ms, body))
    }
}

fn short(effects: &[AlarmEffect]) -> String {
    let all = effects.iter().map(|effect| {
        let sign = match effect.action {
            AlarmTransition::Created => '+',
            AlarmTransition::Updated => '=',
            AlarmTransition::SeverityUpdated => '^',
            AlarmTransition::Cleared => '-',
        };
        format!("{sign}{}", effect.alarm.severity.name())
    });
    all.collect::<Vec<_>>().join(" ")
}

fn number(key: &str, operation: &str, value: f64) -> Json {
    json!({"key": {"type": "TIME_SERIES", "key": key}, "valueType": "NUMERIC", "value": null,
           "predicate": {"type": "NUMERIC", "operation": operation,
                         "value": {"defaultValue": value, "userValue": null, "dynamicValue": null}}})
}

fn rule(filters: &[Json], spec: &Json) -> Json {
    json!({"condition": {"condition": filters, "spec": spec}, "schedule": null, "alarmDetails": null,
           "dashboardId": null})
}

fn simple() -> Json {
    json!({"type": "SIMPLE"})
}

fn alarm(create: &[(&str, Json)], clear: Json) -> Json {
    let create: serde_json::Map<String, Json> = create
        .iter()
        .map(|(severity, rule)| ((*severity).to_owned(), rule.clone()))
        .collect();
    json!([{"id": "a", "alarmType": "battery low", "createRules": create, "clearRule": clear, "propagate": false,
            "propagateToOwner": false, "propagateToTenant": false, "propagateRelationTypes": null}])
}

fn battery() -> TestDevice {
    TestDevice::new(&alarm(
        &[(
            "CRITICAL",
            rule(&[number("batteryLevel", "LESS_OR_EQUAL", 20.0)], &simple()),
        )],
        rule(&[number("batteryLevel", "GREATER", 20.0)], &simple()),
    ))
}

#[test]
fn simple_rules_create_update_and_clear() {
    let mut device = battery();
    let script = [
        (1000, r#"{"batteryLevel":50}"#, ""),
        (2000, r#"{"batteryLevel":20}"#, "+CRITICAL"),
        (3000, r#"{"batteryLevel":10}"#, "=CRITICAL"),
        (4000, r#"{"pulseCounter":1}"#, ""),
        (5000, r#"{"batteryLevel":21}"#, "-CRITICAL"),
        (6000, r#"{"batteryLevel":22}"#, ""),
        (7000, r#"{"batteryLevel":5}"#, "+CRITICAL"),
    ];
    for (ts_ms, body, expected) in script {
        assert_eq!(device.see(ts_ms, body), expected, "{ts_ms} {body}");
    }
}

#[test]
fn alarm_has_the_times_of_its_data() {
    let mut device = battery();
    let created = device.telemetry(2000, r#"{"batteryLevel":20}"#).remove(0).alarm;
    assert_eq!((created.start_ts, created.end_ts, created.cleared), (2000, 2000, false));
    assert_eq!(created.details, Some(json!({})));
    let updated = device.telemetry(3000, r#"{"batteryLevel":19}"#).remove(0).alarm;
    assert_eq!((updated.id, updated.start_ts, updated.end_ts), (created.id, 2000, 3000));
    let cleared = device.telemetry(4000, r#"{"batteryLevel":30}"#).remove(0).alarm;
    assert_eq!(
        (cleared.id, cleared.cleared, cleared.clear_ts),
        (created.id, true, 4000)
    );
}

#[test]
fn load_tool_profile_never_clears() {
    let mut device = TestDevice::new(&alarm(
        &[(
            "CRITICAL",
            rule(&[number("batteryLevel", "LESS_OR_EQUAL", 20.0)], &simple()),
        )],
        rule(
            &[
                number("batteryLevel", "GREATER", 20.0),
                number("batteryLevel", "EQUAL", 0.0),
            ],
            &simple(),
        ),
    ));
    assert_eq!(device.see(1, r#"{"batteryLevel":10}"#), "+CRITICAL");
    assert_eq!(device.see(2, r#"{"batteryLevel":90}"#), "");
    assert_eq!(device.see(3, r#"{"batteryLevel":10}"#), "=CRITICAL");
}

#[test]
fn severity_is_raised_and_never_lowered() {
    let mut device = TestDevice::new(&alarm(
        &[
            ("MINOR", rule(&[number("t", "GREATER", 10.0)], &simple())),
            ("CRITICAL", rule(&[number("t", "GREATER", 30.0)], &simple())),
            ("MAJOR", rule(&[number("t", "GREATER", 20.0)], &simple())),
        ],
        rule(&[number("t", "LESS_OR_EQUAL", 10.0)], &simple()),
    ));
    let script = [
        (1, 15, "+MINOR"),
        (2, 25, "^MAJOR"),
        (3, 35, "^CRITICAL"),
        (4, 25, ""),
        (5, 36, "=CRITICAL"),
        (6, 5, "-CRITICAL"),
        (7, 25, "+MAJOR"),
    ];
    for (ts_ms, value, expected) in script {
        assert_eq!(device.see(ts_ms, &format!("{{\"t\":{value}}}")), expected, "{value}");
    }
}

#[test]
fn durations_add_up_between_events() {
    let spec = json!({"type": "DURATION", "unit": "SECONDS", "predicate": {"defaultValue": 10, "userValue": null, "dynamicValue": null}});
    let mut device = TestDevice::new(&alarm(
        &[("MAJOR", rule(&[number("t", "GREATER", 10.0)], &spec))],
        Json::Null,
    ));
    let script = [
        (1_000, 20, ""),
        (6_000, 20, ""),
        // Exactly ten seconds: not longer than required.
        (11_000, 20, ""),
        (11_001, 20, "+MAJOR"),
        (12_000, 5, ""),
        (13_000, 20, ""),
        (23_000, 20, ""),
        (23_001, 20, "=MAJOR"),
    ];
    for (ts_ms, value, expected) in script {
        assert_eq!(device.see(ts_ms, &format!("{{\"t\":{value}}}")), expected, "{ts_ms}");
    }
}

#[test]
fn durations_fire_without_new_data() {
    let spec = json!({"type": "DURATION", "unit": "MINUTES", "predicate": {"defaultValue": 1}});
    let mut device = TestDevice::new(&alarm(
        &[("MAJOR", rule(&[number("t", "GREATER", 10.0)], &spec))],
        Json::Null,
    ));
    assert_eq!(short(&device.handle(500_000, AlarmRuleEvent::Tick)), "");
    device.telemetry(1_000_000, r#"{"t":20}"#);
    assert_eq!(short(&device.handle(1_060_000, AlarmRuleEvent::Tick)), "");
    let effects = device.handle(1_060_001, AlarmRuleEvent::Tick);
    assert_eq!(short(&effects), "+MAJOR");
    // The reported duration is that of the events.
    assert_eq!(effects[0].condition, FiredCondition::DurationMs(0));
}

#[test]
fn repeating_rule_fires_after_consecutive_matches() {
    let spec = json!({"type": "REPEATING", "predicate": {"defaultValue": 3, "userValue": null, "dynamicValue": null}});
    let mut device = TestDevice::new(&alarm(
        &[("WARNING", rule(&[number("t", "GREATER", 10.0)], &spec))],
        Json::Null,
    ));
    let script = [
        (1, 20, ""),
        (2, 20, ""),
        (3, 5, ""),
        (4, 20, ""),
        (5, 20, ""),
        (6, 20, "+WARNING"),
        (7, 20, "=WARNING"),
    ];
    for (ts_ms, value, expected) in script {
        assert_eq!(device.see(ts_ms, &format!("{{\"t\":{value}}}")), expected, "{ts_ms}");
    }
    // The same value at the same time is not a new event.
    assert_eq!(device.see(7, r#"{"t":20}"#), "");
    let counted = device.telemetry(8, r#"{"t":20}"#);
    assert_eq!(counted[0].condition, FiredCondition::Repeats(5));
}

#[test]
fn clear_resets_all_counters() {
    let spec = json!({"type": "REPEATING", "predicate": {"defaultValue": 2}});
    let mut device = TestDevice::new(&alarm(
        &[("WARNING", rule(&[number("t", "GREATER", 10.0)], &spec))],
        rule(&[number("reset", "EQUAL", 1.0)], &simple()),
    ));
    assert_eq!(device.see(1, r#"{"t":20}"#), "");
    assert_eq!(device.see(2, r#"{"t":20}"#), "+WARNING");
    assert!(device.state.has_counters());
    assert_eq!(device.see(3, r#"{"reset":1}"#), "-WARNING");
    assert!(!device.state.has_counters());
    assert_eq!(device.see(4, r#"{"t":20}"#), "");
}

#[test]
fn operations_compare_values() {
    let cases = [
        ("NUMERIC", "EQUAL", json!(5), "5", true),
        ("NUMERIC", "EQUAL", json!(5), "5.5", false),
        ("NUMERIC", "NOT_EQUAL", json!(5), "6", true),
        ("NUMERIC", "GREATER", json!(5), "5", false),
        ("NUMERIC", "GREATER_OR_EQUAL", json!(5), "5", true),
        ("NUMERIC", "LESS", json!(5), "4.9", true),
        ("NUMERIC", "LESS_OR_EQUAL", json!(5), "5.1", false),
        ("NUMERIC", "EQUAL", json!(1), "true", true),
        ("NUMERIC", "EQUAL", json!(1), "\"abc\"", false),
        ("STRING", "EQUAL", json!("on"), "\"on\"", true),
        ("STRING", "EQUAL", json!("ON"), "\"on\"", false),
        ("STRING", "NOT_EQUAL", json!("on"), "\"off\"", true),
        ("STRING", "STARTS_WITH", json!("ab"), "\"abc\"", true),
        ("STRING", "ENDS_WITH", json!("bc"), "\"abc\"", true),
        ("STRING", "CONTAINS", json!("b"), "\"abc\"", true),
        ("STRING", "NOT_CONTAINS", json!("x"), "\"abc\"", true),
        ("STRING", "IN", json!("a, 'b c', d"), "\"b c\"", true),
        ("STRING", "IN", json!("a,b"), "\"c\"", false),
        ("STRING", "NOT_IN", json!("a,b"), "\"c\"", true),
        ("STRING", "EQUAL", json!("5"), "5", true),
        ("BOOLEAN", "EQUAL", json!(true), "true", true),
        ("BOOLEAN", "NOT_EQUAL", json!(true), "false", true),
        ("BOOLEAN", "EQUAL", json!(true), "1", true),
    ];
    for (kind, operation, threshold, value, expected) in cases {
        let filter = json!({"key": {"type": "TIME_SERIES", "key": "k"}, "valueType": kind,
            "predicate": {"type": kind, "operation": operation, "ignoreCase": false, "value": {"defaultValue": threshold}}});
        let mut device = TestDevice::new(&alarm(&[("MINOR", rule(&[filter], &simple()))], Json::Null));
        let found = !device.see(1, &format!("{{\"k\":{value}}}")).is_empty();
        assert_eq!(found, expected, "{value} {operation} {threshold}");
    }
}

#[test]
fn strings_ignore_case_in_complex_predicates() {
    let text = |operation: &str, value: &str| json!({"type": "STRING", "operation": operation, "ignoreCase": true, "value": {"defaultValue": value}});
    let any = json!({"type": "COMPLEX", "operation": "OR", "predicates": [text("EQUAL", "ON"), text("EQUAL", "auto")]});
    let all = json!({"type": "COMPLEX", "operation": "AND", "predicates": [any, text("NOT_EQUAL", "AUTO")]});
    let filter = json!({"key": {"type": "TIME_SERIES", "key": "k"}, "valueType": "STRING", "predicate": all});
    let mut device = TestDevice::new(&alarm(&[("MINOR", rule(&[filter], &simple()))], Json::Null));
    assert_eq!(device.see(1, r#"{"k":"auto"}"#), "");
    assert_eq!(device.see(2, r#"{"k":"on"}"#), "+MINOR");
}

#[test]
fn missing_value_fails_the_condition() {
    let filters = [number("a", "GREATER", 1.0), number("b", "GREATER", 1.0)];
    let mut device = TestDevice::new(&alarm(&[("MINOR", rule(&filters, &simple()))], Json::Null));
    assert_eq!(device.see(1, r#"{"a":5}"#), "");
    assert_eq!(device.see(2, r#"{"b":5}"#), "+MINOR");
}

#[test]
fn attributes_and_fields_are_keys() {
    let key = |kind: &str, key: &str, value: &str| {
        json!({"key": {"type": kind, "key": key}, "valueType": "STRING",
               "predicate": {"type": "STRING", "operation": "EQUAL", "value": {"defaultValue": value}}})
    };
    let filters = [key("ATTRIBUTE", "mode", "on"), key("ENTITY_FIELD", "name", "D1")];
    let mut device = TestDevice::new(&alarm(&[("MINOR", rule(&filters, &simple()))], Json::Null));
    device.state = AlarmRulesState::new(&device.rules, |key| {
        (key.source == KeySource::Field).then(|| PointValue::String("D1".into()))
    });
    assert_eq!(device.see(1, r#"{"mode":"on"}"#), "");
    assert_eq!(short(&device.attributes(2, r#"{"mode":"on"}"#)), "+MINOR");
    assert_eq!(
        short(&device.handle(3, AlarmRuleEvent::AttributesDeleted { keys: &["mode"] })),
        ""
    );
    assert_eq!(short(&device.attributes(4, r#"{"other":"on"}"#)), "");
}

fn dynamic(source: &str, inherit: bool) -> Json {
    let filter = json!({"key": {"type": "TIME_SERIES", "key": "t"}, "valueType": "NUMERIC",
        "predicate": {"type": "NUMERIC", "operation": "GREATER",
            "value": {"defaultValue": 100, "dynamicValue": {"sourceType": source, "sourceAttribute": "limit", "inherit": inherit}}}});
    alarm(&[("MINOR", rule(&[filter], &simple()))], Json::Null)
}

#[test]
fn thresholds_from_attributes_fall_through_to_the_owners() {
    // Source, inherited, device, customer, tenant, expected threshold.
    type ThresholdCase = (&'static str, bool, Option<i64>, Option<i64>, Option<i64>, i64);
    let cases: &[ThresholdCase] = &[
        ("CURRENT_DEVICE", false, Some(10), Some(20), Some(30), 10),
        ("CURRENT_DEVICE", false, None, Some(20), Some(30), 100),
        ("CURRENT_DEVICE", true, None, Some(20), Some(30), 20),
        ("CURRENT_DEVICE", true, None, None, Some(30), 30),
        ("CURRENT_DEVICE", true, None, None, None, 100),
        ("CURRENT_CUSTOMER", false, Some(10), Some(20), Some(30), 20),
        ("CURRENT_CUSTOMER", false, Some(10), None, Some(30), 100),
        ("CURRENT_CUSTOMER", true, Some(10), None, Some(30), 30),
        ("CURRENT_TENANT", false, Some(10), Some(20), Some(30), 30),
        ("CURRENT_TENANT", false, Some(10), Some(20), None, 100),
    ];
    for (source, inherit, own, customer, tenant, threshold) in cases {
        for (value, fires) in [(*threshold, false), (threshold + 1, true)] {
            let mut device = TestDevice::new(&dynamic(source, *inherit));
            device.owners.customer = customer
                .map(|value| ("limit", PointValue::Long(value)))
                .into_iter()
                .collect();
            device.owners.tenant = tenant
                .map(|value| ("limit", PointValue::Long(value)))
                .into_iter()
                .collect();
            if let Some(own) = own {
                device.attributes(1, &format!("{{\"limit\":{own}}}"));
            }
            let seen = device.see(2, &format!("{{\"t\":{value}}}"));
            assert_eq!(
                !seen.is_empty(),
                fires,
                "{source} {inherit} {own:?} {customer:?} {tenant:?} {value}"
            );
        }
    }
}

#[test]
fn new_threshold_triggers_the_rule() {
    let mut device = TestDevice::new(&dynamic("CURRENT_DEVICE", false));
    assert_eq!(device.see(1, r#"{"t":50}"#), "");
    assert_eq!(short(&device.attributes(2, r#"{"limit":40}"#)), "+MINOR");
}

#[test]
fn counts_and_durations_come_from_attributes() {
    let value = |default: i64| json!({"defaultValue": default, "dynamicValue": {"sourceType": "CURRENT_DEVICE", "sourceAttribute": "n"}});
    let spec = json!({"type": "REPEATING", "predicate": value(5)});
    let mut device = TestDevice::new(&alarm(
        &[("MINOR", rule(&[number("t", "GREATER", 0.0)], &spec))],
        Json::Null,
    ));
    device.attributes(1, r#"{"n":2}"#);
    assert_eq!(device.see(2, r#"{"t":1}"#), "");
    assert_eq!(device.see(3, r#"{"t":1}"#), "+MINOR");
    let spec = json!({"type": "DURATION", "unit": "SECONDS", "predicate": value(100)});
    let mut device = TestDevice::new(&alarm(
        &[("MINOR", rule(&[number("t", "GREATER", 0.0)], &spec))],
        Json::Null,
    ));
    device.attributes(1, r#"{"n":"1"}"#);
    assert_eq!(device.see(1_000, r#"{"t":1}"#), "");
    assert_eq!(device.see(2_001, r#"{"t":1}"#), "+MINOR");
}

const HOUR: i64 = 3_600_000;
/// 2024-01-01, a Monday, 00:00 UTC.
const MONDAY: i64 = 1_704_067_200_000;

fn scheduled(schedule: &Json) -> TestDevice {
    let mut rule = rule(&[number("t", "GREATER", 0.0)], &simple());
    rule["schedule"] = schedule.clone();
    TestDevice::new(&alarm(&[("MINOR", rule)], Json::Null))
}

#[test]
fn schedules_limit_rules() {
    let specific = |zone: &str, days: &[i64], from: i64, to: i64| json!({"type": "SPECIFIC_TIME", "timezone": zone, "daysOfWeek": days, "startsOn": from * HOUR, "endsOn": to * HOUR});
    let custom = json!({"type": "CUSTOM", "timezone": "UTC", "items": [
        {"enabled": true, "dayOfWeek": 1, "startsOn": 8 * HOUR, "endsOn": 10 * HOUR},
        {"enabled": false, "dayOfWeek": 2, "startsOn": 0, "endsOn": 0},
        {"enabled": true, "dayOfWeek": 3, "startsOn": 0, "endsOn": 0},
    ]});
    let all = [1, 2, 3, 4, 5, 6, 7];
    let cases = [
        (Json::Null, 0, true),
        (json!({"type": "ANY_TIME"}), 5, true),
        (specific("UTC", &all, 9, 17), 8, false),
        (specific("UTC", &all, 9, 17), 9, true),
        (specific("UTC", &all, 9, 17), 17, false),
        (specific("UTC", &[2], 9, 17), 9, false),
        (specific("UTC", &[2], 9, 17), 24 + 9, true),
        // Midnight, written as zero.
        (specific("UTC", &all, 9, 0), 23, true),
        // Over midnight. The weekday is that of the event.
        (specific("UTC", &all, 22, 6), 23, true),
        (specific("UTC", &all, 22, 6), 5, true),
        (specific("UTC", &all, 22, 6), 12, false),
        (specific("UTC", &[1], 22, 6), 24 + 5, false),
        // 22:00 UTC is 00:00 of Tuesday in Kyiv.
        (specific("Europe/Kyiv", &[2], 0, 1), 22, true),
        (specific("Europe/Kyiv", &[1], 0, 1), 22, false),
        (custom.clone(), 9, true),
        (custom.clone(), 11, false),
        (custom.clone(), 24 + 9, false),
        (custom.clone(), 48 + 9, true),
        (custom, 72 + 9, false),
    ];
    for (schedule, hours, expected) in cases {
        let seen = scheduled(&schedule).see(MONDAY + hours * HOUR, r#"{"t":1}"#);
        assert_eq!(!seen.is_empty(), expected, "{schedule} at {hours}");
    }
}

#[test]
fn schedule_comes_from_an_attribute() {
    let schedule = json!({"type": "SPECIFIC_TIME", "timezone": "UTC", "daysOfWeek": [1], "startsOn": 0, "endsOn": HOUR,
        "dynamicValue": {"sourceType": "CURRENT_DEVICE", "sourceAttribute": "hours", "inherit": false}});
    let mut device = scheduled(&schedule);
    assert_eq!(device.see(MONDAY + 5 * HOUR, r#"{"t":1}"#), "");
    device.attributes(
        1,
        r#"{"hours":{"type":"SPECIFIC_TIME","timezone":"UTC","daysOfWeek":[1],"startsOn":0,"endsOn":0}}"#,
    );
    assert_eq!(device.see(MONDAY + 5 * HOUR, r#"{"t":2}"#), "+MINOR");
}

/// Independent of the values and of how often the details contain them.
#[test]
fn filled_details_are_bounded_and_not_recursive() {
    let alarms = |details: &str| {
        let filter = |key: &str| {
            json!({"key": {"type": "TIME_SERIES", "key": key}, "valueType": "STRING",
            "predicate": {"type": "STRING", "operation": "NOT_EQUAL", "value": {"defaultValue": ""}}})
        };
        json!([{"id": "1", "alarmType": "long", "createRules": {"MAJOR": {"alarmDetails": details,
            "condition": {"condition": [filter("a"), filter("b")], "spec": {"type": "SIMPLE"}}}}}])
    };
    let data = |details: &str, values: Json| {
        let mut device = TestDevice::new(&alarms(details));
        let details = device.telemetry(1, &values.to_string()).remove(0).alarm.details;
        details.unwrap()["data"].as_str().unwrap().to_owned()
    };
    assert_eq!(data("${a} ${b}", json!({"a": "${b}", "b": "${a}"})), "${b} ${a}");
    let long = "\u{e4}".repeat(300_000);
    let values = json!({"a": "${b}".repeat(200_000), "b": long});
    assert_eq!(data("${a}", values.clone()).len(), 800_000);
    let cut = data(&format!("x{}", "${b}".repeat(100_000)), values);
    assert_eq!(cut.len(), (1 << 20) - 1, "no partial character");
    assert!(cut.starts_with('x') && cut.ends_with('\u{e4}'));
}

#[test]
fn details_contain_values() {
    let mut definition = alarm(
        &[("MINOR", rule(&[number("t", "GREATER", 0.0)], &simple()))],
        Json::Null,
    );
    definition[0]["createRules"]["MINOR"]["alarmDetails"] = json!("t is ${t}, not ${u}");
    definition[0]["createRules"]["MINOR"]["dashboardId"] = json!({"entityType": "DASHBOARD", "id": "d"});
    let mut device = TestDevice::new(&definition);
    let details = device.telemetry(1, r#"{"t":5}"#).remove(0).alarm.details;
    assert_eq!(details, Some(json!({"data": "t is 5, not ${u}", "dashboardId": "d"})));
}

#[test]
fn constants_compare_with_attributes() {
    let filter = json!({"key": {"type": "CONSTANT", "key": "c"}, "valueType": "NUMERIC", "value": "50",
        "predicate": {"type": "NUMERIC", "operation": "GREATER", "value": {"defaultValue": 0,
            "dynamicValue": {"sourceType": "CURRENT_DEVICE", "sourceAttribute": "limit"}}}});
    let mut device = TestDevice::new(&alarm(&[("MINOR", rule(&[filter], &simple()))], Json::Null));
    assert_eq!(short(&device.attributes(1, r#"{"limit":60}"#)), "");
    assert_eq!(short(&device.attributes(2, r#"{"limit":40}"#)), "+MINOR");
}

#[test]
fn acknowledged_and_ended_alarms_are_tracked() {
    let mut device = battery();
    let id = device.telemetry(1, r#"{"batteryLevel":1}"#).remove(0).alarm.id.unwrap();
    device.handle(2, AlarmRuleEvent::AlarmAcknowledged { id, at_ms: 2 });
    let updated = device.telemetry(3, r#"{"batteryLevel":2}"#).remove(0).alarm;
    assert!(updated.acknowledged && updated.ack_ts == 2);
    device.handle(4, AlarmRuleEvent::AlarmEnded(id));
    assert_eq!(device.see(5, r#"{"batteryLevel":3}"#), "+CRITICAL");
}

#[test]
fn alarm_from_before_the_start_is_updated() {
    let mut device = battery();
    let before = device.telemetry(1, r#"{"batteryLevel":1}"#).remove(0).alarm;
    let mut restarted = battery();
    restarted.state.restore_alarm(&restarted.rules, before);
    assert_eq!(restarted.see(2, r#"{"batteryLevel":2}"#), "=CRITICAL");
    assert_eq!(restarted.state.active_alarms().count(), 1);
}

#[test]
fn counters_survive_a_restart() {
    let spec = json!({"type": "REPEATING", "predicate": {"defaultValue": 3}});
    let definition = alarm(&[("WARNING", rule(&[number("t", "GREATER", 10.0)], &spec))], Json::Null);
    let mut device = TestDevice::new(&definition);
    device.see(1, r#"{"t":20}"#);
    device.see(2, r#"{"t":20}"#);
    let bytes = device.state.counters(&device.rules);
    let mut restarted = TestDevice::new(&definition);
    restarted.state.restore_counters(&restarted.rules, &bytes);
    assert_eq!(restarted.see(3, r#"{"t":20}"#), "+WARNING");
    restarted.state.restore_counters(&restarted.rules, b"damaged");
    assert!(!restarted.state.has_counters());
}

#[test]
fn propagation_settings_are_copied_to_the_alarm() {
    let mut definition = alarm(
        &[("MINOR", rule(&[number("t", "GREATER", 0.0)], &simple()))],
        Json::Null,
    );
    definition[0]["propagate"] = json!(true);
    definition[0]["propagateToTenant"] = json!(true);
    definition[0]["propagateRelationTypes"] = json!(["Contains"]);
    let alarm = TestDevice::new(&definition).telemetry(1, r#"{"t":5}"#).remove(0).alarm;
    assert!(alarm.propagate && !alarm.propagate_to_owner && alarm.propagate_to_tenant);
    assert_eq!(alarm.propagate_relation_types, Some(vec!["Contains".to_owned()]));
    assert_eq!(alarm.severity, AlarmSeverity::Minor);
}

#[test]
fn invalid_rule_is_rejected_with_its_name() {
    let mut definition = alarm(&[("MINOR", rule(&[number("t", "ALMOST", 0.0)], &simple()))], Json::Null);
    let error = AlarmRules::parse(definition.as_array().unwrap()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "Alarm rule \"battery low\" cannot be evaluated: numeric operation \"ALMOST\" is not supported"
    );
    definition[0]["createRules"] = json!({"TERRIBLE": {}});
    assert!(AlarmRules::parse(definition.as_array().unwrap()).is_err());
}
