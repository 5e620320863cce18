//! Outgoing connections: TLS settings, which targets tenants may connect to, and which connections lead back to this
//! machine.
//!
//! - This file makes rustls configurations from files, for connectors, the load tool and the client commands. Files are
//!   read on each call, so a changed file takes effect with the next connection that is configured. The certificates of
//!   listeners belong to `net`.
//! - `targets.rs` checks the address of each connection that the rule chain of a tenant opens.
//! - `own.rs` registers connections of this process to its own machine, so that listeners do not treat them as local
//!   clients.

pub mod own;
mod targets;
mod unchecked;

use std::fmt;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use rustls::client::danger::ServerCertVerifier;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore, SupportedProtocolVersion};

pub use targets::{RefusedTarget, TargetPolicy, Targets};
use unchecked::Unchecked;

/// TLS settings of a client.
#[derive(Clone, Debug)]
pub struct ClientTls<'a> {
    pub trust: Trust<'a>,
    /// PEM files with our certificate and its key, for servers that require one. Both or none.
    pub cert_file: Option<&'a Path>,
    pub key_file: Option<&'a Path>,
    pub versions: &'a [&'static SupportedProtocolVersion],
}

/// Which server certificates are accepted.
#[derive(Clone, Debug)]
pub enum Trust<'a> {
    /// Certificates that the operating system trusts.
    System,
    /// Certificates signed by a certificate in this file.
    File(&'a Path),
    /// Any certificate. An attacker in the network can read and change all data.
    AnyCertificate,
    Verifier(Arc<dyn ServerCertVerifier>),
}

impl<'a> Trust<'a> {
    /// Returns the setting for the usual options: a CA file, and whether certificates are verified.
    pub fn of(ca_file: Option<&'a Path>, is_checked: bool) -> Trust<'a> {
        match (is_checked, ca_file) {
            (false, _) => Trust::AnyCertificate,
            (true, Some(file)) => Trust::File(file),
            (true, None) => Trust::System,
        }
    }
}

/// The setting that a problem concerns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlsSetting {
    /// The trusted certificates.
    Ca,
    Cert,
    Key,
    Versions,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsProblem {
    pub part: TlsSetting,
    what: String,
}

impl TlsProblem {
    pub fn new(part: TlsSetting, what: impl Into<String>) -> TlsProblem {
        TlsProblem {
            part,
            what: what.into(),
        }
    }
}

impl fmt::Display for TlsProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

impl std::error::Error for TlsProblem {}

/// Returns the cryptography provider that the whole program uses.
pub fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

impl ClientTls<'_> {
    pub fn config(&self) -> Result<ClientConfig, TlsProblem> {
        let provider = provider();
        let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(self.versions)
            .map_err(|error| TlsProblem::new(TlsSetting::Versions, error.to_string()))?;
        let builder = match &self.trust {
            Trust::AnyCertificate => builder
                .dangerous()
                .with_custom_certificate_verifier(Arc::new(Unchecked(provider))),
            Trust::Verifier(verifier) => builder
                .dangerous()
                .with_custom_certificate_verifier(Arc::clone(verifier)),
            Trust::System => builder.with_root_certificates(roots(system_certificates())?),
            Trust::File(file) => builder.with_root_certificates(roots(certificates(TlsSetting::Ca, file)?)?),
        };
        match self.identity()? {
            None => Ok(builder.with_no_client_auth()),
            Some((chain, key)) => builder.with_client_auth_cert(chain, key).map_err(|error| {
                TlsProblem::new(
                    TlsSetting::Cert,
                    format!("the certificate does not fit the key: {error}"),
                )
            }),
        }
    }

    fn identity(&self) -> Result<Option<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)>, TlsProblem> {
        match (self.cert_file, self.key_file) {
            (None, None) => Ok(None),
            (Some(cert), Some(key)) => {
                let key =
                    PrivateKeyDer::from_pem_file(key).map_err(|error| unreadable(TlsSetting::Key, key, &error))?;
                Ok(Some((certificates(TlsSetting::Cert, cert)?, key)))
            }
            (Some(_), None) => Err(TlsProblem::new(
                TlsSetting::Key,
                "the key file is missing; a certificate needs its key",
            )),
            (None, Some(_)) => Err(TlsProblem::new(
                TlsSetting::Cert,
                "the certificate file is missing; a key needs its certificate",
            )),
        }
    }
}

/// Maximum size of a file with certificates. A bundle of an operating system has less than 1 MiB.
const FILE_BYTES_MAX: u64 = 8 << 20;

/// Reads the certificates of a PEM file. Fails if there is none.
pub fn certificates(part: TlsSetting, file: &Path) -> Result<Vec<CertificateDer<'static>>, TlsProblem> {
    let is_usable = |metadata: &fs::Metadata| metadata.is_file() && metadata.len() <= FILE_BYTES_MAX;
    if fs::metadata(file).is_ok_and(|metadata| !is_usable(&metadata)) {
        let problem = format!(
            "{} is not a file of at most {} MiB",
            file.display(),
            FILE_BYTES_MAX >> 20
        );
        return Err(TlsProblem::new(part, problem));
    }
    let found: Result<Vec<_>, _> = CertificateDer::pem_file_iter(file)
        .map_err(|error| unreadable(part, file, &error))?
        .collect();
    match found.map_err(|error| unreadable(part, file, &error))? {
        found if found.is_empty() => Err(TlsProblem::new(
            part,
            format!("{} contains no certificate", file.display()),
        )),
        found => Ok(found),
    }
}

/// Returns the certificates that the operating system trusts.
pub fn system_certificates() -> Vec<CertificateDer<'static>> {
    rustls_native_certs::load_native_certs().certs
}

/// Builds a root store. Skips unusable certificates, and fails if none remains.
pub fn roots(certificates: Vec<CertificateDer<'static>>) -> Result<RootCertStore, TlsProblem> {
    let mut roots = RootCertStore::empty();
    match roots.add_parsable_certificates(certificates) {
        (0, _) => Err(TlsProblem::new(
            TlsSetting::Ca,
            "no trusted certificate found; set a CA file that contains one",
        )),
        _ => Ok(roots),
    }
}

fn unreadable(part: TlsSetting, file: &Path, error: &dyn fmt::Display) -> TlsProblem {
    TlsProblem::new(part, format!("cannot read {}: {error}", file.display()))
}

#[cfg(test)]
mod tests;
