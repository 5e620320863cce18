//! Logins with an identity provider: what the API needs of the provider, and the steps of a login.
//!
//! `auth-providers` speaks OpenID Connect; only the binary knows it. `web::pending_logins` has the logins that are not
//! complete. This file connects them, and maps roles of the provider to roles of this server.

use std::collections::BTreeMap;
use std::future::Future;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use auth::{LoginAttempt, LoginKind, LoginLimiter};
use tokio::sync::Semaphore;
use tracing::{debug, info, warn};
use web::logins::PROVIDER_PREFIX;
use web::pending_logins::{PendingLogins, ProviderUser, StartedLogin};
use web::role::AssignedRole;
use zeroize::Zeroizing;

/// Limit of logins that wait for the provider at the same time.
const WAITING_MAX: usize = 16;
/// Time limit of all requests of one step. A request of the API has 20 seconds.
const STEP_TIME_MAX: Duration = Duration::from_secs(15);

/// Time between two lines of the log about failures of one kind. Clients without a login can cause them.
const LOG_GAP: Duration = Duration::from_secs(1);

/// An answer of the provider.
pub type ProviderAnswer<'a, T> = Pin<Box<dyn Future<Output = Result<T, ProviderFailure>> + Send + 'a>>;

/// An identity provider.
pub trait IdentityProvider: Send + Sync {
    /// Returns the address to which the browser goes for a login.
    fn login_address<'a>(&'a self, login: &'a StartedLogin) -> ProviderAnswer<'a, String>;

    /// Exchanges the code of the provider for the user.
    fn user<'a>(&'a self, code: ProviderCode<'a>) -> ProviderAnswer<'a, ProviderIdentity>;
}

/// The answer of the provider in the address of a page, and the secrets with which it is checked.
#[derive(Clone, Copy)]
pub struct ProviderCode<'a> {
    pub code: &'a str,
    /// Issuer in the answer.
    pub issuer: Option<&'a str>,
    pub nonce: &'a str,
    pub code_verifier: &'a str,
}

/// A user as the provider describes it.
#[derive(Clone, Debug)]
pub struct ProviderIdentity {
    pub subject: String,
    pub user_name: String,
    /// Roles or groups at the provider.
    pub roles: Vec<String>,
}

/// Why the provider returns no user. The text contains no secret.
#[derive(Clone, Debug)]
pub enum ProviderFailure {
    Unavailable(String),
    /// The provider does not accept the code.
    Refused(String),
    /// The answer is not valid.
    Invalid(String),
}

/// Settings of logins with an identity provider.
#[derive(Clone)]
pub struct SingleSignOnConfig {
    pub provider: Arc<dyn IdentityProvider>,
    /// Name of the provider on the login page.
    pub label: String,
    /// Whether browsers open the console with HTTPS. Cookies are then sent only with HTTPS.
    pub is_https: bool,
    /// Roles of the provider with their roles on this server.
    pub roles: BTreeMap<String, AssignedRole>,
}

/// Why a login fails. The console shows a text for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoginFailure {
    /// The provider does not answer, or not as expected.
    Unavailable,
    /// The provider refuses the login.
    Refused,
    /// The answer of the provider is not valid.
    Invalid,
    /// No role of the user is mapped, or its roles belong to several namespaces.
    NoRole,
    /// The login is unknown, has expired, was used, or another browser has started it.
    Expired,
    /// Too many logins wait for the provider, or the address is locked out after wrong credentials.
    Busy,
    /// A page of another origin has started the login.
    ForeignPage,
}

impl LoginFailure {
    /// The name in the address of the login page.
    pub fn name(self) -> &'static str {
        match self {
            LoginFailure::Unavailable => "unavailable",
            LoginFailure::Refused => "refused",
            LoginFailure::Invalid => "invalid",
            LoginFailure::NoRole => "no-role",
            LoginFailure::Expired => "expired",
            LoginFailure::Busy => "busy",
            LoginFailure::ForeignPage => "foreign-page",
        }
    }
}

/// Parameters with which the provider sends the browser back.
#[derive(Clone, Copy, Default)]
pub struct ReturnParameters<'a> {
    pub state: &'a str,
    pub code: Option<&'a str>,
    pub issuer: Option<&'a str>,
    pub error: Option<&'a str>,
}

/// A login at the end of its second step.
pub enum ReturnOutcome {
    /// The value of the new cookie.
    Finished(Zeroizing<String>),
    /// The user is authenticated, but has no role here.
    NoRole {
        user: String,
        subject: String,
    },
    Failed(LoginFailure),
}

/// Cloning increments reference counts.
#[derive(Clone)]
pub struct SingleSignOn {
    config: Arc<SingleSignOnConfig>,
    pending: Arc<PendingLogins>,
    waiting: Arc<Semaphore>,
    limiter: Arc<LoginLimiter>,
    /// Times of the last lines in the log, by kind of failure.
    logged: Arc<Mutex<[Option<Instant>; 3]>>,
}

impl SingleSignOn {
    pub fn new(config: SingleSignOnConfig, limiter: Arc<LoginLimiter>) -> SingleSignOn {
        SingleSignOn {
            config: Arc::new(config),
            pending: Arc::default(),
            waiting: Arc::new(Semaphore::new(WAITING_MAX)),
            limiter,
            logged: Arc::default(),
        }
    }

    pub fn label(&self) -> &str {
        &self.config.label
    }

