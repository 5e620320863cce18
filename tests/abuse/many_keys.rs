//! A device invents new keys of telemetry and attributes.
//!
//! Without a limit, each attribute stayed in the database for ever, and each key of telemetry used memory.

use serde_json::{Value as Json, json};

use crate::devices::rest::Rest;
use crate::devices::world::login;
use crate::support::*;

const LIMIT: usize = 50;
/// New keys of each kind.
const KEYS: usize = 120;

fn metric(server: &Server, name: &str) -> u64 {
    let (_, text) = server.http_get("/metrics");
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    value.and_then(|value| value.parse().ok()).unwrap_or(0)
}

/// Sends `KEYS` new keys in small messages.
fn send_keys(device: &mut Peer, topic: &str) {
    for first in (0..KEYS).step_by(10) {
        let values: serde_json::Map<String, Json> = (first..first + 10)
            .map(|key| (format!("key-{key}"), json!(key)))
            .collect();
        device.publish(&Publish::new(topic, Json::Object(values).to_string()).qos(1));
    }
}

#[test]
fn new_keys_of_a_device_end_at_the_limit() {
    let config = format!("[platform]\nenabled = true\ndemo = true\nmax_keys = {LIMIT}\n");
    let server = Server::start(&Config::new(config));
    let rest = Rest::login(&server);
    let id = rest.device("Inventor", "INVENTOR");
    let mut device = server.session(&login(V4, "INVENTOR"));
    let telemetry = format!("/api/plugins/telemetry/DEVICE/{id}");
    for (topic, keys) in [
        ("v1/devices/me/telemetry", format!("{telemetry}/keys/timeseries")),
        (
            "v1/devices/me/attributes",
            format!("{telemetry}/keys/attributes/CLIENT_SCOPE"),
        ),
    ] {
        let refused = metric(&server, "tidewire_platform_keys_refused_total");
        send_keys(&mut device, topic);
        server.wait_until("the other keys are refused", |server| {
            metric(server, "tidewire_platform_keys_refused_total") == refused + (KEYS - LIMIT) as u64
        });
        let stored = rest.ok("GET", &keys, &Json::Null);
        assert_eq!(stored.as_array().map(Vec::len), Some(LIMIT), "{topic}: {stored}");
    }
    // The request of a user fails.
    let path = format!("{telemetry}/SERVER_SCOPE");
    let (status, answer) = rest.call("POST", &path, &json!({"mine": 1}));
    assert_eq!(status, 400, "{answer}");
    let expected = "the attribute 'mine' was not stored: the device has 50 attributes, and the limit is 50 \
                    (platform.max_keys)";
    assert_eq!(answer["message"], expected);
    // Known keys are updated.
    device.publish(&Publish::new("v1/devices/me/telemetry", r#"{"key-0":"new","other":1}"#).qos(1));
    rest.wait_for(&server, &format!("{telemetry}/values/timeseries?keys=key-0"), |found| {
        found["key-0"][0]["value"] == "new"
    });
    device.publish(&Publish::new("v1/devices/me/attributes", r#"{"key-0":"new","other":1}"#).qos(1));
    rest.wait_for(
        &server,
        &format!("{telemetry}/values/attributes/CLIENT_SCOPE?keys=key-0"),
        |found| found[0]["value"] == "new",
    );
    // A deleted attribute makes space for a new one.
    rest.ok("DELETE", &format!("{telemetry}/CLIENT_SCOPE?keys=key-1"), &Json::Null);
    device.publish(&Publish::new("v1/devices/me/attributes", r#"{"new":1}"#).qos(1));
    rest.wait_for(
        &server,
        &format!("{telemetry}/values/attributes/CLIENT_SCOPE?keys=new"),
        |found| found[0]["value"] == 1,
    );

    let log = server.log();
    let lines: Vec<&str> = log.lines().filter(|line| line.contains("too many keys")).collect();
    assert_eq!(lines.len(), 1, "one line per device and hour: {lines:?}");
    assert!(
        lines[0].contains("Inventor") && lines[0].contains("key-50"),
        "{}",
        lines[0]
    );
    let events = format!("/api/events/DEVICE/{id}/ERROR?pageSize=10&page=0");
    rest.wait_for(&server, &events, |found| {
        let mut events = found["data"].as_array().into_iter().flatten();
        events.any(|event| event.to_string().contains("key-50"))
    });
}
