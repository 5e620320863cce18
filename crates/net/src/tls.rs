//! Creates TLS configurations from PEM files. Reads files, so it must not run on a worker. Called at startup and on
//! reload.

mod cipher_suites;
mod revocation;
mod staple;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, NoServerSessionStorage, ResolvesServerCert, WebPkiClientVerifier};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{InconsistentKeys, RootCertStore, ServerConfig, SignatureAlgorithm};

pub use cipher_suites::check_cipher_suites;
use revocation::NoListAvailable;
pub use revocation::{MissingList, check_revocation_list, revocation_lists_of_file};
pub use staple::{STAPLE_BYTES_MAX, Stapling, staple_subject, stored_staple};

/// Whether a listener requests certificates from clients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClientCertificates {
    #[default]
    None,
    /// Verified if the client presents one.
    Optional,
    Required,
}

#[derive(Clone, Debug, Default)]
pub struct TlsFiles {
    /// The server certificate, followed by intermediate certificates.
    pub certificate: PathBuf,
    pub key: PathBuf,
    pub origin: CertificateOrigin,
    /// OCSP stapling, if it is on.
    pub stapling: Option<Stapling>,
    /// CAs of client certificates. Required unless `client_certificates` is `ClientCertificates::None`.
    pub client_authorities: Option<PathBuf>,
    pub client_certificates: ClientCertificates,
    /// Revocation lists of all CAs of client certificates, PEM. `None`: no certificate counts as revoked.
    pub revocation_lists: Option<PathBuf>,
    /// Downloaded revocation lists, DER, one in each file. A file may be missing.
    pub downloaded_lists: Vec<PathBuf>,
    pub missing_list: MissingList,
    /// QUIC needs TLS 1.3, whatever this is.
    pub oldest_version: OldestVersion,
    /// Names of the allowed cipher suites, in the order of preference. Empty: all.
    pub cipher_suites: Vec<String>,
    /// The listener speaks MQTT over QUIC.
    pub is_for_quic: bool,
}

/// How the server gets its certificate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CertificateOrigin {
    /// Someone else writes the files.
    #[default]
    Files,
    /// The server obtains it from a certificate authority. The file may be missing: TLS handshakes fail until the
    /// certificate arrives.
    Acme,
}

impl TlsFiles {
    /// Whether client certificates are checked against revocation lists.
    pub fn checks_revocation(&self) -> bool {
        self.revocation_lists.is_some() || !self.downloaded_lists.is_empty()
    }

    /// Whether the server has not obtained its certificate yet.
    pub fn awaits_certificate(&self) -> bool {
        self.origin == CertificateOrigin::Acme && !self.certificate.exists()
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OldestVersion {
    #[default]
    Tls12,
    Tls13,
}

#[derive(Debug)]
pub enum TlsError {
    /// A file is unreadable or not PEM.
    File { path: PathBuf, source: pem::Error },
    /// A file contains no certificate.
    NoCertificate { path: PathBuf },
    /// A file contains no revocation list.
    NoRevocationList { path: PathBuf },
    /// A file contains no private key, or an encrypted one.
    NoKey { path: PathBuf },
    /// Client certificates are requested, but no CA is configured.
    NoAuthorities,
    /// The list of cipher suites is unusable.
    CipherSuites { reason: String },
    /// The private key belongs to a different certificate.
    KeyMismatch { path: PathBuf, certificate: PathBuf },
    /// The TLS library rejected a CA, or the key together with its certificate.
    Rejected {
        path: PathBuf,
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

impl TlsError {
    /// Returns the affected file.
    pub fn path(&self) -> Option<&Path> {
        match self {
            TlsError::File { path, .. }
            | TlsError::NoCertificate { path }
            | TlsError::NoRevocationList { path }
            | TlsError::NoKey { path }
            | TlsError::KeyMismatch { path, .. }
            | TlsError::Rejected { path, .. } => Some(path),
            TlsError::NoAuthorities | TlsError::CipherSuites { .. } => None,
        }
    }
}

impl fmt::Display for TlsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TlsError::File { path, .. } => write!(f, "cannot read {}", path.display()),
            TlsError::NoCertificate { path } => write!(f, "{} contains no certificate", path.display()),
            TlsError::NoRevocationList { path } => {
                write!(f, "{} contains no certificate revocation list", path.display())
            }
            TlsError::NoKey { path } => {
                write!(
                    f,
                    "{} contains no readable private key; encrypted keys are not supported",
                    path.display()
                )
            }
            TlsError::KeyMismatch { path, certificate } => {
                let (key, certificate) = (path.display(), certificate.display());
                write!(
                    f,
                    "the private key in {key} does not belong to the certificate in {certificate}"
                )
            }
            TlsError::NoAuthorities => {
                f.write_str("client certificates are requested, but no client CA file is configured")
            }
            TlsError::CipherSuites { reason } => write!(f, "cipher_suites: {reason}"),
            TlsError::Rejected { path, .. } => write!(f, "cannot use the certificates in {}", path.display()),
        }
    }
}

impl std::error::Error for TlsError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            TlsError::File { source, .. } => Some(source),
            TlsError::Rejected { source, .. } => Some(source.as_ref()),
            TlsError::NoCertificate { .. }
            | TlsError::NoRevocationList { .. }
            | TlsError::NoKey { .. }
            | TlsError::KeyMismatch { .. }
            | TlsError::CipherSuites { .. }
            | TlsError::NoAuthorities => None,
        }
    }
}

