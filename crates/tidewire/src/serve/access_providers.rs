//! Creates the authentication providers that ask other systems from their options.

pub mod http;
pub mod jwt;
#[cfg(feature = "ldap")]
pub mod ldap;
#[cfg(any(feature = "postgresql", feature = "redis"))]
mod password_hash;
#[cfg(feature = "postgresql")]
pub mod postgresql;
#[cfg(feature = "redis")]
pub mod redis;

use auth_providers::OnFailure;

use crate::config::options::access;

/// Converts the option of the section `section`, and warns of its risk.
fn on_failure(section: &str, on_failure: access::OnFailure) -> OnFailure {
    match on_failure {
        access::OnFailure::Deny => OnFailure::Deny,
        access::OnFailure::Ignore => OnFailure::Ignore,
        access::OnFailure::Allow => {
            tracing::warn!(
                "{section}.on_failure is \"allow\": clients are admitted without a check if the service fails"
            );
            OnFailure::Allow
        }
    }
}

/// Warns if a question does not depend on the user name, which access rules and the owner of a session trust.
fn warn_of_free_user_names<'a>(option: &str, mut templates: impl Iterator<Item = &'a str>) {
    if !templates.any(|template| template.contains("${username}")) {
        tracing::warn!(
            "{option} does not contain ${{username}}: a client with correct credentials can choose its user name, and so \
             have the access rules and sessions of that user"
        );
    }
}
