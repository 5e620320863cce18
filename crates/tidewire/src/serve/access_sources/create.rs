//! Creates the sources from their options.

use std::path::PathBuf;
use std::sync::Arc;

use auth_providers::http::{HttpAnswerMeaning, HttpBodyFormat, HttpSource, HttpSourceConfig, HttpSourceMethod};
use auth_providers::{OnFailure, SourceLimits, SourceProvider};
use connectors::TlsConfig;

use crate::config::options::access::http::{HttpAccessAnswer, HttpAccessBody, HttpAccessMethod};
use crate::config::options::access::source::{AccessSourcesConfig, OnSourceFailure};
use crate::config::value::Unset;

fn on_failure(on_failure: OnSourceFailure) -> OnFailure {
    match on_failure {
        OnSourceFailure::Deny => OnFailure::Deny,
        OnSourceFailure::Ignore => OnFailure::Ignore,
    }
}

fn tls(ca: &Unset<PathBuf>, cert: &Unset<PathBuf>, key: &Unset<PathBuf>, verify: bool) -> TlsConfig {
    TlsConfig {
        ca_file: ca.0.clone(),
        cert_file: cert.0.clone(),
        key_file: key.0.clone(),
        verify,
    }
}

/// Names the option in the error of a source.
fn named(section: &str, error: &str) -> String {
    format!(
        "access.source.{section}.{}",
        error.strip_prefix("tls.").unwrap_or(error)
    )
}

/// The error names the option.
pub fn http(config: &AccessSourcesConfig) -> Result<Arc<SourceProvider<HttpSource>>, String> {
    let options = &config.http;
    let limits = SourceLimits {
        timeout: options.timeout,
        max_concurrent: options.max_concurrent as usize,
        max_waiting: options.max_waiting as usize,
        // Each session stores its own decisions.
        cache_size: 0,
        cache_allowed: options.cache_ttl,
        cache_denied: options.cache_ttl,
        on_failure: on_failure(options.on_failure),
    };
    let headers = config.http_headers.values().map(|header| header.expose());
    let body = config.http_body.values().map(String::as_str);
    let texts: Vec<&str> = body.chain(headers).chain([options.url.as_str()]).collect();
    for needed in ["${topic}", "${action}"] {
        if !texts.iter().any(|text| text.contains(needed)) {
            tracing::warn!(
                "access.source.http does not contain {needed}: the service decides without knowing what the client does"
            );
        }
    }
    let source = HttpSourceConfig {
        method: match options.method {
            HttpAccessMethod::Post => HttpSourceMethod::Post,
            HttpAccessMethod::Get => HttpSourceMethod::Get,
        },
        url: options.url.clone(),
        headers: config.http_headers.clone(),
        body: config.http_body.clone(),
        body_format: match options.body_format {
            HttpAccessBody::Json => HttpBodyFormat::Json,
            HttpAccessBody::Form => HttpBodyFormat::Form,
        },
        answer: match options.answer {
            HttpAccessAnswer::Json => HttpAnswerMeaning::Body,
            HttpAccessAnswer::Status => HttpAnswerMeaning::Status,
        },
        tls: tls(&options.ca_file, &options.cert_file, &options.key_file, options.verify),
    };
    auth_providers::http::access_source(&source, limits).map_err(|error| named("http", &error))
}

/// Limits of a source of rules. `$max_concurrent` is at most the size of the pool: a wait for a connection, which
/// clients can cause, must not look like a slow database.
#[cfg(any(
    feature = "mongodb",
    feature = "mysql",
    feature = "postgresql",
    feature = "redis",
    feature = "sqlite"
))]
macro_rules! rule_limits {
    ($options:expr, $max_concurrent:expr) => {
        SourceLimits {
            timeout: $options.timeout,
            max_concurrent: $max_concurrent as usize,
            max_waiting: $options.max_waiting as usize,
            cache_size: $options.cache_size as usize,
            cache_allowed: $options.cache_ttl,
            cache_denied: $options.cache_ttl,
            on_failure: on_failure($options.on_failure),
        }
    };
}

