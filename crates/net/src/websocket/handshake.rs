//! The WebSocket upgrade request (RFC 6455, section 4.2) and its responses. Pure functions of bytes.
//!
//! A request head larger than `UpgradeRules::max_request_head` is rejected. Rejections contain a sentence that helps
//! users of browsers and curl.

use std::borrow::Cow;
use std::net::IpAddr;

use base64ct::{Base64, Encoding};
use ring::digest;

use crate::address_prefix::AddressPrefix;
use crate::forwarded::{ForwardingHeaders, RequestOrigin};

pub const HEAD_BYTES_DEFAULT: usize = 8 * 1024;

/// Maximum part of a refused origin that the reason contains.
const ORIGIN_CHARS_MAX: usize = 200;

/// RFC 6455, section 1.3.
const ACCEPT_SALT: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/// Sub-protocols of MQTT [MQTT-6.0.0-3]. MQTT 3.1 clients request the second.
const SUB_PROTOCOLS: [&str; 2] = ["mqtt", "mqttv3.1"];

#[derive(Debug, PartialEq, Eq)]
pub enum Upgrade {
    /// The head is not complete.
    Incomplete,
    /// Send `response`; WebSocket frames begin at `size`.
    Accepted {
        size: usize,
        response: Vec<u8>,
        origin: RequestOrigin,
    },
    /// Send `response` and close.
    Refused {
        response: Vec<u8>,
        reason: Cow<'static, str>,
    },
}

/// Which upgrade requests are accepted.
#[derive(Clone, Debug)]
pub struct UpgradeRules {
    /// Request path for MQTT.
    pub path: Box<str>,
    /// Origins of web pages that may connect, such as `https://example.com`; `*` allows any. Pages from the requested
    /// host are always allowed if it is `localhost` or an IP address; a host name could be an attacker's that resolves
    /// to this server. Browsers send an origin, devices do not. Without this check, any web page that a user on a
    /// trusted network opens could access the broker as that user.
    pub allowed_origins: Vec<Box<str>>,
    /// Proxies whose `X-Forwarded-For` names the client.
    pub trusted_proxies: Vec<AddressPrefix>,
    /// Maximum size of the request head.
    pub max_request_head: usize,
}

