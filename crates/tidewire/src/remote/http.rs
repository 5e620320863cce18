//! One HTTP request and its answer, over the transport of the MQTT client.
//!
//! HTTP/1.0: the answer comes in one piece and ends with the connection.

use std::io;

use crate::client::args::ClientTlsOptions;
use crate::client::failure::ClientFailure;
use crate::client::target::ConnectTarget;
use crate::client::transport::ClientTransport;
use crate::secret::Secret;

/// The largest answer is a list of definitions.
const ANSWER_BYTES_MAX: usize = 256 * 1024 * 1024;

pub struct ApiRequest<'a> {
    pub method: &'a str,
    pub path: &'a str,
    pub token: Option<&'a Secret>,
    /// JSON.
    pub body: Option<&'a [u8]>,
}

pub struct ApiResponse {
    pub status: u16,
    pub body: Vec<u8>,
}

pub fn send(
    target: &ConnectTarget,
    tls: &ClientTlsOptions,
    request: &ApiRequest<'_>,
) -> Result<ApiResponse, ClientFailure> {
    let mut transport = ClientTransport::open(target, None, tls)?;
    let lost = |error: io::Error| ClientFailure::ConnectionLost(format!("{target}: {error}"));
    transport.send(&head(target, request)).map_err(lost)?;
    if let Some(body) = request.body {
        transport.send(body).map_err(lost)?;
    }
    let mut answer = Vec::new();
    while transport.read(&mut answer).map_err(lost)? {
        if answer.len() > ANSWER_BYTES_MAX {
            return Err(ClientFailure::Protocol(format!(
                "{target} answers with more than {ANSWER_BYTES_MAX} bytes"
            )));
        }
    }
    parse(&answer).ok_or_else(|| ClientFailure::Protocol(format!("{target} does not respond like the API of tidewire")))
}

fn head(target: &ConnectTarget, request: &ApiRequest<'_>) -> Vec<u8> {
    let ApiRequest {
        method,
        path,
        token,
        body,
        ..
    } = request;
    let mut head = format!("{method} {path} HTTP/1.0\r\nHost: {target}\r\n");
    if let Some(token) = token {
        head.push_str(&format!("Authorization: Bearer {}\r\n", token.expose()));
    }
    if let Some(body) = body {
        head.push_str(&format!(
            "Content-Type: application/json\r\nContent-Length: {}\r\n",
            body.len()
        ));
    } else if *method != "GET" {
        head.push_str("Content-Length: 0\r\n");
    }
    head.push_str("\r\n");
    head.into_bytes()
}

/// `None`: it is not HTTP, or not whole.
fn parse(answer: &[u8]) -> Option<ApiResponse> {
    let end = answer.windows(4).position(|window| window == b"\r\n\r\n")?;
    let head = std::str::from_utf8(&answer[..end]).ok()?;
    let body = &answer[end + 4..];
    let mut lines = head.split("\r\n");
    let mut first = lines.next()?.split(' ');
    let status = first
        .next()
        .filter(|version| version.starts_with("HTTP/1."))
        .and(first.next())?;
    let length = lines
        .filter_map(|line| line.split_once(':'))
        .find(|(name, _)| name.eq_ignore_ascii_case("content-length"));
    let is_whole = match length {
        Some((_, length)) => length.trim().parse() == Ok(body.len()),
        None => true,
    };
    is_whole.then_some(ApiResponse {
        status: status.parse().ok()?,
        body: body.to_vec(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_taken_apart_and_cut_ones_refused() {
        let whole = b"HTTP/1.0 201 Created\r\nContent-Length: 2\r\n\r\n{}";
        let answer = parse(whole).expect("an answer");
        assert_eq!((answer.status, answer.body.as_slice()), (201, &b"{}"[..]));
        for bad in [&whole[..whole.len() - 1], b"HTTP/1.0 200", b"", b"SSH-2.0\r\n\r\n"] {
            assert!(parse(bad).is_none(), "{bad:?}");
        }
    }
}
