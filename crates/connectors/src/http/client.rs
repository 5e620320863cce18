//! Connections to one server: pool, TLS, and a limit of their number.

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
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;
use tower_service::Service;
use trust::Targets;

use super::config::HttpConnectorConfig;
use super::url::BaseUrl;
use crate::stream::{ConnectorStream, DialOptions};

/// A server with its connection pool, shared by the actions that use it.
pub struct HttpConnector {
    base: BaseUrl,
    headers: Vec<(HeaderName, HeaderValue)>,
    client: Client<Dialer, Full<Bytes>>,
    dial: Dialer,
    /// One permit per request in flight. A connection carries one request at a time.
    permits: Semaphore,
    /// The server has requested a pause until then.
    paused_until: Mutex<Option<Instant>>,
}

/// A response with the beginning of its body.
pub(super) struct ResponseStart {
    pub response: Response<()>,
    pub start: Bytes,
}

/// Why there is no response.
pub(super) enum RequestFailure {
    /// The time was up before a connection became free.
    NotStarted,
    /// No connection was established. The request was not sent.
    Unreachable(String),
    /// The connection was lost. The request may have been sent.
    ConnectionLost(String),
    /// The request timed out. It may have been sent.
    TimedOut(String),
}

impl HttpConnector {
    /// Creates a connector. The errors name the fields.
    pub fn new(config: &HttpConnectorConfig) -> Result<HttpConnector, Vec<String>> {
        HttpConnector::with_targets(config, None)
    }

    /// Creates a connector that only connects to addresses that `targets` allows. Redirects are not followed, so that
    /// every address is checked.
    pub fn with_targets(config: &HttpConnectorConfig, targets: Option<Targets>) -> Result<HttpConnector, Vec<String>> {
        let problems = config.problems();
        if !problems.is_empty() {
            return Err(problems);
        }
        let one = |problem| vec![problem];
        let base = config.base().map_err(one)?;
        let dial = Dialer {
            base: base.clone(),
            dialing: DialOptions {
                tls: base.is_tls().then(|| config.tls.client()).transpose().map_err(one)?,
                limit: Duration::from_millis(config.connect_timeout_ms),
                targets,
            },
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
            paused_until: Mutex::new(None),
        })
    }

    pub(super) fn base(&self) -> &BaseUrl {
        &self.base
    }

    pub(super) fn headers(&self) -> &[(HeaderName, HeaderValue)] {
        &self.headers
    }

    /// Checks that a connection can be established. Sends no request, because every request could have effects.
    pub(super) async fn check(&self) -> Result<(), String> {
        if let Some(reason) = self.pause_reason() {
            return Err(reason);
        }
        self.dial.stream().await.map(drop)
    }

    /// Returns the reason if the server has requested a pause.
    pub(super) fn pause_reason(&self) -> Option<String> {
        let until = (*self.paused_until.lock().unwrap_or_else(PoisonError::into_inner))?;
        let left = until.checked_duration_since(Instant::now())?;
        Some(format!(
            "the server requested a pause of another {} ms (retry-after)",
            left.as_millis()
        ))
    }

    pub(super) fn pause_for(&self, pause: Duration) {
        *self.paused_until.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now().checked_add(pause);
    }

    /// Sends the request, if a connection is free before `until`, and reads at most `bytes_max` of the response.
    pub(super) async fn request(
        &self,
        request: Request<Full<Bytes>>,
        until: Instant,
        limit: Duration,
        bytes_max: usize,
    ) -> Result<ResponseStart, RequestFailure> {
        let _permit = self
            .permits
            .acquire()
            .await
            .expect("the semaphore is never closed while the connector lives");
        if Instant::now() >= until {
            return Err(RequestFailure::NotStarted);
        }
        let exchange = async {
            let response = self.client.request(request).await.map_err(request_failure)?;
            let (head, body) = response.into_parts();
            let start = read_start(body, bytes_max).await?;
            let response = Response::from_parts(head, ());
            Ok(ResponseStart { response, start })
        };
        let late = |_| RequestFailure::TimedOut(format!("no response within {} ms (timeout_ms)", limit.as_millis()));
        timeout(limit, exchange).await.map_err(late)?
    }
}

fn header((name, value): (&String, &crate::secret::Secret)) -> Option<(HeaderName, HeaderValue)> {
    // `problems` has reported invalid headers.
    let name = HeaderName::from_bytes(name.as_bytes()).ok()?;
    let mut value = HeaderValue::from_str(value.expose()).ok()?;
    value.set_sensitive(true);
    Some((name, value))
}

fn request_failure(error: hyper_util::client::legacy::Error) -> RequestFailure {
    let text = chain(&error);
    match error.is_connect() {
        true => RequestFailure::Unreachable(text),
        false => RequestFailure::ConnectionLost(format!("the connection was lost before the response: {text}")),
    }
}

/// Returns the innermost error, which has hyper's reason.
fn chain(error: &dyn std::error::Error) -> String {
    let mut innermost = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    innermost.to_string()
}

/// Reads at most `bytes_max`. A response that is read completely leaves the connection usable; a longer one closes it.
async fn read_start(mut body: Incoming, bytes_max: usize) -> Result<Bytes, RequestFailure> {
    let mut start = Vec::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| {
            RequestFailure::ConnectionLost(format!("the connection was lost during the response: {error}"))
        })?;
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

/// Opens connections for the pool.
#[derive(Clone)]
struct Dialer {
    /// Every connection goes to the connector's server, for any URL of a request.
    base: BaseUrl,
    dialing: DialOptions,
    /// One permit per connection. The pool may open a connection in advance that it does not use.
    permits: Arc<Semaphore>,
}

impl Dialer {
    async fn stream(&self) -> Result<ConnectorStream, String> {
        let (host, port) = self.base.address();
        self.dialing.connect(host, port).await
    }

    async fn connect(self) -> io::Result<TokioIo<CountedConnection>> {
        let permit = Arc::clone(&self.permits)
            .acquire_owned()
            .await
            .map_err(io::Error::other)?;
        let stream = self.stream().await.map_err(io::Error::other)?;
        Ok(TokioIo::new(CountedConnection {
            stream,
            _permit: permit,
        }))
    }
}

impl Service<Uri> for Dialer {
    type Response = TokioIo<CountedConnection>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<TokioIo<CountedConnection>>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        Box::pin(self.clone().connect())
    }
}

/// An open connection with its permit.
struct CountedConnection {
    stream: ConnectorStream,
    _permit: OwnedSemaphorePermit,
}

impl Connection for CountedConnection {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl AsyncRead for CountedConnection {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, into)
    }
}

impl AsyncWrite for CountedConnection {
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
