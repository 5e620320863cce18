//! Clients that set the bridge flag of Mosquitto, bit 7 of the protocol level, as bridges before MQTT 5 do.

use crate::support::packet::{connect_raw, string};
use crate::support::*;

#[test]
fn bridge_gets_no_message_of_its_own_and_the_retain_flag_as_published() {
    const BRIDGE_BIT: u8 = 0x80;
    let server = Server::start(&Config::new(""));
    let mut bridge = server.connect();
    let (name, level) = packet::protocol(V4);
    bridge.send(&connect_raw(name, level | BRIDGE_BIT, 0x02, 60, &string("bridge")));
    assert_eq!(bridge.expect(kind::CONNACK).connack(V4).code, 0);
    bridge.subscribe("both/#", 1);
    bridge.publish(&Publish::new("both/own", "own").qos(1));
    bridge.ping_alone();
    let mut other = server.session(&Connect::new(V5, "other"));
    other.publish(&Publish::new("both/other", "other").qos(1).retain());
    let received = bridge.receive();
    assert_eq!((received.payload_str(), received.is_retained), ("other", true));
}
