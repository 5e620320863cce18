//! The connections to one server: a pool that keeps them, TLS, and a limit on how many there are.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::header::{HeaderName, HeaderValue};
use hyper::{Request, Response, Uri};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rustls::ClientConfig;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;
use tower_service::Service;

use super::config::HttpConnectorConfig;
use crate::stream::{Stream, connect};

/// Shared by the actions that request from one server.
pub struct HttpConnector {
    base: Uri,
    headers: Vec<(HeaderName, HeaderValue)>,
    client: Client<Dial, Full<Bytes>>,
    dial: Dial,
    /// One permit for each request on its way: a connection has one at a time.
    permits: Semaphore,
    /// The server has asked for silence until then.
    silent_until: Mutex<Option<Instant>>,
}

/// What came back, as far as it was read.
pub(super) struct Answer {
    pub response: Response<()>,
    pub start: Bytes,
}

/// Why there is no answer.
pub(super) enum NoAnswer {
    /// It was too late to begin when a connection was free.
    NotBegun,
    /// There is no connection: the request was not sent.
    Unreachable(String),
    /// The request may have been sent.
    Lost(String),
    /// As `Lost`, because time was over.
    Late(String),
}

impl HttpConnector {
    /// The errors name the fields.
    pub fn new(config: &HttpConnectorConfig) -> Result<HttpConnector, Vec<String>> {
        let problems = config.problems();
        if !problems.is_empty() {
            return Err(problems);
        }
        let one = |problem| vec![problem];
        let base = config.base().map_err(one)?;
        let is_tls = base.scheme_str() == Some("https");
        let dial = Dial {
            tls: is_tls.then(|| config.tls.client()).transpose().map_err(one)?,
            limit: Duration::from_millis(config.connect_timeout_ms),
            permits: Arc::new(Semaphore::new(config.connections_max as usize)),
        };
        let client = Client::builder(TokioExecutor::new())
            .pool_idle_timeout(Duration::from_millis(config.idle_timeout_ms))
            .pool_max_idle_per_host(config.connections_max as usize)
            .pool_timer(TokioTimer::new())
            .build(dial.clone());
        Ok(HttpConnector {
            base,
            headers: config.headers.iter().filter_map(header).collect(),
            client,
            dial,
            permits: Semaphore::new(config.connections_max as usize),
            silent_until: Mutex::new(None),
        })
    }

    pub(super) fn base(&self) -> &Uri {
        &self.base
    }

    pub(super) fn headers(&self) -> &[(HeaderName, HeaderValue)] {
        &self.headers
    }

    /// Whether there is a server. It is not asked anything: no request is sure to be harmless.
    pub(super) async fn check(&self) -> Result<(), String> {
        if let Some(reason) = self.silence() {
            return Err(reason);
        }
        let (host, port) = address(&self.base);
        connect(host, port, self.dial.tls.as_ref(), self.dial.limit)
            .await
            .map(drop)
    }

    /// Why nothing may be sent now.
    pub(super) fn silence(&self) -> Option<String> {
        let until = (*self.silent_until.lock().unwrap_or_else(PoisonError::into_inner))?;
        let left = until.checked_duration_since(Instant::now())?;
        Some(format!("the server wants no requests for {} ms more", left.as_millis()))
    }

    pub(super) fn be_silent_for(&self, pause: Duration) {
        *self.silent_until.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now().checked_add(pause);
    }

    /// Sends the request, if that can begin before `until`, and reads `bytes_max` of the answer.
    pub(super) async fn request(
        &self,
        request: Request<Full<Bytes>>,
        until: Instant,
        limit: Duration,
        bytes_max: usize,
    ) -> Result<Answer, NoAnswer> {
        let _permit = self
            .permits
            .acquire()
            .await
            .expect("the semaphore is never closed while the connector lives");
        if Instant::now() >= until {
            return Err(NoAnswer::NotBegun);
        }
        let exchange = async {
            let response = self.client.request(request).await.map_err(no_answer)?;
            let (head, body) = response.into_parts();
            let start = read_start(body, bytes_max).await?;
            let response = Response::from_parts(head, ());
            Ok(Answer { response, start })
        };
        let late = |_| NoAnswer::Late(format!("no answer within {} ms", limit.as_millis()));
        timeout(limit, exchange).await.map_err(late)?
    }
}

fn header((name, value): (&String, &crate::secret::Secret)) -> Option<(HeaderName, HeaderValue)> {
    // `problems` has told those that are none.
    let name = HeaderName::from_bytes(name.as_bytes()).ok()?;
    let mut value = HeaderValue::from_str(value.expose()).ok()?;
    value.set_sensitive(true);
    Some((name, value))
}

fn no_answer(error: hyper_util::client::legacy::Error) -> NoAnswer {
    let text = chain(&error);
    match error.is_connect() {
        true => NoAnswer::Unreachable(text),
        false => NoAnswer::Lost(format!("the connection was lost before the answer: {text}")),
    }
}

/// What hyper says is in the errors below its own.
fn chain(error: &dyn std::error::Error) -> String {
    let mut innermost = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    innermost.to_string()
}

/// Reads an answer so that its connection can be used again; a longer one costs the connection.
async fn read_start(mut body: Incoming, bytes_max: usize) -> Result<Bytes, NoAnswer> {
    let mut start = Vec::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| NoAnswer::Lost(format!("the answer broke off: {error}")))?;
        if let Some(data) = frame.data_ref() {
            let room = bytes_max - start.len();
            start.extend_from_slice(&data[..data.len().min(room)]);
            if data.len() > room {
                break;
            }
        }
    }
    Ok(start.into())
}

fn address(uri: &Uri) -> (&str, u16) {
    let port = uri.port_u16().unwrap_or(match uri.scheme_str() {
        Some("https") => 443,
        _ => 80,
    });
    // An IPv6 address stands in brackets.
    (uri.host().unwrap_or_default().trim_matches(['[', ']']), port)
}

/// Makes connections for the pool.
#[derive(Clone)]
struct Dial {
    tls: Option<Arc<ClientConfig>>,
    limit: Duration,
    /// One for each connection. The pool makes one beforehand when it has none to spare, used or not.
    permits: Arc<Semaphore>,
}

impl Dial {
    async fn connect(self, uri: Uri) -> io::Result<TokioIo<Counted>> {
        let permit = self.permits.acquire_owned().await.map_err(io::Error::other)?;
        let (host, port) = address(&uri);
        let stream = connect(host, port, self.tls.as_ref(), self.limit).await;
        let stream = stream.map_err(io::Error::other)?;
        Ok(TokioIo::new(Counted {
            stream,
            _permit: permit,
        }))
    }
}

impl Service<Uri> for Dial {
    type Response = TokioIo<Counted>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<TokioIo<Counted>>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        Box::pin(self.clone().connect(uri))
    }
}

/// A connection that counts as long as it is open.
struct Counted {
    stream: Stream,
    _permit: OwnedSemaphorePermit,
}

impl Connection for Counted {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl AsyncRead for Counted {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, into)
    }
}

impl AsyncWrite for Counted {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
