//! TLS for the client: whom to trust, and what to show.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WebPkiServerVerifier, verify_server_name};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{
    CertificateError, ClientConfig, ClientConnection, DigitallySignedStruct, Error, OtherError, SignatureScheme,
    SupportedProtocolVersion,
};
use trust::{ClientTls, TlsSetting, Trust};

use super::args::ClientTlsOptions;
use super::failure::ClientFailure;

pub fn connection(options: &ClientTlsOptions, host: &str) -> Result<ClientConnection, ClientFailure> {
    let name = ServerName::try_from(host.to_string())
        .map_err(|_| ClientFailure::Usage(format!("`{host}` is not a valid host name for a certificate")))?;
    let config = config(options).map_err(ClientFailure::Local)?;
    ClientConnection::new(Arc::new(config), name).map_err(|error| ClientFailure::Connect(format!("TLS: {error}")))
}

pub fn config(options: &ClientTlsOptions) -> Result<ClientConfig, String> {
    let client = ClientTls {
        trust: Trust::Verifier(Arc::new(verifier(options)?)),
        cert_file: options.cert_file.as_deref(),
        key_file: options.key_file.as_deref(),
        versions: versions(options),
    };
    let mut config = client.config().map_err(|problem| match problem.part {
        TlsSetting::Cert => format!("--cert: {problem}"),
        TlsSetting::Key => format!("--key: {problem}"),
        TlsSetting::Ca | TlsSetting::Versions => format!("TLS: {problem}"),
    })?;
    config.alpn_protocols = options
        .alpn
        .iter()
        .map(|protocol| protocol.clone().into_bytes())
        .collect();
    Ok(config)
}

static TLS_1_2_ONLY: [&SupportedProtocolVersion; 1] = [&rustls::version::TLS12];
static TLS_1_3_ONLY: [&SupportedProtocolVersion; 1] = [&rustls::version::TLS13];

fn versions(options: &ClientTlsOptions) -> &'static [&'static SupportedProtocolVersion] {
    match options.version.as_deref() {
        Some("tlsv1.2") => &TLS_1_2_ONLY,
        Some("tlsv1.3") => &TLS_1_3_ONLY,
        _ => rustls::ALL_VERSIONS,
    }
}

fn verifier(options: &ClientTlsOptions) -> Result<Verifier, String> {
    let trusted = trusted_certificates(options)?;
    let roots = trust::roots(trusted.clone()).map_err(|problem| problem.to_string())?;
    let inner = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), trust::provider())
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

fn trusted_certificates(options: &ClientTlsOptions) -> Result<Vec<CertificateDer<'static>>, String> {
    let mut trusted = Vec::new();
    if let Some(file) = &options.ca_file {
        trusted.extend(certificates(file)?);
    }
    if let Some(directory) = &options.ca_path {
        let entries =
            fs::read_dir(directory).map_err(|error| format!("cannot read {}: {error}", directory.display()))?;
        // The directory may contain other files; those without a certificate are skipped.
        trusted.extend(
            entries
                .flatten()
                .filter_map(|entry| certificates(&entry.path()).ok())
                .flatten(),
        );
    }
    if options.ca_file.is_none() && options.ca_path.is_none() {
        trusted.extend(trust::system_certificates());
    }
    Ok(trusted)
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    trust::certificates(TlsSetting::Ca, file).map_err(|problem| problem.to_string())
}

/// The usual checks with two differences: `--insecure` accepts any host name, as Mosquitto's tools do, and a trusted
/// certificate may be that of the server itself, as `openssl req -x509` creates it.
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
