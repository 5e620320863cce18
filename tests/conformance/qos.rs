//! Tests the three delivery protocols in both directions. Chapters 4.3, 4.5 and 4.6.

use super::*;
use crate::support::*;

/// Compares the packet byte for byte, so that it cannot contain an identifier or properties.
#[test]
fn qos_0_has_no_packet_id_and_no_dup() {
    for version in NUMBERED {
        let topic = topic();
        let mut subscriber = subscriber(version, &topic, 2);
        client(version).publish(&Publish::new(&topic, "payload"));
        let found = subscriber.expect_packet();
        let properties: &[u8] = if version == V5 { &[0] } else { &[] };
        let body = [&packet::string(&topic), properties, b"payload"].concat();
        assert_eq!((found.first, found.body), (0x30, body), "{version:?}");
    }
}

#[test]
fn deliveries_use_distinct_packet_ids() {
    for version in NUMBERED {
        let topic = topic();
        let mut subscriber = subscriber(version, &topic, 2);
        let mut publisher = client(version);
        for qos in [1, 2, 1, 2, 1, 2, 1, 2, 1, 2] {
            publisher.publish(&Publish::new(&topic, "unacknowledged").qos(qos));
        }
        let sent: Vec<Delivery> = (0..10).map(|_| subscriber.expect_publish()).collect();
        let mut ids: Vec<u16> = sent.iter().filter_map(|message| message.packet_id).collect();
        ids.sort();
        ids.dedup();
        assert_eq!(ids.len(), 10, "{version:?}: identifiers in use at the same time differ");
        assert!(sent.iter().all(|message| !message.is_duplicate));
        sent.iter().for_each(|message| subscriber.acknowledge(message));
    }
}

#[test]
fn qos_1_identifier_is_new_after_puback() {
    for version in NUMBERED {
        let topic = topic();
        let mut subscriber = subscriber(version, &topic, 1);
        let mut publisher = client(version);
        for payload in ["first", "second"] {
            let message = Publish::new(&topic, payload).qos(1).id(5).dup();
            publisher.send(&message.bytes(version));
            assert_eq!(publisher.expect(kind::PUBACK).packet_id(), 5);
            assert_eq!(subscriber.receive().payload_str(), payload);
        }
    }
}

#[test]
fn qos_2_delivery_runs_the_whole_handshake() {
    for version in ALL_VERSIONS {
        let topic = topic();
        let mut subscriber = subscriber(version, &topic, 2);
        client(version).publish(&Publish::new(&topic, "exactly once").qos(2));
        let message = subscriber.expect_publish();
        assert_eq!((message.qos, message.is_duplicate), (2, false));
        let id = message.packet_id.expect("QoS 2 has an identifier");
        // PUBREL waits for PUBREC.
        subscriber.ping_alone();
        subscriber.send(&packet::acknowledge(kind::PUBREC, id));
        let pubrel = subscriber.expect_packet();
        assert_eq!((pubrel.first, pubrel.packet_id(), pubrel.reason()), (0x62, id, 0));
        subscriber.send(&packet::acknowledge(kind::PUBCOMP, id));
        subscriber.ping_alone();
    }
}

#[test]
fn qos_2_duplicate_is_delivered_once() {
    for version in ALL_VERSIONS {
        let topic = topic();
        let mut subscriber = subscriber(version, &topic, 2);
        let mut publisher = client(version);
        let mut message = Publish::new(&topic, "exactly once").qos(2).id(9);
        for _ in 0..5 {
            publisher.send(&message.bytes(version));
            let pubrec = publisher.expect(kind::PUBREC);
            assert_eq!((pubrec.packet_id(), pubrec.reason()), (9, 0), "{version:?}");
            message = message.dup();
        }
        publisher.send(&packet::acknowledge(kind::PUBREL, 9));
        assert_eq!(publisher.expect(kind::PUBCOMP).packet_id(), 9);
        publisher.publish(&Publish::new(&topic, SENTINEL).qos(2));
        let messages = subscriber.receive_until(SENTINEL);
        assert_eq!(payloads(&messages), ["exactly once"], "{version:?}");
    }
}

#[test]
fn qos_2_identifier_is_new_after_pubcomp() {
    for version in NUMBERED {
        let topic = topic();
        let mut subscriber = subscriber(version, &topic, 2);
        let mut publisher = client(version);
        for payload in ["first", "second"] {
            publisher.send(&Publish::new(&topic, payload).qos(2).id(3).dup().bytes(version));
            assert_eq!(publisher.expect(kind::PUBREC).packet_id(), 3);
            publisher.send(&packet::acknowledge(kind::PUBREL, 3));
            assert_eq!(publisher.expect(kind::PUBCOMP).packet_id(), 3);
            assert_eq!(subscriber.receive().payload_str(), payload);
        }
    }
}

/// The server answers PUBREL for an unknown message with PUBCOMP, because the first PUBCOMP may have been lost.
#[test]
fn unknown_packet_ids_are_reported() {
    let mut peer = client(V4);
    peer.send(&packet::acknowledge(kind::PUBREL, 77));
    let pubcomp = peer.expect_packet();
    assert_eq!((pubcomp.first, pubcomp.packet_id()), (0x70, 77));

    let mut peer = client(V5);
    peer.send(&packet::acknowledge(kind::PUBREL, 77));
    let pubcomp = peer.expect_packet();
    assert_eq!((pubcomp.first, pubcomp.packet_id(), pubcomp.reason()), (0x70, 77, 0x92));
    peer.send(&packet::acknowledge(kind::PUBREC, 78));
    let pubrel = peer.expect_packet();
    assert_eq!((pubrel.first, pubrel.packet_id(), pubrel.reason()), (0x62, 78, 0x92));
    peer.ping_alone();
}

