//! Revocation lists of client certificates: from a file, and downloaded ones.
//!
//! A downloaded list may be missing, for example before the first download. The verifier then knows no revocation
//! status for the certificates of its authority. By default they are rejected.

use std::cmp::Reverse;
use std::path::Path;
use std::sync::Arc;
use std::{fs, io};

use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::{self, PemObject};
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

/// Reads the lists of a listener, the newest first. `None`: it has none, so no certificate counts as revoked.
/// Downloaded lists that are missing or damaged are left out.
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
    for path in &files.downloaded_lists {
        let list = downloaded_list(path)?;
        lists.extend(list.filter(|list| is_readable(list, roots, provider)));
    }
    // The TLS library asks only the first list of an authority.
    lists.sort_by_cached_key(|list| Reverse(describe_list(list).map(|described| described.this_update_unix_s)));
    Ok(Some(lists))
}

/// `None`: the file does not exist. Any other error could hide a revocation.
fn downloaded_list(path: &Path) -> Result<Option<CertificateRevocationListDer<'static>>, TlsError> {
    match fs::read(path) {
        Ok(list) => Ok(Some(list.into())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(TlsError::File {
            path: path.to_owned(),
            source: pem::Error::Io(error),
        }),
    }
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

/// Returns descriptions of the lists in a PEM file.
pub fn revocation_lists_of_file(path: &Path) -> Result<Vec<RevocationListDescription>, TlsError> {
    let lists = lists_of_file(path)?;
    Ok(lists.iter().filter_map(|list| describe_list(list)).collect())
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

/// Checks a downloaded list, DER, before it replaces the previous one: its structure, and that it has the signature of
/// an authority in `ca_file`.
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
        SignatureCheck::UnknownIssuer => Err(format!(
            "its issuer {} is not in {}; add the certificate of this authority to the file, also of an intermediate one",
            description.issuer,
            ca_file.display()
        )),
        SignatureCheck::Valid => Ok(description),
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

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use rcgen::{
        BasicConstraints, CertificateParams, CertificateRevocationListParams, DnType, IsCa, Issuer, KeyIdMethod,
        KeyPair, KeyUsagePurpose, SerialNumber,
    };

    use super::*;

    /// A directory that is deleted with the value.
    struct Directory(PathBuf);

    impl Directory {
        fn new(name: &str) -> Directory {
            let path = std::env::temp_dir().join(format!("tidewire-{name}-{}", std::process::id()));
            fs::create_dir_all(&path).unwrap();
            Directory(path)
        }

        fn file(&self, name: &str, text: impl AsRef<[u8]>) -> PathBuf {
            let path = self.0.join(name);
            fs::write(&path, text).unwrap();
            path
        }
    }

    impl Drop for Directory {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    struct Authority {
        issuer: Issuer<'static, KeyPair>,
        pem: String,
    }

    impl Authority {
        fn new(name: &str) -> Authority {
            let mut params = CertificateParams::default();
            params.distinguished_name.push(DnType::CommonName, name);
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            params.key_usages = vec![KeyUsagePurpose::CrlSign, KeyUsagePurpose::KeyCertSign];
            let key = KeyPair::generate().unwrap();
            let pem = params.self_signed(&key).unwrap().pem();
            Authority {
                issuer: Issuer::new(params, key),
                pem,
            }
        }

        fn list(&self, year: i32) -> rcgen::CertificateRevocationList {
            let params = CertificateRevocationListParams {
                this_update: rcgen::date_time_ymd(year, 1, 1),
                next_update: rcgen::date_time_ymd(2099, 1, 1),
                crl_number: SerialNumber::from(1),
                issuing_distribution_point: None,
                revoked_certs: Vec::new(),
                key_identifier_method: KeyIdMethod::Sha256,
            };
            params.signed_by(&self.issuer).unwrap()
        }
    }

    fn read(files: &TlsFiles) -> Result<Option<Vec<CertificateRevocationListDer<'static>>>, TlsError> {
        let mut roots = RootCertStore::empty();
        let authorities = files.client_authorities.as_ref().unwrap();
        roots.add_parsable_certificates(certificates(authorities).unwrap());
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        lists(files, &Arc::new(roots), &provider)
    }

    #[test]
    fn newest_list_comes_first() {
        let (directory, authority) = (Directory::new("newest-list"), Authority::new("plant"));
        // Each signature is another one.
        let [older, middle, newer] = [2021, 2022, 2023].map(|year| authority.list(year));
        let files = TlsFiles {
            client_authorities: Some(directory.file("ca.pem", &authority.pem)),
            revocation_lists: Some(directory.file("revoked.pem", middle.pem().unwrap())),
            downloaded_lists: vec![
                directory.file("a.crl", older.der()),
                directory.file("b.crl", newer.der()),
                directory.file("damaged.crl", b"damaged"),
            ],
            ..TlsFiles::default()
        };
        let described = revocation_lists_of_file(files.revocation_lists.as_ref().unwrap()).unwrap();
        assert_eq!((described.len(), &*described[0].issuer), (1, "CN=plant"));
        let found = read(&files).unwrap().unwrap();
        let expected = [newer, middle, older].map(|list| list.der().clone());
        assert_eq!(found, expected);
    }

    #[test]
    fn only_a_file_that_does_not_exist_is_missing() {
        let (directory, authority) = (Directory::new("missing-list"), Authority::new("plant"));
        let mut files = TlsFiles {
            client_authorities: Some(directory.file("ca.pem", &authority.pem)),
            downloaded_lists: vec![directory.0.join("missing.crl")],
            ..TlsFiles::default()
        };
        assert!(read(&files).unwrap().unwrap().is_empty());
        // A directory cannot be read.
        files.downloaded_lists.push(directory.0.clone());
        let error = read(&files).unwrap_err();
        assert!(matches!(error, TlsError::File { .. }), "{error:?}");
        assert_eq!(error.path(), Some(&*directory.0));
    }

    #[test]
    fn list_needs_the_signature_of_an_authority_of_the_file() {
        let (directory, authority) = (Directory::new("signed-list"), Authority::new("plant"));
        let file = directory.file("ca.pem", &authority.pem);
        let check = |from: &Authority| check_revocation_list(from.list(2022).der(), &file);
        assert_eq!(check(&authority).unwrap().issuer, "CN=plant");
        let foreign = check(&Authority::new("other")).unwrap_err();
        assert!(foreign.starts_with("its issuer CN=other is not in "), "{foreign}");
        let namesake = check(&Authority::new("plant")).unwrap_err();
        assert!(
            namesake.starts_with("its signature is not one of CN=plant"),
            "{namesake}"
        );
    }
}
