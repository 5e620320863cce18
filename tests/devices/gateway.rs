//! Gateways send and receive messages for devices that they identify by name.

use platform::model::{AttributeScope, Device};
use serde_json::json;
use timeseries::PointValue;

use super::rest::Rest;
use super::world::{NOW, World, device, gateway, login, points};
use crate::support::*;

#[test]
fn gateway_creates_and_reports_its_devices() {
    let (mut world, ()) = World::new(|devices, tenant| {
        gateway(devices, tenant, "G", "GATE");
    });
    let mut peer = world.connect(V4, "GATE");
    peer.subscribe("v1/gateway/attributes/response", 1);
    peer.subscribe("v1/gateway/attributes", 1);
    let messages = [
        (
            "v1/gateway/connect",
            r#"{"device":"A","type":"thermometer"}"#.to_owned(),
        ),
        (
            "v1/gateway/telemetry",
            format!(r#"{{"A":[{{"ts":{NOW},"values":{{"t":20}}}}],"B":[{{"ts":{NOW},"values":{{"t":21}}}}]}}"#),
        ),
        ("v1/gateway/attributes", r#"{"A":{"model":"M","serial":5}}"#.to_owned()),
    ];
    for (topic, body) in messages {
        assert_eq!(peer.publish(&Publish::new(topic, body).qos(1)), 0, "{topic}");
    }
    let cases = [
        (
            r#"{"id":1,"device":"A","client":true,"key":"model"}"#,
            r#"{"id":1,"device":"A","value":"M"}"#,
        ),
        (
            r#"{"id":2,"device":"A","client":true,"keys":["model","serial"]}"#,
            r#"{"id":2,"device":"A","values":{"model":"M","serial":5}}"#,
        ),
        (
            r#"{"id":3,"device":"A","client":false,"key":"none"}"#,
            r#"{"id":3,"device":"A"}"#,
        ),
        // An attribute request for an unknown device creates and connects it.
        (
            r#"{"id":4,"device":"C","client":true,"key":"model"}"#,
            r#"{"id":4,"device":"C"}"#,
        ),
    ];
    for (asked, answer) in cases {
        peer.publish(&Publish::new("v1/gateway/attributes/request", asked).qos(1));
        let delivery = peer.receive();
        assert_eq!(delivery.topic_str(), "v1/gateway/attributes/response");
        assert_eq!(delivery.payload_str(), answer);
    }
    peer.publish(&Publish::new("v1/gateway/disconnect", r#"{"device":"A"}"#).qos(1));
    peer.disconnect();
    let tenant = world.tenant;
    world.while_stopped(|devices| {
        let of_name = |name: &str| {
            let found: Option<Device> = devices
                .entities()
                .find_by_name(tenant.0, name)
                .expect("the stored entity is readable");
            found.expect("the gateway made it")
        };
        let (a, b) = (of_name("A"), of_name("B"));
        assert_eq!((a.kind.as_str(), b.kind.as_str()), ("thermometer", "default"));
        for (device, value) in [(&a, 20), (&b, 21)] {
            let points = points(devices, device.id.expect("the entity is stored"), "t");
            assert_eq!(points.len(), 1);
            assert_eq!(points[0].value, PointValue::Long(value));
        }
        let id = a.id.expect("the entity is stored").entity();
        let found = devices.platform().attributes(id, AttributeScope::ClientScope, None);
        assert_eq!(found.expect("the stored values are readable").len(), 2);
    });
}

/// The first message about a device connects it, without a `connect` message, until its gateway disconnects.
#[test]
fn messages_for_a_device_go_to_the_gateway_that_reported_it() {
    let server = Server::start(&Config::new("[platform]\nenabled = true\ndemo = true\n"));
    let rest = Rest::login(&server);
    let gateway = json!({"name": "G", "type": "default", "additionalInfo": {"gateway": true}});
    rest.ok("POST", "/api/device?accessToken=GATE", &gateway);
    let mut peer = server.session(&login(V4, "GATE"));
    peer.subscribe("v1/gateway/attributes", 1);
    peer.subscribe("v1/gateway/rpc", 1);
    let ids = ["A", "B"].map(|name| rest.device(name, name));
    peer.publish(&Publish::new("v1/gateway/telemetry", r#"{"A":[{"t":1}]}"#).qos(1));
    peer.publish(&Publish::new("v1/gateway/attributes", r#"{"B":{"m":1}}"#).qos(1));
    for (name, id) in ["A", "B"].into_iter().zip(&ids) {
        let path = format!("/api/plugins/telemetry/DEVICE/{id}/SHARED_SCOPE");
        rest.ok("POST", &path, &json!({"s": 1}));
        let update = peer.receive();
        assert_eq!(update.topic_str(), "v1/gateway/attributes");
        assert_eq!(
            update.payload_str(),
            format!("{{\"device\":\"{name}\",\"data\":{{\"s\":1}}}}")
        );
        let call = json!({"method": "run", "params": {}, "timeout": 5000});
        rest.call("POST", &format!("/api/rpc/oneway/{id}"), &call);
        assert_eq!(peer.receive().topic_str(), "v1/gateway/rpc");
    }
    peer.disconnect();
    for id in &ids {
        let path = format!(
            "/api/plugins/telemetry/DEVICE/{id}/values/attributes/SERVER_SCOPE?keys=lastConnectTime,lastDisconnectTime"
        );
        rest.wait_for(&server, &path, |found| {
            found[1]["value"].as_i64() > found[0]["value"].as_i64()
        });
    }
}

#[test]
fn plain_device_cannot_use_gateway_topics() {
    let (world, ()) = World::new(|devices, tenant| {
        device(devices, tenant, "A", "TOKEN");
    });
    let mut peer = world.connect(V4, "TOKEN");
    peer.send(&Publish::new("v1/gateway/telemetry", r#"{"B":[{"t":1}]}"#).bytes(V4));
    peer.expect_closed(PATIENCE);
}
