//! Client for the management API.

use std::io::{Read, Write};
use std::net::TcpStream;

use serde_json::{Value, json};

use super::Server;

pub struct Api<'s> {
    server: &'s Server,
    token: String,
}

impl<'s> Api<'s> {
    /// Logs in with the password that the server generated at its first start.
    #[track_caller]
    pub fn of(server: &'s Server) -> Api<'s> {
        let path = server.dir().join("data/admin-password");
        let password = std::fs::read_to_string(path).expect("the first start writes a password");
        let login = json!({"user": "admin", "password": password.trim()});
        let mut api = Api {
            server,
            token: String::new(),
        };
        let answer = api.ok("POST", "/api/v1/login", &login);
        api.token = answer["token"].as_str().expect("a token").to_owned();
        api
    }

    /// Sends a request and returns status and body.
    #[track_caller]
    pub fn call(&self, method: &str, path: &str, body: &Value) -> (u16, Value) {
        let (status, _, body) = self.call_if(method, path, None, body);
        (status, body)
    }

    /// Sends a request with `If-Match` and returns status, entity tag and body.
    #[track_caller]
    pub fn call_if(
        &self,
        method: &str,
        path: &str,
        if_match: Option<&str>,
        body: &Value,
    ) -> (u16, Option<String>, Value) {
        let if_match = if_match.map(|tag| format!("If-Match: {tag}\r\n")).unwrap_or_default();
        let mut stream = TcpStream::connect(self.server.http()).expect("the API listens");
        let body = if body.is_null() {
            String::new()
        } else {
            body.to_string()
        };
        let token = &self.token;
        let length = body.len();
        write!(
            stream,
            "{method} {path} HTTP/1.0\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\
             Content-Type: application/json\r\n{if_match}Content-Length: {length}\r\n\r\n{body}"
        )
        .expect("the API accepts a request");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("the API answers");
        let (head, body) = answer.split_once("\r\n\r\n").expect("an HTTP answer");
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
        let status = status.expect("a status line");
        let tag = head.lines().find_map(|line| line.strip_prefix("etag: "));
        (
            status,
            tag.map(str::to_owned),
            serde_json::from_str(body).unwrap_or(Value::Null),
        )
    }

    /// Downloads a file and returns its bytes.
    #[track_caller]
    #[allow(dead_code, reason = "several tests include this file")]
    pub fn bytes(&self, path: &str) -> Vec<u8> {
        let mut stream = TcpStream::connect(self.server.http()).expect("the API listens");
        let token = &self.token;
        write!(
            stream,
            "GET {path} HTTP/1.0\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\r\n"
        )
        .expect("the API accepts a request");
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).expect("the API answers");
        let end = answer
            .windows(4)
            .position(|window| window == b"\r\n\r\n")
            .expect("an HTTP answer");
        assert!(
            answer.starts_with(b"HTTP/1.0 200"),
            "{:?}",
            String::from_utf8_lossy(&answer[..end])
        );
        answer.split_off(end + 4)
    }

    #[track_caller]
    pub fn ok(&self, method: &str, path: &str, body: &Value) -> Value {
        let (status, answer) = self.call(method, path, body);
        assert!((200..300).contains(&status), "{method} {path}: {status} {answer:#}");
        answer
    }

    #[track_caller]
    #[allow(dead_code, reason = "several tests include this file")]
    pub fn get(&self, path: &str) -> Value {
        self.ok("GET", path, &Value::Null)
    }
}
