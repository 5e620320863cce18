//! Time to live (TTL) of stored values, set by the tenant profile or by the REST call that saves the values.

use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value as Json, json};

use super::rest::Rest;
use crate::support::*;

const HOUR_MS: i64 = 3_600_000;

fn points(rest: &Rest, server: &Server, device: &str, key: &str, count: usize) {
    let path = format!(
        "/api/plugins/telemetry/DEVICE/{device}/values/timeseries?keys={key}&startTs=0&endTs=9999999999999&limit=1000"
    );
    rest.wait_for(server, &path, |found| {
        found[key].as_array().map_or(0, Vec::len) == count
    });
}

#[test]
fn values_expire_after_the_profile_ttl_or_their_own() {
    let mut server = Server::start(&Config::new("[platform]\nenabled = true\ndemo = true\n"));
    let rest = Rest::login(&server);
    let device = rest.device("Meter", "TOKEN");
    let now_ms = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_millis() as i64;
    let hours: Vec<Json> = (0..72)
        .map(|hour| json!({"ts": now_ms - hour * HOUR_MS - HOUR_MS / 2, "values": {"a": hour}}))
        .collect();
    let save = |rest: &Rest, path: &str, body: &Json| {
        rest.call(
            "POST",
            &format!("/api/plugins/telemetry/DEVICE/{device}/timeseries/{path}"),
            body,
        )
    };
    assert_eq!(save(&rest, "ANY", &Json::from(hours)).0, 200);
    points(&rest, &server, &device, "a", 72);
    let admin = Rest::login_as(&server, "sysadmin");
    let id = admin.ok("GET", "/api/tenantProfileInfo/default", &Json::Null)["id"]["id"].clone();
    let path = format!("/api/tenantProfile/{}", id.as_str().unwrap_or_default());
    let mut profile = admin.ok("GET", &path, &Json::Null);
    profile["profileData"]["configuration"]["defaultStorageTtlDays"] = json!("one");
    let (status, answer) = admin.call("POST", "/api/tenantProfile", &profile);
    assert_eq!(status, 400);
    assert!(
        answer["message"]
            .as_str()
            .is_some_and(|text| text.contains("defaultStorageTtlDays")),
        "{answer}"
    );
    profile["profileData"]["configuration"]["defaultStorageTtlDays"] = json!(1);
    admin.ok("POST", "/api/tenantProfile", &profile);
    points(&rest, &server, &device, "a", 24);
    // This value has its own TTL of two and a half days.
    let body = json!({"ts": now_ms - 50 * HOUR_MS, "values": {"c": 0}});
    assert_eq!(save(&rest, &format!("ANY/{}", 60 * 3600), &body).0, 200);
    points(&rest, &server, &device, "c", 1);
    for bad in ["-1", "99999999999"] {
        let (status, answer) = save(&rest, &format!("ANY/{bad}"), &body);
        assert_eq!(status, 400, "{answer}");
    }
    assert_eq!(save(&rest, "ANY/soon", &body).0, 400);
    server.kill();
    server.spawn_again();
    server.wait_until_ready();
    let rest = Rest::login(&server);
    points(&rest, &server, &device, "a", 24);
    points(&rest, &server, &device, "c", 1);
}
