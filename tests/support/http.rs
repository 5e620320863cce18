//! HTTP requests to a server.

use std::io::{Read, Write};
use std::net::SocketAddr;

/// Sends one request and returns status and body. Each line of `headers` ends in CRLF. The default content type is
/// JSON.
pub fn request(address: SocketAddr, method: &str, path: &str, headers: &str, body: &str) -> (u16, String) {
    let mut stream = std::net::TcpStream::connect(address).expect("the API listens");
    let length = body.len();
    let content_type = match headers.contains("Content-Type: ") {
        true => "",
        false => "Content-Type: application/json\r\n",
    };
    write!(
        stream,
        "{method} {path} HTTP/1.0\r\nHost: localhost\r\n{content_type}Content-Length: {length}\r\n{headers}\r\n{body}"
    )
    .expect("the API accepts a request");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("the API answers");
    let (head, body) = answer.split_once("\r\n\r\n").expect("an HTTP answer");
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    (status.expect("a status line"), body.to_owned())
}
