//! Scripts and their limits.

use super::*;
use crate::chain::script::{Script, ScriptKind};

fn js(class: &str, script: &str) -> Json {
    node(class, "n", &json!({"scriptLang": "JS", "jsScript": script}))
}

#[test]
fn scripts_filter_switch_and_transform() {
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
fn transformations_change_data_metadata_and_type() {
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
fn log_and_details_scripts_run() {
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
fn generators_use_their_previous_message() {
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

/// Runs a script once, as a text script.
fn once(tenant: TenantId, script: &str) -> Result<Json, NodeError> {
    let script = Script::new(tenant, script, ScriptKind::Text).unwrap();
    script.run(&message(POST_TELEMETRY, json!({"secret": 42})), None)
}

#[test]
fn limits_stop_only_the_script() {
    for endless in [
        "while (true) {}",
        "try { while (true) {} } catch (e) {} finally { while (true) {} }",
        "const f = () => f() + 1; return f();",
        "let a = []; while (true) a.push(new Array(100000).fill(1));",
        "return /(a+)+$/.test('a'.repeat(50) + 'b');",
        "Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0);",
    ] {
        assert!(once(TENANT_ID, endless).is_err(), "{endless}");
        assert_eq!(once(TENANT_ID, "return 1 + 1;").unwrap(), json!(2));
    }
    assert!(once(TENANT_ID, "return 'x'.repeat(400000);").is_err());
    assert!(Script::new(TENANT_ID, &"x".repeat(60_000), ScriptKind::Text).is_err());
}

#[test]
fn script_must_be_one_function_body() {
    for escaped in [
        "return 1; }); (function() { return 'escaped';",
        "return 1; }); while (true) {} (function() { return 1;",
        "}, function() { return 1;",
        "} [x] = function() {",
        "} }); ({ script() {",
        "} } class Other { script() {",
        "`${(() => {",
        "/*",
        "}",
        "{",
    ] {
        assert!(Script::new(TENANT_ID, escaped, ScriptKind::Text).is_err(), "{escaped}");
    }
    for body in [
        "return [1].map(function (x) { return { a: x }; });",
        "// the end",
        "class A { m() { return 1; } } return new A().m();",
        "return `${[1].map((x) => { return x; })}`;",
        "",
    ] {
        assert!(Script::new(TENANT_ID, body, ScriptKind::Text).is_ok(), "{body}");
    }
}

#[test]
fn scripts_cannot_change_later_calls() {
    let run = |script: &str| once(TENANT_ID, script);
    for change in [
        "globalThis.leak = 1; return 1;",
        "JSON.parse = () => 5; return 1;",
        "Array.prototype.map = null; return 1;",
        "Object.getPrototypeOf([][Symbol.iterator]()).next = null;",
        "Object.getPrototypeOf(function* () {}).leak = 1;",
        "Object.getPrototypeOf(Int8Array).leak = 1;",
        "(0, eval)('var leak = 1');",
    ] {
        assert!(run(change).is_err(), "{change}");
    }
    (0..2).for_each(|_| {
        assert_eq!(
            run("(0, eval)('let leak = 1'); return typeof leak;").unwrap(),
            json!("undefined")
        )
    });
    run("new Function('leak = 1')();").unwrap();
    for name in ["leak", "require", "fetch", "process", "std", "os"] {
        assert_eq!(
            run(&format!("return typeof {name};")).unwrap(),
            json!("undefined"),
            "{name}"
        );
    }
}

/// Walks everything that a script can reach or create.
#[test]
fn reachable_objects_are_frozen() {
    let found = once(
        TENANT_ID,
        "const seen = new Set(), open = [];
        const look = (value, path) => {
            if ((typeof value !== 'function' && (typeof value !== 'object' || value === null)) || seen.has(value)) return;
            seen.add(value);
            if (!Object.isFrozen(value)) open.push(path);
            look(Object.getPrototypeOf(value), path + '.__proto__');
            for (const key of Reflect.ownKeys(value)) {
                const property = Object.getOwnPropertyDescriptor(value, key);
                for (const kind of ['value', 'get', 'set']) look(property[kind], path + '.' + String(key) + ' ' + kind);
            }
        };
        const g = function* () {}, a = async function () {}, ag = async function* () {};
        const made = { array: [], regexp: /x/, g, a, ag, gi: Object.getPrototypeOf(g()), agi: Object.getPrototypeOf(ag()), promise: a(), values: [].values(), map: new Map().entries(),
            set: new Set().values(), text: ''[Symbol.iterator](), matches: ''.matchAll(/x/g), helper: [].values().filter(Boolean),
            wrapped: Iterator.from({ next() {} }), typed: new Int8Array(0), error: new Error('x'), date: new Date(0), arrow: () => {},
            bound: look.bind(null), args: (function () { return arguments; })(), proxy: new Proxy({}, {}), next: ag().next(),
            entries: Object.entries({ a: 1 }), groups: 'x'.match(/(?<a>x)/), symbol: Object(Symbol.iterator), big: Object(1n) };
        for (const [name, value] of Object.entries(made)) look(Object.getPrototypeOf(value), name);
        look(globalThis, 'globalThis');
        return [open, seen.size > 500];",
    );
    assert_eq!(found.unwrap(), json!([[], true]));
}

#[test]
fn promises_do_not_run_after_the_call() {
    assert_eq!(
        once(TENANT_ID, "Promise.resolve().then(() => { throw 1; }); return 1;").unwrap(),
        json!(1)
    );
    assert_eq!(once(TENANT_ID, "return msg.secret;").unwrap(), json!(42));
}

#[test]
fn tbel_script_runs_if_it_equals_the_javascript() {
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
