//! Group C: authentication and authorization. The users alice and bob each have a private topic tree and share another.

use std::sync::OnceLock;
use std::time::Instant;

use serde_json::{Value as Json, json};

use crate::support::api::Api;
use crate::support::packet::{self, subscribe};
use crate::support::*;

/// Password file in the format of `mosquitto_passwd`. Every password is `secret`. The user names after alice and bob
/// contain wildcards or placeholders.
pub const PASSWORDS: &str = "\
alice:$7$101$9TD5bSTtjvJ+niVN$RUou8ofuC6A1X7MEdwsVjoIuCNGs3o7vgPF3Lafbvqs+sPxIpYZHJ4YgsMSrVms+bnaUoE9AiG7esQKNhEtYdQ==
bob:$7$101$z3srwTDUquq9L/pJ$cZr0iip/MlLqxXbUpFMuHQuc16CYBcZanGebSESTniBgOXsQe20LZqOOjr2/+rfjGb7Zd2g9NeRO6vImBPWwew==
+:$7$101$Kp78OXa2v7fancbX$UxRKrnWd0G2JDZUO64/2OwCWVOptMeQ+NqV6ZfnAbTxv6+SmA8b90TEu3E9uEjp5ZTnao1KW6eB5lF4qaFM/sA==
#:$7$101$ZRiM5PONMINZLKkI$mmyjjHlxhxcycxHM3aBVanD4+PENzq7SMHFNiVExoE91t03Vfn/xHuFsU6QrraWd6fErKScF7buViaPJ1QYofA==
a/b:$7$101$YX+Z/HdPxXN33jbj$2QeXsWY7y9VROd7PVx3cO9nClC/YphSoP5szNY/B9xlzd6GYSh8NoYXekb55l2eZR95PXNSFqdpymL8pwbQ6pg==
%u:$7$101$OPyIeDwIX7GuPTJ3$g0oWe66fZjqDpjG0J6Y96wmxcKGymmwEZlPIxS6linwuId+znFb5LrsXRnzapaw5nmvcThyRm1Xio5tGziZ8Lw==
";

/// Payload of all messages that bob sends to himself.
const PRIVATE: &[u8] = b"private";

const RULES: &str = "\
user alice
topic readwrite alice/#
topic readwrite shared/#

user bob
topic readwrite bob/#
topic readwrite shared/#

pattern readwrite client/%c/#
pattern readwrite user/%u/#
pattern readwrite open/#
";

/// Returns the server with access rules that these tests share.
fn guarded() -> &'static Server {
    static GUARDED: OnceLock<Server> = OnceLock::new();
    GUARDED.get_or_init(|| {
        // These tests fail to log in more often than an address may.
        let toml = "[access]\nanonymous = \"never\"\nmax_login_failures = 1000\npassword_file = \"{dir}/users\"\nacl_file = \"{dir}/rules\"\n";
        let mosquitto = "allow_anonymous false\npassword_file {dir}/users\nacl_file {dir}/rules\n";
        Server::start(
            &Config::new(toml)
                .mosquitto(mosquitto)
                .file("users", PASSWORDS)
                .file("rules", RULES),
        )
    })
}

fn connect_as(user: &str, version: Version) -> Connect {
    Connect::new(version, unique("c")).user(user, "secret")
}

#[track_caller]
fn session_of(user: &str, version: Version) -> Peer {
    guarded().session(&connect_as(user, version))
}

#[track_caller]
fn assert_guarded_alive() {
    guarded().assert_alive_as(&connect_as("alice", V4));
}

/// Connects bob and subscribes to all topics that he may read. Of `shared/` he only subscribes to `shared/<marker>`.
#[track_caller]
fn bob_watching(marker: &str) -> Peer {
    let mut bob = session_of("bob", V5);
    bob.subscribe("bob/#", 2);
    bob.subscribe(format!("shared/{marker}"), 2);
    bob
}

