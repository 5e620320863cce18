//! Enhanced authentication with SCRAM: logins, re-authentication, and attacks on both. The client's side is computed
//! with another library than that of the server.

use std::num::NonZeroU32;
use std::process::Command;

use base64ct::{Base64, Encoding};
use ring::digest::{SHA256, SHA512, digest};
use ring::hmac::{self, HMAC_SHA256, HMAC_SHA512};
use ring::pbkdf2::{self, PBKDF2_HMAC_SHA256, PBKDF2_HMAC_SHA512};
use serde_json::json;

use crate::support::api::Api;
use crate::support::packet::{self, frame};
use crate::support::*;

const SHA_256: &str = "SCRAM-SHA-256";
const SHA_512: &str = "SCRAM-SHA-512";
const NOT_AUTHORIZED: u8 = 0x87;
const BANNED: u8 = 0x8A;
const BAD_METHOD: u8 = 0x8C;
const SERVER_BUSY: u8 = 0x89;
const QUOTA_EXCEEDED: u8 = 0x97;
const ADMINISTRATIVE_ACTION: u8 = 0x98;
const CONTINUE: u8 = 0x18;
const REAUTHENTICATE: u8 = 0x19;

/// The password of alice, bob and root is `pencil`, with the salt of RFC 7677. That of argon is not for SCRAM.
const USERS: &str = "\
alice:$scram-sha-256$i=4096$W22ZaJ0SNY7soEsUEjb6gQ$WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY$wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU
bob:$scram-sha-512$i=4096$W22ZaJ0SNY7soEsUEjb6gQ$6AAub3065EYRmyFpM2RNwqK+eGnrkYuEWbXn19LsEmBqzu8QaCXNc1FwpnX9NhH2hK/60dzj9DoO5DvVkOHbvg$jZHbYjC1aHh0/hKbxyBuGFjDrgjgKTT1esA7awWiKcRZ0o/0b1yWEebBeSVkkCFewf91nLDfKF24mvD5nmE6rA
root:$scram-sha-256$i=4096$W22ZaJ0SNY7soEsUEjb6gQ$WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY$wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU:superuser
argon:$argon2id$v=19$m=64,t=3,p=4$MDEyMzQ1Njc4OWFiY2RlZg$4Mu4gRBo8OfP4AzYha4OYJscMD5Np+B9
";
const RULES: &str = "user alice\ntopic readwrite alice/#\n";
const METHODS: &str = "[access]\nanonymous = \"never\"\nscram = [\"SCRAM-SHA-256\", \"SCRAM-SHA-512\"]\n\
                       password_file = \"{dir}/users\"\nacl_file = \"{dir}/rules\"\n";

fn start(more: &str) -> Server {
    let config = Config::new(format!("{METHODS}{more}"));
    Server::start(&config.file("users", USERS).file("rules", RULES))
}

/// A server on which an address may fail often.
fn lenient() -> Server {
    start("max_login_failures = 1000\n")
}

/// The client's side of an exchange.
struct Exchange {
    method: &'static str,
    first: String,
}

impl Exchange {
    fn new(method: &'static str, user: &str) -> Exchange {
        Exchange {
            method,
            first: format!("n,,n={user},r={}", unique("nonce")),
        }
    }

    fn properties(&self, data: &[u8]) -> Vec<u8> {
        let mut properties = prop::text(prop::AUTHENTICATION_METHOD, self.method);
        properties.extend(prop::text(prop::AUTHENTICATION_DATA, data));
        properties
    }

    fn connect(&self, client_id: &str) -> Connect {
        Connect::new(V5, client_id).property(self.properties(self.first.as_bytes()))
    }

    fn auth(&self, reason: u8, data: &[u8]) -> Vec<u8> {
        let properties = prop::list(&self.properties(data));
        frame(0xF0, &[vec![reason], properties].concat())
    }

