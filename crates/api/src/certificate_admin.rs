//! Certificates of listeners at run time. The binary implements this trait, because it knows the files and the
//! listeners that use them.

use std::fmt;
use std::path::PathBuf;

use net::tls::ClientCertificates;

/// Called on threads that may block (disk), never on a shard's thread.
pub trait CertificateAdmin: Send + Sync + 'static {
    fn list(&self) -> Vec<ServerCertificate>;

    /// Writes both files and reloads every listener that uses one of them. After an `Err` other than `Workers`, nothing
    /// has changed.
    fn replace(&self, listener: &str, certificate_pem: &[u8], key_pem: &[u8]) -> Result<(), CertificateError>;

    /// Reloads the certificates of all listeners from disk. Open connections stay.
    fn reload(&self) -> Result<(), CertificateError>;

    /// Certificates, revocation lists and OCSP responses that the server obtains itself, and the files of `crl_file`.
    /// Does not block.
    fn managed(&self) -> Vec<ManagedItem> {
        Vec::new()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ManagedKind {
    /// From an ACME authority.
    Certificate,
    /// Downloaded.
    RevocationList,
    /// Revocation lists in a file that the server does not write.
    RevocationFile,
    /// The OCSP response for a certificate of the server.
    Staple,
}

/// A certificate, a revocation list or an OCSP response that the server obtains itself, or a file with revocation
/// lists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ManagedItem {
    pub kind: ManagedKind,
    /// Domains of the certificate, URL of the list, path of the file with lists, or file of the certificate that the
    /// response is about.
    pub name: String,
    /// When the stored one expires. `None`: none is stored.
    pub expires_at_unix_s: Option<i64>,
    /// When the alarm begins that reports the expiry. `None`: when it expires.
    pub notice_at_unix_s: Option<i64>,
    /// Failed attempts since the start.
    pub failures: u64,
    /// Why the last attempt failed.
    pub last_error: Option<String>,
}

/// The certificate of a listener.
#[derive(Clone, Debug)]
pub struct ServerCertificate {
    /// Name of the listener, such as `tls.default`; `api` is the port of the API.
    pub listener: String,
    pub certificate_file: PathBuf,
    pub key_file: PathBuf,
    pub client_certificates: ClientCertificates,
    /// The server renews it itself.
    pub is_renewed: bool,
    /// DER, the listener's certificate first.
    pub chain: Vec<Vec<u8>>,
    pub on_disk: DiskState,
}

/// The files, compared with the chain in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DiskState {
    Same,
    /// The files take effect at a reload.
    Changed,
    /// A reload or restart would fail.
    Unusable {
        reason: String,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CertificateField {
    Certificate,
    Key,
}

#[derive(Debug)]
pub enum CertificateError {
    /// The listener does not exist or has no TLS.
    Unknown,
    /// The certificate or key of the request cannot be used.
    Rejected { field: CertificateField, reason: String },
    /// Another program, or the server itself, manages the files.
    ExternallyManaged { reason: String },
    /// The files on disk cannot be used or written.
    Files { reason: String },
    /// The files were written, but some workers still use the old certificate.
    Workers { reason: String },
}

impl fmt::Display for CertificateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CertificateError::Unknown => f.write_str("no listener with a certificate has this name"),
            CertificateError::Rejected { reason, .. }
            | CertificateError::ExternallyManaged { reason }
            | CertificateError::Files { reason } => f.write_str(reason),
            CertificateError::Workers { reason } => {
                write!(
                    f,
                    "the files were written, but some workers still use the old certificate: {reason}"
                )
            }
        }
    }
}

impl std::error::Error for CertificateError {}
