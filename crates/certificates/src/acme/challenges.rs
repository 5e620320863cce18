//! Answers the authority's checks that the server owns its domains.
//!
//! `http-01`: a small HTTP server that answers only `GET /.well-known/acme-challenge/TOKEN`, and only while an order
//! waits for this token. `tls-alpn-01`: a TLS server that presents a certificate only for the protocol `acme-tls/1` and
//! a domain of the running order. Everyone can connect to both, so the number and the time of connections are limited.

use std::collections::HashMap;
use std::convert::Infallible;
use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener as BlockingListener};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::header::CONTENT_TYPE;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use rcgen::{CertificateParams, CustomExtension, DistinguishedName, KeyPair};
use rustls::ServerConfig;
use rustls::pki_types::PrivateKeyDer;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;

use super::ChallengeKind;

/// Path before the token (RFC 8555, 8.3).
const PATH: &str = "/.well-known/acme-challenge/";
/// Protocol of tls-alpn-01 (RFC 8737).
const PROTOCOL: &[u8] = b"acme-tls/1";
const CONNECTIONS_MAX: usize = 64;
const CONNECTION_LIMIT: Duration = Duration::from_secs(10);
/// Smallest buffer that hyper allows, which limits the size of a request.
const REQUEST_MAX: usize = 8 * 1024;

/// Why the port of the challenge cannot be opened.
#[derive(Debug)]
pub struct StartError {
    pub address: SocketAddr,
    pub source: io::Error,
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot listen on {}", self.address)
    }
}

impl std::error::Error for StartError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.source)
    }
}

/// The answers of the running order.
#[derive(Debug, Default)]
pub struct Challenges {
    /// http-01: key authorizations by token.
    tokens: Mutex<HashMap<String, String>>,
    /// tls-alpn-01: certificates by domain.
    certificates: Mutex<HashMap<String, Arc<CertifiedKey>>>,
}

impl Challenges {
    pub fn add_token(&self, token: &str, key_authorization: &str) {
        lock(&self.tokens).insert(token.to_owned(), key_authorization.to_owned());
    }

    /// Creates the certificate that proves the ownership of a domain.
    pub fn add_domain(&self, domain: &str, key_authorization_digest: &[u8]) -> Result<(), String> {
        let certified = challenge_certificate(domain, key_authorization_digest)
            .map_err(|error| format!("cannot create the certificate of the challenge: {error}"))?;
        lock(&self.certificates).insert(domain.to_ascii_lowercase(), Arc::new(certified));
        Ok(())
    }

    /// Removes all answers.
    pub fn clear(&self) {
        lock(&self.tokens).clear();
        lock(&self.certificates).clear();
    }
}

fn lock<T>(table: &Mutex<T>) -> MutexGuard<'_, T> {
    table.lock().unwrap_or_else(PoisonError::into_inner)
}

fn challenge_certificate(domain: &str, digest: &[u8]) -> Result<CertifiedKey, Box<dyn std::error::Error>> {
    let mut params = CertificateParams::new(vec![domain.to_owned()])?;
    params.distinguished_name = DistinguishedName::new();
    params.custom_extensions = vec![CustomExtension::new_acme_identifier(digest)];
    let key = KeyPair::generate()?;
    let certificate = params.self_signed(&key)?;
    let key = PrivateKeyDer::try_from(key.serialize_der())?;
    let provider = rustls::crypto::ring::default_provider();
    // The TLS library cannot compare key and certificate: it does not know the extension, which must be critical.
    let key = provider.key_provider.load_private_key(key)?;
    Ok(CertifiedKey::new(vec![certificate.der().clone()], key))
}

impl ResolvesServerCert for Challenges {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        if !hello.alpn()?.any(|protocol| protocol == PROTOCOL) {
            return None;
        }
        let domain = hello.server_name()?.to_ascii_lowercase();
        lock(&self.certificates).get(&domain).cloned()
    }
}

/// The open port of the challenge.
pub struct ChallengeServer {
    kind: ChallengeKind,
    listener: BlockingListener,
    address: SocketAddr,
    challenges: Arc<Challenges>,
}

