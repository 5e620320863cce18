//! MQTT over WebSocket on the API's own port: authorization, client address, TLS, and the end of the login.

use std::io::{self, Read, Write};
use std::sync::Arc;

use mqtt::{QoS, ReasonCode};
use rcgen::{CertifiedKey, generate_simple_self_signed};
use rustls::pki_types::{PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig, StreamOwned};
use serde_json::json;

use super::node::Node;
use super::peer::{Peer, Wire};
use super::web;

const PORT: &str = "/api/v1/mqtt";
const MASK: [u8; 4] = [7, 1, 250, 9];

/// The client's end of a WebSocket of binary frames.
struct WebSocket<S> {
    stream: S,
    payload: Vec<u8>,
}

impl<S: Wire> Read for WebSocket<S> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.payload.is_empty() {
            let mut head = [0; 2];
            self.stream.read_exact(&mut head)?;
            assert!(head[1] < 126, "small frames of a server, unmasked");
            let mut payload = vec![0; head[1].into()];
            self.stream.read_exact(&mut payload)?;
            match head[0] {
                0x82 => self.payload = payload,
                0x88 => return Ok(0),
                other => panic!("frame {other:#x}"),
            }
        }
        let count = self.payload.len().min(buffer.len());
        buffer[..count].copy_from_slice(&self.payload[..count]);
        self.payload.drain(..count);
        Ok(count)
    }
}

