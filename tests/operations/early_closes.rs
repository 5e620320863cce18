//! Connections that end before CONNECT: each has a log line, an entry of the refused clients, and a counter by reason.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, RootCertStore, Stream};
use serde_json::Value;

use crate::support::api::Api;
use crate::support::*;

/// Sends bytes and reads until the server closes.
fn send(address: SocketAddr, bytes: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(bytes).unwrap();
    let mut answer = Vec::new();
    // The server may reset the connection, because it does not read the rest of a refused request.
    let _ = stream.read_to_end(&mut answer);
    answer
}

/// A client that trusts no CA.
fn distrusting_tls(address: SocketAddr) {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(RootCertStore::empty())
        .with_no_client_auth();
    let mut tls = ClientConnection::new(Arc::new(config), ServerName::try_from("localhost").unwrap()).unwrap();
    let mut stream = TcpStream::connect(address).unwrap();
    Stream::new(&mut tls, &mut stream)
        .write_all(b"x")
        .expect_err("the certificate is not trusted");
}

fn upgrade(origin: &str) -> String {
    format!(
        "GET /mqtt HTTP/1.1\r\nHost: broker\r\nOrigin: {origin}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
         Sec-WebSocket-Protocol: mqtt\r\n\r\n"
    )
}

struct Listeners {
    server: Server,
    tls: SocketAddr,
    proxy: SocketAddr,
    hasty: SocketAddr,
}

fn start() -> Listeners {
    let [tls, proxy, hasty] = [free_port(), free_port(), free_port()];
    let made = rcgen::generate_simple_self_signed(["localhost".to_string()]).unwrap();
    let pem = made.cert.pem() + &made.signing_key.serialize_pem();
    let config = format!(
        "[listeners.tls.default]\nbind = \"{tls}\"\ncert_file = \"{{dir}}/pem\"\nkey_file = \"{{dir}}/pem\"\n\
         [listeners.tcp.proxied]\nbind = \"{proxy}\"\nproxy_protocol = \"on\"\nproxy_protocol_trusted = [\"127.0.0.0/8\"]\n\
         [listeners.tcp.hasty]\nbind = \"{hasty}\"\nhandshake_timeout = \"200ms\"\n"
    );
    Listeners {
        server: Server::start(&Config::new(config).file("pem", pem)),
        tls,
        proxy,
        hasty,
    }
}

#[test]
fn failed_handshakes_are_logged_listed_and_counted_with_their_reason() {
    let node = start();
    let server = &node.server;
    distrusting_tls(node.tls);
    send(node.tls, &Connect::new(V5, "plain").bytes());
    send(server.mqtt(), b"\x16\x03\x01\x00\x05\x01\x00\x00\x01\x00");
    send(server.mqtt(), b"GET / HTTP/1.1\r\nHost: broker\r\n\r\n");
    send(server.websocket(), upgrade("https://evil.example").as_bytes());
    let long = [b"GET /mqtt HTTP/1.1\r\nX: ".to_vec(), vec![b'a'; 9000]].concat();
    assert!(send(server.websocket(), &long).starts_with(b"HTTP/1.1 431 "));
    send(server.websocket(), &Connect::new(V5, "plain").bytes());
    send(node.proxy, &Connect::new(V5, "direct").bytes());
    send(node.hasty, b"\x10");
    let expected = [
        (
            "default",
            "tls",
            "tls_handshake",
            "does not accept the server's certificate",
        ),
        (
            "default",
            "tls",
            "tls_handshake",
            "MQTT without TLS arrived on a TLS listener",
        ),
        (
            "default",
            "tcp",
            "other_protocol",
            "TLS arrived on a listener without TLS",
        ),
        (
            "default",
            "tcp",
            "other_protocol",
            "HTTP arrived on a listener for MQTT over TCP",
        ),
        (
            "default",
            "ws",
            "websocket_handshake",
            "the origin https://evil.example",
        ),
        (
            "default",
            "ws",
            "websocket_handshake",
            "the request head is larger than 8192 bytes (max_request_head",
        ),
        ("default", "ws", "websocket_handshake", "MQTT without WebSocket"),
        (
            "proxied",
            "tcp",
            "proxy_malformed",
            "does not begin with a PROXY header",
        ),
        (
            "hasty",
            "tcp",
            "handshake_timeout",
            "the CONNECT packet is not complete after 200ms",
        ),
    ];
    let api = Api::of(server);
    for (listener, kind, reason, words) in expected {
        let what = format!("{kind}.{listener} {reason}: {words}");
        server.wait_until(&format!("the API lists {what}"), |_| {
            let listed = api.get("/api/v1/refused-clients");
            listed.as_array().unwrap().iter().any(|one| {
                one["listener"] == listener
                    && one["transport"] == kind
                    && one["reason"] == reason
                    && one["reason_code"] == Value::Null
                    && one["detail"].as_str().unwrap().contains(words)
                    && one["address"].as_str().unwrap().starts_with("127.0.0.1:")
            })
        });
        server.wait_until(&format!("the log has {what}"), |server| {
            let label = format!("{kind}.{listener}");
            server.log().lines().any(|line| {
                line.contains("ended before CONNECT")
                    && [words, reason, &label, "127.0.0.1:"]
                        .iter()
                        .all(|part| line.contains(part))
            })
        });
        let (_, metrics) = server.http_get("/metrics");
        let counted = metrics.lines().any(|line| {
            line.starts_with("tidewire_listener_connections_refused_total")
                && line.contains(&format!("listener=\"{listener}\""))
                && line.contains(&format!("reason=\"{reason}\""))
                && !line.ends_with(" 0")
        });
        assert!(counted, "{what} in {metrics}");
    }
}

#[test]
fn equal_failures_are_one_entry_and_one_log_line() {
    let node = start();
    let api = Api::of(&node.server);
    for _ in 0..30 {
        send(node.proxy, b"\x10\x00");
    }
    node.server.wait_until("all are counted in one entry", |_| {
        let listed = api.get("/api/v1/refused-clients");
        let listed = listed.as_array().unwrap();
        listed.len() == 1 && listed[0]["times"] == 30
    });
    let lines = || node.server.log().matches("ended before CONNECT").count();
    // The server writes its log from another thread.
    node.server.wait_until("the log has a line", |_| lines() > 0);
    assert_eq!(lines(), 1, "{}", node.server.log());
}
