//! Builds request URLs from components.
//!
//! Scheme, host and port come only from the configuration. They are parsed once, and no message value reaches them.
//! Path and query consist of literal parts from the configuration and of values from messages:
//!
//! | position | a value is | rejected |
//! |---|---|---|
//! | path | percent-encoded, so that it stays within its segment | a missing or empty segment; a dot segment |
//! | query, key or value | percent-encoded; a missing value is empty | nothing |
//! | fragment | not sent, like the rest of a fragment | |
//!
//! Every byte except the unreserved characters is encoded (RFC 3986, 2.3), as in `encodeURIComponent` and in simple
//! expansion of RFC 6570.
//!
//! Dot segments are rejected although an encoded slash keeps them within one segment: proxies and servers such as nginx
//! decode `%2F` before they remove dot segments, and some decode twice. Therefore a value must not contain `..` after
//! one decoding either.

use hyper::Uri;
use hyper::http::uri::{Authority, PathAndQuery, Scheme};

use crate::config::is_host;

/// Maximum number of characters of a value in an error.
const SHOWN_CHARS: usize = 60;

/// Scheme, host, port and the first part of the path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct BaseUrl {
    scheme: Scheme,
    authority: Authority,
    host: String,
    port: u16,
    /// Without a trailing `/`.
    path: String,
}

/// A part of the path or the query of a URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UrlPart<L, V> {
    /// Text from the configuration. Bytes that a URL must not contain are percent-encoded.
    Literal(L),
    /// A value from a message, or `None` if the message has no such value.
    Value(Option<V>),
}

impl BaseUrl {
    /// Parses a base URL. The error begins with `url: `.
    pub fn parse(url: &str) -> Result<BaseUrl, String> {
        let invalid = |found: &str| {
            format!(
                "url: found {found}, expected http://host:port/path or https://host:port/path, with a port from 1 to 65535"
            )
        };
        if url.contains("${") {
            return Err(invalid(
                "a template (values of messages are allowed only in the path of an action)",
            ));
        }
        if let Some(part) = [("#", "a fragment"), ("?", "a query")]
            .iter()
            .find(|(mark, _)| url.contains(mark))
        {
            return Err(invalid(part.1));
        }
        let uri: Uri = url
            .trim_end_matches('/')
            .parse()
            .map_err(|error| invalid(&format!("an invalid URL ({error})")))?;
        let (Some(scheme), Some(authority)) = (uri.scheme(), uri.authority()) else {
            return Err(invalid("no scheme or no host"));
        };
        if authority.as_str().contains('@') {
            return Err("url: must not contain a user name or password; use headers.authorization".to_owned());
        }
        let default_port = match scheme.as_str() {
            "http" => 80,
            "https" => 443,
            other => return Err(invalid(&format!("the scheme {other:?}"))),
        };
        let host = authority.host();
        let port = match authority.as_str()[host.len()..].strip_prefix(':') {
            None => Some(default_port),
            Some(digits) => crate::config::port(digits),
        };
        let port = port.ok_or_else(|| invalid(&format!("the address {:?}", authority.as_str())))?;
        if !is_host(host) {
            return Err(invalid(&format!("the host {host:?}")));
        }
        Ok(BaseUrl {
            scheme: scheme.clone(),
            authority: authority.clone(),
            // The authority has an IPv6 address in brackets.
            host: host.trim_matches(['[', ']']).to_owned(),
            port,
            path: uri.path().trim_end_matches('/').to_owned(),
        })
    }

    pub fn is_tls(&self) -> bool {
        self.scheme == Scheme::HTTPS
    }

    /// Returns the host, without brackets, and the port.
    pub fn address(&self) -> (&str, u16) {
        (&self.host, self.port)
    }

