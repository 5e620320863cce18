//! Creates the authentication providers that ask other systems from their options.

pub mod http;
pub mod jwt;
#[cfg(feature = "kerberos")]
pub mod kerberos;
#[cfg(feature = "ldap")]
pub mod ldap;
#[cfg(feature = "mongodb")]
pub mod mongodb;
#[cfg(feature = "mysql")]
pub mod mysql;
#[cfg(any(
    feature = "mongodb",
    feature = "mysql",
    feature = "postgresql",
    feature = "redis",
    feature = "sqlite"
))]
mod password_hash;
#[cfg(feature = "postgresql")]
pub mod postgresql;
#[cfg(feature = "redis")]
pub mod redis;
#[cfg(feature = "sqlite")]
pub mod sqlite;

use auth_providers::OnFailure;

use crate::config::options::access;

/// Converts the options about questions, which each section of a database has. `$max_concurrent` is at most the size of
/// the pool: a wait for a connection, which clients can cause, must not look like a slow database.
#[cfg(any(
    feature = "mongodb",
    feature = "mysql",
    feature = "postgresql",
    feature = "redis",
    feature = "sqlite"
))]
macro_rules! source_limits {
    ($options:expr, $section:literal, $max_concurrent:expr) => {
        auth_providers::SourceLimits {
            timeout: $options.timeout,
            max_concurrent: $max_concurrent as usize,
            max_waiting: $options.max_waiting as usize,
            cache_size: $options.cache_size as usize,
            cache_allowed: $options.cache_allowed,
            cache_denied: $options.cache_denied,
            on_failure: $crate::serve::access_providers::on_failure($section, $options.on_failure),
        }
    };
}

/// Converts the options about hashes of passwords, which each section of a database has.
#[cfg(any(
    feature = "mongodb",
    feature = "mysql",
    feature = "postgresql",
    feature = "redis",
    feature = "sqlite"
))]
macro_rules! hash_settings {
    ($options:expr) => {
        $crate::serve::access_providers::password_hash::hash_settings(
            &$crate::serve::access_providers::password_hash::HashOptions {
                algorithm: $options.password_hash_algorithm,
                salt_position: $options.salt_position,
                mac_fun: $options.mac_fun,
                iterations: $options.iterations,
                dk_length: $options.dk_length,
            },
        )
    };
}

/// Converts the options about TLS, which each section of a database server has.
#[cfg(any(feature = "mongodb", feature = "mysql", feature = "postgresql", feature = "redis"))]
macro_rules! tls_config {
    ($options:expr) => {
        $options.tls.then(|| connectors::TlsConfig {
            ca_file: $options.ca_file.0.clone(),
            cert_file: $options.cert_file.0.clone(),
            key_file: $options.key_file.0.clone(),
            verify: $options.verify,
        })
    };
}

#[cfg(any(feature = "mongodb", feature = "mysql", feature = "postgresql", feature = "redis"))]
use tls_config;
#[cfg(any(
    feature = "mongodb",
    feature = "mysql",
    feature = "postgresql",
    feature = "redis",
    feature = "sqlite"
))]
use {hash_settings, source_limits};

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

/// Warns if a question does not depend on the user name, which access rules, `access.client_attrs` and the owner of a
/// session trust.
fn warn_of_free_user_names<'a>(option: &str, mut templates: impl Iterator<Item = &'a str>) {
    if !templates.any(|template| template.contains("${username}")) {
        tracing::warn!(
            "{option} does not contain ${{username}}: a client with correct credentials can choose its user name, and so \
             have the access rules, attributes and sessions of that user"
        );
    }
}
