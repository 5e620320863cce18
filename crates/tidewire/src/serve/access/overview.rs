//! The providers and sources of access rules in their order, with the systems that they ask, for operators.

use api::{AccessFailure, AccessOrder, AccessSystem};
use auth_providers::SourceFailure;

use super::NodeAccess;
use crate::config::Config;
use crate::config::options::access::source::AccessSourceKind;
use crate::config::options::access::{Anonymous, ProviderKind};

/// The order, without the state.
pub struct ConfiguredOrder {
    providers: Vec<(&'static str, Option<String>)>,
    listeners: Vec<(String, Vec<&'static str>)>,
    sources: Vec<(&'static str, Option<String>)>,
    anonymous: &'static str,
    /// Names of all enabled listeners, in the order of the driver.
    all_listeners: Vec<String>,
}

impl ConfiguredOrder {
    pub fn new(config: &Config) -> ConfiguredOrder {
        let with_own = config
            .listeners
            .iter()
            .filter(|listener| !listener.options.providers.is_empty());
        let names = |kinds: &[ProviderKind]| kinds.iter().map(|kind| kind.word()).collect();
        let providers = config.provider_kinds().into_iter();
        let sources = config.access.sources.iter();
        ConfiguredOrder {
            providers: providers
                .map(|kind| (kind.word(), address_of_provider(kind, config)))
                .collect(),
            listeners: with_own
                .map(|listener| (listener.label(), names(config.providers_of(listener))))
                .collect(),
            sources: sources
                .map(|kind| (kind.word(), address_of_source(*kind, config)))
                .collect(),
            anonymous: match config.access.anonymous {
                Anonymous::Never => "never",
                Anonymous::Loopback => "loopback",
                Anonymous::Always => "always",
            },
            all_listeners: config.listeners.iter().map(|listener| listener.label()).collect(),
        }
    }

    /// Returns the index of an enabled listener.
    pub fn listener(&self, label: &str) -> Option<u16> {
        let index = self.all_listeners.iter().position(|listener| listener == label)?;
        u16::try_from(index).ok()
    }
}

impl NodeAccess {
    pub(super) fn order_with_state(&self) -> AccessOrder {
        let order = &self.order;
        let providers = order.providers.iter();
        let sources = order.sources.iter();
        AccessOrder {
            providers: providers
                .map(|(name, address)| system(name, address.clone(), self.providers.health(name)))
                .collect(),
            listeners: order.listeners.clone(),
            sources: sources
                .map(|(name, address)| system(name, address.clone(), self.sources.health(name)))
                .collect(),
            anonymous: order.anonymous,
            has_devices: self.devices.is_some(),
        }
    }
}

fn system(name: &'static str, address: Option<String>, health: Option<(Option<SourceFailure>, bool)>) -> AccessSystem {
    let (failure, is_failing) = health.map_or((None, None), |(failure, is_failing)| (failure, Some(is_failing)));
    AccessSystem {
        name,
        address,
        last_failure: failure.map(|failure| AccessFailure {
            at: failure.at,
            reason: failure.reason,
        }),
        is_failing,
    }
}

fn address_of_provider(kind: ProviderKind, config: &Config) -> Option<String> {
    match kind {
        ProviderKind::Users | ProviderKind::Certificate => None,
        ProviderKind::Http => Some(without_credentials(&config.access_http.options.url)),
        ProviderKind::Postgresql => {
            let options = &config.access_postgresql;
            Some(database(&options.host, options.port, &options.database))
        }
        ProviderKind::Mysql => {
            let options = &config.access_mysql;
            Some(database(&options.host, options.port, &options.database))
        }
        ProviderKind::Sqlite => {
            let file = config.access_sqlite.file.0.as_ref()?;
            Some(file.display().to_string())
        }
        ProviderKind::Mongodb => {
            let options = &config.access_mongodb;
            Some(format!("{}/{}", servers(&options.servers), options.database))
        }
        ProviderKind::Redis => Some(servers(&config.access_redis.servers)),
        ProviderKind::Jwt => {
            let url = config.jwt.jwks_url.0.as_deref()?;
            Some(without_credentials(url))
        }
        ProviderKind::Ldap => Some(servers(&config.access_ldap.options.servers)),
        // No other system is asked. The principal shows which realm admits clients.
        ProviderKind::Kerberos => config.access_kerberos.principal.0.clone(),
    }
}

fn address_of_source(kind: AccessSourceKind, config: &Config) -> Option<String> {
    let options = &config.access_sources;
    match kind {
        AccessSourceKind::Rules => None,
        AccessSourceKind::Http => Some(without_credentials(&options.http.url)),
        AccessSourceKind::Postgresql => {
            let options = &options.postgresql;
            Some(database(&options.host, options.port, &options.database))
        }
        AccessSourceKind::Mysql => {
            let options = &options.mysql;
            Some(database(&options.host, options.port, &options.database))
        }
        AccessSourceKind::Sqlite => {
            let file = options.sqlite.file.0.as_ref()?;
            Some(file.display().to_string())
        }
        AccessSourceKind::Mongodb => {
            let options = &options.mongodb;
            Some(format!("{}/{}", servers(&options.servers), options.database))
        }
        AccessSourceKind::Redis => Some(servers(&options.redis.servers)),
    }
}

/// The directory of a Unix socket has no port.
fn database(host: &str, port: u16, database: &str) -> String {
    match host.starts_with('/') {
        true => format!("{host}/{database}"),
        false => format!("{host}:{port}/{database}"),
    }
}

fn servers(addresses: &[String]) -> String {
    let addresses: Vec<String> = addresses.iter().map(|address| without_credentials(address)).collect();
    addresses.join(", ")
}

/// Returns scheme, host and port of a URL or an address. The other parts may contain secrets.
fn without_credentials(url: &str) -> String {
    let (scheme, rest) = url.split_at(url.find("://").map_or(0, |at| at + 3));
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let host = authority.rsplit('@').next().unwrap_or_default();
    format!("{scheme}{host}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_contain_no_credentials() {
        for (url, expected) in [
            (
                "https://u:sesame@auth.example.org:8443/mqtt?key=sesame",
                "https://auth.example.org:8443",
            ),
            ("http://[::1]:80/${username}", "http://[::1]:80"),
            ("ldaps://ldap.example.org", "ldaps://ldap.example.org"),
            ("u:p@ss@10.0.0.1:6379", "10.0.0.1:6379"),
            ("", ""),
        ] {
            assert_eq!(without_credentials(url), expected, "{url}");
        }
        assert_eq!(database("db", 5432, "mqtt"), "db:5432/mqtt");
        assert_eq!(database("/run/postgresql", 5432, "mqtt"), "/run/postgresql/mqtt");
    }
}
