//! Tests session state: stored, resumed, resent and discarded. Chapters 3.1.2.4, 3.2.2.1.1, 4.1 and 4.4.

use super::*;
use crate::support::*;

#[test]
fn session_is_resumed() {
    for version in NUMBERED {
        let (connect, topic) = (lasting(version), topic());
        let (mut peer, session_present) = resume(&connect);
        assert!(!session_present, "{version:?}: a first connection has no session");
        peer.subscribe(&topic, 1);
        peer.disconnect();
        let (mut peer, session_present) = resume(&connect);
        assert!(session_present, "{version:?}: the session still exists");
        client(version).publish(&Publish::new(&topic, "still subscribed").qos(1));
        assert_eq!(peer.receive().payload, b"still subscribed");
    }
}

#[test]
fn clean_start_discards_the_old_session() {
    for version in NUMBERED {
        let (connect, topic) = (lasting(version), topic());
        let (mut peer, _) = resume(&connect);
        peer.subscribe(&topic, 1);
        peer.disconnect();
        let mut publisher = client(version);
        publisher.publish(&Publish::new(&topic, "queued for the old session").qos(1));

        let clean = Connect::new(version, &connect.client_id);
        let (mut peer, session_present) = resume(&clean);
        assert!(!session_present, "{version:?}: clean start");
        let end = super::topic();
        peer.subscribe(&end, 1);
        publisher.publish(&Publish::new(&topic, "to the old subscription").qos(1));
        publisher.publish(&Publish::new(&end, SENTINEL).qos(1));
        assert!(peer.receive_until(SENTINEL).is_empty());
        peer.disconnect();
        assert!(!resume(&connect).1, "{version:?}: both sessions are discarded");
    }
}

/// Uses CleanSession in 3.1.1, a Session Expiry Interval of 0 in 5.0.
#[test]
fn clean_session_ends_with_its_connection() {
    for version in NUMBERED {
        let (connect, topic) = (lasting(version), topic());
        let (mut peer, _) = resume(&Connect::new(version, &connect.client_id));
        peer.subscribe(&topic, 1);
        peer.disconnect();
        let (mut peer, session_present) = resume(&connect);
        assert!(!session_present, "{version:?}: the session has ended");
        let end = super::topic();
        peer.subscribe(&end, 1);
        let mut publisher = client(version);
        publisher.publish(&Publish::new(&topic, "to the old subscription").qos(1));
        publisher.publish(&Publish::new(&end, SENTINEL).qos(1));
        assert!(peer.receive_until(SENTINEL).is_empty());
    }
}

#[test]
fn messages_are_queued_for_an_offline_client() {
    for version in NUMBERED {
        let (connect, topic) = (lasting(version), topic());
        let (mut peer, _) = resume(&connect);
        peer.subscribe(&topic, 2);
        peer.disconnect();
        let mut publisher = client(version);
        for (payload, qos) in [("first", 1), ("second", 2), ("third", 1)] {
            publisher.publish(&Publish::new(&topic, payload).qos(qos));
        }
        let (mut peer, _) = resume(&connect);
        for expected in [("first", 1), ("second", 2), ("third", 1)] {
            let message = peer.receive();
            assert_eq!((message.payload_str(), message.qos), expected);
            assert!(!message.is_duplicate, "{version:?}: sent for the first time");
        }
        peer.ping_alone();
    }
}

#[test]
fn client_id_names_the_session() {
    for version in NUMBERED {
        let (one, other) = (lasting(version), lasting(version));
        let (topic_of_one, topic_of_other) = (topic(), topic());
        for (connect, topic) in [(&one, &topic_of_one), (&other, &topic_of_other)] {
            let (mut peer, _) = resume(connect);
            peer.subscribe(topic, 1);
            peer.disconnect();
        }
        let mut publisher = client(version);
        publisher.publish(&Publish::new(&topic_of_one, "for one").qos(1));
        publisher.publish(&Publish::new(&topic_of_other, "for the other").qos(1));
        for (connect, expected) in [(&other, "for the other"), (&one, "for one")] {
            let (mut peer, _) = resume(connect);
            assert_eq!(peer.receive().payload_str(), expected);
            peer.ping_alone();
        }
    }
}

#[test]
fn unacknowledged_messages_are_resent_in_order() {
    for version in NUMBERED {
        let (connect, topic) = (lasting(version), topic());
        let (mut peer, _) = resume(&connect);
        peer.subscribe(&topic, 2);
        let mut publisher = client(version);
        for (payload, qos) in [("a", 1), ("b", 2), ("c", 1), ("d", 2)] {
            publisher.publish(&Publish::new(&topic, payload).qos(qos));
        }
        let sent: Vec<Delivery> = (0..4).map(|_| peer.expect_publish()).collect();
        assert!(sent.iter().all(|message| !message.is_duplicate));
        peer.abort();

        let (mut peer, session_present) = resume(&connect);
        assert!(session_present);
        for first in sent {
            let again = peer.receive();
            let expected = Delivery {
                is_duplicate: true,
                ..first
            };
            assert_eq!(again, expected, "{version:?}: same message, same identifier, DUP");
        }
        publisher.publish(&Publish::new(&topic, "e").qos(1));
        assert!(!peer.receive().is_duplicate, "{version:?}: a new message has no DUP");
    }
}