const TLS13_ONLY: &[&rustls::SupportedProtocolVersion] = &[&rustls::version::TLS13];

/// Creates a configuration for TLS 1.2 and 1.3. Sessions are resumed with tickets that every worker accepts and that
/// are valid only for this configuration, so that new client CAs cannot be bypassed. With revocation lists, sessions
/// are not resumed: each connection checks the lists, which may have expired. 0-RTT is disabled: an
/// attacker could send a recorded CONNECT and PUBLISH again.
pub fn server_config(files: &TlsFiles) -> Result<Arc<ServerConfig>, TlsError> {
    let mut config = create(files)?;
    if files.is_for_quic {
        config.alpn_protocols = vec![QUIC_PROTOCOL.to_vec()];
    }
    Ok(Arc::new(config))
}

/// Derives the secret of QUIC's stateless resets from the private key, so that it is the same after a restart. `None`
/// before the server has obtained its certificate.
///
/// `place` is different for each listener of all servers with this key: one of them must not reveal the secret for the
/// connection of another (RFC 9000, section 21.11).
pub fn stateless_reset_secret(files: &TlsFiles, place: &str) -> Result<Option<Box<[u8]>>, TlsError> {
    if files.awaits_certificate() {
        return Ok(None);
    }
    let key = private_key(files)?;
    let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, key.secret_der());
    let secret = ring::hmac::sign(&key, format!("tidewire: stateless reset of QUIC {place}").as_bytes());
    Ok(Some(secret.as_ref().into()))
}

/// Kind of the keys that the server creates for its own certificate.
const ACME_KEY: SignatureAlgorithm = SignatureAlgorithm::ECDSA;

/// The name of MQTT over QUIC in the TLS handshake, as EMQX and NanoMQ use it.
const QUIC_PROTOCOL: &[u8] = b"mqtt";

fn private_key(files: &TlsFiles) -> Result<PrivateKeyDer<'static>, TlsError> {
    PrivateKeyDer::from_pem_file(&files.key).map_err(|source| {
        let path = files.key.clone();
        match source {
            pem::Error::NoItemsFound => TlsError::NoKey { path },
            source => TlsError::File { path, source },
        }
    })
}

