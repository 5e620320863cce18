//! Options of the HTTP connector and its action.

use std::collections::BTreeMap;

use hyper::Uri;
use hyper::header::{HeaderName, HeaderValue};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::status::Statuses;
use crate::config::{at_least, out_of_range};
use crate::secret::Secret;
use crate::sink::Template;
use crate::tls::TlsConfig;

/// Where requests go.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HttpConnectorConfig {
    /// `http://host:port/path` or `https://…`. The actions' paths are appended.
    pub url: String,
    /// Headers of every request, such as `authorization`. They are never shown.
    #[serde(default)]
    pub headers: BTreeMap<String, Secret>,
    /// Connections at a time, and so requests at a time.
    #[serde(default = "connections_max")]
    #[schemars(range(min = 1, max = 1024))]
    pub connections_max: u32,
    /// How long connecting may take, in milliseconds.
    #[serde(default = "crate::config::connect_timeout_ms")]
    #[schemars(range(min = 1))]
    pub connect_timeout_ms: u64,
    /// How long a connection is kept that nobody uses, in milliseconds.
    #[serde(default = "idle_timeout_ms")]
    pub idle_timeout_ms: u64,
    /// TLS, for `https`.
    #[serde(default)]
    pub tls: TlsConfig,
}

fn connections_max() -> u32 {
    16
}

fn idle_timeout_ms() -> u64 {
    30_000
}

/// What is requested for each message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct HttpActionConfig {
    pub method: HttpMethod,
    /// Template. Appended to the connector's URL; may hold a query. Bytes that no URL may have are percent-encoded.
    pub path: String,
    /// Templates of headers. A header whose template gives null is left out.
    pub headers: BTreeMap<String, String>,
    /// Template. The body of the request, or one part of it in a batch.
    pub body: String,
    pub content_type: String,
    pub batch: HttpBatch,
    /// How long the server may take to answer, in milliseconds.
    #[schemars(range(min = 1))]
    pub timeout_ms: u64,
    /// Bytes of an answer that are read. A connection that answers more is closed.
    pub answer_bytes_max: u64,
    /// Statuses, such as `429`, and classes of them, such as `5xx`, after which a message is sent again. After 401, 407, 429, 502, 503 and 504
    /// all wait until the server is there for us, after the others only this message. What is not named here is refused for ever.
    pub retry_statuses: Vec<String>,
    /// Signs bodies, so that the receiver can tell that they are ours.
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

/// How the messages of a batch become requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum HttpBatch {
    /// A request for each message.
    #[default]
    None,
    /// One request with a JSON array. Each body must be JSON.
    JsonArray,
    /// One request with a line for each message (NDJSON). Each body must be JSON.
    Ndjson,
}

/// A header `sha256=<HMAC-SHA256 of the body, in hexadecimal>`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HttpSignConfig {
    pub secret: Secret,
    #[serde(default = "sign_header")]
    pub header: String,
}

fn sign_header() -> String {
    "x-signature-256".to_owned()
}

/// Headers that say where a request ends and how long its connection lives are the client's own [RFC 9110, 7.6.1; RFC 9112, 6].
fn framing_problem(name: &str) -> Option<String> {
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
    is_own.then(|| format!("headers.{name}: is set by the HTTP client itself"))
}

impl HttpConnectorConfig {
    /// All that is wrong with it: the field and what it should be.
    pub fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if let Err(problem) = self.base() {
            problems.push(problem);
        }
        for (name, value) in &self.headers {
            let value = HeaderValue::from_str(value.expose());
            if HeaderName::from_bytes(name.as_bytes()).is_err() || value.is_err() {
                problems.push(format!("headers.{name}: is no HTTP header"));
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

    /// The URL without a `/` at its end.
    pub(super) fn base(&self) -> Result<Uri, String> {
        let expected = "url: must be http://host:port/path or https://host:port/path";
        let uri: Uri = self
            .url
            .trim_end_matches('/')
            .parse()
            .map_err(|error| format!("{expected}: {error}"))?;
        let authority = uri.authority().ok_or(expected)?;
        if !matches!(uri.scheme_str(), Some("http" | "https")) || uri.query().is_some() {
            return Err(expected.to_owned());
        }
        if authority.as_str().contains('@') {
            return Err("url: must not hold a password; use headers.authorization".to_owned());
        }
        Ok(uri)
    }
}

impl HttpActionConfig {
    /// All that is wrong with it: the field and what it should be.
    pub fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        let fixed = [("content-type", "content_type")];
        for name in self.headers.keys() {
            if HeaderName::from_bytes(name.as_bytes()).is_err() {
                problems.push(format!("headers.{name}: is no name of an HTTP header"));
            }
            problems.extend(framing_problem(name));
            if let Some((_, field)) = fixed.iter().find(|(fixed, _)| name.eq_ignore_ascii_case(fixed)) {
                problems.push(format!("headers.{name}: use the field {field}"));
            }
        }
        if HeaderValue::from_str(&self.content_type).is_err() {
            problems.push("content_type: is no value of an HTTP header".to_owned());
        }
        problems.extend(out_of_range([("timeout_ms", self.timeout_ms, at_least(1))]));
        problems.extend(Statuses::new(&self.retry_statuses).err().into_iter().flatten());
        if let Some(sign) = &self.sign
            && (HeaderName::from_bytes(sign.header.as_bytes()).is_err() || sign.secret.expose().is_empty())
        {
            problems.push("sign: needs the name of an HTTP header and a secret".to_owned());
        }
        if !self.path.is_empty() && !self.path.starts_with(['/', '?', '$']) {
            problems.push("path: must begin with / or ?".to_owned());
        }
        problems
    }

    /// The templates to fill in for each message: path, body, then the headers by name.
    pub fn templates(&self) -> Vec<Template> {
        let mut templates = vec![Template::new("path", &self.path), Template::new("body", &self.body)];
        let header = |(name, text): (&String, &String)| Template::new(format!("headers.{name}"), text);
        templates.extend(self.headers.iter().map(header));
        templates
    }
}