impl Default for UpgradeRules {
    fn default() -> UpgradeRules {
        UpgradeRules {
            path: "/mqtt".into(),
            allowed_origins: Vec::new(),
            trusted_proxies: Vec::new(),
            max_request_head: HEAD_BYTES_DEFAULT,
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

/// Returns whether the host is `localhost` or an IP address, which DNS cannot redirect.
fn is_address(host: &str) -> bool {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    host.eq_ignore_ascii_case("localhost") || bare.parse::<IpAddr>().is_ok()
}

/// Returns `host:port` without the port. An IPv6 address retains its brackets.
fn host_name(authority: &str) -> &str {
    match authority.rfind(']') {
        Some(end) => &authority[..=end],
        None => authority.split(':').next().unwrap_or(authority),
    }
}

/// Examines the bytes that a client has sent so far.
pub fn upgrade(bytes: &[u8], rules: &UpgradeRules) -> Upgrade {
    if bytes.first().is_some_and(|byte| !byte.is_ascii_uppercase()) {
        return refuse(UpgradeStatus::BadRequest, "not HTTP");
    }
    let Some(size) = head_size(bytes, rules.max_request_head) else {
        return if bytes.len() > rules.max_request_head {
            head_too_large(rules)
        } else {
            Upgrade::Incomplete
        };
    };
    if size > rules.max_request_head {
        return head_too_large(rules);
    }
    let checked = std::str::from_utf8(&bytes[..size])
        .map_err(|_| (UpgradeStatus::BadRequest, "the request head is not text".into()))
        .and_then(|head| check(head, rules));
    match checked {
        Ok(request) => Upgrade::Accepted {
            size,
            response: accept(request.key, request.sub_protocol),
            origin: request.origin,
        },
        Err((status, reason)) => refuse(status, reason),
    }
}

fn head_too_large(rules: &UpgradeRules) -> Upgrade {
    let most = rules.max_request_head;
    let reason = format!("the request head is larger than {most} bytes (max_request_head of the listener)");
    refuse(UpgradeStatus::HeadersTooLarge, reason)
}

/// Returns the length of the request head, including the empty line.
fn head_size(bytes: &[u8], max_request_head: usize) -> Option<usize> {
    bytes
        .windows(4)
        .take(max_request_head)
        .position(|window| window == b"\r\n\r\n")
        .map(|at| at + 4)
}

type UpgradeRefusal = (UpgradeStatus, Cow<'static, str>);

/// An upgrade request that the rules allow.
struct UpgradeRequest<'a> {
    key: &'a str,
    sub_protocol: &'static str,
    origin: RequestOrigin,
}

fn check<'a>(head: &'a str, rules: &UpgradeRules) -> Result<UpgradeRequest<'a>, UpgradeRefusal> {
    let mut lines = head.split("\r\n");
    let mut request = lines.next().unwrap_or_default().split(' ');
    let (method, target, version) = (request.next(), request.next().unwrap_or_default(), request.next());
    if method != Some("GET") {
        return Err((UpgradeStatus::MethodNotAllowed, "only GET can be upgraded".into()));
    }
    if version != Some("HTTP/1.1") || request.next().is_some() {
        return Err((UpgradeStatus::BadRequest, "HTTP/1.1 is required".into()));
    }
    if target.split('?').next() != Some(&*rules.path) {
        return Err((
            UpgradeStatus::NotFound,
            "MQTT is not on this path; use the path of the listener, which is /mqtt by default".into(),
        ));
    }
    let headers = Headers::read(lines)?;
    if !headers.is_upgrade() {
        return Err((
            UpgradeStatus::UpgradeRequired,
            "this path serves MQTT over WebSocket: use an MQTT client".into(),
        ));
    }
    if headers.version != Some("13") {
        return Err((
            UpgradeStatus::UpgradeRequired,
            "Sec-WebSocket-Version 13 is required".into(),
        ));
    }
    if let Some(origin) = headers
        .origin
        .filter(|origin| !rules.allows_origin(origin, headers.host))
    {
        let shown: String = origin.chars().take(ORIGIN_CHARS_MAX).collect();
        let reason = format!("pages of the origin {shown} are not allowed; see allowed_origins of the listener");
        return Err((UpgradeStatus::Forbidden, reason.into()));
    }
    let key = headers.key.filter(|key| is_key(key)).ok_or((
        UpgradeStatus::BadRequest,
        "Sec-WebSocket-Key is missing or invalid".into(),
    ))?;
    // [MQTT-6.0.0-3]: without one of our sub-protocols the client may not speak MQTT.
    let sub_protocol = headers.sub_protocol.ok_or((
        UpgradeStatus::BadRequest,
        "Sec-WebSocket-Protocol must offer mqtt or mqttv3.1".into(),
    ))?;
    let origin = headers.forwarding.origin();
    Ok(UpgradeRequest {
        key,
        sub_protocol,
        origin,
    })
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
    forwarding: ForwardingHeaders,
}

impl<'a> Headers<'a> {
    fn read(lines: impl Iterator<Item = &'a str>) -> Result<Headers<'a>, UpgradeRefusal> {
        let mut headers = Headers::default();
        for line in lines.filter(|line| !line.is_empty()) {
            let (name, value) = line
                .split_once(':')
                .ok_or((UpgradeStatus::BadRequest, "a header has no colon".into()))?;
            if name.is_empty()
                || name
                    .bytes()
                    .any(|byte| byte.is_ascii_whitespace() || byte.is_ascii_control())
            {
                return Err((UpgradeStatus::BadRequest, "a header name is malformed".into()));
            }
            headers.take(name, value.trim());
        }
        Ok(headers)
    }

    fn take(&mut self, name: &str, value: &'a str) {
        let is = |wanted: &str| name.eq_ignore_ascii_case(wanted);
        self.forwarding.take(name, value);
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
            // The client's order decides. The response must name one that it offered [MQTT-6.0.0-4].
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

/// Returns whether the key is 16 bytes in base64.
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

/// Returns the Sec-WebSocket-Accept for a Sec-WebSocket-Key.
pub fn accept_key(key: &str) -> String {
    let mut context = digest::Context::new(&digest::SHA1_FOR_LEGACY_USE_ONLY);
    context.update(key.as_bytes());
    context.update(ACCEPT_SALT);
    Base64::encode_string(context.finish().as_ref())
}

#[derive(Clone, Copy)]
enum UpgradeStatus {
    BadRequest,
    Forbidden,
    NotFound,
    MethodNotAllowed,
    UpgradeRequired,
    HeadersTooLarge,
}

impl UpgradeStatus {
    const fn line(self) -> &'static str {
        match self {
            UpgradeStatus::BadRequest => "400 Bad Request",
            UpgradeStatus::Forbidden => "403 Forbidden",
            UpgradeStatus::NotFound => "404 Not Found",
            UpgradeStatus::MethodNotAllowed => "405 Method Not Allowed\r\nAllow: GET",
            UpgradeStatus::UpgradeRequired => {
                "426 Upgrade Required\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: mqtt"
            }
            UpgradeStatus::HeadersTooLarge => "431 Request Header Fields Too Large",
        }
    }
}

fn refuse(status: UpgradeStatus, reason: impl Into<Cow<'static, str>>) -> Upgrade {
    let reason = reason.into();
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
    use std::net::Ipv4Addr;

    use super::*;
    use crate::forwarded::FORWARDING;

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

    /// Returns a valid request with one header replaced or removed.
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

    /// Returns the client of a valid request with one more header, from a peer on loopback.
    fn client_of(header: &str, trusted: &[AddressPrefix]) -> String {
        let headers: Vec<String> = valid_headers().into_iter().chain([header.to_owned()]).collect();
        let bytes = request("/mqtt", &headers.iter().map(String::as_str).collect::<Vec<_>>());
        match upgrade(&bytes, &UpgradeRules::default()) {
            Upgrade::Accepted { origin, .. } => origin.client(Ipv4Addr::LOCALHOST.into(), trusted).to_string(),
            other => panic!("{header}: {other:?}"),
        }
    }

    #[test]
    fn forwarded_request_is_not_local() {
        for header in FORWARDING {
            assert_eq!(client_of(&format!("{header}: 127.0.0.1"), &[]), "0.0.0.0", "{header}");
        }
        assert_eq!(client_of("X-Other: 10.0.0.1", &[]), "127.0.0.1");
    }

    #[test]
    fn trusted_proxy_names_the_client() {
        let trusted = [("127.0.0.1", 32), ("10.0.0.0", 8)].map(|(address, prefix_bits)| AddressPrefix {
            address: address.parse().unwrap(),
            prefix_bits,
        });
        for (header, client) in [
            ("X-Forwarded-For: 203.0.113.9", "203.0.113.9"),
            // The client may have sent the first one itself.
            ("X-Forwarded-For: 127.0.0.1, 203.0.113.9, 10.0.0.7", "203.0.113.9"),
            ("x-forwarded-for: 2001:db8::1", "2001:db8::1"),
            ("x-forwarded-for: 198.51.100.1, 203.0.113.9:4321", "203.0.113.9"),
            ("X-Forwarded-For: unknown", "0.0.0.0"),
            ("X-Forwarded-For: 10.0.0.7", "0.0.0.0"),
            ("Via: 1.1 proxy", "0.0.0.0"),
            // Another proxy on the machine of the trusted one.
            ("X-Forwarded-For: 203.0.113.9, ::1", "0.0.0.0"),
            ("X-Forwarded-For: ::ffff:127.0.0.6", "0.0.0.0"),
        ] {
            assert_eq!(client_of(header, &trusted), client, "{header}");
        }
    }

    #[test]
    fn rfc_sample_request_gets_the_rfc_response() {
        let mut bytes = with("none", None);
        let head = bytes.len();
        bytes.extend(b"\x82\x80");
        let Upgrade::Accepted { size, response, .. } = upgrade(&bytes, &UpgradeRules::default()) else {
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
    fn other_origins_are_rejected_unless_listed() {
        let rules = UpgradeRules {
            allowed_origins: vec!["https://app.example".into()],
            ..UpgradeRules::default()
        };
        let cases = [
            ("http://192.168.1.7:3000", "192.168.1.7:8083", true),
            ("https://LOCALHOST", "localhost", true),
            // DNS rebinding: the page's own name resolves to this server.
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
    fn prefixes_of_a_request_are_incomplete() {
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
    fn requests_get_the_expected_status() {
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

    #[test]
    fn size_of_the_head_is_limited_by_the_rules() {
        let head = [&b"GET /mqtt HTTP/1.1\r\nCookie: "[..], &vec![b'a'; 9000], b"\r\n\r\n"].concat();
        assert_eq!(status(upgrade(&head, &UpgradeRules::default())), "431");
        let rules = UpgradeRules {
            max_request_head: 16 * 1024,
            ..UpgradeRules::default()
        };
        // The size is accepted, and the next check fails.
        assert_eq!(status(upgrade(&head, &rules)), "426");
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
    fn first_known_sub_protocol_is_chosen() {
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
}
