//! The authentication providers of the configuration, and the threads that ask other systems.

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use api::AuthProviderFigures;
use auth::{
    AnonymousPolicy, AnonymousProvider, ChainLink, Provider, ProviderChain, UnknownUsersProvider, Users, UsersProvider,
    VerifiedPasswords,
};
use auth_providers::jwt::JwtProvider;
use auth_providers::{LoginSource, OnFailure, SourceFailure, SourceProvider, WatchedProvider};
use tokio::runtime::{Builder, Runtime};

use super::access::has_other_sources;
use super::access_providers;
#[cfg(feature = "kerberos")]
use super::access_providers::kerberos::KerberosProvider;
use super::access_sources::AccessSources;
use super::open_questions::OpenQuestions;
use crate::config::Config;
use crate::config::files::chain;
use crate::config::options::access::{Anonymous, ProviderKind, UnknownUsers};

/// Number of verified passwords that are cached, so that a device that reconnects does not cost a hash.
const VERIFIED_MAX: usize = 100_000;

/// Threads that ask other systems. A question occupies a thread only while it is sent and while the answer is read.
const THREADS: usize = 2;

/// Background work of a provider.
type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The providers in the order of `access.providers`, or of the listener.
pub struct Providers {
    order: ProviderOrder,
    /// Listeners with an order of their own, by their index.
    of_listeners: HashMap<u16, ProviderOrder>,
    /// Providers that ask other systems.
    watched: Vec<Arc<dyn WatchedProvider>>,
    jwt: Option<Arc<JwtProvider>>,
    #[cfg(feature = "kerberos")]
    kerberos: Option<KerberosProvider>,
    /// `None` if no provider asks another system.
    runtime: Option<Runtime>,
    pub open_questions: OpenQuestions,
}

struct ProviderOrder {
    chain: ProviderChain,
    /// The same providers, for operators.
    named: Vec<NamedProvider>,
    has_users: bool,
}

/// A provider with its name.
#[derive(Clone)]
pub struct NamedProvider {
    pub name: &'static str,
    pub link: NamedLink,
}

#[derive(Clone)]
pub enum NamedLink {
    Local(Arc<dyn Provider>),
    Jwt(Arc<JwtProvider>),
    Remote(Arc<dyn WatchedProvider>),
    /// `NodeAccess` decides about certificates.
    Certificate,
    /// `NodeAccess` decides about AUTH packets.
    Kerberos,
}

impl NamedLink {
    /// Returns the link of a provider that is not in the chain.
    fn outside_chain(kind: ProviderKind) -> NamedLink {
        match kind {
            ProviderKind::Kerberos => NamedLink::Kerberos,
            _ => NamedLink::Certificate,
        }
    }
}

/// Names of the providers that are not in `access.providers`.
pub const ANONYMOUS: &str = "anonymous";
pub const UNKNOWN_USERS: &str = "unknown_users";

impl Providers {
    /// The error names the option.
    pub fn new(config: &Config, users: &Arc<Users>) -> Result<Providers, String> {
        let policy = anonymous_policy(config.access.anonymous);
        let anonymous: Arc<dyn Provider> = Arc::new(AnonymousProvider { policy });
        let mut first = vec![(ANONYMOUS, anonymous)];
        if config.access.unknown_users == UnknownUsers::Anonymous {
            let users = users.clone();
            first.push((UNKNOWN_USERS, Arc::new(UnknownUsersProvider { policy, users })));
        }
        let mut made = MadeProviders::default();
        for kind in config.provider_kinds() {
            made.add(kind, config, users)?;
        }
        let links = made.links;
        let order = |kinds: &[ProviderKind]| {
            let of_kind = |kind: &ProviderKind| links.iter().find(|(known, ..)| known == kind);
            let of_first = first.iter().map(|(_, provider)| ChainLink::Local(provider.clone()));
            let of_kinds = kinds.iter().filter_map(of_kind).map(|(_, link, _)| link.clone());
            let named = kinds.iter().map(|kind| NamedProvider {
                name: kind.word(),
                link: of_kind(kind).map_or_else(|| NamedLink::outside_chain(*kind), |(.., link)| link.clone()),
            });
            let first_named = first.iter().map(|(name, provider)| NamedProvider {
                name,
                link: NamedLink::Local(provider.clone()),
            });
            ProviderOrder {
                chain: ProviderChain::new(of_first.chain(of_kinds).collect()),
                named: first_named.chain(named).collect(),
                has_users: kinds.contains(&ProviderKind::Users),
            }
        };
        let of_listeners = config.listeners.iter().enumerate().filter_map(|(index, listener)| {
            let has_own = !listener.options.providers.is_empty();
            has_own.then(|| (index as u16, order(config.providers_of(listener))))
        });
        let has_remote_provider = links.iter().any(|(_, link, _)| matches!(link, ChainLink::Remote(_)));
        let asks_others = has_remote_provider || has_other_sources(config);
        let runtime = asks_others.then(|| {
            let mut builder = Builder::new_multi_thread();
            builder.worker_threads(THREADS).thread_name("auth-remote").enable_all();
            builder.build()
        });
        let runtime = runtime
            .transpose()
            .map_err(|error| format!("cannot start the threads for authentication: {error}"))?;
        if let Some(runtime) = &runtime {
            for task in made.tasks {
                runtime.spawn(task);
            }
        }
        Ok(Providers {
            order: order(&config.access.providers),
            of_listeners: of_listeners.collect(),
            watched: made.watched,
            jwt: made.jwt,
            #[cfg(feature = "kerberos")]
            kerberos: made.kerberos,
            runtime,
            open_questions: OpenQuestions::default(),
        })
    }

