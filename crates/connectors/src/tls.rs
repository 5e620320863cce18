//! TLS towards a target: whom to trust and what to show, for every connector that speaks TLS itself.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// TLS towards the target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct TlsConfig {
    /// File with the certificates to trust, in PEM. None: those that the operating system trusts.
    pub ca_file: Option<PathBuf>,
    /// File with our certificate, in PEM, for targets that ask for one. Needs `key_file`.
    pub cert_file: Option<PathBuf>,
    /// File with the key of our certificate, in PEM.
    pub key_file: Option<PathBuf>,
    /// Whether the target's certificate is checked. Without, anybody on the way can read and change everything.
    pub verify: bool,
}

impl Default for TlsConfig {
    fn default() -> TlsConfig {
        TlsConfig {
            ca_file: None,
            cert_file: None,
            key_file: None,
            verify: true,
        }
    }
}

impl TlsConfig {
    /// What rustls needs. The error names the field and the file.
    pub(crate) fn client(&self) -> Result<Arc<ClientConfig>, String> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(|error| format!("tls: {error}"))?;
        let builder = if self.verify {
            builder.with_root_certificates(self.roots()?)
        } else {
            builder
                .dangerous()
                .with_custom_certificate_verifier(Arc::new(Unverified(provider)))
        };
        let config = match self.identity()? {
            None => builder.with_no_client_auth(),
            Some((certificates, key)) => builder
                .with_client_auth_cert(certificates, key)
                .map_err(|error| format!("tls.cert_file: does not fit tls.key_file: {error}"))?,
        };
        Ok(Arc::new(config))
    }

    fn roots(&self) -> Result<RootCertStore, String> {
        let mut roots = RootCertStore::empty();
        let certificates = match &self.ca_file {
            Some(file) => certificates("tls.ca_file", file)?,
            None => rustls_native_certs::load_native_certs().certs,
        };
        let (added, _) = roots.add_parsable_certificates(certificates);
        match added {
            0 => Err("tls.ca_file: there is no certificate to trust; name a file that has one".to_owned()),
            _ => Ok(roots),
        }
    }

    fn identity(&self) -> Result<Option<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)>, String> {
        match (&self.cert_file, &self.key_file) {
            (None, None) => Ok(None),
            (Some(cert), Some(key)) => {
                let key = PrivateKeyDer::from_pem_file(key)
                    .map_err(|error| format!("tls.key_file: cannot read {}: {error}", key.display()))?;
                Ok(Some((certificates("tls.cert_file", cert)?, key)))
            }
            (Some(_), None) => Err("tls.key_file: is missing; tls.cert_file needs it".to_owned()),
            (None, Some(_)) => Err("tls.cert_file: is missing; tls.key_file needs it".to_owned()),
        }
    }
}

fn certificates(field: &str, file: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let unreadable = |error| format!("{field}: cannot read {}: {error}", file.display());
    CertificateDer::pem_file_iter(file)
        .map_err(unreadable)?
        .collect::<Result<_, _>>()
        .map_err(unreadable)
}

/// `verify = false`: any certificate will do, but whoever shows it must have its key.
#[derive(Debug)]
struct Unverified(Arc<CryptoProvider>);

impl ServerCertVerifier for Unverified {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        rustls::crypto::verify_tls12_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        rustls::crypto::verify_tls13_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
