//! A log that takes nothing: devices are told or held, everybody else goes on.

use std::time::Duration;

use crate::support::*;
use crate::world::{CONFIG, World, device};

const QUOTA_EXCEEDED: u8 = 0x97;
/// For an acknowledgement that is not to come.
const SILENCE: Duration = Duration::from_millis(300);

#[test]
fn devices_are_told_or_held_while_the_log_is_full() {
    let (mut world, ()) = World::new(|devices, tenant| {
        device(devices, tenant, "A", "TOKEN");
        device(devices, tenant, "B", "OTHER");
    });
    world.server.terminate(Duration::from_secs(30));
    world.server.kill();
    // More free space than any disk has.
    let reserve = CONFIG.replace("[durability]\n", "[durability]\nreserve_bytes = \"60000GiB\"\n");
    world.server.set_config(Config::new(reserve));
    world.server.spawn_again();
    world.server.wait_until_ready();

    let mut told = world.connect(V5, "TOKEN");
    let large = format!("{{\"a\":\"{}\"}}", "x".repeat(10_000));
    let message = Publish::new("v1/devices/me/telemetry", large).qos(1);
    world
        .server
        .wait_until("a device is told", |_| told.publish(&message) == QUOTA_EXCEEDED);
    told.ping();
    let mut held = world.connect(V4, "OTHER");
    held.send(&message.clone().id(9).bytes(V4));
    held.send(&[0xC0, 0]);
    held.expect_nothing(SILENCE);

    // A plain client is nobody's device.
    let mut client = world.server.session(&Connect::new(V4, unique("plain")));
    client.subscribe("t", 0);
    client.publish(&Publish::new("t", "hello").qos(1));
    assert_eq!(client.receive().payload_str(), "hello");

    world.server.terminate(Duration::from_secs(30));
    world.server.kill();
    world.server.set_config(Config::new(CONFIG));
    world.server.spawn_again();
    world.server.wait_until_ready();
    let mut again = world.connect(V4, "OTHER");
    assert_eq!(again.publish(&message), 0);
}