    /// Returns the chain for clients of a listener.
    pub fn chain(&self, listener: u16) -> &ProviderChain {
        &self.of_listener(listener).chain
    }

    /// Returns the providers for clients of a listener, or those of the server, in their order.
    pub fn named(&self, listener: Option<u16>) -> &[NamedProvider] {
        let order = listener.map_or(&self.order, |listener| self.of_listener(listener));
        &order.named
    }

    /// Returns the last failure of a provider, and whether it cannot decide now. `None`: it asks no other system.
    pub fn health(&self, name: &str) -> Option<(Option<SourceFailure>, bool)> {
        if let Some(jwt) = self.jwt.as_ref().filter(|_| name == ProviderKind::Jwt.word()) {
            let failure = jwt.last_failure();
            let has_no_keys = failure.as_ref().is_some_and(|(_, has_no_keys)| *has_no_keys);
            return Some((failure.map(|(failure, _)| failure), has_no_keys));
        }
        let provider = self.watched.iter().find(|provider| provider.name() == name)?;
        Some((provider.last_failure(), provider.stats().is_failing))
    }

    /// Returns whether the users of the server may connect to a listener.
    pub fn has_users(&self, listener: u16) -> bool {
        self.of_listener(listener).has_users
    }

    /// Returns the provider `kerberos` if the server or a listener uses it.
    #[cfg(feature = "kerberos")]
    pub fn kerberos(&self) -> Option<&KerberosProvider> {
        self.kerberos.as_ref()
    }

    /// Returns whether principals of Kerberos may connect to a listener.
    #[cfg(feature = "kerberos")]
    pub fn has_kerberos(&self, listener: u16) -> bool {
        let mut providers = self.of_listener(listener).named.iter();
        providers.any(|provider| matches!(provider.link, NamedLink::Kerberos))
    }

    fn of_listener(&self, listener: u16) -> &ProviderOrder {
        self.of_listeners.get(&listener).unwrap_or(&self.order)
    }

    pub fn figures(&self) -> Vec<AuthProviderFigures> {
        let figures = self.watched.iter().map(|provider| figures(&**provider));
        #[cfg(feature = "kerberos")]
        let figures = figures.chain(self.kerberos.iter().map(KerberosProvider::figures));
        figures.collect()
    }

    /// Waits for the answer to a question. Must not be called on a thread of a worker or of a runtime.
    pub fn wait_for<T>(&self, question: impl Future<Output = T>) -> Option<T> {
        Some(self.runtime.as_ref()?.block_on(question))
    }

    /// Runs a question to another system.
    pub fn spawn(&self, question: impl Future<Output = ()> + Send + 'static) {
        if let Some(runtime) = &self.runtime {
            runtime.spawn(question);
        }
    }
}

