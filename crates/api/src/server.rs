//! Starts and stops the HTTP server, and handles connections and requests before they reach the router.
//!
//! Uses hyper directly, because `axum::serve` has no time limits. Here the header has one, as do the body
//! (`body.rs`), the answer, and writes to a client that does not read (`stall.rs`).

use std::convert::Infallible;
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode, Uri, header};
use axum::response::IntoResponse;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use net::descriptors::SpareDescriptor;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tower_service::Service;
use trust::own::trusted_peer;

use crate::access_admin::AccessAdmin;
use crate::admins::Admins;
use crate::alarm_watch;
use crate::app::{ApiCounters, App};
use crate::config::{ApiConfig, ConfigValue, NodeInfo};
use crate::connection_slots::{ConnectionSlot, ConnectionSlots, is_health_check};
use crate::endpoints::console;
use crate::problem::{self, HttpProblem};
use crate::routes;
use crate::sampler;
use crate::stall::StallGuard;
use crate::sys_publisher::{ClientEvents, publish_events, publish_statistics};
use crate::thingsboard;

const THREADS: usize = 2;
/// Threads for password hashes and disk writes.
const BLOCKING_THREADS_MAX: usize = 8;
/// Sufficient for a percent-encoded topic of 20,000 bytes.
pub(crate) const URI_BYTES_MAX: usize = 60 * 1024;
/// Limit of hyper's read buffer, and thus of a request's header.
pub(crate) const HEADER_BYTES_MAX: usize = 80 * 1024;
const HEADERS_MAX: usize = 64;
/// Limit of a request that waits for a device.
const WAIT_MAX: Duration = Duration::from_secs(330);
/// Pause of `accept` when the process has no free file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Interval between log lines about failures of `accept`.
const ACCEPT_FAILURES_INTERVAL: Duration = Duration::from_secs(10);

/// Why the HTTP server did not start. Nothing keeps running.
#[derive(Debug)]
pub enum ApiStartError {
    Bind {
        address: SocketAddr,
        source: io::Error,
        owner: Option<net::PortOwner>,
    },
    /// No threads or file descriptors were available.
    Resources(io::Error),
    /// The file of the API keys or of the audit log cannot be read.
    File { path: PathBuf, source: io::Error },
}

impl fmt::Display for ApiStartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ApiStartError::Bind {
                address,
                owner: Some(owner),
                ..
            } => {
                write!(
                    f,
                    "cannot bind the API to {address}: the port is used by {owner}; set another address with api.bind"
                )
            }
            ApiStartError::Bind {
                address,
                source,
                owner: None,
            } => {
                write!(
                    f,
                    "cannot bind the API to {address}: {source}; set another address with api.bind"
                )
            }
            ApiStartError::Resources(source) => write!(
                f,
                "cannot start the API: {source}; raise the limit of open files (ulimit -n) or of threads (ulimit -u)"
            ),
            ApiStartError::File { path, source } => write!(
                f,
                "cannot read {}: {source}; restore the file from a backup, or move it away to start without its contents",
                path.display()
            ),
        }
    }
}

impl std::error::Error for ApiStartError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            // The texts contain the source, or the owner of the port.
            ApiStartError::Bind { .. } | ApiStartError::Resources(_) | ApiStartError::File { .. } => None,
        }
    }
}

/// The running HTTP server. Dropping it stops it at once; `stop` lets requests finish.
pub struct ApiHandle {
    app: App,
    address: SocketAddr,
    tls: watch::Sender<Option<TlsAcceptor>>,
    stop: watch::Sender<bool>,
    runtime: Option<Runtime>,
}

/// Binds the port and serves requests. `/readyz` answers 503 until `ApiHandle::ready`.
pub fn start(
    config: ApiConfig,
    net: net::ServerHandle,
    access: Arc<dyn AccessAdmin>,
    admins: Admins,
    node: NodeInfo,
) -> Result<ApiHandle, ApiStartError> {
    start_on(bind(config.bind)?, config, net, access, admins, node)
}

