//! Group E: QoS, session, will, retain and subscription semantics under abuse.

use std::collections::{HashSet, VecDeque};
use std::ops::Range;
use std::time::{Duration, Instant};

use super::watcher;
use crate::support::packet::{self, acknowledge, disconnect};
use crate::support::*;

/// Connects a new publisher to the shared server.
#[track_caller]
fn publisher() -> Peer {
    Server::shared().session(&Connect::new(V4, unique("publisher")))
}

/// Resumes a session that must exist. The CONNACK of MQTT 3.1 does not show whether it does.
#[track_caller]
fn resume(connect: &Connect) -> Peer {
    let mut peer = Server::shared().connect();
    let connack = peer.handshake(connect);
    assert_eq!(
        (connack.code, connack.session_present || connect.version == V3),
        (0, true),
        "{connack:?}"
    );
    peer
}

fn payloads(messages: &[Delivery]) -> Vec<&str> {
    messages.iter().map(Delivery::payload_str).collect()
}

#[track_caller]
fn expect_acknowledgement(peer: &mut Peer, of_kind: u8, packet_id: u16) {
    let answer = peer.expect(of_kind);
    assert_eq!((answer.packet_id(), answer.reason()), (packet_id, 0), "{answer:?}");
}

#[test]
fn e01_qos_2_with_the_same_identifier_is_delivered_once() {
    // [MQTT-4.3.3-2], [MQTT-4.3.3-10]
    for version in ALL_VERSIONS {
        let topic = unique("e01");
        let mut watcher = watcher(&topic, 2);
        let mut peer = Server::shared().session(&Connect::new(version, unique("e01")));
        let message = Publish::new(&topic, "once").qos(2).id(7);
        peer.send(&message.bytes(version));
        for _ in 0..4 {
            peer.send(&message.clone().dup().bytes(version));
        }
        (0..5).for_each(|_| expect_acknowledgement(&mut peer, kind::PUBREC, 7));
        peer.send(&acknowledge(kind::PUBREL, 7));
        expect_acknowledgement(&mut peer, kind::PUBCOMP, 7);
        // After PUBREL the identifier is free for a new message.
        peer.send(&Publish::new(&topic, "twice").qos(2).id(7).bytes(version));
        expect_acknowledgement(&mut peer, kind::PUBREC, 7);
        peer.send(&acknowledge(kind::PUBREL, 7));
        expect_acknowledgement(&mut peer, kind::PUBCOMP, 7);
        peer.publish(&Publish::new(&topic, "sentinel").qos(2));
        assert_eq!(payloads(&watcher.receive_until("sentinel")), ["once", "twice"]);
    }
}

#[test]
fn e02_qos_2_across_a_reconnect_is_delivered_once() {
    for version in ALL_VERSIONS {
        let topic = unique("e02");
        let mut watcher = watcher(&topic, 2);
        let connect = Connect::new(version, unique("e02")).persistent();
        let message = Publish::new(&topic, "once").qos(2).id(9);
        let mut peer = Server::shared().session(&connect);
        peer.send(&message.bytes(version));
        expect_acknowledgement(&mut peer, kind::PUBREC, 9);
        peer.abort();
        let mut peer = resume(&connect);
        peer.send(&message.dup().bytes(version));
        expect_acknowledgement(&mut peer, kind::PUBREC, 9);
        peer.send(&acknowledge(kind::PUBREL, 9));
        expect_acknowledgement(&mut peer, kind::PUBCOMP, 9);
        peer.publish(&Publish::new(&topic, "sentinel").qos(2));
        assert_eq!(payloads(&watcher.receive_until("sentinel")), ["once"]);
    }
}

#[test]
fn e03_unacknowledged_messages_are_redelivered_in_order() {
    // [MQTT-4.4.0-1], [MQTT-3.3.1-1], [MQTT-4.6.0-1]
    for version in ALL_VERSIONS {
        for qos in [1, 2] {
            let topic = unique("e03");
            let connect = Connect::new(version, unique("e03")).persistent();
            let mut subscriber = Server::shared().session(&connect);
            subscriber.subscribe(&topic, qos);
            let mut publisher = publisher();
            (0..10).for_each(|number| {
                publisher.publish(&Publish::new(&topic, number.to_string()).qos(qos));
            });
            let first: Vec<Delivery> = (0..10).map(|_| subscriber.expect_publish()).collect();
            assert!(first.iter().all(|message| !message.is_duplicate));
            subscriber.abort();
            let mut subscriber = resume(&connect);
            let second: Vec<Delivery> = (0..10).map(|_| subscriber.receive()).collect();
            let expected: Vec<_> = first
                .into_iter()
                .map(|message| Delivery {
                    is_duplicate: true,
                    ..message
                })
                .collect();
            assert_eq!(
                second, expected,
                "expected the same messages with the same identifiers, in order"
            );
            publisher.publish(&Publish::new(&topic, "sentinel").qos(qos));
            assert_eq!(subscriber.receive_until("sentinel"), []);
        }
    }
}

