//! Devices whose profile selects Protobuf payloads. JSON topics and HTTP still use JSON.

use serde_json::{Value as Json, json};

use super::http::request;
use super::rest::Rest;
use super::world::login;
use crate::support::*;

const CONFIG: &str = "[platform]\nenabled = true\ndemo = true\n";
const TELEMETRY: &str = "syntax = \"proto3\"; package telemetry; message Reading { optional double temperature = 1; optional int64 count = 2; }";
const ATTRIBUTES: &str = "syntax = \"proto3\"; message Attributes { optional string firmwareVersion = 1; }";
const CALL: &str = "syntax = \"proto3\"; message Call { optional int32 requestId = 1; optional string method = 2; optional Params params = 3; message Params { repeated int32 of = 1; } }";
const ANSWER: &str = "syntax = \"proto3\"; message Answer { optional int32 is = 1; }";

/// Encodes a field of type bytes or string.
fn text(number: u8, text: &[u8]) -> Vec<u8> {
    let mut field = vec![number << 3 | 2, text.len() as u8];
    field.extend(text);
    field
}

fn reading(temperature: f64, count: u8) -> Vec<u8> {
    [&[0x09][..], &temperature.to_le_bytes(), &[0x10, count]].concat()
}

/// Creates a Protobuf device. With `is_lenient`, it may send JSON payloads and gets JSON on `v1/devices/me/…`.
fn device(rest: &Rest, is_lenient: bool) -> String {
    let payload = json!({
        "transportPayloadType": "PROTOBUF",
        "deviceTelemetryProtoSchema": TELEMETRY, "deviceAttributesProtoSchema": ATTRIBUTES,
        "deviceRpcRequestProtoSchema": CALL, "deviceRpcResponseProtoSchema": ANSWER,
        "enableCompatibilityWithJsonPayloadFormat": is_lenient, "useJsonPayloadFormatForDefaultDownlinkTopics": is_lenient,
    });
    let transport = json!({"type": "MQTT", "deviceTelemetryTopic": "sensors/+/reading",
        "deviceAttributesSubscribeTopic": "sensors/+/shared", "transportPayloadTypeConfiguration": payload});
    let profile = json!({"name": "P", "type": "DEFAULT", "transportType": "MQTT", "provisionType": "DISABLED", "profileData": {
        "configuration": {"type": "DEFAULT"}, "transportConfiguration": transport,
        "provisionConfiguration": {"type": "DISABLED", "provisionDeviceSecret": null}, "alarms": null}});
    let profile = rest.ok("POST", "/api/deviceProfile", &profile);
    let device = json!({"name": "A", "deviceProfileId": profile["id"]});
    let device = rest.ok("POST", "/api/device?accessToken=TOKEN", &device);
    device["id"]["id"].as_str().expect("an identifier").to_owned()
}

#[test]
fn custom_profile_topic_works_as_soon_as_the_profile_is_saved() {
    let server = Server::start(&Config::new(CONFIG));
    let rest = Rest::login(&server);
    let id = device(&rest, false);
    let mut peer = server.session(&login(V4, "TOKEN"));
    peer.publish(&Publish::new("sensors/7/reading", reading(22.5, 1)).qos(1));
    let path = format!("/api/plugins/telemetry/DEVICE/{id}/values/timeseries?keys=count&useStrictDataTypes=true");
    rest.wait_for(&server, &path, |found| found["count"][0]["value"] == 1);
}

/// The profile's custom filter subscribes to shared attributes. Updates still arrive on the standard topic.
#[test]
fn json_compatible_device_gets_json_on_default_topics() {
    let server = Server::start(&Config::new(CONFIG));
    let rest = Rest::login(&server);
    let id = device(&rest, true);
    let mut peer = server.session(&login(V4, "TOKEN"));
    assert_eq!(peer.subscribe_code("sensors/7/shared", 1), 1);
    assert_eq!(peer.subscribe_code("sensors/7/8/shared", 1), 0x80);
    let path = format!("/api/plugins/telemetry/DEVICE/{id}/SHARED_SCOPE");
    rest.ok("POST", &path, &json!({"target": 21}));
    let update = peer.receive();
    assert_eq!(
        (update.topic_str(), update.payload_str()),
        ("v1/devices/me/attributes", "{\"target\":21}")
    );
    peer.subscribe("v2/a/res/+", 1);
    for (topic, is_json) in [("v1/devices/me/attributes/request/5", true), ("v2/a/req/6", false)] {
        peer.publish(&Publish::new(topic, text(2, b"target")).qos(1));
        let answer = peer.receive();
        assert_eq!(answer.payload == b"{\"shared\":{\"target\":21}}", is_json, "{topic}");
    }
}