    /// Reads AUTH 0x18 and returns the first message of the server.
    #[track_caller]
    fn read_server_first(&self, peer: &mut Peer) -> String {
        let packet = peer.expect(kind::AUTH);
        assert_eq!(packet.body[0], CONTINUE, "{packet:?}");
        let properties = packet.properties();
        assert_eq!(
            properties.bytes(prop::AUTHENTICATION_METHOD),
            Some(self.method.as_bytes())
        );
        let data = properties
            .bytes(prop::AUTHENTICATION_DATA)
            .expect("a message of the server");
        String::from_utf8(data.to_vec()).expect("SCRAM messages are text")
    }

    /// Returns the last message of the client, and the signature that the server must send.
    fn finish(&self, server_first: &str, password: &str) -> (String, String) {
        self.finish_with(server_first, &self.salted_password(server_first, password))
    }

    fn salted_password(&self, server_first: &str, password: &str) -> Vec<u8> {
        let fields: Vec<&str> = server_first.split(',').map(|field| &field[2..]).collect();
        let salt = Base64::decode_vec(fields[1]).expect("a salt");
        let iterations = NonZeroU32::new(fields[2].parse().expect("a number")).expect("some iterations");
        let (pbkdf2, bytes) = match self.method {
            SHA_256 => (PBKDF2_HMAC_SHA256, 32),
            _ => (PBKDF2_HMAC_SHA512, 64),
        };
        let mut salted = vec![0; bytes];
        pbkdf2::derive(pbkdf2, iterations, &salt, password.as_bytes(), &mut salted);
        salted
    }

    /// Like `finish`, without the expensive part.
    fn finish_with(&self, server_first: &str, salted: &[u8]) -> (String, String) {
        let (hmac_of, hash) = match self.method {
            SHA_256 => (HMAC_SHA256, &SHA256),
            _ => (HMAC_SHA512, &SHA512),
        };
        let sign = |key: &[u8], text: &str| {
            let tag = hmac::sign(&hmac::Key::new(hmac_of, key), text.as_bytes());
            tag.as_ref().to_vec()
        };
        let nonce = server_first.split(',').next().expect("a nonce");
        let without_proof = format!("c=biws,{nonce}");
        let messages = format!("{},{server_first},{without_proof}", &self.first[3..]);
        let client_key = sign(salted, "Client Key");
        let signature = sign(digest(hash, &client_key).as_ref(), &messages);
        let proof: Vec<u8> = client_key.iter().zip(&signature).map(|(a, b)| a ^ b).collect();
        let server_signature = sign(&sign(salted, "Server Key"), &messages);
        (
            format!("{without_proof},p={}", Base64::encode_string(&proof)),
            format!("v={}", Base64::encode_string(&server_signature)),
        )
    }

    /// Runs the exchange of a CONNECT and returns CONNACK. Checks the signature of the server.
    #[track_caller]
    fn log_in(&self, peer: &mut Peer, connect: &Connect, password: &str) -> Connack {
        peer.send(&connect.bytes());
        let (last, signature) = self.finish(&self.read_server_first(peer), password);
        peer.send(&self.auth(CONTINUE, last.as_bytes()));
        let connack = peer.expect_packet().connack(V5);
        if connack.code == 0 {
            let data = connack.properties.bytes(prop::AUTHENTICATION_DATA);
            assert_eq!(data, Some(signature.as_bytes()), "{connack:?}");
        } else {
            assert_eq!(connack.properties.get(prop::AUTHENTICATION_DATA), None, "{connack:?}");
            assert_eq!(connack.properties.get(prop::REASON_STRING), None, "{connack:?}");
            assert!(peer.expect_closed(PATIENCE).packets.is_empty());
        }
        connack
    }

    /// Begins an exchange with a CONNECT. Returns the peer and the last message of the client, which is not sent.
    #[track_caller]
    fn begin(&self, server: &Server, password: &str) -> (Peer, Vec<u8>) {
        let mut peer = server.connect().speak(V5);
        peer.send(&self.connect(&unique("scram")).bytes());
        let (last, _) = self.finish(&self.read_server_first(&mut peer), password);
        (peer, self.auth(CONTINUE, last.as_bytes()))
    }

