//! Tests access control as the standard requires it: wrong credentials, and PUBLISH and SUBSCRIBE without permission.

use std::sync::OnceLock;

use super::*;
use crate::support::*;

/// Password file made by `mosquitto_passwd -b`. The passwords: alice `wonderland`, bob `builder`, carol `hidden`.
const PASSWORDS: &str = "\
alice:$7$101$MN7fbLzX3QMSv09F$2mupi6/RSIbhkRn3Ycmtaz8QRQekZzDtYe+WpDH9Ap7E6AmSN5IuvBFXtpndE9vBP26IHoP91q77KnaAvAAOVw==
bob:$7$101$xA9i9+owUgJFIY0A$FelAbcNIU78GT6BHcNzuHfpbSlB/XcpCVCi3lMYHGnX6O42WFZbRuLrkixsjCiRp0aJ7tHzOB9Th0OgYLjFWKA==
carol:$7$101$yEoj7qMARxpxIjfX$ExkQ5F0Hp/kQfbASsrNekyy8Ip6O6qBB5KhQ3blw5yaFgqiu5Rn/JcMzRVIxzooluxTOsBiV27msYZEFrBv9xg==
";

/// Alice and bob may use the topics below their own name. Carol may use all topics, and those below `$hidden`.
const RULES: &str = "\
user alice
topic readwrite alice/#

user bob
topic readwrite bob/#

user carol
topic readwrite #
topic readwrite $hidden/#
";

/// Returns a server that requires credentials.
pub fn server() -> &'static Server {
    static SECURED: OnceLock<Server> = OnceLock::new();
    SECURED.get_or_init(|| {
        let toml = "[access]\nanonymous = \"never\"\npassword_file = \"{dir}/passwords\"\nacl_file = \"{dir}/rules\"\n";
        let mosquitto = "allow_anonymous false\npassword_file {dir}/passwords\nacl_file {dir}/rules\n";
        let config = Config::new(toml).mosquitto(mosquitto);
        Server::start(
            &config
                .file("passwords", PASSWORDS.to_owned())
                .file("rules", RULES.to_owned()),
        )
    })
}

pub fn alice(version: Version) -> Connect {
    Connect::new(version, unique("alice")).user("alice", "wonderland")
}

pub fn carol(version: Version) -> Connect {
    Connect::new(version, unique("carol")).user("carol", "hidden")
}

fn bob(version: Version) -> Connect {
    Connect::new(version, unique("bob")).user("bob", "builder")
}

#[test]
fn wrong_credentials_are_refused() {
    for version in NUMBERED {
        let id = || Connect::new(version, unique("nobody"));
        let mut codes = Vec::new();
        for connect in [
            id(),
            id().user("alice", "builder"),
            id().user("nobody", "wonderland"),
            id().user("alice", ""),
            id().user_name("alice"),
        ] {
            let mut peer = server().connect();
            let connack = peer.handshake(&connect);
            let expected: &[u8] = if version == V5 { &[0x86, 0x87] } else { &[4, 5] };
            assert!(expected.contains(&connack.code), "{connect:?}: {connack:?}");
            assert!(!connack.session_present);
            assert!(peer.expect_closed(PATIENCE).packets.is_empty());
            codes.push(connack.code);
        }
        assert_eq!(
            codes[1], codes[2],
            "an unknown user gets the same code as a wrong password"
        );
        server().session(&alice(version)).disconnect();
    }
}

#[test]
fn publish_without_right_is_acknowledged_and_dropped() {
    for version in NUMBERED {
        let foreign = format!("bob/{}", unique("topic"));
        let mut bob = server().session(&bob(version));
        bob.subscribe(&foreign, 1);
        let mut alice = server().session(&alice(version));
        for qos in 0..3 {
            let code = alice.publish(&Publish::new(&foreign, "from alice").qos(qos));
            let expected = if version == V5 && qos > 0 { 0x87 } else { 0x00 };
            assert_eq!(code, expected, "{version:?} QoS {qos}");
        }
        alice.ping_alone();
        bob.publish(&Publish::new(&foreign, SENTINEL).qos(1));
        assert!(bob.receive_until(SENTINEL).is_empty());
    }
}

#[test]
fn subscription_without_right_fails() {
    for version in NUMBERED {
        let failure = if version == V5 { 0x87 } else { 0x80 };
        let mut peer = server().session(&alice(version));
        let filters = [("alice/a", 1), ("bob/a", 0), ("alice/#", 2), ("bob/#", 2)];
        peer.send(&packet::subscribe(version, 1, &filters, &[]));
        let codes = peer.expect_packet().reason_codes(version);
        assert_eq!(codes, [1, failure, 2, failure], "{version:?}");
    }
}

#[test]
fn refused_qos_2_identifier_is_new() {
    let own = format!("alice/{}", unique("topic"));
    let mut subscriber = server().session(&alice(V5));
    subscriber.subscribe(&own, 2);
    let mut peer = server().session(&alice(V5));
    peer.send(&Publish::new("bob/topic", "refused").qos(2).id(5).bytes(V5));
    assert_eq!(peer.expect(kind::PUBREC).reason(), 0x87);
    peer.send(&Publish::new(&own, "accepted").qos(2).id(5).bytes(V5));
    assert_eq!(peer.expect(kind::PUBREC).reason(), 0x00);
    peer.send(&packet::acknowledge(kind::PUBREL, 5));
    let pubcomp = peer.expect(kind::PUBCOMP);
    assert_eq!((pubcomp.packet_id(), pubcomp.reason()), (5, 0x00));
    assert_eq!(subscriber.receive().payload, b"accepted");
}
