//! The authentication providers of the configuration, and the threads that ask other systems.

use std::future::Future;
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

/// The providers in the order of `access.providers`.
pub struct Providers {
    chain: ProviderChain,
    /// `None` if no provider asks another system.
    runtime: Option<Runtime>,
}

impl Providers {
    /// The error names the option.
    pub fn new(config: &Config, users: &Arc<Users>) -> Result<Providers, String> {
        let policy = anonymous_policy(config.access.anonymous);
        let mut links = vec![ChainLink::Local(Arc::new(AnonymousProvider { policy }))];
        if config.access.unknown_users == UnknownUsers::Anonymous {
            let users = users.clone();
            links.push(ChainLink::Local(Arc::new(UnknownUsersProvider { policy, users })));
        }
        for kind in &config.access.providers {
            links.push(match kind {
                ProviderKind::Users => {
                    let verified = VerifiedPasswords::new(VERIFIED_MAX).map_err(|e| chain(&e))?;
                    ChainLink::Local(Arc::new(UsersProvider::new(users.clone(), verified)))
                }
                ProviderKind::Http => ChainLink::Remote(access_providers::http::provider(&config.access_http)?),
            });
        }
        let asks_others = links.iter().any(|link| matches!(link, ChainLink::Remote(_)));
        let runtime = asks_others.then(|| {
            let mut builder = Builder::new_multi_thread();
            builder.worker_threads(THREADS).thread_name("auth-remote").enable_all();
            builder.build()
        });
        Ok(Providers {
            chain: ProviderChain::new(links),
            runtime: runtime
                .transpose()
                .map_err(|error| format!("cannot start the threads for authentication: {error}"))?,
        })
    }

    pub fn chain(&self) -> &ProviderChain {
        &self.chain
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

fn anonymous_policy(anonymous: Anonymous) -> AnonymousPolicy {
    match anonymous {
        Anonymous::Never => AnonymousPolicy::Never,
        Anonymous::Loopback => AnonymousPolicy::LoopbackOnly,
        Anonymous::Always => AnonymousPolicy::Always,
    }
}
