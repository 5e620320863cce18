//! Handles connections and requests before they reach the router.
//!
//! Uses hyper directly, because `axum::serve` has no time limits. Here the header has one, as do the body
//! (`body.rs`), the answer, and writes to a client that does not read (`stall.rs`). `answer_memory.rs` limits the
//! memory of answers that clients have not received yet.

use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode, header};
use axum::response::IntoResponse;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use net::AddressPrefix;
use net::descriptors::SpareDescriptor;
use net::forwarded::ForwardingHeaders;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tower_service::Service;
use trust::own::trusted_peer;

use crate::answer_memory::{self, AnswerMemory, ClientAnswers};
use crate::connection_slots::{ConnectionSlot, ConnectionSlots, is_health_check};
use crate::guard::PeerAddress;
use crate::limits::{ApiCounters, ApiLimits};
use crate::problem::{self, HttpProblem};
use crate::request_shares::RequestShares;
use crate::stall::StallGuard;
use crate::tls_handshake::HandshakeLog;

/// Sufficient for a percent-encoded topic of 20,000 bytes.
pub const URI_BYTES_MAX: usize = 60 * 1024;
/// Limit of hyper's read buffer, and thus of a request's header.
pub const HEADER_BYTES_MAX: usize = 80 * 1024;
const HEADERS_MAX: usize = 64;
/// Limit of a request that waits for a device.
const WAIT_MAX: Duration = Duration::from_secs(330);
/// Pause of `accept` when the process has no free file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Interval between log lines about failures of `accept`.
const ACCEPT_FAILURES_INTERVAL: Duration = Duration::from_secs(10);

/// Settings and counters that all listeners share.
pub struct HttpServer {
    options: HttpOptions,
    counters: Arc<ApiCounters>,
    shares: Arc<RequestShares>,
    /// Limits the concurrent requests.
    requests: Semaphore,
    answers: Arc<AnswerMemory>,
    handshakes: HandshakeLog,
}

pub struct HttpOptions {
    pub limits: ApiLimits,
    /// Host names that a loopback port accepts besides `localhost` and IP addresses, such as that of a reverse proxy.
    pub allowed_hosts: Vec<String>,
    /// Proxies whose `X-Forwarded-For` names the client.
    pub trusted_proxies: Vec<AddressPrefix>,
    /// Whether a request to this path may wait for a long time. Such requests cause no work for the server.
    pub may_wait: fn(path: &str) -> bool,
    /// Whether the path is a file that browsers may store, and which has its own headers.
    pub is_file: fn(path: &str) -> bool,
}

impl HttpServer {
    pub fn new(options: HttpOptions, counters: Arc<ApiCounters>, answers: Arc<AnswerMemory>) -> Arc<HttpServer> {
        Arc::new(HttpServer {
            shares: RequestShares::new(&options.limits),
            requests: Semaphore::new(options.limits.requests_max),
            answers,
            handshakes: HandshakeLog::default(),
            options,
            counters,
        })
    }

    /// Accepts connections until the server is stopped, and returns when the last connection has ended.
    pub async fn listen(
        self: Arc<HttpServer>,
        listener: tokio::net::TcpListener,
        router: Router,
        tls: watch::Receiver<Option<TlsAcceptor>>,
        stopped: watch::Receiver<bool>,
    ) {
        // Without an address, the stricter check applies.
        let is_loopback = listener
            .local_addr()
            .map_or(true, |address| address.ip().to_canonical().is_loopback());
        let context = ListenerContext {
            server: self,
            router,
            is_loopback,
        };
        accept(listener, context, tls, stopped).await;
    }
}

/// The router and settings of a listener.
#[derive(Clone)]
struct ListenerContext {
    server: Arc<HttpServer>,
    router: Router,
    is_loopback: bool,
}

