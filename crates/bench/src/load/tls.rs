//! TLS of the connections: whom to trust, and session tickets.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{ClientSessionStore, Resumption, Tls12ClientSessionValue, Tls13ClientSessionValue};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, Error, NamedGroup, RootCertStore, SignatureScheme};

use crate::target::Tls;

/// Tickets that are kept per host; the oldest goes first.
const TICKETS_MAX: usize = 100_000;

pub fn config(tls: &Tls) -> Result<Arc<ClientConfig>, String> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(|error| format!("TLS: {error}"))?;
    let builder = if tls.is_insecure {
        builder
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(TrustsAnybody(provider)))
    } else {
        builder.with_root_certificates(roots(tls)?)
    };
    let mut config = match (&tls.cert_file, &tls.key_file) {
        (Some(cert), Some(key)) => {
            let key = PrivateKeyDer::from_pem_file(key).map_err(|error| cannot_read(key, &error))?;
            let chain = certificates(cert)?;
            let built = builder.with_client_auth_cert(chain, key);
            built.map_err(|error| format!("{}: {error}", cert.display()))?
        }
        (None, None) => builder.with_no_client_auth(),
        _ => return Err("a client certificate needs both its file and its key file".into()),
    };
    config.resumption = match tls.resumes {
        true => Resumption::store(Arc::new(Tickets::default())),
        false => Resumption::disabled(),
    };
    Ok(Arc::new(config))
}

fn roots(tls: &Tls) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    let trusted = match &tls.ca_file {
        Some(file) => certificates(file)?,
        None => rustls_native_certs::load_native_certs().certs,
    };
    let (added, _) = roots.add_parsable_certificates(trusted);
    if added == 0 {
        return Err("TLS: there is no certificate to trust".into());
    }
    Ok(roots)
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_file_iter(file)
        .map_err(|error| cannot_read(file, &error))?
        .collect();
    found.map_err(|error| cannot_read(file, &error))
}

fn cannot_read(path: &Path, error: &dyn fmt::Display) -> String {
    format!("cannot read {}: {error}", path.display())
}

/// For `Tls::is_insecure`.
#[derive(Debug)]
struct TrustsAnybody(Arc<CryptoProvider>);

impl ServerCertVerifier for TrustsAnybody {
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
        verify_tls12_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

/// Keeps a ticket per connection, as a fleet of devices would; rustls' own store keeps eight per host.
#[derive(Debug, Default)]
struct Tickets(Mutex<HashMap<ServerName<'static>, OfHost>>);

#[derive(Debug, Default)]
struct OfHost {
    hint: Option<NamedGroup>,
    tls12: Option<Tls12ClientSessionValue>,
    tls13: VecDeque<Tls13ClientSessionValue>,
}

impl Tickets {
    fn lock(&self) -> MutexGuard<'_, HashMap<ServerName<'static>, OfHost>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ClientSessionStore for Tickets {
    fn set_kx_hint(&self, server_name: ServerName<'static>, group: NamedGroup) {
        self.lock().entry(server_name).or_default().hint = Some(group);
    }

    fn kx_hint(&self, server_name: &ServerName<'_>) -> Option<NamedGroup> {
        self.lock().get(server_name)?.hint
    }

    fn set_tls12_session(&self, server_name: ServerName<'static>, value: Tls12ClientSessionValue) {
        self.lock().entry(server_name).or_default().tls12 = Some(value);
    }

    fn tls12_session(&self, server_name: &ServerName<'_>) -> Option<Tls12ClientSessionValue> {
        self.lock().get(server_name)?.tls12.clone()
    }

    fn remove_tls12_session(&self, server_name: &ServerName<'static>) {
        if let Some(host) = self.lock().get_mut(server_name) {
            host.tls12 = None;
        }
    }

    fn insert_tls13_ticket(&self, server_name: ServerName<'static>, value: Tls13ClientSessionValue) {
        let mut hosts = self.lock();
        let tickets = &mut hosts.entry(server_name).or_default().tls13;
        if tickets.len() >= TICKETS_MAX {
            tickets.pop_front();
        }
        tickets.push_back(value);
    }

    fn take_tls13_ticket(&self, server_name: &ServerName<'static>) -> Option<Tls13ClientSessionValue> {
        self.lock().get_mut(server_name)?.tls13.pop_back()
    }
}