impl<S: Wire> Write for WebSocket<S> {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        assert!(buffer.len() < 126);
        let mut frame = vec![0x82, 0x80 | buffer.len() as u8];
        frame.extend(MASK);
        frame.extend(buffer.iter().enumerate().map(|(index, byte)| byte ^ MASK[index % 4]));
        self.stream.write_all(&frame)?;
        Ok(buffer.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

/// Requests the upgrade. Returns the header of the answer, with its body if the upgrade was rejected.
fn ask(stream: &mut impl Wire, host: &str, more: &str) -> String {
    write!(
        stream,
        "GET {PORT} HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n\
         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n{more}\r\n"
    )
    .unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        head.push(byte[0]);
    }
    String::from_utf8(head).unwrap()
}

/// Headers of a web page: the login as a sub-protocol, and the origin.
fn as_page(node: &Node, origin: &str) -> String {
    format!(
        "Origin: {origin}\r\nSec-WebSocket-Protocol: mqtt, bearer.{}\r\n",
        node.token
    )
}

fn open(node: &Node) -> Box<dyn Wire> {
    let mut stream = web::connect(node.address);
    let host = node.address.to_string();
    let head = ask(&mut stream, &host, &as_page(node, &format!("http://{host}")));
    assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
    Box::new(WebSocket {
        stream,
        payload: Vec::new(),
    })
}

fn status(node: &Node, host: &str, more: &str) -> String {
    let head = ask(&mut web::connect(node.address), host, more);
    head.split(' ').nth(1).unwrap().to_owned()
}

#[test]
fn page_under_a_host_name_connects_as_a_normal_client() {
    let node = Node::start_with(3, |config| config.allowed_hosts = vec!["broker.lan".into()]).with_login();
    let mut stream = web::connect(node.address);
    let host = format!("broker.lan:{}", node.address.port());
    let head = ask(&mut stream, &host, &as_page(&node, &format!("http://{host}")));
    assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
    assert!(
        head.to_lowercase().contains("\r\nsec-websocket-protocol: mqtt\r\n"),
        "{head}"
    );
    let wire = Box::new(WebSocket {
        stream,
        payload: Vec::new(),
    });
    let (mut page, reason) = Peer::over(wire, "page", None);
    assert_eq!(reason, ReasonCode::Success);
    page.subscribe("house/#", QoS::AtMostOnce);
    node.peer("meter").publish("house/attic", b"21", false);
    assert_eq!(page.receive().payload, b"21");
    let seen = node.get("/api/v1/clients/page").ok().json();
    assert_eq!((&seen["listener"], &seen["transport"]), (&json!("api"), &json!("ws")));
    assert!(seen["address"].as_str().unwrap().starts_with("127.0.0.1:"), "{seen}");
    let listeners = node.get("/api/v1/listeners").ok().json();
    assert_eq!(listeners[1]["address"], node.address.to_string());
    assert_eq!(listeners[1]["is_api"], true);
    assert_eq!(listeners[1]["connections"], 1);
    drop(page);
    node.wait_for("the end of its connection", || {
        node.net.listeners()[1].current_connections == 0 && node.net.connections() == 0
    });
}

#[test]
fn rejected_upgrade_occupies_no_connection() {
    let node = Node::start_with(1, |config| config.allowed_hosts = vec!["broker.lan".into()]).with_login();
    let token = format!("Authorization: Bearer {}\r\n", node.token);
    let login = format!("{token}Sec-WebSocket-Protocol: mqtt\r\n");
    let by_name = |origin: &str| status(&node, "broker.lan:18083", &as_page(&node, origin));
    for (what, found, expected) in [
        ("a program", status(&node, "localhost", &login), "101"),
        ("the page", by_name("http://broker.lan:18083"), "101"),
        ("a stranger's page", by_name("http://evil.example:18083"), "403"),
        ("a page without a name", by_name("null"), "403"),
        (
            "no login",
            status(&node, "localhost", "Sec-WebSocket-Protocol: mqtt\r\n"),
            "401",
        ),
        ("no sub-protocol", status(&node, "localhost", &token), "400"),
        (
            "another sub-protocol",
            status(
                &node,
                "localhost",
                &format!("{token}Sec-WebSocket-Protocol: tidewire\r\n"),
            ),
            "400",
        ),
        ("another name", status(&node, "evil.example", &login), "421"),
    ] {
        assert_eq!(found, expected, "{what}");
    }
    node.wait_for("the end of both connections", || {
        node.net.listeners()[1].current_connections == 0
    });
    let refused = node.get("/api/v1/listeners").ok().json()[1]["refused"].clone();
    assert_eq!(refused, json!({ "peer_closed": 2 }));
}

#[test]
fn port_limit_includes_handshakes() {
    let node = Node::start(1).with_login();
    let peers: Vec<Peer> = (0..2)
        .map(|n| Peer::over(open(&node), &format!("page-{n}"), None).0)
        .collect();
    let silent = open(&node);
    let host = node.address.to_string();
    let fourth = || status(&node, &host, &as_page(&node, &format!("http://{host}")));
    assert_eq!(fourth(), "503");
    // A client without CONNECT is disconnected, as on every listener.
    node.wait_for("the connection to be closed", || {
        node.net.listeners()[1].current_connections == 2
    });
    drop(silent);
    assert_eq!(fourth(), "101");
    drop(peers);
    let refused = node.get("/api/v1/listeners").ok().json()[1]["refused"].clone();
    assert_eq!(refused["listener_full"], 1, "{refused}");
    assert_eq!(refused["handshake_timeout"], 1, "{refused}");
}

#[test]
fn client_that_sends_before_the_answer_is_disconnected() {
    let node = Node::start(1).with_login();
    let mut stream = web::connect(node.address);
    let (host, early) = (node.address.to_string(), [0x82u8, 0x80, 0, 0, 0, 0]);
    let mut bytes = format!(
        "GET {PORT} HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n\
         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n{}\r\n",
        as_page(&node, &format!("http://{host}"))
    )
    .into_bytes();
    bytes.extend(early);
    stream.write_all(&bytes).unwrap();
    let mut answer = Vec::new();
    // The connection may be reset after the answer, because the early bytes were not read.
    let _ = stream.read_to_end(&mut answer);
    let answer = String::from_utf8_lossy(&answer).into_owned();
    assert!(
        answer.starts_with("HTTP/1.1 101 ") && answer.ends_with("\r\n\r\n"),
        "{answer}"
    );
    node.wait_for("the connection to be closed", || {
        node.net.listeners()[1].current_connections == 0
    });
}

#[test]
fn connection_ends_with_its_login() {
    let node = Node::start(2).with_login();
    let (mut page, _) = Peer::over(open(&node), "page", None);
    node.send("POST", "/api/v1/logout", &json!({})).ok();
    assert_eq!(page.receive_disconnect(), ReasonCode::AdministrativeAction);
    node.wait_for("the connection to be closed", || {
        node.net.listeners()[1].current_connections == 0
    });
}

#[test]
fn local_operator_is_not_a_local_client() {
    let mut node = Node::start(1).with_login();
    node.token = node.token_of_new_user("eve", "operator");
    let (_page, reason) = Peer::over(open(&node), "page", None);
    assert_eq!(reason, ReasonCode::Success);
    let seen = node.get("/api/v1/clients/page").ok().json();
    assert!(seen["address"].as_str().unwrap().starts_with("0.0.0.0:"), "{seen}");
}

#[test]
fn https_upgrade_keeps_the_tls_session() {
    let CertifiedKey { cert, signing_key } = generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let key = PrivateKeyDer::Pkcs8(signing_key.serialize_der().into());
    let server = ServerConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![cert.der().clone()], key)
        .unwrap();
    let node = Node::start_with(2, |config| config.tls = Some(Arc::new(server)));
    let mut roots = RootCertStore::empty();
    roots.add(cert.der().clone()).unwrap();
    let client = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let client = Arc::new(client);
    let connect = || {
        let name = ServerName::try_from("localhost").unwrap();
        let connection = ClientConnection::new(client.clone(), name).unwrap();
        StreamOwned::new(connection, web::connect(node.address))
    };
    let mut stream = connect();
    let body = json!({ "user": "admin", "password": node.password }).to_string();
    write!(
        stream,
        "POST /api/v1/login HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
    .unwrap();
    let token = web::receive(stream).ok().json()["token"].as_str().unwrap().to_owned();
    let mut stream = connect();
    let more = format!("Origin: https://localhost\r\nSec-WebSocket-Protocol: mqtt, bearer.{token}\r\n");
    let head = ask(&mut stream, "localhost", &more);
    assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
    let wire = Box::new(WebSocket {
        stream,
        payload: Vec::new(),
    });
    let (mut page, reason) = Peer::over(wire, "page", None);
    assert_eq!(reason, ReasonCode::Success);
    page.subscribe("house/#", QoS::AtLeastOnce);
    for n in 0..50u8 {
        // More than one TLS record in each direction, independent of the session's shard.
        assert_eq!(
            page.publish_acknowledged("x", &[n; 100], false),
            ReasonCode::NoMatchingSubscribers
        );
    }
    let mut meter = node.peer("meter");
    meter.publish("house/attic", b"21", false);
    assert_eq!(page.receive().payload, b"21");
}
