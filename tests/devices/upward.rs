//! Messages from devices to the server and the data that the server stores.

use std::time::Duration;

use platform::model::AttributeScope;
use serde_json::Value as Json;
use timeseries::PointValue;

use super::rest::Rest;
use super::world::{NOW, World, device, login, points};
use crate::support::*;

#[test]
fn telemetry_is_accepted_in_all_formats() {
    let (mut world, id) = World::new(|devices, tenant| device(devices, tenant, "A", "TOKEN"));
    let messages = [
        (
            "v1/devices/me/telemetry",
            format!("{{\"ts\":{NOW},\"values\":{{\"a\":1,\"b\":true}}}}"),
        ),
        (
            "v1/devices/me/telemetry",
            format!("[{{\"ts\":{},\"values\":{{\"a\":2.5}}}}]", NOW + 1),
        ),
        ("v2/t", format!("{{\"ts\":{},\"values\":{{\"a\":\"22.5\"}}}}", NOW + 2)),
        (
            "v2/t/j",
            format!("{{\"ts\":{},\"values\":{{\"a\":\"text\"}}}}", NOW + 3),
        ),
        ("v1/devices/me/telemetry", "{\"now\":{\"k\":[1, 2]}}".to_owned()),
    ];
    for (index, version) in ALL_VERSIONS.into_iter().enumerate() {
        let mut peer = world.connect(version, "TOKEN");
        for (topic, body) in &messages {
            let qos = index as u8;
            assert_eq!(
                peer.publish(&Publish::new(topic, body).qos(qos)),
                0,
                "{version:?} {topic}"
            );
        }
        // QoS 0 has no acknowledgement, but an answer to a later request shows that earlier messages were processed.
        peer.ping();
        peer.disconnect();
    }
    world.while_stopped(|devices| {
        let values: Vec<PointValue> = points(devices, id, "a").into_iter().map(|point| point.value).collect();
        let expected = [
            PointValue::Long(1),
            PointValue::Double(2.5),
            PointValue::Double(22.5),
            PointValue::String("text".into()),
        ];
        assert_eq!(values, expected);
        assert_eq!(points(devices, id, "b")[0].value, PointValue::Bool(true));
        let now = points(devices, id, "now");
        assert!(now[0].ts_ms > NOW, "a value without a timestamp gets the server time");
        assert_eq!(now[0].value, PointValue::Json("{\"k\":[1,2]}".into()));
    });
}

