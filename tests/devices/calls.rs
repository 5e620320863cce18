//! RPC calls to offline devices wait for the device. Persistent calls also survive a restart.

use std::thread;
use std::time::Duration;

use serde_json::{Value as Json, json};

use super::rest::Rest;
use super::world::login;
use crate::support::*;

const CONFIG: &str = "[platform]\nenabled = true\ndemo = true\n";
const CALLS: &str = "v1/devices/me/rpc/request/";
const FAR_MS: i64 = 4_000_000_000_000;

fn call(method: &str, more: Json) -> Json {
    let mut call = json!({"method": method, "params": {"n": 1}, "persistent": true, "expirationTime": FAR_MS});
    for (name, value) in more.as_object().expect("an object") {
        call[name] = value.clone();
    }
    call
}

fn begin(rest: &Rest, way: &str, device: &str, body: &Json) -> String {
    let answer = rest.ok("POST", &format!("/api/rpc/{way}/{device}"), body);
    answer["rpcId"].as_str().expect("a persistent call").to_owned()
}

/// Returns the API path of a persistent call.
fn call_path(id: &str) -> String {
    format!("/api/rpc/persistent/{id}")
}

/// Returns the request number and the method of the next call.
fn next(peer: &mut Peer) -> (String, String) {
    let call = peer.receive();
    let number = call.topic_str().strip_prefix(CALLS).expect("the topic of calls");
    let body: Json = serde_json::from_str(call.payload_str()).expect("JSON");
    (number.to_owned(), body["method"].as_str().expect("a method").to_owned())
}

#[test]
fn persistent_calls_survive_a_restart_and_arrive_in_order() {
    let mut server = Server::start(&Config::new(CONFIG));
    let rest = Rest::login(&server);
    let device = rest.device("A", "TOKEN");
    let first = begin(
        &rest,
        "twoway",
        &device,
        &call("first", json!({"additionalInfo": {"who": "me"}})),
    );
    let second = begin(&rest, "oneway", &device, &call("second", json!({})));
    let deleted = begin(&rest, "twoway", &device, &call("deleted", json!({})));
    let late = begin(&rest, "twoway", &device, &call("late", json!({"expirationTime": 1})));
    let rpc = rest.ok("GET", &call_path(&first), &Json::Null);
    assert_eq!(
        (&rpc["status"], &rpc["additionalInfo"]),
        (&json!("QUEUED"), &json!({"who": "me"}))
    );
    assert_eq!(
        (&rpc["deviceId"]["id"], &rpc["response"]),
        (&json!(device), &Json::Null)
    );
    let body = json!({"method": "first", "params": "{\"n\":1}"});
    assert_eq!(
        (&rpc["request"]["body"], &rpc["request"]["oneway"]),
        (&body, &json!(false))
    );
    assert_eq!(rest.ok("GET", &call_path(&late), &Json::Null)["status"], "EXPIRED");
    rest.ok("DELETE", &call_path(&deleted), &Json::Null);
    assert_eq!(rest.call("GET", &call_path(&deleted), &Json::Null).0, 404);

    server.kill();
    server.spawn_again();
    server.wait_until_ready();
    let rest = Rest::login(&server);
    let third = begin(&rest, "twoway", &device, &call("third", json!({})));
    let mut peer = server.session(&login(V4, "TOKEN"));
    peer.subscribe(format!("{CALLS}+"), 1);
    let (number, method) = next(&mut peer);
    assert_eq!(method, "first");
    peer.publish(&Publish::new(format!("v1/devices/me/rpc/response/{number}"), r#"{"did":1}"#).qos(1));
    assert_eq!(next(&mut peer).1, "second");
    assert_eq!(next(&mut peer).1, "third");
    let rpc = rest.wait_for(&server, &call_path(&first), |rpc| rpc["status"] == "SUCCESSFUL");
    assert_eq!(rpc["response"], json!({"did": 1}));
    // The peer acknowledged both. This completes a one-way call, but a two-way call also needs an answer.
    for id in [&second, &third] {
        rest.wait_for(&server, &call_path(id), |rpc| rpc["status"] == "DELIVERED");
    }
    let list = format!("/api/rpc/persistent/device/{device}?pageSize=10&page=0");
    assert_eq!(rest.ok("GET", &list, &Json::Null)["totalElements"], 4);
    let delivered = rest.ok("GET", &format!("{list}&rpcStatus=DELIVERED"), &Json::Null);
    assert_eq!(delivered["totalElements"], 2);
    assert_eq!(
        rest.call("GET", &format!("{list}&rpcStatus=DELETED"), &Json::Null).0,
        400
    );

    peer.disconnect();
    let at_once = begin(&rest, "oneway", &device, &call("at QoS 0", json!({})));
    let mut peer = server.session(&login(V4, "TOKEN"));
    peer.subscribe(format!("{CALLS}+"), 0);
    assert_eq!(next(&mut peer).1, "at QoS 0", "delivered calls are not sent again");
    rest.wait_for(&server, &call_path(&at_once), |rpc| rpc["status"] == "DELIVERED");
}

/// ThingsBoard parses and serializes the parameters again, so whitespace from an indenting client disappears.
#[test]
fn call_parameters_lose_only_their_whitespace() {
    let server = Server::start(&Config::new(CONFIG));
    let rest = Rest::login(&server);
    let device = rest.device("A", "TOKEN");
    let mut peer = server.session(&login(V4, "TOKEN"));
    peer.subscribe(format!("{CALLS}+"), 1);
    let body = r#"{ "method": "set", "params": { "z": [ 1, 2.50 ],
        "a": " b : \" c " }, "timeout": 20000 }"#;
    let (status, answer) = rest.raw("POST", &format!("/api/rpc/oneway/{device}"), body);
    assert_eq!(status, 200, "{answer}");
    assert_eq!(
        peer.receive().payload_str(),
        r#"{"method":"set","params":{"z":[1,2.50],"a":" b : \" c "}}"#
    );
}

