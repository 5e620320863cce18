//! Resolves the typed values: types, defaults, and checks that need more than one value.

mod providers;
pub mod tls;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ::integration::{ActionDefinition, ConnectorDefinition, RuleDefinition, SourceDefinition};
use auth::PasswordHash;
use net::tls::Stapling;

use super::address::Bind;
use super::attribute_source::AttributeSource;
use super::declared::Table;
use super::key::OptionKey;
use super::option::{OptionDef, Section, default_of, read};
use super::options::listeners::{
    API_LISTENER, ListenerKind, ListenerOptions, PeerName, ProxyProtocol, QuicOptions, TlsDefaults, TlsOptions,
    TlsVersion, VerifyClient, WsOptions,
};
use super::options::{access, certificates, integration, mqtt, opentelemetry, platform, server, single_sign_on};
use super::origin::{ConfigDiagnostic, ValueOrigin};
use super::raw::{ConfigEntry, ConfigSources, RawConfig, default_data_dir};
use super::value::{OptionValue, RawOptionValue};
use tls::TlsSource;

/// The configuration as used.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    pub node: server::Node,
    /// `node.data_dir` with its default.
    pub data_dir: PathBuf,
    /// Enabled listeners; `tcp` first, then by name.
    pub listeners: Vec<Listener>,
    pub acme: certificates::AcmeOptions,
    /// 0: the server does not look for changed certificates.
    pub tls_reload_interval: Duration,
    pub crl: certificates::CrlOptions,
    pub ocsp: certificates::OcspOptions,
    pub mqtt: mqtt::Mqtt,
    pub shared_strategies: BTreeMap<String, mqtt::SharedStrategy>,
    pub retained: mqtt::Retained,
    pub limits: server::Limits,
    pub durability: server::Durability,
    pub access: access::Access,
    pub client_attrs: BTreeMap<String, AttributeSource>,
    pub flapping: access::FlappingOptions,
    pub access_http: access::http::HttpAccessConfig,
    pub access_postgresql: access::postgresql::PostgresqlAccess,
    pub access_mysql: access::mysql::MysqlAccess,
    pub access_sqlite: access::sqlite::SqliteAccess,
    pub access_mongodb: access::mongodb::MongodbAccess,
    pub access_redis: access::redis::RedisAccess,
    pub access_ldap: access::ldap::LdapAccessConfig,
    pub access_kerberos: access::kerberos::KerberosAccess,
    pub access_sources: access::source::AccessSourcesConfig,
    pub jwt: access::jwt::Jwt,
    /// Claims of tokens, and their values.
    pub jwt_claims: BTreeMap<String, String>,
    /// Names and hashed passwords.
    pub users: BTreeMap<String, PasswordHash>,
    pub integration: integration::Integration,
    pub platform: platform::Platform,
    pub connectors: BTreeMap<String, Table<ConnectorDefinition>>,
    pub actions: BTreeMap<String, Table<ActionDefinition>>,
    pub sources: BTreeMap<String, Table<SourceDefinition>>,
    pub rules: BTreeMap<String, Table<RuleDefinition>>,
    pub sys: server::Sys,
    pub api: server::Api,
    pub oidc: single_sign_on::OidcConfig,
    pub opentelemetry: opentelemetry::OpenTelemetry,
    pub benchmark: server::Benchmark,
    pub log: server::Log,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Listener {
    pub kind: ListenerKind,
    pub name: String,
    pub options: ListenerOptions,
    /// Present exactly when the kind has TLS.
    pub tls: Option<ListenerTls>,
    /// Present exactly when the kind is WebSocket.
    pub ws: Option<WsOptions>,
    /// Present exactly when the kind is QUIC.
    pub quic: Option<QuicOptions>,
}

