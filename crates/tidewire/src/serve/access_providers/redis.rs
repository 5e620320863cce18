//! The provider `redis`.

use std::sync::Arc;

use auth_providers::SourceProvider;
use auth_providers::redis::{RedisConfig, RedisSource};
use connectors::redis::{RedisConnectorConfig, RedisMode};

use super::{hash_settings, source_limits, tls_config, warn_of_free_user_names};
use crate::config::options::access::redis::{RedisAccess, RedisType};

/// Creates the provider. The error names the option.
pub fn provider(options: &RedisAccess) -> Result<Arc<SourceProvider<RedisSource>>, String> {
    let limits = source_limits!(options, "access.redis", options.max_concurrent);
    warn_of_free_user_names("access.redis.cmd", [options.cmd.as_str()].into_iter());
    // A part of the time limit, so that its error names the system.
    let part_of_timeout_ms = (options.timeout.as_millis() as u64 / 2).max(1);
    let source = RedisConfig {
        connection: RedisConnectorConfig {
            mode: match options.redis_type {
                RedisType::Single => RedisMode::Single,
                RedisType::Cluster => RedisMode::Cluster,
                RedisType::Sentinel => RedisMode::Sentinel,
            },
            servers: options.servers.clone(),
            sentinel_master: options.sentinel_master.0.clone(),
            sentinel_user: options.sentinel_user.0.clone(),
            sentinel_password: options.sentinel_password.0.clone(),
            user: options.user.0.clone(),
            password: options.password.0.clone(),
            database: options.database,
            connect_timeout_ms: part_of_timeout_ms,
            answer_timeout_ms: part_of_timeout_ms,
            tls: tls_config!(options),
        },
        command: options.cmd.clone(),
        hash: hash_settings!(options),
    };
    auth_providers::redis::provider(&source, limits)
        .map_err(|error| format!("access.redis.{}", error.strip_prefix("tls.").unwrap_or(&error)))
}