#[test]
fn call_waits_for_an_offline_device_until_its_timeout() {
    let server = Server::start(&Config::new(CONFIG));
    let rest = Rest::login(&server);
    let device = rest.device("A", "TOKEN");
    thread::scope(|scope| {
        let body = json!({"method": "early", "params": {}, "timeout": 60_000});
        let path = format!("/api/rpc/twoway/{device}");
        let rest = &rest;
        let asked = scope.spawn(move || rest.ok("POST", &path, &body));
        let mut peer = server.session(&login(V5, "TOKEN"));
        peer.subscribe(format!("{CALLS}+"), 1);
        let (number, method) = next(&mut peer);
        assert_eq!(method, "early");
        peer.publish(&Publish::new(format!("v1/devices/me/rpc/response/{number}"), r#"{"ok":true}"#).qos(1));
        assert_eq!(asked.join().expect("an answer"), json!({"ok": true}));
    });
}

#[test]
fn calls_wait_for_gateway_devices_and_http_devices() {
    let server = Server::start(&Config::new(CONFIG));
    let rest = Rest::login(&server);
    let gateway = json!({"name": "G", "type": "default", "additionalInfo": {"gateway": true}});
    rest.ok("POST", "/api/device?accessToken=GATE", &gateway);
    let behind = rest.device("B", "TOKEN-B");
    let kept_call = begin(&rest, "twoway", &behind, &call("open", json!({})));
    let mut peer = server.session(&login(V4, "GATE"));
    peer.subscribe("v1/gateway/rpc", 1);
    peer.publish(&Publish::new("v1/gateway/connect", r#"{"device":"B"}"#).qos(1));
    let sent = peer.receive();
    let sent: Json = serde_json::from_str(sent.payload_str()).expect("JSON");
    assert_eq!(
        (&sent["device"], &sent["data"]["method"]),
        (&json!("B"), &json!("open"))
    );
    let answer = json!({"device": "B", "id": sent["data"]["id"], "data": {"is": "open"}});
    peer.publish(&Publish::new("v1/gateway/rpc", answer.to_string()).qos(1));
    let rpc = rest.wait_for(&server, &call_path(&kept_call), |rpc| rpc["status"] == "SUCCESSFUL");
    assert_eq!(rpc["response"], json!({"is": "open"}));

    let polling = rest.device("P", "POLL");
    let kept_call = begin(&rest, "oneway", &polling, &call("poll", json!({})));
    let (status, body) = super::http::request(server.http(), "GET", "/api/v1/POLL/rpc?timeout=15000", "", "");
    let body: Json = serde_json::from_str(&body).expect("JSON");
    assert_eq!((status, &body["method"]), (200, &json!("poll")));
    rest.wait_for(&server, &call_path(&kept_call), |rpc| rpc["status"] == "DELIVERED");
    server.terminate(Duration::from_secs(30));
}

#[test]
fn gateway_gets_no_calls_for_a_device_it_disconnected() {
    let server = Server::start(&Config::new(CONFIG));
    let rest = Rest::login(&server);
    let gateway = json!({"name": "G", "type": "default", "additionalInfo": {"gateway": true}});
    rest.ok("POST", "/api/device?accessToken=GATE", &gateway);
    let device = rest.device("B", "TOKEN");
    let mut peer = server.session(&login(V4, "GATE"));
    peer.subscribe("v1/gateway/rpc", 1);
    for topic in ["v1/gateway/connect", "v1/gateway/disconnect"] {
        peer.publish(&Publish::new(topic, r#"{"device":"B"}"#).qos(1));
    }
    // The answer to this request comes after all earlier messages are processed.
    peer.publish(&Publish::new("v1/gateway/connect", r#"{"device":"C"}"#).qos(1));
    let asked = r#"{"id":1,"device":"C","client":true,"key":"none"}"#;
    peer.publish(&Publish::new("v1/gateway/attributes/request", asked).qos(1));
    assert_eq!(peer.receive().topic_str(), "v1/gateway/attributes/response");
    let waiting = begin(&rest, "twoway", &device, &call("later", json!({})));
    assert_eq!(rest.ok("GET", &call_path(&waiting), &Json::Null)["status"], "QUEUED");
    peer.publish(&Publish::new("v1/gateway/connect", r#"{"device":"B"}"#).qos(1));
    let request: Json = serde_json::from_str(peer.receive().payload_str()).expect("JSON");
    assert_eq!(
        (&request["device"], &request["data"]["method"]),
        (&json!("B"), &json!("later"))
    );
}
