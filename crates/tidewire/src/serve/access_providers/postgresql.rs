//! The provider `postgresql`.

use std::sync::Arc;

use auth_providers::postgresql::{PostgresqlConfig, PostgresqlSource};
use auth_providers::{SourceLimits, SourceProvider};
use connectors::TlsConfig;
use connectors::postgres::PostgresConnectorConfig;

use super::password_hash::{HashOptions, hash_settings};
use super::{on_failure, warn_of_free_user_names};
use crate::config::options::access::postgresql::PostgresqlAccess;

/// Creates the provider. The error names the option.
pub fn provider(options: &PostgresqlAccess) -> Result<Arc<SourceProvider<PostgresqlSource>>, String> {
    let limits = SourceLimits {
        timeout: options.timeout,
        max_concurrent: options.max_concurrent as usize,
        max_waiting: options.max_waiting as usize,
        cache_size: options.cache_size as usize,
        cache_allowed: options.cache_allowed,
        cache_denied: options.cache_denied,
        on_failure: on_failure("access.postgresql", options.on_failure),
    };
    warn_of_free_user_names("access.postgresql.query", [options.query.as_str()].into_iter());
    let tls = options.tls.then(|| TlsConfig {
        ca_file: options.ca_file.0.clone(),
        cert_file: options.cert_file.0.clone(),
        key_file: options.key_file.0.clone(),
        verify: options.verify,
    });
    let hash = hash_settings(&HashOptions {
        algorithm: options.password_hash_algorithm,
        salt_position: options.salt_position,
        mac_fun: options.mac_fun,
        iterations: options.iterations,
        dk_length: options.dk_length,
    });
    // A part of the time limit, so that its error names the system.
    let part_of_timeout_ms = (options.timeout.as_millis() as u64 / 2).max(1);
    let source = PostgresqlConfig {
        connection: PostgresConnectorConfig {
            host: options.host.clone(),
            port: options.port,
            database: options.database.clone(),
            user: options.user.clone(),
            password: options.password.0.clone(),
            connections_max: options.pool_size,
            connect_timeout_ms: part_of_timeout_ms,
            statement_timeout_ms: options.timeout.as_millis() as u64,
            tls,
        },
        query: options.query.clone(),
        hash,
    };
    auth_providers::postgresql::provider(&source, limits)
        .map_err(|error| format!("access.postgresql.{}", error.strip_prefix("tls.").unwrap_or(&error)))
}
