//! Enhanced authentication with Kerberos: logins and re-authentications of principals.
//!
//! GSSAPI reads the keytab and writes the replay cache, so each step runs on the threads for authentication, never on
//! the thread of a worker. The limit of failed logins does not apply: a ticket cannot be guessed, and a device whose
//! ticket has expired must not lock out its address. Addresses with many failures wait behind others in the queue.

use std::sync::{Arc, Mutex, PoisonError};

use auth::Login;
use auth_providers::kerberos::{KerberosExchange, KerberosLogin, KerberosRejection, KerberosStep, METHOD};
use broker::{AuthExchange, AuthOutcome, ConnectCredentials};
use mqtt::ReasonCode;

use super::NodeAccess;
use super::certificates::NamedCredentials;
use super::client_login;
use super::session_login::CertificateTexts;
use crate::config::options::access::ProviderKind;
use crate::serve::access_providers::kerberos::KerberosProvider;

/// An exchange whose next message is expected.
struct BegunKerberos {
    /// Taken by the step, because the state is shared but a step needs it alone.
    exchange: Mutex<Option<KerberosExchange>>,
    /// Names of the certificate of the CONNECT, or of the session.
    certificate: Option<Arc<CertificateTexts>>,
}

impl BegunKerberos {
    fn take(&self) -> Option<KerberosExchange> {
        self.exchange.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl NodeAccess {
    /// Returns whether the Authentication Method is that of the provider `kerberos`, and the provider is in use.
    pub(super) fn is_kerberos(&self, method: &str) -> bool {
        method == METHOD && self.providers.kerberos().is_some()
    }

    fn kerberos_of(&self, credentials: &ConnectCredentials) -> Option<&KerberosProvider> {
        let is_method = credentials.method.as_deref() == Some(METHOD);
        self.providers.kerberos().filter(|_| is_method)
    }

    /// Rejects a client that cannot use Kerberos, before a token is read. `credentials` have the user name of CONNECT,
    /// which decides whether the client is a device.
    pub(super) fn kerberos_refusal(&self, credentials: &ConnectCredentials) -> Option<AuthOutcome> {
        if !self.providers.has_kerberos(credentials.listener) {
            return Some(refused("the providers of the listener do not include `kerberos`"));
        }
        let is_first = credentials.exchange.is_none();
        (is_first && self.may_be_device(credentials))
            .then(|| refused("devices of the platform cannot use enhanced authentication"))
    }

    /// Decides about a CONNECT or AUTH whose method is that of Kerberos. `None`: it has another one. May block.
    pub(super) fn kerberos_step(
        &self,
        credentials: &ConnectCredentials,
        named: &NamedCredentials<'_>,
    ) -> Option<AuthOutcome> {
        let provider = self.kerberos_of(credentials)?;
        let message = credentials.data.as_deref().unwrap_or_default();
        let (step, certificate) = match &credentials.exchange {
            None => {
                let step = provider.acceptor.begin(named.credentials.user_name.as_deref(), message);
                (step, CertificateTexts::of(&named.credentials))
            }
            Some(AuthExchange(state)) => {
                let begun = state.downcast_ref::<BegunKerberos>();
                let Some((exchange, begun)) = begun.and_then(|begun| Some((begun.take()?, begun))) else {
                    // A new exchange would not compare the principal with the user name of CONNECT.
                    return Some(refused("the state of the Kerberos exchange is missing"));
                };
                (provider.acceptor.proceed(exchange, message), begun.certificate.clone())
            }
        };
        Some(match step {
            Ok(KerberosStep::Continue { data, exchange }) => AuthOutcome::Continue {
                data,
                exchange: Some(AuthExchange(Arc::new(BegunKerberos {
                    exchange: Mutex::new(Some(exchange)),
                    certificate,
                }))),
            },
            Ok(KerberosStep::Done(login)) => self.admit_principal(credentials, certificate, login),
            Err(rejection) => {
                provider.log(&credentials.client_id, credentials.address, &rejection);
                rejected(&rejection)
            }
        })
    }

    fn admit_principal(
        &self,
        credentials: &ConnectCredentials,
        certificate: Option<Arc<CertificateTexts>>,
        login: KerberosLogin,
    ) -> AuthOutcome {
        let login = Login {
            provider: Some(ProviderKind::Kerberos.word()),
            user_name: Some(login.user_name),
            expires_at: login.expires_at,
            ..Login::default()
        };
        let outcome = AuthOutcome::Allow(Box::new(client_login(login)));
        self.admit_with(certificate, credentials, outcome)
    }
}

/// The client learns nothing of the reason, except that it can try again if the server has failed.
fn rejected(rejection: &KerberosRejection) -> AuthOutcome {
    AuthOutcome::Deny {
        reason: match rejection.reason.is_failure() {
            true => ReasonCode::ServerUnavailable,
            false => ReasonCode::NotAuthorized,
        },
        detail: rejection.reason.text(),
    }
}

fn refused(detail: &'static str) -> AuthOutcome {
    AuthOutcome::Deny {
        reason: ReasonCode::NotAuthorized,
        detail,
    }
}
