//! Login data that a session stores for access rules and events.

use std::sync::Arc;

use auth::{CertificateIdentity, ClientAttributes, Login};
use broker::{ConnectCredentials, LoginData, LoginGrant};
use net::certificate::CertificateField;

use super::certificates::certificate_name;
use super::sources::SessionSources;

/// Facts about a client that its names do not tell. Sessions of clients without any have none.
#[derive(Clone, Default)]
pub struct SessionLogin {
    /// Set if a remote provider or a certificate has admitted the client. Otherwise its rights follow from its names.
    login: Option<Login>,
    certificate: Option<Arc<CertificateTexts>>,
    /// The attributes of the login and those of `access.client_attrs`. `None`: only those of the login.
    attributes: Option<ClientAttributes>,
    /// Set if `access.sources` has other sources than the built-in rules.
    sources: Option<Arc<SessionSources>>,
}

/// Names of the verified certificate of a client.
#[derive(Debug)]
pub struct CertificateTexts {
    common_name: Option<Box<str>>,
    subject: Option<Box<str>>,
}

impl CertificateTexts {
    /// Returns the names of the certificate of a CONNECT, or of the session that a re-authentication belongs to.
    pub fn of(credentials: &ConnectCredentials) -> Option<Arc<CertificateTexts>> {
        if credentials.certificate.is_none() {
            let session = credentials.session_grant.data::<SessionLogin>()?;
            return session.certificate.clone();
        }
        Some(Arc::new(CertificateTexts {
            common_name: certificate_name(CertificateField::CommonName, credentials),
            subject: certificate_name(CertificateField::Subject, credentials),
        }))
    }

    /// Returns what access rules see.
    pub fn identity(&self) -> CertificateIdentity<'_> {
        CertificateIdentity {
            common_name: self.common_name.as_deref(),
            subject: self.subject.as_deref(),
        }
    }
}

impl SessionLogin {
    /// Returns the grant of a login for its session.
    pub fn grant(login: Login) -> LoginGrant {
        match login.provider {
            Some(_) => LoginGrant::Of(Arc::new(SessionLogin {
                login: Some(login),
                ..SessionLogin::default()
            })),
            None => LoginGrant::None,
        }
    }

    /// Adds the names of the certificate to the grant of a login.
    pub fn with_certificate(grant: LoginGrant, certificate: Option<Arc<CertificateTexts>>) -> LoginGrant {
        match certificate {
            None => grant,
            certificate => LoginGrant::Of(Arc::new(SessionLogin {
                certificate,
                ..SessionLogin::copy(&grant)
            })),
        }
    }

    /// Replaces the attributes of the login by others that contain them.
    pub fn with_attributes(grant: LoginGrant, attributes: Option<ClientAttributes>) -> LoginGrant {
        match attributes {
            None => grant,
            attributes => LoginGrant::Of(Arc::new(SessionLogin {
                attributes,
                ..SessionLogin::copy(&grant)
            })),
        }
    }

    /// Adds the answers of sources to the grant of a login.
    pub fn with_sources(grant: &LoginGrant, sources: Arc<SessionSources>) -> LoginGrant {
        LoginGrant::Of(Arc::new(SessionLogin {
            sources: Some(sources),
            ..SessionLogin::copy(grant)
        }))
    }

    fn copy(grant: &LoginGrant) -> SessionLogin {
        grant.data::<SessionLogin>().cloned().unwrap_or_default()
    }

    pub fn sources(grant: &LoginGrant) -> Option<&Arc<SessionSources>> {
        grant.data::<SessionLogin>()?.sources.as_ref()
    }

    /// Returns the login of a session. `None` if its rights follow from its names, or if it is forgotten.
    pub fn of(grant: &LoginGrant) -> Option<&Login> {
        grant.data::<SessionLogin>()?.login.as_ref()
    }

    pub fn attributes(grant: &LoginGrant) -> &ClientAttributes {
        let data = grant.data::<SessionLogin>();
        data.and_then(SessionLogin::all_attributes)
            .unwrap_or(ClientAttributes::NONE)
    }

    fn all_attributes(&self) -> Option<&ClientAttributes> {
        let of_login = self.login.as_ref().map(|login| &login.attributes);
        self.attributes.as_ref().or(of_login)
    }

    pub fn certificate(grant: &LoginGrant) -> CertificateIdentity<'_> {
        let certificate = grant
            .data::<SessionLogin>()
            .and_then(|login| login.certificate.as_ref());
        certificate.map_or_else(CertificateIdentity::default, |certificate| certificate.identity())
    }
}

impl LoginData for SessionLogin {
    fn attributes(&self) -> Vec<(&str, &str)> {
        self.all_attributes().into_iter().flat_map(|all| all.iter()).collect()
    }

    /// The decisions of the HTTP service are about the packets and subscriptions of one session.
    fn for_data_stream(&self) -> Option<LoginGrant> {
        let sources = self.sources.as_ref()?;
        Some(LoginGrant::Of(Arc::new(SessionLogin {
            sources: Some(Arc::new(sources.for_data_stream())),
            ..self.clone()
        })))
    }
}
