//! Names of clients from their certificates: `peer_cert_as_user_name` and `peer_cert_as_client_id` of the listeners,
//! and the provider `certificate`.
//!
//! The TLS library has verified the certificate. A certificate whose field is missing, ambiguous or unreadable is
//! rejected: the name in CONNECT never replaces it.

use std::borrow::Cow;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use auth::{Login, is_clear_name};
use broker::{AuthOutcome, ConnectCredentials, ConnectIdentity};
use mqtt::ReasonCode;
use net::certificate::{CertificateField, CertificateFieldError, describe};

use super::{NodeAccess, client_login, identity};
use crate::config::Config;
use crate::config::options::access::ProviderKind;
use crate::config::options::listeners::PeerName;

/// Name of the provider.
const PROVIDER: &str = "certificate";

/// The fields that name the clients of each listener.
pub struct CertificateNames {
    /// In the order of the configuration, which is that of the driver.
    listeners: Vec<NamingFields>,
}

#[derive(Clone, Copy, Default)]
struct NamingFields {
    user_name: Option<CertificateField>,
    client_id: Option<CertificateField>,
    /// A certificate replaces the password.
    is_provider: bool,
}

/// Credentials with the user name of the certificate, if it has one.
pub struct NamedCredentials<'a> {
    pub credentials: Cow<'a, ConnectCredentials>,
    /// The user name is that of the certificate.
    pub is_named: bool,
}

impl CertificateNames {
    pub fn new(config: &Config) -> CertificateNames {
        let fields = config.listeners.iter().map(|listener| match &listener.tls {
            Some(tls) => NamingFields {
                user_name: field(tls.peer_cert_as_user_name),
                client_id: field(tls.peer_cert_as_client_id),
                is_provider: config.providers_of(listener).contains(&ProviderKind::Certificate),
            },
            None => NamingFields::default(),
        });
        CertificateNames {
            listeners: fields.collect(),
        }
    }

    fn fields(&self, listener: u16) -> NamingFields {
        self.listeners.get(usize::from(listener)).copied().unwrap_or_default()
    }

    /// Returns the client id of a certificate. `None` if the listener or the client has none, and if the field is not
    /// usable: `name` rejects such a client.
    pub fn client_id(&self, offered: &ConnectIdentity<'_>) -> Option<Box<str>> {
        let field = self.fields(offered.listener).client_id?;
        value(field, offered.certificate?).ok()
    }

    /// Returns the user name of a certificate. Fails if a field that the listener uses is not usable.
    fn user_name(&self, offered: &ConnectIdentity<'_>) -> Result<Option<Box<str>>, CertificateFieldError> {
        let fields = self.fields(offered.listener);
        let Some(certificate) = offered.certificate else {
            return Ok(None);
        };
        if let Some(field) = fields.client_id {
            value(field, certificate)?;
        }
        fields.user_name.map(|field| value(field, certificate)).transpose()
    }
}

fn field(name: PeerName) -> Option<CertificateField> {
    match name {
        PeerName::Off => None,
        PeerName::CommonName => Some(CertificateField::CommonName),
        PeerName::Subject => Some(CertificateField::Subject),
        PeerName::Serial => Some(CertificateField::SerialNumber),
        PeerName::Fingerprint => Some(CertificateField::Fingerprint),
        PeerName::SanDns => Some(CertificateField::DnsName),
        PeerName::SanUri => Some(CertificateField::Uri),
        PeerName::SanEmail => Some(CertificateField::Email),
    }
}

/// Returns the value of a field of the client certificate. `None` if there is none, and if it is not usable.
pub fn certificate_name(field: CertificateField, credentials: &ConnectCredentials) -> Option<Box<str>> {
    value(field, credentials.certificate.as_deref()?).ok()
}

fn value(field: CertificateField, certificate: &[u8]) -> Result<Box<str>, CertificateFieldError> {
    let name = field.of(certificate)?;
    match is_clear_name(&name) {
        true => Ok(name),
        false => Err(CertificateFieldError::Unreadable),
    }
}

impl NodeAccess {
    /// Replaces the user name by that of the certificate. Fails with the rejection of the client.
    pub(super) fn named<'a>(&self, credentials: &'a ConnectCredentials) -> Result<NamedCredentials<'a>, AuthOutcome> {
        let unnamed = |credentials| NamedCredentials {
            credentials: Cow::Borrowed(credentials),
            is_named: false,
        };
        match self.certificates.user_name(&identity(credentials)) {
            Ok(None) => Ok(unnamed(credentials)),
            Ok(user_name) => Ok(NamedCredentials {
                credentials: Cow::Owned(ConnectCredentials {
                    user_name,
                    ..credentials.clone()
                }),
                is_named: true,
            }),
            // A device is known by its whole certificate.
            Err(_) if self.has_device_certificate(credentials) => Ok(unnamed(credentials)),
            Err(error) => Err(AuthOutcome::Deny {
                reason: ReasonCode::NotAuthorized,
                detail: error.text(),
            }),
        }
    }

    /// Returns whether the certificate replaces the password.
    pub(super) fn is_certificate_login(&self, named: &NamedCredentials<'_>) -> bool {
        named.is_named && self.certificates.fields(named.credentials.listener).is_provider
    }

    /// Admits a client whose certificate replaces the password. The login ends when the certificate expires. It has the
    /// access rules of its user name, but is never a superuser: a certificate authority must not be able to make one.
    pub(super) fn certificate_outcome(&self, named: &NamedCredentials<'_>) -> Option<AuthOutcome> {
        if !self.is_certificate_login(named) {
            return None;
        }
        let expires_at_unix_s = describe(named.credentials.certificate.as_deref()?)?.not_after_unix_s;
        let expires_at_unix_s = u64::try_from(expires_at_unix_s).unwrap_or_default();
        let expires_at = UNIX_EPOCH.checked_add(Duration::from_secs(expires_at_unix_s));
        // A resumed TLS session does not check the certificate again.
        if expires_at.is_none_or(|at| at <= SystemTime::now()) {
            return Some(AuthOutcome::Deny {
                reason: ReasonCode::NotAuthorized,
                detail: "the client certificate has expired",
            });
        }
        let login = Login {
            provider: Some(PROVIDER),
            user_name: named.credentials.user_name.clone(),
            expires_at,
            ..Login::default()
        };
        Some(AuthOutcome::Allow(Box::new(client_login(login))))
    }

    /// Rejects a device whose session would belong to another client id than the one that chose its home shard.
    pub(super) fn conflicting_device(&self, credentials: &ConnectCredentials) -> Option<AuthOutcome> {
        let offered = identity(credentials);
        let assigned = self.certificates.client_id(&offered)?;
        let is_conflict = *assigned == *offered.client_id
            && !self.has_device_certificate(credentials)
            && self.device(&offered).is_some();
        is_conflict.then_some(AuthOutcome::Deny {
            reason: ReasonCode::NotAuthorized,
            detail: "a device cannot log in on a listener that takes the client ID from the certificate",
        })
    }
}

impl NamedCredentials<'_> {
    /// Gives a session the user name of the certificate, unless a provider has chosen another one.
    pub fn name_session(&self, mut outcome: AuthOutcome) -> AuthOutcome {
        if let AuthOutcome::Allow(login) = &mut outcome
            && self.is_named
            && login.user_name.is_none()
        {
            login.user_name.clone_from(&self.credentials.user_name);
        }
        outcome
    }
}
