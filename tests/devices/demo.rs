//! `tidewire demo` shows devices, values and alarms, and removes all its data when it ends.

use std::process::Command;
use std::time::Duration;

use serde_json::Value as Json;

use super::rest::Rest;
use super::world::{CONFIG, open};
use crate::support::*;

#[test]
fn demo_shows_values_and_alarms_and_removes_its_data() {
    let config = Config {
        subcommand: Some("demo"),
        ..Config::default()
    };
    let mut server = Server::start(&config);
    server.wait_until("the simulated devices report", |server| {
        server.log().contains("10 simulated devices report every second")
    });
    let rest = Rest::login(&server);
    let all = "/api/tenant/deviceInfos?pageSize=100&page=0&active=true&textSearch=Demo";
    let devices = rest.wait_for(&server, all, |page| page["totalElements"] == 10);
    let id = devices["data"][0]["id"]["id"].as_str().expect("an identifier");
    let values = format!("/api/plugins/telemetry/DEVICE/{id}/values/timeseries");
    let latest = rest.wait_for(&server, &values, |latest| {
        !latest.as_object().is_none_or(|all| all.is_empty())
    });
    let of_first = |latest: &Json| {
        latest
            .as_object()
            .and_then(|all| all.values().next()?[0]["ts"].as_i64())
    };
    rest.wait_for(&server, &values, |later| of_first(later) > of_first(&latest));
    let is_of_meter = |alarm: &Json| alarm["type"] == "Battery low";
    rest.wait_for(&server, "/api/alarms?pageSize=100&page=0&searchStatus=ACTIVE", |page| {
        page["data"].as_array().is_some_and(|all| all.iter().any(is_of_meter))
    });
    let dashboards = rest.ok("GET", "/api/tenant/dashboards?pageSize=10&page=0", &Json::Null);
    assert_eq!(dashboards["data"][0]["title"], "Demo warehouse");

    server.terminate(Duration::from_secs(30));
    server.kill();
    let log = server.log();
    let (_, of_stop) = log.split_once("stopping grace_ms").expect("a stop is logged");
    let complaints: Vec<&str> = of_stop
        .lines()
        .filter(|line| line.contains("WARN") || line.contains("ERROR"))
        .collect();
    assert!(
        complaints.is_empty(),
        "a clean stop logs no warnings or errors: {complaints:#?}"
    );
    let devices = open(&server);
    assert_eq!(devices.entities().directory().device_count(), 0);
    assert_eq!(
        devices.entities().directory().profiles().count(),
        1,
        "only the default profile remains"
    );
    devices.shut_down();
}

/// `--demo` creates the demo users and logs a warning about their publicly known passwords.
#[test]
fn demo_users_are_created_on_request_with_a_warning() {
    let config = Config {
        subcommand: Some("--demo"),
        ..Config::default()
    };
    let server = Server::start(&config);
    let rest = Rest::login(&server);
    assert_eq!(
        rest.ok("GET", "/api/auth/user", &Json::Null)["authority"],
        "TENANT_ADMIN"
    );
    let log = server.log();
    assert!(
        log.contains("passwords that everybody knows") && log.contains("this machine only"),
        "{log}"
    );
}

/// After a demo was killed, `demo --remove` deletes its data from a running server and nothing else.
#[test]
fn demo_remove_deletes_the_data_of_a_killed_demo() {
    let mut server = Server::start(&Config {
        subcommand: Some("demo"),
        ..Config::default()
    });
    server.wait_until("the simulated devices report", |server| {
        server.log().contains("10 simulated devices report every second")
    });
    server.kill();
    server.set_config(Config::new(CONFIG));
    server.spawn_again();
    server.wait_until_ready();
    let rest = Rest::login(&server);
    let own = rest.device("Demonstrator", "OWN");
    let count =
        |path: &str| rest.ok("GET", &format!("{path}?pageSize=100&page=0"), &Json::Null)["totalElements"].clone();
    assert_eq!(count("/api/tenant/devices"), 11);

    let removed = remove(&server);
    assert!(removed.contains("10 simulated devices"), "{removed}");
    let left = rest.ok("GET", "/api/tenant/devices?pageSize=100&page=0", &Json::Null);
    assert_eq!(left["totalElements"], 1);
    assert_eq!(left["data"][0]["id"]["id"], own.as_str());
    assert_eq!(count("/api/tenant/dashboards"), 0);
    assert_eq!(count("/api/tenant/assets"), 0);
    assert_eq!(count("/api/deviceProfiles"), 1, "only the default profile remains");
    let again = remove(&server);
    assert!(again.starts_with("0 simulated devices"), "{again}");
}

fn remove(server: &Server) -> String {
    let done = Command::new(env!("CARGO_BIN_EXE_tidewire"))
        .args(["--set", &format!("api.bind={}", server.http()), "demo", "--remove"])
        .output()
        .expect("the program runs");
    let said = String::from_utf8_lossy(&done.stdout).into_owned();
    assert!(done.status.success(), "{said}{}", String::from_utf8_lossy(&done.stderr));
    said
}
