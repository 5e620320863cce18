//! Converts the decisions of providers for the broker.

use std::time::UNIX_EPOCH;

use auth::{DenyReason, Login, ProviderOutcome};
use broker::{AuthOutcome, ClientLogin};
use mqtt::ReasonCode;

use super::session_login::SessionLogin;

pub fn auth_outcome(outcome: ProviderOutcome) -> AuthOutcome {
    match outcome {
        ProviderOutcome::Allow(login) => AuthOutcome::Allow(Box::new(client_login(*login))),
        ProviderOutcome::Deny(reason) => AuthOutcome::Deny {
            reason: reason.reason_code(),
            detail: deny_reason_text(reason),
        },
        ProviderOutcome::Ignore => AuthOutcome::Deny {
            reason: ReasonCode::NotAuthorized,
            detail: "unknown client",
        },
    }
}

/// Returns whether the credentials of a client with this outcome can be a guess. An expired token was valid once.
pub fn can_be_guess(outcome: &ProviderOutcome) -> bool {
    !matches!(outcome, ProviderOutcome::Deny(DenyReason::Expired))
}

pub fn client_login(login: Login) -> ClientLogin {
    let expires_at = login
        .expires_at
        .map(|at| at.duration_since(UNIX_EPOCH).unwrap_or_default());
    ClientLogin {
        is_superuser: login.is_superuser,
        user_name: login.user_name.clone(),
        expires_at_unix_ms: expires_at.map(|since_1970| since_1970.as_millis() as u64),
        grant: SessionLogin::grant(login),
        mountpoint: None,
        data: None,
    }
}

fn deny_reason_text(reason: DenyReason) -> &'static str {
    match reason {
        DenyReason::UnknownUser => "unknown user",
        DenyReason::WrongPassword => "wrong password",
        DenyReason::NoPassword => "a user name without a password",
        DenyReason::AnonymousRefused => "this address needs a user name and password (access.anonymous)",
        DenyReason::NotAuthorized => "rejected by the authentication provider",
        DenyReason::Expired => "an expired token",
        DenyReason::Unavailable => "the authentication provider does not answer",
    }
}
