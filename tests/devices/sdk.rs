//! ThingsBoard's device and gateway SDK and its REST client of PyPI, unmodified: what they are told by the server, and what is stored of
//! what they say.

use std::path::Path;
use std::process::Command;

use timeseries::Value;

use crate::support::*;
use crate::world::{World, device, gateway, points, provisioning_profile, talking_chain};

#[test]
fn the_python_sdk_works_unmodified() {
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
    world.beside(|devices| {
        assert_eq!(points(devices, id, "m").len(), 100);
        assert_eq!(points(devices, id, "temperature")[0].value, Value::Double(22.5));
    });
}

#[test]
fn the_python_rest_client_works_unmodified() {
    let server = Server::start(&Config::new("[platform]\nenabled = true\ndemo = true\n"));
    run(&server, &["rest.py", &format!("http://{}", server.http())]);
}

fn run(server: &Server, arguments: &[&str]) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/interop/thingsboard/run");
    let output = Command::new(script)
        .args(arguments)
        .output()
        .expect("bash and Python are there");
    let (said, complained) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    println!("{said}");
    assert!(output.status.success(), "{said}\n{complained}\n{}", server.log());
}
