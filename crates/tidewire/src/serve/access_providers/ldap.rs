//! The provider `ldap`.

use std::sync::Arc;

use auth_providers::ldap::LdapSource;
use auth_providers::{SourceLimits, SourceProvider};

use super::{on_failure, warn_of_free_user_names};
use crate::config::options::access::ldap::LdapAccessConfig;

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
    auth_providers::ldap::provider(&config.source(), limits)
        .map_err(|error| format!("access.ldap.{}", error.strip_prefix("tls.").unwrap_or(&error)))
}
