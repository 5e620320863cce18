//! Tests properties of MQTT 5 and how the server handles those of messages. Chapters 2.2.2 and 3.3.2.3.

use super::*;
use crate::support::*;

#[test]
fn no_properties_are_a_zero_length() {
    let topic = topic();
    let mut peer = client(V5);
    peer.send(&packet::subscribe(V5, 1, &[(&topic, 1)], &[]));
    assert_eq!(peer.expect_packet().body, [0, 1, 0, 1]);
    client(V5).publish(&Publish::new(&topic, "bare").qos(1));
    let message = peer.expect_packet();
    let id = message.delivery(V5).packet_id.expect("QoS 1 has an identifier");
    let body = [&packet::string(&topic), &id.to_be_bytes()[..], &[0], b"bare"].concat();
    assert_eq!(message.body, body);
    peer.send(&packet::unsubscribe(V5, 2, &[&topic]));
    assert_eq!(peer.expect_packet().body, [0, 2, 0, 0]);
}

#[test]
fn message_properties_are_forwarded_unaltered() {
    let topic = topic();
    let mut subscriber = subscriber(V5, &topic, 1);
    let pairs: Vec<(String, String)> = ["b", "a", "", "b", "ü", "b"]
        .iter()
        .enumerate()
        .map(|(at, name)| ((*name).to_owned(), format!("value {}", at % 4)))
        .collect();
    let mut message = Publish::new(&topic, "payload")
        .qos(1)
        .property(prop::byte(prop::PAYLOAD_FORMAT_INDICATOR, 1))
        .property(prop::text(prop::CONTENT_TYPE, "text/plain; charset=ü"))
        .property(prop::text(prop::RESPONSE_TOPIC, "answers/go/here"))
        .property(prop::text(prop::CORRELATION_DATA, [0x00, 0xFF, 0x00, 0x80]));
    for (name, value) in &pairs {
        message = message.property(prop::user(name, value));
    }
    let mut publisher = client(V5);
    publisher.publish(&message);
    let found = subscriber.receive().properties;
    assert_eq!(found.number(prop::PAYLOAD_FORMAT_INDICATOR), Some(1));
    assert_eq!(
        found.bytes(prop::CONTENT_TYPE),
        Some("text/plain; charset=ü".as_bytes())
    );
    assert_eq!(found.bytes(prop::RESPONSE_TOPIC), Some(&b"answers/go/here"[..]));
    assert_eq!(found.bytes(prop::CORRELATION_DATA), Some(&[0x00, 0xFF, 0x00, 0x80][..]));
    assert_eq!(found.user_properties(), pairs);
    // Empty values are forwarded, absent properties stay absent.
    let empty = Publish::new(&topic, "payload").property(prop::text(prop::CORRELATION_DATA, ""));
    publisher.publish(&empty);
    assert_eq!(
        subscriber.receive().properties.0,
        [(prop::CORRELATION_DATA, Value::Bytes(vec![]))]
    );
}

#[test]
fn retained_message_keeps_its_properties() {
    let topic = topic();
    let message = Publish::new(&topic, "kept")
        .qos(1)
        .retain()
        .property(prop::text(prop::CONTENT_TYPE, "kept/too"))
        .property(prop::user("name", "value"));
    client(V5).publish(&message);
    let found = subscriber(V5, &topic, 1).receive().properties;
    assert_eq!(found.bytes(prop::CONTENT_TYPE), Some(&b"kept/too"[..]));
    assert_eq!(found.user_properties(), [("name".to_owned(), "value".to_owned())]);
}

