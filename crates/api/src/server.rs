//! Starting and stopping the HTTP side, and what happens to each connection and request on the way to the router.
//!
//! hyper is driven directly, because `axum::serve` has no time limits: here the header has one, the body has one (`body.rs`),
//! the answer has one, and so has a peer that reads nothing (`stall.rs`).

use std::convert::Infallible;
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode, Uri, header};
use axum::response::IntoResponse;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tower_service::Service;

use crate::access_admin::AccessAdmin;
use crate::admins::Admins;
use crate::alarm_watch;
use crate::app::{ApiCounters, App};
use crate::config::{ApiConfig, ConfigValue, NodeInfo};
use crate::endpoints::console;
use crate::problem::{self, Problem};
use crate::routes;
use crate::sampler;
use crate::stall::StallGuard;
use crate::sys_publisher::{ClientEvents, publish_events, publish_statistics};
use crate::thingsboard;

const THREADS: usize = 2;
/// Password hashes and disk writes.
const BLOCKING_THREADS_MAX: usize = 8;
/// A topic of 20,000 bytes, percent-encoded throughout.
const URI_BYTES_MAX: usize = 60 * 1024;
/// Limit of hyper's read buffer, and so of a request's header.
const HEADER_BYTES_MAX: usize = 80 * 1024;
const HEADERS_MAX: usize = 64;
/// Of a request that waits for a device.
const WAIT_MAX: Duration = Duration::from_secs(330);
/// How long accepting pauses when the process is out of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Why the HTTP side did not start. Nothing is left running.
#[derive(Debug)]
pub enum StartError {
    Bind {
        address: SocketAddr,
        source: io::Error,
        owner: Option<net::PortOwner>,
    },
    /// Threads or file descriptors could not be had.
    Resources(io::Error),
    /// API keys or the audit log of the data directory.
    Files(io::Error),
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StartError::Bind {
                address,
                owner: Some(owner),
                ..
            } => {
                write!(
                    f,
                    "the API cannot bind {address}: the port is taken by {owner}; api.bind sets another address"
                )
            }
            StartError::Bind {
                address,
                source,
                owner: None,
            } => {
                write!(
                    f,
                    "the API cannot bind {address}: {source}; api.bind sets another address"
                )
            }
            StartError::Resources(_) => f.write_str("the system has no threads or file descriptors for the API"),
            StartError::Files(_) => f.write_str("api-keys.json or audit.jsonl of the data directory cannot be read"),
        }
    }
}

impl std::error::Error for StartError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            // The text has it already, or who has the port, which is more.
            StartError::Bind { .. } => None,
            StartError::Resources(source) | StartError::Files(source) => Some(source),
        }
    }
}

/// The running HTTP side. Dropping it stops it at once; `stop` lets requests end.
pub struct ApiHandle {
    app: App,
    address: SocketAddr,
    tls: watch::Sender<Option<TlsAcceptor>>,
    stop: watch::Sender<bool>,
    runtime: Option<Runtime>,
}

/// Binds and serves. `/readyz` says 503 until `ApiHandle::ready`.
pub fn start(
    config: ApiConfig,
    net: net::Handle,
    access: Arc<dyn AccessAdmin>,
    admins: Admins,
    node: NodeInfo,
) -> Result<ApiHandle, StartError> {
    start_on(bind(config.bind)?, config, net, access, admins, node)
}

/// As `start`, on a port that `bind` has got, so that nothing need be made before it is sure that there is one.
pub fn start_on(
    listener: TcpListener,
    config: ApiConfig,
    net: net::Handle,
    access: Arc<dyn AccessAdmin>,
    admins: Admins,
    node: NodeInfo,
) -> Result<ApiHandle, StartError> {
    let address = listener.local_addr().map_err(StartError::Resources)?;
    let runtime = Builder::new_multi_thread()
        .worker_threads(THREADS)
        .max_blocking_threads(BLOCKING_THREADS_MAX)
        .thread_name("api")
        .enable_all()
        .build()
        .map_err(StartError::Resources)?;
    let tls = watch::Sender::new(config.tls.clone().map(TlsAcceptor::from));
    let app = App::new(config, net, access, admins, node).map_err(StartError::Files)?;
    let (stop, stopped) = watch::channel(false);
    let (listener, of_platform) = {
        let _guard = runtime.enter();
        let listener = tokio::net::TcpListener::from_std(listener).map_err(StartError::Resources)?;
        (listener, platform_listener(&app)?)
    };
    if let Some(sys) = app.config().sys {
        runtime.spawn(publish_statistics(app.clone(), sys, stopped.clone()));
    }
    runtime.spawn(sampler::sample(app.clone(), stopped.clone()));
    runtime.spawn(alarm_watch::watch(app.clone(), stopped.clone()));
    if let Some((listener, door)) = of_platform {
        runtime.spawn(accept(listener, door, tls.subscribe(), stopped.clone()));
    }
    app.net().set_handed_over_address(address);
    let door = Door::new(&app, routes::router(&app), address);
    runtime.spawn(accept(listener, door, tls.subscribe(), stopped));
    Ok(ApiHandle {
        app,
        address,
        tls,
        stop,
        runtime: Some(runtime),
    })
}

