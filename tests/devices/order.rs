//! Order and durability of acknowledged device messages over MQTT and HTTP.
//!
//! Rule chains and readers see them in the order of their acknowledgements. They are still stored after a kill.

use serde_json::{Value as Json, json};

use super::http::request;
use super::rest::Rest;
use super::world::{NOW, login};
use crate::support::*;

const CONFIG: &str = "[platform]\nenabled = true\ndemo = true\n[limits]\nshutdown_grace = \"500ms\"\n";

/// Publishes many messages and waits for their acknowledgements. Later messages queue behind them.
fn pile_up(busy: &mut Peer) {
    const MESSAGES: u16 = 8;
    let values: Vec<String> = (0..10_000).map(|n| format!("\"k{n}\":{n}")).collect();
    let body = format!("{{{}}}", values.join(","));
    let message = Publish::new("v1/devices/me/telemetry", body).qos(1);
    for id in 1..=MESSAGES {
        busy.send(&message.clone().id(id).bytes(V4));
    }
    for _ in 0..MESSAGES {
        busy.expect(kind::PUBACK);
    }
}

/// The root chain adds the device's shared attribute `n` to telemetry.
fn enriching_chain(rest: &Rest) {
    let class = |name: &str| format!("org.thingsboard.rule.engine.{name}");
    let all = rest.ok("GET", "/api/ruleChains?pageSize=10&page=0&type=CORE", &Json::Null);
    let chains = all["data"].as_array().cloned().unwrap_or_default();
    let root = chains.iter().find(|chain| chain["root"] == true).expect("a root chain");
    let nodes = json!([
        {"type": class("filter.TbMsgTypeSwitchNode"), "name": "types", "configuration": {"version": 0}},
        {"type": class("metadata.TbGetAttributesNode"), "name": "n", "configuration":
            {"sharedAttributeNames": ["n"], "fetchTo": "DATA", "tellFailureIfAbsent": false}},
        {"type": class("telemetry.TbMsgTimeseriesNode"), "name": "points", "configuration": {"defaultTTL": 0}},
        {"type": class("telemetry.TbMsgAttributesNode"), "name": "attributes", "configuration": {"scope": "CLIENT_SCOPE"}},
    ]);
    let connections = json!([
        {"fromIndex": 0, "toIndex": 1, "type": "Post telemetry"},
        {"fromIndex": 1, "toIndex": 2, "type": "Success"},
        {"fromIndex": 0, "toIndex": 3, "type": "Post attributes"},
    ]);
    let metadata = json!({"ruleChainId": root["id"], "firstNodeIndex": 0, "nodes": nodes, "connections": connections});
    rest.ok("POST", "/api/ruleChain/metadata", &metadata);
}

#[test]
fn chains_and_readers_see_messages_in_acknowledgement_order() {
    let server = Server::start(&Config::new(CONFIG));
    let rest = Rest::login(&server);
    enriching_chain(&rest);
    let device = rest.device("D", "TOKEN");
    rest.device("Busy", "BUSY");
    let mut busy = server.session(&login(V4, "BUSY"));
    let mut peer = server.session(&login(V4, "TOKEN"));
    let at = server.http();
    let values = format!("/api/plugins/telemetry/DEVICE/{device}/values");
    for n in 1..=4_i64 {
        pile_up(&mut busy);
        // The device sends telemetry over MQTT and HTTP and then an attribute. Then a user sets an attribute. Each step
        // waits for the acknowledgement of the previous one.
        let telemetry = format!("{{\"ts\":{},\"values\":{{\"i\":{n}}}}}", NOW + n);
        let of_device = format!("{{\"said\":{n}}}");
        if n % 2 == 0 {
            let said = request(at, "POST", "/api/v1/TOKEN/telemetry", "", &telemetry);
            assert_eq!(said.0, 200, "{}", said.1);
            assert_eq!(request(at, "POST", "/api/v1/TOKEN/attributes", "", &of_device).0, 200);
        } else {
            peer.publish(&Publish::new("v1/devices/me/telemetry", telemetry).qos(1));
            peer.publish(&Publish::new("v1/devices/me/attributes", of_device).qos(1));
        }
        let asked = request(at, "GET", "/api/v1/TOKEN/attributes?clientKeys=said", "", "");
        assert_eq!(
            asked,
            (200, format!("{{\"client\":{{\"said\":{n}}}}}")),
            "a device reads the attribute that it sent"
        );
        pile_up(&mut busy);
        let last = format!("{{\"ts\":{},\"values\":{{\"j\":{n}}}}}", NOW + n);
        assert_eq!(request(at, "POST", "/api/v1/TOKEN/telemetry", "", &last).0, 200);
        let path = format!("/api/plugins/telemetry/DEVICE/{device}/attributes/SHARED_SCOPE");
        rest.ok("POST", &path, &json!({"n": n, "gone": n}));
        // The user's attribute applied from its acknowledgement on. Earlier telemetry was enriched with the old value.
        let shared = rest.ok("GET", &format!("{values}/attributes/SHARED_SCOPE?keys=n"), &Json::Null);
        assert_eq!(shared[0]["value"], n, "{shared}");
        let points = rest.ok("GET", &format!("{values}/timeseries?keys=j,shared_n"), &Json::Null);
        assert_eq!(points["j"][0]["value"], n.to_string(), "{points}");
        let met = match n {
            1 => Json::Null,
            n => json!((n - 1).to_string()),
        };
        assert_eq!(points["shared_n"][0]["value"], met, "{points}");
        let path = format!("/api/plugins/telemetry/DEVICE/{device}/SHARED_SCOPE?keys=gone");
        assert_eq!(rest.call("DELETE", &path, &Json::Null).0, 200);
        let shared = rest.ok(
            "GET",
            &format!("{values}/attributes/SHARED_SCOPE?keys=gone"),
            &Json::Null,
        );
        assert_eq!(shared, json!([]));
    }
}

