//! Enhanced authentication with SCRAM: logins and re-authentications of the users of the server.
//!
//! A step needs no password hash, so it is decided at once. A wrong proof counts as a failed login. A locked-out
//! address cannot begin an exchange, also with the right password: unlike a password, a proof does not show whether it
//! was right before.

use std::sync::Arc;
use std::time::Instant;

use auth::{
    LoginAttempt, LoginKind, Password, PasswordHash, SCRAM_ITERATIONS, ScramExchange, ScramMethod, ScramServer, Users,
};
use broker::{AuthExchange, AuthOutcome, ClientLogin, ConnectCredentials};
use mqtt::ReasonCode;

use super::certificates::NamedCredentials;
use super::session_login::CertificateTexts;
use super::{NodeAccess, identity};
use crate::config::Config;
use crate::config::files::chain;

/// The methods of `access.scram`.
pub struct Scram {
    server: ScramServer,
    methods: Vec<ScramMethod>,
}

/// An exchange whose second message is expected.
struct BegunScram {
    exchange: ScramExchange,
    /// Names of the certificate of the CONNECT, or of the session.
    certificate: Option<Arc<CertificateTexts>>,
}

impl Scram {
    pub fn new(config: &Config, users: &Arc<Users>) -> Result<Scram, String> {
        Ok(Scram {
            server: ScramServer::new(users.clone()).map_err(|e| chain(&e))?,
            methods: config.access.scram.iter().map(|kind| kind.method()).collect(),
        })
    }

    /// Returns a method by its name in MQTT if it is enabled.
    pub fn method(&self, name: &str) -> Option<ScramMethod> {
        ScramMethod::of_name(name).filter(|method| self.methods.contains(method))
    }

    /// Hashes a new password. With SCRAM, the hash is a verifier for the first method.
    pub fn hash(&self, password: &Password) -> Result<PasswordHash, auth::CreateError> {
        match self.methods.first() {
            Some(method) => PasswordHash::create_scram(password, *method, SCRAM_ITERATIONS),
            None => PasswordHash::create(password),
        }
    }
}

impl NodeAccess {
    /// Decides about a CONNECT or AUTH with an Authentication Method. `None`: it has none.
    /// `credentials` have the user name of CONNECT, which decides whether the client is a device.
    pub(super) fn scram_step(
        &self,
        credentials: &ConnectCredentials,
        named: &NamedCredentials<'_>,
    ) -> Option<AuthOutcome> {
        let Some(method) = self.scram.method(credentials.method.as_deref()?) else {
            return Some(AuthOutcome::Deny {
                reason: ReasonCode::BadAuthenticationMethod,
                detail: "the authentication method is not configured",
            });
        };
        let message = credentials.data.as_deref().unwrap_or_default();
        let exchange = credentials.exchange.as_ref().map(|AuthExchange(state)| state);
        Some(match exchange.and_then(|state| state.downcast_ref::<BegunScram>()) {
            Some(exchange) => self.finish_scram(credentials, exchange, message),
            None if self.may_be_device(credentials) => {
                refused("devices of the platform cannot use enhanced authentication")
            }
            None => self.begin_scram(&named.credentials, method, message),
        })
    }

    pub(super) fn may_be_device(&self, credentials: &ConnectCredentials) -> bool {
        let offered = identity(credentials);
        let devices = self.devices.as_ref();
        devices.is_some_and(|devices| devices.is_reserved(offered.client_id)) || self.device(&offered).is_some()
    }

    fn begin_scram(&self, credentials: &ConnectCredentials, method: ScramMethod, message: &[u8]) -> AuthOutcome {
        if !self.providers.has_users(credentials.listener) {
            return refused("the providers of the listener do not include `users`");
        }
        let (exchange, server_first) = match self.scram.server.begin(method, message) {
            Ok(begun) => begun,
            Err(error) => return refused(error.text()),
        };
        let user_name = exchange.user_name();
        if credentials
            .user_name
            .as_deref()
            .is_some_and(|offered| offered != user_name)
        {
            return refused("the user name of SCRAM differs from that of CONNECT or of the session");
        }
        self.refuse_before_check(credentials, user_name)
            .unwrap_or_else(|| AuthOutcome::Continue {
                data: server_first,
                exchange: Some(AuthExchange(Arc::new(BegunScram {
                    exchange,
                    certificate: CertificateTexts::of(credentials),
                }))),
            })
    }

    fn finish_scram(&self, credentials: &ConnectCredentials, begun: &BegunScram, message: &[u8]) -> AuthOutcome {
        let exchange = &begun.exchange;
        // Other logins of the address may have failed since the first message.
        if let Some(outcome) = self.refuse_before_check(credentials, exchange.user_name()) {
            return outcome;
        }
        let success = match self.scram.server.finish(exchange, message) {
            Ok(success) => success,
            Err(error) => {
                if error.is_guess() {
                    let attempt = attempt(credentials, exchange.user_name());
                    self.login_limiter.record_failure(&attempt, Instant::now());
                }
                return refused(error.text());
            }
        };
        let login = ClientLogin {
            is_superuser: success.is_superuser,
            user_name: Some(success.user_name),
            data: Some(success.server_final),
            ..ClientLogin::default()
        };
        let certificate = begun.certificate.clone();
        self.admit_with(certificate, credentials, AuthOutcome::Allow(Box::new(login)))
    }

    /// Returns the rejection of a banned user and of a locked-out address.
    fn refuse_before_check(&self, credentials: &ConnectCredentials, user_name: &str) -> Option<AuthOutcome> {
        self.banned_user(&credentials.client_id, Some(user_name), credentials.address)
            .or_else(|| self.locked_out(Some(&attempt(credentials, user_name))))
    }
}

/// The client learns nothing of the reason.
fn refused(detail: &'static str) -> AuthOutcome {
    AuthOutcome::Deny {
        reason: ReasonCode::NotAuthorized,
        detail,
    }
}

/// Each exchange has another proof, so all attempts of a user from an address are alike.
fn attempt<'a>(credentials: &ConnectCredentials, user_name: &'a str) -> LoginAttempt<'a> {
    LoginAttempt {
        kind: LoginKind::Scram,
        address: credentials.address,
        user_name: Some(user_name),
        secret: &[],
    }
}
