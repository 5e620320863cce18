//! Tests credentials against the authentication providers, for administrators.
//!
//! The result is the one of a client that connects, and each wrong password counts as a failed login of the
//! administrator: otherwise the test would be a way to guess passwords without a lock-out.

use std::sync::Arc;
use std::time::Instant;

use api::{LoginTest, LoginTestError, LoginTestOutcome, LoginTestStep, LoginVerdict, TestedLogin};
use auth::{Credentials, DenyReason, LoginAttempt, ProviderOutcome, RemoteProvider};
use auth_providers::{AnswerOrigin, Examined, OnFailure, WatchedProvider};
use broker::{AuthOutcome, ClientLogin, ConnectCredentials, LoginGrant};
use mqtt::ReasonCode;

use super::outcome::{auth_outcome, can_be_guess};
use super::session_login::SessionLogin;
use super::{NodeAccess, identity, offered};
use crate::serve::guesses::login_attempt;
use crate::serve::providers::{ANONYMOUS, NamedLink, NamedProvider, UNKNOWN_USERS};

/// Names of the checks besides the providers.
const BANS: &str = "bans";
const DEVICES: &str = "devices";
const ACCESS_RULES: &str = "access_rules";

/// The outcome of one provider.
struct ProviderResult {
    outcome: ProviderOutcome,
    step: LoginTestStep,
}

impl NodeAccess {
    /// Must not be called on a thread of a worker.
    pub(super) fn login_test(&self, test: &LoginTest) -> Result<LoginTestOutcome, LoginTestError> {
        let listener = match &test.listener {
            None => None,
            Some(label) => Some(self.order.listener(label).ok_or(LoginTestError::UnknownListener)?),
        };
        let credentials = credentials_of(test, listener);
        // The attempt of the administrator, whatever the address of the assumed client is.
        let attempt = login_attempt(&credentials).map(|attempt| LoginAttempt {
            address: test.tester,
            ..attempt
        });
        self.check_lockout(attempt.as_ref())?;
        let mut steps = Vec::new();
        if let Some(AuthOutcome::Deny { detail, .. }) = self.banned(&credentials.client_id, &credentials) {
            steps.push(step(BANS, LoginVerdict::Rejected, detail));
            return Ok(rejected(detail, steps));
        }
        if self.devices.is_some() {
            let offered = identity(&credentials);
            let device = self.device(&offered);
            let (verdict, reason) = match device.is_some() {
                true => (LoginVerdict::Right, "the credentials of a device of the platform"),
                false => (LoginVerdict::Unknown, "no device of the platform has these credentials"),
            };
            steps.push(step(DEVICES, verdict, reason));
            if device.is_some() {
                let named = self.providers.named(listener);
                steps.extend(named.iter().map(not_asked));
                return Ok(LoginTestOutcome {
                    is_allowed: true,
                    reason: reason.to_owned(),
                    steps,
                    login: Some(TestedLogin::default()),
                });
            }
        }
        let decided = self.ask_in_order(self.providers.named(listener), &offered(&credentials), &mut steps);
        // Other logins of the administrator may have failed while this one waited.
        self.check_lockout(attempt.as_ref())?;
        let (provider, outcome) =
            decided.map_or((None, ProviderOutcome::Ignore), |(name, outcome)| (Some(name), outcome));
        let can_be_guess = can_be_guess(&outcome);
        let outcome = auth_outcome(outcome);
        self.record_attempt(attempt.as_ref().filter(|_| can_be_guess), &outcome);
        let Some(provider) = provider else {
            return Ok(rejected("no provider knows this client", steps));
        };
        Ok(match self.admit(&credentials, outcome) {
            AuthOutcome::Allow(login) => LoginTestOutcome {
                is_allowed: true,
                reason: format!("{provider} admits the client"),
                steps,
                login: Some(details(&login)),
            },
            AuthOutcome::Deny { detail, reason } => {
                if reason == ReasonCode::ClientIdentifierNotValid {
                    steps.push(step(ACCESS_RULES, LoginVerdict::Rejected, detail));
                }
                rejected(&format!("{provider}: {detail}"), steps)
            }
            _ => rejected("the client is not admitted", steps),
        })
    }

    fn check_lockout(&self, attempt: Option<&LoginAttempt<'_>>) -> Result<(), LoginTestError> {
        let admitted = attempt.map_or(Ok(()), |attempt| self.login_limiter.admit(attempt, Instant::now()));
        admitted.map_err(LoginTestError::LockedOut)
    }

