//! RPC calls from REST pass the rule chain of their device.
//!
//! The chain can stop a call, change it, and process its result.

use std::thread;

use serde_json::{Value as Json, json};

use super::rest::Rest;
use super::world::login;
use crate::support::*;

const CONFIG: &str = "[platform]\nenabled = true\ndemo = true\n";
const CALLS: &str = "v1/devices/me/rpc/request/";
const NOT_CALLED: &str = "no node of the device's rule chain sent the request in time";

fn node(class: &str, name: &str, configuration: &Json) -> Json {
    json!({"type": format!("org.thingsboard.rule.engine.{class}"), "name": name, "debugMode": false, "configuration": configuration,
        "additionalInfo": {}})
}

fn script(class: &str, name: &str, text: &str) -> Json {
    node(class, name, &json!({"scriptLang": "JS", "jsScript": text}))
}

/// Installs a chain that stops calls of the method "forbidden" and adds the device name to the parameters of all
/// others. The chain saves the result of a call as telemetry of the device.
fn put_chain(rest: &Rest) {
    let nodes = [
        node("filter.TbMsgTypeSwitchNode", "Kinds", &json!({"version": 0})),
        script("filter.TbJsFilterNode", "Allowed", "return msg.method !== 'forbidden';"),
        script(
            "transform.TbTransformMsgNode",
            "Who",
            "var params = JSON.parse(msg.params); params.device = metadata.deviceName; params.twoway = metadata.oneway === 'false'; \
             msg.params = JSON.stringify(params); return {msg: msg, metadata: metadata, msgType: msgType};",
        ),
        node("rpc.TbSendRPCRequestNode", "Call", &json!({"timeoutInSeconds": 60})),
        script(
            "transform.TbTransformMsgNode",
            "As telemetry",
            "return {msg: msg, metadata: metadata, msgType: 'POST_TELEMETRY_REQUEST'};",
        ),
        node("telemetry.TbMsgTimeseriesNode", "Save", &json!({"defaultTTL": 0})),
    ];
    let connections = json!([
        {"fromIndex": 0, "toIndex": 1, "type": "RPC Request to Device"},
        {"fromIndex": 1, "toIndex": 2, "type": "True"},
        {"fromIndex": 2, "toIndex": 3, "type": "Success"},
        {"fromIndex": 3, "toIndex": 4, "type": "Success"},
        {"fromIndex": 3, "toIndex": 4, "type": "Failure"},
        {"fromIndex": 4, "toIndex": 5, "type": "Success"},
    ]);
    let chains = rest.ok("GET", "/api/ruleChains?pageSize=10&page=0", &Json::Null);
    let metadata = json!({"ruleChainId": chains["data"][0]["id"], "firstNodeIndex": 0, "nodes": nodes, "connections": connections,
        "ruleChainConnections": null});
    rest.ok("POST", "/api/ruleChain/metadata", &metadata);
}

/// Starts a server and creates a device "A". Returns the device identifier.
fn start() -> (Server, Rest, String) {
    let server = Server::start(&Config::new(CONFIG));
    let rest = Rest::login(&server);
    put_chain(&rest);
    let device = rest.device("A", "TOKEN");
    (server, rest, device)
}

fn call(method: &str) -> Json {
    json!({"method": method, "params": {"n": 1}, "timeout": 5000})
}

/// Waits until the chain has saved a value for this key and returns the latest one.
fn saved(server: &Server, rest: &Rest, device: &str, key: &str) -> String {
    let path = format!("/api/plugins/telemetry/DEVICE/{device}/values/timeseries?keys={key}&useStrictDataTypes=false");
    let found = rest.wait_for(server, &path, |found| found[key][0]["value"].is_string());
    found[key][0]["value"].as_str().expect("a text").to_owned()
}