#[test]
fn e03_pubrel_is_resent_after_a_reconnect() {
    // [MQTT-4.4.0-1]
    for version in ALL_VERSIONS {
        let topic = unique("e03");
        let connect = Connect::new(version, unique("e03")).persistent();
        let mut subscriber = Server::shared().session(&connect);
        subscriber.subscribe(&topic, 2);
        publisher().publish(&Publish::new(&topic, "x").qos(2));
        let id = subscriber.expect_publish().packet_id.expect("QoS 2");
        subscriber.send(&acknowledge(kind::PUBREC, id));
        expect_acknowledgement(&mut subscriber, kind::PUBREL, id);
        subscriber.abort();
        let mut subscriber = resume(&connect);
        let again = subscriber.expect_packet();
        assert_eq!((again.kind(), again.packet_id()), (kind::PUBREL, id), "{again:?}");
        subscriber.send(&acknowledge(kind::PUBCOMP, id));
        subscriber.ping_alone();
    }
}

#[test]
fn e04_will_is_sent_on_takeover() {
    // [MQTT-3.1.2-8]
    for version in ALL_VERSIONS {
        let topic = unique("e04");
        let mut watcher = watcher(&topic, 0);
        let connect = Connect::new(version, unique("e04")).will(Will::new(&topic, "taken over"));
        let mut old = Server::shared().session(&connect);
        let _new = Server::shared().session(&Connect::new(version, &connect.client_id));
        old.expect_closed(PATIENCE);
        assert_eq!(watcher.expect_publish().payload_str(), "taken over");
    }
}

#[test]
fn e04_will_is_not_sent_after_disconnect() {
    // [MQTT-3.14.4-3]
    for version in ALL_VERSIONS {
        let topic = unique("e04");
        let mut watcher = watcher(&topic, 1);
        let connect = Connect::new(version, unique("e04")).will(Will::new(&topic, "a will"));
        Server::shared().session(&connect).disconnect();
        let mut again = Server::shared().session(&Connect::new(version, &connect.client_id));
        again.publish(&Publish::new(&topic, "sentinel").qos(1));
        assert_eq!(watcher.receive_until("sentinel"), []);
    }
}

#[test]
fn e04_will_is_sent_after_disconnect_with_will() {
    // 3.14.2.1
    for bytes in [disconnect(0x04, &[]), packet::frame(0xE0, &[0x04])] {
        let topic = unique("e04");
        let mut watcher = watcher(&topic, 0);
        let mut peer = Server::shared().session(&Connect::new(V5, unique("e04")).will(Will::new(&topic, "as asked")));
        peer.send(&bytes);
        assert!(peer.expect_closed(PATIENCE).packets.is_empty());
        assert_eq!(watcher.expect_publish().payload_str(), "as asked");
    }
}

/// Returns a CONNECT with a delayed will.
fn delayed_will(topic: &str, delay_seconds: u32, expiry_seconds: u32) -> Connect {
    let delay = prop::u32(prop::WILL_DELAY_INTERVAL, delay_seconds);
    Connect::new(V5, unique("e05"))
        .property(prop::u32(prop::SESSION_EXPIRY_INTERVAL, expiry_seconds))
        .will(Will::new(topic, "delayed").property(delay))
}

#[test]
fn e05_reconnect_within_the_will_delay_cancels_the_will() {
    // [MQTT-3.1.3-9], [MQTT-3.1.2-10]
    let server = Server::shared();
    let (cancelled, sent) = (unique("e05"), unique("e05"));
    let mut watcher = watcher(&cancelled, 0);
    watcher.subscribe(&sent, 0);
    let returning = delayed_will(&cancelled, 2, 300);
    server.session(&returning).abort();
    let start = Instant::now();
    server.session(&delayed_will(&sent, 2, 300)).abort();
    let without_will = Connect::new(V5, &returning.client_id).clean(false);
    let mut returned = server.session(&without_will);
    // The will of the client that does not reconnect was due at the same time or later.
    assert_eq!(watcher.expect_publish().topic_str(), sent);
    let waited = start.elapsed();
    assert!(
        waited >= Duration::from_millis(1900) && waited < Duration::from_secs(4),
        "after {waited:?}"
    );
    returned.publish(&Publish::new(&cancelled, "sentinel").qos(1));
    assert_eq!(watcher.receive_until("sentinel"), []);
}

