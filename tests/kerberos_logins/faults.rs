//! Tokens and messages that the server must refuse, and keytabs that it cannot use.

use std::time::Duration;

use super::*;

#[test]
fn garbage_is_refused() {
    let realm = Realm::new();
    let server = realm.server("");
    let token = realm.client("meter-1").start();
    let mut damaged = token.clone();
    damaged[token.len() / 2] ^= 0xFF;
    let malformed = "the Kerberos token is malformed";
    let cases: [(&[u8], &str); 8] = [
        (b"", "the client sent no Kerberos token"),
        (b"x", malformed),
        (
            b"NTLMSSP\0aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
            "the token is not one of Kerberos",
        ),
        (&token[..50], malformed),
        (&noise(1, 700), malformed),
        (&[token.as_slice(), b"more"].concat(), malformed),
        (&damaged, "the Kerberos ticket is damaged"),
        (&noise(2, 48_001), "the Kerberos token is too long"),
    ];
    for (token, reason) in cases {
        assert_eq!(rejection(&server, &connect(token)), NOT_AUTHORIZED, "{reason}");
        expect_reason(&server, reason);
    }
    for seed in 3..40 {
        assert_eq!(
            rejection(&server, &connect(&noise(seed, 300))),
            NOT_AUTHORIZED,
            "{seed}"
        );
    }
    let without_data = Connect::new(V5, unique("kerberos")).property(prop::text(prop::AUTHENTICATION_METHOD, METHOD));
    assert_eq!(rejection(&server, &without_data), NOT_AUTHORIZED);
    // Many failures do not lock out the address.
    assert_eq!(realm.log_in(&server, "meter-1").1, 0);
    let (_, metrics) = server.http_get("/metrics");
    let sample = "tidewire_auth_provider_denials_total{provider=\"kerberos\",reason=\"too_long\"} 1\n";
    assert!(metrics.contains(sample), "{metrics}");
    let log = server.log();
    assert!(!log.contains("panic"), "{log}");
}

#[test]
fn token_is_accepted_once_and_for_a_short_time() {
    let realm = Realm::new();
    let server = realm.server("");
    let mut client = realm.client("meter-1");
    let token = client.start();
    let mut peer = server.connect().speak(V5);
    peer.send(&connect(&token).bytes());
    client.finish(&mut peer, "");
    assert_eq!(peer.expect_packet().connack(V5).code, 0);
    assert_eq!(rejection(&server, &connect(&token)), NOT_AUTHORIZED);
    expect_reason(&server, "the Kerberos token was used before");
    // The age of the token is the subject.
    let strict = Server::start(&realm.config_with_clock_skew(1, ""));
    let old = realm.client("meter-1").start();
    std::thread::sleep(Duration::from_millis(2500));
    assert_eq!(rejection(&strict, &connect(&old)), NOT_AUTHORIZED);
    expect_reason(
        &strict,
        "the clocks of the client and of the server differ too much for Kerberos",
    );
}

#[test]
fn ticket_for_another_service_is_refused() {
    let realm = Realm::new();
    // The keytab has the keys of both services. It begins with two bytes for its version.
    let keytab = |name: &str| std::fs::read(realm.file(name)).expect("dev/kdc has written the keytab");
    let (own, other) = (keytab("mqtt-127.0.0.1.keytab"), keytab("other-127.0.0.1.keytab"));
    let both = [own.as_slice(), &other[2..]].concat();
    std::fs::write(realm.file("mqtt-127.0.0.1.keytab"), both).expect("the keytab can be written");
    let server = realm.server("");
    let token = realm.client("meter-1").ask("start other/127.0.0.1@TIDEWIRE.TEST");
    assert_eq!(rejection(&server, &connect(&token)), NOT_AUTHORIZED);
    expect_reason(&server, "for another principal, or its key is not in the keytab");
    assert_eq!(realm.log_in(&server, "meter-1").1, 0);
}

#[test]
fn messages_must_fit_the_step() {
    let realm = Realm::new();
    let server = realm.server("");
    let begin = || {
        let mut client = realm.client("meter-1");
        let mut peer = server.connect().speak(V5);
        peer.send(&connect(&client.start()).bytes());
        client.ask(&format!("token {}", hex(&read_auth(&mut peer))));
        (client, peer)
    };
    let refused = |peer: &mut Peer| {
        assert_eq!(peer.expect_closed(PATIENCE).connack_code(V5), Some(NOT_AUTHORIZED));
    };
    let (_client, mut peer) = begin();
    peer.send(&auth(CONTINUE, b"not empty"));
    refused(&mut peer);
    expect_reason(&server, "the Kerberos message does not fit the step of the exchange");
    for choice in [&[4, 0, 1, 0][..], &[0, 0, 0, 0], &[3, 0, 0, 0], &[1, 0, 0], &[]] {
        let (mut client, mut peer) = begin();
        peer.send(&auth(CONTINUE, b""));
        client.choose(&mut peer, choice);
        refused(&mut peer);
    }
    expect_reason(&server, "the client wants a security layer of SASL");
    for seed in 0..5 {
        let (_client, mut peer) = begin();
        peer.send(&auth(CONTINUE, b""));
        read_auth(&mut peer);
        peer.send(&auth(CONTINUE, &noise(seed, 32)));
        refused(&mut peer);
    }
    // The message of the server itself.
    let (_client, mut peer) = begin();
    peer.send(&auth(CONTINUE, b""));
    let offer = read_auth(&mut peer);
    peer.send(&auth(CONTINUE, &offer));
    refused(&mut peer);
    assert_eq!(realm.log_in(&server, "meter-1").1, 0);
}

#[test]
fn new_key_needs_no_restart() {
    let realm = Realm::new();
    let server = realm.server("");
    assert_eq!(realm.log_in(&server, "meter-1").1, 0);
    realm.call("key", "mqtt/127.0.0.1");
    assert_eq!(realm.log_in(&server, "meter-1").1, 0);
    let keytab = realm.file("mqtt-127.0.0.1.keytab");
    std::fs::rename(&keytab, realm.file("gone")).expect("the keytab is a file");
    let token = realm.client("meter-1").start();
    assert_eq!(rejection(&server, &connect(&token)), NOT_AUTHORIZED);
    std::fs::rename(realm.file("gone"), &keytab).expect("the file has been moved");
    assert_eq!(realm.log_in(&server, "meter-1").1, 0);
}

#[test]
fn start_without_a_key_is_refused() {
    let realm = Realm::new();
    let mut server = realm.server("");
    let right = realm.file("mqtt-127.0.0.1.keytab");
    for wrong in [realm.file("missing.keytab"), realm.file("meter-1.keytab")] {
        server.kill();
        let mut config = realm.config("");
        config.toml = config.toml.replace(&right, &wrong);
        server.set_config(config);
        let before = server.log().len();
        server.spawn_again();
        server.wait_until("the start is refused", |server| !server.is_running());
        let log = server.log().split_off(before);
        assert!(
            log.contains("access.kerberos.keytab_file") && log.contains(&wrong),
            "{log}"
        );
        assert!(!log.contains("panicked"), "{log}");
    }
}
