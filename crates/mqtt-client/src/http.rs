//! One HTTP/1.1 request and its response, as bytes. The connection ends with the response.

/// A request of JSON or text, without redirects.
#[derive(Clone, Copy, Debug)]
pub struct HttpRequest<'a> {
    pub method: &'a str,
    pub accept: &'a str,
    /// Bearer token.
    pub token: Option<&'a str>,
    /// The request body, in JSON.
    pub body: Option<&'a str>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpResponse {
    pub status: u16,
    pub status_line: String,
    pub body: Vec<u8>,
    /// The body has the announced length.
    pub is_complete: bool,
}

impl HttpRequest<'_> {
    /// Encodes the request. `host` is the value of the `Host` header.
    pub fn encode(&self, host: &str, path: &str) -> Vec<u8> {
        let mut head = format!(
            "{} {path} HTTP/1.1\r\nHost: {host}\r\nAccept: {}\r\nConnection: close\r\n",
            self.method, self.accept
        );
        if let Some(token) = self.token {
            head.push_str(&format!("Authorization: Bearer {token}\r\n"));
        }
        match self.body {
            Some(body) => head.push_str(&format!(
                "Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
                body.len()
            )),
            None if self.method == "GET" => head.push_str("\r\n"),
            None => head.push_str("Content-Length: 0\r\n\r\n"),
        }
        head.into_bytes()
    }
}

impl HttpResponse {
    /// Parses all bytes that the server sent before it closed the connection. The error describes what arrived instead
    /// of a response.
    pub fn parse(bytes: &[u8]) -> Result<HttpResponse, String> {
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
        let header = |name: &str| {
            let fields = head.lines().filter_map(|line| line.split_once(':'));
            let mut values = fields.filter(|(field, _)| *field == name);
            values.next().map(|(_, value)| value.trim())
        };
        let is_chunked = header("transfer-encoding").is_some_and(|codings| codings.ends_with("chunked"));
        let length = header("content-length").filter(|_| !is_chunked);
        Ok(HttpResponse {
            status,
            status_line,
            is_complete: length.is_none_or(|length| length.parse() == Ok(body.len())),
            body: match is_chunked {
                true => join_chunks(body).ok_or("a body that is cut off")?,
                false => body.to_vec(),
            },
        })
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn response_that_is_cut_is_incomplete() {
        let whole = b"HTTP/1.1 201 Created\r\nContent-Length: 2\r\n\r\n{}";
        let parsed = |bytes: &[u8]| HttpResponse::parse(bytes).map(|answer| (answer.status, answer.is_complete));
        assert_eq!(parsed(whole), Ok((201, true)));
        assert_eq!(parsed(&whole[..whole.len() - 1]), Ok((201, false)));
        for bad in [&b"HTTP/1.0 200"[..], b"", b"SSH-2.0\r\n\r\n"] {
            assert!(parsed(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn chunks_are_joined() {
        let answer = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n1;x\r\nc\r\n0\r\n\r\n";
        let body = HttpResponse::parse(answer).map(|answer| answer.body);
        assert_eq!(body.as_deref(), Ok(&b"abc"[..]));
    }

    #[test]
    fn request_has_the_length_of_its_body() {
        let request = HttpRequest {
            method: "POST",
            accept: "*/*",
            token: Some("t"),
            body: Some("{}"),
        };
        let expected = "POST /p HTTP/1.1\r\nHost: h\r\nAccept: */*\r\nConnection: close\r\nAuthorization: Bearer t\r\n\
                        Content-Type: application/json\r\nContent-Length: 2\r\n\r\n{}";
        assert_eq!(request.encode("h", "/p"), expected.as_bytes());
    }
}