/// `TlsOptions` with the defaults of `[tls]` filled in.
#[derive(Clone, Debug, PartialEq)]
pub struct ListenerTls {
    pub cert_file: PathBuf,
    pub key_file: PathBuf,
    /// The files are those of `tls.acme`.
    pub is_acme: bool,
    /// OCSP stapling, if it is on.
    pub stapling: Option<Stapling>,
    pub ca_file: Option<PathBuf>,
    pub crl_file: Option<PathBuf>,
    pub crl_urls: Vec<String>,
    /// Files of the lists in `crl_urls`, in their order.
    pub crl_url_files: Vec<PathBuf>,
    pub verify_client: VerifyClient,
    pub peer_cert_as_user_name: PeerName,
    pub peer_cert_as_client_id: PeerName,
    pub min_tls_version: TlsVersion,
    pub cipher_suites: Vec<String>,
    /// QUIC needs TLS 1.3 and a name for the protocol.
    pub is_for_quic: bool,
}

/// One value in force, for `config show` and the API.
#[derive(Clone, Debug)]
pub struct EffectiveOption {
    pub key: OptionKey,
    /// The value as it is shown; secrets are `***`.
    pub value: toml::Value,
    pub origin: ValueOrigin,
    pub def: &'static OptionDef,
}

pub struct Resolver<'a> {
    entries: &'a BTreeMap<OptionKey, ConfigEntry>,
    pub diagnostics: Vec<ConfigDiagnostic>,
    pub effective: Vec<EffectiveOption>,
}

impl Config {
    pub fn api_bind(&self) -> Option<&Bind> {
        self.api.enabled.then_some(&self.api.bind)
    }

    pub fn platform_bind(&self) -> Option<&Bind> {
        self.platform.bind.0.as_ref().filter(|_| self.platform.enabled)
    }

    /// Addresses where other machines reach the demo users; `None`: only this machine reaches them.
    pub fn open_demo_binds(&self) -> Option<String> {
        let binds = [self.api_bind(), self.platform_bind()].into_iter().flatten();
        let open: Vec<String> = binds
            .filter(|bind| !bind.is_loopback())
            .map(ToString::to_string)
            .collect();
        (!open.is_empty()).then(|| open.join(", "))
    }
}

impl Listener {
    /// `tcp.default`, as in the configuration.
    pub fn label(&self) -> String {
        format!("{}.{}", self.kind.word(), self.name)
    }
}

