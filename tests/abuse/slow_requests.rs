//! Clients of the HTTP API occupy it with slow requests: bodies that never end, and devices that wait.
//!
//! Before an address had a share of the concurrent requests, 64 logins with a slow body from one address stopped the
//! API, the metrics and the HTTP interface of devices for all others. So did 64 requests of one device that waited for
//! a call.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};

use serde_json::{Value as Json, json};

use crate::devices::rest::Rest;
use crate::support::*;

/// The attacker's address. Other clients use 127.0.0.1.
const ATTACKER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

/// More than the requests that the server processes at the same time, and fewer than the connections of an address.
const REQUESTS: usize = 100;

/// Slow requests: more than the share of an address, and too few to reach its limit of connections.
const SLOW_REQUESTS: usize = 60;

/// Half of the requests that the server processes at the same time.
const SHARE: usize = 32;

/// Begins a request with a new connection.
fn begin(server: &Server, request: &str) -> TcpStream {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).expect("a socket");
    let source = SocketAddr::from((ATTACKER, 0)).into();
    socket.bind(&source).expect("each 127.0.0.0/8 address is local");
    socket.connect(&server.http().into()).expect("the API listens");
    let mut stream = TcpStream::from(socket);
    stream.write_all(request.as_bytes()).expect("the API accepts a request");
    stream
}

fn refused_requests(server: &Server) -> u64 {
    let (status, text) = server.http_get("/metrics");
    assert_eq!(status, 200, "the metrics are available to others: {text}");
    let refused = text
        .lines()
        .find_map(|line| line.strip_prefix("tidewire_api_requests_refused_total "));
    refused
        .and_then(|value| value.parse().ok())
        .expect("a counter of refused requests")
}

#[test]
fn slow_bodies_of_one_address_leave_the_api_to_others() {
    let server = Server::start(&Config::new("[platform]\nenabled = true\ndemo = true\n"));
    let rest = Rest::login(&server);
    rest.device("Device", "DEVICE");
    for path in ["/api/auth/login", "/api/v1/login", "/api/v1/DEVICE/telemetry"] {
        let before = refused_requests(&server);
        let request = format!(
            "POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{{"
        );
        let slow: Vec<TcpStream> = (0..SLOW_REQUESTS).map(|_| begin(&server, &request)).collect();
        server.wait_until("the requests beyond the share are refused", |server| {
            refused_requests(server) >= before + (SLOW_REQUESTS - SHARE) as u64
        });
        rest.ok("GET", "/api/auth/user", &Json::Null);
        let (status, _) = rest.raw("POST", "/api/v1/DEVICE/telemetry", &json!({"v": 1}).to_string());
        assert_eq!(status, 200, "{path}");
        drop(slow);
    }
}

#[test]
fn waiting_devices_do_not_occupy_the_api() {
    let server = Server::start(&Config::new("[platform]\nenabled = true\ndemo = true\n"));
    let rest = Rest::login(&server);
    let device = rest.device("Device", "DEVICE");
    for number in 0..REQUESTS {
        rest.device(&format!("Waiting {number}"), &format!("WAITING{number}"));
    }
    let before = refused_requests(&server);
    let wait = |token: &str| {
        let request =
            format!("GET /api/v1/{token}/rpc?timeout=15000 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        begin(&server, &request)
    };
    let waiting: Vec<TcpStream> = (0..REQUESTS).map(|number| wait(&format!("WAITING{number}"))).collect();
    let mut called = wait("DEVICE");
    let call = json!({"method": "blink", "params": {}, "timeout": 10_000});
    let path = format!("/api/rpc/oneway/{device}");
    // The call fails until the device waits for it.
    server.wait_until("the device is called", |_| rest.call("POST", &path, &call).0 == 200);
    let mut text = String::new();
    called.read_to_string(&mut text).expect("the device gets an answer");
    assert!(text.contains("blink"), "{text}");
    assert_eq!(
        refused_requests(&server),
        before,
        "a waiting device counts as a request"
    );
    drop(waiting);
}
