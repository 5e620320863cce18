//! Tests of the HTTP action with a real HTTP server and real connections.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use connectors::http::{HttpActionConfig, HttpBatch, HttpConnector, HttpConnectorConfig, HttpSignConfig, HttpSink};
use connectors::{BatchOutcome, DeliveryFailure, Record, Secret, Sink, TlsConfig};
use http_body_util::{BodyExt, Full};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;

use crate::support;
use crate::support::{Directory, certificates, deliver, free_port, numbered, text};

#[derive(Clone, Debug)]
struct Seen {
    line: String,
    headers: BTreeMap<String, String>,
    body: String,
}

type Answer = Response<Full<Bytes>>;

/// Responds as a closure decides, and records every request. Dropping it closes all connections.
struct WebServer {
    address: SocketAddr,
    seen: Arc<Mutex<Vec<Seen>>>,
    connections: Arc<AtomicUsize>,
    task: JoinHandle<()>,
}

type Respond = Arc<dyn Fn(&Seen) -> Option<Answer> + Send + Sync>;

impl WebServer {
    async fn start(respond: impl Fn(&Seen) -> Option<Answer> + Send + Sync + 'static) -> WebServer {
        WebServer::start_at("127.0.0.1:0".parse().expect("an address"), None, Arc::new(respond)).await
    }

    /// `respond` returns `None` for a request that is never answered.
    async fn start_at(address: SocketAddr, tls: Option<TlsAcceptor>, respond: Respond) -> WebServer {
        let socket = tokio::net::TcpSocket::new_v4().expect("a socket");
        socket.set_reuseaddr(true).expect("an option");
        socket.bind(address).expect("a free port");
        let listener = socket.listen(64).expect("a port");
        let address = listener.local_addr().expect("an address");
        let seen = Arc::new(Mutex::new(Vec::new()));
        let connections = Arc::new(AtomicUsize::new(0));
        let task = tokio::spawn(serve(listener, tls, respond, seen.clone(), connections.clone()));
        WebServer {
            address,
            seen,
            connections,
            task,
        }
    }

    fn seen(&self) -> Vec<Seen> {
        self.seen.lock().expect("no panic").clone()
    }

    fn connector(&self) -> HttpConnectorConfig {
        connector(&format!("http://{}/base", self.address))
    }
}

impl Drop for WebServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
    respond: Respond,
    seen: Arc<Mutex<Vec<Seen>>>,
    count: Arc<AtomicUsize>,
) {
    // Closes its connections when the task ends.
    let mut connections = tokio::task::JoinSet::new();
    loop {
        let (stream, _) = listener.accept().await.expect("a connection");
        count.fetch_add(1, Ordering::Relaxed);
        let (tls, respond, seen) = (tls.clone(), respond.clone(), seen.clone());
        connections.spawn(async move {
            let service = service_fn(move |request| answer(request, respond.clone(), seen.clone()));
            let mut http = hyper::server::conn::http1::Builder::new();
            http.timer(TokioTimer::new());
            match tls {
                None => drop(http.serve_connection(TokioIo::new(stream), service).await),
                Some(tls) => {
                    if let Ok(stream) = tls.accept(stream).await {
                        drop(http.serve_connection(TokioIo::new(stream), service).await);
                    }
                }
            }
        });
    }
}

async fn answer(
    request: Request<hyper::body::Incoming>,
    respond: Respond,
    seen: Arc<Mutex<Vec<Seen>>>,
) -> Result<Answer, Infallible> {
    let (head, body) = request.into_parts();
    let header = |(name, value): (&hyper::header::HeaderName, &hyper::header::HeaderValue)| {
        (name.to_string(), String::from_utf8_lossy(value.as_bytes()).into_owned())
    };
    let Ok(body) = body.collect().await else {
        return Ok(Response::default());
    };
    let request = Seen {
        line: format!("{} {}", head.method, head.uri),
        headers: head.headers.iter().map(header).collect(),
        body: String::from_utf8_lossy(&body.to_bytes()).into_owned(),
    };
    let answer = respond(&request);
    seen.lock().expect("no panic").push(request);
    match answer {
        Some(answer) => Ok(answer),
        None => std::future::pending().await,
    }
}

fn status(code: u16, body: &str) -> Option<Answer> {
    let body = Full::new(Bytes::copy_from_slice(body.as_bytes()));
    Some(Response::builder().status(code).body(body).expect("an answer"))
}

fn connector(url: &str) -> HttpConnectorConfig {
    serde_json::from_value(serde_json::json!({ "url": url })).expect("a configuration")
}