#[test]
fn publish_is_not_resent_after_pubrel() {
    for version in NUMBERED {
        let (connect, topic) = (lasting(version), topic());
        let (mut peer, _) = resume(&connect);
        peer.subscribe(&topic, 2);
        client(version).publish(&Publish::new(&topic, "exactly once").qos(2));
        let id = peer.expect_publish().packet_id.expect("QoS 2 has an identifier");
        peer.send(&packet::acknowledge(kind::PUBREC, id));
        assert_eq!(peer.expect_packet().packet_id(), id);
        peer.abort();

        let (mut peer, _) = resume(&connect);
        let again = peer.expect_packet();
        assert_eq!(
            (again.kind(), again.packet_id()),
            (kind::PUBREL, id),
            "{version:?}: {again:?}"
        );
        peer.send(&packet::acknowledge(kind::PUBCOMP, id));
        peer.ping_alone();
        peer.abort();
        let (mut peer, _) = resume(&connect);
        peer.ping_alone();
    }
}

#[test]
fn nothing_is_resent_while_connected() {
    for version in NUMBERED {
        let topic = topic();
        let mut peer = subscriber(version, &topic, 2);
        let mut publisher = client(version);
        publisher.publish(&Publish::new(&topic, "left unacknowledged").qos(1));
        publisher.publish(&Publish::new(&topic, "left unacknowledged too").qos(2));
        peer.expect_publish();
        peer.expect_publish();
        for payload in numbered(5) {
            publisher.publish(&Publish::new(&topic, &payload).qos(1));
            assert_eq!(peer.receive().payload_str(), payload);
            peer.ping_alone();
        }
    }
}

#[test]
fn qos_2_duplicate_after_reconnect_is_delivered_once() {
    for version in NUMBERED {
        let (connect, topic) = (lasting(version), topic());
        let mut subscriber = subscriber(version, &topic, 2);
        let message = Publish::new(&topic, "exactly once").qos(2).id(7);
        let (mut peer, _) = resume(&connect);
        peer.send(&message.bytes(version));
        assert_eq!(peer.expect(kind::PUBREC).packet_id(), 7);
        peer.abort();

        let (mut peer, session_present) = resume(&connect);
        assert!(session_present);
        peer.send(&message.dup().bytes(version));
        let pubrec = peer.expect(kind::PUBREC);
        assert_eq!((pubrec.packet_id(), pubrec.reason()), (7, 0));
        peer.send(&packet::acknowledge(kind::PUBREL, 7));
        assert_eq!(peer.expect(kind::PUBCOMP).packet_id(), 7);
        peer.publish(&Publish::new(&topic, SENTINEL).qos(2));
        let messages = subscriber.receive_until(SENTINEL);
        assert_eq!(payloads(&messages), ["exactly once"], "{version:?}");
    }
}

/// A session with an expiry interval of one second exists after two seconds if its client stays connected.
#[test]
fn session_lasts_as_long_as_its_connection() {
    let topic = topic();
    let connect = Connect::new(V5, unique("lasting")).clean(false);
    let connect = connect.property(prop::u32(prop::SESSION_EXPIRY_INTERVAL, 1));
    let (mut peer, _) = resume(&connect);
    peer.subscribe(&topic, 1);
    let mut short = subscriber(V4, &topic, 1);
    let_pass(Duration::from_millis(2100));
    client(V5).publish(&Publish::new(&topic, "still here").qos(1));
    assert_eq!(peer.receive().payload, b"still here");
    assert_eq!(short.receive().payload, b"still here");
    let (_, session_present) = resume(&connect);
    assert!(session_present, "the connection was open until just now");
}

/// The will is published when the session ends, so it shows the end of the session.
#[test]
fn session_expires() {
    let topic = topic();
    let mut watcher = subscriber(V5, &topic, 0);
    let will = Will::new(&topic, "the session has ended").property(prop::u32(prop::WILL_DELAY_INTERVAL, 3600));
    let connect = Connect::new(V5, unique("expires")).clean(false).will(will);
    let connect = connect.property(prop::u32(prop::SESSION_EXPIRY_INTERVAL, 1));
    let (mut peer, _) = resume(&connect);
    peer.subscribe(&topic, 1);
    peer.abort();
    assert_eq!(watcher.receive().payload, b"the session has ended");
    let (mut peer, session_present) = resume(&connect);
    assert!(!session_present, "the session has expired");
    watcher.publish(&Publish::new(&topic, SENTINEL));
    watcher.receive_until(SENTINEL);
    peer.ping_alone();
}

#[test]
fn disconnect_can_end_the_session() {
    let connect = lasting(V5);
    let (mut peer, _) = resume(&connect);
    peer.send(&packet::disconnect(0x00, &prop::u32(prop::SESSION_EXPIRY_INTERVAL, 0)));
    peer.expect_closed(PATIENCE);
    assert!(!resume(&connect).1, "DISCONNECT has set the expiry to 0");

    // DISCONNECT cannot extend a session whose expiry interval was 0.
    let connect = Connect::new(V5, unique("short"));
    let peer = Server::shared().session(&connect);
    let longer = packet::disconnect(0x00, &prop::u32(prop::SESSION_EXPIRY_INTERVAL, 60));
    closes_for(peer, &longer, &[PROTOCOL_ERROR], "a longer session at DISCONNECT");
    assert!(!resume(&connect.clean(false)).1, "the session has ended");
}
