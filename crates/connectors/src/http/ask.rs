//! A request of its own, beside those of actions: for whoever goes on with the answer.

use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::Full;
use hyper::{Method, Request, Uri};

use super::client::{HttpConnector, NoAnswer};
use super::request::uri;

/// What is asked of a connector's server.
pub struct HttpQuestion {
    /// In capitals.
    pub method: String,
    /// Appended to the connector's URL. Bytes that no URL may have are percent-encoded.
    pub path: String,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
    pub timeout: Duration,
    /// A longer answer is an error.
    pub answer_bytes_max: usize,
}

/// What it says.
#[derive(Debug)]
pub struct HttpAnswer {
    pub status: u16,
    /// `Not Found`.
    pub reason: &'static str,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl HttpConnector {
    /// Asks once. The error says why there is no answer.
    pub async fn ask(&self, question: HttpQuestion) -> Result<HttpAnswer, String> {
        let request = question.request(self.base())?;
        let (until, bytes_max) = (Instant::now() + question.timeout, question.answer_bytes_max);
        let answer = self
            .request(request, until, question.timeout, bytes_max.saturating_add(1))
            .await;
        let answer = answer.map_err(|none| match none {
            NoAnswer::NotBegun => format!("no connection was free within {} ms", question.timeout.as_millis()),
            NoAnswer::Unreachable(reason) | NoAnswer::Lost(reason) | NoAnswer::Late(reason) => reason,
        })?;
        if answer.start.len() > bytes_max {
            return Err(format!("the answer has more than {bytes_max} bytes"));
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
    fn request(&self, base: &Uri) -> Result<Request<Full<Bytes>>, String> {
        let method = Method::from_bytes(self.method.as_bytes()).map_err(|error| error.to_string())?;
        let mut request = Request::builder().method(method).uri(uri(base, self.path.as_bytes())?);
        for (name, value) in &self.headers {
            request = request.header(name, value);
        }
        request
            .body(Full::new(self.body.clone().into()))
            .map_err(|error| format!("no request can be made of this: {error}"))
    }
}
