//! Requests to the API that a proxy on the same machine has forwarded are not those of a local client.

use std::io::{Read, Write};
use std::net::TcpStream;

use serde_json::json;

use super::*;

/// Returns the status of a request with this header.
fn status(server: &Server, path: &str, header: &str) -> u16 {
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n{header}\r\nConnection: close\r\n\r\n");
    let answer = exchange(server, &request);
    let status = answer.split(' ').nth(1).expect("a status line");
    status.parse().expect("a number")
}

fn exchange(server: &Server, request: &str) -> String {
    let mut stream = TcpStream::connect(server.http()).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// Fails to log in with a request that has this header.
fn fail_to_log_in(server: &Server, header: &str) {
    let body = json!({"user": "admin", "password": "wrong"}).to_string();
    let length = body.len();
    let request = format!(
        "POST /api/v1/login HTTP/1.1\r\nHost: localhost\r\n{header}\r\nContent-Type: application/json\r\n\
         Content-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    );
    let answer = exchange(server, &request);
    assert!(answer.starts_with("HTTP/1.1 401"), "{answer}");
}

#[test]
fn forwarded_requests_cannot_read_metrics_without_a_login() {
    let server = Server::start(&Config::new(""));
    for path in ["/metrics", "/api/v1/stats"] {
        assert_eq!(status(&server, path, "Accept: */*"), 200, "{path}");
        for header in [
            "X-Forwarded-For: 203.0.113.9",
            "X-Forwarded-For: 127.0.0.1",
            "Forwarded: for=127.0.0.1",
            "X-Real-IP: 203.0.113.9",
            "Via: 1.1 proxy",
        ] {
            assert_eq!(status(&server, path, header), 401, "{path} {header}");
        }
    }
    assert_eq!(status(&server, "/readyz", "X-Forwarded-For: 203.0.113.9"), 200);
}

#[test]
fn trusted_proxy_names_the_client() {
    for (trusted, header, expected) in [
        ("", "X-Forwarded-For: 203.0.113.9", "0.0.0.0"),
        ("\"127.0.0.0/8\"", "X-Forwarded-For: 203.0.113.9", "203.0.113.9"),
        (
            "\"127.0.0.0/8\"",
            "X-Forwarded-For: 10.9.9.9, 203.0.113.9",
            "203.0.113.9",
        ),
        ("\"127.0.0.0/8\"", "Accept: */*", "127.0.0.1"),
    ] {
        let server = Server::start(&Config::new(format!("[api]\ntrusted_proxies = [{trusted}]\n")));
        fail_to_log_in(&server, header);
        let line = format!("address={expected}");
        server.wait_until("the log names the address", |server| {
            let log = server.log();
            log.lines()
                .any(|text| text.contains("API login failed") && text.contains(&line))
        });
    }
}