#[test]
fn e05_session_end_sends_a_delayed_will_immediately() {
    // [MQTT-3.1.3-9]
    let server = Server::shared();
    let topic = unique("e05");
    let mut watcher = watcher(&topic, 0);
    // This session ends with its connection.
    let start = Instant::now();
    server.session(&delayed_will(&topic, 100, 0)).abort();
    assert_eq!(watcher.expect_publish().payload_str(), "delayed");
    // This session expires before the will delay has passed.
    server.session(&delayed_will(&topic, 100, 1)).abort();
    assert_eq!(watcher.expect_publish().payload_str(), "delayed");
    // A clean start replaces this session.
    let replaced = delayed_will(&topic, 100, 300);
    server.session(&replaced).abort();
    let _fresh = server.session(&Connect::new(V5, &replaced.client_id));
    assert_eq!(watcher.expect_publish().payload_str(), "delayed");
    assert!(start.elapsed() < Duration::from_secs(10), "after {:?}", start.elapsed());
}

#[test]
fn e06_thousands_of_messages_arrive_in_order_and_once() {
    // [MQTT-4.6.0-5], [MQTT-4.6.0-6]
    const COUNT: u32 = 1000;
    const BURST: u32 = 200;
    for version in [V4, V5] {
        let topic = unique("e06");
        let mut subscriber = Server::shared().session(&Connect::new(version, unique("e06")));
        subscriber.subscribe(&topic, 2);
        let mut publisher = Server::shared().session(&Connect::new(version, unique("e06")));
        for qos in [1, 2] {
            for first in (0..COUNT).step_by(BURST as usize) {
                publish_burst(&mut publisher, &topic, qos, first..first + BURST);
                // The server must not drop messages, so no more messages are in flight than a queue can hold.
                for number in first..first + BURST {
                    let message = subscriber.receive();
                    assert_eq!(
                        (message.payload_str(), message.qos),
                        (number.to_string().as_str(), qos),
                        "{version:?}"
                    );
                }
            }
        }
        subscriber.ping_alone();
    }
}

/// Publishes numbered messages that are all in flight at the same time.
#[track_caller]
fn publish_burst(peer: &mut Peer, topic: &str, qos: u8, numbers: Range<u32>) {
    let version = peer.version();
    let first = numbers.start;
    let id = |number: u32| (number - first + 1) as u16;
    let burst = |make: &dyn Fn(u32) -> Vec<u8>| numbers.clone().flat_map(make).collect::<Vec<u8>>();
    peer.send(&burst(&|number| {
        Publish::new(topic, number.to_string())
            .qos(qos)
            .id(id(number))
            .bytes(version)
    }));
    if qos == 1 {
        numbers
            .clone()
            .for_each(|number| expect_acknowledgement(peer, kind::PUBACK, id(number)));
    } else {
        numbers
            .clone()
            .for_each(|number| expect_acknowledgement(peer, kind::PUBREC, id(number)));
        peer.send(&burst(&|number| acknowledge(kind::PUBREL, id(number))));
        numbers
            .clone()
            .for_each(|number| expect_acknowledgement(peer, kind::PUBCOMP, id(number)));
    }
}

#[test]
fn e07_messages_of_a_dead_group_member_go_to_another_member() {
    // 4.8.2
    for version in [V4, V5] {
        let topic = unique("e07");
        let filter = format!("$share/{}/{topic}", unique("group"));
        let member = || {
            let mut peer = Server::shared().session(&Connect::new(version, unique("e07")));
            peer.subscribe(&filter, 1);
            peer
        };
        let (mut dying, mut living) = (member(), member());
        let mut publisher = publisher();
        (0..10).for_each(|number| {
            publisher.publish(&Publish::new(&topic, number.to_string()).qos(1));
        });
        let mut received = Vec::new();
        let mut unacknowledged = 0;
        while received.len() + unacknowledged < 10 {
            if let Reading::Packet(packet) = living.read(Duration::from_millis(20)) {
                let message = packet.delivery(version);
                living.acknowledge(&message);
                received.push(message.payload_str().to_owned());
            }
            if let Reading::Packet(packet) = dying.read(Duration::from_millis(20)) {
                packet.delivery(version);
                unacknowledged += 1;
            }
        }
        println!("{version:?}: {unacknowledged} of 10 unacknowledged when their member dies");
        dying.abort();
        for _ in 0..unacknowledged {
            received.push(living.receive().payload_str().to_owned());
        }
        received.sort();
        let expected: Vec<_> = (0..10).map(|number| number.to_string()).collect();
        assert_eq!(received, expected);
    }
}

