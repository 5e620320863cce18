//! Checks of the options of authentication providers.

use super::{Config, Listener, Resolver};
use crate::config::key::OptionKey;
use crate::config::options::access::jwt::Jwt;
use crate::config::options::access::source::AccessSourceKind;
use crate::config::options::access::{ProviderKind, UnknownUsers};
use crate::config::options::listeners::PeerName;

impl Config {
    /// Returns the authentication providers of a listener, in order.
    pub fn providers_of<'a>(&'a self, listener: &'a Listener) -> &'a [ProviderKind] {
        match listener.options.providers.as_slice() {
            [] => &self.access.providers,
            own => own,
        }
    }

    /// Returns the authentication providers that the server or a listener names, each once.
    pub fn provider_kinds(&self) -> Vec<ProviderKind> {
        let of_listeners = self.listeners.iter().map(|listener| self.providers_of(listener));
        let mut kinds = Vec::new();
        for kind in std::iter::once(&*self.access.providers).chain(of_listeners).flatten() {
            if !kinds.contains(kind) {
                kinds.push(*kind);
            }
        }
        kinds
    }
}

impl Resolver<'_> {
    pub(super) fn check_providers(&mut self, config: &Config) {
        let kinds = config.provider_kinds();
        if let Some(kind) = kinds.iter().find(|kind| kind.is_remote())
            && config.access.unknown_users == UnknownUsers::Anonymous
        {
            let message = format!(
                "is \"anonymous\", which would admit clients before `{}` of `access.providers` is asked",
                kind.word()
            );
            self.add_diagnostic(&OptionKey::of(&["access", "unknown_users"]), message);
        }
        for (key, message) in Jwt::problems(config) {
            match self.entries.contains_key(&key) {
                true => self.add_diagnostic(&key, message),
                false => self.add_diagnostic_at(self.any_origin_below(&["access"]), &key, message),
            }
        }
        let http = &config.access_http.options;
        let (postgresql, mysql) = (&config.access_postgresql, &config.access_mysql);
        let ldap = &config.access_ldap.options;
        let kerberos = &config.access_kerberos;
        // With `user_dn`, nothing is searched.
        let ldap_base = ldap.user_dn.0.as_ref().unwrap_or(&ldap.base_dn);
        for (kind, is_empty, option) in [
            (ProviderKind::Http, http.url.is_empty(), "url"),
            (ProviderKind::Postgresql, postgresql.database.is_empty(), "database"),
            (ProviderKind::Postgresql, postgresql.user.is_empty(), "user"),
            (ProviderKind::Mysql, mysql.database.is_empty(), "database"),
            (ProviderKind::Mysql, mysql.user.is_empty(), "user"),
            (
                ProviderKind::Mongodb,
                config.access_mongodb.database.is_empty(),
                "database",
            ),
            (ProviderKind::Sqlite, config.access_sqlite.file.0.is_none(), "file"),
            (ProviderKind::Ldap, ldap_base.is_empty(), "base_dn"),
            (ProviderKind::Kerberos, kerberos.principal.0.is_none(), "principal"),
        ] {
            if kinds.contains(&kind) && is_empty {
                let message = format!("is missing: `{}` of `access.providers` needs it", kind.word());
                let key = OptionKey::of(&["access", kind.word(), option]);
                self.add_diagnostic_at(self.any_origin_below(&["access"]), &key, message);
            }
        }
        #[cfg(feature = "ldap")]
        if kinds.contains(&ProviderKind::Ldap)
            && !ldap_base.is_empty()
            && let Some((key, message)) = config.access_ldap.problem()
        {
            match self.entries.contains_key(&key) {
                true => self.add_diagnostic(&key, message),
                false => self.add_diagnostic_at(self.any_origin_below(&["access", "ldap"]), &key, message),
            }
        }
        #[cfg(feature = "kerberos")]
        if kinds.contains(&ProviderKind::Kerberos)
            && let Some(principal) = &kerberos.principal.0
            && let Err(message) = auth_providers::kerberos::realm_of(principal)
        {
            self.add_diagnostic(&OptionKey::of(&["access", "kerberos", "principal"]), message);
        }
        for (is_missing, option) in [
            (http.cert_file.0.is_some() && http.key_file.0.is_none(), "key_file"),
            (http.key_file.0.is_some() && http.cert_file.0.is_none(), "cert_file"),
        ] {
            if is_missing {
                let message = "is missing: a client certificate needs `cert_file` and `key_file`";
                let key = OptionKey::of(&["access", "http", option]);
                self.add_diagnostic_at(self.any_origin_below(&["access", "http"]), &key, message.into());
            }
        }
        self.check_sources(config);
        if !config.access.scram.is_empty() && !kinds.contains(&ProviderKind::Users) {
            let message = "needs the provider `users`: add it to `access.providers`";
            self.add_diagnostic(&OptionKey::of(&["access", "scram"]), message.into());
        }
        self.check_certificate_provider(config);
    }

    fn check_sources(&mut self, config: &Config) {
        let sources = &config.access.sources;
        let key = OptionKey::of(&["access", "sources"]);
        for (at, kind) in sources.iter().enumerate() {
            if sources[..at].contains(kind) {
                self.add_diagnostic(&key, format!("contains `{}` twice", kind.word()));
            }
        }
        let of = &config.access_sources;
        for (kind, is_empty, option) in [
            (AccessSourceKind::Http, of.http.url.is_empty(), "url"),
            (
                AccessSourceKind::Postgresql,
                of.postgresql.database.is_empty(),
                "database",
            ),
            (AccessSourceKind::Postgresql, of.postgresql.user.is_empty(), "user"),
            (AccessSourceKind::Mysql, of.mysql.database.is_empty(), "database"),
            (AccessSourceKind::Mysql, of.mysql.user.is_empty(), "user"),
            (AccessSourceKind::Sqlite, of.sqlite.file.0.is_none(), "file"),
            (AccessSourceKind::Mongodb, of.mongodb.database.is_empty(), "database"),
        ] {
            if sources.contains(&kind) && is_empty {
                let message = format!("is missing: `{}` of `access.sources` needs it", kind.word());
                let key = OptionKey::of(&["access", "source", kind.word(), option]);
                self.add_diagnostic_at(self.any_origin_below(&["access"]), &key, message);
            }
        }
    }

    /// `certificate` decides before all other providers, so it must stand before them.
    fn check_certificate_provider(&mut self, config: &Config) {
        let key = OptionKey::of(&["access", "providers"]);
        let has_certificate = |kinds: &[ProviderKind]| kinds.contains(&ProviderKind::Certificate);
        let is_behind = |kinds: &[ProviderKind]| has_certificate(kinds.get(1..).unwrap_or_default());
        if is_behind(&config.access.providers) {
            self.add_diagnostic(&key, "`certificate` must be the first provider".into());
        }
        for listener in &config.listeners {
            if is_behind(&listener.options.providers) {
                let key = OptionKey::of(&["listeners", listener.kind.word(), &listener.name, "providers"]);
                self.add_diagnostic(&key, "`certificate` must be the first provider".into());
            }
        }
        let names_user = |listener: &&Listener| {
            let tls = listener.tls.as_ref();
            tls.is_some_and(|tls| tls.peer_cert_as_user_name != PeerName::Off)
        };
        let mut naming = config.listeners.iter().filter(names_user);
        if has_certificate(&config.provider_kinds())
            && !naming.any(|listener| has_certificate(config.providers_of(listener)))
        {
            let message = "`certificate` needs a listener with `peer_cert_as_user_name`";
            self.add_diagnostic(&key, message.into());
        }
    }
}