    /// Builds the URL of a request. An error begins with `path: `.
    pub fn join<'p>(&self, parts: impl IntoIterator<Item = UrlPart<&'p str, &'p [u8]>>) -> Result<Uri, String> {
        let mut rest = PathBuilder::new(&self.path);
        for part in parts {
            match part {
                UrlPart::Literal(text) => rest.literal(text)?,
                UrlPart::Value(value) => rest.value(value)?,
            }
        }
        let path = rest.finish()?;
        let path: PathAndQuery = path.parse().map_err(|error| format!("path: invalid URL: {error}"))?;
        let uri = Uri::builder()
            .scheme(self.scheme.clone())
            .authority(self.authority.clone())
            .path_and_query(path);
        uri.build().map_err(|error| format!("path: invalid URL: {error}"))
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum UrlComponent {
    Path,
    Query,
    /// A fragment is not sent.
    Fragment,
}

struct PathBuilder {
    url: String,
    position: UrlComponent,
    is_begun: bool,
    /// The decoded current segment.
    segment: Vec<u8>,
    has_value: bool,
}

impl PathBuilder {
    fn new(base: &str) -> PathBuilder {
        PathBuilder {
            url: base.to_owned(),
            position: UrlComponent::Path,
            is_begun: false,
            segment: Vec::new(),
            has_value: false,
        }
    }

    /// Separates the first part from the base, so that it extends neither the base's last segment nor the host.
    fn begin(&mut self, first: Option<u8>) {
        let is_separate = match first {
            Some(b'/') => true,
            Some(b'?' | b'#') => !self.url.is_empty(),
            _ => false,
        };
        if !std::mem::replace(&mut self.is_begun, true) && !is_separate {
            self.url.push('/');
        }
    }

    fn literal(&mut self, text: &str) -> Result<(), String> {
        self.begin(text.bytes().next());
        let mut rest = text;
        while self.position == UrlComponent::Path
            && let Some(at) = rest.find(['/', '?', '#'])
        {
            self.in_segment(&rest[..at]);
            self.end_segment()?;
            self.delimiter(rest.as_bytes()[at]);
            rest = &rest[at + 1..];
        }
        if self.position == UrlComponent::Query
            && let Some(at) = rest.find('#')
        {
            push_literal(&mut self.url, &rest[..at]);
            self.position = UrlComponent::Fragment;
        }
        match self.position {
            UrlComponent::Path => self.in_segment(rest),
            UrlComponent::Query => push_literal(&mut self.url, rest),
            UrlComponent::Fragment => {}
        }
        Ok(())
    }

    fn delimiter(&mut self, byte: u8) {
        match byte {
            b'/' => self.url.push('/'),
            b'?' => {
                self.url.push('?');
                self.position = UrlComponent::Query;
            }
            _ => self.position = UrlComponent::Fragment,
        }
    }

    fn in_segment(&mut self, literal: &str) {
        push_literal(&mut self.url, literal);
        decode(literal.as_bytes(), &mut self.segment);
    }

    fn value(&mut self, value: Option<&[u8]>) -> Result<(), String> {
        if self.position == UrlComponent::Fragment {
            return Ok(());
        }
        let value = match (value, self.position) {
            (None, UrlComponent::Path) => {
                return Err("path: a value is missing; a path segment needs it".to_owned());
            }
            (value, _) => value.unwrap_or_default(),
        };
        self.begin(None);
        if self.position == UrlComponent::Path {
            self.segment.extend_from_slice(value);
            self.has_value = true;
        }
        push_encoded(&mut self.url, value, is_unreserved);
        Ok(())
    }

    fn end_segment(&mut self) -> Result<(), String> {
        let segment = std::mem::take(&mut self.segment);
        if std::mem::take(&mut self.has_value) {
            check_segment(&segment)?;
        }
        Ok(())
    }