#[test]
fn device_sends_and_receives_protobuf() {
    let server = Server::start(&Config::new(CONFIG));
    let rest = Rest::login(&server);
    let id = device(&rest, false);
    let values = format!("/api/plugins/telemetry/DEVICE/{id}/values");
    let wait_for = |kind: &str, key: &str, value: Json| {
        let path = format!("{values}/{kind}?keys={key}&useStrictDataTypes=true");
        rest.wait_for(&server, &path, |found| match kind {
            "timeseries" => found[key][0]["value"] == value,
            _ => found[0]["value"] == value,
        });
    };
    let mut peer = server.session(&login(V4, "TOKEN"));
    let mut say =
        |topic: &str, payload: &[u8]| assert_eq!(peer.publish(&Publish::new(topic, payload).qos(1)), 0, "{topic}");
    say("v1/devices/me/telemetry", &reading(22.5, 1));
    wait_for("timeseries", "temperature", json!(22.5));
    say("sensors/7/reading", &reading(23.5, 2));
    wait_for("timeseries", "count", json!(2));
    say("v2/t/p", &reading(24.5, 3));
    wait_for("timeseries", "count", json!(3));
    // The JSON topic and HTTP accept JSON with any profile.
    say("v2/t/j", b"{\"count\":4}");
    wait_for("timeseries", "count", json!(4));
    let (status, _) = request(server.http(), "POST", "/api/v1/TOKEN/telemetry", "", "{\"count\":5}");
    assert_eq!(status, 200);
    wait_for("timeseries", "count", json!(5));
    say("v1/devices/me/attributes", &text(1, b"1.4.2"));
    wait_for("attributes/CLIENT_SCOPE", "firmwareVersion", json!("1.4.2"));

    for filter in [
        "v1/devices/me/attributes",
        "v1/devices/me/attributes/response/+",
        "v1/devices/me/rpc/request/+",
        "v1/devices/me/rpc/response/+",
    ] {
        peer.subscribe(filter, 1);
    }
    rest.ok(
        "POST",
        &format!("/api/plugins/telemetry/DEVICE/{id}/SHARED_SCOPE"),
        &json!({"target": 21}),
    );
    let update = peer.receive();
    // key: target, type: long, 21.
    let target = [&text(1, b"target")[..], &[0x10, 1, 0x20, 21]].concat();
    assert_eq!(update.topic_str(), "v1/devices/me/attributes");
    assert!(
        update.payload.starts_with(&[0x0a]) && update.payload.ends_with(&target),
        "{:02x?}",
        update.payload
    );
    rest.ok(
        "DELETE",
        &format!("/api/plugins/telemetry/DEVICE/{id}/SHARED_SCOPE?keys=target"),
        &Json::Null,
    );
    assert_eq!(peer.receive().payload, text(2, b"target"));

    let question = [text(1, b"firmwareVersion"), text(2, b"target")].concat();
    peer.publish(&Publish::new("v1/devices/me/attributes/request/5", question).qos(1));
    let answer = peer.receive();
    assert_eq!(answer.topic_str(), "v1/devices/me/attributes/response/5");
    let version = [text(1, b"firmwareVersion"), vec![0x10, 3], text(6, b"1.4.2")].concat();
    assert!(
        answer.payload.starts_with(&[0x08, 5, 0x12]) && answer.payload.ends_with(&version),
        "{:02x?}",
        answer.payload
    );

    let call = [text(1, b"getSessionLimits"), text(2, b"{}")].concat();
    peer.publish(&Publish::new("v1/devices/me/rpc/request/9", call).qos(1));
    let answer = peer.receive();
    assert_eq!(answer.topic_str(), "v1/devices/me/rpc/response/9");
    assert!(answer.payload.starts_with(&[0x08, 9, 0x12]));
    assert!(String::from_utf8_lossy(&answer.payload).contains("\"maxPayloadSize\":65536"));

    let wanted = json!({"method": "sum", "params": {"of": [1, 2]}, "timeout": 20_000});
    let answered = std::thread::scope(|scope| {
        let asked = scope.spawn(|| rest.ok("POST", &format!("/api/rpc/twoway/{id}"), &wanted));
        let call = peer.receive();
        let number = call.topic_str().rsplit('/').next().expect("a number").to_owned();
        let id: u8 = number.parse().expect("a small number");
        let expected = [vec![0x08, id], text(2, b"sum"), text(3, &[0x08, 1, 0x08, 2])].concat();
        assert_eq!(call.payload, expected);
        peer.publish(&Publish::new(format!("v1/devices/me/rpc/response/{number}"), [0x08_u8, 3]).qos(1));
        asked.join().expect("the call ends")
    });
    assert_eq!(answered, json!({"is": 3}));

    // A payload that does not match the schema closes the connection.
    peer.send(&Publish::new("v1/devices/me/telemetry", "{\"count\":6}").bytes(V4));
    peer.expect_closed(PATIENCE);
}