#[test]
fn e08_empty_retained_message_deletes_and_is_not_stored() {
    // [MQTT-3.3.1-6], [MQTT-3.3.1-7]
    for version in ALL_VERSIONS {
        let topic = unique("e08");
        let mut live = watcher(&topic, 1);
        let mut publisher = Server::shared().session(&Connect::new(version, unique("e08")));
        for payload in ["first", "second", ""] {
            publisher.publish(&Publish::new(&topic, payload).qos(1).retain());
            let message = live.receive();
            assert_eq!((message.payload_str(), message.is_retained), (payload, false));
            let mut late = Server::shared().session(&Connect::new(version, unique("e08")));
            late.subscribe(&topic, 1);
            if payload.is_empty() {
                late.ping_alone();
            } else {
                let message = late.receive();
                assert_eq!((message.payload_str(), message.is_retained), (payload, true));
            }
        }
    }
}

#[test]
fn e08_retain_handling_and_retain_as_published() {
    // [MQTT-3.3.1-9] to [MQTT-3.3.1-13]
    const RETAIN_AS_PUBLISHED: u8 = 0x08;
    let topic = unique("e08");
    let mut publisher = publisher();
    publisher.publish(&Publish::new(&topic, "kept").qos(1).retain());
    let mut peer = Server::shared().session(&Connect::new(V5, unique("e08")));
    let kept = |peer: &mut Peer| {
        let message = peer.receive();
        assert_eq!((message.payload_str(), message.is_retained), ("kept", true));
    };
    // Retain Handling 2 never sends retained messages, 1 only for a new subscription, 0 for every subscription.
    peer.subscribe(&topic, 0x20 | 1);
    peer.ping_alone();
    peer.subscribe(&topic, 0x10 | 1);
    peer.ping_alone();
    peer.unsubscribe(&topic);
    peer.subscribe(&topic, 0x10 | 1);
    kept(&mut peer);
    peer.subscribe(&topic, 1);
    kept(&mut peer);
    publisher.publish(&Publish::new(&topic, "live").qos(1).retain());
    assert!(!peer.receive().is_retained);
    peer.subscribe(&topic, 0x20 | RETAIN_AS_PUBLISHED | 1);
    publisher.publish(&Publish::new(&topic, "live").qos(1).retain());
    assert!(peer.receive().is_retained);
    publisher.publish(&Publish::new(&topic, "live").qos(1));
    assert!(!peer.receive().is_retained);
    peer.ping_alone();
}

#[test]
fn e09_messages_above_the_maximum_packet_size_are_not_sent() {
    // [MQTT-3.1.2-24], [MQTT-3.1.2-25]
    let topic = unique("e09");
    let connect = Connect::new(V5, unique("e09")).property(prop::u32(prop::MAXIMUM_PACKET_SIZE, 100));
    let mut subscriber = Server::shared().session(&connect.property(prop::u16(prop::RECEIVE_MAXIMUM, 2)));
    subscriber.subscribe(&topic, 2);
    let mut publisher = publisher();
    for round in 0..5 {
        for qos in 0..=2 {
            publisher.publish(&Publish::new(&topic, [b'x'; 1024]).qos(qos));
        }
        publisher.publish(&Publish::new(&topic, format!("small {round}")).qos(round % 3));
    }
    publisher.publish(&Publish::new(&topic, "sentinel").qos(2));
    let small = subscriber.receive_until("sentinel");
    let mut small = payloads(&small);
    // Messages of different QoS may arrive in any order.
    small.sort();
    assert_eq!(small, ["small 0", "small 1", "small 2", "small 3", "small 4"]);
    subscriber.ping_alone();
}

