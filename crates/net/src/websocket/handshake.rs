//! The upgrade request (RFC 6455, section 4.2) and its answers. Pure: bytes in, bytes out.
//!
//! Bounded: a request head above `HEAD_BYTES_MAX` is refused. Whoever comes with a browser or curl gets a sentence that helps.

use std::net::IpAddr;

use ring::digest;

pub const HEAD_BYTES_MAX: usize = 8 * 1024;

/// RFC 6455, section 1.3.
const ACCEPT_SALT: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/// Sub-protocols of MQTT [MQTT-6.0.0-3], the older one as MQTT 3.1 clients ask for it.
const SUB_PROTOCOLS: [&str; 2] = ["mqtt", "mqttv3.1"];

#[derive(Debug, PartialEq, Eq)]
pub enum Upgrade {
    /// The head is not complete.
    Incomplete,
    /// Send `response`; WebSocket frames begin at `size`.
    Accepted { size: usize, response: Vec<u8> },
    /// Send `response` and close.
    Refused { response: Vec<u8>, reason: &'static str },
}

/// Who may upgrade, and where.
#[derive(Clone, Debug)]
pub struct UpgradeRules {
    /// Request target that speaks MQTT.
    pub path: Box<str>,
    /// Origins of web pages that may connect, such as `https://example.com`; `*` is any. Pages of the host that is connected to
    /// always may where that is `localhost` or an address; a name could be anybody's that resolves to here. Browsers send an origin, devices do not: without this check any page that a person on a trusted network
    /// opens could speak to the broker in that person's name.
    pub allowed_origins: Vec<Box<str>>,
}

impl Default for UpgradeRules {
    fn default() -> UpgradeRules {
        UpgradeRules {
            path: "/mqtt".into(),
            allowed_origins: Vec::new(),
        }
    }
}

impl UpgradeRules {
    fn allows_origin(&self, origin: &str, host: Option<&str>) -> bool {
        let is_listed = |allowed: &str| allowed == "*" || allowed.eq_ignore_ascii_case(origin);
        let of_origin = origin.split_once("://").map(|(_, rest)| host_name(rest));
        let is_same_host = of_origin.is_some_and(|name| {
            is_address(name) && host.map(host_name).is_some_and(|host| host.eq_ignore_ascii_case(name))
        });
        is_same_host || self.allowed_origins.iter().any(|allowed| is_listed(allowed))
    }
}

/// What no name server can be made to point somewhere else.
fn is_address(host: &str) -> bool {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    host.eq_ignore_ascii_case("localhost") || bare.parse::<IpAddr>().is_ok()
}

/// `host:port` without the port; an IPv6 address keeps its brackets.
fn host_name(authority: &str) -> &str {
    match authority.rfind(']') {
        Some(end) => &authority[..=end],
        None => authority.split(':').next().unwrap_or(authority),
    }
}

/// Looks at what a client has sent so far.
pub fn upgrade(bytes: &[u8], rules: &UpgradeRules) -> Upgrade {
    if bytes.first().is_some_and(|byte| !byte.is_ascii_uppercase()) {
        return refuse(Status::BadRequest, "not HTTP");
    }
    let Some(size) = head_size(bytes) else {
        return if bytes.len() > HEAD_BYTES_MAX {
            refuse(Status::HeadersTooLarge, "the request head is larger than 8 KiB")
        } else {
            Upgrade::Incomplete
        };
    };
    if size > HEAD_BYTES_MAX {
        return refuse(Status::HeadersTooLarge, "the request head is larger than 8 KiB");
    }
    let checked = std::str::from_utf8(&bytes[..size])
        .map_err(|_| (Status::BadRequest, "the request head is not text"))
        .and_then(|head| check(head, rules));
    match checked {
        Ok((key, sub_protocol)) => Upgrade::Accepted {
            size,
            response: accept(key, sub_protocol),
        },
        Err((status, reason)) => refuse(status, reason),
    }
}

/// Bytes up to and with the empty line.
fn head_size(bytes: &[u8]) -> Option<usize> {
    bytes
        .windows(4)
        .take(HEAD_BYTES_MAX)
        .position(|window| window == b"\r\n\r\n")
        .map(|at| at + 4)
}

type Refused = (Status, &'static str);

/// The key and the sub-protocol of a valid request.
fn check<'a>(head: &'a str, rules: &UpgradeRules) -> Result<(&'a str, &'static str), Refused> {
    let mut lines = head.split("\r\n");
    let mut request = lines.next().unwrap_or_default().split(' ');
    let (method, target, version) = (request.next(), request.next().unwrap_or_default(), request.next());
    if method != Some("GET") {
        return Err((Status::MethodNotAllowed, "only GET can be upgraded"));
    }
    if version != Some("HTTP/1.1") || request.next().is_some() {
        return Err((Status::BadRequest, "HTTP/1.1 is required"));
    }
    if target.split('?').next() != Some(&*rules.path) {
        return Err((Status::NotFound, "MQTT over WebSocket is on another path"));
    }
    let headers = Headers::read(lines)?;
    if !headers.is_upgrade() {
        return Err((
            Status::UpgradeRequired,
            "this is MQTT over WebSocket: use a client that speaks it",
        ));
    }
    if headers.version != Some("13") {
        return Err((Status::UpgradeRequired, "Sec-WebSocket-Version 13 is required"));
    }
    if headers
        .origin
        .is_some_and(|origin| !rules.allows_origin(origin, headers.host))
    {
        return Err((
            Status::Forbidden,
            "pages of this origin may not connect; see allowed_origins of the listener",
        ));
    }
    let key = headers
        .key
        .filter(|key| is_key(key))
        .ok_or((Status::BadRequest, "Sec-WebSocket-Key is missing or wrong"))?;
    // [MQTT-6.0.0-3]: without a sub-protocol of ours nobody has said that this will be MQTT.
    let sub_protocol = headers
        .sub_protocol
        .ok_or((Status::BadRequest, "Sec-WebSocket-Protocol must offer mqtt or mqttv3.1"))?;
    Ok((key, sub_protocol))
}

#[derive(Default)]
struct Headers<'a> {
    upgrades_to_websocket: bool,
    connection_upgrade: bool,
    version: Option<&'a str>,
    key: Option<&'a str>,
    sub_protocol: Option<&'static str>,
    host: Option<&'a str>,
    origin: Option<&'a str>,
}