    pub fn is_https(&self) -> bool {
        self.config.is_https
    }

    /// Returns the address of the provider, and the value of the cookie.
    pub async fn start(&self) -> Result<(String, Zeroizing<String>), LoginFailure> {
        let started = self.pending.start(Instant::now());
        let started = started.ok_or(LoginFailure::Unavailable)?;
        let target = self.ask(self.config.provider.login_address(&started)).await?;
        Ok((target, started.cookie))
    }

    /// Handles the return from the provider. `cookies`: the values of the cookie that the browser has sent.
    pub async fn finish<'a>(
        &self,
        parameters: ReturnParameters<'_>,
        mut cookies: impl Iterator<Item = &'a str>,
        address: IpAddr,
    ) -> ReturnOutcome {
        let take = |cookie: &str| self.pending.take_returned(parameters.state, cookie, Instant::now());
        let Some(returned) = cookies.find_map(take) else {
            debug!(%address, "a return from the identity provider belongs to no login of this browser");
            return ReturnOutcome::Failed(LoginFailure::Expired);
        };
        if let Some(error) = parameters.error {
            let reason = format!("the identity provider answered with the error {}", shown_error(error));
            return ReturnOutcome::Failed(self.failed(&ProviderFailure::Refused(reason)));
        }
        let Some(code) = parameters.code else {
            let reason = "the identity provider returned no code".to_owned();
            return ReturnOutcome::Failed(self.failed(&ProviderFailure::Invalid(reason)));
        };
        let attempt = LoginAttempt {
            kind: LoginKind::ProviderCode,
            address,
            user_name: None,
            secret: code.as_bytes(),
        };
        if self.limiter.admit(&attempt, Instant::now()).is_err() {
            return ReturnOutcome::Failed(LoginFailure::Busy);
        }
        let code = ProviderCode {
            code,
            issuer: parameters.issuer,
            nonce: &returned.nonce,
            code_verifier: &returned.code_verifier,
        };
        let identity = match self.ask(self.config.provider.user(code)).await {
            Ok(identity) => identity,
            Err(failure) => {
                // An invented code takes a request to the provider, like a wrong password takes a hash.
                if failure == LoginFailure::Refused {
                    self.limiter.record_failure(&attempt, Instant::now());
                }
                return ReturnOutcome::Failed(failure);
            }
        };
        let name = format!("{PROVIDER_PREFIX}{}", identity.user_name);
        let Some(role) = self.role(&identity.roles) else {
            info!(user = %name, %address, "login refused: no role of the user is in api.oidc.roles, or its roles are in several namespaces");
            return ReturnOutcome::NoRole {
                user: name,
                subject: identity.subject,
            };
        };
        let user = ProviderUser {
            name,
            subject: identity.subject,
            role,
        };
        match self.pending.finish(user, address, Instant::now()) {
            Some(cookie) => ReturnOutcome::Finished(cookie),
            None => ReturnOutcome::Failed(LoginFailure::Unavailable),
        }
    }

    /// Returns the user of a finished login, once.
    pub fn collect<'a>(&self, mut cookies: impl Iterator<Item = &'a str>) -> Option<ProviderUser> {
        cookies.find_map(|cookie| self.pending.collect(cookie, Instant::now()))
    }

    /// The highest role of those that are mapped. `None` also if they belong to several namespaces.
    fn role(&self, of_provider: &[String]) -> Option<AssignedRole> {
        let roles = of_provider.iter().filter_map(|name| self.config.roles.get(name));
        AssignedRole::highest(&roles.collect::<Vec<_>>())
    }

    async fn ask<T>(&self, answer: ProviderAnswer<'_, T>) -> Result<T, LoginFailure> {
        let Ok(_permit) = self.waiting.try_acquire() else {
            return Err(LoginFailure::Busy);
        };
        let late = |_| ProviderFailure::Unavailable("the identity provider took too long".to_owned());
        let answer = tokio::time::timeout(STEP_TIME_MAX, answer).await.map_err(late);
        answer
            .and_then(|answer| answer)
            .map_err(|failure| self.failed(&failure))
    }

    /// Logs the reason, and returns the failure for the user.
    fn failed(&self, failure: &ProviderFailure) -> LoginFailure {
        let kind = match failure {
            ProviderFailure::Unavailable(_) => 0,
            ProviderFailure::Refused(_) => 1,
            ProviderFailure::Invalid(_) => 2,
        };
        let mut logged = self.logged.lock().unwrap_or_else(PoisonError::into_inner);
        let is_logged = logged[kind].is_none_or(|at| at.elapsed() >= LOG_GAP);
        if is_logged {
            logged[kind] = Some(Instant::now());
        }
        drop(logged);
        match failure {
            ProviderFailure::Unavailable(reason) => {
                if is_logged {
                    warn!(reason, "a login with the identity provider failed");
                }
                LoginFailure::Unavailable
            }
            ProviderFailure::Refused(reason) => {
                if is_logged {
                    info!(reason, "the identity provider refused a login");
                }
                LoginFailure::Refused
            }
            ProviderFailure::Invalid(reason) => {
                if is_logged {
                    warn!(reason, "the answer of the identity provider is not valid");
                }
                LoginFailure::Invalid
            }
        }
    }
}

/// An error code (RFC 6749, 4.1.2.1) for the log. Other texts are not shown.
fn shown_error(error: &str) -> &str {
    let is_code = error.len() <= 64 && error.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
    if is_code { error } else { "unknown" }
}