/// Runs until it is stopped, and then until the last connection has ended.
async fn accept(
    listener: tokio::net::TcpListener,
    context: ListenerContext,
    tls: watch::Receiver<Option<TlsAcceptor>>,
    mut stopped: watch::Receiver<bool>,
) {
    let server = &context.server;
    let limits = &server.options.limits;
    let slots = ConnectionSlots::new(limits.connections_max, limits.max_connections_per_address);
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
        let peer = trusted_peer(peer);
        let Some(slot) = slots.admit(peer.ip(), Instant::now()) else {
            ApiCounters::add(&server.counters.connections_refused);
            reject_connection(&stream);
            continue;
        };
        ApiCounters::add(&server.counters.connections);
        let (context, tls, stopped) = (context.clone(), tls.borrow().clone(), stopped.clone());
        connections.spawn(async move {
            let counters = &context.server.counters;
            counters.open_connections.fetch_add(1, Ordering::Relaxed);
            let answers = context.server.answers.of_client(peer.ip());
            let client = Client {
                peer,
                slot: &slot,
                answers: &answers,
            };
            tokio::select! {
                () = connection(stream, client, &context, tls, stopped) => {}
                () = slot.evicted() => ApiCounters::add(&counters.connections_evicted),
                () = answers.evicted() => ApiCounters::add(&counters.connections_evicted),
            }
            counters.open_connections.fetch_sub(1, Ordering::Relaxed);
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
    peer: SocketAddr,
    slot: &'a ConnectionSlot,
    answers: &'a ClientAnswers,
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
    let limits = &context.server.options.limits;
    let Some(tls) = tls else {
        let stream = StallGuard::new(stream, limits.write_stall_timeout);
        return serve(stream, client, context, stopped).await;
    };
    let handshakes = &context.server.handshakes;
    if let Some(stream) = handshakes.accept(stream, client.peer, &tls, limits).await {
        serve(stream, client, context, stopped).await;
    }
}

async fn serve<S>(stream: S, client: Client<'_>, context: &ListenerContext, mut stopped: watch::Receiver<bool>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let limits = &context.server.options.limits;
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

/// Handles a request: checks it, routes it, and completes the body and headers of the answer.
async fn respond(context: &ListenerContext, client: Client<'_>, mut request: Request<Body>) -> Response<Body> {
    let server = &*context.server;
    ApiCounters::add(&server.counters.requests);
    let address = client_of(&request, client.peer.ip(), &server.options.trusted_proxies);
    request.extensions_mut().insert(PeerAddress(address));
    request.extensions_mut().insert(client.answers.clone());
    let is_file = (server.options.is_file)(request.uri().path());
    let is_charged = !answer_memory::is_exempt(request.uri().path());
    let in_progress = client.slot.begin_request();
    let is_served = in_progress.is_some() && (!client.slot.is_reserved() || is_health_check(request.uri().path()));
    let response = match admit(context, &request) {
        Err(problem) => problem.into_response(),
        Ok(()) if !is_served => {
            ApiCounters::add(&server.counters.connections_refused);
            too_many_connections()
        }
        Ok(()) => answer(server, context.router.clone(), request).await,
    };
    let response = with_problem_body(response).await;
    let mut response = match is_charged {
        true => client.answers.charge_response(response),
        false => response,
    };
    protect(response.headers_mut(), is_file);
    let class = usize::from(response.status().as_u16() / 100).min(5);
    ApiCounters::add(&server.counters.answers[class]);
    match in_progress {
        Some(in_progress) => response.map(|body| in_progress.until_end_of(body)),
        None => response,
    }
}

/// Returns the address of the client behind a proxy, as far as it is known.
fn client_of(request: &Request<Body>, peer: IpAddr, trusted: &[AddressPrefix]) -> IpAddr {
    let mut forwarding = ForwardingHeaders::default();
    for (name, value) in request.headers() {
        // An address is ASCII. Other text is an entry that is not an address.
        forwarding.take(name.as_str(), value.to_str().unwrap_or_default());
    }
    forwarding.origin().client(peer, trusted)
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

async fn answer(server: &HttpServer, mut router: Router, request: Request<Body>) -> Response<Body> {
    let path = request.uri().path();
    if (server.options.may_wait)(path) || is_health_check(path) {
        return wait(router, request).await;
    }
    let refuse = |detail: &str| {
        ApiCounters::add(&server.counters.requests_refused);
        HttpProblem::unavailable(detail).into_response()
    };
    let address = request.extensions().get::<PeerAddress>().map(|peer| peer.0);
    let share = address.map(|address| server.shares.begin(address));
    if matches!(share, Some(None)) {
        return refuse("too many concurrent requests from this address");
    }
    let Ok(_permit) = server.requests.try_acquire() else {
        return refuse("too many concurrent requests");
    };
    match tokio::time::timeout(server.options.limits.request_timeout, router.call(request)).await {
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
    if host.is_some_and(|host| is_local(host, &context.server.options.allowed_hosts)) {
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

/// Adds headers that forbid caching, framing, content sniffing and scripts. Files may have a more precise content
/// security policy.
fn protect(headers: &mut HeaderMap, is_file: bool) {
    const POLICY: &str = "default-src 'none'; frame-ancestors 'none'";
    let caching = if is_file { "no-cache" } else { "no-store" };
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
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

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

    const ANSWER_BYTES: usize = 20 << 20;

    /// Serves a large answer at every path, on a port of its own.
    async fn serve_large_answers(answers: &Arc<AnswerMemory>) -> (SocketAddr, watch::Sender<bool>) {
        let options = HttpOptions {
            limits: ApiLimits::default(),
            allowed_hosts: Vec::new(),
            trusted_proxies: Vec::new(),
            may_wait: |_| false,
            is_file: |_| false,
        };
        let http = HttpServer::new(options, Arc::default(), answers.clone());
        let router = Router::new().fallback(|| async { vec![b'x'; ANSWER_BYTES] });
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = watch::channel(false);
        tokio::spawn(http.listen(listener, router, watch::channel(None).1, stopped));
        (address, stop)
    }

    /// Requests the large answer and does not read it.
    async fn request_unread(address: SocketAddr) -> TcpStream {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let request = b"GET /large HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
        stream.write_all(request).await.unwrap();
        stream
    }

    async fn wait_until(what: &str, is_reached: impl Fn() -> bool) {
        let limit = Instant::now() + Duration::from_secs(60);
        while !is_reached() {
            assert!(Instant::now() < limit, "{what}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    #[tokio::test]
    async fn unread_answers_are_charged_until_they_are_written_or_closed() {
        let answers = AnswerMemory::new(2 * ANSWER_BYTES);
        let (address, _stop) = serve_large_answers(&answers).await;
        let mut first = request_unread(address).await;
        wait_until("the first answer is charged", || {
            answers.charged_bytes() == ANSWER_BYTES
        })
        .await;
        let mut refused = Vec::new();
        request_unread(address).await.read_to_end(&mut refused).await.unwrap();
        let refused = String::from_utf8(refused).unwrap().to_lowercase();
        assert!(
            refused.starts_with("http/1.1 503 ") && refused.contains("retry-after: 1\r\n"),
            "{refused}"
        );
        let mut read = Vec::new();
        first.read_to_end(&mut read).await.unwrap();
        assert!(read.starts_with(b"HTTP/1.1 200 ") && read.len() > ANSWER_BYTES);
        wait_until("the written answer is released", || answers.charged_bytes() == 0).await;
        let second = request_unread(address).await;
        wait_until("the second answer is charged", || {
            answers.charged_bytes() == ANSWER_BYTES
        })
        .await;
        drop(second);
        wait_until("the answer of a closed connection is released", || {
            answers.charged_bytes() == 0
        })
        .await;
        assert_eq!(answers.refused(), 1);
    }
}
