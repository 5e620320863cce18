//! Debug events of rule nodes survive a restart.

use std::time::Duration;

use serde_json::{Value as Json, json};

use super::rest::Rest;
use super::world::login;
use crate::support::*;

/// Enables debug mode on all nodes of the root chain. Returns the identifier of its first node.
fn debug_first_node(rest: &Rest) -> String {
    let chains = rest.ok("GET", "/api/ruleChains?pageSize=1&page=0", &Json::Null);
    let chain = chains["data"][0]["id"]["id"].as_str().expect("a chain");
    let mut metadata = rest.ok("GET", &format!("/api/ruleChain/{chain}/metadata"), &Json::Null);
    for node in metadata["nodes"].as_array_mut().into_iter().flatten() {
        node["debugSettings"] = json!({"allEnabled": true});
    }
    let saved = rest.ok("POST", "/api/ruleChain/metadata", &metadata);
    let first = saved["firstNodeIndex"].as_u64().expect("a number") as usize;
    saved["nodes"][first]["id"]["id"].as_str().expect("a node").to_owned()
}

#[test]
fn provisioned_devices_send_a_creation_event_to_the_chain() {
    let server = Server::start(&Config::new("[platform]\nenabled = true\ndemo = true\n"));
    let rest = Rest::login(&server);
    rest.ok(
        "POST",
        "/api/device?accessToken=GATE",
        &json!({"name": "G", "type": "default", "additionalInfo": {"gateway": true}}),
    );
    let profile = json!({"name": "P", "type": "DEFAULT", "transportType": "DEFAULT", "provisionType": "ALLOW_CREATE_NEW_DEVICES",
        "provisionDeviceKey": "key", "profileData": {"configuration": {"type": "DEFAULT"}, "transportConfiguration": {"type": "DEFAULT"},
        "provisionConfiguration": {"type": "ALLOW_CREATE_NEW_DEVICES", "provisionDeviceSecret": "secret"}}});
    rest.ok("POST", "/api/deviceProfile", &profile);
    let node = debug_first_node(&rest);
    let request = json!({"deviceName": "New", "provisionDeviceKey": "key", "provisionDeviceSecret": "secret"});
    for status in ["SUCCESS", "FAILURE"] {
        assert_eq!(rest.ok("POST", "/api/v1/provision", &request)["status"], status);
    }
    let mut gateway = server.session(&login(V4, "GATE"));
    gateway.publish(&Publish::new("v1/gateway/telemetry", r#"{"Behind":[{"t":1}]}"#).qos(1));
    let mut found = Vec::new();
    server.wait_until("the chain has an event of both devices", |_| {
        let path = format!("/api/events/RULE_NODE/{node}?pageSize=100&page=0&sortProperty=ts&sortOrder=ASC");
        let events = rest.ok("POST", &path, &json!({"msgDirectionType": "IN"}));
        let events = events["data"].as_array().cloned().unwrap_or_default();
        let of_device = |event: &Json| {
            let data: Json = serde_json::from_str(event["body"]["data"].as_str()?).ok()?;
            Some(format!(
                "{} {}",
                event["body"]["msgType"].as_str()?,
                data["name"].as_str()?
            ))
        };
        found = events.iter().filter_map(of_device).collect::<Vec<_>>();
        found.iter().any(|found| found.ends_with("Behind"))
    });
    assert_eq!(
        found,
        [
            "ENTITY_CREATED New",
            "PROVISION_SUCCESS New",
            "PROVISION_FAILURE New",
            "ENTITY_CREATED Behind"
        ]
    );
}

#[test]
fn events_of_debugged_nodes_survive_a_restart() {
    let mut server = Server::start(&Config::new("[platform]\nenabled = true\ndemo = true\n"));
    let rest = Rest::login(&server);
    rest.device("Meter", "TOKEN");
    let node = debug_first_node(&rest);
    let mut peer = server.session(&login(V4, "TOKEN"));
    peer.publish(&Publish::new("v1/devices/me/telemetry", "{\"a\":42}").qos(1));
    let count = |rest: &Rest| {
        let path = format!("/api/events/RULE_NODE/{node}?pageSize=100&page=0");
        let found = rest.ok("POST", &path, &json!({}));
        let events = found["data"].as_array().cloned().unwrap_or_default();
        let has_it = |event: &Json| event["body"]["data"].as_str().is_some_and(|data| data.contains("42"));
        (events.len(), events.iter().any(has_it))
    };
    server.wait_until("the node has an event of the message", |_| count(&rest).1);
    // Stopping the server closes the connection, which is another event.
    drop(peer);
    server.terminate(Duration::from_secs(30));
    server.kill();
    server.spawn_again();
    server.wait_until_ready();
    let (events, has_it) = count(&Rest::login(&server));
    assert!(has_it && events >= 2, "{events} events");
}

#[test]
fn error_events_of_device_messages_survive_a_restart() {
    let mut server = Server::start(&Config::new("[platform]\nenabled = true\ndemo = true\n"));
    let rest = Rest::login(&server);
    let device = rest.device("Meter", "TOKEN");
    let mut peer = server.session(&login(V4, "TOKEN"));
    peer.send(&Publish::new("v1/devices/me/telemetry", "no JSON").bytes(V4));
    peer.expect_closed(PATIENCE);
    let path = format!("/api/events/DEVICE/{device}/ERROR?pageSize=10&page=0");
    let found = rest.wait_for(&server, &path, |found| found["totalElements"] == 1);
    let body = &found["data"][0]["body"];
    assert_eq!(body["method"], "message");
    assert!(
        body["error"].as_str().is_some_and(|error| error.contains("JSON")),
        "{found}"
    );
    server.terminate(Duration::from_secs(30));
    server.kill();
    server.spawn_again();
    server.wait_until_ready();
    let rest = Rest::login(&server);
    assert_eq!(rest.ok("GET", &path, &Json::Null)["data"], found["data"]);
    let chains = rest.ok("GET", "/api/ruleChains?pageSize=1&page=0", &Json::Null);
    let chain = chains["data"][0]["id"]["id"].as_str().expect("a chain");
    let path = format!("/api/events/RULE_CHAIN/{chain}/LC_EVENT?pageSize=10&page=0");
    let started = rest.ok("GET", &path, &Json::Null);
    assert_eq!(
        started["data"][0]["body"],
        json!({"server": "tidewire", "event": "STARTED", "success": true})
    );
}