    /// Re-authenticates and returns the reason code of the server's AUTH. Leaves messages in the queue of the peer.
    #[track_caller]
    fn reauthenticate(&self, peer: &mut Peer, password: &str) -> u8 {
        peer.send(&self.auth(REAUTHENTICATE, self.first.as_bytes()));
        let (last, signature) = self.finish(&self.read_server_first(peer), password);
        peer.send(&self.auth(CONTINUE, last.as_bytes()));
        let packet = peer.expect(kind::AUTH);
        let properties = packet.properties();
        assert_eq!(properties.bytes(prop::AUTHENTICATION_DATA), Some(signature.as_bytes()));
        packet.body[0]
    }

    /// Re-authenticates with a password that the server must refuse.
    #[track_caller]
    fn fail_to_reauthenticate(&self, peer: &mut Peer, password: &str) {
        peer.send(&self.auth(REAUTHENTICATE, self.first.as_bytes()));
        let (last, _) = self.finish(&self.read_server_first(peer), password);
        peer.send(&self.auth(CONTINUE, last.as_bytes()));
        peer.expect_disconnect(NOT_AUTHORIZED);
    }
}

/// Logs in with a client id that is not in use, and returns the peer with the code of CONNACK.
#[track_caller]
fn log_in(server: &Server, method: &'static str, user: &str, password: &str) -> (Peer, u8) {
    let exchange = Exchange::new(method, user);
    let mut peer = server.connect().speak(V5);
    let code = exchange
        .log_in(&mut peer, &exchange.connect(&unique("scram")), password)
        .code;
    (peer, code)
}

/// Returns the code with which the server rejects a CONNECT at once.
#[track_caller]
fn rejection(server: &Server, connect: &Connect) -> u8 {
    let mut peer = server.connect();
    let connack = peer.handshake(connect);
    assert_eq!(connack.properties.get(prop::AUTHENTICATION_DATA), None, "{connack:?}");
    assert!(peer.expect_closed(PATIENCE).packets.is_empty());
    connack.code
}

#[test]
fn password_is_proved_without_sending_it() {
    let server = lenient();
    for (method, user) in [(SHA_256, "alice"), (SHA_512, "bob"), (SHA_256, "root")] {
        assert_eq!(log_in(&server, method, user, "pencil").1, 0, "{user}");
        for wrong in ["pencil ", "Pencil", ""] {
            let (_, code) = log_in(&server, method, user, wrong);
            assert_eq!(code, NOT_AUTHORIZED, "{user} {wrong:?}");
        }
        // The same verifier checks a password.
        let password = |password| Connect::new(V5, unique("password")).user(user, password);
        server.session(&password("pencil"));
        assert!(rejection(&server, &password("Pencil")) >= 0x80);
    }
}

/// An unknown user, and one without a verifier for the method, look like a wrong password until the end.
#[test]
fn unknown_users_look_like_wrong_passwords() {
    let server = lenient();
    let server_first = |user: &str, method| {
        let exchange = Exchange::new(method, user);
        let mut peer = server.connect().speak(V5);
        peer.send(&exchange.connect(&unique("scram")).bytes());
        let first = exchange.read_server_first(&mut peer);
        first.split_once(',').expect("a salt").1.to_owned()
    };
    for (user, method) in [
        ("nobody", SHA_256),
        ("argon", SHA_256),
        ("alice", SHA_512),
        ("bob", SHA_256),
    ] {
        assert_eq!(log_in(&server, method, user, "pencil").1, NOT_AUTHORIZED, "{user}");
        let salt = server_first(user, method);
        assert_eq!(salt, server_first(user, method), "the salt of {user} changes");
        assert_eq!(salt.len(), server_first("alice", SHA_256).len(), "{salt}");
        assert!(salt.ends_with(",i=4096"), "{salt}");
    }
    assert_ne!(server_first("nobody", SHA_256), server_first("somebody", SHA_256));
}

