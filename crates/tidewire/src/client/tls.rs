//! TLS for the client: whom to trust, and what to show.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WebPkiServerVerifier, verify_server_name};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{
    CertificateError, ClientConfig, ClientConnection, DigitallySignedStruct, Error, OtherError, RootCertStore,
    SignatureScheme, SupportedProtocolVersion,
};

use super::args::TlsOptions;
use super::failure::Failure;

pub fn connection(options: &TlsOptions, host: &str) -> Result<ClientConnection, Failure> {
    let name = ServerName::try_from(host.to_string())
        .map_err(|_| Failure::Usage(format!("`{host}` is no host name that a certificate could have")))?;
    let config = config(options).map_err(Failure::Local)?;
    ClientConnection::new(Arc::new(config), name).map_err(|error| Failure::Connect(format!("TLS: {error}")))
}

fn config(options: &TlsOptions) -> Result<ClientConfig, String> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier = verifier(options, &provider)?;
    let builder = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(versions(options))
        .map_err(|error| format!("TLS: {error}"))?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier));
    let mut config = match (&options.cert_file, &options.key_file) {
        (Some(cert), Some(key)) => {
            let key = PrivateKeyDer::from_pem_file(key).map_err(|error| describe(key, &error))?;
            builder
                .with_client_auth_cert(certificates(cert)?, key)
                .map_err(|error| format!("--cert: {error}"))?
        }
        _ => builder.with_no_client_auth(),
    };
    config.alpn_protocols = options
        .alpn
        .iter()
        .map(|protocol| protocol.clone().into_bytes())
        .collect();
    Ok(config)
}

static TLS_1_2_ONLY: [&SupportedProtocolVersion; 1] = [&rustls::version::TLS12];
static TLS_1_3_ONLY: [&SupportedProtocolVersion; 1] = [&rustls::version::TLS13];

fn versions(options: &TlsOptions) -> &'static [&'static SupportedProtocolVersion] {
    match options.version.as_deref() {
        Some("tlsv1.2") => &TLS_1_2_ONLY,
        Some("tlsv1.3") => &TLS_1_3_ONLY,
        _ => rustls::ALL_VERSIONS,
    }
}

fn verifier(options: &TlsOptions, provider: &Arc<CryptoProvider>) -> Result<Verifier, String> {
    let trusted = trusted_certificates(options)?;
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(trusted.iter().cloned());
    let inner = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider.clone())
        .build()
        .map_err(|error| format!("no trusted certificate could be used: {error}"))?;
    let named = options.ca_file.is_some() || options.ca_path.is_some();
    let pinned = if named { trusted } else { Vec::new() };
    Ok(Verifier {
        inner,
        pinned,
        is_insecure: options.is_insecure,
    })
}

fn trusted_certificates(options: &TlsOptions) -> Result<Vec<CertificateDer<'static>>, String> {
    let mut trusted = Vec::new();
    if let Some(file) = &options.ca_file {
        trusted.extend(certificates(file)?);
    }
    if let Some(directory) = &options.ca_path {
        let entries = fs::read_dir(directory).map_err(|error| describe(directory, &error))?;
        // Such directories hold other things too; what is no certificate is passed over.
        trusted.extend(
            entries
                .flatten()
                .filter_map(|entry| certificates(&entry.path()).ok())
                .flatten(),
        );
    }
    if options.ca_file.is_none() && options.ca_path.is_none() {
        trusted.extend(rustls_native_certs::load_native_certs().certs);
    }
    Ok(trusted)
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_file_iter(file)
        .map_err(|error| describe(file, &error))?
        .collect();
    match found.map_err(|error| describe(file, &error))? {
        found if found.is_empty() => Err(format!("{} holds no certificate", file.display())),
        found => Ok(found),
    }
}

fn describe(path: &Path, error: &dyn std::fmt::Display) -> String {
    format!("cannot read {}: {error}", path.display())
}

/// The usual checks, with two differences: `--insecure` lets any host name pass, as in Mosquitto's tools; and a certificate
/// that was named as trusted may be the server's own, which is what `openssl req -x509` makes.
#[derive(Debug)]
struct Verifier {
    inner: Arc<WebPkiServerVerifier>,
    pinned: Vec<CertificateDer<'static>>,
    is_insecure: bool,
}

impl Verifier {
    fn accept_pinned(
        &self,
        end_entity: &CertificateDer<'_>,
        name: &ServerName<'_>,
        error: Error,
    ) -> Result<ServerCertVerified, Error> {
        if !self.pinned.iter().any(|pinned| pinned == end_entity) {
            return Err(error);
        }
        if !self.is_insecure {
            verify_server_name(&ParsedCertificate::try_from(end_entity)?, name)?;
        }
        Ok(ServerCertVerified::assertion())
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        match self
            .inner
            .verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now)
        {
            Err(Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) if self.is_insecure => Ok(ServerCertVerified::assertion()),
            Err(error) if is_ca_as_server(&error) => self.accept_pinned(end_entity, server_name, error),
            result => result,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }
}

/// webpki's `CaUsedAsEndEntity`, which rustls passes on without a name of its own. Dates were checked before.
fn is_ca_as_server(error: &Error) -> bool {
    let Error::InvalidCertificate(CertificateError::Other(OtherError(inner))) = error else {
        return false;
    };
    inner.to_string() == "CaUsedAsEndEntity"
}