/// Resolves everything; the configuration is of use only without diagnostics.
pub fn resolve(raw: &mut RawConfig, sources: &ConfigSources) -> (Config, Vec<EffectiveOption>, Vec<ConfigDiagnostic>) {
    insert_default_binds(raw);
    insert_profile(raw);
    let mut resolver = Resolver {
        entries: &raw.entries,
        diagnostics: Vec::new(),
        effective: Vec::new(),
    };
    let node = server::Node::resolve(&mut resolver, &["node"]);
    // A running server stays in its data directory, also if the option has changed.
    let in_use = sources.runtime.as_ref().and_then(|runtime| runtime.path.parent());
    let data_dir = in_use.map(Path::to_owned).or_else(|| node.data_dir.0.clone());
    let data_dir = data_dir.unwrap_or_else(|| default_data_dir(sources));
    let acme = certificates::AcmeOptions::resolve(&mut resolver, &["tls", "acme"]);
    let tls = TlsDefaults::resolve(&mut resolver, &["tls"]);
    let tls_reload_interval = tls.reload_interval;
    let listeners = resolver.listeners(tls, &acme, &data_dir);
    let config = Config {
        data_dir,
        node,
        listeners,
        tls_reload_interval,
        acme,
        crl: certificates::CrlOptions::resolve(&mut resolver, &["tls", "crl"]),
        ocsp: certificates::OcspOptions::resolve(&mut resolver, &["tls", "ocsp"]),
        mqtt: mqtt::Mqtt::resolve(&mut resolver, &["mqtt"]),
        shared_strategies: resolver.take_map(&["mqtt", "shared_strategies"], &mqtt::SHARED_STRATEGIES),
        retained: mqtt::Retained::resolve(&mut resolver, &["retained"]),
        limits: server::Limits::resolve(&mut resolver, &["limits"]),
        durability: server::Durability::resolve(&mut resolver, &["durability"]),
        access: access::Access::resolve(&mut resolver, &["access"]),
        client_attrs: resolver.take_map(&["access", "client_attrs"], &access::CLIENT_ATTRS),
        flapping: access::FlappingOptions::resolve(&mut resolver, &["access", "flapping"]),
        access_http: resolver.access_http(),
        access_postgresql: access::postgresql::PostgresqlAccess::resolve(&mut resolver, &["access", "postgresql"]),
        access_mysql: access::mysql::MysqlAccess::resolve(&mut resolver, &["access", "mysql"]),
        access_sqlite: access::sqlite::SqliteAccess::resolve(&mut resolver, &["access", "sqlite"]),
        access_mongodb: access::mongodb::MongodbAccess::resolve(&mut resolver, &["access", "mongodb"]),
        access_redis: access::redis::RedisAccess::resolve(&mut resolver, &["access", "redis"]),
        access_ldap: resolver.access_ldap(),
        access_kerberos: access::kerberos::KerberosAccess::resolve(&mut resolver, &["access", "kerberos"]),
        access_sources: resolver.access_sources(),
        jwt: access::jwt::Jwt::resolve(&mut resolver, &["access", "jwt"]),
        jwt_claims: resolver.take_map(&["access", "jwt", "verify_claims"], &access::jwt::CLAIMS),
        users: resolver.take_map(&["access", "users"], &access::USERS),
        integration: integration::Integration::resolve(&mut resolver, &["integration"]),
        platform: platform::Platform::resolve(&mut resolver, &["platform"]),
        connectors: resolver.take_map(&["connectors"], &integration::CONNECTORS),
        actions: resolver.take_map(&["actions"], &integration::ACTIONS),
        sources: resolver.take_map(&["sources"], &integration::SOURCES),
        rules: resolver.take_map(&["rules"], &integration::RULES),
        sys: server::Sys::resolve(&mut resolver, &["sys"]),
        api: server::Api::resolve(&mut resolver, &["api"]),
        oidc: single_sign_on::OidcConfig {
            options: single_sign_on::Oidc::resolve(&mut resolver, &["api", "oidc"]),
            roles: resolver.take_map(&["api", "oidc", "roles"], &single_sign_on::ROLES),
        },
        opentelemetry: opentelemetry::OpenTelemetry::resolve(&mut resolver, &["opentelemetry"]),
        benchmark: server::Benchmark::resolve(&mut resolver, &["benchmark"]),
        log: server::Log::resolve(&mut resolver, &["log"]),
    };
    resolver.check(&config);
    (config, resolver.effective, resolver.diagnostics)
}

/// The listeners named `default` differ in their port, which a definition cannot say.
fn insert_default_binds(raw: &mut RawConfig) {
    for kind in ListenerKind::ALL {
        let key = OptionKey::of(&["listeners", kind.word(), "default", "bind"]);
        let bind = Bind {
            host: "0.0.0.0".into(),
            port: kind.default_port(),
        };
        let entry = ConfigEntry {
            raw: RawOptionValue::Toml(bind.to_toml()),
            origin: ValueOrigin::Default,
        };
        raw.entries.entry(key).or_insert(entry);
    }
}

/// Returns the defaults of `node.profile`. An invalid profile has none and is reported later.
fn insert_profile(raw: &mut RawConfig) {
    let def = server::Node::SECTION.options.iter().find(|def| def.name == "profile");
    let typed = raw.entries.get(&OptionKey::of(&["node", "profile"]));
    let Some(profile) = def
        .zip(typed)
        .and_then(|(def, entry)| read::<server::Profile>(def, &entry.raw).ok())
    else {
        return;
    };
    for (path, value) in profile.defaults() {
        let entry = ConfigEntry {
            raw: RawOptionValue::Text((*value).to_owned()),
            origin: ValueOrigin::Profile { name: profile.word() },
        };
        raw.entries.entry(OptionKey::of(path)).or_insert(entry);
    }
}