impl Drop for Providers {
    /// Does not wait for answers of other systems. May be called on a thread of a runtime.
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// Returns why the providers or the sources of access rules cannot be created. Asks no other system.
pub fn check_access(config: &Config) -> Result<(), String> {
    let users = Arc::new(Users::empty().map_err(|error| chain(&error))?);
    let mut made = MadeProviders::default();
    for kind in config.provider_kinds() {
        made.add(kind, config, &users)?;
    }
    AccessSources::new(config).map(drop)
}

/// The providers that are made from the configuration.
#[derive(Default)]
struct MadeProviders {
    links: Vec<(ProviderKind, ChainLink, NamedLink)>,
    jwt: Option<Arc<JwtProvider>>,
    #[cfg(feature = "kerberos")]
    kerberos: Option<KerberosProvider>,
    watched: Vec<Arc<dyn WatchedProvider>>,
    tasks: Vec<Task>,
}

impl MadeProviders {
    fn add(&mut self, kind: ProviderKind, config: &Config, users: &Arc<Users>) -> Result<(), String> {
        let (link, named) = match kind {
            // `NodeAccess` decides about certificates before it asks the chain.
            ProviderKind::Certificate => return Ok(()),
            // The same for AUTH packets.
            #[cfg(feature = "kerberos")]
            ProviderKind::Kerberos => {
                self.kerberos = Some(KerberosProvider::new(&config.access_kerberos)?);
                return Ok(());
            }
            ProviderKind::Users => {
                let verified = VerifiedPasswords::new(VERIFIED_MAX).map_err(|e| chain(&e))?;
                let provider: Arc<dyn Provider> = Arc::new(UsersProvider::new(users.clone(), verified));
                (ChainLink::Local(provider.clone()), NamedLink::Local(provider))
            }
            ProviderKind::Jwt => {
                let jwt = access_providers::jwt::provider(config)?;
                self.tasks.extend(jwt.key_requests());
                self.jwt = Some(jwt.clone());
                (ChainLink::Remote(jwt.clone()), NamedLink::Jwt(jwt))
            }
            ProviderKind::Http => self.watch(access_providers::http::provider(&config.access_http)?),
            #[cfg(feature = "postgresql")]
            ProviderKind::Postgresql => self.watch(access_providers::postgresql::provider(&config.access_postgresql)?),
            #[cfg(feature = "mongodb")]
            ProviderKind::Mongodb => self.watch(access_providers::mongodb::provider(&config.access_mongodb)?),
            #[cfg(feature = "mysql")]
            ProviderKind::Mysql => self.watch(access_providers::mysql::provider(&config.access_mysql)?),
            #[cfg(feature = "sqlite")]
            ProviderKind::Sqlite => self.watch(access_providers::sqlite::provider(&config.access_sqlite)?),
            #[cfg(feature = "redis")]
            ProviderKind::Redis => self.watch(access_providers::redis::provider(&config.access_redis)?),
            #[cfg(feature = "ldap")]
            ProviderKind::Ldap => self.watch(access_providers::ldap::provider(&config.access_ldap)?),
            #[cfg(not(all(
                feature = "kerberos",
                feature = "ldap",
                feature = "mongodb",
                feature = "mysql",
                feature = "postgresql",
                feature = "redis",
                feature = "sqlite"
            )))]
            absent => {
                let kind = absent.word();
                return Err(format!(
                    "access.providers: this build has no {kind:?}; use a build with the feature {kind}"
                ));
            }
        };
        self.links.push((kind, link, named));
        Ok(())
    }

    fn watch<S: LoginSource>(&mut self, provider: Arc<SourceProvider<S>>) -> (ChainLink, NamedLink) {
        self.watched.push(provider.clone());
        (ChainLink::Remote(provider.clone()), NamedLink::Remote(provider))
    }
}

pub fn figures(provider: &dyn WatchedProvider) -> AuthProviderFigures {
    let (stats, limits) = (provider.stats(), provider.limits());
    AuthProviderFigures {
        name: provider.name(),
        results: vec![
            ("allowed", stats.allowed),
            ("denied", stats.denied),
            ("ignored", stats.ignored),
            ("failed", stats.failures),
            ("timed_out", stats.timeouts),
            ("overloaded", stats.overloaded),
            ("cached", stats.cache_hits),
            ("shared", stats.shared),
        ],
        denials: Vec::new(),
        waiting: stats.waiting,
        in_progress: stats.in_progress,
        answer_time: stats.answer_time,
        answer_time_p50: stats.answer_time_of(50),
        answer_time_p99: stats.answer_time_of(99),
        is_failing: stats.is_failing,
        cached_answers: stats.cached,
        cache_size: limits.cache_size as u64,
        timeout: limits.timeout,
        on_failure: on_failure_word(limits.on_failure),
    }
}

pub fn on_failure_word(on_failure: OnFailure) -> &'static str {
    match on_failure {
        OnFailure::Deny => "deny",
        OnFailure::Ignore => "ignore",
        OnFailure::Allow => "allow",
    }
}

fn anonymous_policy(anonymous: Anonymous) -> AnonymousPolicy {
    match anonymous {
        Anonymous::Never => AnonymousPolicy::Never,
        Anonymous::Loopback => AnonymousPolicy::LoopbackOnly,
        Anonymous::Always => AnonymousPolicy::Always,
    }
}
