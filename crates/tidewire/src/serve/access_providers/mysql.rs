//! The provider `mysql`.

use std::sync::Arc;

use auth_providers::SourceProvider;
use auth_providers::mysql::{MysqlConfig, MysqlSource};
use connectors::mysql::MysqlConnection;

use super::{hash_settings, source_limits, tls_config, warn_of_free_user_names};
use crate::config::options::access::mysql::MysqlAccess;

/// Creates the provider. The error names the option.
pub fn provider(options: &MysqlAccess) -> Result<Arc<SourceProvider<MysqlSource>>, String> {
    let max_concurrent = options.max_concurrent.min(options.pool_size);
    let limits = source_limits!(options, "access.mysql", max_concurrent);
    warn_of_free_user_names("access.mysql.query", [options.query.as_str()].into_iter());
    // A part of the time limit, so that its error names the system.
    let part_of_timeout_ms = (options.timeout.as_millis() as u64 / 2).max(1);
    let source = MysqlConfig {
        connection: MysqlConnection {
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
    auth_providers::mysql::provider(&source, limits)
        .map_err(|error| format!("access.mysql.{}", error.strip_prefix("tls.").unwrap_or(&error)))
}
