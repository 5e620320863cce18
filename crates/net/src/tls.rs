//! Creates TLS configurations from PEM files. Reads files, so it must not run on a worker. Called at startup and on
//! reload.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{InconsistentKeys, RootCertStore, ServerConfig};

/// Whether a listener requests certificates from clients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClientCertificates {
    #[default]
    None,
    /// Verified if the client presents one.
    Optional,
    Required,
}

#[derive(Clone, Debug)]
pub struct TlsFiles {
    /// The server certificate, followed by intermediate certificates.
    pub certificate: PathBuf,
    pub key: PathBuf,
    /// CAs of client certificates. Required unless `client_certificates` is `ClientCertificates::None`.
    pub client_authorities: Option<PathBuf>,
    pub client_certificates: ClientCertificates,
    /// Revocation lists of all CAs of client certificates, PEM. `None`: no certificate counts as revoked.
    pub revocation_lists: Option<PathBuf>,
    /// QUIC needs TLS 1.3, whatever this is.
    pub oldest_version: OldestVersion,
    /// The listener speaks MQTT over QUIC.
    pub is_for_quic: bool,
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
            TlsError::NoAuthorities => None,
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

/// Derives the secret of QUIC's stateless resets from the private key, so that it is the same after a restart.
pub fn stateless_reset_secret(files: &TlsFiles) -> Result<Box<[u8]>, TlsError> {
    let key = private_key(files)?;
    let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, key.secret_der());
    Ok(ring::hmac::sign(&key, b"tidewire: stateless reset of QUIC")
        .as_ref()
        .into())
}

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
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let certificates = certificates(&files.certificate)?;
    let key = private_key(files)?;
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
    let mut config = builder
        .with_single_cert(certificates, key)
        .map_err(|source| match source {
            rustls::Error::InconsistentKeys(InconsistentKeys::KeyMismatch) => TlsError::KeyMismatch {
                path: files.key.clone(),
                certificate: files.certificate.clone(),
            },
            source => rejected(&files.certificate, source),
        })?;
    if files.revocation_lists.is_some() {
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        return Ok(config);
    }
    config.ticketer = rustls::crypto::ring::Ticketer::new().map_err(|source| rejected(&files.certificate, source))?;
    config.send_tls13_tickets = 1;
    Ok(config)
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
    let builder = WebPkiClientVerifier::builder_with_provider(roots.into(), provider.clone());
    let builder = match files.client_certificates {
        ClientCertificates::Optional => builder.allow_unauthenticated(),
        ClientCertificates::None | ClientCertificates::Required => builder,
    };
    let (builder, path) = match &files.revocation_lists {
        Some(path) => {
            let lists = revocation_lists(path)?;
            (builder.with_crls(lists).enforce_revocation_expiration(), path)
        }
        None => (builder, path),
    };
    builder.build().map(Some).map_err(|source| rejected(path, source))
}

fn revocation_lists(path: &Path) -> Result<Vec<CertificateRevocationListDer<'static>>, TlsError> {
    let lists = CertificateRevocationListDer::pem_file_iter(path)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|source| TlsError::File {
            path: path.to_owned(),
            source,
        })?;
    match lists.is_empty() {
        true => Err(TlsError::NoRevocationList { path: path.to_owned() }),
        false => Ok(lists),
    }
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
