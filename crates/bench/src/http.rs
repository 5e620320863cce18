//! Plain HTTP/1.1 requests, one connection each: for the metrics page of a broker and for its API. No TLS, no
//! redirects.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use mqtt_client::{HttpRequest, HttpResponse};
use serde_json::Value;

/// Time limit of a request. It is long because a broker whose cores are all busy answers late.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
const ANSWER_BYTES_MAX: u64 = 8 * 1024 * 1024;

/// The host and port of an HTTP server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpEndpoint {
    /// The host and port as `host:port`.
    authority: String,
}

impl HttpEndpoint {
    /// Parses `http://HOST[:PORT][/PATH]` and returns the path separately, if there is one.
    pub fn parse(url: &str) -> Option<(HttpEndpoint, Option<String>)> {
        let rest = url.strip_prefix("http://")?;
        let (authority, path) = match rest.split_once('/') {
            Some((authority, path)) => (authority, Some(format!("/{path}"))),
            None => (rest, None),
        };
        let is_plain = |text: &str| text.chars().all(|char| char.is_ascii_graphic());
        if authority.is_empty() || authority.contains('@') || !is_plain(rest) {
            return None;
        }
        // A colon inside brackets is part of an IPv6 address.
        let has_port = authority.rsplit(']').next().is_some_and(|end| end.contains(':'));
        let authority = match has_port {
            true => authority.to_owned(),
            false => format!("{authority}:80"),
        };
        Some((HttpEndpoint { authority }, path))
    }

    pub fn authority(&self) -> &str {
        &self.authority
    }

    /// Sends a request. The outer error is one of the connection; the inner error describes what arrived instead of an
    /// HTTP answer.
    pub fn send(&self, path: &str, request: &HttpRequest<'_>) -> io::Result<Result<HttpResponse, String>> {
        let deadline = Instant::now() + REQUEST_TIMEOUT;
        let mut stream = self.connect()?;
        stream.set_write_timeout(Some(REQUEST_TIMEOUT))?;
        stream.write_all(&request.encode(&self.authority, path))?;
        Ok(HttpResponse::parse(&read_all(&mut stream, deadline)?))
    }

    /// Calls a JSON API. Null stands for an answer that is not JSON.
    pub fn call(&self, method: &str, path: &str, token: Option<&str>, body: Option<&Value>) -> Result<Value, String> {
        let body = body.map(Value::to_string);
        let request = HttpRequest {
            method,
            accept: "application/json",
            token,
            body: body.as_deref(),
        };
        let place = format!("http://{}{path}", self.authority);
        let answer = self.send(path, &request).map_err(|error| format!("{place}: {error}"))?;
        let answer = answer.map_err(|got| format!("{place}: got {got}"))?;
        match answer.status {
            200..300 => Ok(serde_json::from_slice(&answer.body).unwrap_or(Value::Null)),
            _ => Err(format!(
                "{method} {place}: {}: {}",
                answer.status_line,
                String::from_utf8_lossy(&answer.body)
            )),
        }
    }

    fn connect(&self) -> io::Result<TcpStream> {
        let addresses: Vec<SocketAddr> = self.authority.to_socket_addrs()?.collect();
        let mut last = io::Error::other("the host has no address");
        for address in addresses {
            match TcpStream::connect_timeout(&address, REQUEST_TIMEOUT) {
                Ok(stream) => return Ok(stream),
                Err(error) => last = error,
            }
        }
        Err(last)
    }
}

fn read_all(stream: &mut TcpStream, deadline: Instant) -> io::Result<Vec<u8>> {
    let mut answer = Vec::new();
    let mut part = [0; 16 * 1024];
    while (answer.len() as u64) < ANSWER_BYTES_MAX {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut part)? {
            0 => return Ok(answer),
            size => answer.extend_from_slice(&part[..size]),
        }
    }
    Err(io::Error::other(format!(
        "the answer is longer than {ANSWER_BYTES_MAX} bytes"
    )))
}