#[test]
fn rights_are_those_of_the_user() {
    let server = lenient();
    let publish = |topic: &str| Publish::new(topic, "x").qos(1);
    let (mut alice, code) = log_in(&server, SHA_256, "alice", "pencil");
    assert_eq!(code, 0);
    assert!(alice.publish(&publish("alice/x")) < 0x80);
    assert_eq!(alice.publish(&publish("root/x")), NOT_AUTHORIZED);
    let (mut root, _) = log_in(&server, SHA_256, "root", "pencil");
    assert!(root.publish(&publish("root/x")) < 0x80);
}

#[test]
fn user_name_of_connect_must_be_the_same() {
    let server = lenient();
    let exchange = Exchange::new(SHA_256, "alice");
    let connect = |user: &str| exchange.connect(&unique("scram")).user(user, "pencil");
    for user in ["root", "Alice", ""] {
        assert_eq!(rejection(&server, &connect(user)), NOT_AUTHORIZED, "{user:?}");
    }
    let mut peer = server.connect().speak(V5);
    assert_eq!(exchange.log_in(&mut peer, &connect("alice"), "pencil").code, 0);
    let root = exchange.first.replace("n,,", "n,a=root,");
    let connect = Connect::new(V5, unique("scram")).property(exchange.properties(root.as_bytes()));
    assert_eq!(
        rejection(&server, &connect),
        NOT_AUTHORIZED,
        "an authorization identity"
    );
}

#[test]
fn last_message_cannot_be_replayed() {
    let server = lenient();
    let exchange = Exchange::new(SHA_256, "alice");
    let mut peer = server.connect().speak(V5);
    peer.send(&exchange.connect(&unique("scram")).bytes());
    let (last, _) = exchange.finish(&exchange.read_server_first(&mut peer), "pencil");
    peer.send(&exchange.auth(CONTINUE, last.as_bytes()));
    assert_eq!(peer.expect_packet().connack(V5).code, 0);
    // A second time on the same connection, and on another one.
    peer.send(&exchange.auth(CONTINUE, last.as_bytes()));
    peer.expect_disconnect(0x82);
    let mut thief = server.connect().speak(V5);
    thief.send(&exchange.connect(&unique("scram")).bytes());
    exchange.read_server_first(&mut thief);
    thief.send(&exchange.auth(CONTINUE, last.as_bytes()));
    assert_eq!(thief.expect_closed(PATIENCE).connack_code(V5), Some(NOT_AUTHORIZED));
}

#[test]
fn client_reauthenticates_while_messages_flow() {
    let server = lenient();
    let (mut alice, _) = log_in(&server, SHA_256, "alice", "pencil");
    alice.subscribe("alice/#", 1);
    let (mut root, _) = log_in(&server, SHA_256, "root", "pencil");
    for round in 0..20 {
        root.publish(&Publish::new("alice/x", format!("{round}")).qos(1));
        assert_eq!(Exchange::new(SHA_256, "alice").reauthenticate(&mut alice, "pencil"), 0);
        assert!(alice.publish(&Publish::new("alice/y", "mine").qos(1)) < 0x80);
    }
    root.publish(&Publish::new("alice/x", "end").qos(1));
    let received = alice.receive_until("end");
    let rounds: Vec<_> = received.iter().map(|message| message.payload_str()).collect();
    let from_root: Vec<_> = rounds.iter().filter(|payload| **payload != "mine").collect();
    assert_eq!(from_root.len(), 20, "{rounds:?}");
}