/// Sends bob a marker from `peer`. Returns the messages that bob received before it, except his own.
#[track_caller]
fn seen_before_marker(bob: &mut Peer, peer: &mut Peer, marker: &str) -> Vec<Delivery> {
    peer.publish(&Publish::new(format!("shared/{marker}"), marker).qos(1));
    foreign(bob.receive_until(marker))
}

fn foreign(mut messages: Vec<Delivery>) -> Vec<Delivery> {
    messages.retain(|message| message.payload != PRIVATE);
    messages
}

#[track_caller]
fn assert_refuses(connect: &Connect) -> u8 {
    let mut peer = guarded().connect();
    let connack = peer.handshake(connect);
    let expected: &[u8] = if connect.version == V5 { &[0x86, 0x87] } else { &[4, 5] };
    assert!(expected.contains(&connack.code), "{connect:?}: {connack:?}");
    assert!(
        !connack.session_present,
        "a refusal has session present set [MQTT-3.2.2-6]"
    );
    assert!(peer.expect_closed(PATIENCE).packets.is_empty());
    connack.code
}

#[test]
fn c01_all_bad_credentials_get_the_same_refusal() {
    for version in ALL_VERSIONS {
        let connect = || Connect::new(version, unique("c01"));
        assert_refuses(&connect());
        assert_refuses(&connect().user_name("alice"));
        assert_refuses(&connect().user_name(""));
        assert_refuses(&connect().user("", ""));
        assert_refuses(&connect().user("", "secret"));
        assert_refuses(&connect().user("alice", ""));
        // Not "secret\0": HMAC pads its key with zeros, so PBKDF2 treats both passwords as equal.
        assert_refuses(&connect().user("alice", "secret\0x"));
        assert_refuses(&connect().user("Alice", "secret"));
        let wrong_password = assert_refuses(&connect().user("alice", "wrong"));
        let unknown_user = assert_refuses(&connect().user("nobody", "secret"));
        assert_eq!(wrong_password, unknown_user, "the answer reveals whether a user exists");
    }
    assert_guarded_alive();
}

#[test]
fn c02_nothing_after_a_refused_connect_is_processed() {
    for version in ALL_VERSIONS {
        let marker = unique("c02");
        let mut bob = bob_watching(&marker);
        let topic = format!("shared/{marker}");
        let bytes = [
            Connect::new(version, unique("c02")).user("alice", "wrong").bytes(),
            Publish::new(&topic, "smuggled").bytes(version),
            Publish::new(&topic, "smuggled").qos(1).retain().bytes(version),
            subscribe(version, 2, &[("bob/#", 0)], &[]),
        ]
        .concat();
        let mut peer = guarded().connect().speak(version);
        peer.send(&bytes);
        let closed = peer.expect_closed(PATIENCE);
        assert!(
            matches!(closed.connack_code(version), Some(4 | 5 | 0x86 | 0x87)),
            "{closed:?}"
        );
        assert_eq!(closed.packets.len(), 1, "{closed:?}");
        assert_eq!(seen_before_marker(&mut bob, &mut session_of("alice", V4), &marker), []);
    }
}

#[test]
fn c03_publish_to_a_foreign_topic_is_not_delivered() {
    for version in ALL_VERSIONS {
        let marker = unique("c03");
        let mut bob = bob_watching(&marker);
        let mut alice = session_of("alice", version);
        for qos in 0..=2 {
            for retain in [false, true] {
                let mut message = Publish::new("bob/x", "from alice").qos(qos);
                message.is_retained = retain;
                let code = alice.publish(&message);
                if version == V5 && qos > 0 {
                    assert_eq!(code, 0x87, "QoS {qos}");
                }
            }
        }
        assert_eq!(seen_before_marker(&mut bob, &mut alice, &marker), []);
    }
    assert_guarded_alive();
}

