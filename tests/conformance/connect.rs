//! Tests CONNECT and CONNACK: refused connections, client ids, session takeover. Chapters 3.1 and 3.2.

use super::*;
use crate::support::*;

/// Sends `bytes` as the first bytes of a connection and waits until the server closes it.
#[track_caller]
fn first_bytes_close(bytes: &[u8], what: &str) -> Closed {
    let mut peer = Server::shared().connect();
    peer.send(bytes);
    match std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| peer.expect_closed(PATIENCE))) {
        Ok(closed) => closed,
        Err(_) => panic!("not closed after {what}: {bytes:02x?}"),
    }
}

/// Sends a malformed CONNECT. MQTT 3.1.1 forbids a CONNACK; MQTT 5.0 allows one with an error code.
#[track_caller]
fn assert_malformed_connect(version: Version, bytes: &[u8], what: &str) {
    let closed = first_bytes_close(bytes, what);
    if version == V5 {
        let code = closed.connack_code(V5);
        assert!(
            code.is_none_or(|code| code >= 0x80),
            "{what}: accepted with {code:02x?}"
        );
        assert!(closed.packets.len() <= 1, "{what}: {:?}", closed.packets);
    } else {
        assert!(
            closed.packets.is_empty(),
            "{what}: answered with {:?} [MQTT-3.1.4-1]",
            closed.packets
        );
    }
}

/// Returns a CONNECT with these flags and payload, in MQTT 5 without properties.
fn connect_with(version: Version, flags: u8, payload: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = if version == V5 { vec![0] } else { vec![] };
    bytes.extend(payload.concat());
    packet::connect_raw("MQTT", version as u8, flags, 60, &bytes)
}

fn text(bytes: &str) -> Vec<u8> {
    packet::string(bytes)
}

/// Returns the will fields of a CONNECT payload, in MQTT 5 with the will properties.
fn will_fields(version: Version) -> Vec<u8> {
    let properties: &[u8] = if version == V5 { &[0] } else { &[] };
    [properties, &text("will/topic"), &text("will")].concat()
}

#[test]
fn first_packet_must_be_connect() {
    let publish = Publish::new("a", "b").bytes(V4);
    let packets: [Vec<u8>; 14] = [
        vec![0x20, 0x02, 0x00, 0x00],
        publish,
        packet::acknowledge(kind::PUBACK, 1),
        packet::acknowledge(kind::PUBREC, 1),
        packet::acknowledge(kind::PUBREL, 1),
        packet::acknowledge(kind::PUBCOMP, 1),
        packet::subscribe(V4, 1, &[("a", 0)], &[]),
        vec![0x90, 0x03, 0x00, 0x01, 0x00],
        packet::unsubscribe(V4, 1, &["a"]),
        vec![0xB0, 0x02, 0x00, 0x01],
        packet::PINGREQ.to_vec(),
        vec![0xD0, 0x00],
        packet::DISCONNECT.to_vec(),
        vec![0xF0, 0x00],
    ];
    for bytes in packets {
        let closed = first_bytes_close(&bytes, "a first packet that is no CONNECT");
        assert!(closed.packets.is_empty(), "answered with {:?}", closed.packets);
    }
}

#[test]
fn second_connect_closes_the_connection() {
    for version in ALL_VERSIONS {
        let connect = Connect::new(version, unique("twice"));
        let peer = Server::shared().session(&connect);
        closes_for(peer, &connect.bytes(), &[PROTOCOL_ERROR], "a second CONNECT");
    }
}

#[test]
fn wrong_protocol_name_is_refused() {
    for version in NUMBERED {
        for name in ["mqtt", "MQTTX", "MQIsdp", "MQT", "", "HTTP"] {
            let payload = Connect::new(version, unique("name")).payload();
            let bytes = packet::connect_raw(name, version as u8, 0x02, 60, &payload);
            let closed = first_bytes_close(&bytes, name);
            let code = closed.connack_code(V5);
            assert!(
                matches!(code, None | Some(0x01 | 0x84)),
                "{name:?} was answered {code:02x?}"
            );
        }
    }
}

#[test]
fn unsupported_protocol_level_is_refused() {
    for level in [0, 1, 2, 6, 99, 255] {
        let payload = Connect::new(V4, unique("level")).payload();
        let bytes = packet::connect_raw("MQTT", level, 0x02, 60, &payload);
        let closed = first_bytes_close(&bytes, "an unknown protocol level");
        assert_eq!(closed.packets.len(), 1, "level {level}: {:?}", closed.packets);
        let connack = closed.packets[0].connack(V5);
        assert!(matches!(connack.code, 0x01 | 0x84), "level {level}: {connack:?}");
        assert!(!connack.session_present);
        // A client of a later version than MQTT 5 understands the answer of 3.1.1.
        if level > 5 {
            let answer = (closed.packets[0].first, &closed.packets[0].body[..]);
            assert_eq!(answer, (0x20, &[0x00, 0x01][..]), "level {level}");
        }
    }
}