/// Like `start`, on a port from `bind`. Callers can bind the port before they create anything else.
pub fn start_on(
    listener: TcpListener,
    config: ApiConfig,
    net: net::ServerHandle,
    access: Arc<dyn AccessAdmin>,
    admins: Admins,
    node: NodeInfo,
) -> Result<ApiHandle, ApiStartError> {
    let address = listener.local_addr().map_err(ApiStartError::Resources)?;
    let runtime = Builder::new_multi_thread()
        .worker_threads(THREADS)
        .max_blocking_threads(BLOCKING_THREADS_MAX)
        .thread_name("api")
        .enable_all()
        .build()
        .map_err(ApiStartError::Resources)?;
    let tls = watch::Sender::new(config.tls.clone().map(TlsAcceptor::from));
    let app = App::new(config, net, access, admins, node)?;
    let (stop, stopped) = watch::channel(false);
    let (listener, of_platform) = {
        let _guard = runtime.enter();
        let listener = tokio::net::TcpListener::from_std(listener).map_err(ApiStartError::Resources)?;
        (listener, platform_listener(&app)?)
    };
    if let Some(sys) = app.config().sys {
        runtime.spawn(publish_statistics(app.clone(), sys, stopped.clone()));
    }
    runtime.spawn(sampler::sample(app.clone(), stopped.clone()));
    runtime.spawn(alarm_watch::watch(app.clone(), stopped.clone()));
    if let Some((listener, context)) = of_platform {
        runtime.spawn(accept(listener, context, tls.subscribe(), stopped.clone()));
    }
    app.net().set_handed_over_address(address);
    let context = ListenerContext::new(&app, routes::router(&app), address);
    runtime.spawn(accept(listener, context, tls.subscribe(), stopped));
    Ok(ApiHandle {
        app,
        address,
        tls,
        stop,
        runtime: Some(runtime),
    })
}

/// Returns the listener that serves only the device platform's interface, if there is one.
fn platform_listener(app: &App) -> Result<Option<(tokio::net::TcpListener, ListenerContext)>, ApiStartError> {
    let Some(listener) = app.config().platform_listener.as_ref() else {
        return Ok(None);
    };
    let listener = listener.try_clone().map_err(ApiStartError::Resources)?;
    let address = listener.local_addr().map_err(ApiStartError::Resources)?;
    let listener = tokio::net::TcpListener::from_std(listener).map_err(ApiStartError::Resources)?;
    Ok(Some((
        listener,
        ListenerContext::new(app, routes::platform_router(app), address),
    )))
}

/// The router and settings of a listener.
#[derive(Clone)]
struct ListenerContext {
    app: App,
    router: Router,
    is_loopback: bool,
}

impl ListenerContext {
    fn new(app: &App, router: Router, address: SocketAddr) -> ListenerContext {
        ListenerContext {
            app: app.clone(),
            router,
            is_loopback: address.ip().to_canonical().is_loopback(),
        }
    }
}

pub fn bind(address: SocketAddr) -> Result<TcpListener, ApiStartError> {
    let bound = TcpListener::bind(address).and_then(|listener| {
        listener.set_nonblocking(true)?;
        Ok(listener)
    });
    bound.map_err(|source| {
        let is_taken = source.kind() == io::ErrorKind::AddrInUse;
        let owner = is_taken.then(|| net::find_port_owner(address)).flatten();
        ApiStartError::Bind { address, source, owner }
    })
}

impl ApiHandle {
    /// The bound address; port 0 is resolved.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Changes the port's certificate while the server runs.
    pub fn tls_reloader(&self) -> TlsReloader {
        TlsReloader(self.tls.clone())
    }

    /// Sets the configuration that the console shows.
    pub fn set_configuration(&self, values: Vec<ConfigValue>) {
        self.app.set_configuration(values);
    }

    /// Sets the progress that `/readyz` reports while the journal is read.
    pub fn reading_journal(&self, percent: u8) {
        self.app.readiness().reading_journal(percent);
    }

    /// Makes `/readyz` report that the node is ready.
    pub fn ready(&self) {
        self.app.readiness().started();
    }

    /// Makes `/readyz` report that the node is not ready, so that load balancers stop sending traffic. Requests are
    /// still served.
    pub fn stopping(&self) {
        self.app.readiness().stopping();
    }

    /// Publishes the events of the queue until the handle is stopped.
    pub fn publish_client_events(&self, events: ClientEvents) {
        if let Some(runtime) = &self.runtime {
            runtime.spawn(publish_events(self.app.clone(), events, self.stop.subscribe()));
        }
    }

