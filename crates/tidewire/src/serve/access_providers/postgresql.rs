//! The provider `postgresql`.

use std::sync::Arc;

use auth_providers::SourceProvider;
use auth_providers::postgresql::{PostgresqlConfig, PostgresqlSource};
use connectors::postgres::PostgresConnectorConfig;

use super::{hash_settings, source_limits, tls_config, warn_of_free_user_names};
use crate::config::options::access::postgresql::PostgresqlAccess;

/// Creates the provider. The error names the option.
pub fn provider(options: &PostgresqlAccess) -> Result<Arc<SourceProvider<PostgresqlSource>>, String> {
    let max_concurrent = options.max_concurrent.min(options.pool_size);
    let limits = source_limits!(options, "access.postgresql", max_concurrent);
    warn_of_free_user_names("access.postgresql.query", [options.query.as_str()].into_iter());
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
            tls: tls_config!(options),
        },
        query: options.query.clone(),
        hash: hash_settings!(options),
    };
    auth_providers::postgresql::provider(&source, limits)
        .map_err(|error| format!("access.postgresql.{}", error.strip_prefix("tls.").unwrap_or(&error)))
}