impl<'a> Headers<'a> {
    fn read(lines: impl Iterator<Item = &'a str>) -> Result<Headers<'a>, Refused> {
        let mut headers = Headers::default();
        for line in lines.filter(|line| !line.is_empty()) {
            let (name, value) = line
                .split_once(':')
                .ok_or((Status::BadRequest, "a header has no colon"))?;
            if name.is_empty()
                || name
                    .bytes()
                    .any(|byte| byte.is_ascii_whitespace() || byte.is_ascii_control())
            {
                return Err((Status::BadRequest, "a header name is malformed"));
            }
            headers.take(name, value.trim());
        }
        Ok(headers)
    }

    fn take(&mut self, name: &str, value: &'a str) {
        let is = |wanted: &str| name.eq_ignore_ascii_case(wanted);
        if is("upgrade") {
            self.upgrades_to_websocket |= list(value).any(|item| item.eq_ignore_ascii_case("websocket"));
        } else if is("connection") {
            self.connection_upgrade |= list(value).any(|item| item.eq_ignore_ascii_case("upgrade"));
        } else if is("sec-websocket-version") {
            self.version = Some(value);
        } else if is("sec-websocket-key") {
            self.key = Some(value);
        } else if is("host") {
            self.host = Some(value);
        } else if is("origin") {
            self.origin = Some(value);
        } else if is("sec-websocket-protocol") && self.sub_protocol.is_none() {
            // The client's order decides; the answer is one of those it offered [MQTT-6.0.0-4].
            self.sub_protocol = list(value).find_map(|item| SUB_PROTOCOLS.into_iter().find(|known| *known == item));
        }
    }

    fn is_upgrade(&self) -> bool {
        self.upgrades_to_websocket && self.connection_upgrade
    }
}

fn list(value: &str) -> impl Iterator<Item = &str> {
    value.split(',').map(str::trim)
}

/// 16 bytes in base64.
fn is_key(key: &str) -> bool {
    let key = key.as_bytes();
    key.len() == 24
        && key.ends_with(b"==")
        && key[..22]
            .iter()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/'))
}

fn accept(key: &str, sub_protocol: &str) -> Vec<u8> {
    format!(
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: {}\r\nSec-WebSocket-Protocol: {sub_protocol}\r\n\r\n",
        accept_key(key)
    )
    .into_bytes()
}

/// Sec-WebSocket-Accept for a Sec-WebSocket-Key.
pub fn accept_key(key: &str) -> String {
    let mut context = digest::Context::new(&digest::SHA1_FOR_LEGACY_USE_ONLY);
    context.update(key.as_bytes());
    context.update(ACCEPT_SALT);
    base64(context.finish().as_ref())
}

fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let bits = chunk.iter().fold(0u32, |bits, byte| bits << 8 | u32::from(*byte)) << (8 * (3 - chunk.len()));
        for index in 0..4 {
            let is_padding = index > chunk.len();
            let digit = ALPHABET[(bits >> (18 - 6 * index) & 0x3F) as usize];
            text.push(if is_padding { '=' } else { char::from(digit) });
        }
    }
    text
}