    /// Stops accepting connections, and lets requests finish for at most `grace`.
    pub fn stop(mut self, grace: Duration) {
        self.stopping();
        let Some(runtime) = self.runtime.take() else { return };
        self.stop.send_replace(true);
        runtime.block_on(async {
            // The acceptor drops its receiver after the last connection.
            let _ = tokio::time::timeout(grace, self.stop.closed()).await;
        });
        runtime.shutdown_timeout(Duration::from_millis(100));
    }
}

/// Changes the certificate of a port.
#[derive(Clone)]
pub struct TlsReloader(watch::Sender<Option<TlsAcceptor>>);

impl TlsReloader {
    /// Sets the certificate and key for new connections. With `None` the port accepts plain HTTP.
    pub fn reload(&self, config: Option<Arc<rustls::ServerConfig>>) {
        self.0.send_replace(config.map(TlsAcceptor::from));
    }
}

impl Drop for ApiHandle {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// Runs until it is stopped, and then until the last connection has ended.
async fn accept(
    listener: tokio::net::TcpListener,
    context: ListenerContext,
    tls: watch::Receiver<Option<TlsAcceptor>>,
    mut stopped: watch::Receiver<bool>,
) {
    let app = &context.app;
    let limits = &app.config().limits;
    let slots = ConnectionSlots::new(limits.connections_max, limits.connections_per_address_max);
    let spare = SpareDescriptor::new();
    let mut failures = AcceptFailures::default();
    let mut connections = JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        spare.restore();
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stopped.wait_for(|is_stopped| *is_stopped) => break,
        };
        let accepted = accepted.or_else(|error| {
            failures.report(&error);
            // The spare descriptor serves one request, so that the metrics and the alarms stay readable.
            spare.lend(|| accept_now(&listener)).ok_or(error)
        });
        let Ok((stream, peer)) = accepted else {
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        let peer = trusted_peer(peer).ip();
        let Some(slot) = slots.admit(peer, Instant::now()) else {
            ApiCounters::add(&app.counters().connections_refused);
            reject_connection(&stream);
            continue;
        };
        ApiCounters::add(&app.counters().connections);
        let (context, tls, stopped) = (context.clone(), tls.borrow().clone(), stopped.clone());
        connections.spawn(async move {
            context.app.counters().open_connections.fetch_add(1, Ordering::Relaxed);
            tokio::select! {
                () = connection(stream, Client { address: peer, slot: &slot }, &context, tls, stopped) => {}
                () = slot.evicted() => ApiCounters::add(&context.app.counters().connections_evicted),
            }
            context.app.counters().open_connections.fetch_sub(1, Ordering::Relaxed);
        });
    }
    drop(listener);
    while connections.join_next().await.is_some() {}
}

/// Accepts a connection if that is possible without waiting.
fn accept_now(listener: &tokio::net::TcpListener) -> Option<(TcpStream, SocketAddr)> {
    match listener.poll_accept(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(accepted) => accepted.ok(),
        Poll::Pending => None,
    }
}

/// Logs failures of accept, at most one line per interval.
#[derive(Default)]
struct AcceptFailures {
    times: u64,
    logged_at: Option<Instant>,
}

impl AcceptFailures {
    fn report(&mut self, error: &io::Error) {
        self.times += 1;
        if self.logged_at.is_none_or(|at| at.elapsed() >= ACCEPT_FAILURES_INTERVAL) {
            self.logged_at = Some(Instant::now());
            let times = std::mem::take(&mut self.times);
            tracing::warn!(times, %error, "the API cannot accept connections");
        }
    }
}

/// Answers 503 if the socket accepts it without waiting. Only called without TLS.
fn reject_connection(stream: &TcpStream) {
    const BUSY: &[u8] =
        b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
    let _ = stream.try_write(BUSY);
}

/// The client of a connection.
#[derive(Clone, Copy)]
struct Client<'a> {
    address: IpAddr,
    slot: &'a ConnectionSlot,
}

async fn connection(
    stream: TcpStream,
    client: Client<'_>,
    context: &ListenerContext,
    tls: Option<TlsAcceptor>,
    stopped: watch::Receiver<bool>,
) {
    // Answers are small, so waiting for more data only delays them.
    let _ = stream.set_nodelay(true);
    let stream = StallGuard::new(stream, context.app.config().limits.write_stall_timeout);
    let Some(tls) = tls else {
        return serve(stream, client, context, stopped).await;
    };
    let handshake = tokio::time::timeout(context.app.config().limits.header_timeout, tls.accept(stream));
    // Handshake failures are ignored: they come from scanners, or from plain HTTP on an HTTPS port.
    if let Ok(Ok(stream)) = handshake.await {
        serve(stream, client, context, stopped).await;
    }
}

