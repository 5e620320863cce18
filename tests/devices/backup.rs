//! A backup of the device platform: refused while a server runs on it, whole once it has stopped.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use crate::support::*;
use crate::world::{NOW, World, device, open, points};

#[test]
fn the_platform_is_backed_up_when_its_server_has_stopped() {
    let (mut world, id) = World::new(|devices, tenant| device(devices, tenant, "D", "T"));
    let mut peer = world.connect(V4, "T");
    let body = format!("{{\"ts\":{NOW},\"values\":{{\"n\":7}}}}");
    peer.publish(&Publish::new("v1/devices/me/telemetry", body).qos(1));
    let directory = world.server.dir().to_owned();

    let refused = tidewire(&directory, &["backup", "--data-dir", "data", "--to", "copy"]);
    let told = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && told.contains("stop the server"), "{told}");
    assert!(!directory.join("copy").exists(), "nothing is half copied");

    world.server.terminate(Duration::from_secs(30));
    world.server.kill();
    let told = done(tidewire(&directory, &["backup", "--data-dir", "data", "--to", "copy"]));
    assert!(told.contains("of the device platform: "), "{told}");
    fs::remove_dir_all(directory.join("data")).expect("the server is gone");
    done(tidewire(
        &directory,
        &["restore", "--data-dir", "data", "--from", "copy"],
    ));
    let devices = open(&world.server);
    let stored = points(&devices, id, "n");
    assert_eq!(stored.len(), 1);
    assert_eq!((stored[0].ts_ms, &stored[0].value), (NOW, &timeseries::Value::Long(7)));
    devices.shut_down();
    drop(devices);

    world.server.spawn_again();
    world.server.wait_until_ready();
    world.connect(V4, "T").ping_alone();
}

fn tidewire(directory: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidewire"));
    command.current_dir(directory).args(args);
    command.output().expect("the program starts")
}

fn done(output: Output) -> String {
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{error}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}
