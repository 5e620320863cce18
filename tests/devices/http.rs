//! The device API over HTTP: status codes, bodies and long polling.

use std::net::SocketAddr;
use std::thread;

use timeseries::PointValue;

use super::rest::Rest;
use super::world::{NOW, World, device, points, provisioning_profile, talking_chain};
pub use crate::support::http::request;
use crate::support::*;

fn call(address: SocketAddr, method: &str, path: &str, body: &str) -> (u16, String) {
    request(address, method, path, "", body)
}

#[test]
fn device_api_returns_expected_statuses_and_bodies() {
    let (mut world, id) = World::new(|devices, tenant| {
        provisioning_profile(devices, tenant);
        device(devices, tenant, "A", "TOKEN")
    });
    let at = world.server.http();
    let telemetry = format!("{{\"ts\":{NOW},\"values\":{{\"a\":1}}}}");
    let cases = [
        ("POST", "/api/v1/TOKEN/telemetry", telemetry.as_str(), 200, Some("")),
        ("POST", "/api/v1/TOKEN/telemetry", "{no json", 400, None),
        ("POST", "/api/v1/UNKNOWN/telemetry", telemetry.as_str(), 401, None),
        ("POST", "/api/v1/TOKEN/attributes", r#"{"model":"M"}"#, 200, Some("")),
        ("POST", "/api/v1/TOKEN/attributes", "[]", 400, None),
        ("POST", "/api/v1/TOKEN/claim", "", 200, Some("")),
        ("POST", "/api/v1/TOKEN/claim", "[]", 400, None),
        ("POST", "/api/v1/TOKEN/rpc", r#"["getTime",{}]"#, 400, None),
        ("POST", "/api/v1/provision", r#"["N","key","secret"]"#, 400, None),
        ("GET", "/api/v1/TOKEN/rpc?timeout=20", "", 408, None),
        ("GET", "/api/v1/TOKEN/attributes/updates?timeout=20", "", 408, None),
        ("POST", "/api/v1/TOKEN/rpc/5", r#"{"a":1}"#, 200, Some("")),
        (
            "POST",
            "/api/v1/provision",
            r#"{"deviceName":"N","provisionDeviceKey":"key","provisionDeviceSecret":"secret","token":"T-N"}"#,
            200,
            Some(r#"{"credentialsValue":"T-N","credentialsType":"ACCESS_TOKEN","status":"SUCCESS"}"#),
        ),
        ("POST", "/api/v1/provision", "{no json", 400, None),
        ("POST", "/api/v1/T-N/telemetry", telemetry.as_str(), 200, Some("")),
    ];
    for (method, path, body, status, answer) in cases {
        let (found, said) = call(at, method, path, body);
        assert_eq!(found, status, "{method} {path} {body}: {said}");
        if let Some(answer) = answer {
            assert_eq!(said, answer, "{method} {path} {body}");
        }
    }
    let asked = "/api/v1/TOKEN/attributes?clientKeys=model&sharedKeys=none";
    world.server.wait_until("the attribute is stored", |_| {
        call(at, "GET", asked, "") == (200, r#"{"client":{"model":"M"}}"#.to_owned())
    });
    world.while_stopped(|devices| {
        assert_eq!(points(devices, id, "a")[0].value, PointValue::Long(1));
    });
}

/// Requests and long polls also count as device activity.
#[test]
fn http_requests_are_activity_and_can_read_session_limits() {
    let server = Server::start(&Config::new("[platform]\nenabled = true\ndemo = true\n"));
    let rest = Rest::login(&server);
    let asked = [
        ("GET", "rpc?timeout=20", "", 408),
        ("GET", "attributes/updates?timeout=20", "", 408),
        ("GET", "attributes", "", 200),
        ("POST", "rpc/5", "{}", 200),
        ("POST", "rpc", r#"{"method":"getSessionLimits","params":{}}"#, 200),
    ];
    for (index, (method, path, body, status)) in asked.into_iter().enumerate() {
        let token = format!("TOKEN{index}");
        let id = rest.device(&token, &token);
        let (found, said) = call(server.http(), method, &format!("/api/v1/{token}/{path}"), body);
        assert_eq!(found, status, "{path}: {said}");
        assert_eq!(said.contains("maxPayloadSize"), path == "rpc", "{said}");
        let state = format!("/api/plugins/telemetry/DEVICE/{id}/values/attributes/SERVER_SCOPE?keys=active");
        rest.wait_for(&server, &state, |found| found[0]["value"] == true);
    }
}

#[test]
fn http_device_can_send_and_receive_calls() {
    let (world, ()) = World::new(|devices, tenant| {
        talking_chain(devices, tenant);
        device(devices, tenant, "A", "TOKEN");
    });
    let at = world.server.http();
    let set = r#"{"method":"setShared","params":{"limit":5}}"#;
    let updates = thread::spawn(move || call(at, "GET", "/api/v1/TOKEN/attributes/updates?timeout=15000", ""));
    // An update that reaches the device shows that its long poll is waiting.
    world.server.wait_until("the waiting device gets the update", |_| {
        assert_eq!(call(at, "POST", "/api/v1/TOKEN/rpc", set), (200, set.to_owned()));
        updates.is_finished()
    });
    let update = updates.join().expect("the request ends");
    assert_eq!(update, (200, r#"{"limit":5}"#.to_owned()));

    let answer = thread::spawn(move || call(at, "GET", "/api/v1/TOKEN/attributes/updates?timeout=15000", ""));
    let calls = thread::spawn(move || call(at, "GET", "/api/v1/TOKEN/rpc?timeout=15000", ""));
    let mut peer = world.connect(V4, "TOKEN");
    let ask = Publish::new("v1/devices/me/rpc/request/1", r#"{"method":"callMe","params":{"x":1}}"#).qos(1);
    world.server.wait_until("the waiting device gets the call", |_| {
        peer.publish(&ask);
        calls.is_finished()
    });
    let (status, called) = calls.join().expect("the request ends");
    assert_eq!(status, 200);
    let called: serde_json::Value = serde_json::from_str(&called).expect("JSON");
    assert_eq!(
        (&called["method"], &called["params"]["x"]),
        (&"reverse".into(), &1.into())
    );
    let path = format!("/api/v1/TOKEN/rpc/{}", called["id"]);
    world.server.wait_until("the answer becomes an attribute", |_| {
        call(at, "POST", &path, r#"{"said":"one"}"#);
        answer.is_finished()
    });
    assert_eq!(
        answer.join().expect("the request ends"),
        (200, r#"{"answer":"one"}"#.to_owned())
    );
}
