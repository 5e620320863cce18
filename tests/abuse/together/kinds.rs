//! The attacks. A round sends one burst and ends by itself. The server may reject or close everything.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::thread;
use std::time::Duration;

use serde_json::{Value as Json, json};

use super::add_user;
use crate::devices::rest::Rest;
use crate::devices::scripts::put_script;
use crate::devices::world::login;
use crate::support::packet::{self, string, subscribe};
use crate::support::websocket::{WebSocket, frame};
use crate::support::*;

/// The address of attackers that guess, so that the normal clients are not locked out. Those use 127.0.0.1.
const GUESSER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

/// A round waits this long for each answer. The server may answer nothing.
const ANSWER: Duration = Duration::from_millis(500);

/// The attacked server, and what the attacks need there.
pub struct Scene<'a> {
    pub server: &'a Server,
    /// A user of a customer without devices.
    customer: Rest,
    /// A device of the customer's tenant.
    device: String,
}

impl<'a> Scene<'a> {
    pub fn prepare(server: &'a Server) -> Scene<'a> {
        add_user(server, "ann");
        let tenant = Rest::login(server);
        let device = tenant.device("Attacker", "ATTACKER");
        put_script(&tenant, "while (true) {}");
        Scene {
            server,
            device,
            customer: Rest::login_as(server, "customer"),
        }
    }

    /// Opens a session, unless the server rejects it.
    fn open(&self, connect: &Connect) -> Option<Peer> {
        let mut peer = self.server.connect().speak(connect.version);
        peer.try_send(&connect.bytes()).ok()?;
        match peer.read(PATIENCE) {
            Reading::Packet(packet) if packet.connack(connect.version).code == 0 => Some(peer),
            _ => None,
        }
    }

    fn guest(&self, version: Version) -> Option<Peer> {
        self.open(&Connect::new(version, unique("attacker")))
    }
}

pub struct Kind {
    pub name: &'static str,
    pub round: fn(&Scene<'_>),
}

macro_rules! kinds {
    ($($name:ident),* $(,)?) => {
        &[$(Kind { name: stringify!($name), round: $name }),*]
    };
}

pub const KINDS: &[Kind] = kinds![
    half_open_connections,
    declared_lengths,
    connection_storm,
    abandoned_sessions,
    slow_consumer,
    offline_queue,
    unreleased_qos_2,
    topic_aliases,
    deep_topics,
    many_filters,
    retained_messages,
    takeovers,
    malformed_packets,
    large_wills,
    unread_answers,
    websocket_frames,
    guessed_passwords,
    guessed_tokens,
    forbidden_topics,
    expensive_rule,
    expensive_pattern,
    share_group_churn,
    delayed_messages,
    http_requests,
    http_logins,
    tenant_scripts,
    foreign_entities,
];

// --- Connections and packets

fn half_open_connections(scene: &Scene<'_>) {
    let mut peers: Vec<Peer> = (0..50).map(|_| scene.server.connect()).collect();
    for (index, peer) in peers.iter_mut().enumerate() {
        let _ = peer.try_send([&[0x10][..], &[0x10, 0xFF], &[]][index % 3]);
    }
    thread::sleep(ANSWER);
}

fn declared_lengths(scene: &Scene<'_>) {
    let mut peers: Vec<Peer> = (0..10).filter_map(|_| scene.guest(V4)).collect();
    let start = [&[0x30, 0xFF, 0xFF, 0xFF, 0x7F][..], &string("declared"), &[b'x'; 1024]].concat();
    for peer in &mut peers {
        let _ = peer.try_send(&start);
    }
    thread::sleep(ANSWER);
}

fn connection_storm(scene: &Scene<'_>) {
    let peers: Vec<Peer> = (0..30).map(|_| scene.server.connect()).collect();
    for mut peer in peers {
        let connect = Connect::new(V4, unique("storm")).bytes();
        let _ = peer.try_send(&[connect, packet::DISCONNECT.to_vec()].concat());
    }
}

/// Packets of random bytes, and packets that violate the protocol.
fn malformed_packets(scene: &Scene<'_>) {
    let seed = u64::from(std::process::id());
    for (number, bytes) in [
        noise(seed, 2048),
        vec![0x00, 0x00],
        vec![0x36, 0x05, 0, 1, b'a', 0, 0],
        vec![0x82, 0x02, 0, 0],
        vec![0x30, 0x80, 0x80, 0x80, 0x80, 0x01],
        vec![0x62, 0x02, 0xFF, 0xFF],
        Connect::new(V5, "second").bytes(),
        [&[0x30, 0x06, 0, 4][..], &[0xED, 0xA0, 0x80, 0x00]].concat(),
    ]
    .into_iter()
    .enumerate()
    {
        let version = [V4, V5][number % 2];
        if let Some(mut peer) = scene.guest(version) {
            let _ = peer.try_send(&bytes);
            let _ = peer.read(ANSWER);
        }
    }
    let mut stranger = scene.server.connect();
    let _ = stranger.try_send(&noise(seed + 1, 4096));
    let _ = stranger.read(ANSWER);
}

fn unread_answers(scene: &Scene<'_>) {
    let Some(mut peer) = scene.guest(V5) else { return };
    peer.send_until_blocked(&packet::PINGREQ.repeat(20_000), ANSWER);
}

fn websocket_frames(scene: &Scene<'_>) {
    const MASK: Option<[u8; 4]> = Some([1, 2, 3, 4]);
    for bytes in [
        frame(true, 0x1, MASK, b"text"),
        frame(true, 0x2, None, &packet::PINGREQ),
        frame(true, 0x3, MASK, b"reserved"),
        frame(false, 0x9, MASK, b"ping"),
        [&[0x82, 0xFF, 0x7F][..], &[0xFF; 7], &[0; 4]].concat(),
    ] {
        let mut socket = WebSocket::connect(scene.server.websocket());
        socket.send_raw(websocket::upgrade_request(Some("mqtt"), "").as_bytes());
        if socket.read_response().is_some_and(|response| response.status == 101) {
            let _ = socket.try_send_raw(&bytes);
        }
    }
    let mut socket = WebSocket::connect(scene.server.websocket());
    let _ = socket.try_send_raw(&noise(7, 4096));
}

// --- Sessions, queues and topics

fn abandoned_sessions(scene: &Scene<'_>) {
    for _ in 0..20 {
        let connect = Connect::new(V5, unique("abandoned")).persistent();
        let Some(mut peer) = scene.open(&connect) else { continue };
        let filters: Vec<(String, u8)> = (0..20).map(|level| (format!("abandoned/{level}/#"), 1)).collect();
        let _ = peer.try_send(&subscribe(V5, 1, &filters, &[]));
        peer.abort();
    }
}

/// A client that reads nothing receives 4 MiB.
fn slow_consumer(scene: &Scene<'_>) {
    let topic = unique("flood");
    let (Some(mut slow), Some(mut publisher)) = (scene.guest(V4), scene.guest(V4)) else {
        return;
    };
    let _ = slow.try_send(&subscribe(V4, 1, &[(&topic, 1)], &[]));
    let message = vec![b'x'; 16 * 1024];
    for number in 0..256 {
        let publish = Publish::new(&topic, &message).qos((number % 2) as u8).id(number + 1);
        if publisher.try_send(&publish.bytes(V4)).is_err() {
            break;
        }
    }
    let _ = publisher.read(ANSWER);
}

fn offline_queue(scene: &Scene<'_>) {
    let topic = unique("offline");
    let Some(mut absent) = scene.open(&Connect::new(V5, unique("offline")).persistent()) else {
        return;
    };
    let _ = absent.try_send(&subscribe(V5, 1, &[(&topic, 1)], &[]));
    let _ = absent.read(ANSWER);
    absent.abort();
    let Some(mut publisher) = scene.guest(V5) else { return };
    for number in 1..=500 {
        let publish = Publish::new(&topic, [b'x'; 1024]).qos(1).id(number);
        if publisher.try_send(&publish.bytes(V5)).is_err() {
            return;
        }
    }
    let _ = publisher.read(ANSWER);
}

fn unreleased_qos_2(scene: &Scene<'_>) {
    let Some(mut peer) = scene.guest(V5) else { return };
    for number in 1..=u16::from(u8::MAX) {
        let publish = Publish::new("unreleased", "x").qos(2).id(number);
        if peer.try_send(&publish.bytes(V5)).is_err() {
            return;
        }
    }
    let _ = peer.read(ANSWER);
}

fn topic_aliases(scene: &Scene<'_>) {
    let Some(mut peer) = scene.guest(V5) else { return };
    for alias in 1..=100 {
        let topic = format!("alias/{alias}/{}", "x".repeat(1000));
        let publish = Publish::new(topic, "x").property(prop::u16(prop::TOPIC_ALIAS, alias));
        if peer.try_send(&publish.bytes(V5)).is_err() {
            return;
        }
    }
    let _ = peer.read(ANSWER);
}

fn deep_topics(scene: &Scene<'_>) {
    let Some(mut peer) = scene.guest(V4) else { return };
    let _ = peer.try_send(&subscribe(V4, 1, &[("+/".repeat(100) + "#", 0)], &[]));
    let _ = peer.try_send(&Publish::new("a/".repeat(100), "x").bytes(V4));
    let _ = peer.try_send(&subscribe(V4, 2, &[("+/".repeat(20_000) + "#", 0)], &[]));
    let _ = peer.try_send(&Publish::new("/".repeat(30_000), "x").bytes(V4));
    let _ = peer.read(ANSWER);
}

fn many_filters(scene: &Scene<'_>) {
    let Some(mut peer) = scene.guest(V5) else { return };
    let root = unique("filters");
    let filters: Vec<(String, u8)> = (0..2000).map(|number| (format!("{root}/+/{number}/#"), 0)).collect();
    let _ = peer.try_send(&subscribe(V5, 1, &filters, &[]));
    let _ = peer.read(PATIENCE);
}

/// Retains messages, reads them all, and deletes them.
fn retained_messages(scene: &Scene<'_>) {
    let Some(mut peer) = scene.guest(V5) else { return };
    let root = unique("retained");
    for payload in [&[b'x'; 1024][..], b""] {
        for number in 0..200 {
            let publish = Publish::new(format!("{root}/{number}"), payload).retain();
            if peer.try_send(&publish.bytes(V5)).is_err() {
                return;
            }
        }
        let _ = peer.try_send(&subscribe(V5, 1, &[(format!("{root}/#"), 0)], &[]));
    }
    while let Reading::Packet(_) = peer.read(ANSWER) {}
}

fn takeovers(scene: &Scene<'_>) {
    let name = unique("takeover");
    let mut peers: Vec<Peer> = (0..20).map(|_| scene.server.connect()).collect();
    for peer in &mut peers {
        let _ = peer.try_send(&Connect::new(V5, &name).bytes());
    }
    let _ = peers.pop().map(|mut last| last.read(ANSWER));
}

fn large_wills(scene: &Scene<'_>) {
    for _ in 0..5 {
        let will = Will::new("will", vec![b'x'; 60_000]).qos(1);
        if let Some(peer) = scene.open(&Connect::new(V4, unique("will")).will(will)) {
            peer.abort();
        }
    }
}

/// Members of a share group take messages and never acknowledge them.
fn share_group_churn(scene: &Scene<'_>) {
    for _ in 0..5 {
        let (Some(mut member), Some(mut publisher)) = (scene.guest(V5), scene.guest(V5)) else {
            return;
        };
        let _ = member.try_send(&subscribe(V5, 1, &[("$share/churn/churn/#", 1)], &[]));
        let _ = member.read(ANSWER);
        for number in 1..=20 {
            let _ = publisher.try_send(&Publish::new("churn/x", "x").qos(1).id(number).bytes(V5));
        }
        let _ = publisher.read(ANSWER);
        member.abort();
    }
}

fn delayed_messages(scene: &Scene<'_>) {
    let Some(mut peer) = scene.guest(V5) else { return };
    for number in 1..=100 {
        let topic = format!("$delayed/1/{}", unique("delayed"));
        let _ = peer.try_send(&Publish::new(topic, [b'x'; 512]).qos(1).id(number).bytes(V5));
    }
    let _ = peer.read(ANSWER);
}

// --- Access

fn from_guesser(to: SocketAddr) -> TcpStream {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).expect("a socket");
    let source = SocketAddr::from((GUESSER, 0)).into();
    socket.bind(&source).expect("each 127.0.0.0/8 address is local");
    socket.connect(&to.into()).expect("the server listens");
    TcpStream::from(socket)
}

fn guess(scene: &Scene<'_>, connect: &Connect) {
    let mut peer = Peer::over(from_guesser(scene.server.mqtt()));
    let _ = peer.try_send(&connect.bytes());
    if let Reading::Packet(packet) = peer.read(PATIENCE) {
        assert_ne!(packet.connack(connect.version).code, 0, "a wrong guess was accepted");
    }
}

fn guessed_passwords(scene: &Scene<'_>) {
    for _ in 0..5 {
        guess(
            scene,
            &Connect::new(V4, unique("guess")).user("ann", unique("password")),
        );
    }
}

fn guessed_tokens(scene: &Scene<'_>) {
    for _ in 0..5 {
        guess(scene, &Connect::new(V4, unique("guess")).user_name(unique("token")));
    }
}

fn forbidden_topics(scene: &Scene<'_>) {
    let Some(mut peer) = scene.guest(V5) else { return };
    let filters = [
        "secret/#",
        "$share/g/secret/#",
        "$exclusive/secret/1",
        "$SYS/brokers/+/clients/#",
        "$queue/secret/1",
    ];
    for (index, filter) in filters.iter().enumerate() {
        let id = index as u16 + 1;
        let _ = peer.try_send(&subscribe(V5, id, &[(filter, 1)], &[]));
        if let Reading::Packet(packet) = peer.read(PATIENCE) {
            assert!(
                packet.reason_codes(V5).iter().all(|code| *code >= 0x80),
                "{filter}: {packet:?}"
            );
        }
    }
    for topic in [
        "secret/1",
        "$SYS/brokers",
        "$CONTROL/dynamic-security/v1",
        "$delayed/1/secret/1",
    ] {
        if peer.try_send(&Publish::new(topic, "x").qos(1).id(9).bytes(V5)).is_err() {
            return;
        }
        if let Reading::Packet(packet) = peer.read(PATIENCE) {
            assert!(
                packet.kind() != kind::PUBACK || packet.reason() >= 0x80,
                "{topic}: {packet:?}"
            );
        }
    }
}

// --- Rules, scripts and HTTP

fn expensive_rule(scene: &Scene<'_>) {
    let Some(mut peer) = scene.guest(V5) else { return };
    let publish = Publish::new("attacked/rule", r#"{"n": 1000000}"#).qos(1).id(1);
    let _ = peer.try_send(&publish.bytes(V5));
    let _ = peer.read(PATIENCE);
}

fn expensive_pattern(scene: &Scene<'_>) {
    let Some(mut peer) = scene.guest(V5) else { return };
    let payload = format!("{{\"x\": \"{}\"}}", "<".repeat(200_000));
    let publish = Publish::new("attacked/pattern", payload).qos(1).id(1);
    let _ = peer.try_send(&publish.bytes(V5));
    let _ = peer.read(PATIENCE);
}

/// A device whose messages start an endless script.
fn tenant_scripts(scene: &Scene<'_>) {
    let Some(mut device) = scene.open(&login(V4, "ATTACKER")) else {
        return;
    };
    for number in 1..=10 {
        let publish = Publish::new("v1/devices/me/telemetry", r#"{"v": 1}"#).qos(1).id(number);
        let _ = device.try_send(&publish.bytes(V4));
    }
    let _ = device.read(ANSWER);
}

fn http_requests(scene: &Scene<'_>) {
    let deep = "[".repeat(100_000);
    let requests = [
        "GET / HTTP/1.1\r\nHost: localhost\r\nX: ".to_owned(),
        format!("GET /{} HTTP/1.1\r\nHost: localhost\r\n\r\n", "x".repeat(20_000)),
        "GET /api/v1/clients HTTP/1.1\r\nHost: evil.example\r\n\r\n".to_owned(),
        "POST /api/v1/login HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n\r\n".to_owned(),
        "POST /api/v1/login HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"
            .to_owned(),
        format!(
            "POST /api/auth/login HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{deep}",
            deep.len()
        ),
        "GET /api/v1/../../etc/passwd HTTP/1.1\r\nHost: localhost\r\n\r\n".to_owned(),
    ];
    for request in requests {
        let mut stream = from_guesser(scene.server.http());
        stream
            .set_read_timeout(Some(ANSWER))
            .expect("a socket accepts a timeout");
        let _ = stream.write_all(request.as_bytes());
        let mut answer = [0; 4096];
        let _ = stream.read(&mut answer);
        assert!(
            !answer.starts_with(b"HTTP/1.1 200") || request.starts_with("GET /x"),
            "{request:.100} was accepted"
        );
    }
}

fn http_logins(scene: &Scene<'_>) {
    let password = unique("guess");
    for (path, body) in [
        ("/api/v1/login", json!({"user": "admin", "password": password})),
        (
            "/api/auth/login",
            json!({"username": "tenant@thingsboard.org", "password": password}),
        ),
    ] {
        let body = body.to_string();
        let length = body.len();
        let mut stream = from_guesser(scene.server.http());
        stream
            .set_read_timeout(Some(PATIENCE))
            .expect("a socket accepts a timeout");
        let _ = write!(
            stream,
            "POST {path} HTTP/1.0\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
        );
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        assert!(
            !answer.starts_with(b"HTTP/1.0 200") && !answer.starts_with(b"HTTP/1.1 200"),
            "a wrong password was accepted"
        );
    }
}

/// A customer user reads entities of the tenant.
fn foreign_entities(scene: &Scene<'_>) {
    let device = &scene.device;
    for path in [
        format!("/api/device/{device}"),
        format!("/api/plugins/telemetry/DEVICE/{device}/values/timeseries"),
        "/api/ruleChains?pageSize=10&page=0".to_owned(),
        "/api/tenants?pageSize=10&page=0".to_owned(),
    ] {
        let (status, answer) = scene.customer.call("GET", &path, &Json::Null);
        assert!(status >= 400, "{path}: {status} {answer}");
    }
}
