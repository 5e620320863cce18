//! Runs ThingsBoard's Python device and gateway SDK and its REST client, unmodified from PyPI.
//!
//! The tests check the server's answers to them and the data that the server stores.

use std::path::Path;
use std::process::Command;

use serde_json::Value as Json;
use timeseries::PointValue;

use super::ota::{FIRMWARE, uploaded_firmware};
use super::rest::Rest;
use super::world::{World, device, gateway, points, provisioning_profile, talking_chain};
use crate::support::*;

#[test]
fn unmodified_python_sdk_works() {
    let (mut world, id) = World::new(|devices, tenant| {
        talking_chain(devices, tenant);
        provisioning_profile(devices, tenant);
        gateway(devices, tenant, "G", "GATE");
        device(devices, tenant, "A", "TOKEN")
    });
    let address = world.server.mqtt();
    let (host, port) = (address.ip().to_string(), address.port().to_string());
    run(
        &world.server,
        &["suite.py", &host, &port, "TOKEN", "GATE", "key", "secret"],
    );
    world.while_stopped(|devices| {
        assert_eq!(points(devices, id, "m").len(), 100);
        assert_eq!(points(devices, id, "temperature")[0].value, PointValue::Double(22.5));
    });
}

#[test]
fn unmodified_python_rest_client_works() {
    let server = Server::start(&Config::new("[platform]\nenabled = true\ndemo = true\n"));
    run(&server, &["rest.py", &format!("http://{}", server.http())]);
}

/// The SDK subscribes neither to responses nor to chunks.
#[test]
fn python_sdk_updates_firmware() {
    let server = Server::start(&Config::new("[platform]\nenabled = true\ndemo = true\n"));
    let rest = Rest::login(&server);
    let id = rest.device("Meter", "TOKEN");
    let mut device = rest.ok("GET", &format!("/api/device/{id}"), &Json::Null);
    device["firmwareId"] = uploaded_firmware(&rest, &device["deviceProfileId"])["id"].clone();
    rest.ok("POST", "/api/device", &device);
    let address = server.mqtt();
    let (host, port) = (address.ip().to_string(), address.port().to_string());
    let said = run(&server, &["firmware.py", &host, &port, "TOKEN"]);
    assert_eq!(said, format!("1.0: {FIRMWARE}\n"));
    let path = format!("/api/plugins/telemetry/DEVICE/{id}/values/timeseries");
    rest.wait_for(&server, &path, |latest| {
        latest["fw_state"][0]["value"] == "UPDATED" && latest["current_fw_version"][0]["value"] == "1.0"
    });
}

/// Runs a Python script and returns its output.
fn run(server: &Server, arguments: &[&str]) -> String {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/interop/thingsboard/run");
    let output = Command::new(script)
        .args(arguments)
        .output()
        .expect("bash and Python are installed");
    let (said, complained) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    println!("{said}");
    assert!(output.status.success(), "{said}\n{complained}\n{}", server.log());
    said.into_owned()
}