#[test]
fn chain_changes_calls_and_processes_the_answer() {
    let (server, rest, device) = start();
    let mut peer = server.session(&login(V4, "TOKEN"));
    peer.subscribe(format!("{CALLS}+"), 1);
    thread::scope(|scope| {
        let asked = scope.spawn(|| rest.ok("POST", &format!("/api/rpc/twoway/{device}"), &call("open")));
        let request = peer.receive();
        let body: Json = serde_json::from_str(request.payload_str()).expect("JSON");
        assert_eq!(
            body,
            json!({"method": "open", "params": {"n": 1, "device": "A", "twoway": true}})
        );
        let number = request
            .topic_str()
            .strip_prefix(CALLS)
            .expect("the topic of calls")
            .to_owned();
        peer.publish(&Publish::new(format!("v1/devices/me/rpc/response/{number}"), r#"{"is":"open"}"#).qos(1));
        assert_eq!(asked.join().expect("an answer"), json!({"is": "open"}));
    });
    assert_eq!(saved(&server, &rest, &device, "is"), "open");
    let (status, answer) = rest.raw("POST", &format!("/api/rpc/oneway/{device}"), &call("close").to_string());
    assert_eq!((status, answer.as_str()), (200, ""));
    let body: Json = serde_json::from_str(peer.receive().payload_str()).expect("JSON");
    assert_eq!(body["params"]["twoway"], json!(false));
}

#[test]
fn call_stopped_by_the_chain_fails_without_reaching_the_device() {
    let (server, rest, device) = start();
    let mut peer = server.session(&login(V4, "TOKEN"));
    peer.subscribe(format!("{CALLS}+"), 1);
    let mut kept = call("forbidden");
    kept["persistent"] = json!(true);
    thread::scope(|scope| {
        let stopped = |path: &str, body: Json| {
            let path = format!("{path}/{device}");
            let rest = &rest;
            scope.spawn(move || rest.call("POST", &path, &body))
        };
        let all = [
            (504, stopped("/api/rpc/twoway", call("forbidden"))),
            (408, stopped("/api/plugins/rpc/oneway", call("forbidden"))),
            (504, stopped("/api/rpc/oneway", kept)),
        ];
        for (status, stopped) in all {
            let (answered, answer) = stopped.join().expect("an answer");
            assert_eq!(answered, status, "{answer}");
            let message = answer["message"].as_str().unwrap_or_default();
            assert!(message.starts_with(NOT_CALLED), "{answer}");
        }
    });
    let list = format!("/api/rpc/persistent/device/{device}?pageSize=10&page=0");
    assert_eq!(rest.ok("GET", &list, &Json::Null)["totalElements"], 0);
    rest.raw(
        "POST",
        &format!("/api/rpc/oneway/{device}"),
        &call("allowed").to_string(),
    );
    assert!(
        peer.receive().payload_str().contains("allowed"),
        "the stopped calls did not reach the device"
    );
}

#[test]
fn call_to_an_offline_device_leaves_the_node_by_failure() {
    let (server, rest, device) = start();
    let (status, answer) = rest.call("POST", &format!("/api/plugins/rpc/twoway/{device}"), &call("open"));
    assert_eq!(status, 409, "{answer}");
    assert_eq!(saved(&server, &rest, &device, "error"), "NO_ACTIVE_CONNECTION");
}

#[test]
fn persistent_call_has_the_parameters_changed_by_the_chain() {
    let (server, rest, device) = start();
    let mut body = call("open");
    body["persistent"] = json!(true);
    let answer = rest.ok("POST", &format!("/api/rpc/twoway/{device}"), &body);
    let id = answer["rpcId"].as_str().expect("an identifier").to_owned();
    let rpc = rest.ok("GET", &format!("/api/rpc/persistent/{id}"), &Json::Null);
    let params: Json = serde_json::from_str(rpc["request"]["body"]["params"].as_str().expect("a text")).expect("JSON");
    assert_eq!(params, json!({"n": 1, "device": "A", "twoway": true}));
    assert_eq!(
        saved(&server, &rest, &device, "rpcId"),
        id,
        "the chain receives the call's identifier"
    );
}
