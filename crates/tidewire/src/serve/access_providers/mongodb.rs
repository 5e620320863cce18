//! The provider `mongodb`.

use std::sync::Arc;

use auth_providers::SourceProvider;
use auth_providers::mongodb::{MongodbConfig, MongodbFields, MongodbSource};
use connectors::TlsConfig;
use connectors::mongodb::{MongoConnectorConfig, MongoKind, MongoReadMode};

use super::{hash_settings, source_limits, tls_config, warn_of_free_user_names};
use crate::config::options::access::mongodb::{MongoReadFrom, MongoType, MongodbAccess};

/// Converts the options about connections of a section.
macro_rules! connection {
    ($options:expr, $tls:expr) => {
        $crate::serve::access_providers::mongodb::ConnectionOptions {
            kind: $options.mongo_type,
            servers: &$options.servers,
            replica_set: &$options.replica_set_name.0,
            read_from: $options.r_mode,
            database: &$options.database,
            user: &$options.user.0,
            password: &$options.password.0,
            auth_source: &$options.auth_source,
            pool_size: $options.pool_size,
            timeout_ms: $options.timeout.as_millis() as u64,
            tls: $tls,
        }
        .config()
    };
}

pub(in crate::serve) use connection;

/// Creates the provider. The error names the option.
pub fn provider(options: &MongodbAccess) -> Result<Arc<SourceProvider<MongodbSource>>, String> {
    let max_concurrent = options.max_concurrent.min(options.pool_size);
    let limits = source_limits!(options, "access.mongodb", max_concurrent);
    warn_of_free_user_names("access.mongodb.filter", [options.filter.as_str()].into_iter());
    let source = MongodbConfig {
        connection: connection!(options, tls_config!(options)),
        collection: options.collection.clone(),
        filter: options.filter.clone(),
        fields: MongodbFields {
            password_hash: options.password_hash_field.clone(),
            salt: options.salt_field.0.clone(),
            is_superuser: options.is_superuser_field.0.clone(),
        },
        hash: hash_settings!(options),
        timeout_ms: options.timeout.as_millis() as u64,
    };
    auth_providers::mongodb::provider(source, limits)
        .map_err(|error| format!("access.mongodb.{}", error.strip_prefix("tls.").unwrap_or(&error)))
}

/// Options of the connections, which the provider and the source of rules have.
pub struct ConnectionOptions<'a> {
    pub kind: MongoType,
    pub servers: &'a [String],
    pub replica_set: &'a Option<String>,
    pub read_from: MongoReadFrom,
    pub database: &'a str,
    pub user: &'a Option<String>,
    pub password: &'a Option<connectors::Secret>,
    pub auth_source: &'a str,
    pub pool_size: u32,
    pub timeout_ms: u64,
    pub tls: Option<TlsConfig>,
}

impl ConnectionOptions<'_> {
    pub fn config(self) -> MongoConnectorConfig {
        MongoConnectorConfig {
            kind: match self.kind {
                MongoType::Single => MongoKind::Single,
                MongoType::Rs => MongoKind::ReplicaSet,
                MongoType::Sharded => MongoKind::Sharded,
            },
            servers: self.servers.to_vec(),
            replica_set: self.replica_set.clone(),
            read_mode: match self.read_from {
                MongoReadFrom::Master => MongoReadMode::Primary,
                MongoReadFrom::SlaveOk => MongoReadMode::AnyMember,
            },
            database: self.database.to_owned(),
            user: self.user.clone(),
            password: self.password.clone(),
            auth_source: self.auth_source.to_owned(),
            connections_max: self.pool_size,
            // A part of the time limit, so that its error names the system.
            connect_timeout_ms: (self.timeout_ms / 2).max(1),
            tls: self.tls,
        }
    }
}