/// Subscribes alice to `filters`. Whatever the server answers, she must not receive messages that bob sends to himself.
#[track_caller]
fn assert_alice_sees_nothing_of_bob(version: Version, filters: &[&str]) {
    for filter in filters {
        let marker = unique("c-see");
        let mut alice = session_of("alice", version);
        alice.subscribe(format!("shared/{marker}"), 1);
        let code = alice.subscribe_code(filter, 1);
        println!("{version:?} {filter}: {code:#04x}");
        let mut bob = session_of("bob", V4);
        bob.publish(&Publish::new("bob/x", PRIVATE).qos(1));
        bob.publish(&Publish::new("bob/x", PRIVATE).qos(1).retain());
        bob.publish(&Publish::new(format!("shared/{marker}"), &marker).qos(1));
        let seen = alice.receive_until(&marker);
        let leaked: Vec<_> = seen
            .iter()
            .filter(|message| !message.topic_str().starts_with("shared/"))
            .collect();
        assert!(leaked.is_empty(), "{filter}: {leaked:?}");
        // Retained messages must not be delivered either.
        alice.subscribe_code(filter, 1);
        let seen = alice.ping();
        let leaked = |packet: &Packet| {
            packet.kind() == kind::PUBLISH && !packet.delivery(version).topic_str().starts_with("shared/")
        };
        assert!(!seen.iter().any(leaked), "{filter}: {seen:?}");
    }
    assert_guarded_alive();
}

#[test]
fn c04_foreign_filters_receive_no_private_messages() {
    for version in [V4, V5] {
        assert_alice_sees_nothing_of_bob(version, &["bob/x", "bob/#", "bob/+", "+/x", "#", "+/#", "/#"]);
    }
}

#[test]
fn c05_access_rules_apply_to_shared_subscriptions() {
    for version in [V4, V5] {
        let filters = [
            "$share/g/bob/x",
            "$share/g/bob/#",
            "$share/g/+/x",
            "$share/g/#",
            "$share/alice/bob/x",
        ];
        assert_alice_sees_nothing_of_bob(version, &filters);
    }
}

#[test]
fn c06_access_rules_apply_to_prefixed_filters() {
    for version in [V4, V5] {
        let filters = [
            "$queue/bob/x",
            "$queue/bob/#",
            "$queue/#",
            "$exclusive/bob/x",
            "$share/g/$exclusive/bob/x",
            "$exclusive/$share/g/bob/x",
            "$share/g/$queue/bob/x",
            "$queue/$share/g/bob/x",
            "$delayed/1/bob/x",
        ];
        assert_alice_sees_nothing_of_bob(version, &filters);
    }
}

#[test]
fn c06_refused_exclusive_subscription_does_not_block_the_owner() {
    let mut alice = session_of("alice", V5);
    assert!(alice.subscribe_code("$exclusive/bob/exclusive", 0) >= 0x80);
    let mut bob = session_of("bob", V5);
    bob.subscribe("$exclusive/bob/exclusive", 0);
}

#[test]
fn c06_delayed_publish_to_a_foreign_topic_is_not_delivered() {
    let marker = unique("c06");
    let mut bob = bob_watching(&marker);
    let mut alice = session_of("alice", V5);
    for topic in [
        "$delayed/1/bob/x",
        "$delayed/0/bob/x",
        "$delayed/1/$delayed/0/bob/x",
        "$delayed/x/bob/x",
    ] {
        alice.send(&Publish::new(topic, "from alice").bytes(V5));
    }
    assert_eq!(
        alice.publish(&Publish::new("$delayed/1/bob/x", "from alice").qos(1)),
        0x87
    );
    // This message is due after the others.
    alice.publish(&Publish::new(format!("$delayed/1/shared/{marker}"), &marker).qos(1));
    assert_eq!(foreign(bob.receive_until(&marker)), []);
}