#[test]
fn reserved_connect_flag_closes_the_connection() {
    for version in NUMBERED {
        let bytes = connect_with(version, 0x03, &[text("reserved")]);
        assert_malformed_connect(version, &bytes, "the reserved flag");
    }
}

#[test]
fn connect_that_breaks_the_format_gets_no_answer() {
    for version in NUMBERED {
        let whole = Connect::new(version, "format")
            .will(Will::new("will/topic", "will").qos(1))
            .user("user", "password")
            .bytes();
        let body = packet::body(&whole);
        for length in 0..body.len() {
            let cut = packet::frame(0x10, &body[..length]);
            assert_malformed_connect(version, &cut, "a truncated CONNECT");
        }
        let longer = packet::frame(0x10, &[body, &[0]].concat());
        assert_malformed_connect(version, &longer, "a CONNECT with a surplus byte");
        assert_malformed_connect(version, &connect_with(version, 0x02, &[]), "no client id");
        let flags = [&[0x11], &whole[1..]].concat();
        assert_malformed_connect(version, &flags, "flags in the fixed header");
    }
}

#[test]
fn will_fields_follow_the_will_flag() {
    for version in NUMBERED {
        let absent = connect_with(version, 0x06, &[text("will")]);
        assert_malformed_connect(version, &absent, "Will Flag without will");
        let unasked = connect_with(version, 0x02, &[text("will"), will_fields(version)]);
        assert_malformed_connect(version, &unasked, "a will without Will Flag");
        let topic_only = connect_with(version, 0x06, &[text("will"), text("will/topic")]);
        assert_malformed_connect(version, &topic_only, "Will Flag without message");
    }
}

#[test]
fn will_qos_and_retain_need_the_will_flag() {
    for version in NUMBERED {
        for flags in [0x08, 0x10, 0x20, 0x38] {
            let bytes = connect_with(version, 0x02 | flags, &[text("will")]);
            assert_malformed_connect(version, &bytes, "Will QoS or Retain without Will Flag");
        }
    }
}

#[test]
fn will_qos_3_closes_the_connection() {
    for version in NUMBERED {
        let bytes = connect_with(version, 0x1E, &[text("will"), will_fields(version)]);
        assert_malformed_connect(version, &bytes, "Will QoS 3");
    }
}

#[test]
fn user_name_and_password_follow_their_flags() {
    for version in NUMBERED {
        let id = text("credentials");
        let cases: [(&str, u8, Vec<Vec<u8>>); 5] = [
            ("User Name Flag without name", 0x82, vec![id.clone()]),
            ("a name without User Name Flag", 0x02, vec![id.clone(), text("name")]),
            ("Password Flag without password", 0xC2, vec![id.clone(), text("name")]),
            (
                "a password without Password Flag",
                0x82,
                vec![id.clone(), text("name"), text("word")],
            ),
            ("both flags and neither field", 0xC2, vec![id]),
        ];
        for (what, flags, payload) in cases {
            assert_malformed_connect(version, &connect_with(version, flags, &payload), what);
        }
    }
}

#[test]
fn password_without_user_name_is_for_mqtt_5() {
    let payload = [text("password-only"), text("secret")];
    assert_malformed_connect(V4, &connect_with(V4, 0x42, &payload), "a password without user name");
    let mut peer = Server::shared().connect();
    let connack = peer.handshake(&Connect::new(V5, unique("password")).password("secret"));
    assert!(
        !matches!(connack.code, MALFORMED_PACKET | PROTOCOL_ERROR),
        "well-formed in MQTT 5, but answered {connack:?}"
    );
}

/// Sends every field at once: the password is checked, and the will arrives on its topic with its payload.
#[test]
fn payload_fields_have_a_fixed_order() {
    for version in NUMBERED {
        let server = super::access::server();
        let id = unique("order");
        let mut watcher = server.session(&super::access::alice(V5));
        watcher.subscribe("alice/will", 1);
        let will = Will::new("alice/will", &id).qos(1);
        let peer = server.session(&Connect::new(version, &id).will(will).user("alice", "wonderland"));
        peer.abort();
        let message = loop {
            let message = watcher.receive();
            if message.payload_str() == id {
                break message;
            }
        };
        assert_eq!((message.topic_str(), message.qos), ("alice/will", 1));
    }
}

#[test]
fn client_ids_of_1_to_23_letters_and_digits_are_accepted() {
    let letters = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
    for version in ALL_VERSIONS {
        for length in 1..=23 {
            for start in [0, 23, 39] {
                let id = &letters[start..start + length];
                Server::shared().session(&Connect::new(version, id)).disconnect();
            }
        }
    }
}

#[test]
fn empty_client_id_gets_a_unique_one() {
    let mut first = Server::shared().session(&Connect::new(V4, ""));
    let mut second = Server::shared().session(&Connect::new(V4, ""));
    first.ping_alone();
    second.ping_alone();

    let connect = Connect::new(V5, "").persistent();
    let mut ids = Vec::new();
    for _ in 0..2 {
        let mut peer = Server::shared().connect();
        let connack = peer.handshake(&connect);
        assert_eq!((connack.code, connack.session_present), (0, false));
        let id = connack.properties.bytes(prop::ASSIGNED_CLIENT_IDENTIFIER);
        ids.push(id.expect("an Assigned Client Identifier").to_vec());
        peer.disconnect();
    }
    assert!(!ids[0].is_empty());
    assert_ne!(ids[0], ids[1]);
    let (_, session_present) = resume(&Connect::new(V5, &ids[0]).persistent());
    assert!(session_present, "the assigned id identifies the session");
}

