//! Tests Receive Maximum and Maximum Packet Size. Chapters 4.9, 3.1.2.11.3, 3.1.2.11.4 and 3.3.4.

use super::*;
use crate::support::*;

/// Receives ten messages with at most three in flight. Reads everything available before each acknowledgement.
#[test]
fn deliveries_respect_receive_maximum() {
    let topic = topic();
    let connect = Connect::new(V5, unique("three at a time"));
    let mut peer = Server::shared().session(&connect.property(prop::u16(prop::RECEIVE_MAXIMUM, 3)));
    peer.subscribe(&topic, 2);
    let mut publisher = client(V5);
    for (at, payload) in numbered(10).iter().enumerate() {
        publisher.publish(&Publish::new(&topic, payload).qos(1 + at as u8 % 2));
    }
    let (mut open, mut received) = (Vec::new(), Vec::new());
    while received.len() < 10 || !open.is_empty() {
        if open.is_empty() {
            open.push(peer.expect_publish());
        }
        open.extend(peer.ping().iter().map(|packet| packet.delivery(V5)));
        assert!(open.len() <= 3, "{} deliveries in flight", open.len());
        let next = open.remove(0);
        // The answer to PUBREC is PUBREL. PUBLISH packets that arrive before it are collected.
        peer.acknowledge(&next);
        received.push(next);
    }
    assert_eq!(payloads(&received), numbered(10));
}

#[test]
fn exhausted_quota_delays_only_publish() {
    let (topic, other) = (topic(), topic());
    let connect = Connect::new(V5, unique("one at a time"));
    let mut peer = Server::shared().session(&connect.property(prop::u16(prop::RECEIVE_MAXIMUM, 1)));
    peer.subscribe(&topic, 1);
    let mut publisher = client(V5);
    publisher.publish(&Publish::new(&topic, "first").qos(1));
    publisher.publish(&Publish::new(&topic, "second").qos(1));
    let first = peer.expect_publish();
    peer.subscribe(&other, 1);
    peer.unsubscribe(&other);
    for qos in [1, 2] {
        assert!(peer.publish(&Publish::new(&other, "from the same client").qos(qos)) < 0x80);
    }
    peer.ping_alone();
    peer.acknowledge(&first);
    assert_eq!(peer.receive().payload, b"second");
}

/// Only PUBCOMP increments the send quota, PUBREC does not.
#[test]
fn publisher_above_receive_maximum_is_disconnected() {
    let mut peer = Server::shared().connect();
    let connack = peer.handshake(&Connect::new(V5, unique("too many")));
    let maximum = connack.properties.number(prop::RECEIVE_MAXIMUM);
    let maximum = maximum.expect("a Receive Maximum below 65,535: all of these would fit otherwise") as u16;
    let topic = topic();
    let within = (1..=maximum).map(|id| Publish::new(&topic, "open").qos(2).id(id).bytes(V5));
    peer.send(&within.collect::<Vec<_>>().concat());
    for id in 1..=maximum {
        assert_eq!(peer.expect(kind::PUBREC).packet_id(), id);
    }
    peer.ping_alone();
    peer.send(&Publish::new(&topic, "one too many").qos(2).id(maximum + 1).bytes(V5));
    peer.expect_disconnect(0x93);
}

#[test]
fn packets_stay_within_the_maximum_size() {
    const MAXIMUM: usize = 200;
    let topic = topic();
    let connect = lasting(V5).property(prop::u32(prop::MAXIMUM_PACKET_SIZE, MAXIMUM as u32));
    let (mut peer, _) = resume(&connect);
    peer.subscribe(&topic, 2);
    let mut publisher = client(V5);
    // With header, topic and property length, this payload makes the packet exactly as large as allowed.
    let overhead = |qos: u8| 1 + 2 + 2 + topic.len() + if qos > 0 { 2 } else { 0 } + 1;
    for qos in 0..3 {
        let fitting = "x".repeat(MAXIMUM - overhead(qos));
        publisher.publish(&Publish::new(&topic, "x".repeat(1000)).qos(qos));
        publisher.publish(&Publish::new(&topic, format!("{fitting}x")).qos(qos));
        publisher.publish(&Publish::new(&topic, &fitting).qos(qos));
        assert_eq!(peer.receive().payload_str(), fitting, "QoS {qos}");
    }
    peer.disconnect();
    // A message that was dropped for its size counts as sent.
    let (mut peer, _) = resume(&connect);
    peer.ping_alone();
}

