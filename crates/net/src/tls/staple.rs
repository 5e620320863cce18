//! OCSP stapling: the handshake contains a response of the authority about the server's certificate.
//!
//! The response comes from a file, because another part of the program obtains it. A response that is missing, of
//! another certificate, or not valid now is not stapled: the handshake continues without one. Each handshake compares
//! the response with the clock, which may be wrong when the file is read, for example while the machine starts.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};
use std::{fs, io};

use rustls::pki_types::CertificateDer;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::{CertifiedKey, SingleCertAndKey};

use super::certificates;
use crate::certificate::{OcspSubject, OcspValidity};

/// Maximum size of a response. Clients receive it with each full handshake.
pub const STAPLE_BYTES_MAX: usize = 32 * 1024;

/// OCSP stapling of a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stapling {
    /// Where the response is stored, DER. The file may be missing.
    pub response: PathBuf,
    /// File with the certificate of the issuer. `None`: it follows the certificate of the server in its file.
    pub issuer: Option<PathBuf>,
    /// `None`: the URL in the certificate.
    pub responder_url: Option<String>,
}

/// Returns the certificate of a file as the subject of requests to the responder.
pub fn staple_subject(certificate: &Path, issuer: Option<&Path>) -> Result<OcspSubject, String> {
    let chain = certificates(certificate).map_err(|error| error.to_string())?;
    subject_of(&chain, issuer).map_err(|reason| match issuer {
        Some(issuer) => format!("{}: {reason}", issuer.display()),
        None => format!("{}: {reason}", certificate.display()),
    })
}

/// Returns the validity of a stored response. `None`: there is none that is valid now.
pub fn stored_staple(response: &Path, subject: &OcspSubject, now_unix_s: i64) -> Option<OcspValidity> {
    let (_, validity) = read_good(response, subject)?;
    validity.contains(now_unix_s).then_some(validity)
}

/// Reads a stored response. `None`: there is none that says that the certificate is good.
fn read_good(response: &Path, subject: &OcspSubject) -> Option<(Vec<u8>, OcspValidity)> {
    let response = read_limited(response).ok()?;
    let validity = subject.good_period(&response).ok()?;
    Some((response, validity))
}

fn read_limited(path: &Path) -> io::Result<Vec<u8>> {
    match fs::metadata(path)?.len() <= STAPLE_BYTES_MAX as u64 {
        true => fs::read(path),
        false => Err(io::ErrorKind::FileTooLarge.into()),
    }
}

fn subject_of(chain: &[CertificateDer<'_>], issuer: Option<&Path>) -> Result<OcspSubject, String> {
    let from_file = issuer.map(certificates).transpose();
    let from_file = from_file.map_err(|error| error.to_string())?;
    let (own, rest) = chain.split_first().ok_or("the file contains no certificate")?;
    let candidates = from_file.as_deref().unwrap_or(rest);
    let mut reason = "it contains no certificate of the issuer; append it, or set ocsp_issuer_file".to_owned();
    for candidate in candidates {
        match OcspSubject::new(own, candidate) {
            Ok(subject) => return Ok(subject),
            Err(error) => reason = error.to_string(),
        }
    }
    Err(reason)
}

/// Returns the resolver of a certificate, with the stored response if it says that the certificate is good.
pub(super) fn resolver(certified: CertifiedKey, stapling: &Stapling) -> Arc<dyn ResolvesServerCert> {
    let stored = subject_of(&certified.cert, stapling.issuer.as_deref())
        .ok()
        .and_then(|subject| read_good(&stapling.response, &subject));
    match stored {
        None => Arc::new(SingleCertAndKey::from(certified)),
        Some((response, validity)) => Arc::new(StapledCertificate {
            stapled: Arc::new(CertifiedKey {
                ocsp: Some(response),
                ..certified.clone()
            }),
            plain: Arc::new(certified),
            validity,
        }),
    }
}

/// A certificate with a response, while the response is valid.
#[derive(Debug)]
struct StapledCertificate {
    plain: Arc<CertifiedKey>,
    stapled: Arc<CertifiedKey>,
    validity: OcspValidity,
}

impl ResolvesServerCert for StapledCertificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.at(now_unix_s()).clone())
    }
}

impl StapledCertificate {
    fn at(&self, now_unix_s: i64) -> &Arc<CertifiedKey> {
        match self.validity.contains(now_unix_s) {
            true => &self.stapled,
            false => &self.plain,
        }
    }
}

fn now_unix_s() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair};
    use rustls::crypto::ring::default_provider;
    use rustls::pki_types::PrivateKeyDer;

    use super::*;

    #[test]
    fn response_is_stapled_while_it_is_valid() {
        let key = KeyPair::generate().unwrap();
        let certificate = CertificateParams::default().self_signed(&key).unwrap();
        let key = PrivateKeyDer::Pkcs8(key.serialize_der().into());
        let plain = CertifiedKey::from_der(vec![certificate.der().clone()], key, &default_provider()).unwrap();
        let made = StapledCertificate {
            stapled: Arc::new(CertifiedKey {
                ocsp: Some(b"response".to_vec()),
                ..plain.clone()
            }),
            plain: Arc::new(plain),
            validity: OcspValidity {
                begins_at_unix_s: 10_000,
                expires_at_unix_s: 20_000,
            },
        };
        for now_unix_s in [10_000, 19_999] {
            assert_eq!(made.at(now_unix_s).ocsp.as_deref(), Some(&b"response"[..]));
        }
        for now_unix_s in [0, 20_000] {
            assert_eq!(made.at(now_unix_s).ocsp, None);
        }
    }

    #[test]
    fn certificate_without_an_issuer_has_no_subject() {
        let directory = std::env::temp_dir().join(format!("tidewire-staple-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let file = |name: &str| {
            let made = CertificateParams::default().self_signed(&KeyPair::generate().unwrap());
            let path = directory.join(name);
            fs::write(&path, made.unwrap().pem()).unwrap();
            path
        };
        let (own, other) = (file("own.pem"), file("other.pem"));
        let error = staple_subject(&own, None).unwrap_err();
        assert!(error.contains("no certificate of the issuer"), "{error}");
        let error = staple_subject(&own, Some(&other)).unwrap_err();
        assert!(error.contains("has not signed"), "{error}");
        let error = staple_subject(&directory.join("missing.pem"), None).unwrap_err();
        assert!(error.contains("cannot read"), "{error}");
        let _ = fs::remove_dir_all(&directory);
    }
}