#[test]
fn reauthentication_keeps_the_user() {
    let server = lenient();
    for (user, password) in [("root", "pencil"), ("alice", "wrong"), ("nobody", "x")] {
        let (mut alice, _) = log_in(&server, SHA_256, "alice", "pencil");
        let exchange = Exchange::new(SHA_256, user);
        if user == "alice" {
            exchange.fail_to_reauthenticate(&mut alice, password);
        } else {
            alice.send(&exchange.auth(REAUTHENTICATE, exchange.first.as_bytes()));
            alice.expect_disconnect(NOT_AUTHORIZED);
        }
    }
    // Nor does another method do.
    let (mut alice, _) = log_in(&server, SHA_256, "alice", "pencil");
    let exchange = Exchange::new(SHA_512, "alice");
    alice.send(&exchange.auth(REAUTHENTICATE, exchange.first.as_bytes()));
    alice.expect_disconnect(0x82);
    // A client that logged in with a password has no method.
    let mut plain = server.session(&Connect::new(V5, unique("plain")).user("alice", "pencil"));
    let exchange = Exchange::new(SHA_256, "alice");
    plain.send(&exchange.auth(REAUTHENTICATE, exchange.first.as_bytes()));
    plain.expect_disconnect(0x82);
}

#[test]
fn methods_that_are_not_configured_are_refused() {
    let one = Server::start(
        &Config::new(METHODS.replace(", \"SCRAM-SHA-512\"", ""))
            .file("users", USERS)
            .file("rules", RULES),
    );
    for method in [
        "SCRAM-SHA-1",
        "SCRAM-SHA-512",
        "SCRAM-SHA-256-PLUS",
        "scram-sha-256",
        "PLAIN",
        "",
    ] {
        let exchange = Exchange::new(SHA_256, "alice");
        let connect = Connect::new(V5, unique("scram"))
            .property(prop::text(prop::AUTHENTICATION_METHOD, method))
            .property(prop::text(prop::AUTHENTICATION_DATA, &exchange.first));
        assert_eq!(rejection(&one, &connect), BAD_METHOD, "{method}");
    }
    let none = Server::shared();
    assert_eq!(
        rejection(none, &Exchange::new(SHA_256, "alice").connect("c")),
        BAD_METHOD
    );
}

#[test]
fn garbage_is_refused() {
    let server = lenient();
    let exchange = Exchange::new(SHA_256, "alice");
    let long = format!("{},x={}", exchange.first, "x".repeat(60_000));
    let first_messages: &[&[u8]] = &[
        b"",
        b"\xff\xfe",
        b"n,,",
        b"n,,n=alice",
        b"n,,n=,r=abc",
        b"n,,n=al\0ice,r=abc",
        b"p=tls-exporter,,n=alice,r=abc",
        b"n,,m=x,n=alice,r=abc",
        long.as_bytes(),
    ];
    for message in first_messages {
        let connect = Connect::new(V5, unique("scram")).property(exchange.properties(message));
        assert_eq!(rejection(&server, &connect), NOT_AUTHORIZED, "{:.40?}", message);
    }
    let without_data = Connect::new(V5, unique("scram")).property(prop::text(prop::AUTHENTICATION_METHOD, SHA_256));
    assert_eq!(rejection(&server, &without_data), NOT_AUTHORIZED);
    for seed in 0..20 {
        let mut peer = server.connect().speak(V5);
        peer.send(&exchange.connect(&unique("scram")).bytes());
        let (last, _) = exchange.finish(&exchange.read_server_first(&mut peer), "pencil");
        let message = match seed {
            0 => Vec::new(),
            1 => last.replace("biws", "eSws").into_bytes(),
            2 => last.replace(",p=", ",m=x,p=").into_bytes(),
            3 => last.as_bytes()[..last.len() - 4].to_vec(),
            4 => exchange.first.clone().into_bytes(),
            seed => noise(seed, 1000),
        };
        peer.send(&exchange.auth(CONTINUE, &message));
        let closed = peer.expect_closed(PATIENCE);
        assert_eq!(closed.connack_code(V5), Some(NOT_AUTHORIZED), "{seed}");
    }
    server.assert_alive_as(&Connect::new(V5, unique("alive")).user("root", "pencil"));
}

