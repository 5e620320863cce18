//! Devices and plain clients of one listener do not receive each other's messages.

use super::world::{World, device, talking_chain};
use crate::support::*;

#[test]
fn devices_and_plain_clients_have_separate_namespaces() {
    let (world, ()) = World::new(|devices, tenant| {
        talking_chain(devices, tenant);
        device(devices, tenant, "A", "TOKEN");
    });
    let mut everything = world.server.session(&Connect::new(V5, unique("all")));
    everything.subscribe("#", 1);
    let mut shared = world.server.session(&Connect::new(V5, unique("group")));
    shared.subscribe("$share/g/v1/devices/me/+", 1);
    let mut client = world.server.session(&Connect::new(V4, unique("plain")));

    let will = Will::new("v1/devices/me/telemetry", "will");
    let mut peer = world
        .server
        .session(&Connect::new(V4, "d").user_name("TOKEN").will(will));
    peer.subscribe("v1/devices/me/attributes", 1);
    for qos in 0..3 {
        let said = Publish::new("v1/devices/me/telemetry", "{\"a\":1}").qos(qos);
        peer.publish(&said.clone());
        peer.publish(&said.retain());
    }
    // A plain client can use the name of a device topic as an ordinary topic.
    client.publish(&Publish::new("v1/devices/me/attributes", "{\"x\":1}").qos(1).retain());
    assert_eq!(everything.receive().payload_str(), "{\"x\":1}");
    assert_eq!(shared.receive().payload_str(), "{\"x\":1}");
    peer.publish(
        &Publish::new(
            "v1/devices/me/rpc/request/1",
            r#"{"method":"setShared","params":{"s":1}}"#,
        )
        .qos(1),
    );
    let pushed = peer.receive();
    assert_eq!(pushed.payload_str(), "{\"s\":1}");
    peer.abort();

    let mut again = world.connect(V5, "TOKEN");
    again.subscribe("v1/devices/me/attributes", 1);
    again.ping_alone();
    client.publish(&Publish::new("end", "end").qos(1));
    let rest = everything.receive_until("end");
    assert!(rest.is_empty(), "{rest:?}");
    shared.ping_alone();
    let mut late = world.server.session(&Connect::new(V5, unique("late")));
    late.subscribe("v1/#", 1);
    assert_eq!(
        late.receive().payload_str(),
        "{\"x\":1}",
        "only the client's message is retained"
    );
    late.ping_alone();
}
