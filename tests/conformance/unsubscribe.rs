//! Tests UNSUBSCRIBE and UNSUBACK. Chapters 3.10 and 3.11.

use super::*;
use crate::support::*;

#[test]
fn unsuback_repeats_the_packet_id() {
    for version in ALL_VERSIONS {
        let topic = topic();
        let mut peer = subscriber(version, &topic, 0);
        // The second UNSUBSCRIBE has no subscription to delete.
        for id in [0x1234, 0xFFFF] {
            peer.send(&packet::unsubscribe(version, id, &[&topic]));
            let unsuback = peer.expect_packet();
            assert_eq!((unsuback.first, unsuback.packet_id()), (0xB0, id));
        }
        peer.ping_alone();
    }
}

#[test]
fn unsubscribe_without_filter_closes_the_connection() {
    for version in NUMBERED {
        let none: [&str; 0] = [];
        let bytes = packet::unsubscribe(version, 1, &none);
        closes(version, &bytes, &[MALFORMED_PACKET, PROTOCOL_ERROR], "no filter");
    }
}

#[test]
fn filters_are_compared_exactly() {
    for version in NUMBERED {
        let root = topic();
        let mut peer = subscriber(version, &format!("{root}/+"), 1);
        for other in ["#", "a", "", "+/+"] {
            let code = peer.unsubscribe(format!("{root}/{other}"));
            assert!(version == V4 || code == 0x11, "{other}: {code:#04x}");
        }
        peer.unsubscribe(format!("{root}/+").to_uppercase());
        let mut publisher = client(version);
        publisher.publish(&Publish::new(format!("{root}/a"), "still subscribed").qos(1));
        assert_eq!(peer.receive().payload, b"still subscribed");
        assert_eq!(peer.unsubscribe(format!("{root}/+")), 0x00);
        let end = topic();
        peer.subscribe(&end, 1);
        publisher.publish(&Publish::new(format!("{root}/a"), "unsubscribed").qos(1));
        publisher.publish(&Publish::new(&end, SENTINEL).qos(1));
        assert!(peer.receive_until(SENTINEL).is_empty(), "{version:?}");
    }
}

#[test]
fn no_new_messages_after_unsuback() {
    for version in NUMBERED {
        let (topic, end) = (topic(), topic());
        let mut peer = subscriber(version, &topic, 2);
        peer.subscribe(&end, 2);
        let mut publisher = client(version);
        peer.unsubscribe(&topic);
        for qos in 0..3 {
            publisher.publish(&Publish::new(&topic, "too late").qos(qos));
        }
        publisher.publish(&Publish::new(&end, SENTINEL).qos(2));
        assert!(peer.receive_until(SENTINEL).is_empty(), "{version:?}");
    }
}

#[test]
fn started_deliveries_are_completed() {
    for version in NUMBERED {
        let (connect, topic) = (lasting(version), topic());
        let (mut peer, _) = resume(&connect);
        peer.subscribe(&topic, 2);
        let mut publisher = client(version);
        publisher.publish(&Publish::new(&topic, "one").qos(2));
        publisher.publish(&Publish::new(&topic, "two").qos(1));
        let (first, second) = (peer.expect_publish(), peer.expect_publish());
        peer.unsubscribe(&topic);
        peer.acknowledge(&first);
        peer.ping_alone();
        peer.abort();
        // The message is not acknowledged, so the server resends it although the subscription is deleted.
        let (mut peer, _) = resume(&connect);
        let again = peer.receive();
        assert_eq!(
            (again.payload, again.packet_id, again.is_duplicate),
            (second.payload, second.packet_id, true)
        );
        peer.ping_alone();
    }
}

#[test]
fn many_filters_get_one_unsuback() {
    for version in NUMBERED {
        let (one, other, end) = (topic(), topic(), topic());
        let mut peer = subscriber(version, &one, 1);
        peer.subscribe(&other, 1);
        peer.subscribe(&end, 1);
        let filters = [&one, &topic(), &other];
        peer.send(&packet::unsubscribe(version, 9, &filters));
        let unsuback = peer.expect_packet();
        let codes: &[u8] = if version == V5 { &[0x00, 0x11, 0x00] } else { &[] };
        assert_eq!(unsuback.reason_codes(version), codes);
        peer.ping_alone();
        let mut publisher = client(version);
        publisher.publish(&Publish::new(&one, "gone").qos(1));
        publisher.publish(&Publish::new(&other, "gone").qos(1));
        publisher.publish(&Publish::new(&end, SENTINEL).qos(1));
        assert!(peer.receive_until(SENTINEL).is_empty());
    }
}
