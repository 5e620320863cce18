//! Limits against hostile or slow clients.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use super::node::Node;
use super::web;

#[test]
fn malformed_requests_are_rejected_without_effect() {
    let node = Node::start(1).with_login();
    let raw = |bytes: &[u8]| {
        let mut stream = web::connect(node.address);
        stream.write_all(bytes).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut answer = Vec::new();
        // A reset is also accepted as an answer.
        let _ = stream.read_to_end(&mut answer);
        String::from_utf8_lossy(&answer).into_owned()
    };
    for bytes in [
        &b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"[..],
        b"\x10\x0f\x00\x04MQTT\x05\x02\x00\x00\x00\x00\x02ab",
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: x\r\n\r\n",
        b"POST /api/v1/login HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
        b"GET /\x00 HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /api/v1/clients/%ff HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
    ] {
        let answer = raw(bytes);
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 4"), "{answer}");
        assert_eq!(node.get("/livez").status, 200);
    }
    assert_eq!(node.get("/api/v1/clients/%ff").problem(400)["status"], 400);
}

#[test]
fn missing_host_is_rejected_on_loopback() {
    let node = Node::start(1);
    let mut stream = web::connect(node.address);
    stream.write_all(b"GET /livez HTTP/1.0\r\n\r\n").unwrap();
    web::receive(stream).problem(421);
}

#[test]
fn bodies_are_bounded_and_must_be_json() {
    let node = Node::start(1).with_login();
    let huge = format!("{{\"user\": \"{}\"}}", "x".repeat(5000));
    node.request("POST", "/api/v1/login", &huge).problem(413);
    let login = "{\"user\": \"a\", \"password\": \"b\"}";
    for content_type in ["text/plain", "application/x-www-form-urlencoded", ""] {
        let headers = [("Content-Type", content_type)];
        web::request(node.address, "POST", "/api/v1/login", &headers, login).problem(415);
    }
    let headers = [("Content-Type", "application/json; charset=utf-8")];
    web::request(node.address, "POST", "/api/v1/login", &headers, login).problem(401);
    let deep = format!("{{\"user\": {}", "[".repeat(3000));
    node.request("POST", "/api/v1/login", &deep).problem(400);
    let long = format!("/api/v1/clients/{}", "x".repeat(61 * 1024));
    node.get(&long).problem(414);
}

#[test]
fn oversized_header_is_rejected() {
    let node = Node::start(1);
    let mut stream = web::connect(node.address);
    let header = format!(
        "GET / HTTP/1.1\r\nHost: localhost\r\nX: {}\r\n\r\n",
        "x".repeat(200 * 1024)
    );
    // The server may close the connection during this write.
    let _ = stream.write_all(header.as_bytes());
    let mut answer = String::new();
    let _ = stream.read_to_string(&mut answer);
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 431"), "{answer}");
}