/// Exchanges that clients begin and leave alone hold neither the address nor other clients.
#[test]
fn thousand_half_open_exchanges_are_harmless() {
    let server = lenient();
    let mut half_open = Vec::new();
    for number in 0..1000 {
        let user = if number % 2 == 0 { "alice" } else { "nobody" };
        let exchange = Exchange::new(SHA_256, user);
        let mut peer = server.connect().speak(V5);
        peer.send(&exchange.connect(&format!("half-{number}")).bytes());
        half_open.push((exchange, peer));
    }
    let mut firsts = Vec::new();
    for (exchange, peer) in &mut half_open {
        firsts.push(exchange.read_server_first(peer));
    }
    assert_eq!(log_in(&server, SHA_256, "alice", "pencil").1, 0);
    // One of them goes on. The others end without a DISCONNECT.
    let (exchange, peer) = &mut half_open[500];
    let (last, _) = exchange.finish(&firsts[500], "pencil");
    peer.send(&exchange.auth(CONTINUE, last.as_bytes()));
    assert_eq!(peer.expect_packet().connack(V5).code, 0);
    drop(half_open);
    assert_eq!(log_in(&server, SHA_256, "alice", "pencil").1, 0);
    let log = server.log();
    assert!(!log.contains("panic"), "{log}");
}

/// An exchange stores its CONNECT. Those of one address may use half of 64 MiB.
#[test]
fn large_exchanges_have_a_limit() {
    let server = lenient();
    let begin = |server: &Server| {
        let exchange = Exchange::new(SHA_256, "alice");
        let mut connect = exchange.connect(&unique("large"));
        for _ in 0..7 {
            connect = connect.property(prop::user("name", &"x".repeat(60_000)));
        }
        let mut peer = server.connect().speak(V5);
        peer.send(&connect.bytes());
        let packet = peer.expect_packet();
        (peer, packet)
    };
    let mut unfinished = Vec::new();
    let rejected = loop {
        let (peer, packet) = begin(&server);
        if packet.kind() != kind::AUTH {
            break packet;
        }
        unfinished.push(peer);
        assert!(unfinished.len() < 100, "the memory of exchanges has no limit");
    };
    assert_eq!(rejected.connack(V5).code, SERVER_BUSY);
    assert!(unfinished.len() > 70, "{}", unfinished.len());
    // Usual exchanges do not count.
    assert_eq!(log_in(&server, SHA_256, "alice", "pencil").1, 0);
    let refused = Api::of(&server).get("/api/v1/refused-clients").to_string();
    assert!(refused.contains("too many enhanced authentications"), "{refused}");
    let (_, metrics) = server.http_get("/metrics");
    assert!(
        metrics.contains("tidewire_broker_limit_rejections_total{limit=\"exchange_bytes\"} 1\n"),
        "{metrics}"
    );
    drop(unfinished);
    server.wait_until("the memory is released", |server| begin(server).1.kind() == kind::AUTH);
}

#[test]
fn client_may_give_up_during_the_exchange() {
    let server = lenient();
    let exchange = Exchange::new(SHA_256, "alice");
    let mut peer = server.connect().speak(V5);
    peer.send(&exchange.connect(&unique("scram")).bytes());
    exchange.read_server_first(&mut peer);
    peer.send(&packet::disconnect(0, &[]));
    assert!(peer.expect_closed(PATIENCE).packets.is_empty());
    // Anything else than AUTH is an error.
    let mut peer = server.connect().speak(V5);
    peer.send(&exchange.connect(&unique("scram")).bytes());
    exchange.read_server_first(&mut peer);
    peer.send(&Publish::new("alice/x", "early").bytes(V5));
    assert!(
        peer.expect_closed(PATIENCE)
            .connack_code(V5)
            .is_some_and(|code| code >= 0x80)
    );
}