    /// Returns the provider that decides, and its outcome.
    fn ask_in_order(
        &self,
        providers: &[NamedProvider],
        credentials: &Credentials,
        steps: &mut Vec<LoginTestStep>,
    ) -> Option<(&'static str, ProviderOutcome)> {
        let mut decided = None;
        for provider in providers {
            if decided.is_some() {
                steps.push(not_asked(provider));
                continue;
            }
            let ProviderResult { outcome, step } = self.ask_provider(provider, credentials);
            steps.push(step);
            if !matches!(outcome, ProviderOutcome::Ignore) {
                decided = Some((provider.name, outcome));
            }
        }
        decided
    }

    fn ask_provider(&self, provider: &NamedProvider, credentials: &Credentials) -> ProviderResult {
        let (name, started) = (provider.name, Instant::now());
        match &provider.link {
            NamedLink::Certificate => ProviderResult {
                outcome: ProviderOutcome::Ignore,
                step: step(name, LoginVerdict::NotApplicable, "the test has no client certificate"),
            },
            NamedLink::Kerberos => ProviderResult {
                outcome: ProviderOutcome::Ignore,
                step: step(name, LoginVerdict::NotApplicable, "the test has no Kerberos ticket"),
            },
            NamedLink::Local(local) => {
                let outcome = local.authenticate(credentials);
                let (verdict, reason) = local_verdict(name, &outcome, credentials);
                ProviderResult {
                    outcome,
                    step: LoginTestStep {
                        time: Some(started.elapsed()),
                        ..step(name, verdict, reason)
                    },
                }
            }
            NamedLink::Jwt(jwt) => {
                let here = jwt.authenticate_here(credentials);
                let origin = if here.is_some() { None } else { Some("asked") };
                let outcome = here.or_else(|| {
                    let question = jwt.clone().authenticate(Arc::new(credentials.clone()));
                    self.providers.wait_for(question)
                });
                let outcome = outcome.unwrap_or(ProviderOutcome::Deny(DenyReason::Unavailable));
                let (verdict, reason) = match &outcome {
                    ProviderOutcome::Allow(_) => (LoginVerdict::Right, "the token is valid".to_owned()),
                    ProviderOutcome::Ignore => (LoginVerdict::NotApplicable, "the client has no token".to_owned()),
                    ProviderOutcome::Deny(reason) => {
                        let detail = jwt.rejection(credentials).unwrap_or_else(|| reason.to_string());
                        (verdict_of_denial(*reason), detail)
                    }
                };
                ProviderResult {
                    outcome,
                    step: LoginTestStep {
                        origin,
                        time: Some(started.elapsed()),
                        ..step(name, verdict, reason)
                    },
                }
            }
            NamedLink::Remote(remote) => {
                let question = remote.clone().examine(Arc::new(credentials.clone()));
                match self.providers.wait_for(question) {
                    Some(examined) => remote_result(&**remote, examined),
                    None => ProviderResult {
                        outcome: ProviderOutcome::Deny(DenyReason::Unavailable),
                        step: step(name, LoginVerdict::Failed, "the server asks no other system"),
                    },
                }
            }
        }
    }
}

fn credentials_of(test: &LoginTest, listener: Option<u16>) -> ConnectCredentials {
    ConnectCredentials {
        client_id: test.client_id.as_str().into(),
        user_name: test.user_name.as_deref().map(Box::from),
        password: test.password.as_ref().map(|password| password.expose().into()),
        address: test.address,
        listener: listener.unwrap_or(u16::MAX),
        certificate_common_name: None,
        certificate: None,
        method: None,
        data: None,
        packet_bytes: 0,
        session_grant: LoginGrant::None,
        exchange: None,
    }
}

fn step(provider: &'static str, verdict: LoginVerdict, reason: impl Into<String>) -> LoginTestStep {
    LoginTestStep {
        provider,
        verdict,
        reason: reason.into(),
        origin: None,
        time: None,
    }
}

fn not_asked(provider: &NamedProvider) -> LoginTestStep {
    step(provider.name, LoginVerdict::NotAsked, "another provider has decided")
}

fn rejected(reason: &str, steps: Vec<LoginTestStep>) -> LoginTestOutcome {
    LoginTestOutcome {
        is_allowed: false,
        reason: reason.to_owned(),
        steps,
        login: None,
    }
}

