//! While the ingest log is full, the server rejects or delays device messages. Other clients are not affected.

use std::time::Duration;

use super::world::{CONFIG, World, device};
use crate::crash::faulty_disk;
use crate::support::api::Api;
use crate::support::*;

const QUOTA_EXCEEDED: u8 = 0x97;
/// Wait time for an acknowledgement that must not arrive.
const SILENCE: Duration = Duration::from_millis(300);

// fault: Disk full; Ingest log
#[test]
fn full_log_rejects_or_delays_device_messages() {
    let (mut world, ()) = World::new(|devices, tenant| {
        device(devices, tenant, "A", "TOKEN");
        device(devices, tenant, "B", "OTHER");
    });
    world.server.terminate(Duration::from_secs(30));
    world.server.kill();
    // No disk has this much free space, so the log counts as full.
    let reserve = CONFIG.replace("[durability]\n", "[durability]\nreserve_bytes = \"60000GiB\"\n");
    world.server.set_config(Config::new(reserve));
    world.server.spawn_again();
    world.server.wait_until_ready();

    let mut publisher = world.connect(V5, "TOKEN");
    let large = format!("{{\"a\":\"{}\"}}", "x".repeat(10_000));
    let message = Publish::new("v1/devices/me/telemetry", large).qos(1);
    world
        .server
        .wait_until("a device gets the reason code for a full log", |_| {
            publisher.publish(&message) == QUOTA_EXCEEDED
        });
    publisher.ping();
    let mut held = world.connect(V4, "OTHER");
    held.send(&message.clone().id(9).bytes(V4));
    held.send(&[0xC0, 0]);
    held.expect_nothing(SILENCE);

    // A client that is not a device can still publish.
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

// fault: Write or sync fails; Ingest log
#[test]
fn failed_log_is_visible_and_rejects_or_delays_device_messages() {
    let (mut world, ()) = World::new(|devices, tenant| {
        device(devices, tenant, "A", "TOKEN");
        device(devices, tenant, "B", "OTHER");
    });
    world.server.terminate(Duration::from_secs(30));
    world.server.kill();
    world.server.set_config(faulty_disk::config(CONFIG));
    world.server.spawn_again();
    world.server.wait_until_ready();
    let message = Publish::new("v1/devices/me/telemetry", "{\"a\":1}").qos(1);
    let mut first = world.connect(V5, "TOKEN");
    assert_eq!(first.publish(&message), 0);
    std::fs::write(faulty_disk::platform_sync_fails(&world.server), "").expect("the directory is writable");
    first.send(&message.clone().id(7).bytes(V5));
    // The connection is closed, or the message stays without an acknowledgement: it was not stored.
    let answer = first.read(SILENCE);
    assert!(
        !matches!(&answer, Reading::Packet(packet) if packet.reason() < 0x80),
        "{answer:?}"
    );

    let because = "Input/output error (os error 5)";
    let server = &world.server;
    server.wait_until("the log has the failure", |server| {
        server
            .log()
            .contains("the ingest log of the device platform has failed")
    });
    assert!(server.log().contains(because), "{}", server.log());
    server.wait_until("there is an alarm", |_| {
        let alarm = Api::of(server).get("/api/v1/alarms")["active"][0].clone();
        alarm["name"] == "ingest_log_failed" && alarm["message"].to_string().contains(because)
    });
    let (status, ready) = server.http_get("/readyz");
    assert!(status == 503 && ready.contains(because), "{status} {ready}");
    let (_, metrics) = server.http_get("/metrics");
    assert!(
        metrics.contains("tidewire_platform_log_state{state=\"failed\"} 1"),
        "{metrics}"
    );

    let mut rejected = world.connect(V5, "TOKEN");
    assert_eq!(rejected.publish(&message), QUOTA_EXCEEDED);
    let mut held = world.connect(V4, "OTHER");
    held.send(&message.clone().id(9).bytes(V4));
    held.expect_nothing(SILENCE);

    world.server.kill();
    world.server.set_config(Config::new(CONFIG));
    world.server.spawn_again();
    world.server.wait_until_ready();
    let mut again = world.connect(V4, "OTHER");
    assert_eq!(again.publish(&message), 0);
}
