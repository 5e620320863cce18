//! The HTTP client that the ACME library uses. It limits time and size, and notes what the library does not return:
//! whether the authority answered, and when it wants the next request.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use connectors::TlsConfig;
use connectors::http::{Fetcher, HttpAnswer};
use http_body_util::{BodyExt, Full};
use hyper::{Request, Response};
use instant_acme::{BodyWrapper, BytesResponse, Error, HttpClient};

use super::AcmeConfig;

/// Maximum length of an answer: a certificate chain has some kilobytes.
const BODY_MAX: usize = 1 << 20;
/// An authority cannot stop the renewal for longer than this.
pub const RETRY_AFTER_MAX: Duration = Duration::from_secs(24 * 3600);

/// State of the connection to the authority, which the library does not report.
#[derive(Clone, Debug, Default)]
pub struct Exchange(Arc<Mutex<ExchangeState>>);

#[derive(Clone, Copy, Debug, Default)]
pub struct ExchangeState {
    /// The last request had no answer.
    pub is_unreachable: bool,
    /// `Retry-After` of the last answer if that was an error.
    pub retry_after: Option<Duration>,
}

impl Exchange {
    pub fn state(&self) -> ExchangeState {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, state: ExchangeState) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = state;
    }
}

#[derive(Clone)]
pub struct AcmeClient {
    fetcher: Fetcher,
    exchange: Exchange,
}

impl AcmeClient {
    pub fn new(config: &AcmeConfig, exchange: &Exchange) -> AcmeClient {
        let tls = TlsConfig {
            ca_file: config.ca_file.clone(),
            ..TlsConfig::default()
        };
        AcmeClient {
            fetcher: Fetcher::new(tls, config.timing.request_limit, BODY_MAX),
            exchange: exchange.clone(),
        }
    }
}

impl AcmeClient {
    /// Sends a request, and notes what the answer says.
    pub async fn send(&self, request: Request<Full<Bytes>>) -> Result<HttpAnswer, Error> {
        // The authority chooses the URLs, and the answers decide about certificates.
        if request.uri().scheme_str() != Some("https") {
            let reason = format!(
                "the authority names the URL {}, which is not one with https",
                request.uri()
            );
            return Err(Error::Other(reason.into()));
        }
        let answer = self.fetcher.fetch(request).await.map_err(|reason| {
            self.exchange.note(ExchangeState {
                is_unreachable: true,
                retry_after: None,
            });
            Error::Other(reason.into())
        })?;
        let is_error = answer.status >= 400;
        self.exchange.note(ExchangeState {
            // An overloaded or broken authority is like one that does not answer.
            is_unreachable: answer.status >= 500,
            retry_after: header(&answer, "retry-after")
                .filter(|_| is_error)
                .and_then(retry_after),
        });
        let is_problem = header(&answer, "content-type").is_some_and(|kind| kind.contains("json"));
        if is_error && !is_problem {
            let reason = format!("it answered {} {}", answer.status, answer.reason);
            return Err(Error::Other(reason.into()));
        }
        Ok(answer)
    }
}

impl HttpClient for AcmeClient {
    fn request(
        &self,
        request: Request<BodyWrapper<Bytes>>,
    ) -> Pin<Box<dyn Future<Output = Result<BytesResponse, Error>> + Send>> {
        let client = self.clone();
        Box::pin(async move {
            let (head, body) = request.into_parts();
            let body = body
                .collect()
                .await
                .map_or_else(|never| match never {}, |body| body.to_bytes());
            let answer = client.send(Request::from_parts(head, Full::from(body))).await?;
            response(answer)
        })
    }
}

fn response(answer: HttpAnswer) -> Result<BytesResponse, Error> {
    let mut response = Response::builder().status(answer.status);
    for (name, value) in &answer.headers {
        response = response.header(name, value);
    }
    Ok(response.body(Full::new(Bytes::from(answer.body)))?.into())
}

/// Returns a header of an answer. `name` is in lower case.
pub fn header<'a>(answer: &'a HttpAnswer, name: &str) -> Option<&'a str> {
    let found = answer.headers.iter().find(|(other, _)| other == name);
    found.map(|(_, value)| value.as_str())
}

/// Seconds, or a date such as `Fri, 31 Dec 1999 23:59:59 GMT`.
fn retry_after(value: &str) -> Option<Duration> {
    let pause = match value.trim().parse::<u64>() {
        Ok(seconds) => Duration::from_secs(seconds),
        Err(_) => {
            let date = jiff::fmt::rfc2822::parse(value.trim()).ok()?;
            SystemTime::from(date.timestamp())
                .duration_since(SystemTime::now())
                .unwrap_or_default()
        }
    };
    Some(pause.min(RETRY_AFTER_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_after_is_seconds_or_a_date() {
        assert_eq!(retry_after("7"), Some(Duration::from_secs(7)));
        assert_eq!(retry_after("999999999"), Some(RETRY_AFTER_MAX));
        assert_eq!(retry_after("Fri, 31 Dec 1999 23:59:59 GMT"), Some(Duration::ZERO));
        assert_eq!(retry_after("Tue, 31 Dec 2199 23:59:59 GMT"), Some(RETRY_AFTER_MAX));
        assert_eq!(retry_after("soon"), None);
    }
}