fn sink(connector: &HttpConnectorConfig, action: &HttpActionConfig) -> HttpSink {
    let connector = Arc::new(HttpConnector::new(connector).expect("a valid connector"));
    HttpSink::new(connector, action).expect("a valid action")
}

fn reason(outcome: &BatchOutcome, index: usize) -> &str {
    outcome[index].as_ref().expect_err("a failure").reason()
}

/// Returns an empty field and the body, for an action without headers and without values in its path.
fn fields(number: u32) -> Vec<Option<Vec<u8>>> {
    vec![text(""), text(format!("{{\"id\":{number}}}"))]
}

#[tokio::test(flavor = "multi_thread")]
async fn each_record_is_a_request() {
    let server = WebServer::start(|_| status(204, "")).await;
    let mut connector = server.connector();
    connector
        .headers
        .insert("authorization".to_owned(), Secret::new("Bearer x"));
    let action = HttpActionConfig {
        path: "/a b/${clientid}?q=${payload.q}".to_owned(),
        headers: [
            ("x-topic".to_owned(), "${topic}".to_owned()),
            ("x-user".to_owned(), "${u}".to_owned()),
        ]
        .into(),
        sign: Some(HttpSignConfig {
            secret: Secret::new("key"),
            header: "x-sig".to_owned(),
        }),
        ..HttpActionConfig::default()
    };
    let sink = sink(&connector, &action);
    let named: Vec<&str> = sink
        .templates()
        .iter()
        .map(|template| template.field.as_str())
        .collect();
    assert_eq!(
        named,
        ["path", "body", "headers.x-topic", "headers.x-user", "path", "path"]
    );
    let records = numbered(0..1, |_| {
        vec![text(""), text("hello"), text("t/1"), None, text("c/1"), text("1&x=2")]
    });
    assert_eq!(sink.send(&records).await, vec![Ok(())]);
    let seen = &server.seen()[0];
    assert_eq!(
        (seen.line.as_str(), seen.body.as_str()),
        ("POST /base/a%20b/c%2F1?q=1%26x%3D2", "hello")
    );
    assert_eq!(seen.headers["authorization"], "Bearer x");
    assert_eq!(
        (seen.headers["x-topic"].as_str(), seen.headers.get("x-user")),
        ("t/1", None)
    );
    // printf hello | openssl dgst -sha256 -hmac key
    let expected = "sha256=9307b3b915efb5171ff14d8cb55fbcc798c6c0ef1456d66ded1a6aa723a58b7b";
    assert_eq!(seen.headers["x-sig"], expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_record_with_a_dot_segment_is_rejected() {
    for batch in [HttpBatch::None, HttpBatch::JsonArray] {
        let server = WebServer::start(|_| status(200, "")).await;
        let action = HttpActionConfig {
            path: "/dev/${clientid}/x".to_owned(),
            batch,
            ..HttpActionConfig::default()
        };
        let sink = sink(&server.connector(), &action);
        let ids = ["a", "../../admin?del=1&x=", "@evil:80", "", "b"];
        let mut records = numbered(0..5, |number| vec![text(""), text("1"), text(ids[number as usize])]);
        // Earlier versions stored the whole path.
        records.extend(numbered(0..1, |_| vec![text("/dev/../x"), text("1")]));
        let outcome = sink.send(&records).await;
        let refused: Vec<usize> = (0..6).filter(|&index| outcome[index].is_err()).collect();
        assert_eq!(refused, [1, 3, 5], "{outcome:?}");
        assert!(
            outcome.iter().flatten().count() == 3 && reason(&outcome, 1).contains("dot segment"),
            "{outcome:?}"
        );
        assert!(
            reason(&outcome, 3).contains("empty") && reason(&outcome, 5).contains("missing"),
            "{outcome:?}"
        );
        let mut lines: Vec<String> = server.seen().into_iter().map(|seen| seen.line).collect();
        lines.sort();
        let expected = [
            "POST /base/dev/%40evil%3A80/x",
            "POST /base/dev/a/x",
            "POST /base/dev/b/x",
        ];
        assert_eq!(lines, expected);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_are_reused_and_limited() {
    let server = WebServer::start(|_| status(200, "fine")).await;
    let connector = HttpConnectorConfig {
        connections_max: 4,
        ..server.connector()
    };
    let sink = sink(&connector, &HttpActionConfig::default());
    for _ in 0..5 {
        let outcome = sink.send(&numbered(0..40, fields)).await;
        assert!(outcome.iter().all(Result::is_ok), "{outcome:?}");
    }
    assert_eq!(server.seen().len(), 200);
    let connections = server.connections.load(Ordering::Relaxed);
    assert!((1..=4).contains(&connections), "{connections} connections");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bad_record_does_not_block_its_batch() {
    for batch in [HttpBatch::JsonArray, HttpBatch::Ndjson] {
        let server = WebServer::start(|seen| match seen.body.contains(":13}") || seen.body.contains(":77}") {
            true => status(422, "unlucky"),
            false => status(200, ""),
        })
        .await;
        let action = HttpActionConfig {
            batch,
            ..HttpActionConfig::default()
        };
        let sink = sink(&server.connector(), &action);
        let mut records = numbered(0..100, fields);
        records.extend(numbered(0..1, |_| vec![text(""), text("{no json")]));
        let outcome = sink.send(&records).await;
        let refused: Vec<usize> = (0..101).filter(|&index| outcome[index].is_err()).collect();
        assert_eq!(refused, [13, 77, 100]);
        assert!(
            reason(&outcome, 13).contains("422") && reason(&outcome, 13).contains("unlucky"),
            "{outcome:?}"
        );
        assert!(reason(&outcome, 100).contains("not valid JSON"), "{outcome:?}");
        let is_taken = |seen: &&Seen| !(seen.body.contains(":13}") || seen.body.contains(":77}"));
        let bodies: Vec<String> = server
            .seen()
            .iter()
            .filter(is_taken)
            .map(|seen| seen.body.clone())
            .collect();
        let ids = ids(&bodies, batch);
        let expected: Vec<u64> = (0..100).filter(|id| ![13, 77].contains(id)).collect();
        assert_eq!(ids, expected, "once each, in order");
    }
}

fn ids(bodies: &[String], batch: HttpBatch) -> Vec<u64> {
    let parse = |text: &str| serde_json::from_str::<serde_json::Value>(text).expect("JSON");
    let id = |value: &serde_json::Value| value["id"].as_u64().expect("a number");
    let of_body = |body: &String| -> Vec<u64> {
        match batch {
            HttpBatch::JsonArray => parse(body).as_array().expect("an array").iter().map(id).collect(),
            _ => body.lines().map(|line| id(&parse(line))).collect(),
        }
    };
    bodies.iter().flat_map(of_body).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn statuses_are_classified_as_documented() {
    let server = WebServer::start(|seen| {
        let code = seen.line.rsplit('/').next().and_then(|code| code.parse().ok());
        status(code.expect("a path with a status"), "because")
    })
    .await;
    for code in [
        200, 201, 204, 301, 400, 401, 403, 404, 408, 422, 429, 500, 501, 502, 503, 504,
    ] {
        let action = HttpActionConfig {
            path: format!("/{code}"),
            ..HttpActionConfig::default()
        };
        let sink = sink(&server.connector(), &action);
        let records = numbered(0..1, |_| vec![text(""), text("x")]);
        let outcome = sink.send(&records).await;
        let is_expected = match code {
            200..300 => outcome[0].is_ok(),
            401 | 429 | 502..=504 => matches!(outcome[0], Err(DeliveryFailure::Unreachable(_))),
            408 | 500 | 501 => matches!(outcome[0], Err(DeliveryFailure::Temporary(_))),
            _ => matches!(outcome[0], Err(DeliveryFailure::Refused(_))),
        };
        assert!(is_expected, "{code}: {outcome:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn retry_after_is_honoured() {
    let server = WebServer::start(|_| {
        let mut answer = status(429, "slow down")?;
        answer
            .headers_mut()
            .insert("retry-after", "300".parse().expect("a value"));
        Some(answer)
    })
    .await;
    let sink = sink(&server.connector(), &HttpActionConfig::default());
    sink.check().await.expect("the server is reachable");
    assert!(matches!(
        sink.send(&numbered(0..1, fields)).await[0],
        Err(DeliveryFailure::Unreachable(_))
    ));
    let outcome = sink.send(&numbered(0..3, fields)).await;
    assert!(reason(&outcome, 2).contains("requested a pause"), "{outcome:?}");
    sink.check().await.expect_err("the pause is not over");
    assert_eq!(server.seen().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn records_to_retry_are_not_overtaken() {
    let server = WebServer::start(|seen| match seen.line.ends_with("/b") {
        true => status(500, "oops"),
        false => status(200, ""),
    })
    .await;
    let action = HttpActionConfig {
        path: "/${name}".to_owned(),
        batch: HttpBatch::JsonArray,
        ..HttpActionConfig::default()
    };
    let sink = sink(&server.connector(), &action);
    let records = numbered(0..6, |number| {
        vec![text(""), text("1"), text(["a", "b", "c"][number as usize / 2])]
    });
    let outcome = sink.send(&records).await;
    assert!(outcome[..2].iter().all(Result::is_ok), "{outcome:?}");
    assert!(
        outcome[2..4]
            .iter()
            .all(|result| matches!(result, Err(DeliveryFailure::Temporary(_)))),
        "{outcome:?}"
    );
    assert!(
        outcome[4..]
            .iter()
            .all(|result| *result == Err(DeliveryFailure::NotSent)),
        "{outcome:?}"
    );
    let lines: Vec<String> = server.seen().into_iter().map(|seen| seen.line).collect();
    // Both in one request, then each alone, because either could be the cause.
    assert_eq!(lines, ["POST /base/a", "POST /base/b", "POST /base/b", "POST /base/b"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn record_with_status_500_does_not_block_its_batch() {
    let server = WebServer::start(|seen| match seen.body.contains(":13}") {
        true => status(500, "oops"),
        false => status(200, ""),
    })
    .await;
    let action = HttpActionConfig {
        batch: HttpBatch::JsonArray,
        ..HttpActionConfig::default()
    };
    let outcome = sink(&server.connector(), &action).send(&numbered(0..100, fields)).await;
    let failed: Vec<usize> = (0..100).filter(|&index| outcome[index].is_err()).collect();
    assert_eq!(failed, [13]);
    assert!(
        matches!(&outcome[13], Err(DeliveryFailure::Temporary(reason)) if reason.contains("oops")),
        "{outcome:?}"
    );
}

/// A whole batch takes longer than the time limit of a batch. The finished part is reported, and no message is sent
/// twice.
#[tokio::test(flavor = "multi_thread")]
async fn a_slow_server_receives_each_message_once() {
    let server = WebServer::start(|_| {
        std::thread::sleep(std::time::Duration::from_millis(150));
        status(200, "")
    })
    .await;
    let action = HttpActionConfig::default();
    let sink = sink(&server.connector(), &action);
    assert!(
        sink.limits_requests(),
        "the pump sets no limit for all of them together"
    );
    let record = |number: u32| {
        let body = number.to_string();
        let fields = [Some(&b""[..]), Some(body.as_bytes())];
        let mut record = connectors::sample(7, &[&fields]);
        record.pop().expect("one")
    };
    let mut waiting: Vec<Record> = (0..50).map(record).collect();
    let mut rounds = 0;
    while !waiting.is_empty() {
        let outcome = sink.send(&waiting).await;
        let taken = outcome.iter().take_while(|result| result.is_ok()).count();
        assert!(taken > 0, "{outcome:?}");
        assert!(
            outcome[taken..]
                .iter()
                .all(|result| *result == Err(DeliveryFailure::NotSent)),
            "{outcome:?}"
        );
        waiting.drain(..taken);
        rounds += 1;
    }
    let bodies: Vec<String> = server.seen().into_iter().map(|seen| seen.body).collect();
    let expected: Vec<String> = (0..50).map(|number: u32| number.to_string()).collect();
    assert_eq!(bodies, expected, "once each, in order");
    assert_eq!(rounds, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_without_response_times_out() {
    let server = WebServer::start(|_| None).await;
    let action = HttpActionConfig {
        timeout_ms: 50,
        ..HttpActionConfig::default()
    };
    let outcome = sink(&server.connector(), &action).send(&numbered(0..2, fields)).await;
    assert!(
        matches!(&outcome[1], Err(DeliveryFailure::Temporary(reason)) if reason.contains("50 ms")),
        "{outcome:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn long_responses_are_not_read_completely() {
    let server = WebServer::start(|_| status(200, &"x".repeat(1 << 20))).await;
    let action = HttpActionConfig {
        answer_bytes_max: 1000,
        ..HttpActionConfig::default()
    };
    let outcome = sink(&server.connector(), &action).send(&numbered(0..2, fields)).await;
    assert_eq!(outcome, vec![Ok(()); 2]);
}

#[tokio::test(flavor = "multi_thread")]
async fn no_message_is_lost_when_the_server_restarts() {
    let server = WebServer::start(|_| status(200, "")).await;
    let (address, seen) = (server.address, server.seen.clone());
    let sink = sink(&server.connector(), &HttpActionConfig::default());
    let records = numbered(0..3000, fields);
    let restart = async {
        support::until("some requests", async || seen.lock().expect("no panic").len() > 300).await;
        server.task.abort();
        support::until("the server has stopped", async || server.task.is_finished()).await;
        WebServer::start_at(address, None, Arc::new(|_: &Seen| status(200, ""))).await
    };
    let (failures, back) = tokio::join!(deliver(&sink, &records, |_| ()), restart);
    assert!(failures > 0, "the server was down for a while");
    let mut bodies: Vec<String> = server.seen().into_iter().map(|seen| seen.body).collect();
    bodies.extend(back.seen().into_iter().map(|seen| seen.body));
    let mut received = ids(&bodies, HttpBatch::None);
    let duplicates = received.len();
    received.sort_unstable();
    received.dedup();
    assert_eq!(received, (0..3000).collect::<Vec<u64>>());
    // Only requests in flight can have arrived twice.
    let duplicates = duplicates - received.len();
    assert!(duplicates <= 32, "{duplicates} duplicates");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unreachable_server_is_reported() {
    let address = free_port();
    let sink = sink(&connector(&format!("http://{address}")), &HttpActionConfig::default());
    let outcome = sink.send(&numbered(0..2, fields)).await;
    let expected = format!("cannot connect to {address}");
    assert!(
        matches!(&outcome[0], Err(DeliveryFailure::Unreachable(reason)) if reason.contains(&expected)),
        "{outcome:?}"
    );
    let error = sink.check().await.expect_err("no server");
    assert!(error.contains(&expected), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn tls_checks_the_certificate() {
    let directory = Directory::new("http");
    certificates(&directory);
    let chain = CertificateDer::pem_file_iter(directory.join("cert.pem")).expect("a file");
    let key = PrivateKeyDer::from_pem_file(directory.join("key.pem")).expect("a key");
    let config = rustls::ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(chain.collect::<Result<_, _>>().expect("certificates"), key)
        .expect("a certificate that fits");
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let any = "127.0.0.1:0".parse().expect("an address");
    let server = WebServer::start_at(any, Some(acceptor), Arc::new(|_: &Seen| status(200, ""))).await;
    let with = |tls: TlsConfig| {
        let mut config = connector(&format!("https://localhost:{}/", server.address.port()));
        config.tls = tls;
        sink(&config, &HttpActionConfig::default())
    };
    let trusted = TlsConfig {
        ca_file: Some(directory.join("ca.pem")),
        ..TlsConfig::default()
    };
    assert_eq!(with(trusted).send(&numbered(0..1, fields)).await, vec![Ok(())]);
    let unchecked = TlsConfig {
        verify: false,
        ..TlsConfig::default()
    };
    assert_eq!(with(unchecked).send(&numbered(0..1, fields)).await, vec![Ok(())]);
    let other = Directory::new("http-other");
    certificates(&other);
    let foreign = TlsConfig {
        ca_file: Some(other.join("ca.pem")),
        ..TlsConfig::default()
    };
    let outcome = with(foreign).send(&numbered(0..1, fields)).await;
    assert!(
        matches!(&outcome[0], Err(DeliveryFailure::Unreachable(reason)) if reason.contains("certificate")),
        "{outcome:?}"
    );
}

#[test]
fn problems_name_the_field() {
    for (json, field) in [
        (r#"{"url": "ftp://x"}"#, "url"),
        (r#"{"url": "http://user:password@host"}"#, "url"),
        (r#"{"url": "http://host:99999"}"#, "url"),
        (r#"{"url": "http://host:"}"#, "url"),
        (r#"{"url": "http://host", "headers": {"a b": "x"}}"#, "headers.a b"),
        (r#"{"url": "http://host", "connections_max": 0}"#, "connections_max"),
        (
            r#"{"url": "http://host", "tls": {"ca_file": "/no/such"}}"#,
            "tls.ca_file",
        ),
    ] {
        let config: HttpConnectorConfig = serde_json::from_str(json).expect("the right types");
        let problems = HttpConnector::new(&config).err().expect("problems").join("\n");
        assert!(
            problems.contains(field) && !problems.contains("user:password"),
            "{problems}"
        );
    }
    let unknown = serde_json::from_str::<HttpConnectorConfig>(r#"{"url": "http://h", "urll": 1}"#);
    assert!(unknown.expect_err("unknown field").to_string().contains("urll"));
    let action: HttpActionConfig =
        serde_json::from_str(r#"{"path": "x", "headers": {"Content-Type": "y", "host": "${h}"}}"#).expect("types");
    let problems = action.problems().join("\n");
    assert!(
        problems.contains("path:") && problems.contains("content_type") && problems.contains("headers.host:"),
        "{problems}"
    );
}
