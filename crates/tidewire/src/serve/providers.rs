//! The authentication providers of the configuration, and the threads that ask other systems.

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use auth::{
    AnonymousPolicy, AnonymousProvider, ChainLink, ProviderChain, UnknownUsersProvider, Users, UsersProvider,
    VerifiedPasswords,
};
use tokio::runtime::{Builder, Runtime};

use super::access_providers;
use crate::config::Config;
use crate::config::files::chain;
use crate::config::options::access::{Anonymous, ProviderKind, UnknownUsers};

/// Number of verified passwords that are cached, so that a device that reconnects does not cost a hash.
const VERIFIED_MAX: usize = 100_000;

/// Threads that ask other systems. A question occupies a thread only while it is sent and while the answer is read.
const THREADS: usize = 2;

/// What a provider does in the background.
type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The providers in the order of `access.providers`, or of the listener.
pub struct Providers {
    order: ProviderOrder,
    /// Listeners with an order of their own, by their index.
    of_listeners: HashMap<u16, ProviderOrder>,
    /// `None` if no provider asks another system.
    runtime: Option<Runtime>,
}

struct ProviderOrder {
    chain: ProviderChain,
    has_users: bool,
}

impl Providers {
    /// The error names the option.
    pub fn new(config: &Config, users: &Arc<Users>) -> Result<Providers, String> {
        let mut tasks = Vec::new();
        let policy = anonymous_policy(config.access.anonymous);
        let mut first = vec![ChainLink::Local(Arc::new(AnonymousProvider { policy }))];
        if config.access.unknown_users == UnknownUsers::Anonymous {
            let users = users.clone();
            first.push(ChainLink::Local(Arc::new(UnknownUsersProvider { policy, users })));
        }
        let mut links = Vec::new();
        for kind in config.provider_kinds() {
            if let Some(link) = link(kind, config, users, &mut tasks)? {
                links.push((kind, link));
            }
        }
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
        let asks_others = links.iter().any(|(_, link)| matches!(link, ChainLink::Remote(_)));
        let runtime = asks_others.then(|| {
            let mut builder = Builder::new_multi_thread();
            builder.worker_threads(THREADS).thread_name("auth-remote").enable_all();
            builder.build()
        });
        let runtime = runtime
            .transpose()
            .map_err(|error| format!("cannot start the threads for authentication: {error}"))?;
        if let Some(runtime) = &runtime {
            for task in tasks {
                runtime.spawn(task);
            }
        }
        Ok(Providers {
            order: order(&config.access.providers),
            of_listeners: of_listeners.collect(),
            runtime,
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

/// Returns `None` for the certificates of clients: `NodeAccess` decides about them before it asks the chain. Adds what
/// the provider does in the background to `tasks`.
fn link(
    kind: ProviderKind,
    config: &Config,
    users: &Arc<Users>,
    tasks: &mut Vec<Task>,
) -> Result<Option<ChainLink>, String> {
    Ok(Some(match kind {
        ProviderKind::Certificate => return Ok(None),
        ProviderKind::Users => {
            let verified = VerifiedPasswords::new(VERIFIED_MAX).map_err(|e| chain(&e))?;
            ChainLink::Local(Arc::new(UsersProvider::new(users.clone(), verified)))
        }
        ProviderKind::Http => ChainLink::Remote(access_providers::http::provider(&config.access_http)?),
        ProviderKind::Jwt => {
            let jwt = access_providers::jwt::provider(config)?;
            tasks.extend(jwt.key_requests());
            ChainLink::Remote(jwt)
        }
        #[cfg(feature = "postgresql")]
        ProviderKind::Postgresql => {
            ChainLink::Remote(access_providers::postgresql::provider(&config.access_postgresql)?)
        }
        #[cfg(feature = "redis")]
        ProviderKind::Redis => ChainLink::Remote(access_providers::redis::provider(&config.access_redis)?),
        #[cfg(not(all(feature = "postgresql", feature = "redis")))]
        absent => {
            let kind = absent.word();
            return Err(format!(
                "access.providers: this build has no {kind:?}; use a build with the feature {kind}"
            ));
        }
    }))
}

fn anonymous_policy(anonymous: Anonymous) -> AnonymousPolicy {
    match anonymous {
        Anonymous::Never => AnonymousPolicy::Never,
        Anonymous::Loopback => AnonymousPolicy::LoopbackOnly,
        Anonymous::Always => AnonymousPolicy::Always,
    }
}
