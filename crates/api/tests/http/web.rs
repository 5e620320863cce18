//! A minimal HTTP client that returns status, headers and body unchanged.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

use rustix::net::{AddressFamily, SocketType};
use serde_json::Value;

pub struct Answer {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: String,
}

impl Answer {
    pub fn header(&self, name: &str) -> &str {
        let found = self.headers.iter().find(|(have, _)| have.eq_ignore_ascii_case(name));
        found.map_or("", |(_, value)| value)
    }

    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {:?}", self.body))
    }

    /// Asserts that the answer is a problem with this status, and returns it.
    #[track_caller]
    pub fn problem(&self, status: u16) -> Value {
        assert_eq!(self.status, status, "{}", self.body);
        assert_eq!(self.header("content-type"), "application/problem+json");
        let problem = self.json();
        assert_eq!(problem["status"], status);
        assert!(problem["type"].as_str().unwrap().starts_with("urn:tidewire:problem:"));
        assert!(!problem["title"].as_str().unwrap().is_empty() && !problem["detail"].as_str().unwrap().is_empty());
        problem
    }

    #[track_caller]
    pub fn ok(self) -> Answer {
        assert!((200..300).contains(&self.status), "{} {}", self.status, self.body);
        self
    }
}

pub fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    stream
}

/// Connects from another address of this machine.
pub fn connect_from(from: Ipv4Addr, address: SocketAddr) -> TcpStream {
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    rustix::net::bind(&socket, &SocketAddr::from((from, 0))).unwrap();
    rustix::net::connect(&socket, &address).unwrap();
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    stream
}

/// Sends a request on a new connection.
pub fn request(address: SocketAddr, method: &str, target: &str, headers: &[(&str, &str)], body: &str) -> Answer {
    let mut stream = connect(address);
    send(&mut stream, method, target, headers, body);
    receive(stream)
}

/// Returns header and body of an answer whose body is not text.
pub fn request_bytes(address: SocketAddr, target: &str) -> String {
    let mut stream = connect(address);
    send(&mut stream, "GET", target, &[("Accept-Encoding", "gzip")], "");
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    String::from_utf8_lossy(&bytes).into_owned()
}

pub fn send(stream: &mut TcpStream, method: &str, target: &str, headers: &[(&str, &str)], body: &str) {
    let mut text = format!("{method} {target} HTTP/1.1\r\nConnection: close\r\n");
    if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("host")) {
        text.push_str("Host: localhost\r\n");
    }
    for (name, value) in headers {
        text.push_str(&format!("{name}: {value}\r\n"));
    }
    if !body.is_empty() {
        text.push_str(&format!("Content-Length: {}\r\n", body.len()));
    }
    text.push_str("\r\n");
    text.push_str(body);
    stream.write_all(text.as_bytes()).unwrap();
}

/// Reads until the server closes the connection.
pub fn receive(mut stream: impl Read) -> Answer {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    parse(&bytes)
}

pub fn parse(bytes: &[u8]) -> Answer {
    let text = String::from_utf8(bytes.to_vec()).unwrap();
    let (head, body) = text
        .split_once("\r\n\r\n")
        .unwrap_or_else(|| panic!("no header in {text:?}"));
    let mut lines = head.split("\r\n");
    let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
    let headers = lines
        .map(|line| line.split_once(": ").unwrap())
        .map(|(name, value)| (name.into(), value.into()));
    Answer {
        status,
        headers: headers.collect(),
        body: body.to_owned(),
    }
}
