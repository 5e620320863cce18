//! The seam through which the certificates of listeners are shown, replaced and loaded anew. The binary implements it: it knows
//! the files and who listens with them.

use std::fmt;
use std::path::PathBuf;

use net::tls::ClientCertificates;

/// Called on threads that may block (disk), never on a shard's thread.
pub trait CertificateAdmin: Send + Sync + 'static {
    fn list(&self) -> Vec<ServerCertificate>;

    /// Writes both files and has every listener that uses one of them take them over. When `Err` comes back nothing has changed,
    /// unless it is `Workers`.
    fn replace(&self, listener: &str, certificate_pem: &[u8], key_pem: &[u8]) -> Result<(), CertificateError>;

    /// Takes over what is on disk, on all listeners. Open connections stay.
    fn reload(&self) -> Result<(), CertificateError>;
}

/// What one listener shows to its clients.
#[derive(Clone, Debug)]
pub struct ServerCertificate {
    /// `tls.default`; `api` is the API's.
    pub listener: String,
    pub certificate_file: PathBuf,
    pub key_file: PathBuf,
    pub client_certificates: ClientCertificates,
    /// DER, the listener's own first.
    pub chain: Vec<Vec<u8>>,
    pub on_disk: OnDisk,
}

/// The files, compared with what is in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OnDisk {
    Same,
    /// They wait for a reload.
    Changed,
    /// A reload or a restart would fail.
    Unusable {
        because: String,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CertificateField {
    Certificate,
    Key,
}

#[derive(Debug)]
pub enum CertificateError {
    /// No such listener, or one without TLS.
    Unknown,
    /// What was sent cannot be used.
    Rejected { field: CertificateField, because: String },
    /// The files belong to somebody else.
    NotOurs { because: String },
    /// What is on disk cannot be used, or nothing can be written there.
    Files { because: String },
    /// The files are there, but not every worker has taken them over.
    Workers { because: String },
}

impl fmt::Display for CertificateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CertificateError::Unknown => f.write_str("there is no listener of that name that has a certificate"),
            CertificateError::Rejected { because, .. }
            | CertificateError::NotOurs { because }
            | CertificateError::Files { because } => f.write_str(because),
            CertificateError::Workers { because } => {
                write!(
                    f,
                    "the files are written, but not everybody has taken them over: {because}"
                )
            }
        }
    }
}

impl std::error::Error for CertificateError {}
