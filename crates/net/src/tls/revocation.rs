//! Revocation lists of client certificates: from a file, and downloaded ones.
//!
//! A downloaded list may be missing, for example before the first download. The verifier then knows no revocation
//! status for the certificates of its authority. By default they are rejected.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, Error, RootCertStore, SignatureScheme};

use super::{TlsError, TlsFiles, certificates};
use crate::certificate::{RevocationListDescription, SignatureCheck, check_list_signature, describe_list};

/// Decision about client certificates whose revocation list is missing or has expired.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MissingList {
    #[default]
    Deny,
    Allow,
}

/// Reads the lists of a listener. `None`: it has none, so no certificate counts as revoked. Downloaded lists that are
/// missing or damaged are left out.
pub(super) fn lists(
    files: &TlsFiles,
    roots: &Arc<RootCertStore>,
    provider: &Arc<CryptoProvider>,
) -> Result<Option<Vec<CertificateRevocationListDer<'static>>>, TlsError> {
    if !files.checks_revocation() {
        return Ok(None);
    }
    let mut lists = match &files.revocation_lists {
        Some(path) => lists_of_file(path)?,
        None => Vec::new(),
    };
    let downloaded = files.downloaded_lists.iter().filter_map(|path| fs::read(path).ok());
    lists.extend(
        downloaded
            .map(CertificateRevocationListDer::from)
            .filter(|list| is_readable(list, roots, provider)),
    );
    Ok(Some(lists))
}

fn lists_of_file(path: &Path) -> Result<Vec<CertificateRevocationListDer<'static>>, TlsError> {
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

/// Whether the TLS library can use the list.
fn is_readable(
    list: &CertificateRevocationListDer<'static>,
    roots: &Arc<RootCertStore>,
    provider: &Arc<CryptoProvider>,
) -> bool {
    WebPkiClientVerifier::builder_with_provider(roots.clone(), provider.clone())
        .with_crls([list.clone()])
        .build()
        .is_ok()
}

/// Checks a downloaded list, DER, before it replaces the previous one: its structure, and its signature if the issuer
/// is in `ca_file`. The list of an intermediate authority is verified when a client presents that authority.
pub fn check_revocation_list(list: &[u8], ca_file: &Path) -> Result<RevocationListDescription, String> {
    const KIND: &str = "it is not a complete revocation list (CRL) in DER or PEM";
    let description = describe_list(list).ok_or(KIND)?;
    let authorities = certificates(ca_file).map_err(|error| error.to_string())?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(authorities.iter().cloned());
    let der = CertificateRevocationListDer::from(list.to_vec());
    if !is_readable(&der, &Arc::new(roots), &provider) {
        return Err("it is a kind of revocation list that the server cannot use, such as a delta CRL".to_owned());
    }
    match check_list_signature(list, &authorities, provider.signature_verification_algorithms.all) {
        SignatureCheck::Invalid => Err(format!(
            "its signature is not one of {}, which it names as its issuer",
            description.issuer
        )),
        SignatureCheck::Valid | SignatureCheck::UnknownIssuer => Ok(description),
    }
}

/// Rejects all client certificates, because no revocation list is available.
#[derive(Debug)]
pub(super) struct NoListAvailable(pub Arc<dyn ClientCertVerifier>);

impl ClientCertVerifier for NoListAvailable {
    fn offer_client_auth(&self) -> bool {
        self.0.offer_client_auth()
    }

    fn client_auth_mandatory(&self) -> bool {
        self.0.client_auth_mandatory()
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.0.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        // The reason of a certificate that is invalid anyway is more useful.
        self.0.verify_client_cert(end_entity, intermediates, now)?;
        Err(Error::InvalidCertificate(CertificateError::UnknownRevocationStatus))
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}
