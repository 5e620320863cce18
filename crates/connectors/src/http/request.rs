//! Builds requests from records: URL, headers, body, signature.

use bytes::Bytes;
use hmac::{Hmac, KeyInit, Mac};
use http_body_util::Full;
use hyper::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use hyper::{Method, Request, Uri};
use sha2::Sha256;

use super::client::HttpConnector;
use super::config::{HttpActionConfig, HttpBatch, HttpMethod};
use super::url::{BaseUrl, PathTemplate};
use crate::record::Record;

/// Order of the fields. Field 0 is empty: earlier versions stored the whole path in it. Records that such a version has
/// buffered have no path values behind the headers.
const BODY: usize = 1;
const HEADERS: usize = 2;

/// The parts of a request that do not depend on the record.
pub(super) struct RequestTemplate {
    method: Method,
    path: PathTemplate,
    content_type: HeaderValue,
    headers: Vec<HeaderName>,
    batch: HttpBatch,
    sign: Option<(HeaderName, Hmac<Sha256>)>,
}

impl RequestTemplate {
    /// Returns `None` if the configuration is invalid.
    pub fn new(config: &HttpActionConfig) -> Option<RequestTemplate> {
        let name = |name: &String| HeaderName::from_bytes(name.as_bytes()).ok();
        let sign = match &config.sign {
            None => None,
            Some(sign) => Some((
                name(&sign.header)?,
                Hmac::new_from_slice(sign.secret.expose().as_bytes()).ok()?,
            )),
        };
        Some(RequestTemplate {
            method: method(config.method),
            path: PathTemplate::parse(&config.path).ok()?,
            content_type: HeaderValue::from_str(&config.content_type).ok()?,
            headers: config.headers.keys().map(name).collect::<Option<_>>()?,
            batch: config.batch,
            sign,
        })
    }

    /// Returns whether both records can share a request.
    pub fn can_share_request(&self, one: &Record, other: &Record) -> bool {
        let fields = self.headers.len() + self.path.values().count();
        let is_same = |field: usize| one.field(HEADERS + field) == other.field(HEADERS + field);
        self.batch != HttpBatch::None && (0..fields).all(is_same)
    }

    /// Returns why no request can contain the record.
    pub fn refusal(&self, base: &BaseUrl, record: &Record) -> Option<String> {
        if self.batch != HttpBatch::None
            && let Err(error) = serde_json::from_slice::<serde::de::IgnoredAny>(body(record))
        {
            return Some(format!("body: is not valid JSON, which batches need: {error}"));
        }
        if let Err(reason) = self.uri(base, record) {
            return Some(reason);
        }
        let bad_header = |index: &usize| {
            let value = record.field(HEADERS + index).unwrap_or_default();
            HeaderValue::from_bytes(value).is_err()
        };
        (0..self.headers.len()).find(bad_header).map(|index| {
            format!(
                "headers.{}: has characters that are not allowed in a header",
                self.headers[index]
            )
        })
    }

    /// Builds the request for `records`, which must not be empty, share one request and have no refusal.
    pub fn request(&self, connector: &HttpConnector, records: &[Record]) -> Result<Request<Full<Bytes>>, String> {
        let first = &records[0];
        let uri = self.uri(connector.base(), first)?;
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
            .map_err(|error| format!("invalid request: {error}"))
    }

    fn uri(&self, base: &BaseUrl, record: &Record) -> Result<Uri, String> {
        let first = HEADERS + self.headers.len();
        base.join(self.path.fill(|index| record.field(first + index)))
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
                    // Valid JSON has line breaks only between values, where they have no meaning.
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

    /// The example of GitHub's documentation of webhooks, whose format receivers know.
    #[test]
    fn bodies_are_signed_as_in_github_webhooks() {
        let key = Hmac::new_from_slice(b"It's a Secret to Everybody").expect("any length");
        let expected = "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17";
        assert_eq!(signature(key, b"Hello, World!"), expected);
    }
}
