//! Tests SUBSCRIBE, SUBACK and the messages that subscriptions deliver. Chapters 3.8, 3.9 and 3.3.4 (3.3.5 in 3.1.1).

use super::*;
use crate::support::*;

#[test]
fn suback_repeats_the_packet_id() {
    for version in ALL_VERSIONS {
        let mut peer = client(version);
        for id in [1, 0x1234, 0xFFFF] {
            peer.send(&packet::subscribe(version, id, &[(topic(), 1)], &[]));
            let suback = peer.expect_packet();
            assert_eq!((suback.first, suback.packet_id()), (0x90, id));
            assert_eq!(suback.reason_codes(version), [1]);
        }
    }
}

#[test]
fn subscribe_without_filter_closes_the_connection() {
    for version in NUMBERED {
        let none: [(&str, u8); 0] = [];
        let bytes = packet::subscribe(version, 1, &none, &[]);
        closes(version, &bytes, &[MALFORMED_PACKET, PROTOCOL_ERROR], "no filter");
    }
}

#[test]
fn reserved_option_bits_close_the_connection() {
    let options_3_1_1: &[u8] = &[0x03, 0x04, 0x08, 0x10, 0x20, 0x40, 0x80];
    let options_5: &[u8] = &[0x03, 0x30, 0x40, 0x80];
    for (version, options) in [(V4, options_3_1_1), (V5, options_5)] {
        for options in options {
            let bytes = packet::subscribe(version, 1, &[("a", *options)], &[]);
            closes(
                version,
                &bytes,
                &[MALFORMED_PACKET, PROTOCOL_ERROR],
                &format!("options {options:#04x}"),
            );
        }
    }
}

#[test]
fn suback_codes_follow_the_order_of_the_filters() {
    for version in ALL_VERSIONS {
        let mut peer = client(version);
        let filters = [(topic(), 2), (topic(), 0), (topic(), 1), (topic(), 1), (topic(), 0)];
        peer.send(&packet::subscribe(version, 1, &filters, &[]));
        assert_eq!(peer.expect_packet().reason_codes(version), [2, 0, 1, 1, 0]);
    }
}

#[test]
fn many_filters_get_one_suback() {
    for version in ALL_VERSIONS {
        let mut peer = client(version);
        let topics = [topic(), topic(), topic()];
        let filters = topics.each_ref().map(|topic| (topic, 1));
        peer.send(&packet::subscribe(version, 1, &filters, &[]));
        assert_eq!(peer.expect_packet().reason_codes(version), [1, 1, 1]);
        peer.ping_alone();
        let mut publisher = client(version);
        for topic in &topics {
            publisher.publish(&Publish::new(topic, "one each"));
            assert_eq!(peer.receive().topic_str(), topic);
        }
    }
}

#[test]
fn same_filter_replaces_the_subscription() {
    for version in NUMBERED {
        let topic = topic();
        let mut publisher = client(version);
        publisher.publish(&Publish::new(&topic, "retained").qos(1).retain());
        let mut peer = subscriber(version, &topic, 2);
        assert_eq!(peer.receive().payload, b"retained");
        peer.subscribe(&topic, 0);
        let again = peer.receive();
        assert_eq!(
            (again.payload_str(), again.qos, again.is_retained),
            ("retained", 0, true)
        );
        publisher.publish(&Publish::new(&topic, "live").qos(2));
        publisher.publish(&Publish::new(&topic, SENTINEL).qos(2));
        let messages = peer.receive_until(SENTINEL);
        assert_eq!(payloads(&messages), ["live"], "{version:?}: one subscription, one copy");
        assert_eq!(messages[0].qos, 0, "{version:?}: with the new QoS");
    }
}

#[test]
fn replacing_a_subscription_loses_nothing() {
    for version in NUMBERED {
        let topic = topic();
        let mut peer = subscriber(version, &topic, 1);
        let messages = std::thread::scope(|scope| {
            let publisher = scope.spawn(|| {
                let mut publisher = client(version);
                for payload in numbered(200) {
                    publisher.publish(&Publish::new(&topic, payload).qos(1));
                }
                publisher.publish(&Publish::new(&topic, SENTINEL).qos(1));
            });
            while !publisher.is_finished() {
                peer.subscribe(&topic, 1);
            }
            peer.receive_until(SENTINEL)
        });
        assert_eq!(payloads(&messages), numbered(200), "{version:?}");
    }
}