#[test]
fn c07_will_to_a_foreign_topic_is_not_delivered() {
    for version in ALL_VERSIONS {
        for topic in ["bob/will", "$delayed/0/bob/will"] {
            let marker = unique("c07");
            let mut bob = bob_watching(&marker);
            let will = Will::new(topic, "from alice").qos(1).retain();
            let connect = connect_as("alice", version).will(will);
            let mut alice = guarded().connect();
            let connack = alice.handshake(&connect);
            println!("{version:?} {topic}: {:#04x}", connack.code);
            alice.abort();
            // When the same client connects again, the server has processed the will before it answers.
            let mut alice = guarded().session(&Connect::new(version, &connect.client_id).user("alice", "secret"));
            assert_eq!(seen_before_marker(&mut bob, &mut alice, &marker), []);
            let mut bob = bob_watching(&marker);
            assert_eq!(
                seen_before_marker(&mut bob, &mut alice, &marker),
                [],
                "the will was retained"
            );
        }
    }
}

#[test]
fn c08_user_names_with_wildcards_do_not_widen_access_rules() {
    // The same kind of attack as CVE-2017-7650 of mosquitto.
    let mut witness = guarded().session(&connect_as("bob", V5));
    witness.subscribe("user/bob/#", 1);
    let marker = unique("c08");
    witness.subscribe(format!("shared/{marker}"), 1);
    for user in ["+", "#", "a/b", "%u"] {
        assert_sees_only_its_own(&Connect::new(V5, unique("c08")).user(user, "secret"), "user/bob/x");
    }
    for client_id in ["+", "#", "+/#", "bob/../x", "%u", "%c", "/"] {
        assert_sees_only_its_own(&Connect::new(V5, client_id).user("alice", "secret"), "user/bob/x");
        assert_sees_only_its_own(&Connect::new(V5, client_id).user("alice", "secret"), "client/other/x");
    }
    assert_eq!(
        seen_before_marker(&mut witness, &mut session_of("alice", V4), &marker),
        []
    );
    // The rules allow a user's own topics.
    let mut plain = guarded().session(&Connect::new(V5, "c08-plain").user("alice", "secret"));
    plain.subscribe("client/c08-plain/#", 1);
    plain.subscribe("user/alice/#", 1);
    assert_eq!(plain.publish(&Publish::new("user/alice/x", "mine").qos(1)), 0);
    assert_eq!(plain.receive().payload_str(), "mine");
}

/// Checks that a client with a hostile name can neither read nor write `topic`. The server may also refuse its CONNECT.
#[track_caller]
fn assert_sees_only_its_own(connect: &Connect, topic: &str) {
    let mut stranger = guarded().connect();
    if stranger.handshake(connect).code != 0 {
        return;
    }
    let marker = unique("open/c08");
    stranger.subscribe(&marker, 1);
    for filter in ["user/#", "user/+/#", "user/+/x", "client/#", "client/+/+", topic] {
        stranger.subscribe_code(filter, 1);
    }
    let code = stranger.publish(&Publish::new(topic, "from a stranger").qos(1));
    assert_eq!(code, 0x87, "{connect:?} may write to {topic}");
    let mut owner = guarded().session(&Connect::new(V4, "other").user("bob", "secret"));
    owner.publish(&Publish::new(topic, PRIVATE).qos(1));
    owner.publish(&Publish::new(&marker, &marker).qos(1));
    assert_eq!(stranger.receive_until(&marker), [], "{connect:?} reads {topic}");
    owner.disconnect();
}

#[test]
fn c09_queued_messages_are_not_delivered_to_another_user() {
    for version in [V4, V5] {
        let alices = connect_as("alice", version).persistent();
        let mut alice = guarded().session(&alices);
        // Other tests publish to other topics of the same user.
        alice.subscribe("alice/private", 1);
        alice.disconnect();
        session_of("alice", V4).publish(&Publish::new("alice/private", "for alice").qos(1));
        for clean in [false, true] {
            let bobs = Connect::new(version, &alices.client_id)
                .clean(clean)
                .user("bob", "secret");
            assert_refuses(&bobs);
        }
        let mut alice = guarded().connect();
        let connack = alice.handshake(&alices);
        assert_eq!((connack.code, connack.session_present), (0, true));
        assert_eq!(alice.receive().payload_str(), "for alice");
    }
}

