//! Starts a server on ephemeral ports, with generated certificates.

use std::net::SocketAddr;
use std::num::NonZeroU16;
use std::sync::Arc;
use std::time::{Duration, Instant};

use broker::{AccessControl, ConnectionEvent, OpenAccess, ShardConfig, Transport};
use net::{
    AuthQuestion, Authenticator, ConnectionObserver, EarlyCloseReason, ListenerConfig, RestartState, Server,
    ServerConfig, ServerHandle,
};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use rustls::crypto::ring::default_provider;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig as TlsServerConfig};

pub const TRANSPORTS: [Transport; 4] = [
    Transport::Tcp,
    Transport::Tls,
    Transport::WebSocket,
    Transport::SecureWebSocket,
];

/// With QUIC, whose connections are no TCP streams.
pub const ALL_TRANSPORTS: [Transport; 5] = [
    Transport::Tcp,
    Transport::Tls,
    Transport::WebSocket,
    Transport::SecureWebSocket,
    Transport::Quic,
];

pub struct Running {
    pub handle: ServerHandle,
    pub authority: Authority,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.handle.shutdown(Duration::from_secs(5));
    }
}

/// Settings that a test changes.
pub struct Options {
    pub config: ServerConfig,
    pub shard: ShardConfig,
    pub access: Arc<dyn AccessControl>,
    pub authenticator: Arc<dyn Authenticator>,
    pub observer: Arc<dyn ConnectionObserver>,
    pub authority: Authority,
    pub restart: Option<RestartState>,
}

/// Returns one listener of each kind.
pub fn options(workers: u16) -> Options {
    let authority = Authority::new();
    let tls = authority.server_config("localhost");
    let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
    let listeners = ALL_TRANSPORTS
        .into_iter()
        .map(|transport| {
            let mut listener = ListenerConfig::new("test", transport, any);
            listener.tls = match transport {
                Transport::Tcp | Transport::WebSocket => None,
                Transport::Tls | Transport::SecureWebSocket => Some(tls.clone()),
                Transport::Quic => Some(for_quic(&tls)),
            };
            listener
        })
        .collect();
    Options {
        config: ServerConfig {
            listeners,
            workers: NonZeroU16::new(workers),
            seed: 7,
            ..ServerConfig::default()
        },
        shard: ShardConfig::default(),
        access: Arc::new(OpenAccess),
        authenticator: Arc::new(Nobody),
        observer: Arc::new(Unobserved),
        authority,
        restart: None,
    }
}

/// Returns the configuration with the name of the protocol.
pub fn for_quic(tls: &TlsServerConfig) -> Arc<TlsServerConfig> {
    let mut config = tls.clone();
    config.alpn_protocols = vec![b"mqtt".to_vec()];
    Arc::new(config)
}

pub fn start(workers: u16) -> Running {
    options(workers).start()
}

impl Options {
    pub fn start(self) -> Running {
        let handle = Server::start(
            self.config,
            Arc::new(self.shard),
            self.access,
            self.authenticator,
            self.observer,
            self.restart,
        )
        .unwrap();
        Running {
            handle,
            authority: self.authority,
        }
    }

    pub fn listener(&mut self, transport: Transport) -> &mut ListenerConfig {
        self.config
            .listeners
            .iter_mut()
            .find(|listener| listener.transport == transport)
            .unwrap()
    }
}

impl Running {
    pub fn address(&self, transport: Transport) -> SocketAddr {
        self.handle
            .listeners()
            .into_iter()
            .find(|listener| listener.transport == transport)
            .unwrap()
            .address
    }

    pub fn tcp(&self) -> std::net::TcpStream {
        super::client::tcp(self.address(Transport::Tcp))
    }

    pub fn open(&self, transport: Transport) -> Box<dyn super::client::Wire> {
        super::client::open(transport, self.address(transport), &self.authority.client_config())
    }

    pub fn client(&self, transport: Transport, client_id: &str) -> super::client::Client {
        super::client::Client::connected(self.open(transport), client_id)
    }

    pub fn refused(&self, transport: Transport, refusal: EarlyCloseReason) -> u64 {
        let listeners = self.handle.listeners();
        listeners
            .iter()
            .find(|listener| listener.transport == transport)
            .unwrap()
            .refused[refusal as usize]
    }
}

/// Waits until a condition becomes true.
pub fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + super::client::PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "the condition did not become true: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

pub struct Unobserved;

impl ConnectionObserver for Unobserved {
    fn event(&self, _: &ConnectionEvent, _: bool) {}
}

/// Starts a server whose `AccessControl` decides everything immediately.
struct Nobody;

impl Authenticator for Nobody {
    fn authenticate(&self, _: AuthQuestion) {
        unreachable!("nobody asks")
    }
}

/// Issues certificates of servers and clients.
#[derive(Clone)]
pub struct Authority(Arc<CertifiedIssuer<'static, KeyPair>>);

impl Authority {
    pub fn new() -> Authority {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "Test Authority");
        Authority(Arc::new(
            CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap(),
        ))
    }

    pub fn pem(&self) -> String {
        self.0.pem()
    }

    fn roots(&self) -> Arc<RootCertStore> {
        let mut roots = RootCertStore::empty();
        roots.add(self.0.der().clone()).unwrap();
        Arc::new(roots)
    }

    /// Certificate and key, in DER.
    pub fn issue(&self, name: &str) -> (CertificateDer<'static>, PrivateKeyDer<'static>, String, String) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        let certificate = params.signed_by(&key, &self.0).unwrap();
        let der = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        (certificate.der().clone(), der, certificate.pem(), key.serialize_pem())
    }

    pub fn server_config(&self, name: &str) -> Arc<TlsServerConfig> {
        let (certificate, key, ..) = self.issue(name);
        let config = TlsServerConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate], key)
            .unwrap();
        Arc::new(config)
    }

    /// Requires a client certificate of this authority.
    pub fn mutual_config(&self) -> Arc<TlsServerConfig> {
        let (certificate, key, ..) = self.issue("localhost");
        let provider = Arc::new(default_provider());
        let verifier = WebPkiClientVerifier::builder_with_provider(self.roots(), provider.clone())
            .build()
            .unwrap();
        let config = TlsServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_client_cert_verifier(verifier)
            .with_single_cert(vec![certificate], key)
            .unwrap();
        Arc::new(config)
    }

    pub fn client_config(&self) -> Arc<ClientConfig> {
        let config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(self.roots())
            .with_no_client_auth();
        Arc::new(config)
    }

    /// Presents a certificate that `issuer` signed for `name`.
    pub fn client_config_as(&self, issuer: &Authority, name: &str) -> Arc<ClientConfig> {
        let (certificate, key, ..) = issuer.issue(name);
        let config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(self.roots())
            .with_client_auth_cert(vec![certificate], key)
            .unwrap();
        Arc::new(config)
    }
}
