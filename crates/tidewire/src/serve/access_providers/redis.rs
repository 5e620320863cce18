//! The provider `redis`.

use std::sync::Arc;

use auth_providers::redis::{RedisConfig, RedisSource};
use auth_providers::{SourceLimits, SourceProvider};
use connectors::TlsConfig;
use connectors::redis::{RedisConnectorConfig, RedisMode};

use super::password_hash::{HashOptions, hash_settings};
use super::{on_failure, warn_of_free_user_names};
use crate::config::options::access::redis::{RedisAccess, RedisType};

/// Creates the provider. The error names the option.
pub fn provider(options: &RedisAccess) -> Result<Arc<SourceProvider<RedisSource>>, String> {
    let limits = SourceLimits {
        timeout: options.timeout,
        max_concurrent: options.max_concurrent as usize,
        max_waiting: options.max_waiting as usize,
        cache_size: options.cache_size as usize,
        cache_allowed: options.cache_allowed,
        cache_denied: options.cache_denied,
        on_failure: on_failure("access.redis", options.on_failure),
    };
    warn_of_free_user_names("access.redis.cmd", [options.cmd.as_str()].into_iter());
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
            tls,
        },
        command: options.cmd.clone(),
        hash,
    };
    auth_providers::redis::provider(&source, limits)
        .map_err(|error| format!("access.redis.{}", error.strip_prefix("tls.").unwrap_or(&error)))
}