#[test]
fn c10_takeover_by_another_user_is_refused() {
    for version in [V4, V5] {
        let alices = connect_as("alice", version);
        let mut alice = guarded().session(&alices);
        for clean in [false, true] {
            assert_refuses(
                &Connect::new(version, &alices.client_id)
                    .clean(clean)
                    .user("bob", "secret"),
            );
        }
        alice.ping_alone();
        // Another connection of alice takes over the session as usual.
        guarded().session(&alices);
        alice.expect_closed(PATIENCE);
    }
}

#[test]
fn c11_access_rules_apply_to_topic_aliases() {
    let marker = unique("c11");
    let mut bob = bob_watching(&marker);
    let mut alice = session_of("alice", V5);
    // Without a subscriber, the reason code is 0x10.
    alice.subscribe("alice/x", 0);
    let aliased = |topic: &str| {
        Publish::new(topic, "from alice")
            .qos(1)
            .property(prop::u16(prop::TOPIC_ALIAS, 1))
    };
    assert_eq!(alice.publish(&aliased("alice/x")), 0);
    assert_eq!(alice.publish(&aliased("")), 0);
    assert_eq!(alice.publish(&aliased("bob/x")), 0x87);
    let code = alice.publish(&aliased(""));
    println!("the alias once more: {code:#04x}");
    alice.publish(&aliased("alice/y"));
    alice.publish(&aliased(""));
    assert_eq!(seen_before_marker(&mut bob, &mut alice, &marker), []);
}