#[test]
fn acknowledged_but_unprocessed_messages_survive_a_kill() {
    let mut server = Server::start(&Config::new(CONFIG));
    let rest = Rest::login(&server);
    let [device, claimed, other] = ["D", "Claimed", "Other"].map(|name| rest.device(name, name));
    rest.device("Busy", "BUSY");
    let mut busy = server.session(&login(V4, "BUSY"));
    pile_up(&mut busy);
    let at = server.http();
    assert_eq!(request(at, "POST", "/api/v1/D/attributes", "", r#"{"http":1}"#).0, 200);
    let mut peer = server.session(&login(V4, "D"));
    peer.publish(&Publish::new("v1/devices/me/attributes", r#"{"mqtt":2}"#).qos(1));
    let claim = r#"{"secretKey":"s","durationMs":600000}"#;
    let mut peer = server.session(&login(V4, "Claimed"));
    peer.publish(&Publish::new("v1/devices/me/claim", claim).qos(1));
    assert_eq!(request(at, "POST", "/api/v1/Other/claim", "", claim).0, 200);
    server.kill();
    server.spawn_again();
    server.wait_until_ready();
    let found = request(
        server.http(),
        "GET",
        "/api/v1/D/attributes?clientKeys=http,mqtt",
        "",
        "",
    );
    assert_eq!(found, (200, r#"{"client":{"http":1,"mqtt":2}}"#.to_owned()));
    let rest = Rest::login(&server);
    let path = format!("/api/plugins/telemetry/DEVICE/{device}/attributes/SERVER_SCOPE");
    rest.ok("POST", &path, &json!({"by": "user"}));
    server.kill();
    server.spawn_again();
    server.wait_until_ready();
    let rest = Rest::login(&server);
    let path = format!("/api/plugins/telemetry/DEVICE/{device}/values/attributes/SERVER_SCOPE?keys=by");
    assert_eq!(rest.ok("GET", &path, &Json::Null)[0]["value"], "user");
    // Both claim requests survived. A wrong secret uses up a claim request.
    let customer = Rest::login_as(&server, "customer");
    for (name, secret, expected) in [
        ("Claimed", "s", (200, "SUCCESS")),
        ("Other", "x", (400, "FAILURE")),
        ("Other", "s", (400, "FAILURE")),
        ("Claimed", "s", (400, "CLAIMED")),
    ] {
        let path = format!("/api/customer/device/{name}/claim");
        let (status, answer) = customer.call("POST", &path, &json!({"secretKey": secret}));
        assert_eq!(
            (status, answer["response"].as_str()),
            (expected.0, Some(expected.1)),
            "{name} {secret}: {answer}"
        );
    }
    // A new claim request is valid after another restart. A claimed device stays claimed.
    assert_eq!(request(server.http(), "POST", "/api/v1/Other/claim", "", claim).0, 200);
    server.kill();
    server.spawn_again();
    server.wait_until_ready();
    let customer = Rest::login_as(&server, "customer");
    let answer = customer.ok("POST", "/api/customer/device/Other/claim", &json!({"secretKey": "s"}));
    assert_eq!(
        (&answer["response"], &answer["device"]["id"]["id"]),
        (&json!("SUCCESS"), &json!(other))
    );
    let (_, answer) = customer.call("POST", "/api/customer/device/Claimed/claim", &json!({"secretKey": "s"}));
    assert_eq!(answer["response"], "CLAIMED", "{claimed}");
}