fn create(files: &TlsFiles) -> Result<ServerConfig, TlsError> {
    let oldest_version = match files.is_for_quic {
        true => OldestVersion::Tls13,
        false => files.oldest_version,
    };
    let provider = cipher_suites::provider(&files.cipher_suites, oldest_version)?;
    let resolver = certificate_resolver(files, &provider)?;
    let builder = ServerConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(match files.oldest_version {
            OldestVersion::Tls12 if !files.is_for_quic => rustls::ALL_VERSIONS,
            OldestVersion::Tls12 | OldestVersion::Tls13 => TLS13_ONLY,
        })
        .map_err(|source| rejected(&files.certificate, source))?;
    let builder = match client_verifier(files, &provider)? {
        Some(verifier) => builder.with_client_cert_verifier(verifier),
        None => builder.with_no_client_auth(),
    };
    let mut config = builder.with_cert_resolver(resolver);
    if files.checks_revocation() {
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        return Ok(config);
    }
    config.ticketer = rustls::crypto::ring::Ticketer::new().map_err(|source| rejected(&files.certificate, source))?;
    config.send_tls13_tickets = 1;
    Ok(config)
}

fn certificate_resolver(files: &TlsFiles, provider: &CryptoProvider) -> Result<Arc<dyn ResolvesServerCert>, TlsError> {
    if files.awaits_certificate() {
        cipher_suites::check_key(&provider.cipher_suites, ACME_KEY)?;
        return Ok(Arc::new(NoCertificateYet));
    }
    let certificates = certificates(&files.certificate)?;
    let key = private_key(files)?;
    let certified = CertifiedKey::from_der(certificates, key, provider).map_err(|source| match source {
        rustls::Error::InconsistentKeys(InconsistentKeys::KeyMismatch) => TlsError::KeyMismatch {
            path: files.key.clone(),
            certificate: files.certificate.clone(),
        },
        source => rejected(&files.certificate, source),
    })?;
    cipher_suites::check_key(&provider.cipher_suites, certified.key.algorithm())?;
    Ok(match &files.stapling {
        Some(stapling) => staple::resolver(certified, stapling),
        None => Arc::new(SingleCertAndKey::from(certified)),
    })
}

/// Ends every handshake: the server has no certificate yet.
#[derive(Debug)]
struct NoCertificateYet;

impl ResolvesServerCert for NoCertificateYet {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        None
    }
}

fn client_verifier(
    files: &TlsFiles,
    provider: &Arc<CryptoProvider>,
) -> Result<Option<Arc<dyn rustls::server::danger::ClientCertVerifier>>, TlsError> {
    if files.client_certificates == ClientCertificates::None {
        return Ok(None);
    }
    let path = files.client_authorities.as_ref().ok_or(TlsError::NoAuthorities)?;
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path)? {
        roots.add(certificate).map_err(|source| rejected(path, source))?;
    }
    let roots = Arc::new(roots);
    let builder = WebPkiClientVerifier::builder_with_provider(roots.clone(), provider.clone());
    let builder = match files.client_certificates {
        ClientCertificates::Optional => builder.allow_unauthenticated(),
        ClientCertificates::None | ClientCertificates::Required => builder,
    };
    let lists = revocation::lists(files, &roots, provider)?;
    let has_no_list = lists.as_ref().is_some_and(Vec::is_empty);
    let blamed = files.revocation_lists.as_ref().unwrap_or(path);
    let builder = match (lists, files.missing_list) {
        (None, _) => builder,
        (Some(lists), MissingList::Deny) => builder.with_crls(lists).enforce_revocation_expiration(),
        (Some(lists), MissingList::Allow) => builder.with_crls(lists).allow_unknown_revocation_status(),
    };
    let verifier = builder.build().map_err(|source| rejected(blamed, source))?;
    Ok(Some(match has_no_list && files.missing_list == MissingList::Deny {
        // Without any list, the TLS library would not check the revocation.
        true => Arc::new(NoListAvailable(verifier)),
        false => verifier,
    }))
}

/// Reads the certificates of a file, in order.
pub fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let certificates = CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|source| TlsError::File {
            path: path.to_owned(),
            source,
        })?;
    if certificates.is_empty() {
        return Err(TlsError::NoCertificate { path: path.to_owned() });
    }
    Ok(certificates)
}

fn rejected(path: &Path, source: impl std::error::Error + Send + Sync + 'static) -> TlsError {
    TlsError::Rejected {
        path: path.to_owned(),
        source: Box::new(source),
    }
}