#[test]
fn wrong_proofs_lock_out_the_address() {
    let server = start("max_login_failures = 5\nlogin_lockout = \"1h\"\nmax_login_lockout = \"1h\"\n");
    // An unfinished exchange is not a failure.
    for _ in 0..20 {
        let exchange = Exchange::new(SHA_256, "alice");
        let mut peer = server.connect().speak(V5);
        peer.send(&exchange.connect(&unique("scram")).bytes());
        exchange.read_server_first(&mut peer);
    }
    for guess in 0..5 {
        let (_, code) = log_in(&server, SHA_256, "alice", &format!("guess {guess}"));
        assert_eq!(code, NOT_AUTHORIZED, "{guess}");
    }
    let exchange = Exchange::new(SHA_256, "alice");
    assert_eq!(rejection(&server, &exchange.connect(&unique("scram"))), QUOTA_EXCEEDED);
}

#[test]
fn api_creates_verifiers_and_bans_apply() {
    let server = lenient();
    let api = Api::of(&server);
    let created = api.ok(
        "POST",
        "/api/v1/users",
        &json!({"name": "carol", "password": "correct horse"}),
    );
    assert_eq!(created["scheme"], "scram-sha-256");
    assert_eq!(created["is_outdated"], false);
    assert_eq!(log_in(&server, SHA_256, "carol", "correct horse").1, 0);
    let (mut carol, _) = log_in(&server, SHA_256, "carol", "correct horse");
    let (status, problem) = api.call("PUT", "/api/v1/users/carol", &json!({"password": "pässwörd lang"}));
    assert_eq!(status, 422, "{problem:#}");
    let detail = problem.to_string();
    assert!(detail.contains("printable ASCII"), "{detail}");
    api.ok("POST", "/api/v1/banned", &json!({"kind": "user_name", "who": "carol"}));
    carol.expect_disconnect(ADMINISTRATIVE_ACTION);
    let exchange = Exchange::new(SHA_256, "carol");
    assert_eq!(rejection(&server, &exchange.connect(&unique("scram"))), BANNED);
}

/// A user of the API: `carol` with the password `correct horse`.
fn add_carol(api: &Api<'_>) {
    let carol = json!({"name": "carol", "password": "correct horse"});
    api.ok("POST", "/api/v1/users", &carol);
}

#[test]
fn changed_password_counts_at_the_next_exchange() {
    const NEW: &str = "battery staple";
    let server = lenient();
    let api = Api::of(&server);
    add_carol(&api);
    let carol = || Exchange::new(SHA_256, "carol");
    let [(mut informed, _), (mut stale, _)] = [(); 2].map(|()| log_in(&server, SHA_256, "carol", "correct horse"));
    let (mut late, last) = carol().begin(&server, "correct horse");
    api.ok("PUT", "/api/v1/users/carol", &json!({"password": NEW}));
    // This exchange has begun with the old verifier.
    late.send(&last);
    assert_eq!(late.expect_closed(PATIENCE).connack_code(V5), Some(NOT_AUTHORIZED));
    // Connected clients stay until they authenticate again.
    informed.ping_alone();
    stale.ping_alone();
    assert_eq!(carol().reauthenticate(&mut informed, NEW), 0);
    carol().fail_to_reauthenticate(&mut stale, "correct horse");
    assert_eq!(log_in(&server, SHA_256, "carol", "correct horse").1, NOT_AUTHORIZED);
    assert_eq!(log_in(&server, SHA_256, "carol", NEW).1, 0);
    assert_eq!(log_in(&server, SHA_512, "carol", NEW).1, NOT_AUTHORIZED);
    informed.ping_alone();
    let change = json!({"password": "staple battery", "disconnect": true});
    api.ok("PUT", "/api/v1/users/carol", &change);
    informed.expect_disconnect(ADMINISTRATIVE_ACTION);
    assert_eq!(log_in(&server, SHA_256, "carol", NEW).1, NOT_AUTHORIZED);
}