fn local_verdict(name: &str, outcome: &ProviderOutcome, credentials: &Credentials) -> (LoginVerdict, &'static str) {
    let has_both = credentials.user_name.is_some() && credentials.password.is_some();
    match (name, outcome) {
        (ANONYMOUS, ProviderOutcome::Allow(_)) => (
            LoginVerdict::Right,
            "access.anonymous admits clients without credentials",
        ),
        (ANONYMOUS, ProviderOutcome::Deny(_)) => (
            LoginVerdict::Rejected,
            "access.anonymous does not admit clients without credentials from this address",
        ),
        (ANONYMOUS, ProviderOutcome::Ignore) => (LoginVerdict::NotApplicable, "the client sends credentials"),
        (UNKNOWN_USERS, ProviderOutcome::Allow(_)) => (
            LoginVerdict::Right,
            "access.unknown_users admits unknown users as anonymous",
        ),
        (UNKNOWN_USERS, _) => (
            LoginVerdict::NotApplicable,
            "the user is known, or access.anonymous does not admit this address",
        ),
        (_, ProviderOutcome::Allow(_)) => (LoginVerdict::Right, "the password is right"),
        (_, ProviderOutcome::Deny(DenyReason::WrongPassword)) => (LoginVerdict::Wrong, "the password is wrong"),
        (_, ProviderOutcome::Deny(_)) => (LoginVerdict::Rejected, "the client is rejected"),
        (_, ProviderOutcome::Ignore) if has_both => (LoginVerdict::Unknown, "this server has no user with this name"),
        (_, ProviderOutcome::Ignore) => (
            LoginVerdict::NotApplicable,
            "it checks a user name with a password, and one of them is missing",
        ),
    }
}

fn verdict_of_denial(reason: DenyReason) -> LoginVerdict {
    match reason {
        DenyReason::WrongPassword => LoginVerdict::Wrong,
        DenyReason::UnknownUser => LoginVerdict::Unknown,
        DenyReason::Unavailable => LoginVerdict::Failed,
        DenyReason::NoPassword | DenyReason::AnonymousRefused | DenyReason::NotAuthorized | DenyReason::Expired => {
            LoginVerdict::Rejected
        }
    }
}

fn remote_result(remote: &dyn WatchedProvider, examined: Examined) -> ProviderResult {
    let Examined {
        outcome,
        origin,
        time,
        error,
    } = examined;
    let (verdict, reason) = match (error, &outcome) {
        (Some(error), outcome) => {
            let clients = match (remote.limits().on_failure, outcome) {
                (OnFailure::Allow, ProviderOutcome::Allow(_)) => "on_failure admits the client without a check",
                (OnFailure::Ignore, ProviderOutcome::Ignore) => "on_failure leaves the decision to the next provider",
                _ => "the client is rejected",
            };
            (LoginVerdict::Failed, format!("{error}; {clients}"))
        }
        (None, ProviderOutcome::Allow(_)) => (LoginVerdict::Right, "it admits the client".to_owned()),
        (None, ProviderOutcome::Ignore) if origin == AnswerOrigin::NotForSource => (
            LoginVerdict::NotApplicable,
            "it cannot know these credentials".to_owned(),
        ),
        (None, ProviderOutcome::Ignore) => (LoginVerdict::Unknown, "it does not know the client".to_owned()),
        (None, ProviderOutcome::Deny(_)) if origin == AnswerOrigin::Overloaded => {
            (LoginVerdict::Failed, "too many questions are waiting for it".to_owned())
        }
        (None, ProviderOutcome::Deny(reason)) => (verdict_of_denial(*reason), reason.to_string()),
    };
    ProviderResult {
        outcome,
        step: LoginTestStep {
            provider: remote.name(),
            verdict,
            reason,
            origin: origin_word(origin),
            time: Some(time),
        },
    }
}

/// Returns where an answer comes from, for the API. `None`: nothing was asked.
pub fn origin_word(origin: AnswerOrigin) -> Option<&'static str> {
    match origin {
        AnswerOrigin::NotForSource => None,
        AnswerOrigin::Cached => Some("cache"),
        AnswerOrigin::Asked => Some("asked"),
        AnswerOrigin::Shared => Some("shared"),
        AnswerOrigin::Overloaded => Some("overloaded"),
    }
}

fn details(login: &ClientLogin) -> TestedLogin {
    let of_provider = SessionLogin::of(&login.grant);
    let attributes = SessionLogin::attributes(&login.grant);
    TestedLogin {
        is_superuser: login.is_superuser,
        user_name: login.user_name.as_deref().map(str::to_owned),
        attributes: attributes
            .iter()
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect(),
        groups: attributes.groups().iter().map(|group| group.to_string()).collect(),
        rules: of_provider
            .and_then(|login| login.rules.as_ref())
            .map_or(0, |rules| rules.count()),
        expires_at_unix_ms: login.expires_at_unix_ms,
    }
}
