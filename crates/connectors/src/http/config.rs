//! Options of the HTTP connector and its action.

use std::collections::BTreeMap;

use hyper::header::{HeaderName, HeaderValue};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize, Serializer};

use super::query::{hide_query_values, is_shown};
use super::status::Statuses;
use super::url::{BaseUrl, PathTemplate};
use crate::config::{at_least, out_of_range};
use crate::secret::{REDACTED, Secret};
use crate::sink::FieldTemplate;
use crate::tls::TlsConfig;

/// Connection to an HTTP server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HttpConnectorConfig {
    /// Base URL, for example `https://example.org:8443/api`. The action's path is appended.
    pub url: String,
    /// Headers of every request, such as `authorization`. The values are never shown.
    #[serde(default)]
    pub headers: BTreeMap<String, Secret>,
    /// Maximum number of connections, which also limits the concurrent requests.
    #[serde(default = "connections_max")]
    #[schemars(range(min = 1, max = 1024))]
    pub connections_max: u32,
    /// Maximum time to connect, in milliseconds.
    #[serde(default = "crate::config::connect_timeout_ms")]
    #[schemars(range(min = 1))]
    pub connect_timeout_ms: u64,
    /// How long an idle connection stays open, in milliseconds.
    #[serde(default = "idle_timeout_ms")]
    pub idle_timeout_ms: u64,
    /// TLS settings for `https`.
    #[serde(default)]
    pub tls: TlsConfig,
}

fn connections_max() -> u32 {
    16
}

fn idle_timeout_ms() -> u64 {
    30_000
}

/// Requests that the action sends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct HttpActionConfig {
    /// Method of the request.
    pub method: HttpMethod,
    /// Template of the path, for example `/devices/${clientid}?t=${payload.t}`. It begins with `/` or `?` and is
    /// appended to the connector's URL. Values are percent-encoded, including `/`, so that a value cannot add a
    /// segment, parameter or host. A message is rejected if a value in the path is missing or empty, or yields the
    /// segment `.` or `..`. Values in the query that are not placeholders are never shown.
    #[serde(serialize_with = "without_query_values")]
    pub path: String,
    /// Templates of headers. A header is omitted if its template yields null. Values that are not placeholders are
    /// never shown, except those of headers without secrets, such as `accept`. Those of headers with credentials, such
    /// as `authorization`, are never shown at all.
    #[serde(serialize_with = "without_credentials")]
    pub headers: BTreeMap<String, String>,
    /// Template of the body. In a batch, each message yields a part of the body.
    pub body: String,
    /// `Content-Type` of the request.
    pub content_type: String,
    pub batch: HttpBatch,
    /// How long the server may take to respond, in milliseconds.
    #[schemars(range(min = 1))]
    pub timeout_ms: u64,
    /// Maximum number of bytes of a response that are read. After a longer response the connection is closed.
    pub answer_bytes_max: u64,
    /// Status codes, such as `429`, and classes, such as `5xx`, after which a message is retried. After 401, 407, 429,
    /// 502, 503 and 504 all messages wait until the server accepts requests again. After other codes only the affected
    /// message waits. Messages are rejected permanently after codes that are not listed here.
    pub retry_statuses: Vec<String>,
    /// Signs bodies, so that the receiver can verify their origin.
    pub sign: Option<HttpSignConfig>,
}

impl Default for HttpActionConfig {
    fn default() -> HttpActionConfig {
        HttpActionConfig {
            method: HttpMethod::Post,
            path: String::new(),
            headers: BTreeMap::new(),
            body: "${.}".to_owned(),
            content_type: "application/json".to_owned(),
            batch: HttpBatch::None,
            timeout_ms: 10_000,
            answer_bytes_max: 64 << 10,
            retry_statuses: ["401", "407", "408", "425", "429", "5xx"].map(str::to_owned).into(),
            sign: None,
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum HttpMethod {
    #[default]
    Post,
    Put,
    Patch,
    Delete,
    Get,
}

/// How messages are combined into requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum HttpBatch {
    /// One request per message.
    #[default]
    None,
    /// One request per batch with a JSON array. Each body must be JSON.
    JsonArray,
    /// One request per batch with a line for each message (NDJSON). Each body must be JSON.
    Ndjson,
}

/// Adds a header `sha256=<HMAC-SHA256 of the body, in hexadecimal>`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HttpSignConfig {
    /// Key of the HMAC.
    pub secret: Secret,
    /// Name of the header.
    #[serde(default = "sign_header")]
    pub header: String,
}

fn sign_header() -> String {
    "x-signature-256".to_owned()
}

/// Serializes headers without the values that can be secrets.
fn without_credentials<S: Serializer>(headers: &BTreeMap<String, String>, serializer: S) -> Result<S::Ok, S::Error> {
    /// Parts of names of headers that usually contain credentials.
    const SECRET: [&str; 7] = ["auth", "cookie", "credential", "key", "password", "secret", "token"];
    const PUBLIC: [&str; 8] = [
        "accept",
        "accept-encoding",
        "accept-language",
        "cache-control",
        "content-encoding",
        "content-language",
        "prefer",
        "user-agent",
    ];
    let is_hidden = |name: &str, value: &str| {
        let name = name.to_ascii_lowercase();
        SECRET.iter().any(|part| name.contains(part)) || !(PUBLIC.contains(&&*name) || is_shown(value))
    };
    let shown = headers.iter().map(|(name, value)| match is_hidden(name, value) {
        true => (name, REDACTED),
        false => (name, value.as_str()),
    });
    serializer.collect_map(shown)
}

fn without_query_values<S: Serializer>(path: &str, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&hide_query_values(path))
}