/// Where only the device platform's interface is, if there is such a place.
fn platform_listener(app: &App) -> Result<Option<(tokio::net::TcpListener, Door)>, StartError> {
    let Some(listener) = app.config().platform_listener.as_ref() else {
        return Ok(None);
    };
    let listener = listener.try_clone().map_err(StartError::Resources)?;
    let address = listener.local_addr().map_err(StartError::Resources)?;
    let listener = tokio::net::TcpListener::from_std(listener).map_err(StartError::Resources)?;
    Ok(Some((listener, Door::new(app, routes::platform_router(app), address))))
}

/// What is behind a listener.
#[derive(Clone)]
struct Door {
    app: App,
    router: Router,
    is_loopback: bool,
}

impl Door {
    fn new(app: &App, router: Router, address: SocketAddr) -> Door {
        Door {
            app: app.clone(),
            router,
            is_loopback: address.ip().to_canonical().is_loopback(),
        }
    }
}

pub fn bind(address: SocketAddr) -> Result<TcpListener, StartError> {
    let bound = TcpListener::bind(address).and_then(|listener| {
        listener.set_nonblocking(true)?;
        Ok(listener)
    });
    bound.map_err(|source| {
        let is_taken = source.kind() == io::ErrorKind::AddrInUse;
        let owner = is_taken.then(|| net::find_port_owner(address)).flatten();
        StartError::Bind { address, source, owner }
    })
}

impl ApiHandle {
    /// As bound; port 0 is resolved.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// For whoever changes the port's certificate while it is served.
    pub fn tls_reloader(&self) -> TlsReloader {
        TlsReloader(self.tls.clone())
    }

    /// What the console shows as the configuration in force.
    pub fn set_configuration(&self, values: Vec<ConfigValue>) {
        self.app.set_configuration(values);
    }

    /// What `/readyz` says meanwhile.
    pub fn reading_journal(&self, percent: u8) {
        self.app.readiness().reading_journal(percent);
    }

    /// `/readyz` says yes from now on.
    pub fn ready(&self) {
        self.app.readiness().started();
    }

    /// `/readyz` says no from now on, so that load balancers go elsewhere; everything else goes on.
    pub fn stopping(&self) {
        self.app.readiness().stopping();
    }

    /// Publishes what comes out of the queue until the handle is stopped.
    pub fn publish_client_events(&self, events: ClientEvents) {
        if let Some(runtime) = &self.runtime {
            runtime.spawn(publish_events(self.app.clone(), events, self.stop.subscribe()));
        }
    }

    /// Accepts nothing more, lets requests end for at most `grace`, and is gone when it returns.
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
    /// Certificate and key for connections accepted from now on; without them the port speaks plain HTTP.
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

/// Runs until told to stop, then until the last connection has ended.
async fn accept(
    listener: tokio::net::TcpListener,
    door: Door,
    tls: watch::Receiver<Option<TlsAcceptor>>,
    mut stopped: watch::Receiver<bool>,
) {
    let app = &door.app;
    let slots = Arc::new(Semaphore::new(app.config().limits.connections_max));
    let mut connections = JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stopped.wait_for(|is_stopped| *is_stopped) => break,
        };
        let Ok((stream, peer)) = accepted else {
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        let Ok(slot) = slots.clone().try_acquire_owned() else {
            ApiCounters::add(&app.counters().connections_refused);
            turn_away(&stream);
            continue;
        };
        ApiCounters::add(&app.counters().connections);
        let (door, tls, stopped) = (door.clone(), tls.borrow().clone(), stopped.clone());
        connections.spawn(async move {
            let _slot = slot;
            door.app.counters().open_connections.fetch_add(1, Ordering::Relaxed);
            connection(stream, peer.ip(), &door, tls, stopped).await;
            door.app.counters().open_connections.fetch_sub(1, Ordering::Relaxed);
        });
    }
    drop(listener);
    while connections.join_next().await.is_some() {}
}

/// Says why, if the socket takes it without waiting. Not over TLS, where it would be noise.
fn turn_away(stream: &TcpStream) {
    const BUSY: &[u8] =
        b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
    let _ = stream.try_write(BUSY);
}

async fn connection(
    stream: TcpStream,
    peer: IpAddr,
    door: &Door,
    tls: Option<TlsAcceptor>,
    stopped: watch::Receiver<bool>,
) {
    // Answers are small; waiting for more to send only delays them.
    let _ = stream.set_nodelay(true);
    let stream = StallGuard::new(stream, door.app.config().limits.write_stall_timeout);
    let Some(tls) = tls else {
        return serve(stream, peer, door, stopped).await;
    };
    let handshake = tokio::time::timeout(door.app.config().limits.header_timeout, tls.accept(stream));
    // What fails here is the peer's business: a scanner, or plain HTTP on an HTTPS port.
    if let Ok(Ok(stream)) = handshake.await {
        serve(stream, peer, door, stopped).await;
    }
}

