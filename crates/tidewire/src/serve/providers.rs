//! The authentication providers of the configuration, and the threads that ask other systems.

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use api::AuthProviderFigures;
use auth::{
    AnonymousPolicy, AnonymousProvider, ChainLink, ProviderChain, UnknownUsersProvider, Users, UsersProvider,
    VerifiedPasswords,
};
use auth_providers::{LoginSource, SourceProvider, WatchedProvider};
use tokio::runtime::{Builder, Runtime};

use super::access::has_other_sources;
use super::access_providers;
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
    /// `None` if no provider asks another system.
    runtime: Option<Runtime>,
    pub open_questions: OpenQuestions,
}

struct ProviderOrder {
    chain: ProviderChain,
    has_users: bool,
}

impl Providers {
    /// The error names the option.
    pub fn new(config: &Config, users: &Arc<Users>) -> Result<Providers, String> {
        let policy = anonymous_policy(config.access.anonymous);
        let mut first = vec![ChainLink::Local(Arc::new(AnonymousProvider { policy }))];
        if config.access.unknown_users == UnknownUsers::Anonymous {
            let users = users.clone();
            first.push(ChainLink::Local(Arc::new(UnknownUsersProvider { policy, users })));
        }
        let mut made = MadeProviders::default();
        for kind in config.provider_kinds() {
            made.add(kind, config, users)?;
        }
        let links = made.links;
        let order = |kinds: &[ProviderKind]| {
            let of_kind = |kind| {
                links
                    .iter()
                    .find(|(known, _)| known == kind)
                    .map(|(_, link)| link.clone())
            };
            let links = first.iter().cloned().chain(kinds.iter().filter_map(of_kind));
            ProviderOrder {
                chain: ProviderChain::new(links.collect()),
                has_users: kinds.contains(&ProviderKind::Users),
            }
        };
        let of_listeners = config.listeners.iter().enumerate().filter_map(|(index, listener)| {
            let has_own = !listener.options.providers.is_empty();
            has_own.then(|| (index as u16, order(config.providers_of(listener))))
        });
        let has_remote_provider = links.iter().any(|(_, link)| matches!(link, ChainLink::Remote(_)));
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
            runtime,
            open_questions: OpenQuestions::default(),
        })
    }

    /// Returns the chain for clients of a listener.
    pub fn chain(&self, listener: u16) -> &ProviderChain {
        &self.of_listener(listener).chain
    }

    /// Returns whether the users of the server may connect to a listener.
    pub fn has_users(&self, listener: u16) -> bool {
        self.of_listener(listener).has_users
    }

    fn of_listener(&self, listener: u16) -> &ProviderOrder {
        self.of_listeners.get(&listener).unwrap_or(&self.order)
    }

    pub fn figures(&self) -> Vec<AuthProviderFigures> {
        self.watched.iter().map(|provider| figures(&**provider)).collect()
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
    links: Vec<(ProviderKind, ChainLink)>,
    watched: Vec<Arc<dyn WatchedProvider>>,
    tasks: Vec<Task>,
}

impl MadeProviders {
    fn add(&mut self, kind: ProviderKind, config: &Config, users: &Arc<Users>) -> Result<(), String> {
        let link = match kind {
            // `NodeAccess` decides about certificates before it asks the chain.
            ProviderKind::Certificate => return Ok(()),
            ProviderKind::Users => {
                let verified = VerifiedPasswords::new(VERIFIED_MAX).map_err(|e| chain(&e))?;
                ChainLink::Local(Arc::new(UsersProvider::new(users.clone(), verified)))
            }
            ProviderKind::Jwt => {
                let jwt = access_providers::jwt::provider(config)?;
                self.tasks.extend(jwt.key_requests());
                ChainLink::Remote(jwt)
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
        self.links.push((kind, link));
        Ok(())
    }

    fn watch<S: LoginSource>(&mut self, provider: Arc<SourceProvider<S>>) -> ChainLink {
        self.watched.push(provider.clone());
        ChainLink::Remote(provider)
    }
}

pub fn figures(provider: &dyn WatchedProvider) -> AuthProviderFigures {
    let stats = provider.stats();
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
        waiting: stats.waiting,
        in_progress: stats.in_progress,
        answer_time: stats.answer_time,
        is_failing: stats.is_failing,
    }
}

fn anonymous_policy(anonymous: Anonymous) -> AnonymousPolicy {
    match anonymous {
        Anonymous::Never => AnonymousPolicy::Never,
        Anonymous::Loopback => AnonymousPolicy::LoopbackOnly,
        Anonymous::Always => AnonymousPolicy::Always,
    }
}