impl ChallengeServer {
    pub fn open(kind: ChallengeKind, address: SocketAddr) -> Result<ChallengeServer, StartError> {
        let failed = |source| StartError { address, source };
        let listener = BlockingListener::bind(address).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        Ok(ChallengeServer {
            kind,
            address: listener.local_addr().map_err(failed)?,
            listener,
            challenges: Arc::default(),
        })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn challenges(&self) -> &Arc<Challenges> {
        &self.challenges
    }

    /// Answers until the task is dropped.
    pub async fn serve(&self) {
        let listener = self.listener.try_clone().and_then(TcpListener::from_std);
        let listener = match listener {
            Ok(listener) => listener,
            Err(error) => {
                tracing::error!(%error, address = %self.address, "cannot answer challenges of the certificate authority");
                return std::future::pending().await;
            }
        };
        let tls = TlsAcceptor::from(Arc::new(self.tls_config()));
        let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
        loop {
            let stream = match listener.accept().await {
                Ok((stream, _)) => stream,
                Err(error) => {
                    // As when the process has too many open files.
                    tracing::warn!(%error, address = %self.address, "cannot accept a connection");
                    sleep(Duration::from_secs(1)).await;
                    continue;
                }
            };
            // Too many connections: this one is closed.
            let Ok(place) = Arc::clone(&places).try_acquire_owned() else {
                continue;
            };
            let (kind, challenges, tls) = (self.kind, self.challenges.clone(), tls.clone());
            tokio::spawn(async move {
                let _place = place;
                let answer = async {
                    match kind {
                        ChallengeKind::Http01 => answer_http(stream, challenges).await,
                        // The handshake is the answer.
                        ChallengeKind::TlsAlpn01 => drop(tls.accept(stream).await),
                    }
                };
                // The other side decides how the connection ends.
                let _ = timeout(CONNECTION_LIMIT, answer).await;
            });
        }
    }

    fn tls_config(&self) -> ServerConfig {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(rustls::ALL_VERSIONS)
            .expect("the provider supports all versions")
            .with_no_client_auth()
            .with_cert_resolver(self.challenges.clone());
        config.alpn_protocols = vec![PROTOCOL.to_vec()];
        config
    }
}

async fn answer_http(stream: TcpStream, challenges: Arc<Challenges>) {
    let service = service_fn(|request| {
        let response = http_response(&request, &challenges);
        async { Ok::<_, Infallible>(response) }
    });
    let mut server = http1::Builder::new();
    server
        .timer(TokioTimer::new())
        .header_read_timeout(CONNECTION_LIMIT)
        .max_buf_size(REQUEST_MAX)
        .keep_alive(false);
    // A connection that breaks is not ours to report.
    let _ = server.serve_connection(TokioIo::new(stream), service).await;
}

fn http_response<B>(request: &Request<B>, challenges: &Challenges) -> Response<Full<Bytes>> {
    let token = request.uri().path().strip_prefix(PATH);
    let found = token
        .filter(|_| request.method() == Method::GET)
        .and_then(|token| lock(&challenges.tokens).get(token).cloned());
    let (status, body) = match found {
        Some(key_authorization) => (StatusCode::OK, key_authorization),
        None => (StatusCode::NOT_FOUND, String::new()),
    };
    let mut response = Response::new(Full::from(body));
    *response.status_mut() = status;
    let kind = hyper::header::HeaderValue::from_static("application/octet-stream");
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(challenges: &Challenges, method: Method, path: &str) -> StatusCode {
        let request = Request::builder().method(method).uri(path).body(()).unwrap();
        http_response(&request, challenges).status()
    }

    #[test]
    fn only_tokens_of_the_order_are_answered() {
        let challenges = Challenges::default();
        challenges.add_token("abc", "abc.thumb");
        let get = |path: &str| status(&challenges, Method::GET, path);
        assert_eq!(get("/.well-known/acme-challenge/abc"), StatusCode::OK);
        for path in [
            "/",
            "/abc",
            "/.well-known/acme-challenge/",
            "/.well-known/acme-challenge/abc/",
        ] {
            assert_eq!(get(path), StatusCode::NOT_FOUND, "{path}");
        }
        assert_eq!(
            status(&challenges, Method::POST, "/.well-known/acme-challenge/abc"),
            StatusCode::NOT_FOUND
        );
        challenges.clear();
        assert_eq!(
            status(&challenges, Method::GET, "/.well-known/acme-challenge/abc"),
            StatusCode::NOT_FOUND
        );
    }
}