#[test]
fn e10_replaced_and_removed_subscriptions_take_effect_at_once() {
    // [MQTT-3.8.4-3], [MQTT-3.10.4-2], [MQTT-3.10.4-3]
    for version in ALL_VERSIONS {
        let topic = unique("e10");
        let mut subscriber = Server::shared().session(&Connect::new(version, unique("e10")));
        subscriber.subscribe(&topic, 2);
        let mut publisher = publisher();
        publisher.publish(&Publish::new(&topic, "in flight").qos(2));
        let in_flight = subscriber.expect_publish();
        assert_eq!(in_flight.qos, 2);
        subscriber.subscribe(&topic, 0);
        publisher.publish(&Publish::new(&topic, "lower").qos(2));
        let lower = subscriber.expect_publish();
        assert_eq!(
            (lower.payload_str(), lower.qos),
            ("lower", 0),
            "only the new subscription delivers the message"
        );
        subscriber.unsubscribe(&topic);
        publisher.publish(&Publish::new(&topic, "too late").qos(2));
        // Messages in flight are still completed.
        subscriber.acknowledge(&in_flight);
        subscriber.subscribe(&topic, 1);
        publisher.publish(&Publish::new(&topic, "sentinel").qos(1));
        assert_eq!(subscriber.receive_until("sentinel"), []);
    }
}

#[test]
fn e11_messages_cross_between_protocol_versions() {
    let topic = unique("e11");
    let mut subscribers: Vec<Peer> = ALL_VERSIONS
        .into_iter()
        .map(|version| {
            let mut peer = Server::shared().session(&Connect::new(version, unique("e11")));
            peer.subscribe(&topic, 2);
            peer
        })
        .collect();
    let payload = noise(11, 300);
    for version in ALL_VERSIONS {
        let mut publisher = Server::shared().session(&Connect::new(version, unique("e11")));
        for qos in 0..=2 {
            let message = Publish::new(&topic, &payload)
                .qos(qos)
                .property(prop::u32(prop::MESSAGE_EXPIRY_INTERVAL, 1000))
                .property(prop::text(prop::CONTENT_TYPE, "type"))
                .property(prop::text(prop::CORRELATION_DATA, "\0\x01data"))
                .property(prop::user("name", "value"));
            publisher.publish(&message);
            for subscriber in &mut subscribers {
                let message = subscriber.receive();
                assert!(
                    message.payload == payload,
                    "{version:?} to {:?}: payload differs",
                    subscriber.version()
                );
                assert_eq!((message.qos, message.topic_str()), (qos, topic.as_str()));
                if version == V5 && subscriber.version() == V5 {
                    let properties = message.properties;
                    assert!(
                        properties
                            .number(prop::MESSAGE_EXPIRY_INTERVAL)
                            .is_some_and(|left| left > 900 && left <= 1000)
                    );
                    assert_eq!(properties.bytes(prop::CONTENT_TYPE), Some(&b"type"[..]));
                    assert_eq!(properties.bytes(prop::CORRELATION_DATA), Some(&b"\0\x01data"[..]));
                    assert_eq!(properties.user_properties(), [("name".to_owned(), "value".to_owned())]);
                } else {
                    assert_eq!(message.properties, Properties::default());
                }
            }
        }
    }
}

#[test]
fn e12_packet_identifiers_are_never_0_and_never_in_use() {
    // [MQTT-2.2.1-4]
    const COUNT: usize = 70_000;
    const BURST: usize = 500;
    const LAG: usize = 10;
    let topic = unique("e12");
    let mut subscriber = Server::shared().session(&Connect::new(V4, unique("e12")));
    subscriber.subscribe(&topic, 1);
    let mut publisher = publisher();
    let burst: Vec<u8> = (1..=BURST as u16)
        .flat_map(|id| Publish::new(&topic, "x").qos(1).id(id).bytes(V4))
        .collect();
    let mut in_use = HashSet::new();
    let mut order = VecDeque::new();
    for _ in 0..COUNT / BURST {
        publisher.send(&burst);
        let mut answer = Vec::new();
        for number in 0..BURST {
            // `expect_publish` has checked that the identifier is not 0.
            let id = subscriber.expect_publish().packet_id.expect("QoS 1");
            assert!(in_use.insert(id), "identifier {id} is still in use");
            order.push_back(id);
            let keep = if number + 1 == BURST { 0 } else { LAG };
            while order.len() > keep {
                let oldest = order.pop_front().expect("not empty");
                in_use.remove(&oldest);
                answer.extend(acknowledge(kind::PUBACK, oldest));
            }
            // Acknowledge in batches, so that the server's send window does not stay full.
            if number % LAG == LAG - 1 {
                subscriber.send(&answer);
                answer.clear();
            }
        }
        (1..=BURST as u16).for_each(|id| expect_acknowledgement(&mut publisher, kind::PUBACK, id));
    }
    subscriber.ping_alone();
}