    fn finish(mut self) -> Result<String, String> {
        self.end_segment()?;
        if self.url.is_empty() {
            self.url.push('/');
        }
        Ok(self.url)
    }
}

/// Checks a decoded segment that contains a value of a message.
fn check_segment(segment: &[u8]) -> Result<(), String> {
    if segment.is_empty() {
        return Err("path: a value is empty; a path segment must not be empty".to_owned());
    }
    let mut decoded = Vec::with_capacity(segment.len());
    decode(segment, &mut decoded);
    if has_dot_segment(segment) || has_dot_segment(&decoded) {
        let text = String::from_utf8_lossy(segment);
        let shown: String = text.chars().take(SHOWN_CHARS).collect();
        return Err(format!(
            "path: {shown:?} contains a dot segment, which leads to another path"
        ));
    }
    Ok(())
}

fn has_dot_segment(text: &[u8]) -> bool {
    text.split(|byte| matches!(byte, b'/' | b'\\')).any(|part| {
        // Some servers first remove parameters, as in `..;x`.
        let name = part.split(|byte| *byte == b';').next().unwrap_or_default();
        matches!(name, b"." | b"..")
    })
}

fn decode(text: &[u8], out: &mut Vec<u8>) {
    let digit = |at: usize| text.get(at).and_then(|byte| char::from(*byte).to_digit(16));
    let mut at = 0;
    while at < text.len() {
        match (text[at], digit(at + 1), digit(at + 2)) {
            (b'%', Some(high), Some(low)) => {
                out.push((high * 16 + low) as u8);
                at += 3;
            }
            (byte, ..) => {
                out.push(byte);
                at += 1;
            }
        }
    }
}

fn push_literal(out: &mut String, text: &str) {
    push_encoded(out, text.as_bytes(), |byte| {
        byte.is_ascii_graphic() && !b"\"#<>\\^`{|}".contains(&byte)
    });
}

fn push_encoded(out: &mut String, bytes: &[u8], is_plain: impl Fn(u8) -> bool) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    out.reserve(bytes.len());
    for &byte in bytes {
        if is_plain(byte) {
            out.push(byte.into());
        } else {
            let digits = [byte >> 4, byte & 15].map(|digit| char::from(DIGITS[usize::from(digit)]));
            out.extend(['%', digits[0], digits[1]]);
        }
    }
}

fn is_unreserved(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~".contains(&byte)
}

/// The path of an action: literal parts and templates in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct PathTemplate(Vec<UrlPart<String, String>>);

impl PathTemplate {
    /// Parses a path. The error begins with `path: `.
    pub fn parse(text: &str) -> Result<PathTemplate, String> {
        let mut parts = Vec::new();
        let mut rest = text;
        while let Some(at) = rest.find("${") {
            let end = rest[at..]
                .find('}')
                .ok_or("path: found ${ without a closing }; write ${$} for a dollar sign")?;
            parts.push(UrlPart::Literal(rest[..at].to_owned()));
            parts.push(match &rest[at..=at + end] {
                "${$}" => UrlPart::Literal("$".to_owned()),
                placeholder => UrlPart::Value(Some(placeholder.to_owned())),
            });
            rest = &rest[at + end + 1..];
        }
        parts.push(UrlPart::Literal(rest.to_owned()));
        parts.retain(|part| !matches!(part, UrlPart::Literal(text) if text.is_empty()));
        let template = PathTemplate(parts);
        template.check().map(|()| template)
    }

    fn check(&self) -> Result<(), String> {
        match self.0.first() {
            Some(UrlPart::Literal(text)) if !text.starts_with(['/', '?']) => {
                return Err(format!("path: found {text:?} at its beginning, expected / or ?"));
            }
            Some(UrlPart::Value(Some(placeholder))) => {
                return Err(format!(
                    "path: found {placeholder} at its beginning, where a value could select another host; write /{placeholder}, \
                     which makes the value one segment"
                ));
            }
            _ => {}
        }
        let has_fragment =
            |part: &UrlPart<String, String>| matches!(part, UrlPart::Literal(text) if text.contains('#'));
        match self.0.iter().any(has_fragment) {
            true => Err(
                "path: found #, which begins a fragment; fragments are not sent; write %23 for the character"
                    .to_owned(),
            ),
            false => Ok(()),
        }
    }

    /// Returns the templates. Each is a single placeholder.
    pub fn values(&self) -> impl Iterator<Item = &str> {
        self.0.iter().filter_map(|part| match part {
            UrlPart::Value(Some(placeholder)) => Some(placeholder.as_str()),
            _ => None,
        })
    }