impl Resolver<'_> {
    /// The value of one option. One that cannot be read is noted and its default taken.
    pub fn take<T: OptionValue>(&mut self, path: &[&str], def: &'static OptionDef) -> T {
        let key = OptionKey::of(path).child(def.name);
        let (value, origin) = match self.entries.get(&key) {
            None => (default_of::<T>(def), ValueOrigin::Default),
            Some(entry) => match read::<T>(def, &entry.raw) {
                Ok(value) => (value, entry.origin.clone()),
                Err(message) => {
                    self.add_diagnostic(&key, message);
                    (default_of::<T>(def), ValueOrigin::Default)
                }
            },
        };
        self.effective.push(EffectiveOption {
            key,
            value: value.to_toml(),
            origin,
            def,
        });
        value
    }

    fn take_map<T: OptionValue>(&mut self, path: &[&str], section: &'static Section) -> BTreeMap<String, T> {
        let def = &section.options[0];
        let mut map = BTreeMap::new();
        let is_entry = |key: &&OptionKey| key.0.len() == path.len() + 1 && key.words().starts_with(path);
        let keys: Vec<&OptionKey> = self.entries.keys().filter(is_entry).collect();
        for key in keys {
            let entry = &self.entries[key];
            let name = key.0[path.len()].clone();
            match read::<T>(def, &entry.raw) {
                Ok(value) => {
                    let origin = entry.origin.clone();
                    self.effective.push(EffectiveOption {
                        key: key.clone(),
                        value: value.to_toml(),
                        origin,
                        def,
                    });
                    map.insert(name, value);
                }
                Err(message) => self.add_diagnostic(key, message),
            }
        }
        map
    }

    fn access_http(&mut self) -> access::http::HttpAccessConfig {
        access::http::HttpAccessConfig {
            options: access::http::HttpAccess::resolve(self, &["access", "http"]),
            headers: self.take_map(&["access", "http", "headers"], &access::http::HEADERS),
            body: self.take_map(&["access", "http", "body"], &access::http::BODY),
        }
    }

    fn access_ldap(&mut self) -> access::ldap::LdapAccessConfig {
        access::ldap::LdapAccessConfig {
            options: access::ldap::LdapAccess::resolve(self, &["access", "ldap"]),
            client_attrs: self.take_map(&["access", "ldap", "client_attrs"], &access::ldap::CLIENT_ATTRS),
        }
    }

    fn access_sources(&mut self) -> access::source::AccessSourcesConfig {
        use access::source::{AccessSourcesConfig, BODY, HEADERS};
        let [http, postgresql, mysql, sqlite, mongodb, redis] =
            ["http", "postgresql", "mysql", "sqlite", "mongodb", "redis"].map(|kind| ["access", "source", kind]);
        AccessSourcesConfig {
            http: access::source::HttpSourceOptions::resolve(self, &http),
            http_headers: self.take_map(&["access", "source", "http", "headers"], &HEADERS),
            http_body: self.take_map(&["access", "source", "http", "body"], &BODY),
            postgresql: access::source::PostgresqlSourceOptions::resolve(self, &postgresql),
            mysql: access::source::MysqlSourceOptions::resolve(self, &mysql),
            sqlite: access::source::SqliteSourceOptions::resolve(self, &sqlite),
            mongodb: access::source::MongodbSourceOptions::resolve(self, &mongodb),
            redis: access::source::RedisSourceOptions::resolve(self, &redis),
        }
    }

    fn listeners(&mut self, options: TlsDefaults, acme: &certificates::AcmeOptions, data_dir: &Path) -> Vec<Listener> {
        let defaults = TlsSource {
            options,
            acme_file: (!acme.domains.is_empty()).then(|| ::certificates::certificate_file(data_dir)),
            data_dir: data_dir.to_owned(),
        };
        let mut listeners = Vec::new();
        for kind in ListenerKind::ALL {
            for name in self.listener_names(kind, &defaults) {
                listeners.extend(self.listener(kind, &name, &defaults));
            }
        }
        listeners
    }

    /// The names that were typed, and `default` where it is there by itself.
    fn listener_names(&self, kind: ListenerKind, defaults: &TlsSource) -> Vec<String> {
        let mut names: Vec<String> = self
            .entries
            .iter()
            .filter(|(key, entry)| {
                entry.origin != ValueOrigin::Default && key.words().starts_with(&["listeners", kind.word()])
            })
            .map(|(key, _)| key.0[2].clone())
            .collect();
        // UDP has to be wanted: nothing opens a port for it that was not there before an upgrade.
        let has_certificate = defaults.options.cert_file.0.is_some() || defaults.acme_file.is_some();
        if kind != ListenerKind::Quic && (!kind.has_tls() || has_certificate) {
            names.push("default".into());
        }
        names.sort();
        names.dedup();
        names
    }

    /// `None` when it is disabled or cannot be made.
    fn listener(&mut self, kind: ListenerKind, name: &str, defaults: &TlsSource) -> Option<Listener> {
        let path = ["listeners", kind.word(), name];
        let bind_key = OptionKey::of(&path).child("bind");
        let has_bind = self.entries.contains_key(&bind_key);
        if !has_bind {
            self.add_diagnostic_at(
                self.any_origin_below(&path),
                &bind_key,
                "is missing: a listener needs an address".into(),
            );
        }
        let options = ListenerOptions::resolve(self, &path);
        let tls = kind.has_tls().then(|| TlsOptions::resolve(self, &path));
        let ws = kind.has_ws().then(|| WsOptions::resolve(self, &path));
        let quic = (kind == ListenerKind::Quic).then(|| QuicOptions::resolve(self, &path));
        if !options.enabled {
            return None;
        }
        self.check_listener(&path, &options, ws.as_ref());
        if kind == ListenerKind::Quic && !self.check_quic(&path, &options) {
            return None;
        }
        if !has_bind {
            return None;
        }
        let tls = match tls {
            None => None,
            Some(own) => Some(ListenerTls {
                is_for_quic: kind == ListenerKind::Quic,
                ..self.listener_tls(&path, own, defaults)?
            }),
        };
        Some(Listener {
            kind,
            name: name.into(),
            options,
            tls,
            ws,
            quic,
        })
    }

    /// Returns whether the listener can exist.
    fn check_quic(&mut self, path: &[&str], options: &ListenerOptions) -> bool {
        let key = OptionKey::of(path);
        if !cfg!(feature = "quic") {
            let message = "this build has no QUIC support; build with --features quic";
            self.add_diagnostic_at(self.any_origin_below(path), &key, message.into());
            return false;
        }
        let has_header = options.proxy_protocol != ProxyProtocol::Off;
        if has_header {
            let message = "is not possible with QUIC, which has no connection of the proxy: remove it";
            self.add_diagnostic_at(
                self.any_origin_below(path),
                &key.child("proxy_protocol"),
                message.into(),
            );
        }
        !has_header
    }

    fn check_listener(&mut self, path: &[&str], options: &ListenerOptions, ws: Option<&WsOptions>) {
        if options.proxy_protocol != ProxyProtocol::Off && options.proxy_protocol_trusted.is_empty() {
            let message = "is empty: list the addresses that may send a PROXY protocol header";
            let key = OptionKey::of(path).child("proxy_protocol_trusted");
            self.add_diagnostic_at(self.any_origin_below(path), &key, message.into());
        }
        let Some(ws) = ws else { return };
        if path.last() == Some(&API_LISTENER) {
            let message = "is the name of MQTT over WebSocket on the port of the API: choose another name";
            self.add_diagnostic_at(self.any_origin_below(path), &OptionKey::of(path), message.into());
        }
        if !ws.path.starts_with('/') {
            self.add_diagnostic(
                &OptionKey::of(path).child("path"),
                format!("found \"{}\", expected a path that starts with /", ws.path),
            );
        }
    }

    fn check(&mut self, config: &Config) {
        self.check_binds(config);
        self.check_acme(config);
        self.check_providers(config);
        for (key, message) in single_sign_on::OidcConfig::problems(config) {
            match self.entries.contains_key(&key) {
                true => self.add_diagnostic(&key, message),
                false => self.add_diagnostic_at(self.any_origin_below(&["api", "oidc"]), &key, message),
            }
        }
        for (key, message) in opentelemetry::OpenTelemetry::problems(config) {
            match self.entries.contains_key(&key) {
                true => self.add_diagnostic(&key, message.to_owned()),
                false => self.add_diagnostic_at(self.any_origin_below(&["opentelemetry"]), &key, message.to_owned()),
            }
        }
        self.check_api_tls(config);
        for (option, duration) in [
            ("server_keep_alive", config.mqtt.server_keep_alive.0),
            ("max_keep_alive", config.mqtt.max_keep_alive.0),
            ("max_session_expiry", config.mqtt.max_session_expiry.0),
            ("default_session_expiry", config.mqtt.default_session_expiry.0),
            ("max_message_expiry", config.mqtt.max_message_expiry.0),
            ("default_message_expiry", config.mqtt.default_message_expiry.0),
        ] {
            if duration.is_some_and(|duration| duration.subsec_nanos() != 0) {
                self.add_diagnostic(
                    &OptionKey::of(&["mqtt", option]),
                    "is not a whole number of seconds, which MQTT requires".into(),
                );
            }
        }
    }

    fn check_binds(&mut self, config: &Config) {
        let listeners = config.listeners.iter().map(|listener| {
            let key = OptionKey::of(&["listeners", listener.kind.word(), &listener.name, "bind"]);
            (key, &listener.options.bind, listener.kind == ListenerKind::Quic)
        });
        let api = config.api_bind().map(|bind| (OptionKey::of(&["api", "bind"]), bind));
        let platform = config
            .platform_bind()
            .map(|bind| (OptionKey::of(&["platform", "bind"]), bind));
        let acme = config
            .acme_bind()
            .map(|(option, bind)| (OptionKey::of(&["tls", "acme", option]), bind));
        let tcp = api.into_iter().chain(platform).chain(acme);
        let tcp = tcp.map(|(key, bind)| (key, bind, false));
        let all: Vec<(OptionKey, &Bind, bool)> = listeners.chain(tcp).collect();
        for (at, (key, bind, is_udp)) in all.iter().enumerate() {
            // UDP and TCP have ports of their own.
            let is_taken =
                |(_, taken, is_other_udp): &&(OptionKey, &Bind, bool)| is_other_udp == is_udp && taken.overlaps(bind);
            if let Some((taker, taken, _)) = all[..at].iter().find(is_taken) {
                let with = if taken == bind {
                    String::new()
                } else {
                    format!(", with {taken}")
                };
                self.add_diagnostic(key, format!("{bind} is already used by `{taker}`{with}"));
            }
        }
    }

    /// Where a key that is missing would belong.
    fn any_origin_below(&self, path: &[&str]) -> ValueOrigin {
        let below = self.entries.iter().filter(|(key, _)| key.words().starts_with(path));
        below
            .map(|(_, entry)| entry.origin.clone())
            .find(|origin| *origin != ValueOrigin::Default)
            .unwrap_or(ValueOrigin::Default)
    }

    fn add_diagnostic(&mut self, key: &OptionKey, message: String) {
        let origin = self
            .entries
            .get(key)
            .map_or(ValueOrigin::Default, |entry| entry.origin.clone());
        self.add_diagnostic_at(origin, key, message);
    }

    fn add_diagnostic_at(&mut self, origin: ValueOrigin, key: &OptionKey, message: String) {
        self.diagnostics.push(ConfigDiagnostic {
            origin,
            key: Some(key.to_string()),
            message,
        });
    }
}