/// The error names the option.
#[cfg(feature = "postgresql")]
pub fn postgresql(
    options: &crate::config::options::access::source::PostgresqlSourceOptions,
) -> Result<Arc<SourceProvider<auth_providers::postgresql::PostgresqlRules>>, String> {
    let connection = connectors::postgres::PostgresConnectorConfig {
        host: options.host.clone(),
        port: options.port,
        database: options.database.clone(),
        user: options.user.clone(),
        password: options.password.0.clone(),
        connections_max: options.pool_size,
        // A part of the time limit, so that its error names the system.
        connect_timeout_ms: (options.timeout.as_millis() as u64 / 2).max(1),
        statement_timeout_ms: options.timeout.as_millis() as u64,
        tls: options
            .tls
            .then(|| tls(&options.ca_file, &options.cert_file, &options.key_file, options.verify)),
    };
    let max_concurrent = options.max_concurrent.min(options.pool_size);
    let limits = rule_limits!(options, max_concurrent);
    let source = auth_providers::postgresql::rules(&connection, &options.query, limits);
    source.map_err(|error| named("postgresql", &error))
}

/// The error names the option.
#[cfg(feature = "mysql")]
pub fn mysql(
    options: &crate::config::options::access::source::MysqlSourceOptions,
) -> Result<Arc<SourceProvider<auth_providers::mysql::MysqlRules>>, String> {
    if !options.tls {
        crate::serve::access_providers::mysql::warn_without_tls(
            "access.source.mysql",
            &options.host,
            "grant clients any access",
        );
    }
    let connection = connectors::mysql::MysqlConnection {
        host: options.host.clone(),
        port: options.port,
        database: options.database.clone(),
        user: options.user.clone(),
        password: options.password.0.clone(),
        connections_max: options.pool_size,
        // A part of the time limit, so that its error names the system.
        connect_timeout_ms: (options.timeout.as_millis() as u64 / 2).max(1),
        statement_timeout_ms: options.timeout.as_millis() as u64,
        tls: options
            .tls
            .then(|| tls(&options.ca_file, &options.cert_file, &options.key_file, options.verify)),
    };
    let max_concurrent = options.max_concurrent.min(options.pool_size);
    let limits = rule_limits!(options, max_concurrent);
    let source = auth_providers::mysql::rules(&connection, &options.query, limits);
    source.map_err(|error| named("mysql", &error))
}

/// The error names the option.
#[cfg(feature = "sqlite")]
pub fn sqlite(
    options: &crate::config::options::access::source::SqliteSourceOptions,
) -> Result<Arc<SourceProvider<auth_providers::sqlite::SqliteRules>>, String> {
    let file = auth_providers::sqlite::SqliteFile {
        path: options.file.0.clone().unwrap_or_default(),
        connections_max: options.pool_size,
        // A part of the time limit, so that its error names the cause.
        busy_timeout: options.timeout / 2,
        query_timeout: options.timeout,
    };
    let max_concurrent = options.max_concurrent.min(options.pool_size);
    let limits = rule_limits!(options, max_concurrent);
    let source = auth_providers::sqlite::rules(&file, &options.query, limits);
    source.map_err(|error| named("sqlite", &error))
}

/// The error names the option.
#[cfg(feature = "redis")]
pub fn redis(
    options: &crate::config::options::access::source::RedisSourceOptions,
) -> Result<Arc<SourceProvider<auth_providers::redis::RedisRules>>, String> {
    use auth_providers::redis::RedisRulesConfig;
    use connectors::redis::{RedisConnectorConfig, RedisMode};

    use crate::config::options::access::redis::RedisType;

    // A part of the time limit, so that its error names the system.
    let part_of_timeout_ms = (options.timeout.as_millis() as u64 / 2).max(1);
    let source = RedisRulesConfig {
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
            tls: options
                .tls
                .then(|| tls(&options.ca_file, &options.cert_file, &options.key_file, options.verify)),
        },
        command: options.cmd.clone(),
    };
    let limits = rule_limits!(options, options.max_concurrent);
    auth_providers::redis::rules(&source, limits).map_err(|error| named("redis", &error))
}

/// The error names the option.
#[cfg(feature = "mongodb")]
pub fn mongodb(
    options: &crate::config::options::access::source::MongodbSourceOptions,
) -> Result<Arc<SourceProvider<auth_providers::mongodb::MongodbRules>>, String> {
    use auth_providers::mongodb::MongodbRulesConfig;

    use crate::serve::access_providers::mongodb::connection;

    let tls = options
        .tls
        .then(|| tls(&options.ca_file, &options.cert_file, &options.key_file, options.verify));
    let source = MongodbRulesConfig {
        connection: connection!(options, tls),
        collection: options.collection.clone(),
        filter: options.filter.clone(),
        sort: options.sort.clone(),
        timeout_ms: options.timeout.as_millis() as u64,
    };
    let max_concurrent = options.max_concurrent.min(options.pool_size);
    let limits = rule_limits!(options, max_concurrent);
    auth_providers::mongodb::rules(source, limits).map_err(|error| named("mongodb", &error))
}
