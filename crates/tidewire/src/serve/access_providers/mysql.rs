//! The provider `mysql`.

use std::net::IpAddr;
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
    if !options.tls {
        warn_without_tls("access.mysql", &options.host, "admit clients, read password hashes");
    }
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

/// Warns of a connection to another machine. `risk` is what an attacker on the network path can do.
pub fn warn_without_tls(section: &str, host: &str, risk: &str) {
    if !is_on_this_machine(host) {
        // The client library encrypts the password with the key that the server sends, and cannot verify the key.
        tracing::warn!(
            "{section}.tls is false, and {host} may be another machine: an attacker on the network path can {risk}, and \
             obtain the password of {section}.user if its account uses caching_sha2_password"
        );
    }
}

/// Returns whether connections to a host stay on this machine: to a loopback address, or to a Unix socket.
fn is_on_this_machine(host: &str) -> bool {
    let is_loopback = |address: IpAddr| address.to_canonical().is_loopback();
    host.starts_with('/') || host.eq_ignore_ascii_case("localhost") || host.parse().is_ok_and(is_loopback)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_loopback_and_sockets_are_on_this_machine() {
        for host in [
            "127.0.0.1",
            "127.1.2.3",
            "::1",
            "::ffff:127.0.0.1",
            "LocalHost",
            "/run/mysqld/mysqld.sock",
        ] {
            assert!(is_on_this_machine(host), "{host}");
        }
        for host in [
            "10.0.0.1",
            "0.0.0.0",
            "::",
            "db.example.org",
            "localhost.example.org",
            "127.0.0.1.example.org",
        ] {
            assert!(!is_on_this_machine(host), "{host}");
        }
    }
}
