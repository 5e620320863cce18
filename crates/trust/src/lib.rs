//! TLS of whoever connects to others: whom to trust and what to show, from files, as rustls takes it.
//!
//! Connectors, the load tool and the client commands make theirs here. Listeners are not its business: `net` has what they show and whom
//! they let in. Everything is read when it is asked for and nothing is kept, so a file that has changed counts with the next connection
//! that is configured.

mod unchecked;

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use rustls::client::danger::ServerCertVerifier;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore, SupportedProtocolVersion};

use unchecked::Unchecked;

/// What to connect with.
#[derive(Clone, Debug)]
pub struct Client<'a> {
    pub trust: Trust<'a>,
    /// Files with our certificate and its key, in PEM, for servers that ask for one: both or none.
    pub cert_file: Option<&'a Path>,
    pub key_file: Option<&'a Path>,
    pub versions: &'a [&'static SupportedProtocolVersion],
}

/// Which servers are taken for who they say they are.
#[derive(Clone, Debug)]
pub enum Trust<'a> {
    /// Those with a certificate that the operating system trusts.
    System,
    /// Those with a certificate from one in this file.
    File(&'a Path),
    /// Anybody, who may then read and change everything.
    Anybody,
    By(Arc<dyn ServerCertVerifier>),
}

impl<'a> Trust<'a> {
    /// As options have it.
    pub fn of(ca_file: Option<&'a Path>, is_checked: bool) -> Trust<'a> {
        match (is_checked, ca_file) {
            (false, _) => Trust::Anybody,
            (true, Some(file)) => Trust::File(file),
            (true, None) => Trust::System,
        }
    }
}

/// What a problem is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Whom to trust.
    Ca,
    Cert,
    Key,
    Versions,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    pub part: Part,
    what: String,
}

impl Problem {
    pub fn new(part: Part, what: impl Into<String>) -> Problem {
        Problem {
            part,
            what: what.into(),
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

impl std::error::Error for Problem {}

/// The one that the whole program has.
pub fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

impl Client<'_> {
    pub fn config(&self) -> Result<ClientConfig, Problem> {
        let provider = provider();
        let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(self.versions)
            .map_err(|error| Problem::new(Part::Versions, error.to_string()))?;
        let builder = match &self.trust {
            Trust::Anybody => builder
                .dangerous()
                .with_custom_certificate_verifier(Arc::new(Unchecked(provider))),
            Trust::By(verifier) => builder
                .dangerous()
                .with_custom_certificate_verifier(Arc::clone(verifier)),
            Trust::System => builder.with_root_certificates(roots(system_certificates())?),
            Trust::File(file) => builder.with_root_certificates(roots(certificates(Part::Ca, file)?)?),
        };
        match self.identity()? {
            None => Ok(builder.with_no_client_auth()),
            Some((chain, key)) => builder
                .with_client_auth_cert(chain, key)
                .map_err(|error| Problem::new(Part::Cert, format!("the certificate does not fit the key: {error}"))),
        }
    }

    fn identity(&self) -> Result<Option<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)>, Problem> {
        match (self.cert_file, self.key_file) {
            (None, None) => Ok(None),
            (Some(cert), Some(key)) => {
                let key = PrivateKeyDer::from_pem_file(key).map_err(|error| unreadable(Part::Key, key, &error))?;
                Ok(Some((certificates(Part::Cert, cert)?, key)))
            }
            (Some(_), None) => Err(Problem::new(
                Part::Key,
                "the file is missing; the certificate needs its key",
            )),
            (None, Some(_)) => Err(Problem::new(
                Part::Cert,
                "the file is missing; the key needs its certificate",
            )),
        }
    }
}

/// Those in a file of PEM: one at least.
pub fn certificates(part: Part, file: &Path) -> Result<Vec<CertificateDer<'static>>, Problem> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_file_iter(file)
        .map_err(|error| unreadable(part, file, &error))?
        .collect();
    match found.map_err(|error| unreadable(part, file, &error))? {
        found if found.is_empty() => Err(Problem::new(part, format!("{} holds no certificate", file.display()))),
        found => Ok(found),
    }
}

/// Those that the operating system trusts.
pub fn system_certificates() -> Vec<CertificateDer<'static>> {
    rustls_native_certs::load_native_certs().certs
}

/// What cannot be used is passed over; something has to be left.
pub fn roots(certificates: Vec<CertificateDer<'static>>) -> Result<RootCertStore, Problem> {
    let mut roots = RootCertStore::empty();
    match roots.add_parsable_certificates(certificates) {
        (0, _) => Err(Problem::new(
            Part::Ca,
            "there is no certificate to trust; name a file that has one",
        )),
        _ => Ok(roots),
    }
}

fn unreadable(part: Part, file: &Path, error: &dyn fmt::Display) -> Problem {
    Problem::new(part, format!("cannot read {}: {error}", file.display()))
}

#[cfg(test)]
mod tests;
