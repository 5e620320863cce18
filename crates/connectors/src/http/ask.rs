//! Single HTTP requests outside of actions, for callers that need the response.

use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::Full;
use hyper::{Method, Request};

use super::client::{HttpConnector, RequestFailure};
use super::config::framing_problem;
use super::url::{BaseUrl, UrlPart};

/// A request to the connector's server.
pub struct HttpQuestion {
    /// Method in capitals.
    pub method: String,
    /// Appended to the connector's URL.
    pub path: Vec<UrlPart<String, String>>,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
    pub timeout: Duration,
    /// Maximum length of the response body. A longer response is an error.
    pub answer_bytes_max: usize,
}

/// A response.
#[derive(Clone, Debug)]
pub struct HttpAnswer {
    pub status: u16,
    /// Reason phrase, for example `Not Found`.
    pub reason: &'static str,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl HttpConnector {
    /// Checks that the values of a path are allowed. A request with another path fails without being sent.
    pub fn check_path(&self, path: &[UrlPart<String, String>]) -> Result<(), String> {
        self.base().join(borrowed(path)).map(drop)
    }

    /// Sends the request once. The error says why there is no response.
    pub async fn ask(&self, question: HttpQuestion) -> Result<HttpAnswer, String> {
        let request = question.request(self.base())?;
        let (until, bytes_max) = (Instant::now() + question.timeout, question.answer_bytes_max);
        let answer = self
            .request(request, until, question.timeout, bytes_max.saturating_add(1))
            .await;
        let answer = answer.map_err(|none| match none {
            RequestFailure::NotStarted => format!("no connection was free within {} ms", question.timeout.as_millis()),
            RequestFailure::Unreachable(reason)
            | RequestFailure::ConnectionLost(reason)
            | RequestFailure::TimedOut(reason) => reason,
        })?;
        if answer.start.len() > bytes_max {
            return Err(format!("the response has more than {bytes_max} bytes"));
        }
        let response = &answer.response;
        let header = |(name, value): (&hyper::header::HeaderName, &hyper::header::HeaderValue)| {
            (
                name.as_str().to_owned(),
                String::from_utf8_lossy(value.as_bytes()).into_owned(),
            )
        };
        Ok(HttpAnswer {
            status: response.status().as_u16(),
            reason: response.status().canonical_reason().unwrap_or_default(),
            headers: response.headers().iter().map(header).collect(),
            body: answer.start.to_vec(),
        })
    }
}

impl HttpQuestion {
    fn request(&self, base: &BaseUrl) -> Result<Request<Full<Bytes>>, String> {
        let method = Method::from_bytes(self.method.as_bytes()).map_err(|error| error.to_string())?;
        let uri = base.join(borrowed(&self.path))?;
        let mut request = Request::builder().method(method).uri(uri);
        for (name, value) in &self.headers {
            if let Some(problem) = framing_problem(name) {
                return Err(problem);
            }
            request = request.header(name, value);
        }
        request
            .body(Full::new(self.body.clone().into()))
            .map_err(|error| format!("invalid request: {error}"))
    }
}

fn borrowed(path: &[UrlPart<String, String>]) -> impl Iterator<Item = UrlPart<&str, &[u8]>> {
    path.iter().map(|part| match part {
        UrlPart::Literal(text) => UrlPart::Literal(text.as_str()),
        UrlPart::Value(value) => UrlPart::Value(value.as_deref().map(str::as_bytes)),
    })
}
