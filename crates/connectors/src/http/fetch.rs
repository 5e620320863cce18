//! Single HTTP requests to any URL that the configuration names, each on a connection of its own.
//!
//! For rare requests, such as those to a certificate authority, whose URLs are on several hosts. Redirects are not
//! followed: the administrator chooses the hosts.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1;
use hyper::header::{CONNECTION, CONTENT_TYPE, HOST, HeaderValue};
use hyper::{Request, Response, Uri};
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use tokio::time::timeout;

use super::HttpAnswer;
use crate::stream::DialOptions;
use crate::tls::TlsConfig;

/// Sends single requests.
#[derive(Clone)]
pub struct Fetcher {
    tls: TlsConfig,
    /// Created for the first URL with TLS: a system without trusted certificates can fetch the others.
    client: Arc<OnceLock<Arc<ClientConfig>>>,
    /// Limit of a request with its response.
    limit: Duration,
    /// Maximum length of the body of a response. A longer response is an error.
    body_max: usize,
}

/// A request without its `Host`.
pub type FetchRequest = Request<Full<Bytes>>;

impl Fetcher {
    pub fn new(tls: TlsConfig, limit: Duration, body_max: usize) -> Fetcher {
        Fetcher {
            tls,
            client: Arc::default(),
            limit,
            body_max,
        }
    }

    /// Checks the form of a URL.
    pub fn check_url(url: &str) -> Result<(), String> {
        let uri = url.parse::<Uri>().map_err(|error| error.to_string())?;
        Target::of(&uri).map(drop)
    }

    pub async fn get(&self, url: &str) -> Result<HttpAnswer, String> {
        let request = Request::builder().uri(url).body(Full::default());
        self.fetch(request.map_err(|error| format!("invalid URL: {error}"))?)
            .await
    }

    pub async fn post(&self, url: &str, content_type: &'static str, body: Vec<u8>) -> Result<HttpAnswer, String> {
        let request = Request::post(url)
            .header(CONTENT_TYPE, HeaderValue::from_static(content_type))
            .body(Full::new(Bytes::from(body)));
        self.fetch(request.map_err(|error| format!("invalid URL: {error}"))?)
            .await
    }

    /// Sends the request to the host of its URL. The error says why there is no response.
    pub async fn fetch(&self, request: FetchRequest) -> Result<HttpAnswer, String> {
        let target = Target::of(request.uri())?;
        timeout(self.limit, self.exchange(request, &target))
            .await
            .unwrap_or_else(|_| {
                Err(format!(
                    "no complete response of {}:{} within {} ms",
                    target.host,
                    target.port,
                    self.limit.as_millis()
                ))
            })
    }

    fn client(&self) -> Result<Arc<ClientConfig>, String> {
        if let Some(client) = self.client.get() {
            return Ok(client.clone());
        }
        let client = self.tls.client()?;
        Ok(self.client.get_or_init(|| client).clone())
    }

    async fn exchange(&self, mut request: FetchRequest, target: &Target) -> Result<HttpAnswer, String> {
        let dial = DialOptions {
            tls: target.has_tls.then(|| self.client()).transpose()?,
            limit: self.limit,
            targets: None,
        };
        let stream = dial.connect(&target.host, target.port).await?;
        let lost = |error: hyper::Error| format!("the connection to {}:{} was lost: {error}", target.host, target.port);
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(lost)?;
        let origin_form = request.uri().path_and_query().map_or("/", |path| path.as_str());
        *request.uri_mut() = origin_form.parse().map_err(|error| format!("invalid URL: {error}"))?;
        let host = HeaderValue::from_str(&target.authority).map_err(|error| format!("invalid host: {error}"))?;
        request.headers_mut().insert(HOST, host);
        request
            .headers_mut()
            .insert(CONNECTION, HeaderValue::from_static("close"));
        let receive = async {
            let response = sender.send_request(request).await.map_err(lost)?;
            let (head, mut body) = response.into_parts();
            let mut bytes = Vec::new();
            while let Some(frame) = body.frame().await {
                if let Some(data) = frame.map_err(lost)?.data_ref() {
                    if data.len() > self.body_max - bytes.len() {
                        return Err(format!("the response has more than {} bytes", self.body_max));
                    }
                    bytes.extend_from_slice(data);
                }
            }
            Ok(answer(&Response::from_parts(head, ()), bytes))
        };
        tokio::pin!(receive);
        tokio::select! {
            answer = &mut receive => answer,
            // The connection may end before the body is read to its end from the buffer.
            _ = connection => receive.await,
        }
    }
}

fn answer(response: &Response<()>, body: Vec<u8>) -> HttpAnswer {
    let header = |(name, value): (&hyper::header::HeaderName, &HeaderValue)| {
        (
            name.as_str().to_owned(),
            String::from_utf8_lossy(value.as_bytes()).into_owned(),
        )
    };
    HttpAnswer {
        status: response.status().as_u16(),
        reason: response.status().canonical_reason().unwrap_or_default(),
        headers: response.headers().iter().map(header).collect(),
        body,
    }
}

/// Where a URL leads.
struct Target {
    has_tls: bool,
    host: String,
    port: u16,
    /// Host and port as in the URL.
    authority: String,
}

impl Target {
    fn of(uri: &Uri) -> Result<Target, String> {
        let invalid = || format!("found \"{uri}\", expected http://host:port/path or https://host:port/path");
        let has_tls = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            _ => return Err(invalid()),
        };
        let authority = uri.authority().ok_or_else(invalid)?;
        if authority.as_str().contains('@') || authority.host().is_empty() {
            return Err(invalid());
        }
        // The host of an IPv6 address is in brackets.
        let host = authority.host().trim_start_matches('[').trim_end_matches(']');
        Ok(Target {
            has_tls,
            host: host.to_owned(),
            port: authority.port_u16().unwrap_or(if has_tls { 443 } else { 80 }),
            authority: authority.to_string(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_have_a_scheme_and_a_host() {
        for url in ["http://ca.example/a.crl", "https://[2001:db8::1]:8443/x?y=z"] {
            assert_eq!(Fetcher::check_url(url), Ok(()));
        }
        for url in [
            "ca.example",
            "ldap://ca.example/x",
            "http:///x",
            "http://user:secret@ca.example/x",
            "/x",
            "",
        ] {
            assert!(Fetcher::check_url(url).is_err(), "{url}");
        }
        let uri: Uri = "https://[2001:db8::1]/x".parse().unwrap();
        let target = Target::of(&uri).unwrap();
        assert_eq!(
            (&*target.host, target.port, &*target.authority),
            ("2001:db8::1", 443, "[2001:db8::1]")
        );
    }
}
