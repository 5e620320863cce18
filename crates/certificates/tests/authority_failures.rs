//! Authorities that cannot be reached, reject an order, or ask for patience.

use std::convert::Infallible;
use std::fs;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use certificates::acme::{AcmeConfig, ChallengeKind};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use rcgen::{CertificateParams, KeyPair};
use rustls::pki_types::PrivateKeyDer;
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use crate::pebble::{Client, Pebble};
use crate::support::{Directory, Running, until};

#[test]
fn authority_that_returns_issues_a_certificate() {
    let (pebble, directory) = (Pebble::start(&[]), Directory::new());
    let _port = pebble.http();
    let mut config = pebble.config(directory.path(), &["first.example"]);
    config.external_account = None;
    let client = Client::start(config.clone());
    client.issued(1);
    drop(client);

    pebble.stop();
    config.domains = vec!["second.example".to_owned()];
    let client = Client::start(config);
    let error = client.error("cannot connect");
    assert!(error.contains("check tls.acme.directory"), "{error}");
    // The certificate in use is still there.
    let stored = fs::read_to_string(directory.path().join("certificate.pem")).unwrap();
    assert!(stored.contains("BEGIN CERTIFICATE") && client.status.get().expires_at_unix_s.is_some());
    // It has forgotten the account, which is registered again with its key.
    pebble.start_again();
    until("a certificate", || client.issued.lock().unwrap().first().cloned());
    assert_eq!(client.status.get().last_error, None);
}

#[test]
fn rejected_orders_name_the_reason() {
    let (pebble, directory) = (Pebble::shared(), Directory::new());
    let _port = pebble.http();
    let files = directory.path();
    let error = |domain: &str, part: &str| Client::start(pebble.config(files, &[domain])).error(part);

    let rejected = error("blocked.example", "rejectedIdentifier");
    assert!(rejected.contains("a name in tls.acme.domains; remove it"), "{rejected}");

    // Nothing listens there.
    pebble.resolve("elsewhere.example", "127.0.0.2");
    let wrong = error("elsewhere.example", "elsewhere.example: ");
    assert!(wrong.contains("each domain must resolve to this server"), "{wrong}");

    let mut config = pebble.config(&files.join("other"), &["external.example"]);
    config.external_account = None;
    let missing = Client::start(config).error("externalAccountRequired");
    assert!(missing.contains("tls.acme.eab_key_id"), "{missing}");

    let mut config = pebble.config(files, &["untrusted.example"]);
    config.ca_file = None;
    let untrusted = Client::start(config).error("TLS handshake");
    assert!(untrusted.contains("tls.acme.ca_file"), "{untrusted}");
}

/// An authority that accepts accounts, and rejects orders with `Retry-After`. Pebble has no limits.
struct LimitingAuthority {
    address: SocketAddr,
    orders: Arc<Mutex<Vec<Instant>>>,
    _running: Running,
}

impl LimitingAuthority {
    fn start(directory: &Directory, retry_after_s: u32) -> LimitingAuthority {
        let params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap();
        directory.file("ca.pem", certificate.pem());
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        let config = rustls::ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(rustls::ALL_VERSIONS)
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], key)
            .unwrap();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let orders = Arc::<Mutex<Vec<Instant>>>::default();
        let (noted, tls) = (orders.clone(), TlsAcceptor::from(Arc::new(config)));
        let serve = async move {
            let listener = TcpListener::from_std(listener).unwrap();
            let nonces = Arc::new(AtomicUsize::new(0));
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let (tls, nonces, noted) = (tls.clone(), nonces.clone(), noted.clone());
                tokio::spawn(async move {
                    let Ok(stream) = tls.accept(stream).await else { return };
                    let service = service_fn(|request: Request<Incoming>| {
                        let path = request.uri().path().to_owned();
                        if path == "/order" {
                            noted.lock().unwrap().push(Instant::now());
                        }
                        let nonce = nonces.fetch_add(1, Ordering::Relaxed);
                        async move { Ok::<_, Infallible>(response(&path, address, nonce, retry_after_s)) }
                    });
                    let _ = http1::Builder::new()
                        .serve_connection(TokioIo::new(stream), service)
                        .await;
                });
            }
        };
        LimitingAuthority {
            address,
            orders,
            _running: Running::start(Box::pin(serve)),
        }
    }
}