async fn serve<S>(stream: S, client: Client<'_>, context: &ListenerContext, mut stopped: watch::Receiver<bool>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let limits = &context.app.config().limits;
    let service = service_fn(|request: Request<Incoming>| async move {
        Ok::<_, Infallible>(respond(context, client, request.map(Body::new)).await)
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(limits.header_timeout)
        .max_buf_size(HEADER_BYTES_MAX)
        .max_headers(HEADERS_MAX);
    let connection = http.serve_connection(TokioIo::new(stream), service).with_upgrades();
    tokio::pin!(connection);
    let lifetime = tokio::time::sleep(limits.connection_lifetime);
    tokio::select! {
        // Errors are caused by the client: it disconnected, was too slow, or sent invalid data.
        _ = connection.as_mut() => return,
        _ = lifetime => {}
        _ = stopped.wait_for(|is_stopped| *is_stopped) => {}
    }
    connection.as_mut().graceful_shutdown();
    let _ = tokio::time::timeout(limits.request_timeout, connection).await;
}

/// Address of the client, for limits per address. Unspecified if the client is this server.
#[derive(Clone, Copy, Debug)]
pub struct PeerAddress(pub IpAddr);

/// Handles a request: checks it, routes it, and completes the body and headers of the answer.
async fn respond(context: &ListenerContext, client: Client<'_>, mut request: Request<Body>) -> Response<Body> {
    let app = &context.app;
    ApiCounters::add(&app.counters().requests);
    request.extensions_mut().insert(PeerAddress(client.address));
    let is_api = is_api(request.uri());
    let in_progress = client.slot.begin_request();
    let is_served = in_progress.is_some() && (!client.slot.is_reserved() || is_health_check(request.uri().path()));
    let response = match admit(context, &request) {
        Err(problem) => problem.into_response(),
        Ok(()) if !is_served => {
            ApiCounters::add(&app.counters().connections_refused);
            too_many_connections()
        }
        Ok(()) => answer(app, context.router.clone(), request).await,
    };
    let mut response = with_problem_body(response).await;
    protect(response.headers_mut(), is_api);
    let class = usize::from(response.status().as_u16() / 100).min(5);
    ApiCounters::add(&app.counters().answers[class]);
    match in_progress {
        Some(in_progress) => response.map(|body| in_progress.until_end_of(body)),
        None => response,
    }
}

/// The answer to a request that is not a health check, on a connection beyond the limits.
fn too_many_connections() -> Response<Body> {
    let problem = HttpProblem::unavailable("too many connections");
    let mut response = problem.into_response();
    response
        .headers_mut()
        .insert(header::CONNECTION, HeaderValue::from_static("close"));
    response
}

async fn answer(app: &App, mut router: Router, request: Request<Body>) -> Response<Body> {
    if thingsboard::may_wait(request.uri().path()) || is_health_check(request.uri().path()) {
        return wait(router, request).await;
    }
    let Ok(_permit) = app.requests().try_acquire() else {
        ApiCounters::add(&app.counters().requests_refused);
        return HttpProblem::unavailable("too many concurrent requests").into_response();
    };
    match tokio::time::timeout(app.config().limits.request_timeout, router.call(request)).await {
        Ok(Ok(response)) => response,
        Err(_) => HttpProblem::unavailable("the request took too long").into_response(),
    }
}

/// Handles a request that waits for a device, or a health check. It causes little work, so only the number of
/// connections limits these requests.
async fn wait(mut router: Router, request: Request<Body>) -> Response<Body> {
    match tokio::time::timeout(WAIT_MAX, router.call(request)).await {
        Ok(Ok(response)) => response,
        Err(_) => HttpProblem::unavailable("the request took too long").into_response(),
    }
}

/// Checks a request before it is routed.
fn admit(context: &ListenerContext, request: &Request<Body>) -> Result<(), HttpProblem> {
    if request.uri().path_and_query().map_or(0, |path| path.as_str().len()) > URI_BYTES_MAX {
        let detail = format!("the request target is longer than {URI_BYTES_MAX} bytes");
        return Err(HttpProblem::of_status(StatusCode::URI_TOO_LONG, detail));
    }
    check_host(context, request)
}

/// Rejects DNS rebinding: a foreign web page can let its host name resolve to 127.0.0.1 to access a loopback port. The
/// Host header then contains that name.
fn check_host(context: &ListenerContext, request: &Request<Body>) -> Result<(), HttpProblem> {
    if !context.is_loopback {
        return Ok(());
    }
    let host = request.headers().get(header::HOST).and_then(|host| host.to_str().ok());
    let host = host.or_else(|| request.uri().authority().map(|authority| authority.as_str()));
    if host.is_some_and(|host| is_local(host, &context.app.config().allowed_hosts)) {
        return Ok(());
    }
    let detail = "the Host header must name this machine's loopback or an entry of api.allowed_hosts";
    Err(HttpProblem::of_status(StatusCode::MISDIRECTED_REQUEST, detail.into()))
}

fn is_local(host: &str, allowed: &[String]) -> bool {
    let name = match host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((address, _)) => address,
        None => host.rsplit_once(':').map_or(host, |(name, _)| name),
    };
    name.eq_ignore_ascii_case("localhost")
        || name
            .parse::<IpAddr>()
            .is_ok_and(|address| address.to_canonical().is_loopback())
        || allowed.iter().any(|allowed| allowed.eq_ignore_ascii_case(name))
}

/// Errors of axum and hyper have a text body or none; converts them to problem details.
async fn with_problem_body(response: Response<Body>) -> Response<Body> {
    let status = response.status();
    let content_type = response
        .headers()
        .get(header::CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .unwrap_or("");
    let is_shaped = content_type == problem::CONTENT_TYPE || content_type.starts_with("application/json");
    if !(status.is_client_error() || status.is_server_error()) || is_shaped {
        return response;
    }
    const SENTENCE_MAX: usize = 4096;
    let (parts, body) = response.into_parts();
    let sentence = to_bytes(body, SENTENCE_MAX).await.unwrap_or_default();
    let detail = match (status, std::str::from_utf8(&sentence).unwrap_or("").trim()) {
        (StatusCode::NOT_FOUND, "") => "this path does not exist; /api/openapi.json lists all paths",
        (StatusCode::METHOD_NOT_ALLOWED, "") => {
            "this path does not support the method; `Allow` lists the supported ones"
        }
        (_, "") => "the request was rejected",
        (_, sentence) => sentence,
    };
    let mut shaped = HttpProblem::of_status(status, detail.to_owned()).into_response();
    if let Some(allow) = parts.headers.get(header::ALLOW) {
        shaped.headers_mut().insert(header::ALLOW, allow.clone());
    }
    shaped
}

/// Whether the path is not a file of the console.
fn is_api(uri: &Uri) -> bool {
    !console::is_file(uri.path())
}

/// Adds headers that forbid caching, framing, content sniffing and scripts. Files of the console have a more precise
/// content security policy.
fn protect(headers: &mut HeaderMap, is_api: bool) {
    const POLICY: &str = "default-src 'none'; frame-ancestors 'none'";
    let caching = if is_api { "no-store" } else { "no-cache" };
    for (name, value) in [
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::X_FRAME_OPTIONS, "DENY"),
        (header::REFERRER_POLICY, "no-referrer"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
        (header::CACHE_CONTROL, caching),
    ] {
        headers.entry(name).or_insert(HeaderValue::from_static(value));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_of_a_file_names_it_and_the_cause() {
        let error = ApiStartError::File {
            path: "data/api-keys.json".into(),
            source: io::Error::other("expected value at line 1 column 1"),
        };
        let expected = "cannot read data/api-keys.json: expected value at line 1 column 1; restore the file";
        assert!(error.to_string().starts_with(expected), "{error}");
    }

    #[test]
    fn only_names_of_this_machine_are_local() {
        let allowed = ["mqtt.example.org".to_owned()];
        for (host, expected) in [
            ("localhost:18083", true),
            ("LOCALHOST", true),
            ("127.0.0.1:18083", true),
            ("127.1.2.3", true),
            ("[::1]:18083", true),
            ("[::1]", true),
            ("mqtt.example.org:443", true),
            ("evil.example:18083", false),
            ("localhost.evil.example", false),
            ("127.0.0.1.evil.example", false),
            ("10.0.0.1", false),
            ("", false),
        ] {
            assert_eq!(is_local(host, &allowed), expected, "{host}");
        }
    }
}