#[test]
fn attributes_are_stored_and_can_be_requested() {
    let (world, ()) = World::new(|devices, tenant| {
        let id = device(devices, tenant, "A", "TOKEN");
        let limits = platform::decode::DecodeLimits::default();
        let shared = platform::decode::attributes(br#"{"s":1,"t":"x"}"#, &limits).expect("attributes");
        let mut outlet = platform::NoOutlet;
        devices
            .platform()
            .save_attributes(id.entity(), AttributeScope::SharedScope, &shared, NOW, &mut outlet)
            .expect("the attributes are stored");
    });
    let forms = [
        (
            V3,
            "v1/devices/me/attributes",
            "v1/devices/me/attributes/request/",
            "v1/devices/me/attributes/response/",
        ),
        (V4, "v2/a", "v2/a/req/", "v2/a/res/"),
        (V5, "v2/a/j", "v2/a/req/j/", "v2/a/res/j/"),
    ];
    for (version, attributes, request, response) in forms {
        let mut peer = world.connect(version, "TOKEN");
        peer.subscribe(format!("{response}+"), 1);
        peer.publish(&Publish::new(attributes, r#"{"c":true,"d":[1]}"#).qos(1));
        let cases = [
            (
                r#"{"clientKeys":"c,d","sharedKeys":"s"}"#,
                r#"{"client":{"c":true,"d":[1]},"shared":{"s":1}}"#,
            ),
            (r#"{"sharedKeys":"t,unknown"}"#, r#"{"shared":{"t":"x"}}"#),
            (r#"{"clientKeys":"unknown"}"#, "{}"),
            ("{}", r#"{"client":{"c":true,"d":[1]},"shared":{"s":1,"t":"x"}}"#),
        ];
        for (id, (asked, answer)) in cases.into_iter().enumerate() {
            peer.publish(&Publish::new(format!("{request}{id}"), asked).qos(1));
            let delivery = peer.receive();
            assert_eq!(delivery.topic_str(), format!("{response}{id}"));
            assert_eq!(delivery.payload_str(), answer, "{asked}");
            assert_eq!((delivery.qos, delivery.is_retained), (1, false));
        }
    }
}

#[test]
fn device_state_survives_a_restart() {
    let (mut world, id) = World::new(|devices, tenant| device(devices, tenant, "A", "TOKEN"));
    let mut peer = world.connect(V4, "TOKEN");
    peer.publish(&Publish::new("v1/devices/me/telemetry", "{\"a\":1}").qos(1));
    peer.disconnect();
    let state = |devices: &devices::Devices| {
        let found = devices
            .platform()
            .attributes(id.entity(), AttributeScope::ServerScope, None);
        let found = found.expect("the stored values are readable").into_iter();
        found
            .map(|attribute| (attribute.key, attribute.value))
            .collect::<Vec<_>>()
    };
    let before = world.while_stopped(state);
    let is_set = |key: &str| {
        let value = before.iter().find(|(known, _)| known == key).map(|(_, value)| value);
        assert!(
            value.is_some_and(|value| matches!(value, PointValue::Bool(true) | PointValue::Long(1..))),
            "{key}: {before:?}"
        );
    };
    for key in ["active", "lastConnectTime", "lastActivityTime", "lastDisconnectTime"] {
        is_set(key);
    }
    assert_eq!(world.while_stopped(state), before);
}

#[test]
fn pings_are_activity_unless_disabled() {
    for counts in [true, false] {
        let server = Server::start(&Config::new(format!(
            "[platform]\nenabled = true\ndemo = true\npings_are_activity = {counts}\n"
        )));
        let rest = Rest::login(&server);
        let [pinging, other] = ["A", "B"].map(|name| rest.device(name, name));
        let state = |id: &str, key: &str| {
            format!("/api/plugins/telemetry/DEVICE/{id}/values/attributes/SERVER_SCOPE?keys={key}")
        };
        let path = state(&pinging, "lastActivityTime");
        let mut peer = server.session(&login(V4, "A"));
        peer.publish(&Publish::new("v1/devices/me/telemetry", "{\"a\":1}").qos(1));
        let before = rest.wait_for(&server, &path, |found| found[0]["value"].is_number());
        peer.ping();
        if counts {
            rest.wait_for(&server, &path, |found| {
                found[0]["value"].as_i64() > before[0]["value"].as_i64()
            });
        } else {
            // This message is processed after the ping.
            server.session(&login(V4, "B")).subscribe("v1/devices/me/attributes", 1);
            rest.wait_for(&server, &state(&other, "active"), |found| found[0]["value"] == true);
            assert_eq!(rest.ok("GET", &path, &Json::Null)[0]["value"], before[0]["value"]);
        }
    }
}

#[test]
fn devices_can_provision_themselves() {
    let (world, ()) = World::new(super::world::provisioning_profile);
    let mut peer = world.server.session(&Connect::new(V4, "provision"));
    peer.subscribe("/provision/response", 1);
    let ask = |peer: &mut Peer, body: &str| {
        peer.publish(&Publish::new("/provision/request", body).qos(1));
        let delivery = peer.receive();
        assert_eq!(delivery.topic_str(), "/provision/response");
        delivery.payload_str().to_owned()
    };
    let body =
        r#"{"deviceName":"New","provisionDeviceKey":"key","provisionDeviceSecret":"secret","token":"NEW-TOKEN"}"#;
    assert_eq!(
        ask(&mut peer, body),
        r#"{"credentialsValue":"NEW-TOKEN","credentialsType":"ACCESS_TOKEN","status":"SUCCESS"}"#
    );
    assert_eq!(
        ask(&mut peer, body),
        r#"{"errorMsg":"Failed to provision device!","status":"FAILURE"}"#
    );
    assert_eq!(
        ask(&mut peer, &body.replace("\"secret\"", "\"wrong\"")),
        r#"{"errorMsg":"Provision data was not found!","status":"NOT_FOUND"}"#
    );
    let ask_in_protobuf = |peer: &mut Peer, body: &[u8]| {
        peer.publish(&Publish::new("/provision/request", body).qos(1));
        peer.receive().payload
    };
    let body = b"\x0a\x05Other\x1a\x0d\x0a\x03key\x12\x06secret\x22\x07\x0a\x05\x0a\x03T-O";
    assert_eq!(ask_in_protobuf(&mut peer, body), b"\x08\x01\x10\x00\x1a\x03T-O");
    assert_eq!(
        ask_in_protobuf(&mut peer, body),
        b"\x08\x03",
        "the device already exists"
    );
    drop(world.connect(V4, "T-O"));
    // A provisioning connection may do nothing else.
    assert_eq!(peer.subscribe_code("v1/devices/me/attributes", 0), 0x80);
    let mut device = world.connect(V4, "NEW-TOKEN");
    device.subscribe("v1/devices/me/attributes", 1);
    let by_user_name = world
        .server
        .session(&Connect::new(V4, unique("p")).user_name("provision"));
    drop(by_user_name);
    device.expect_nothing(Duration::from_millis(50));
}
