//! Logins and re-authentications.

use super::*;

#[test]
fn ticket_replaces_the_password() {
    let realm = Realm::new();
    let server = realm.server("");
    let (mut meter, code) = realm.log_in(&server, "meter-1");
    assert_eq!(code, 0);
    assert!(meter.publish(&Publish::new("long/x", "x").qos(1)) < 0x80);
    assert_eq!(meter.publish(&Publish::new("short/x", "x").qos(1)), NOT_AUTHORIZED);
    // Without mutual authentication, GSSAPI has no token for the client.
    let mut client = realm.client("meter-1");
    let token = client.ask(&format!("start {SERVICE} one-way"));
    let mut peer = server.connect().speak(V5);
    peer.send(&connect(&token).bytes());
    client.choose(&mut peer, &NO_LAYER);
    assert_eq!(peer.expect_packet().connack(V5).code, 0);
    let (_, metrics) = server.http_get("/metrics");
    let sample = "tidewire_auth_provider_results_total{provider=\"kerberos\",result=\"allowed\"} 2\n";
    assert!(metrics.contains(sample), "{metrics}");
}

#[test]
fn names_must_be_those_of_the_principal() {
    let realm = Realm::new();
    let server = realm.server("");
    for (user_name, identity, expected) in [
        (Some("meter-1@TIDEWIRE.TEST"), "", 0),
        (None, "meter-1@TIDEWIRE.TEST", 0),
        (None, "meter-1", 0),
        (None, "meter-2", NOT_AUTHORIZED),
        (None, "meter-2@TIDEWIRE.TEST", NOT_AUTHORIZED),
        (None, "meter-1@OTHER.TEST", NOT_AUTHORIZED),
    ] {
        let mut client = realm.client("meter-1");
        let connect = connect(&client.start());
        let connect = match user_name {
            Some(name) => connect.user_name(name),
            None => connect,
        };
        let mut peer = server.connect().speak(V5);
        peer.send(&connect.bytes());
        client.finish(&mut peer, identity);
        assert_eq!(
            peer.expect_packet().connack(V5).code,
            expected,
            "{user_name:?} {identity:?}"
        );
    }
    for user_name in ["meter-1", "meter-2@TIDEWIRE.TEST", ""] {
        let connect = connect(&realm.client("meter-1").start()).user_name(user_name);
        assert_eq!(rejection(&server, &connect), NOT_AUTHORIZED, "{user_name:?}");
    }
    expect_reason(
        &server,
        "the user name of CONNECT or of the session is not that of the Kerberos principal",
    );
}

#[test]
fn realm_can_be_left_out_of_names() {
    let realm = Realm::new();
    let server = realm.server("strip_realm = true\n");
    let (mut meter, code) = realm.log_in(&server, "meter-1");
    assert_eq!(code, 0);
    assert!(meter.publish(&Publish::new("short/x", "x").qos(1)) < 0x80);
    assert_eq!(meter.publish(&Publish::new("long/x", "x").qos(1)), NOT_AUTHORIZED);
}

#[test]
fn client_reauthenticates_with_a_new_ticket() {
    let realm = Realm::new();
    let server = realm.server("");
    let (mut meter, _) = realm.log_in(&server, "meter-1");
    for _ in 0..3 {
        let mut client = realm.client("meter-1");
        meter.send(&auth(REAUTHENTICATE, &client.start()));
        client.finish(&mut meter, "");
        assert_eq!(meter.expect(kind::AUTH).body[0], 0);
        assert!(meter.publish(&Publish::new("long/x", "x").qos(1)) < 0x80);
    }
    // Another principal, and a token that is none.
    let other = realm.client("meter-2").start();
    meter.send(&auth(REAUTHENTICATE, &other));
    meter.expect_disconnect(NOT_AUTHORIZED);
    let (mut meter, _) = realm.log_in(&server, "meter-1");
    meter.send(&auth(REAUTHENTICATE, b"garbage"));
    meter.expect_disconnect(NOT_AUTHORIZED);
}

#[test]
fn expired_ticket_ends_the_session_if_configured() {
    const MAXIMUM_CONNECT_TIME: u8 = 0xA0;
    let realm = Realm::new();
    // The library accepts a ticket until its end and the clock skew: 10 seconds after its start.
    let server = Server::start(&realm.config_with_clock_skew(5, "disconnect_after_expire = true\n"));
    let (cache, keytab) = (format!("FILE:{}", realm.file("short")), realm.file("meter-1.keytab"));
    let kinit = Command::new("kinit")
        .args(["-l", "5s", "-c", &cache, "-k", "-t", &keytab, "meter-1"])
        .env("KRB5_CONFIG", realm.file("krb5.conf"))
        .output();
    let kinit = kinit.expect("kinit is installed: dev/setup.sh kerberos");
    assert!(kinit.status.success(), "{kinit:?}");
    // Otherwise the library would get a new ticket.
    let mut client = Client::new(
        &realm,
        &[
            ("KRB5CCNAME", cache.as_str()),
            ("KRB5_CLIENT_KTNAME", "FILE:/nonexistent"),
        ],
    );
    let mut peer = server.connect().speak(V5);
    peer.send(&connect(&client.start()).bytes());
    client.finish(&mut peer, "");
    assert_eq!(peer.expect_packet().connack(V5).code, 0);
    assert!(peer.publish(&Publish::new("long/x", "x").qos(1)) < 0x80);
    peer.expect_disconnect(MAXIMUM_CONNECT_TIME);
}

/// Each client has a process for GSSAPI, so they are few.
#[test]
fn clients_that_reconnect_at_once_are_all_admitted() {
    let realm = Realm::new();
    let server = realm.server("");
    let mut begun: Vec<(Client, Peer)> = Vec::new();
    for _ in 0..20 {
        let mut client = realm.client("meter-1");
        let mut peer = server.connect().speak(V5);
        peer.send(&connect(&client.start()).bytes());
        begun.push((client, peer));
    }
    for (client, peer) in &mut begun {
        client.finish(peer, "");
    }
    for (_, peer) in &mut begun {
        assert_eq!(peer.expect_packet().connack(V5).code, 0);
    }
}

/// The key in the keytab verifies tickets, so the server asks no other system.
#[test]
fn ticket_is_verified_without_the_distribution_center() {
    let realm = Realm::new();
    let server = realm.server("");
    let mut client = realm.client("meter-1");
    let token = client.start();
    let killed = realm.kdc.call("kill", &[]).expect("dev/kdc runs");
    assert!(killed.status.success(), "{killed:?}");
    let mut peer = server.connect().speak(V5);
    peer.send(&connect(&token).bytes());
    client.finish(&mut peer, "");
    assert_eq!(peer.expect_packet().connack(V5).code, 0);
}

#[test]
fn listener_without_the_provider_refuses_the_method() {
    let realm = Realm::new();
    let token = realm.client("meter-1").start();
    assert_eq!(rejection(Server::shared(), &connect(&token)), 0x8C);
    let server = realm.server("");
    let other_method = Connect::new(V5, unique("kerberos")).property(prop::text(prop::AUTHENTICATION_METHOD, "GSSAPI"));
    assert_eq!(rejection(&server, &other_method), 0x8C);
}