#[test]
fn empty_client_id_cannot_keep_a_session() {
    let mut peer = Server::shared().connect();
    let connack = peer.handshake(&Connect::new(V4, "").clean(false));
    assert_eq!((connack.code, connack.session_present), (0x02, false));
    assert!(peer.expect_closed(PATIENCE).packets.is_empty());
}

#[test]
fn connack_comes_first_and_once() {
    for version in ALL_VERSIONS {
        let topic = topic();
        let bytes = [
            Connect::new(version, unique("pipelined")).bytes(),
            packet::subscribe(version, 1, &[(&topic, 0)], &[]),
            Publish::new(&topic, "at once").bytes(version),
            packet::PINGREQ.to_vec(),
        ];
        let mut peer = Server::shared().connect().speak(version);
        peer.send(&bytes.concat());
        let connack = peer.expect_packet().connack(version);
        assert_eq!((connack.code, connack.session_present), (0, false));
        let mut kinds = vec![peer.expect_packet().kind()];
        while kinds.len() < 3 {
            kinds.push(peer.expect_packet().kind());
        }
        kinds.sort();
        assert_eq!(kinds, [kind::PUBLISH, kind::SUBACK, kind::PINGRESP]);
        peer.ping_alone();
    }
}

/// CONNACK reason codes of MQTT 5 for a refused connection.
const REFUSALS: [u8; 21] = [
    0x80, 0x81, 0x82, 0x83, 0x84, 0x85, 0x86, 0x87, 0x88, 0x89, 0x8A, 0x8C, 0x90, 0x95, 0x97, 0x99, 0x9A, 0x9B, 0x9C,
    0x9D, 0x9F,
];

#[test]
fn refusal_has_no_session_and_closes() {
    // The session exists, so Session Present is 0 because of the refusal.
    let connect = lasting(V5);
    resume(&connect).0.disconnect();
    let refused = connect
        .clone()
        .property(prop::text(prop::AUTHENTICATION_METHOD, "no such method"));
    let mut peer = Server::shared().connect();
    let connack = peer.handshake(&refused);
    assert!(REFUSALS.contains(&connack.code), "{connack:?}");
    assert!(!connack.session_present);
    // No DISCONNECT follows a CONNACK that refuses the connection [MQTT-3.14.0-1].
    assert!(peer.expect_closed(PATIENCE).packets.is_empty());

    let mut peer = Server::shared().connect();
    let connack = peer.handshake(&Connect::new(V4, "").clean(false));
    assert!(
        (1..=5).contains(&connack.code) && !connack.session_present,
        "{connack:?}"
    );
    assert!(peer.expect_closed(PATIENCE).packets.is_empty());
}

#[test]
fn nothing_after_a_refused_connect_is_processed() {
    let method = prop::text(prop::AUTHENTICATION_METHOD, "no such method");
    let refused = [
        (V4, Connect::new(V4, "").clean(false)),
        (V5, Connect::new(V5, unique("refused")).property(method)),
    ];
    for (version, connect) in refused {
        let topic = topic();
        let mut subscriber = subscriber(V4, &topic, 0);
        let mut peer = Server::shared().connect();
        let publish = Publish::new(&topic, "after a refusal").bytes(version);
        peer.send(&[connect.bytes(), publish].concat());
        peer.expect_closed(PATIENCE);
        client(V4).publish(&Publish::new(&topic, SENTINEL));
        assert!(subscriber.receive_until(SENTINEL).is_empty());
    }
}

#[test]
fn same_client_id_takes_the_session_over() {
    for (first, second) in [(V4, V4), (V5, V5), (V4, V5), (V5, V4), (V3, V4)] {
        let id = unique("shared id");
        let mut old = Server::shared().session(&Connect::new(first, &id));
        let mut new = Server::shared().session(&Connect::new(second, &id));
        let closed = old.expect_closed(PATIENCE);
        let expected = (first == V5).then_some(0x8E);
        assert_eq!(
            closed.disconnect_reason(),
            expected,
            "{first:?} taken over by {second:?}"
        );
        new.ping_alone();
    }
}

/// MQTT 3.1 has no numbered statements, but the same server serves its clients.
#[test]
fn mqtt_3_1_clients_are_served() {
    let topic = topic();
    let mut subscriber = subscriber(V3, &topic, 2);
    let mut publisher = client(V3);
    for qos in 0..3 {
        publisher.publish(&Publish::new(&topic, "3.1").qos(qos));
        assert_eq!(subscriber.receive().qos, qos);
    }
    subscriber.unsubscribe(&topic);
    subscriber.disconnect();
}