/// Rejects headers that the HTTP client sets itself: message framing and connection management [RFC 9110, 7.6.1; RFC
/// 9112, 6].
pub(super) fn framing_problem(name: &str) -> Option<String> {
    const OWN: [&str; 7] = [
        "content-length",
        "transfer-encoding",
        "connection",
        "keep-alive",
        "te",
        "trailer",
        "upgrade",
    ];
    let is_own = OWN.iter().any(|own| name.eq_ignore_ascii_case(own));
    is_own.then(|| format!("headers.{name}: is reserved for the HTTP client"))
}

/// Servers and proxies select a site by this header. Therefore a message must not set it.
fn host_problem(name: &str, template: &str) -> Option<String> {
    let is_open = name.eq_ignore_ascii_case("host") && template.contains("${");
    is_open.then(|| format!("headers.{name}: found a template, expected a fixed host"))
}

impl HttpConnectorConfig {
    /// Returns one message per invalid field: the field, its value and the expected value.
    pub fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if let Err(problem) = self.base() {
            problems.push(problem);
        }
        for (name, value) in &self.headers {
            let value = HeaderValue::from_str(value.expose());
            if HeaderName::from_bytes(name.as_bytes()).is_err() || value.is_err() {
                problems.push(format!("headers.{name}: is not a valid HTTP header"));
            }
            problems.extend(framing_problem(name));
        }
        problems.extend(out_of_range([
            ("connections_max", self.connections_max.into(), 1..=1024),
            ("connect_timeout_ms", self.connect_timeout_ms, at_least(1)),
        ]));
        problems.extend(self.tls.client().err());
        problems
    }

    pub(super) fn base(&self) -> Result<BaseUrl, String> {
        BaseUrl::parse(&self.url)
    }
}

impl HttpActionConfig {
    /// Returns one message per invalid field: the field, its value and the expected value.
    pub fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        let fixed = [("content-type", "content_type")];
        for (name, value) in &self.headers {
            if HeaderName::from_bytes(name.as_bytes()).is_err() {
                problems.push(format!("headers.{name}: is not a valid HTTP header name"));
            }
            problems.extend(framing_problem(name));
            problems.extend(host_problem(name, value));
            if let Some((_, field)) = fixed.iter().find(|(fixed, _)| name.eq_ignore_ascii_case(fixed)) {
                problems.push(format!("headers.{name}: use the option {field} instead"));
            }
        }
        if HeaderValue::from_str(&self.content_type).is_err() {
            problems.push("content_type: is not a valid HTTP header value".to_owned());
        }
        problems.extend(out_of_range([("timeout_ms", self.timeout_ms, at_least(1))]));
        problems.extend(Statuses::new(&self.retry_statuses).err().into_iter().flatten());
        if let Some(sign) = &self.sign
            && (HeaderName::from_bytes(sign.header.as_bytes()).is_err() || sign.secret.expose().is_empty())
        {
            problems.push("sign: needs a valid HTTP header name and a secret".to_owned());
        }
        problems.extend(PathTemplate::parse(&self.path).err());
        problems
    }

    /// Returns the templates: an unused one, the body, the headers by name, then each value of the path.
    pub fn templates(&self) -> Vec<FieldTemplate> {
        let mut templates = vec![
            FieldTemplate::new("path", ""),
            FieldTemplate::document("body", &self.body),
        ];
        let header = |(name, text): (&String, &String)| FieldTemplate::new(format!("headers.{name}"), text);
        templates.extend(self.headers.iter().map(header));
        let path = PathTemplate::parse(&self.path).unwrap_or_default();
        templates.extend(path.values().map(|text| FieldTemplate::new("path", text)));
        templates
    }
}
