//! Tests PUBLISH from a client: flags, identifiers and the answer. Chapters 3.3.1, 3.3.4 and 2.2.1 (2.3.1 in 3.1.1).

use super::*;
use crate::support::*;

#[test]
fn packet_id_zero_closes_the_connection() {
    for version in NUMBERED {
        let packets = [
            Publish::new("a", "b").qos(1).id(0).bytes(version),
            Publish::new("a", "b").qos(2).id(0).bytes(version),
            packet::subscribe(version, 0, &[("a", 0)], &[]),
            packet::unsubscribe(version, 0, &["a"]),
        ];
        for bytes in packets {
            closes(
                version,
                &bytes,
                &[MALFORMED_PACKET, PROTOCOL_ERROR],
                "packet identifier 0",
            );
        }
    }
}

#[test]
fn dup_on_qos_0_closes_the_connection() {
    for version in NUMBERED {
        let bytes = Publish::new("a", "b").dup().bytes(version);
        closes(version, &bytes, &[MALFORMED_PACKET, PROTOCOL_ERROR], "QoS 0 with DUP");
    }
}

#[test]
fn qos_3_closes_the_connection() {
    for version in NUMBERED {
        let bytes = Publish::new("a", "b").qos(3).bytes(version);
        closes(version, &bytes, &[MALFORMED_PACKET], "QoS 3");
    }
}

#[test]
fn dup_is_not_passed_on() {
    for version in NUMBERED {
        let topic = topic();
        let mut subscriber = subscriber(version, &topic, 2);
        let mut publisher = client(version);
        for qos in [1, 2] {
            publisher.publish(&Publish::new(&topic, "sent with DUP").qos(qos).dup());
            assert!(!subscriber.receive().is_duplicate);
        }
    }
}

#[test]
fn answer_follows_the_qos() {
    for version in ALL_VERSIONS {
        let topic = topic();
        let _subscriber = subscriber(version, &topic, 0);
        let mut peer = client(version);
        peer.send(&Publish::new(&topic, "no answer").bytes(version));
        peer.ping_alone();

        peer.send(&Publish::new(&topic, "PUBACK").qos(1).id(0x1234).bytes(version));
        let puback = peer.expect_packet();
        assert_eq!(
            (puback.first, puback.packet_id(), puback.reason()),
            (0x40, 0x1234, 0),
            "{version:?}"
        );

        peer.send(&Publish::new(&topic, "PUBREC").qos(2).id(0xFFFF).bytes(version));
        let pubrec = peer.expect_packet();
        assert_eq!(
            (pubrec.first, pubrec.packet_id(), pubrec.reason()),
            (0x50, 0xFFFF, 0),
            "{version:?}"
        );
        peer.send(&packet::acknowledge(kind::PUBREL, 0xFFFF));
        let pubcomp = peer.expect_packet();
        assert_eq!(
            (pubcomp.first, pubcomp.packet_id(), pubcomp.reason()),
            (0x70, 0xFFFF, 0),
            "{version:?}"
        );
        peer.ping_alone();
    }
}

/// In MQTT 5 the code may also be 0x10, No matching subscribers. No other code below 0x80 is defined.
#[test]
fn acknowledgement_without_subscribers_is_a_success() {
    let mut peer = client(V5);
    for qos in [1, 2] {
        let reason = peer.publish(&Publish::new(topic(), "no subscriber").qos(qos));
        assert!(matches!(reason, 0x00 | 0x10), "QoS {qos}: {reason:#04x}");
    }
}
