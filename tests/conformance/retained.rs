//! Tests retained messages. Chapter 3.3.1.3, and Retain Handling and Retain As Published of chapter 3.8.3.1.

use super::*;
use crate::support::*;

const RETAIN_AS_PUBLISHED: u8 = 0x08;
const RETAIN_HANDLING_1: u8 = 0x10;
const RETAIN_HANDLING_2: u8 = 0x20;

#[test]
fn retained_message_is_stored_with_its_qos() {
    for version in NUMBERED {
        for qos in 0..3 {
            let topic = topic();
            client(version).publish(&Publish::new(&topic, "kept").qos(qos).retain());
            // Another client's SUBACK can overtake a QoS 0 message, but not an acknowledged one.
            if qos == 0 {
                Server::shared().wait_until("the message is retained", |_| !replay(version, &topic, 2).is_empty());
            }
            let messages = replay(version, &topic, 2);
            assert_eq!(payloads(&messages), ["kept"]);
            assert_eq!((messages[0].qos, messages[0].is_retained), (qos, true), "{version:?}");
            assert!(!messages[0].is_duplicate);
        }
    }
}

#[test]
fn new_subscription_gets_the_last_message_of_each_topic() {
    for version in NUMBERED {
        let root = topic();
        for (level, payload) in [("a", "old"), ("a", "new"), ("b", "only"), ("a/b", "deep")] {
            retain(&format!("{root}/{level}"), payload, 1);
        }
        let messages = replay(version, &format!("{root}/#"), 1);
        assert!(messages.iter().all(|message| message.is_retained && message.qos == 1));
        let mut payloads = payloads(&messages);
        payloads.sort();
        assert_eq!(payloads, ["deep", "new", "only"], "{version:?}");
        let messages = replay(version, &format!("{root}/+"), 0);
        assert_eq!(messages.len(), 2, "{version:?}: {messages:?}");
    }
}

#[test]
fn qos_0_replaces_a_retained_message() {
    let topic = topic();
    let mut publisher = client(V4);
    publisher.publish(&Publish::new(&topic, "QoS 1").qos(1).retain());
    publisher.publish(&Publish::new(&topic, "QoS 0").retain());
    // The acknowledgement of this message shows that the preceding QoS 0 message has been handled too.
    publisher.publish(&Publish::new(super::topic(), "barrier").qos(1).retain());
    let messages = replay(V4, &topic, 1);
    assert_eq!(payloads(&messages), ["QoS 0"]);
}

#[test]
fn retained_message_outlives_the_session() {
    for version in NUMBERED {
        let topic = topic();
        let (mut peer, _) = resume(&lasting(version));
        peer.publish(&Publish::new(&topic, "kept").qos(1).retain());
        let id = unique("short");
        let mut short = Server::shared().session(&Connect::new(version, id));
        let of_short = super::topic();
        short.publish(&Publish::new(&of_short, "kept too").qos(1).retain());
        short.disconnect();
        peer.disconnect();
        assert_eq!(replay(version, &topic, 0).len(), 1, "{version:?}");
        assert_eq!(replay(version, &of_short, 0).len(), 1, "{version:?}");
    }
}

#[test]
fn established_subscription_sees_retain_cleared() {
    for version in NUMBERED {
        let topic = topic();
        let mut peer = subscriber(version, &topic, 1);
        retain(&topic, "live", 1);
        let message = peer.receive();
        assert_eq!(
            (message.payload_str(), message.is_retained),
            ("live", false),
            "{version:?}"
        );
    }
}

#[test]
fn retain_as_published_keeps_the_flag() {
    let topic = topic();
    let mut peer = client(V5);
    assert_eq!(subscribe_with(&mut peer, &topic, RETAIN_AS_PUBLISHED | 1, &[]), 1);
    let mut publisher = client(V5);
    publisher.publish(&Publish::new(&topic, "with").qos(1).retain());
    assert!(peer.receive().is_retained);
    publisher.publish(&Publish::new(&topic, "without").qos(1));
    assert!(!peer.receive().is_retained);
}

#[test]
fn empty_message_clears_and_is_not_stored() {
    for version in NUMBERED {
        let topic = topic();
        let mut peer = subscriber(version, &topic, 1);
        retain(&topic, "kept", 1);
        assert_eq!(peer.receive().payload, b"kept");
        retain(&topic, "", 1);
        let message = peer.receive();
        assert_eq!((message.payload_str(), message.is_retained), ("", false));
        assert!(replay(version, &topic, 1).is_empty(), "{version:?}");
    }
}

#[test]
fn message_without_retain_leaves_the_stored_one() {
    for version in NUMBERED {
        let (topic, empty) = (topic(), topic());
        retain(&topic, "kept", 1);
        let mut publisher = client(version);
        publisher.publish(&Publish::new(&topic, "passing").qos(1));
        publisher.publish(&Publish::new(&topic, "").qos(1));
        publisher.publish(&Publish::new(&empty, "passing").qos(1));
        assert_eq!(payloads(&replay(version, &topic, 1)), ["kept"]);
        assert!(replay(version, &empty, 1).is_empty(), "{version:?}");
    }
}

#[test]
fn retain_handling_selects_the_retained_messages() {
    let (topic, end) = (topic(), topic());
    retain(&topic, "kept", 1);
    retain(&end, SENTINEL, 1);
    let mut peer = client(V5);
    // The options, and whether the server sends the retained message.
    let steps = [
        (RETAIN_HANDLING_2, false),
        (RETAIN_HANDLING_1, false),
        (0, true),
        (RETAIN_HANDLING_1, false),
        (0, true),
    ];
    for (options, is_sent) in steps {
        assert_eq!(subscribe_with(&mut peer, &topic, options, &[]), 0);
        let count = replay_before(&mut peer, &end).len();
        assert_eq!(count, usize::from(is_sent), "options {options:#04x}");
    }
    peer.unsubscribe(&topic);
    assert_eq!(subscribe_with(&mut peer, &topic, RETAIN_HANDLING_1, &[]), 0);
    assert!(peer.receive().is_retained, "after UNSUBSCRIBE the subscription is new");
}
