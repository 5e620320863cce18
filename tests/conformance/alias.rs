//! Tests topic aliases in both directions. Chapter 3.3.2.3.4.

use std::collections::HashMap;

use super::*;
use crate::support::*;

fn with_alias(topic: &str, payload: &str, alias: u16) -> Publish {
    Publish::new(topic, payload).property(prop::u16(prop::TOPIC_ALIAS, alias))
}

/// Returns a client and the Topic Alias Maximum of its CONNACK.
#[track_caller]
fn publisher() -> (Peer, u16) {
    let mut peer = Server::shared().connect();
    let connack = peer.handshake(&Connect::new(V5, unique("alias")));
    assert_eq!(connack.code, 0);
    let maximum = connack.properties.number(prop::TOPIC_ALIAS_MAXIMUM).unwrap_or(0);
    (peer, maximum as u16)
}

#[test]
fn every_alias_up_to_the_maximum_is_accepted() {
    let root = topic();
    let mut subscriber = subscriber(V5, &format!("{root}/+"), 1);
    let (mut publisher, maximum) = publisher();
    assert!(maximum > 0, "the server accepts topic aliases");
    // Uses the first few hundred aliases, then the highest one.
    let aliases: Vec<u16> = (1..=maximum.min(300)).chain([maximum]).collect();
    for alias in &aliases {
        publisher.publish(&with_alias(&format!("{root}/{alias}"), "set", *alias).qos(1));
        subscriber.receive();
    }
    for alias in &aliases {
        publisher.publish(&with_alias("", "used", *alias).qos(1));
        let message = subscriber.receive();
        assert_eq!(message.topic_str(), format!("{root}/{alias}"));
        assert_eq!(message.payload, b"used");
    }
    publisher.publish(&with_alias(&format!("{root}/moved"), "set anew", 1).qos(1));
    publisher.publish(&with_alias("", "used", 1).qos(1));
    subscriber.receive();
    assert!(subscriber.receive().topic.ends_with(b"/moved"));
}

#[test]
fn alias_outside_the_range_closes_the_connection() {
    const TOPIC_ALIAS_INVALID: u8 = 0x94;
    let (peer, maximum) = publisher();
    let zero = with_alias("a", "b", 0).bytes(V5);
    closes_for(
        peer,
        &zero,
        &[TOPIC_ALIAS_INVALID, PROTOCOL_ERROR, MALFORMED_PACKET],
        "alias 0",
    );
    let unknown = with_alias("", "b", 1).bytes(V5);
    closes(
        V5,
        &unknown,
        &[PROTOCOL_ERROR, TOPIC_ALIAS_INVALID],
        "an alias that was never set",
    );
    if let Some(above) = maximum.checked_add(1) {
        let bytes = with_alias("a", "b", above).bytes(V5);
        closes(
            V5,
            &bytes,
            &[TOPIC_ALIAS_INVALID, PROTOCOL_ERROR],
            "an alias above the maximum",
        );
    }
    let limited = super::limits::server();
    let mut peer = limited.connect();
    let connack = peer.handshake(&Connect::new(V5, unique("alias")));
    let maximum = connack.properties.number(prop::TOPIC_ALIAS_MAXIMUM).unwrap_or(0) as u16;
    let bytes = with_alias("a", "b", maximum + 1).bytes(V5);
    closes_for(
        peer,
        &bytes,
        &[TOPIC_ALIAS_INVALID, PROTOCOL_ERROR],
        "an alias above a lower maximum",
    );
}

#[test]
fn aliases_end_with_the_connection() {
    let connect = lasting(V5);
    let (mut peer, _) = resume(&connect);
    peer.publish(&with_alias(&topic(), "set", 1).qos(1));
    peer.disconnect();
    let (peer, session_present) = resume(&connect);
    assert!(session_present);
    let bytes = with_alias("", "used", 1).bytes(V5);
    closes_for(
        peer,
        &bytes,
        &[PROTOCOL_ERROR, 0x94],
        "an alias of the previous connection",
    );
}

/// Ten topics share two aliases: some messages have an alias, some do not, and the client resolves every topic.
#[test]
fn server_aliases_stay_within_the_clients_maximum() {
    let root = topic();
    let connect = lasting(V5).property(prop::u16(prop::TOPIC_ALIAS_MAXIMUM, 2));
    for _ in 0..2 {
        // The second connection resumes the session. Its aliases start empty.
        let (mut peer, _) = resume(&connect);
        peer.subscribe(format!("{root}/+"), 1);
        let mut publisher = client(V5);
        let mut topics = HashMap::new();
        for level in (0..10).chain(0..10) {
            let topic = format!("{root}/{level}");
            publisher.publish(&Publish::new(&topic, "message").qos(1));
            let message = peer.receive();
            let alias = message.properties.number(prop::TOPIC_ALIAS);
            assert!(alias.is_none_or(|alias| (1..=2).contains(&alias)), "{alias:?}");
            if let Some(alias) = alias.filter(|_| !message.topic.is_empty()) {
                topics.insert(alias, message.topic.clone());
            }
            let found = if message.topic.is_empty() {
                topics[&alias.expect("an empty topic has an alias")].clone()
            } else {
                message.topic
            };
            assert_eq!(found, topic.into_bytes());
        }
        peer.disconnect();
    }
}

#[test]
fn server_sends_no_alias_unasked() {
    for maximum in [None, Some(0)] {
        let topic = topic();
        let mut connect = Connect::new(V5, unique("no alias"));
        if let Some(maximum) = maximum {
            connect = connect.property(prop::u16(prop::TOPIC_ALIAS_MAXIMUM, maximum));
        }
        let mut peer = Server::shared().session(&connect);
        peer.subscribe(&topic, 1);
        let mut publisher = client(V5);
        for _ in 0..3 {
            publisher.publish(&with_alias(&topic, "with the publisher's alias", 1).qos(1));
            let message = peer.receive();
            assert_eq!(message.topic_str(), topic);
            assert_eq!(message.properties.get(prop::TOPIC_ALIAS), None);
        }
    }
}
