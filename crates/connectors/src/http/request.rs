//! From records to requests: URL, headers, body, signature.

use bytes::Bytes;
use hmac::{Hmac, KeyInit, Mac};
use http_body_util::Full;
use hyper::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use hyper::{Method, Request, Uri};
use sha2::Sha256;

use super::client::HttpConnector;
use super::config::{HttpActionConfig, HttpBatch, HttpMethod};
use crate::record::Record;

/// Order of the action's templates.
const PATH: usize = 0;
const BODY: usize = 1;
const HEADERS: usize = 2;

/// The parts of a request that are the same for every record.
pub(super) struct Form {
    method: Method,
    content_type: HeaderValue,
    headers: Vec<HeaderName>,
    batch: HttpBatch,
    sign: Option<(HeaderName, Hmac<Sha256>)>,
}

impl Form {
    /// `None`: the configuration has problems.
    pub fn new(config: &HttpActionConfig) -> Option<Form> {
        let name = |name: &String| HeaderName::from_bytes(name.as_bytes()).ok();
        let sign = match &config.sign {
            None => None,
            Some(sign) => Some((
                name(&sign.header)?,
                Hmac::new_from_slice(sign.secret.expose().as_bytes()).ok()?,
            )),
        };
        Some(Form {
            method: method(config.method),
            content_type: HeaderValue::from_str(&config.content_type).ok()?,
            headers: config.headers.keys().map(name).collect::<Option<_>>()?,
            batch: config.batch,
            sign,
        })
    }

    /// Whether both can be in one request.
    pub fn fit_together(&self, one: &Record, other: &Record) -> bool {
        let same = |field: usize| one.field(field) == other.field(field);
        self.batch != HttpBatch::None && same(PATH) && (0..self.headers.len()).all(|header| same(HEADERS + header))
    }

    /// Why a record cannot be in any request.
    pub fn refusal(&self, record: &Record) -> Option<String> {
        if self.batch != HttpBatch::None
            && let Err(error) = serde_json::from_slice::<serde::de::IgnoredAny>(body(record))
        {
            return Some(format!("body: is no JSON, which a batch is made of: {error}"));
        }
        let bad_header = |index: &usize| {
            let value = record.field(HEADERS + index).unwrap_or_default();
            HeaderValue::from_bytes(value).is_err()
        };
        (0..self.headers.len()).find(bad_header).map(|index| {
            format!(
                "headers.{}: has characters that no header may have",
                self.headers[index]
            )
        })
    }

    /// The request for `records`, which fit together and none of which is refused; not empty.
    pub fn request(&self, connector: &HttpConnector, records: &[Record]) -> Result<Request<Full<Bytes>>, String> {
        let first = &records[0];
        let uri = uri(connector.base(), first.field(PATH).unwrap_or_default())?;
        let body = self.body(records);
        let mut request = Request::builder().method(self.method.clone()).uri(uri);
        for (name, value) in connector.headers() {
            request = request.header(name, value);
        }
        for (index, name) in self.headers.iter().enumerate() {
            if let Some(value) = first.field(HEADERS + index) {
                request = request.header(name, value);
            }
        }
        if let Some((name, key)) = &self.sign {
            request = request.header(name, signature(key.clone(), &body));
        }
        request = request.header(CONTENT_TYPE, &self.content_type);
        request
            .body(Full::new(body.into()))
            .map_err(|error| format!("no request can be made of this: {error}"))
    }

    fn body(&self, records: &[Record]) -> Vec<u8> {
        let mut out = Vec::with_capacity(records.iter().map(|record| body(record).len() + 1).sum::<usize>() + 2);
        match self.batch {
            HttpBatch::None => out.extend_from_slice(body(&records[0])),
            HttpBatch::JsonArray => {
                for (index, record) in records.iter().enumerate() {
                    out.push(if index == 0 { b'[' } else { b',' });
                    out.extend_from_slice(body(record));
                }
                out.push(b']');
            }
            HttpBatch::Ndjson => {
                for record in records {
                    // Between the values of valid JSON line breaks mean nothing, and inside of them there are none.
                    out.extend(body(record).iter().filter(|byte| !matches!(byte, b'\n' | b'\r')));
                    out.push(b'\n');
                }
            }
        }
        out
    }
}

fn body(record: &Record) -> &[u8] {
    record.field(BODY).unwrap_or_default()
}

fn method(method: HttpMethod) -> Method {
    match method {
        HttpMethod::Post => Method::POST,
        HttpMethod::Put => Method::PUT,
        HttpMethod::Patch => Method::PATCH,
        HttpMethod::Delete => Method::DELETE,
        HttpMethod::Get => Method::GET,
    }
}

pub(super) fn uri(base: &Uri, path: &[u8]) -> Result<Uri, String> {
    let mut text = base.to_string();
    if !path.is_empty() || base.path() == "/" {
        text.truncate(text.trim_end_matches('/').len());
    }
    for &byte in path {
        if byte.is_ascii_graphic() && !b"\"#<>\\^`{|}".contains(&byte) {
            text.push(byte.into());
        } else {
            text.push_str(&format!("%{byte:02X}"));
        }
    }
    text.parse().map_err(|error| format!("path: makes no URL: {error}"))
}

fn signature(mut key: Hmac<Sha256>, body: &[u8]) -> String {
    key.update(body);
    let mut text = "sha256=".to_owned();
    for byte in key.finalize().into_bytes() {
        text.push_str(&format!("{byte:02x}"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_make_urls() {
        let base: Uri = "http://host:80/base".parse().expect("a URL");
        for (path, expected) in [
            ("", "http://host:80/base"),
            ("/a/b?x=1&y=%20", "http://host:80/base/a/b?x=1&y=%20"),
            ("/with space/ü#", "http://host:80/base/with%20space/%C3%BC%23"),
        ] {
            assert_eq!(uri(&base, path.as_bytes()).expect(path).to_string(), expected);
        }
        let bare: Uri = "http://host:80".parse().expect("a URL");
        assert_eq!(uri(&bare, b"/x").expect("a URL").to_string(), "http://host:80/x");
    }

    /// The example of GitHub's documentation of webhooks, from which receivers know the form.
    #[test]
    fn bodies_are_signed_as_receivers_expect() {
        let key = Hmac::new_from_slice(b"It's a Secret to Everybody").expect("any length");
        let expected = "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17";
        assert_eq!(signature(key, b"Hello, World!"), expected);
    }
}
