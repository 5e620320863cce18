//! Clients request long answers and do not read them. All of them together get a bounded memory of the server, and
//! other clients are served.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use serde_json::{Value as Json, json};
use socket2::{Domain, Socket, Type};

use super::Growth;
use crate::devices::rest::Rest;
use crate::support::websocket::{CLOSE, TEXT, WebSocket};
use crate::support::*;

const CONFIG: &str = "[platform]\nenabled = true\ndemo = true\n";
/// Points of the device, each with a text of 1 MiB.
const POINTS: usize = 20;
const ATTACKERS: usize = 40;
/// Try Again Later.
const TRY_AGAIN_LATER: [u8; 2] = 1013_u16.to_be_bytes();

/// Creates a device with a long history, and returns its identifier.
fn device_with_history(server: &Server, rest: &Rest) -> String {
    let device = rest.device("historian", &unique("historian"));
    let path = format!("/api/plugins/telemetry/DEVICE/{device}/timeseries/ANY");
    for ts in 1..=POINTS {
        let body = json!({"ts": ts, "values": {"text": "x".repeat(1 << 20)}});
        rest.ok("POST", &path, &body);
    }
    let keys = format!("/api/plugins/telemetry/DEVICE/{device}/values/timeseries?keys=text&useStrictDataTypes=true");
    server.wait_until("all points are stored", |_| {
        rest.ok("GET", &keys, &Json::Null)["text"][0]["ts"] == POINTS
    });
    device
}

fn history(device: &str) -> String {
    format!("/api/plugins/telemetry/DEVICE/{device}/values/timeseries?keys=text&startTs=0&endTs=1000&limit=1000")
}

/// Sends a request from the attackers' address and does not read the answer. Metrics are read from another one: an
/// address has a share of the concurrent requests.
fn request_unread(address: SocketAddr, path: &str, token: &str) -> TcpStream {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    let source = SocketAddr::from((Ipv4Addr::new(127, 0, 0, 2), 0));
    socket.bind(&source.into()).expect("127.0.0.2 exists");
    socket.connect(&address.into()).expect("the API listens");
    let mut stream = TcpStream::from(socket);
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nX-Authorization: Bearer {token}\r\n\r\n");
    stream.write_all(request.as_bytes()).expect("the API accepts a request");
    stream
}

/// Number of answered requests.
fn answers(server: &Server) -> f64 {
    sum(server, "tidewire_api_requests_total{")
}

/// Sum of the samples that begin with the prefix.
fn sum(server: &Server, prefix: &str) -> f64 {
    let (status, metrics) = server.http_get("/metrics");
    assert_eq!(status, 200);
    let samples = metrics.lines().filter(|line| line.starts_with(prefix));
    samples
        .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
        .sum()
}

#[test]
fn unread_answers_have_bounded_memory() {
    let server = Server::start(&Config::new(CONFIG));
    let rest = Rest::login(&server);
    let device = device_with_history(&server, &rest);
    let path = history(&device);
    rest.ok("GET", &path, &Json::Null);
    let mut growth = Growth::of(&server);
    let before = answers(&server);
    let mut unread: Vec<TcpStream> = (0..ATTACKERS)
        .map(|_| request_unread(server.http(), &path, rest.token()))
        .collect();
    let mut looks = 0;
    server.wait_until("the attackers are answered", |server| {
        looks += 1;
        growth.look();
        answers(server) >= before + f64::from(looks) + ATTACKERS as f64
    });
    let (status, _) = server.http_get("/livez");
    assert_eq!(status, 200);
    let device = rest.ok("GET", &format!("/api/device/{device}"), &Json::Null);
    assert_eq!(device["name"], "historian");
    // 20 MiB of each attacker would be 800 MiB.
    growth.assert_below_mib(400);

    server.wait_until("a long answer is refused", |server| {
        unread.push(request_unread(server.http(), &path, rest.token()));
        sum(server, "tidewire_api_answers_refused_total ") >= 1.0
    });
    for mut stream in unread {
        let mut start = [0; 1024];
        let count = stream.read(&mut start).unwrap_or(0);
        let head = String::from_utf8_lossy(&start[..count]).to_lowercase();
        assert!(
            !head.starts_with("http/1.1 503 ") || head.contains("retry-after: 1\r\n"),
            "{head}"
        );
    }
    server.wait_until("the memory is free for other answers", |_| {
        rest.call("GET", &path, &Json::Null).0 == 200
    });
    server.wait_until("all answers are released", |server| {
        sum(server, "tidewire_api_unsent_answer_bytes ") == 0.0
    });
}

#[test]
fn unread_answers_refuse_long_messages_of_websockets() {
    let server = Server::start(&Config::new(format!("{CONFIG}[api]\nmax_unsent_answers = \"20MiB\"\n")));
    let rest = Rest::login(&server);
    let device = device_with_history(&server, &rest);
    let path = history(&device);
    let command = json!({"historyCmds": [{"cmdId": 1, "entityType": "DEVICE", "entityId": device, "keys": "text",
        "startTs": 0, "endTs": 1000, "limit": 1000}]});
    let ask = |rest: &Rest| {
        let path = format!("/api/ws/plugins/telemetry?token={}", rest.token());
        let mut socket = WebSocket::open_path(server.http(), &path);
        socket.send_frame(true, TEXT, command.to_string().as_bytes());
        socket.read_frame().expect("an answer")
    };
    let frame = ask(&rest);
    assert_eq!(frame.opcode, TEXT, "one long message passes alone");
    let text = String::from_utf8_lossy(&frame.payload[..frame.payload.len().min(200)]);
    assert!(
        frame.payload.len() > POINTS << 20,
        "{} bytes: {text}",
        frame.payload.len()
    );
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let over = SetOnDrop(&is_over);
        // The server closes a connection that does not read, so the attacker returns.
        let attacker = scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                let _unread = request_unread(server.http(), &path, rest.token());
                thread::park_timeout(Duration::from_secs(5));
            }
        });
        server.wait_until("a long message is refused", |_| {
            let frame = ask(&rest);
            frame.opcode == CLOSE && frame.payload.starts_with(&TRY_AGAIN_LATER)
        });
        drop(over);
        attacker.thread().unpark();
    });
    assert_eq!(server.http_get("/livez").0, 200);
}
