//! Authentication of devices, and the topics that a device may use.

use serde_json::json;

use super::world::{World, device, device_with_password, login};
use crate::support::*;

#[test]
fn connack_announces_features_unavailable_to_devices() {
    let (world, ()) = World::new(|devices, tenant| _ = device(devices, tenant, "A", "TOKEN"));
    let mut peer = Peer::connect(world.server.mqtt());
    let connack = peer.handshake(&login(V5, "TOKEN")).properties;
    for absent in [
        prop::SUBSCRIPTION_IDENTIFIER_AVAILABLE,
        prop::SHARED_SUBSCRIPTION_AVAILABLE,
    ] {
        assert_eq!(connack.number(absent), Some(0), "{absent:#x}");
    }
    assert_eq!(
        connack.number(prop::WILDCARD_SUBSCRIPTION_AVAILABLE),
        None,
        "device topic filters may contain a wildcard"
    );
    let identifier = prop::varint(prop::SUBSCRIPTION_IDENTIFIER, 5);
    peer.send(&packet::subscribe(
        V5,
        1,
        &[("v1/devices/me/attributes", 0)],
        &identifier,
    ));
    peer.expect_disconnect(0xA1);
}

#[test]
fn device_credentials_are_checked() {
    let (world, ()) = World::new(|devices, tenant| {
        device(devices, tenant, "A", "TOKEN-A");
        let both = json!({"userName": "user", "password": "secret"});
        device_with_password(devices, tenant, "B", &both);
        let client = json!({"clientId": "client-c"});
        device_with_password(devices, tenant, "C", &client);
        let all = json!({"clientId": "client-d", "userName": "user-d", "password": "secret"});
        device_with_password(devices, tenant, "D", &all);
    });
    type Case<'a> = (&'a str, Option<&'a str>, Option<&'a str>, bool);
    let cases: &[Case<'_>] = &[
        ("any", Some("TOKEN-A"), None, true),
        ("any", Some("TOKEN-A"), Some("ignored"), true),
        ("any", Some("TOKEN-X"), None, false),
        ("any", Some("user"), Some("secret"), true),
        ("any", Some("user"), Some("wrong"), false),
        ("any", Some("user"), None, false),
        ("client-c", None, None, true),
        ("client-d", Some("user-d"), Some("secret"), true),
        ("other", Some("user-d"), Some("secret"), false),
        ("$device/x", Some("TOKEN-A"), None, false),
    ];
    for version in ALL_VERSIONS {
        for (client_id, user_name, password, is_device) in cases {
            let mut connect = Connect::new(version, client_id);
            connect.user_name = user_name.map(|text| text.as_bytes().to_vec());
            connect.password = password.map(|text| text.as_bytes().to_vec());
            if version != V5 && connect.user_name.is_none() && connect.password.is_some() {
                continue;
            }
            let mut peer = world.server.connect();
            let code = peer.handshake(&connect).code;
            assert_eq!(
                code == 0,
                *is_device,
                "{version:?} {client_id} {user_name:?} {password:?}"
            );
            if *client_id == "any" && *user_name == Some("TOKEN-X") {
                assert_eq!(code, if version == V5 { 0x87 } else { 5 });
            }
            if code == 0 {
                // A plain client may subscribe to this topic, a device may not.
                assert!(peer.subscribe_code("any/topic", 0) >= 0x80, "{version:?} {client_id}");
            }
        }
    }
}

#[test]
fn device_may_subscribe_only_to_its_api_topics() {
    let (world, ()) = World::new(|devices, tenant| {
        device(devices, tenant, "A", "TOKEN");
    });
    let cases = [
        ("v1/devices/me/attributes", 1, Some(1)),
        ("v1/devices/me/attributes/response/+", 2, Some(1)),
        ("v1/devices/me/rpc/request/+", 0, Some(0)),
        ("v1/devices/me/rpc/response/+", 1, Some(1)),
        ("v2/a", 1, Some(1)),
        ("v2/a/res/+", 1, Some(1)),
        ("v2/r/req/+", 1, Some(1)),
        ("v2/fw/response/+/chunk/+", 1, Some(1)),
        ("v1/gateway/rpc", 1, Some(1)),
        ("/provision/response", 1, None),
        ("v1/devices/me/#", 1, None),
        ("#", 0, None),
        ("$SYS/#", 0, None),
        ("$share/g/v1/devices/me/attributes", 1, None),
    ];
    for (version, refused) in [(V3, 0x80), (V4, 0x80), (V5, 0x8F)] {
        let mut peer = world.connect(version, "TOKEN");
        for (filter, qos, granted) in cases {
            assert_eq!(
                peer.subscribe_code(filter, qos),
                granted.unwrap_or(refused),
                "{version:?} {filter}"
            );
        }
        let unsubscribed = peer.unsubscribe("v1/devices/me/attributes");
        assert_eq!(unsubscribed, 0);
        let again = peer.unsubscribe("v1/devices/me/attributes");
        assert_eq!(again, if version == V5 { 0x11 } else { 0 });
        peer.ping();
    }
}

#[test]
fn second_connection_of_a_device_closes_the_first() {
    let (world, ()) = World::new(|devices, tenant| {
        device(devices, tenant, "A", "TOKEN");
        device(devices, tenant, "B", "OTHER");
    });
    let named = |token: &str| Connect::new(V4, "same").user_name(token);
    let mut other = world.server.session(&named("OTHER"));
    let mut first = world.server.session(&named("TOKEN"));
    for _ in 0..4 {
        // The server compares the device, not the client identifier.
        let mut second = world.server.session(&login(V4, "TOKEN"));
        first.expect_closed(PATIENCE);
        second.ping();
        first = second;
    }
    other.ping();
}

#[test]
fn unknown_topics_and_invalid_payloads_are_rejected() {
    let (world, ()) = World::new(|devices, tenant| {
        device(devices, tenant, "A", "TOKEN");
    });
    for version in [V3, V4] {
        let mut peer = world.connect(version, "TOKEN");
        assert_eq!(peer.publish(&Publish::new("other/topic", "{}").qos(1)), 0);
        peer.ping();
        peer.send(&Publish::new("v1/devices/me/telemetry", "{no json").bytes(version));
        peer.expect_closed(PATIENCE);
    }
    let mut peer = world.connect(V5, "TOKEN");
    assert_eq!(peer.publish(&Publish::new("other/topic", "{}").qos(1)), 0x90);
    for (body, reason) in [("{no json", 0x99), ("5", 0x99), ("{\"\":1}", 0x99), ("{\"a\":1}", 0)] {
        for (topic, qos) in [("v1/devices/me/telemetry", 1), ("v1/devices/me/attributes", 2)] {
            let code = peer.publish(&Publish::new(topic, body).qos(qos));
            assert_eq!(code, reason, "{topic} {body}");
        }
    }
    peer.ping();
}