#[test]
fn unknown_reason_codes_close_the_connection() {
    for (first, undefined) in [(0x40, 0x92), (0x50, 0x92), (0x62, 0x80), (0x70, 0x10), (0x40, 0x03)] {
        let bytes = [first, 0x03, 0x00, 0x01, undefined];
        closes(
            V5,
            &bytes,
            &[MALFORMED_PACKET, PROTOCOL_ERROR],
            "a reason code of another packet",
        );
    }
}

#[test]
fn refused_delivery_is_not_repeated() {
    let (connect, topic) = (lasting(V5), topic());
    let (mut peer, _) = resume(&connect);
    peer.subscribe(&topic, 2);
    let mut publisher = client(V5);
    for (qos, answer) in [(1, 0x40), (2, 0x50)] {
        publisher.publish(&Publish::new(&topic, "not wanted").qos(qos));
        let id = peer.expect_publish().packet_id.expect("an identifier").to_be_bytes();
        peer.send(&[answer, 0x03, id[0], id[1], 0x83]);
        peer.ping_alone();
    }
    peer.abort();
    let (mut peer, session_present) = resume(&connect);
    assert!(session_present);
    peer.ping_alone();
    publisher.publish(&Publish::new(&topic, "wanted").qos(2));
    assert_eq!(peer.receive().payload, b"wanted");
}

#[test]
fn sent_message_does_not_expire() {
    let (connect, topic) = (lasting(V5), topic());
    let (mut peer, _) = resume(&connect);
    peer.subscribe(&topic, 2);
    let message = Publish::new(&topic, "sent in time").qos(2);
    client(V5).publish(&message.property(prop::u32(prop::MESSAGE_EXPIRY_INTERVAL, 1)));
    let first = peer.expect_publish();
    peer.abort();
    let_pass(Duration::from_millis(2100));
    let (mut peer, _) = resume(&connect);
    let again = peer.receive();
    assert_eq!((again.packet_id, again.is_duplicate), (first.packet_id, true));
}

#[test]
fn qos_2_exchange_outlives_the_message() {
    let topic = topic();
    let mut publisher = client(V5);
    let message = Publish::new(&topic, "short-lived").qos(2).id(4);
    publisher.send(&message.property(prop::u32(prop::MESSAGE_EXPIRY_INTERVAL, 1)).bytes(V5));
    assert!(publisher.expect(kind::PUBREC).reason() < 0x80);
    let_pass(Duration::from_millis(1100));
    publisher.send(&packet::acknowledge(kind::PUBREL, 4));
    let pubcomp = publisher.expect(kind::PUBCOMP);
    assert_eq!((pubcomp.packet_id(), pubcomp.reason()), (4, 0));
}

#[test]
fn acknowledgements_keep_the_order() {
    for version in NUMBERED {
        let topic = topic();
        let mut subscriber = subscriber(version, &topic, 2);
        let mut publisher = client(version);
        for (qos, answer) in [(1, kind::PUBACK), (2, kind::PUBREC)] {
            let ids = [8, 3, 9, 1, 7, 2];
            let burst = ids.map(|id| Publish::new(&topic, "burst").qos(qos).id(id).bytes(version));
            publisher.send(&burst.concat());
            let answers = ids.map(|_| publisher.expect(answer).packet_id());
            assert_eq!(answers, ids, "{version:?} QoS {qos}");
        }
        for id in [8, 3, 9, 1, 7, 2] {
            publisher.send(&packet::acknowledge(kind::PUBREL, id));
            publisher.expect(kind::PUBCOMP);
        }
        let messages: Vec<Delivery> = (0..12).map(|_| subscriber.expect_publish()).collect();
        let ids = messages.iter().filter(|message| message.qos == 2);
        let mut ids: Vec<u16> = ids.filter_map(|message| message.packet_id).collect();
        ids.swap(0, 4);
        let pubrecs: Vec<Vec<u8>> = ids.iter().map(|id| packet::acknowledge(kind::PUBREC, *id)).collect();
        subscriber.send(&pubrecs.concat());
        let pubrels: Vec<u16> = ids
            .iter()
            .map(|_| subscriber.expect(kind::PUBREL).packet_id())
            .collect();
        assert_eq!(pubrels, ids, "{version:?}: PUBRELs in the order of the PUBRECs");
    }
}

/// Two publishers send at the same time. Each of two subscribers receives each publisher's messages in order.
#[test]
fn messages_of_a_topic_arrive_in_order() {
    for version in NUMBERED {
        let topic = topic();
        let mut subscribers = [subscriber(version, &topic, 2), subscriber(V4, &topic, 2)];
        for qos in 0..3 {
            std::thread::scope(|scope| {
                for name in ["one", "other"] {
                    let topic = &topic;
                    scope.spawn(move || {
                        let mut publisher = client(version);
                        for number in 0..100 {
                            publisher.publish(&Publish::new(topic, format!("{name} {number:03}")).qos(qos));
                        }
                    });
                }
                for subscriber in &mut subscribers {
                    let messages: Vec<Delivery> = (0..200).map(|_| subscriber.receive()).collect();
                    for name in ["one", "other"] {
                        let of_one = payloads(&messages)
                            .into_iter()
                            .filter(|payload| payload.starts_with(name));
                        let of_one: Vec<&str> = of_one.collect();
                        assert_eq!(of_one.len(), 100);
                        assert!(of_one.is_sorted(), "{version:?} QoS {qos}: {of_one:?}");
                    }
                }
            });
        }
    }
}
