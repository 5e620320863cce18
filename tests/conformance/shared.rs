//! Tests shared subscriptions of MQTT 5. Chapter 4.8.2.

use super::*;
use crate::support::*;

/// Returns a share group and a topic that no other test uses.
fn group() -> (String, String) {
    let topic = topic();
    (format!("$share/{}/{topic}", unique("group")), topic)
}

/// Reads from both members until one receives a message. Returns the member and the message.
#[track_caller]
fn chosen(members: &mut [Peer; 2]) -> (usize, Delivery) {
    loop {
        for (at, member) in members.iter_mut().enumerate() {
            match member.read(Duration::from_millis(5)) {
                Reading::Packet(packet) => return (at, packet.delivery(V5)),
                Reading::Silence => {}
                Reading::Closed => panic!("a member was disconnected"),
            }
        }
    }
}

#[test]
fn malformed_shared_filters_are_not_granted() {
    for filter in [
        "$share/",
        "$share//topic",
        "$share/group",
        "$share/group/",
        "$share/gr+oup/topic",
        "$share/gr#oup/topic",
        "$share/+/topic",
        "$share/#",
        "$share/group/topic#",
    ] {
        assert_never_granted(V5, filter);
    }
}

#[test]
fn no_local_on_a_shared_subscription_closes_the_connection() {
    let bytes = packet::subscribe(V5, 1, &[("$share/group/topic", 0x04)], &[]);
    closes(V5, &bytes, &[PROTOCOL_ERROR], "No Local on a shared subscription");
}

/// Each message goes to one member. The second round would show a message that was delivered twice.
#[test]
fn one_member_gets_each_message() {
    let (filter, topic) = group();
    let mut members = [subscriber(V5, &filter, 1), subscriber(V5, &filter, 1)];
    let mut publisher = client(V5);
    for round in 0..2 {
        let sent: Vec<String> = (10..30).map(|number| format!("{round} {number}")).collect();
        for payload in &sent {
            publisher.publish(&Publish::new(&topic, payload).qos(1));
        }
        let mut received = Vec::new();
        while received.len() < sent.len() {
            let (at, message) = chosen(&mut members);
            members[at].acknowledge(&message);
            received.push(message.payload_str().to_owned());
        }
        received.sort();
        assert_eq!(received, sent);
    }
}

#[test]
fn each_members_granted_qos_is_respected() {
    for granted in 0..3 {
        let (filter, topic) = group();
        let mut member = subscriber(V5, &filter, granted);
        let mut publisher = client(V5);
        for published in 0..3 {
            publisher.publish(&Publish::new(&topic, "message").qos(published));
            assert_eq!(member.receive().qos, granted.min(published));
        }
    }
}

/// A member's will shows the other member that the server has closed its connection.
fn member_with_will(connect: Connect, filter: &str, will_topic: &str) -> (Peer, Connect) {
    let connect = connect.will(Will::new(will_topic, "the member has gone").qos(1));
    let (mut peer, _) = resume(&connect);
    peer.subscribe(filter, 2);
    (peer, connect)
}

#[test]
fn qos_2_delivery_waits_for_its_member() {
    let (filter, topic) = group();
    let end = super::topic();
    let (mut member, connect) = member_with_will(lasting(V5), &filter, &end);
    let mut publisher = client(V5);
    publisher.publish(&Publish::new(&topic, "begun").qos(2));
    let begun = member.expect_publish();
    let mut other = subscriber(V5, &filter, 2);
    other.subscribe(&end, 1);
    member.abort();
    assert_eq!(other.receive().payload, b"the member has gone");
    publisher.publish(&Publish::new(&topic, SENTINEL).qos(2));
    assert!(
        other.receive_until(SENTINEL).is_empty(),
        "the message belongs to its first member"
    );
    let (mut member, session_present) = resume(&connect);
    assert!(session_present);
    let again = member.receive();
    assert_eq!((again.payload, again.packet_id), (begun.payload, begun.packet_id));
}

#[test]
fn begun_qos_2_delivery_ends_with_its_session() {
    let (filter, topic) = group();
    let end = super::topic();
    let short = Connect::new(V5, unique("short"));
    let (mut member, _) = member_with_will(short, &filter, &end);
    let mut publisher = client(V5);
    publisher.publish(&Publish::new(&topic, "begun").qos(2));
    member.expect_publish();
    let mut other = subscriber(V5, &filter, 2);
    other.subscribe(&end, 1);
    member.abort();
    assert_eq!(other.receive().payload, b"the member has gone");
    publisher.publish(&Publish::new(&topic, SENTINEL).qos(2));
    assert!(
        other.receive_until(SENTINEL).is_empty(),
        "the message ended with the session"
    );
}

#[test]
fn refused_message_goes_to_no_other_member() {
    for (qos, answer) in [(1, 0x40), (2, 0x50)] {
        let (filter, topic) = group();
        let mut members = [subscriber(V5, &filter, 2), subscriber(V5, &filter, 2)];
        let mut publisher = client(V5);
        publisher.publish(&Publish::new(&topic, "refused").qos(qos));
        let (at, message) = chosen(&mut members);
        assert_eq!(message.payload, b"refused");
        let id = message.packet_id.expect("an identifier").to_be_bytes();
        members[at].send(&[answer, 0x03, id[0], id[1], 0x83]);
        members[at].ping_alone();
        // Later messages take the same path: when both members have received one, the refused one is in flight to
        // neither.
        let mut has_received = [false; 2];
        while has_received != [true; 2] {
            publisher.publish(&Publish::new(&topic, SENTINEL).qos(qos));
            let (at, message) = chosen(&mut members);
            assert_eq!(message.payload_str(), SENTINEL, "QoS {qos}");
            members[at].acknowledge(&message);
            has_received[at] = true;
        }
    }
}