/// Gateways use ThingsBoard's own Protobuf messages, independent of the profile's schemas.
#[test]
fn gateway_sends_and_receives_protobuf() {
    let server = Server::start(&Config::new(CONFIG));
    let rest = Rest::login(&server);
    let known = device(&rest, false);
    let profile = rest.ok("GET", &format!("/api/device/{known}"), &Json::Null)["deviceProfileId"].clone();
    let gateway = json!({"name": "G", "deviceProfileId": profile, "additionalInfo": {"gateway": true}});
    rest.ok("POST", "/api/device?accessToken=GATE", &gateway);
    let mut peer = server.session(&login(V4, "GATE"));
    for filter in [
        "v1/gateway/attributes",
        "v1/gateway/attributes/response",
        "v1/gateway/rpc",
    ] {
        peer.subscribe(filter, 1);
    }
    let value = [text(1, b"t"), vec![0x10, 1, 0x20, 42]].concat();
    let group = [vec![0x08, 5], text(2, &value)].concat();
    let of_x = |number: u8, msg: &[u8]| text(1, &[text(1, b"X"), text(number, msg)].concat());
    for (topic, payload) in [
        ("v1/gateway/connect", [text(1, b"X"), text(2, b"thermometer")].concat()),
        ("v1/gateway/telemetry", of_x(3, &text(1, &group))),
        ("v1/gateway/attributes", of_x(2, &text(1, &value))),
        // The answer to this request comes after all earlier messages are processed.
        (
            "v1/gateway/attributes/request",
            [vec![0x08, 7], text(2, b"X"), vec![0x18, 1], text(4, b"t")].concat(),
        ),
    ] {
        assert_eq!(peer.publish(&Publish::new(topic, payload).qos(1)), 0, "{topic}");
    }
    let answer = peer.receive();
    assert_eq!(answer.topic_str(), "v1/gateway/attributes/response");
    assert!(answer.payload.starts_with(&text(1, b"X")) && answer.payload.ends_with(&value));
    let device = rest.ok("GET", "/api/tenant/devices?deviceName=X", &Json::Null);
    assert_eq!(device["type"], "thermometer");
    let id = device["id"]["id"].as_str().expect("an identifier");
    let path = format!("/api/plugins/telemetry/DEVICE/{id}/values/timeseries?keys=t&useStrictDataTypes=true");
    rest.wait_for(&server, &path, |found| found["t"][0] == json!({"ts": 5, "value": 42}));
    let path = format!("/api/plugins/telemetry/DEVICE/{id}/SHARED_SCOPE");
    rest.ok("POST", &path, &json!({"t": 42}));
    let update = peer.receive();
    assert_eq!(update.topic_str(), "v1/gateway/attributes");
    assert!(update.payload.starts_with(&text(1, b"X")) && update.payload.ends_with(&value));
    let wanted = json!({"method": "sum", "params": {}, "timeout": 20_000});
    let answered = std::thread::scope(|scope| {
        let asked = scope.spawn(|| rest.ok("POST", &format!("/api/rpc/twoway/{id}"), &wanted));
        let call = peer.receive();
        let number = call.payload[6];
        let expected = [vec![0x08, number], text(2, b"sum"), text(3, b"{}")].concat();
        assert_eq!(call.payload, [text(1, b"X"), text(2, &expected)].concat());
        let answer = [text(1, b"X"), vec![0x10, number], text(3, b"{\"is\":3}")].concat();
        peer.publish(&Publish::new("v1/gateway/rpc", answer).qos(1));
        asked.join().expect("the call ends")
    });
    assert_eq!(answered, json!({"is": 3}));
}