#[test]
fn c12_ordinary_users_cannot_access_system_topics() {
    let mut alice = session_of("alice", V5);
    for filter in [
        "$SYS/#",
        "$SYS/broker/version",
        "$CONTROL/#",
        "$SYS/+/version",
        "$share/g/$SYS/#",
    ] {
        let code = alice.subscribe_code(filter, 1);
        println!("{filter}: {code:#04x}");
    }
    for topic in ["$CONTROL/dynamic-security/v1", "$SYS/x", "$SYS/broker/version"] {
        let code = alice.publish(&Publish::new(topic, r#"{"commands":[{"command":"listClients"}]}"#).qos(1));
        assert!(code >= 0x80, "{topic} was accepted: {code:#04x}");
    }
    let marker = unique("c12");
    alice.subscribe(format!("shared/{marker}"), 1);
    let mut other = session_of("alice", V4);
    other.publish(&Publish::new(format!("shared/{marker}"), &marker).qos(1));
    assert_eq!(alice.receive_until(&marker), []);
    assert_guarded_alive();
}

#[test]
fn c13_topics_are_compared_byte_by_byte() {
    // [MQTT-4.7.3-4]
    let marker = unique("c13");
    let mut bob = bob_watching(&marker);
    let mut alice = session_of("alice", V5);
    alice.subscribe("alice/#", 1);
    let composed = "alice/caf\u{e9}";
    let decomposed = "alice/cafe\u{301}";
    let mut exact = session_of("alice", V4);
    exact.subscribe(composed, 1);
    let topics = [
        "alice/../bob/x",
        "alice//bob",
        "alice/%2e%2e/bob",
        "alice/./x",
        "alice/",
        "alice//",
        "alice/ x",
        decomposed,
        "alice/\u{202e}x",
        "alice/\u{feff}x",
        composed,
    ];
    for topic in topics {
        // Other tests publish to topics of the same user.
        let payload = format!("{marker} {topic}");
        assert_eq!(alice.publish(&Publish::new(topic, &payload).qos(1)), 0, "{topic:?}");
        let delivery = loop {
            let delivery = alice.receive();
            if delivery.payload_str() == payload {
                break delivery;
            }
        };
        assert_eq!(delivery.topic_str(), topic);
    }
    assert_eq!(exact.receive().topic_str(), composed);
    exact.ping_alone();
    for topic in [
        "Alice/x",
        "ALICE/x",
        "/alice/x",
        " alice/x",
        "alice /x",
        "al\u{ed}ce/x",
        "alicebob/x",
    ] {
        assert_eq!(alice.publish(&Publish::new(topic, "x").qos(1)), 0x87, "{topic:?}");
    }
    assert_eq!(seen_before_marker(&mut bob, &mut alice, &marker), []);
}

#[test]
fn c14_refused_retained_message_is_not_stored() {
    for version in ALL_VERSIONS {
        for qos in 0..=2 {
            let mut alice = session_of("alice", version);
            alice.publish(&Publish::new("bob/r", "planted").qos(qos).retain());
            let marker = unique("c14");
            alice.publish(&Publish::new(format!("shared/{marker}"), "").qos(1));
            let mut bob = bob_watching(&marker);
            let seen = seen_before_marker(&mut bob, &mut alice, &marker);
            assert!(seen.iter().all(|message| message.payload != b"planted"), "{seen:?}");
        }
    }
}

#[test]
fn c14_foreign_retained_message_cannot_be_cleared() {
    let topic = format!("bob/{}", unique("c14"));
    session_of("bob", V4).publish(&Publish::new(&topic, PRIVATE).qos(1).retain());
    session_of("alice", V5).publish(&Publish::new(&topic, "").qos(1).retain());
    let mut bob = session_of("bob", V4);
    bob.subscribe(&topic, 1);
    assert_eq!(bob.receive().payload, PRIVATE);
}

#[test]
fn c15_wrong_passwords_do_not_lock_the_user_out() {
    let mut alice = session_of("alice", V4);
    let start = Instant::now();
    for _ in 0..4 {
        let mut peers: Vec<Peer> = (0..50).map(|_| guarded().connect()).collect();
        peers
            .iter_mut()
            .for_each(|peer| peer.send(&Connect::new(V4, unique("c15")).user("alice", "guess").bytes()));
        for mut peer in peers {
            // A broker that limits login attempts may close the connection without an answer.
            assert!(matches!(
                peer.expect_closed(PATIENCE).connack_code(V4),
                None | Some(4 | 5)
            ));
        }
    }
    println!(
        "{:.0} wrong passwords per second",
        200.0 / start.elapsed().as_secs_f64()
    );
    alice.ping_alone();
    assert_guarded_alive();
}

#[test]
fn c16_share_groups_of_different_filters_are_separate() {
    // [MQTT-4.8.2]
    let mut bob = session_of("bob", V5);
    bob.subscribe("$share/g/bob/stream", 1);
    let mut alice = session_of("alice", V5);
    alice.subscribe("$share/g/alice/stream", 1);
    alice.subscribe_code("$share/g/bob/stream", 1);
    alice.unsubscribe("$share/g/bob/stream");
    alice.unsubscribe("bob/stream");
    let mut publisher = session_of("bob", V4);
    for _ in 0..10 {
        publisher.publish(&Publish::new("bob/stream", PRIVATE).qos(1));
        assert_eq!(bob.receive().topic_str(), "bob/stream");
    }
    alice.ping_alone();
}

#[test]
fn c17_access_rules_apply_to_websocket_clients() {
    let mut socket = guarded().web_socket();
    socket.send(&Connect::new(V5, unique("c17")).bytes());
    assert!(matches!(socket.expect_packet().connack(V5).code, 0x86 | 0x87));
    let mut socket = guarded().web_socket();
    socket.send(&connect_as("alice", V5).bytes());
    assert_eq!(socket.expect_packet().connack(V5).code, 0);
    socket.send(&subscribe(V5, 1, &[("bob/#", 0)], &[]));
    assert!(socket.expect_packet().reason_codes(V5)[0] >= 0x80);
    socket.send(&packet::DISCONNECT);
}

/// Allows all topics, except that a client may not read topics that begin with `secret/`.
fn deny_secrets(client_id: &str) -> Json {
    json!({ "rules": [
        { "permission": "deny", "action": "subscribe", "topics": ["secret/#"], "clients": [client_id] },
        { "permission": "allow", "action": "all", "topics": ["#"] },
    ] })
}

fn unauthorized_deliveries(server: &Server) -> f64 {
    let (_, metrics) = server.http_get("/metrics");
    let begin = "tidewire_broker_messages_dropped_total{reason=\"not_authorized_to_receive\"} ";
    let value = metrics.lines().find_map(|line| line.strip_prefix(begin));
    value.map_or(0.0, |value| value.parse().expect("a number"))
}

#[test]
fn c18_share_group_selects_members_that_may_read_the_topic() {
    const MESSAGES: usize = 20;
    let server = Server::start(&Config::default());
    let api = Api::of(&server);
    api.ok("PUT", "/api/v1/acl", &deny_secrets("limited"));
    for (qos, version) in [(0, V4), (1, V5), (2, V5)] {
        let mut limited = server.session(&Connect::new(version, "limited"));
        limited.subscribe("$share/g/#", qos);
        let mut full = server.session(&Connect::new(version, "full"));
        full.subscribe("$share/g/#", qos);
        let mut publisher = server.session(&Connect::new(version, "publisher"));
        for number in 0..MESSAGES {
            publisher.publish(&Publish::new(format!("secret/{number}"), "x").qos(qos));
        }
        for _ in 0..MESSAGES {
            assert!(full.receive().topic_str().starts_with("secret/"));
        }
        limited.ping_alone();
        assert_eq!(unauthorized_deliveries(&server), 0.0);
        limited.disconnect();
        full.disconnect();
    }
    let mut limited = server.session(&Connect::new(V5, "limited"));
    limited.subscribe("$share/g/#", 1);
    let mut publisher = server.session(&Connect::new(V5, "publisher"));
    for _ in 0..MESSAGES {
        publisher.publish(&Publish::new("secret/x", "x").qos(1));
    }
    limited.ping_alone();
    server.wait_until("every message is counted once", |server| {
        unauthorized_deliveries(server) == MESSAGES as f64
    });
}

/// A right that is revoked while the client is offline, with a restart of the server in the second case.
#[test]
fn c19_message_queued_before_a_revocation_is_not_delivered() {
    for is_restarted in [false, true] {
        let mut server = Server::start(&Config::default());
        let reader = Connect::new(V5, "reader").persistent();
        let mut peer = server.session(&reader);
        for filter in ["secret/#", "open/#", "$share/g/secret/#"] {
            peer.subscribe(filter, 1);
        }
        peer.disconnect();
        let mut publisher = server.session(&Connect::new(V5, "publisher"));
        publisher.publish(&Publish::new("secret/1", "secret").qos(1));
        publisher.publish(&Publish::new("open/1", "open").qos(1));
        publisher.publish(&Publish::new("secret/2", "secret").qos(1).retain());
        publisher.disconnect();
        Api::of(&server).ok("PUT", "/api/v1/acl", &deny_secrets("reader"));
        if is_restarted {
            server.kill();
            server.spawn_again();
            server.wait_until_ready();
        }
        let mut peer = server.connect();
        assert!(peer.handshake(&reader).session_present);
        assert_eq!(peer.receive().payload_str(), "open");
        assert!(peer.subscribe_code("secret/#", 1) >= 0x80);
        peer.ping_alone();
        server.wait_until("both messages are counted", |server| {
            unauthorized_deliveries(server) == 2.0
        });
    }
}