/// Reads until the end or a reset, and returns how long that took.
fn cut_after(mut stream: impl Read) -> Duration {
    let started = Instant::now();
    let mut sink = [0; 65536];
    loop {
        match stream.read(&mut sink) {
            Ok(0) => return started.elapsed(),
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::ConnectionReset => return started.elapsed(),
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn slow_headers_and_bodies_time_out() {
    let node = Node::start_with(1, |config| {
        config.limits.header_timeout = Duration::from_millis(300);
        config.limits.body_timeout = Duration::from_millis(300);
    });
    let mut header = web::connect(node.address);
    header.write_all(b"GET /livez HTTP/1.1\r\nHost: local").unwrap();
    assert!(cut_after(header) < Duration::from_secs(20));
    let silent = web::connect(node.address);
    assert!(cut_after(silent) < Duration::from_secs(20));
    let mut idle = web::connect(node.address);
    idle.write_all(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
        .unwrap();
    assert!(cut_after(idle) < Duration::from_secs(20), "idle keep-alive connection");
    let mut body = web::connect(node.address);
    body.write_all(b"POST /api/v1/login HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: 50\r\n\r\n{").unwrap();
    web::receive(body).problem(408);
}

#[test]
fn client_that_does_not_read_is_disconnected() {
    let node = Node::start_with(1, |config| {
        config.limits.write_stall_timeout = Duration::from_millis(300)
    });
    let mut stream = web::connect(node.address);
    // The answers of these pipelined requests exceed the buffers of the sockets.
    let ask = b"GET /api/openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n".repeat(50);
    let deadline = Instant::now() + Duration::from_secs(30);
    stream.set_nonblocking(true).unwrap();
    loop {
        assert!(Instant::now() < deadline, "the connection was not closed");
        match stream.write(&ask) {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => std::thread::yield_now(),
            Err(_) => break,
        }
    }
    assert_eq!(node.get("/livez").status, 200);
}

#[test]
fn connection_above_the_limit_gets_503() {
    let node = Node::start_with(1, |config| config.limits.connections_max = 3);
    node.api.as_ref().unwrap().ready();
    let held: Vec<_> = (0..3).map(|_| begun_request(&node)).collect();
    let refused = node.get("/api/openapi.json");
    assert_eq!(refused.header("retry-after"), "1");
    assert_eq!(refused.header("connection"), "close");
    refused.problem(503);
    for path in ["/livez", "/readyz", "/status"] {
        assert_eq!(node.get(path).status, 200, "{path}");
    }
    drop(held);
    node.wait_for("a free connection", || node.get("/api/openapi.json").status == 200);
}

#[test]
fn silent_connections_do_not_keep_others_out() {
    let node = Node::start_with(1, |config| config.limits.header_timeout = Duration::from_secs(600));
    node.api.as_ref().unwrap().ready();
    let silent: Vec<_> = (0..300).map(|_| web::connect(node.address)).collect();
    for mut stream in &silent {
        // The server has closed some of them.
        let _ = stream.write_all(b"GET /livez HTTP/1.1\r\nHost: local");
    }
    assert_eq!(node.get("/api/openapi.json").status, 200);
    assert_eq!(node.get("/readyz").status, 200);
    let evicted = "tidewire_api_connections_evicted_total ";
    let metrics = node.get("/metrics").body;
    let count = metrics.lines().find_map(|line| line.strip_prefix(evicted)).unwrap();
    assert!(count.parse::<u32>().unwrap() >= 300 - 128, "{count}");
}

#[test]
fn connections_of_an_address_leave_room_for_others() {
    let node = Node::start_with(1, |config| {
        config.limits.connections_max = 4;
        config.limits.max_connections_per_address = 2;
    });
    node.api.as_ref().unwrap().ready();
    let _held = [begun_request(&node), begun_request(&node)];
    node.get("/api/openapi.json").problem(503);
    assert_eq!(node.get("/readyz").status, 200);
    let request = b"GET /api/openapi.json HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    let mut other = web::connect_from([127, 0, 0, 2].into(), node.address);
    other.write_all(request).unwrap();
    web::receive(other).ok();
}

/// A request in progress. The server waits for its body of two bytes.
fn begun_request(node: &Node) -> TcpStream {
    let mut stream = web::connect(node.address);
    let headers = "Host: localhost\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: 2";
    write!(
        stream,
        "POST /api/v1/login HTTP/1.1\r\n{headers}\r\nExpect: 100-continue\r\n\r\n"
    )
    .unwrap();
    let mut go_on = [0; 25];
    stream.read_exact(&mut go_on).unwrap();
    assert_eq!(&go_on, b"HTTP/1.1 100 Continue\r\n\r\n");
    stream
}

#[test]
fn concurrent_requests_are_bounded() {
    let node = Node::start_with(1, |config| config.limits.requests_max = 1);
    let mut begun = begun_request(&node);
    let refused = node.get("/api/openapi.json");
    assert_eq!(refused.header("retry-after"), "1");
    refused.problem(503);
    assert_eq!(node.get("/livez").status, 200, "health checks do not count");
    begun.write_all(b"{}").unwrap();
    web::receive(begun).problem(400);
    assert_eq!(node.get("/api/openapi.json").status, 200);
}

#[test]
fn stop_finishes_requests_and_closes_the_port() {
    let mut node = Node::start(1);
    let mut begun = begun_request(&node);
    let api = node.api.take().unwrap();
    let stop = std::thread::spawn(move || api.stop(Duration::from_secs(20)));
    node.wait_for("the port to be closed", || TcpStream::connect(node.address).is_err());
    begun.write_all(b"{}").unwrap();
    web::receive(begun).problem(400);
    stop.join().unwrap();
}