#[test]
fn deleted_user_is_disconnected_and_unknown() {
    let server = lenient();
    let api = Api::of(&server);
    add_carol(&api);
    let (mut connected, _) = log_in(&server, SHA_256, "carol", "correct horse");
    let (mut late, last) = Exchange::new(SHA_256, "carol").begin(&server, "correct horse");
    // The client is in the middle of a re-authentication.
    let exchange = Exchange::new(SHA_256, "carol");
    connected.send(&exchange.auth(REAUTHENTICATE, exchange.first.as_bytes()));
    exchange.read_server_first(&mut connected);
    api.ok("DELETE", "/api/v1/users/carol", &json!(null));
    connected.expect_disconnect(ADMINISTRATIVE_ACTION);
    late.send(&last);
    assert_eq!(late.expect_closed(PATIENCE).connack_code(V5), Some(NOT_AUTHORIZED));
    assert_eq!(log_in(&server, SHA_256, "carol", "correct horse").1, NOT_AUTHORIZED);
    let password = Connect::new(V5, unique("password")).user("carol", "correct horse");
    assert!(rejection(&server, &password) >= 0x80);
}

/// Changes the password file with `tidewire passwd`.
#[track_caller]
fn passwd(server: &Server, options: &[&str], user: &[&str]) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidewire"));
    command.arg("passwd").args(options).arg(server.dir().join("users"));
    let output = command.args(user).output().expect("the program runs");
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn reload_disconnects_users_with_another_verifier() {
    let server = lenient();
    let (mut alice, _) = log_in(&server, SHA_256, "alice", "pencil");
    let (mut bob, _) = log_in(&server, SHA_512, "bob", "pencil");
    let (mut root, _) = log_in(&server, SHA_256, "root", "pencil");
    let rotated = ["alice", "battery staple"];
    passwd(&server, &["-b", "--scram", SHA_256], &rotated);
    passwd(&server, &["-D"], &["bob"]);
    let kill = Command::new("kill").args(["-HUP", &server.pid().to_string()]).status();
    assert!(kill.expect("kill runs").success());
    alice.expect_disconnect(ADMINISTRATIVE_ACTION);
    bob.expect_disconnect(ADMINISTRATIVE_ACTION);
    root.ping_alone();
    let password = |user: &str, password: &str| {
        let connect = Connect::new(V5, unique("password")).user(user, password);
        server.connect().handshake(&connect).code
    };
    for (method, user, offered, is_right) in [
        (SHA_256, "alice", "pencil", false),
        (SHA_256, "alice", "battery staple", true),
        (SHA_512, "bob", "pencil", false),
        (SHA_256, "root", "pencil", true),
    ] {
        let expected = if is_right { 0 } else { NOT_AUTHORIZED };
        assert_eq!(log_in(&server, method, user, offered).1, expected, "{user} {offered}");
        assert_eq!(password(user, offered) == 0, is_right, "{user} {offered}");
    }
}

/// A debug build needs about 1 ms for the two steps of a client. The backlog of the listener has 1,024 places.
#[test]
fn clients_that_reconnect_at_once_are_all_admitted() {
    const CLIENTS: usize = 1000;
    let server = lenient();
    let mut begun: Vec<(Exchange, Peer)> = Vec::new();
    for number in 0..CLIENTS {
        let exchange = Exchange::new(SHA_256, "alice");
        let mut peer = server.connect().speak(V5);
        peer.send(&exchange.connect(&format!("meter-{number}")).bytes());
        begun.push((exchange, peer));
    }
    let mut salted = None;
    let mut signatures = Vec::new();
    for (exchange, peer) in &mut begun {
        let first = exchange.read_server_first(peer);
        // The salt is that of the user, so it is the same for all clients.
        let salted = salted.get_or_insert_with(|| exchange.salted_password(&first, "pencil"));
        let (last, signature) = exchange.finish_with(&first, salted);
        peer.send(&exchange.auth(CONTINUE, last.as_bytes()));
        signatures.push(signature);
    }
    for ((_, peer), signature) in begun.iter_mut().zip(&signatures) {
        let connack = peer.expect_packet().connack(V5);
        let data = connack.properties.bytes(prop::AUTHENTICATION_DATA);
        assert_eq!((connack.code, data), (0, Some(signature.as_bytes())), "{connack:?}");
    }
}
