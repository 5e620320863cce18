//! Limits of tenant profiles for device messages.
//!
//! The server does not acknowledge a message over a limit and closes the connection. Other devices are not affected.

use serde_json::{Value as Json, json};

use super::rest::Rest;
use super::world::login;
use crate::support::*;

const CONFIG: &str = "[platform]\nenabled = true\ndemo = true\n";
const TELEMETRY: &str = "v1/devices/me/telemetry";

/// Sets these limits for the demo tenant.
fn limit(server: &Server, configuration: Json) {
    let admin = Rest::login_as(server, "sysadmin");
    let default = admin.ok("GET", "/api/tenantProfileInfo/default", &Json::Null);
    let id = default["id"]["id"].as_str().expect("an identifier");
    let mut profile = admin.ok("GET", &format!("/api/tenantProfile/{id}"), &Json::Null);
    profile["profileData"]["configuration"] = configuration;
    admin.ok("POST", "/api/tenantProfile", &profile);
}

fn connect(server: &Server, version: Version, token: &str) -> Peer {
    server.session(&login(version, token))
}

fn publish(peer: &mut Peer, body: &str) -> u8 {
    peer.publish(&Publish::new(TELEMETRY, body).qos(1))
}

/// Sends a message and expects the server to close the connection without an acknowledgement.
fn expect_ended(mut peer: Peer, topic: &str, body: &str, qos: u8, reason: u8) {
    let version = peer.version();
    let message = Publish::new(topic, body).qos(qos).id(77);
    peer.send(&message.bytes(version));
    match version {
        V5 => _ = peer.expect_disconnect(reason),
        _ => {
            let closed = peer.expect_closed(PATIENCE);
            assert!(closed.packets.is_empty(), "{version:?} {:?}", closed.packets);
        }
    }
}

#[test]
fn device_over_its_rate_limit_is_disconnected() {
    let server = Server::start(&Config::new(CONFIG));
    let rest = Rest::login(&server);
    let id = rest.device("A", "TOKEN");
    rest.device("B", "OTHER");
    limit(
        &server,
        json!({"type": "DEFAULT", "transportDeviceTelemetryMsgRateLimit": "4:3600", "transportDeviceMsgRateLimit": "1:3600"}),
    );
    for (at, version) in ALL_VERSIONS.into_iter().enumerate() {
        let mut peer = connect(&server, version, "TOKEN");
        assert_eq!(publish(&mut peer, &format!("{{\"{version:?}\":1}}")), 0);
        if at == 0 {
            // Attribute updates count against the telemetry limit, attribute requests do not.
            assert_eq!(
                peer.publish(&Publish::new("v1/devices/me/attributes", "{\"a\":1}").qos(1)),
                0
            );
            peer.publish(&Publish::new("v1/devices/me/attributes/request/1", "{}").qos(1));
            // Otherwise a later connection of the device can get the answer.
            assert_eq!(peer.receive().topic, b"v1/devices/me/attributes/response/1");
        }
    }
    for (at, version) in ALL_VERSIONS.into_iter().enumerate() {
        // A new connection does not reset the limit.
        for qos in [1, 0] {
            expect_ended(connect(&server, version, "TOKEN"), TELEMETRY, "{\"over\":1}", qos, 0x96);
        }
        if at == 0 {
            let question = "v1/devices/me/attributes/request/2";
            expect_ended(connect(&server, version, "TOKEN"), question, "{}", 1, 0x96);
        }
    }
    let mut other = connect(&server, V4, "OTHER");
    assert_eq!(publish(&mut other, "{\"a\":1}"), 0, "each device has its own limit");
    let latest = rest.wait_for(
        &server,
        &format!("/api/plugins/telemetry/DEVICE/{id}/values/timeseries"),
        |latest| {
            latest
                .as_object()
                .is_some_and(|latest| latest.len() >= ALL_VERSIONS.len())
        },
    );
    assert!(latest.get("over").is_none(), "{latest}");
    assert!(
        server
            .http_get("/metrics")
            .1
            .contains("tidewire_platform_messages_over_limit_total 7")
    );

    limit(
        &server,
        json!({"type": "DEFAULT", "transportTenantTelemetryDataPointsRateLimit": "3:3600"}),
    );
    assert_eq!(publish(&mut other, "[{\"a\":1},{\"b\":2,\"c\":3}]"), 0);
    expect_ended(connect(&server, V5, "TOKEN"), TELEMETRY, "{\"a\":1}", 1, 0x96);
    expect_ended(other, TELEMETRY, "{\"a\":1}", 1, 0x96);
    limit(&server, json!({"type": "DEFAULT"}));
    assert_eq!(publish(&mut connect(&server, V5, "TOKEN"), "{\"a\":1}"), 0);
}

#[test]
fn tenant_over_its_monthly_quota_is_disabled_until_it_is_raised() {
    let server = Server::start(&Config::new(CONFIG));
    let rest = Rest::login(&server);
    rest.device("A", "TOKEN");
    limit(
        &server,
        json!({"type": "DEFAULT", "maxTransportMessages": 5, "warnThreshold": 0.6}),
    );
    let mut peer = connect(&server, V5, "TOKEN");
    let used = |count: u64| {
        let usage = rest.wait_for(&server, "/api/usage", |usage| usage["transportMessages"] == count);
        assert_eq!(usage["maxTransportMessages"], 5);
    };
    let shown = |key: &str, wanted: &str| {
        let query = json!({
            "entityFilter": {"type": "apiUsageState"},
            "latestValues": [{"type": "TIME_SERIES", "key": "transportApiState"}, {"type": "TIME_SERIES", "key": "transportMsgLimit"}],
            "pageLink": {"pageSize": 10, "page": 0},
        });
        server.wait_until(wanted, |_| {
            let found = rest.ok("POST", "/api/entitiesQuery/find", &query);
            found["data"][0]["latest"]["TIME_SERIES"][key]["value"] == wanted
        });
    };
    let state = |wanted: &str| shown("transportApiState", wanted);
    let shown_limit = |wanted: &str| shown("transportMsgLimit", wanted);
    for _ in 0..3 {
        assert_eq!(publish(&mut peer, "{\"a\":1}"), 0);
    }
    used(3);
    state("WARNING");
    for _ in 0..2 {
        assert_eq!(publish(&mut peer, "{\"a\":1}"), 0);
    }
    used(5);
    state("DISABLED");
    expect_ended(peer, TELEMETRY, "{\"a\":1}", 1, 0x97);
    expect_ended(connect(&server, V4, "TOKEN"), TELEMETRY, "{\"a\":1}", 1, 0);
    used(5);
    limit(&server, json!({"type": "DEFAULT", "maxTransportMessages": 100}));
    assert_eq!(publish(&mut connect(&server, V4, "TOKEN"), "{\"a\":1}"), 0);
    state("ENABLED");
    shown_limit("100");
    // The state does not change.
    limit(&server, json!({"type": "DEFAULT"}));
    shown_limit("0");
}