/// A client whose Maximum Packet Size equals its CONNACK still gets every answer, and no packet exceeds it.
#[test]
fn optional_properties_yield_to_the_maximum_size() {
    let connect = Connect::new(V5, unique("little room"));
    let mut peer = Server::shared().connect().speak(V5);
    peer.send(&connect.bytes());
    let connack = peer.expect_packet();
    assert_eq!(connack.connack(V5).code, 0);
    peer.disconnect();
    let room = connack.body.len() + 2;
    let limit = |connect: Connect| connect.property(prop::u32(prop::MAXIMUM_PACKET_SIZE, room as u32));

    let mut peer = Server::shared().session(&limit(connect));
    let bad = packet::subscribe(V5, 6, &[("$share//bad", 0)], &[]);
    let requests = [
        packet::subscribe(V5, 1, &[(topic(), 0)], &[]),
        packet::unsubscribe(V5, 1, &[topic()]),
        Publish::new("$SYS/forbidden", "no").qos(1).id(2).bytes(V5),
        Publish::new("$SYS/forbidden", "no").qos(2).id(3).bytes(V5),
        packet::acknowledge(kind::PUBREL, 4),
        packet::acknowledge(kind::PUBREC, 5),
        [bad, packet::PINGREQ.to_vec()].concat(),
        Publish::new("no/wildcard/+", "").bytes(V5),
    ];
    let mut sizes = Vec::new();
    for request in requests {
        if peer.try_send(&request).is_err() {
            break;
        }
        if let Reading::Packet(packet) = peer.read(PATIENCE) {
            sizes.push((packet.name(), packet.body.len() + 2));
        }
    }
    let refused =
        limit(Connect::new(V5, unique("refused"))).property(prop::text(prop::AUTHENTICATION_METHOD, "no such method"));
    let mut peer = Server::shared().connect().speak(V5);
    peer.send(&refused.bytes());
    let refusal = peer.expect_packet();
    sizes.push((refusal.name(), refusal.body.len() + 2));
    assert!(sizes.len() >= 7, "{sizes:?}");
    assert!(sizes.iter().all(|(_, size)| *size <= room), "maximum {room}: {sizes:?}");
}

/// An answer that cannot be made small enough is not sent.
#[test]
fn answer_without_room_closes_the_connection() {
    let limited = |room| {
        let connect = Connect::new(V5, unique("no room"));
        connect.property(prop::u32(prop::MAXIMUM_PACKET_SIZE, room))
    };
    let many: Vec<(String, u8)> = (0..100).map(|_| (topic(), 0)).collect();
    let names: Vec<&String> = many.iter().map(|(filter, _)| filter).collect();
    for bytes in [packet::subscribe(V5, 1, &many, &[]), packet::unsubscribe(V5, 1, &names)] {
        let peer = Server::shared().session(&limited(100));
        closes_for(peer, &bytes, &[0x95], "a request whose answer is too large");
    }
    for room in 1..12 {
        let mut peer = Server::shared().connect();
        peer.send(&limited(room).bytes());
        let closed = peer.expect_closed(PATIENCE);
        assert!(closed.connack_code(V5).is_none_or(|code| code == 0x95), "{closed:?}");
        let size = closed.packets.iter().map(|packet| packet.body.len() + 2).max();
        assert!(size.unwrap_or(0) <= room as usize, "maximum {room}: {closed:?}");
    }
}
