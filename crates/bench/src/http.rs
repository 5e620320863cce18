//! Plain HTTP/1.1 requests, one connection each: for the metrics page of a broker and for its API. No TLS, no
//! redirects.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

/// Time limit of a request. It is long because a broker whose cores are all busy answers late.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
const ANSWER_BYTES_MAX: u64 = 8 * 1024 * 1024;

/// The host and port of an HTTP server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpEndpoint {
    /// The host and port as `host:port`.
    authority: String,
}

#[derive(Clone, Copy, Debug)]
pub struct HttpRequest<'a> {
    pub method: &'a str,
    pub accept: &'a str,
    pub token: Option<&'a str>,
    /// The request body, in JSON.
    pub body: Option<&'a str>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpResponse {
    pub status: u16,
    pub status_line: String,
    pub body: String,
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
        stream.write_all(self.head(path, request).as_bytes())?;
        stream.write_all(request.body.unwrap_or_default().as_bytes())?;
        Ok(answer(&read_all(&mut stream, deadline)?))
    }

    fn head(&self, path: &str, request: &HttpRequest<'_>) -> String {
        let mut head = format!(
            "{} {path} HTTP/1.1\r\nHost: {}\r\nAccept: {}\r\nConnection: close\r\n",
            request.method, self.authority, request.accept
        );
        if let Some(token) = request.token {
            head.push_str(&format!("Authorization: Bearer {token}\r\n"));
        }
        if let Some(body) = request.body {
            let length = body.len();
            head.push_str(&format!(
                "Content-Type: application/json\r\nContent-Length: {length}\r\n"
            ));
        }
        head.push_str("\r\n");
        head
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

/// Parses an HTTP answer. The error describes what arrived instead.
fn answer(bytes: &[u8]) -> Result<HttpResponse, String> {
    const BREAK: &[u8] = b"\r\n\r\n";
    let Some(end) = bytes.windows(BREAK.len()).position(|part| part == BREAK) else {
        return Err(match bytes.is_empty() {
            true => "a connection that was closed without an answer".into(),
            false => format!("no HTTP: `{}`", first_line(bytes)),
        });
    };
    let (head, body) = (&bytes[..end], &bytes[end + BREAK.len()..]);
    let status_line = first_line(head);
    let status = status_line.split(' ').nth(1).and_then(|status| status.parse().ok());
    let Some(status) = status.filter(|_| status_line.starts_with("HTTP/1.")) else {
        return Err(format!("`{status_line}`"));
    };
    let head = String::from_utf8_lossy(head).to_ascii_lowercase();
    let is_chunked = head
        .lines()
        .any(|line| line.starts_with("transfer-encoding:") && line.ends_with("chunked"));
    let body = match is_chunked {
        true => join_chunks(body).ok_or("a body that is cut off")?,
        false => body.to_vec(),
    };
    Ok(HttpResponse {
        status,
        status_line,
        body: String::from_utf8(body).map_err(|_| "a body that is not UTF-8 text")?,
    })
}

fn first_line(bytes: &[u8]) -> String {
    const SHOWN_MAX: usize = 80;
    let line = bytes
        .split(|byte| *byte == b'\r' || *byte == b'\n')
        .next()
        .unwrap_or_default();
    String::from_utf8_lossy(&line[..line.len().min(SHOWN_MAX)]).into_owned()
}

/// Joins the chunks of a chunked body; `None` if the final chunk is missing.
fn join_chunks(mut rest: &[u8]) -> Option<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let end = rest.windows(2).position(|part| part == b"\r\n")?;
        let size = std::str::from_utf8(&rest[..end]).ok()?.split(';').next()?.trim();
        let size = usize::from_str_radix(size, 16).ok()?;
        if size == 0 {
            return Some(body);
        }
        rest = &rest[end + 2..];
        body.extend_from_slice(rest.get(..size)?);
        rest = rest.get(size..)?.strip_prefix(b"\r\n")?;
    }
}