async fn serve<S>(stream: S, peer: IpAddr, door: &Door, mut stopped: watch::Receiver<bool>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let limits = &door.app.config().limits;
    let service = service_fn(|request: Request<Incoming>| async move {
        Ok::<_, Infallible>(respond(door, peer, request.map(Body::new)).await)
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
        // Errors are the peer's: it left, was slow, or spoke something else.
        _ = connection.as_mut() => return,
        _ = lifetime => {}
        _ = stopped.wait_for(|is_stopped| *is_stopped) => {}
    }
    connection.as_mut().graceful_shutdown();
    let _ = tokio::time::timeout(limits.request_timeout, connection).await;
}

/// Address of the peer, for endpoints that limit by it.
#[derive(Clone, Copy, Debug)]
pub struct PeerAddress(pub IpAddr);

/// One request, from its header to an answer that has a body in the right shape and the headers it should have.
async fn respond(door: &Door, peer: IpAddr, mut request: Request<Body>) -> Response<Body> {
    let app = &door.app;
    ApiCounters::add(&app.counters().requests);
    request.extensions_mut().insert(PeerAddress(peer));
    let is_api = is_api(request.uri());
    let response = match admit(door, &request) {
        Err(problem) => problem.into_response(),
        Ok(()) => answer(app, door.router.clone(), request).await,
    };
    let mut response = in_shape(response).await;
    protect(response.headers_mut(), is_api);
    let class = usize::from(response.status().as_u16() / 100).min(5);
    ApiCounters::add(&app.counters().answers[class]);
    response
}

async fn answer(app: &App, mut router: Router, request: Request<Body>) -> Response<Body> {
    if thingsboard::is_waiting(request.uri().path()) {
        return wait(router, request).await;
    }
    let Ok(_permit) = app.requests().try_acquire() else {
        ApiCounters::add(&app.counters().requests_refused);
        return Problem::unavailable("too many requests are being answered").into_response();
    };
    match tokio::time::timeout(app.config().limits.request_timeout, router.call(request)).await {
        Ok(Ok(response)) => response,
        Err(_) => Problem::unavailable("the answer took too long").into_response(),
    }
}

/// Of a request that waits for a device: no work for the server, so connections are all that bounds it.
async fn wait(mut router: Router, request: Request<Body>) -> Response<Body> {
    match tokio::time::timeout(WAIT_MAX, router.call(request)).await {
        Ok(Ok(response)) => response,
        Err(_) => Problem::unavailable("the answer took too long").into_response(),
    }
}

/// What is refused before anything is looked at.
fn admit(door: &Door, request: &Request<Body>) -> Result<(), Problem> {
    if request.uri().path_and_query().map_or(0, |path| path.as_str().len()) > URI_BYTES_MAX {
        let detail = format!("the request target is longer than {URI_BYTES_MAX} bytes");
        return Err(Problem::of_status(StatusCode::URI_TOO_LONG, detail));
    }
    check_host(door, request)
}

/// A page of a stranger may have its name resolve to 127.0.0.1 and then read what is open on loopback (DNS rebinding). Its
/// name is in the Host header.
fn check_host(door: &Door, request: &Request<Body>) -> Result<(), Problem> {
    if !door.is_loopback {
        return Ok(());
    }
    let host = request.headers().get(header::HOST).and_then(|host| host.to_str().ok());
    let host = host.or_else(|| request.uri().authority().map(|authority| authority.as_str()));
    if host.is_some_and(|host| is_local(host, &door.app.config().allowed_hosts)) {
        return Ok(());
    }
    let detail = "the Host header names neither this machine's loopback nor one of api.allowed_hosts";
    Err(Problem::of_status(StatusCode::MISDIRECTED_REQUEST, detail.into()))
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

/// Errors of the HTTP machinery come with an English sentence or nothing; give them the shape of all others.
async fn in_shape(response: Response<Body>) -> Response<Body> {
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
        (StatusCode::NOT_FOUND, "") => "there is no such page; /api/openapi.json lists all there are",
        (StatusCode::METHOD_NOT_ALLOWED, "") => "this method is not supported here; `Allow` lists those that are",
        (_, "") => "the request was refused",
        (_, sentence) => sentence,
    };
    let mut shaped = Problem::of_status(status, detail.to_owned()).into_response();
    if let Some(allow) = parts.headers.get(header::ALLOW) {
        shaped.headers_mut().insert(header::ALLOW, allow.clone());
    }
    shaped
}

/// Everything but the console's own files.
fn is_api(uri: &Uri) -> bool {
    !console::is_file(uri.path())
}

/// Nothing is cached, framed, sniffed, or allowed to run but what the page itself brings. Files of the console say more
/// exactly what they need.
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