    /// Returns the parts with values. `value` returns the value of the template with an index of
    /// [`PathTemplate::values`].
    pub fn fill<'p>(
        &'p self,
        value: impl Fn(usize) -> Option<&'p [u8]>,
    ) -> impl Iterator<Item = UrlPart<&'p str, &'p [u8]>> {
        let mut next = 0;
        self.0.iter().map(move |part| match part {
            UrlPart::Literal(text) => UrlPart::Literal(text.as_str()),
            UrlPart::Value(_) => {
                next += 1;
                UrlPart::Value(value(next - 1))
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(base: &str, path: &str, values: &[Option<&str>]) -> Result<String, String> {
        let template = PathTemplate::parse(path).expect(path);
        let value = |index: usize| values.get(index).copied().flatten().map(str::as_bytes);
        let uri = BaseUrl::parse(base).expect(base).join(template.fill(value));
        uri.map(|uri| uri.to_string())
    }

    #[test]
    fn literal_paths_are_appended_to_the_base() {
        for (base, path, expected) in [
            ("http://host:80/base", "", "http://host:80/base"),
            ("http://host:80/base/", "", "http://host:80/base"),
            (
                "http://host:80/base",
                "/a/b?x=1&y=%20",
                "http://host:80/base/a/b?x=1&y=%20",
            ),
            (
                "http://host:80/base",
                "/with space/ü",
                "http://host:80/base/with%20space/%C3%BC",
            ),
            ("http://host:80/base", "?x=1", "http://host:80/base?x=1"),
            ("http://host:80", "?x=a/b?c", "http://host:80/?x=a/b?c"),
            ("http://host:80", "/x", "http://host:80/x"),
            ("http://host", "", "http://host/"),
            ("https://[::1]:8443", "/${$}{x}", "https://[::1]:8443/$%7Bx%7D"),
        ] {
            assert_eq!(url(base, path, &[]).as_deref(), Ok(expected), "{base} {path}");
        }
    }

    #[test]
    fn values_are_encoded_within_their_position() {
        for (path, value, expected) in [
            ("/d/${x}/e", "c1", "/d/c1/e"),
            ("/d/${x}/e", "a/b", "/d/a%2Fb/e"),
            ("/d/${x}/e", "a?b=1#c", "/d/a%3Fb%3D1%23c/e"),
            ("/d/${x}/e", "@evil:80", "/d/%40evil%3A80/e"),
            ("/d/${x}/e", "a b%20ü", "/d/a%20b%2520%C3%BC/e"),
            ("/d/${x}/e", "a\r\n\0", "/d/a%0D%0A%00/e"),
            ("/d/${x}/e", "...", "/d/.../e"),
            ("/d/${x}/e", "a.b-c_d~e", "/d/a.b-c_d~e/e"),
            ("/d/id-${x}", "", "/d/id-"),
            ("/d/${x}.${y}", "a", "/d/a.b"),
            ("/d?k=${x}&l=1", "a&b=c+d/../e#f", "/d?k=a%26b%3Dc%2Bd%2F..%2Fe%23f&l=1"),
            ("/d?${x}=1", "a=b&c", "/d?a%3Db%26c=1"),
            ("/d?k=${x}", "", "/d?k="),
            ("?k=${x}", "..", "/?k=.."),
        ] {
            let filled = url("http://h", path, &[Some(value), Some("b")]);
            assert_eq!(filled, Ok(format!("http://h{expected}")), "{path} {value:?}");
        }
        assert_eq!(url("http://h", "/d?k=${x}", &[None]).as_deref(), Ok("http://h/d?k="));
    }

    #[test]
    fn values_with_dot_segments_are_rejected() {
        for (path, values, reason) in [
            ("/d/${x}/e", [Some(".."), None], "dot segment"),
            ("/d/${x}/e", [Some("."), None], "dot segment"),
            ("/d/${x}/e", [Some("../../admin?del=1&x="), None], "dot segment"),
            ("/d/${x}/e", [Some("a\\..\\b"), None], "dot segment"),
            ("/d/${x}/e", [Some("%2e%2E"), None], "dot segment"),
            ("/d/${x}/e", [Some("%2e%2e%2fadmin"), None], "dot segment"),
            ("/d/${x}/e", [Some("..;a=b"), None], "dot segment"),
            ("/d/.${x}/e", [Some("."), None], "dot segment"),
            ("/d/%2e${x}/e", [Some("."), None], "dot segment"),
            ("/d/.%2${x}/e", [Some("e"), None], "dot segment"),
            ("/d/${x}${y}/e", [Some("."), Some(".")], "dot segment"),
            ("/d/${x}?k=1", [Some(".."), None], "dot segment"),
            ("/d/${x}", [Some(".."), None], "dot segment"),
            ("/d/${x}/e", [Some(""), None], "empty"),
            ("/d/${x}", [Some(""), None], "empty"),
            ("/d/${x}/e", [None, None], "missing"),
            ("/d/id-${x}", [None, None], "missing"),
        ] {
            let error = url("http://h", path, &values).expect_err(path);
            assert!(
                error.starts_with("path: ") && error.contains(reason),
                "{path} {values:?}: {error}"
            );
        }
    }

    #[test]
    fn a_fragment_is_not_sent() {
        let base = BaseUrl::parse("http://h").expect("a URL");
        for (parts, expected) in [
            (
                vec![
                    UrlPart::Literal("/a#b"),
                    UrlPart::Value(Some(&b"/c"[..])),
                    UrlPart::Literal("?d"),
                ],
                "http://h/a",
            ),
            (
                vec![UrlPart::Literal("/a?b=1#"), UrlPart::Value(None), UrlPart::Literal("c")],
                "http://h/a?b=1",
            ),
        ] {
            assert_eq!(base.join(parts).expect("a URL").to_string(), expected);
        }
    }

    #[test]
    fn a_value_never_extends_the_host() {
        let base = BaseUrl::parse("http://h:80").expect("a URL");
        for value in ["@evil:81/x", ":81", ".evil", "//evil"] {
            let uri = base.join([UrlPart::Value(Some(value.as_bytes()))]).expect(value);
            assert_eq!(uri.authority().map(Authority::as_str), Some("h:80"), "{uri}");
            let uri = base.join([UrlPart::Literal(value)]).expect(value);
            assert_eq!(uri.authority().map(Authority::as_str), Some("h:80"), "{uri}");
        }
    }

    #[test]
    fn invalid_urls_are_rejected() {
        for (url, reason) in [
            ("http://h:99999", "the address"),
            ("http://h:abc", "port from 1 to 65535"),
            ("http://h:", "the address"),
            ("http://h:/x", "the address"),
            ("http://h:0", "the address"),
            ("http://h:+80", "port from 1 to 65535"),
            ("http://:80", "expected http://"),
            ("http://", "expected http://"),
            ("http:///x", "expected http://"),
            ("h:80", "expected http://"),
            ("ftp://h", "the scheme"),
            ("http://u:p@h", "headers.authorization"),
            ("http://h/x?y", "a query"),
            ("http://h#x", "a fragment"),
            ("http://${h}:80", "a template"),
            ("http://h:${p}", "a template"),
            ("http://h$x", "the host"),
            ("http://a,b", "the host"),
            ("http://[::1", "expected http://"),
            ("http://[h]", "the host"),
            ("", "expected http://"),
        ] {
            let error = BaseUrl::parse(url).expect_err(url);
            assert!(error.starts_with("url: ") && error.contains(reason), "{url}: {error}");
            assert!(!error.contains("u:p"), "{error}");
        }
        for (url, address) in [
            ("http://h", ("h", 80)),
            ("https://h", ("h", 443)),
            ("https://h:065", ("h", 65)),
            ("http://[::1]:81/x", ("::1", 81)),
            ("http://a-b.c_d.example.:65535", ("a-b.c_d.example.", 65_535)),
            ("HTTP://127.0.0.1", ("127.0.0.1", 80)),
        ] {
            assert_eq!(BaseUrl::parse(url).expect(url).address(), address);
        }
    }

    #[test]
    fn paths_that_could_select_a_host_are_rejected() {
        for (path, reason) in [
            ("${path}", "found ${path} at its beginning"),
            ("@evil:80/x", "found \"@evil:80/x\" at its beginning"),
            ("x/${a}", "expected / or ?"),
            ("${$}x", "expected / or ?"),
            ("/a#b", "found #"),
            ("/a/${b", "without a closing }"),
        ] {
            let error = PathTemplate::parse(path).expect_err(path);
            assert!(error.starts_with("path: ") && error.contains(reason), "{path}: {error}");
        }
        let values = |path: &str| -> Vec<String> {
            let template = PathTemplate::parse(path).expect(path);
            template.values().map(str::to_owned).collect()
        };
        assert_eq!(values("/a/${b}?${c.d}=${$}${e[1]}"), ["${b}", "${c.d}", "${e[1]}"]);
        assert_eq!(values(""), Vec::<String>::new());
    }
}
