//! Scripts, and what they cannot do.

use super::*;
use crate::chain::script::{Script, ScriptKind};

fn js(class: &str, script: &str) -> Json {
    node(class, "n", &json!({"scriptLang": "JS", "jsScript": script}))
}

#[test]
fn filters_switches_and_transformations() {
    let mut host = TestHost::default();
    let cases = [
        ("filter.TbJsFilterNode", "return msg.t > 20;", vec!["True"]),
        ("filter.TbJsFilterNode", "return msg.t > 30;", vec!["False"]),
        (
            "filter.TbJsFilterNode",
            "return metadata.deviceName === 'D' && msgType === 'POST_TELEMETRY_REQUEST';",
            vec!["True"],
        ),
        ("filter.TbJsFilterNode", "return 'yes';", vec!["Failure"]),
        ("filter.TbJsFilterNode", "throw new Error('no');", vec!["Failure"]),
        ("filter.TbJsFilterNode", "return msg.x.y;", vec!["Failure"]),
        ("filter.TbJsSwitchNode", "return ['a', 'b'];", vec!["a", "b"]),
        ("filter.TbJsSwitchNode", "return 'b';", vec!["b"]),
        ("filter.TbJsSwitchNode", "return 5;", vec!["Failure"]),
        (
            "transform.TbTransformMsgNode",
            "msg.f = msg.t * 1.8 + 32; return {msg, metadata, msgType};",
            vec!["Success"],
        ),
        (
            "transform.TbTransformMsgNode",
            "return [{msg: {a: 1}}, {msg: {b: 1}}];",
            vec!["Success", "Success"],
        ),
        ("transform.TbTransformMsgNode", "return 5;", vec!["Failure"]),
    ];
    for (class, script, expected) in cases {
        assert_eq!(
            outputs(js(class, script), message(POST_TELEMETRY, json!({"t": 25})), &mut host),
            expected,
            "{script}"
        );
    }
    assert!(
        host.texts.iter().any(|text| text.contains("\"f\":77")),
        "{:?}",
        host.texts
    );
}

#[test]
fn transformations_change_everything() {
    let mut host = TestHost::default();
    let script = "metadata.n = 5; return {msg: {a: 1}, metadata: metadata, msgType: 'POST_ATTRIBUTES_REQUEST'};";
    let nodes = [
        js("transform.TbTransformMsgNode", script),
        node("telemetry.TbMsgAttributesNode", "s", &json!({"scope": "SERVER_SCOPE"})),
    ];
    let done = run(
        &chain(&nodes, &[(0, "Success", 1)]),
        message(POST_TELEMETRY, json!({"t": 1})),
        &mut host,
    );
    assert_eq!(host.done, ["SERVER_SCOPE a notify=false"]);
    assert_eq!((done.executions, done.script_executions), (2, 1));
}

#[test]
fn a_script_of_a_log_node_and_of_details() {
    let mut host = TestHost::default();
    outputs(
        js("action.TbLogNode", "return 'T: ' + msg.t;"),
        message(POST_TELEMETRY, json!({"t": 1})),
        &mut host,
    );
    assert_eq!(host.texts[0], "T: 1");
    let create = node(
        "action.TbCreateAlarmNode",
        "n",
        &json!({"alarmType": "hot", "severity": "MAJOR",
        "alarmDetailsBuildJs": "var details = {}; if (metadata.prevAlarmDetails) { details = JSON.parse(metadata.prevAlarmDetails); } details.t = msg.t; return details;"}),
    );
    outputs(create, message(POST_TELEMETRY, json!({"t": 7})), &mut host);
    assert_eq!(host.alarms[0].details, Some(json!({"t": 7})));
}

#[test]
fn generators_make_messages_of_the_last_one() {
    let generator = node(
        "debug.TbMsgGeneratorNode",
        "n",
        &json!({"msgCount": 2, "periodInSeconds": 5, "originatorId": DEVICE.id,
        "originatorType": "DEVICE", "jsScript": "return {msg: {n: (prevMsg.n || 0) + 1}, metadata: {}, msgType: 'POST_TELEMETRY_REQUEST'};"}),
    );
    let nodes = [generator, node("telemetry.TbMsgTimeseriesNode", "s", &json!({}))];
    let generating = chain(&nodes, &[(0, "Success", 1)]);
    let mut host = TestHost::default();
    for _ in 0..3 {
        tick(&generating, 0, TENANT.id, "node-1", &mut host);
    }
    assert_eq!(host.saved, ["DEVICE n=Long(1)@5000", "DEVICE n=Long(2)@5000"]);
}

#[test]
fn limits_end_a_script_and_nothing_else() {
    let run = |script: &str| {
        let script = Script::new(script, ScriptKind::Text).unwrap();
        script.run(&message(POST_TELEMETRY, json!({})))
    };
    for endless in [
        "while (true) {}",
        "const f = () => f() + 1; return f();",
        "let a = []; while (true) a.push(new Array(100000).fill(1));",
    ] {
        assert!(run(endless).is_err(), "{endless}");
        assert_eq!(run("return 1 + 1;").unwrap(), json!(2));
    }
    assert!(run("return 'x'.repeat(400000);").is_err());
    assert!(Script::new(&"x".repeat(60_000), ScriptKind::Text).is_err());
}

#[test]
fn scripts_leave_nothing_behind() {
    let run = |script: &str| {
        Script::new(script, ScriptKind::Text)
            .unwrap()
            .run(&message(POST_TELEMETRY, json!({})))
    };
    assert!(run("globalThis.leak = 1; return 1;").is_err());
    assert!(run("JSON.parse = () => 5; return 1;").is_err());
    assert!(run("Array.prototype.map = null; return 1;").is_err());
    assert_eq!(run("return typeof leak;").unwrap(), json!("undefined"));
    for name in ["require", "fetch", "process", "std", "os"] {
        assert_eq!(
            run(&format!("return typeof {name};")).unwrap(),
            json!("undefined"),
            "{name}"
        );
    }
}

#[test]
fn a_script_in_tbel_runs_if_it_is_javascript_too() {
    let same = node(
        "filter.TbJsFilterNode",
        "n",
        &json!({"scriptLang": "TBEL", "tbelScript": "return msg.t > 1;", "jsScript": "return msg.t > 1;"}),
    );
    let mut host = TestHost::default();
    assert_eq!(
        outputs(same, message(POST_TELEMETRY, json!({"t": 2})), &mut host),
        ["True"]
    );
}