#[derive(Clone, Copy)]
enum Status {
    BadRequest,
    Forbidden,
    NotFound,
    MethodNotAllowed,
    UpgradeRequired,
    HeadersTooLarge,
}

impl Status {
    const fn line(self) -> &'static str {
        match self {
            Status::BadRequest => "400 Bad Request",
            Status::Forbidden => "403 Forbidden",
            Status::NotFound => "404 Not Found",
            Status::MethodNotAllowed => "405 Method Not Allowed\r\nAllow: GET",
            Status::UpgradeRequired => {
                "426 Upgrade Required\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: mqtt"
            }
            Status::HeadersTooLarge => "431 Request Header Fields Too Large",
        }
    }
}

fn refuse(status: Status, reason: &'static str) -> Upgrade {
    let response = format!(
        "HTTP/1.1 {}\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{reason}\n",
        status.line(),
        reason.len() + 1,
    );
    Upgrade::Refused {
        response: response.into_bytes(),
        reason,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "dGhlIHNhbXBsZSBub25jZQ==";

    fn request(target: &str, headers: &[&str]) -> Vec<u8> {
        let mut text = format!("GET {target} HTTP/1.1\r\nHost: broker\r\n");
        for header in headers {
            text.push_str(header);
            text.push_str("\r\n");
        }
        text.push_str("\r\n");
        text.into_bytes()
    }

    fn valid_headers() -> Vec<String> {
        vec![
            "Upgrade: websocket".into(),
            "Connection: Upgrade".into(),
            "Sec-WebSocket-Version: 13".into(),
            format!("Sec-WebSocket-Key: {KEY}"),
            "Sec-WebSocket-Protocol: mqtt".into(),
        ]
    }

    /// A valid request with one header replaced (or left out).
    fn with(header: &str, replacement: Option<&str>) -> Vec<u8> {
        let headers: Vec<String> = valid_headers()
            .into_iter()
            .filter_map(|line| {
                if line.starts_with(header) {
                    replacement.map(str::to_owned)
                } else {
                    Some(line)
                }
            })
            .collect();
        request("/mqtt", &headers.iter().map(String::as_str).collect::<Vec<_>>())
    }

    fn status(upgrade: Upgrade) -> String {
        match upgrade {
            Upgrade::Incomplete => "incomplete".into(),
            Upgrade::Accepted { response, .. } | Upgrade::Refused { response, .. } => String::from_utf8(response)
                .unwrap()
                .split(' ')
                .nth(1)
                .unwrap()
                .to_owned(),
        }
    }

    #[test]
    fn the_sample_of_the_rfc_is_answered_as_the_rfc_does() {
        let mut bytes = with("none", None);
        let head = bytes.len();
        bytes.extend(b"\x82\x80");
        let Upgrade::Accepted { size, response } = upgrade(&bytes, &UpgradeRules::default()) else {
            panic!("a valid request")
        };
        let response = String::from_utf8(response).unwrap();
        assert_eq!(size, head);
        assert!(
            response.contains("\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n"),
            "{response}"
        );
        assert!(response.contains("\r\nSec-WebSocket-Protocol: mqtt\r\n"), "{response}");
        assert!(response.ends_with("\r\n\r\n"));
    }

    #[test]
    fn pages_of_other_origins_are_turned_away_unless_listed() {
        let rules = UpgradeRules {
            allowed_origins: vec!["https://app.example".into()],
            ..UpgradeRules::default()
        };
        let cases = [
            ("http://192.168.1.7:3000", "192.168.1.7:8083", true),
            ("https://LOCALHOST", "localhost", true),
            // Its name server has sent the page's own name here.
            ("http://evil.example:8083", "evil.example:8083", false),
            ("http://[::1]:5173", "[::1]:8083", true),
            ("https://app.example", "broker:8083", true),
            ("http://app.example", "broker:8083", false),
            ("https://evil.example", "localhost:8083", false),
            ("null", "localhost:8083", false),
        ];
        for (origin, host, is_allowed) in cases {
            assert_eq!(
                rules.allows_origin(origin, Some(host)),
                is_allowed,
                "{origin} to {host}"
            );
        }
        let any = UpgradeRules {
            allowed_origins: vec!["*".into()],
            ..UpgradeRules::default()
        };
        assert!(any.allows_origin("null", None));
    }

    #[test]
    fn every_cut_of_a_request_is_incomplete() {
        let bytes = with("none", None);
        for end in 0..bytes.len() {
            assert_eq!(
                upgrade(&bytes[..end], &UpgradeRules::default()),
                Upgrade::Incomplete,
                "cut at {end}"
            );
        }
    }

    #[test]
    fn requests_get_the_status_they_deserve() {
        let cases: &[(&str, Vec<u8>, &str)] = &[
            ("valid", with("none", None), "101"),
            ("query", with("none", None).replace_target("/mqtt?token=1"), "101"),
            (
                "mixed case",
                with("Connection", Some("CONNECTION: keep-alive, upgrade")),
                "101",
            ),
            ("plain GET", request("/mqtt", &[]), "426"),
            ("other path", with("none", None).replace_target("/"), "404"),
            (
                "old version",
                with("Sec-WebSocket-Version", Some("Sec-WebSocket-Version: 8")),
                "426",
            ),
            ("no version", with("Sec-WebSocket-Version", None), "426"),
            ("no key", with("Sec-WebSocket-Key", None), "400"),
            (
                "short key",
                with("Sec-WebSocket-Key", Some("Sec-WebSocket-Key: c2hvcnQ=")),
                "400",
            ),
            ("W05 no sub-protocol", with("Sec-WebSocket-Protocol", None), "400"),
            (
                "W05 wrong sub-protocol",
                with("Sec-WebSocket-Protocol", Some("Sec-WebSocket-Protocol: chat")),
                "400",
            ),
            ("no Connection", with("Connection", None), "426"),
            (
                "header without colon",
                with("Upgrade", Some("Upgrade websocket")),
                "400",
            ),
            (
                "space before colon",
                with("Upgrade", Some("Upgrade : websocket")),
                "400",
            ),
            ("POST", b"POST /mqtt HTTP/1.1\r\n\r\n".to_vec(), "405"),
            ("HTTP/1.0", b"GET /mqtt HTTP/1.0\r\n\r\n".to_vec(), "400"),
            ("no version at all", b"GET /mqtt\r\n\r\n".to_vec(), "400"),
            (
                "not UTF-8",
                b"GET /mqtt HTTP/1.1\r\nX: \xFF\xFE\r\n\r\n".to_vec(),
                "400",
            ),
            ("TLS hello", b"\x16\x03\x01\x02\x00\x01".to_vec(), "400"),
            ("MQTT CONNECT", b"\x10\x0C\x00\x04MQTT".to_vec(), "400"),
            (
                "W06 endless head",
                [b"GET /mqtt HTTP/1.1\r\nX: ".to_vec(), vec![b'a'; 100_000]].concat(),
                "431",
            ),
            (
                "W06 long head",
                [&b"GET /mqtt HTTP/1.1\r\nX: "[..], &vec![b'a'; 100_000], b"\r\n\r\n"].concat(),
                "431",
            ),
        ];
        for (name, bytes, expected) in cases {
            assert_eq!(status(upgrade(bytes, &UpgradeRules::default())), *expected, "{name}");
        }
    }

    trait ReplaceTarget {
        fn replace_target(self, target: &str) -> Vec<u8>;
    }

    impl ReplaceTarget for Vec<u8> {
        fn replace_target(self, target: &str) -> Vec<u8> {
            String::from_utf8(self)
                .unwrap()
                .replacen("/mqtt", target, 1)
                .into_bytes()
        }
    }

    #[test]
    fn the_first_known_sub_protocol_of_the_client_is_chosen() {
        for (offer, expected) in [
            ("mqttv3.1, mqtt", "mqttv3.1"),
            ("chat, mqtt", "mqtt"),
            ("mqttv3.1", "mqttv3.1"),
        ] {
            let bytes = with(
                "Sec-WebSocket-Protocol",
                Some(&format!("Sec-WebSocket-Protocol: {offer}")),
            );
            let Upgrade::Accepted { response, .. } = upgrade(&bytes, &UpgradeRules::default()) else {
                panic!("{offer}")
            };
            let answer = format!("\r\nSec-WebSocket-Protocol: {expected}\r\n");
            assert!(String::from_utf8(response).unwrap().contains(&answer), "{offer}");
        }
    }

    #[test]
    fn base64_pads() {
        for (bytes, text) in [
            (&b""[..], ""),
            (b"f", "Zg=="),
            (b"fo", "Zm8="),
            (b"foo", "Zm9v"),
            (b"foob", "Zm9vYg=="),
        ] {
            assert_eq!(base64(bytes), text);
        }
    }
}