#[test]
fn delivery_has_the_lower_qos() {
    for version in NUMBERED {
        for granted in 0..3 {
            let topic = topic();
            let mut peer = subscriber(version, &topic, granted);
            let mut publisher = client(version);
            for published in 0..3 {
                publisher.publish(&Publish::new(&topic, "message").qos(published));
                assert_eq!(
                    peer.receive().qos,
                    granted.min(published),
                    "published with {published}, granted {granted}"
                );
            }
        }
    }
}

/// The server may send one copy, or one per subscription. One copy has the highest QoS, in any order of the filters.
#[test]
fn overlapping_filters_deliver_with_the_highest_qos() {
    for version in NUMBERED {
        for granted in [[0, 2, 1], [2, 1, 0], [1, 0, 2], [0, 1, 1]] {
            let (root, end) = (topic(), topic());
            let mut peer = subscriber(version, &end, 1);
            for (filter, qos) in ["#", "+/b", "a/b"].into_iter().zip(granted) {
                peer.subscribe(format!("{root}/{filter}"), qos);
            }
            let mut publisher = client(version);
            publisher.publish(&Publish::new(format!("{root}/a/b"), "overlap").qos(2));
            publisher.publish(&Publish::new(&end, SENTINEL).qos(1));
            let messages = peer.receive_until(SENTINEL);
            let highest = messages.iter().map(|message| message.qos).max();
            assert_eq!(
                highest,
                granted.into_iter().max(),
                "{version:?} {granted:?}: {messages:?}"
            );
            assert!(messages.len() <= 3);
        }
    }
}

#[test]
fn subscription_identifiers_of_all_matches_are_sent() {
    let (root, end) = (topic(), topic());
    let mut peer = subscriber(V5, &end, 1);
    for (filter, identifier) in [("#", Some(1)), ("+/b", Some(268_435_455)), ("a/b", None)] {
        let property = identifier.map(|id| prop::varint(prop::SUBSCRIPTION_IDENTIFIER, id));
        subscribe_with(&mut peer, &format!("{root}/{filter}"), 1, &property.unwrap_or_default());
    }
    let mut publisher = client(V5);
    publisher.publish(&Publish::new(format!("{root}/a/b"), "overlap").qos(1));
    publisher.publish(&Publish::new(&end, SENTINEL).qos(1));
    let messages = peer.receive_until(SENTINEL);
    let of_each = messages
        .iter()
        .map(|message| message.properties.numbers(prop::SUBSCRIPTION_IDENTIFIER));
    let mut identifiers: Vec<Vec<u32>> = of_each.collect();
    identifiers.iter_mut().for_each(|of_one| of_one.sort());
    identifiers.sort();
    let merged = vec![vec![1, 268_435_455]];
    let one_each = vec![vec![], vec![1], vec![268_435_455]];
    assert!(identifiers == merged || identifiers == one_each, "{identifiers:?}");
}

#[test]
fn subscription_identifier_from_a_client_closes_the_connection() {
    let property = prop::varint(prop::SUBSCRIPTION_IDENTIFIER, 1);
    let bytes = Publish::new("a", "b").property(property).bytes(V5);
    closes(
        V5,
        &bytes,
        &[PROTOCOL_ERROR, MALFORMED_PACKET],
        "a Subscription Identifier",
    );
    let zero = prop::varint(prop::SUBSCRIPTION_IDENTIFIER, 0);
    let bytes = packet::subscribe(V5, 1, &[("a", 0)], &zero);
    closes(
        V5,
        &bytes,
        &[PROTOCOL_ERROR, MALFORMED_PACKET],
        "Subscription Identifier 0",
    );
}

#[test]
fn no_local_suppresses_own_messages() {
    let topic = topic();
    let mut peer = client(V5);
    assert_eq!(subscribe_with(&mut peer, &topic, 0x04 | 1, &[]), 1);
    peer.publish(&Publish::new(&topic, "my own").qos(1));
    client(V5).publish(&Publish::new(&topic, SENTINEL).qos(1));
    assert!(peer.receive_until(SENTINEL).is_empty());
}