fn response(path: &str, address: SocketAddr, nonce: usize, retry_after_s: u32) -> Response<Full<Bytes>> {
    let base = format!("https://localhost:{}", address.port());
    let (status, body) = match path {
        "/dir" => (
            200,
            format!(
                "{{\"newNonce\": \"{base}/nonce\", \"newAccount\": \"{base}/account\", \"newOrder\": \"{base}/order\"}}"
            ),
        ),
        "/account" => (201, "{\"status\": \"valid\"}".to_owned()),
        "/order" => (
            429,
            "{\"type\": \"urn:ietf:params:acme:error:rateLimited\", \"detail\": \"too many certificates\"}".to_owned(),
        ),
        _ => (200, String::new()),
    };
    let kind = if status == 429 {
        "application/problem+json"
    } else {
        "application/json"
    };
    let response = Response::builder()
        .status(status)
        .header("content-type", kind)
        .header("replay-nonce", format!("nonce{nonce}"))
        .header("location", format!("{base}/account/1"));
    let response = match status {
        429 => response.header("retry-after", retry_after_s),
        _ => response,
    };
    response.body(Full::from(body)).unwrap()
}

fn config(authority: &LimitingAuthority, directory: &Directory) -> AcmeConfig {
    let mut config = AcmeConfig {
        directory: format!("https://localhost:{}/dir", authority.address.port()),
        domains: vec!["limited.example".to_owned()],
        contact: Vec::new(),
        challenge: ChallengeKind::Http01,
        bind: ([127, 0, 0, 1], 0).into(),
        ca_file: Some(directory.path().join("ca.pem")),
        external_account: None,
        files: directory.path().join("acme"),
        timing: crate::pebble::timing(),
    };
    config.timing.first_retry_rejected = Duration::from_millis(50);
    config
}

/// Waits for the second order, and returns the time between both.
fn pause_between_orders(authority: &LimitingAuthority) -> Duration {
    let orders = until("a second order", || {
        let orders = authority.orders.lock().unwrap();
        (orders.len() >= 2).then(|| orders.clone())
    });
    orders[1] - orders[0]
}

#[test]
fn rate_limit_is_waited_for() {
    const RETRY_AFTER_S: u32 = 2;
    let directory = Directory::new();
    let authority = LimitingAuthority::start(&directory, RETRY_AFTER_S);
    let client = Client::start(config(&authority, &directory));
    let error = client.error("rateLimited");
    assert!(
        error.starts_with("new order: too many certificates (rateLimited): the authority limits"),
        "{error}"
    );
    let pause = pause_between_orders(&authority);
    assert!(pause >= Duration::from_secs(RETRY_AFTER_S.into()), "{pause:?}");
}

#[test]
fn restarts_do_not_shorten_the_pause_of_a_rate_limit() {
    const RETRY_AFTER_S: u32 = 2;
    let directory = Directory::new();
    let authority = LimitingAuthority::start(&directory, RETRY_AFTER_S);
    let mut config = config(&authority, &directory);
    for _ in 0..3 {
        // Each run knows the reason from the first one.
        Client::start(config.clone()).error("rateLimited");
    }
    // Also with other options: the limit may be that of the account.
    config.domains = vec!["other.example".to_owned()];
    let _client = Client::start(config);
    let pause = pause_between_orders(&authority);
    // Both clocks are read in whole milliseconds.
    assert!(
        pause >= Duration::from_millis(u64::from(RETRY_AFTER_S) * 1000 - 5),
        "{pause:?}"
    );
}
