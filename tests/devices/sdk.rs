//! ThingsBoard's device and gateway SDK of PyPI, unmodified: what it is told by the server, and what is stored of what it says.

use std::path::Path;
use std::process::Command;

use timeseries::Value;

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
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/interop/thingsboard/run");
    let output = Command::new(script)
        .args([&address.ip().to_string(), &address.port().to_string()])
        .args(["TOKEN", "GATE", "key", "secret"])
        .output()
        .expect("bash and Python are there");
    let (said, complained) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    println!("{said}");
    assert!(output.status.success(), "{said}\n{complained}\n{}", world.server.log());
    world.beside(|devices| {
        assert_eq!(points(devices, id, "m").len(), 100);
        assert_eq!(points(devices, id, "temperature")[0].value, Value::Double(22.5));
    });
}
