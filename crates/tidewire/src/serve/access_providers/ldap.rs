//! The provider `ldap`.

use std::sync::Arc;

use auth_providers::ldap::{LdapConfig, LdapGroupConfig, LdapSource};
use auth_providers::{SourceLimits, SourceProvider};
use connectors::TlsConfig;
use connectors::ldap::LdapConnectorConfig;

use super::{on_failure, warn_of_free_user_names};
use crate::config::options::access::ldap::{LdapAccess, LdapAccessConfig, LdapMethod};

/// Creates the provider. The error names the option.
pub fn provider(config: &LdapAccessConfig) -> Result<Arc<SourceProvider<LdapSource>>, String> {
    let options = &config.options;
    let limits = SourceLimits {
        timeout: options.timeout,
        // A wait for a connection, which clients can cause, must not look like a slow directory.
        max_concurrent: options.max_concurrent.min(options.pool_size) as usize,
        max_waiting: options.max_waiting as usize,
        cache_size: options.cache_size as usize,
        cache_allowed: options.cache_allowed,
        cache_denied: options.cache_denied,
        on_failure: on_failure("access.ldap", options.on_failure),
    };
    match (options.user_dn.0.as_deref(), options.filter.0.as_deref()) {
        // `base_dn` has no effect.
        (Some(user_dn), filter) => {
            let templates = [user_dn, filter.unwrap_or_default()];
            warn_of_free_user_names("access.ldap.user_dn", templates.into_iter());
        }
        (None, Some(filter)) => {
            let templates = [filter, options.base_dn.as_str()];
            warn_of_free_user_names("access.ldap.filter", templates.into_iter());
        }
        // The default filter contains the user name.
        (None, None) => {}
    }
    let source = LdapConfig {
        connection: connection(options),
        method: match options.method {
            LdapMethod::Bind => auth_providers::ldap::LdapMethod::Bind,
            LdapMethod::Hash => auth_providers::ldap::LdapMethod::Hash,
        },
        base_dn: options.base_dn.clone(),
        filter: options.filter.0.clone(),
        user_dn: options.user_dn.0.clone(),
        password_attribute: options.password_attribute.clone(),
        is_superuser_attribute: options.is_superuser_attribute.0.clone(),
        client_attributes: config.client_attrs.clone(),
        groups: LdapGroupConfig {
            attribute: options.group_attribute.clone(),
            filter: options.group_filter.0.clone(),
            base_dn: options.group_base_dn.0.clone(),
            required: options.required_groups.clone(),
            client_attribute: options.groups_attr.0.clone(),
        },
    };
    auth_providers::ldap::provider(&source, limits)
        .map_err(|error| format!("access.ldap.{}", error.strip_prefix("tls.").unwrap_or(&error)))
}

fn connection(options: &LdapAccess) -> LdapConnectorConfig {
    LdapConnectorConfig {
        servers: options.servers.clone(),
        starttls: options.starttls,
        user: options.user.0.clone(),
        password: options.password.0.clone(),
        connections_max: options.pool_size,
        // A part of the time limit, so that its error names the server.
        connect_timeout_ms: (options.timeout.as_millis() as u64 / 2).max(1),
        tls: TlsConfig {
            ca_file: options.ca_file.0.clone(),
            cert_file: options.cert_file.0.clone(),
            key_file: options.key_file.0.clone(),
            verify: options.verify,
        },
    }
}
