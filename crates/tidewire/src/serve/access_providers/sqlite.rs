//! The provider `sqlite`.

use std::sync::Arc;

use auth_providers::SourceProvider;
use auth_providers::sqlite::{SqliteConfig, SqliteFile, SqliteSource};

use super::{hash_settings, source_limits, warn_of_free_user_names};
use crate::config::options::access::sqlite::SqliteAccess;

/// Creates the provider. The error names the option.
pub fn provider(options: &SqliteAccess) -> Result<Arc<SourceProvider<SqliteSource>>, String> {
    let max_concurrent = options.max_concurrent.min(options.pool_size);
    let limits = source_limits!(options, "access.sqlite", max_concurrent);
    warn_of_free_user_names("access.sqlite.query", [options.query.as_str()].into_iter());
    let source = SqliteConfig {
        file: SqliteFile {
            path: options.file.0.clone().unwrap_or_default(),
            connections_max: options.pool_size,
            // A part of the time limit, so that its error names the cause.
            busy_timeout: options.timeout / 2,
            query_timeout: options.timeout,
        },
        query: options.query.clone(),
        hash: hash_settings!(options),
    };
    auth_providers::sqlite::provider(&source, limits).map_err(|error| format!("access.sqlite.{error}"))
}