#[test]
fn expired_message_is_not_delivered() {
    let (connect, topic, retained) = (lasting(V5), topic(), topic());
    let (mut peer, _) = resume(&connect);
    peer.subscribe(&topic, 1);
    peer.disconnect();
    let expiry = prop::u32(prop::MESSAGE_EXPIRY_INTERVAL, 1);
    let mut publisher = client(V5);
    publisher.publish(&Publish::new(&topic, "expires").qos(1).property(expiry.clone()));
    publisher.publish(&Publish::new(&topic, SENTINEL).qos(1));
    publisher.publish(&Publish::new(&retained, "expires").qos(1).retain().property(expiry));
    let_pass(Duration::from_millis(2100));
    let (mut peer, _) = resume(&connect);
    assert!(peer.receive_until(SENTINEL).is_empty());
    assert!(replay(V5, &retained, 1).is_empty());
}

#[test]
fn expiry_counts_down_while_waiting() {
    let (connect, topic) = (lasting(V5), topic());
    let (mut peer, _) = resume(&connect);
    peer.subscribe(&topic, 1);
    peer.disconnect();
    let message = Publish::new(&topic, "waits").qos(1).retain();
    client(V5).publish(&message.property(prop::u32(prop::MESSAGE_EXPIRY_INTERVAL, 3600)));
    let at_once = subscriber(V5, &topic, 1).receive();
    let_pass(Duration::from_millis(2100));
    let (mut peer, _) = resume(&connect);
    let queued = peer.receive();
    let retained = subscriber(V5, &topic, 1).receive();
    let expiry = |message: &Delivery| message.properties.number(prop::MESSAGE_EXPIRY_INTERVAL);
    assert!(matches!(expiry(&at_once), Some(3599 | 3600)), "{:?}", expiry(&at_once));
    // A busy machine may take longer, but never less time.
    for waited in [queued, retained] {
        assert!(
            matches!(expiry(&waited), Some(3500..=3598)),
            "{:?} after two seconds",
            expiry(&waited)
        );
    }
}

#[test]
fn response_topic_with_a_wildcard_is_refused() {
    for filter in ["answers/#", "+/answers", "#"] {
        let bytes = Publish::new("a", "b").property(prop::text(prop::RESPONSE_TOPIC, filter));
        closes(
            V5,
            &bytes.bytes(V5),
            &[MALFORMED_PACKET, PROTOCOL_ERROR, 0x90],
            "a wildcard in the Response Topic",
        );
    }
}

#[test]
fn response_information_comes_only_on_request() {
    for request in [None, Some(0)] {
        let mut connect = Connect::new(V5, unique("response"));
        if let Some(value) = request {
            connect = connect.property(prop::byte(prop::REQUEST_RESPONSE_INFORMATION, value));
        }
        let connack = Server::shared().connect().handshake(&connect);
        assert_eq!(connack.properties.get(prop::RESPONSE_INFORMATION), None);
    }
}

/// Provokes answers that carry a Reason String unless the client declined problem information.
#[test]
fn problem_information_can_be_declined() {
    let connect = Connect::new(V5, unique("no problem"));
    let mut peer = Server::shared().session(&connect.property(prop::byte(prop::REQUEST_PROBLEM_INFORMATION, 0)));
    let filters = [(topic(), 0), ("$share//bad".to_owned(), 0)];
    let requests = [
        packet::unsubscribe(V5, 1, &[topic()]),
        Publish::new(topic(), "no subscriber").qos(1).id(2).bytes(V5),
        Publish::new("$SYS/forbidden", "no").qos(1).id(3).bytes(V5),
        packet::acknowledge(kind::PUBREL, 4),
        packet::acknowledge(kind::PUBREC, 5),
        packet::subscribe(V5, 6, &filters, &[]),
    ];
    let mut answers = Vec::new();
    for request in requests {
        peer.send(&request);
        answers.push(peer.expect_packet());
    }
    for answer in answers {
        if answer.kind() == kind::DISCONNECT {
            continue;
        }
        let properties = answer.properties();
        assert_eq!(properties.get(prop::REASON_STRING), None, "{answer:?}");
        assert!(properties.user_properties().is_empty(), "{answer:?}");
    }
}
