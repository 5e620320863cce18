//! The parts of the node that the operations use. A handler names those that it uses, such as `State<CallServices>` or
//! `State<Admission>`, and does not see the others.

use std::sync::Arc;

use auth::LoginLimiter;
use axum::extract::FromRef;
use web::PasswordHashing;
use web::admins::Admins;
use web::api_keys::ApiKeys;
use web::limits::ApiCounters;

use crate::platform_access::PlatformAccess;

/// The parts of the node, for [`ServiceState::new`].
pub struct Services {
    pub platform_access: Arc<PlatformAccess>,
    /// Administrators of the node are system administrators of the platform.
    pub admins: Arc<Admins>,
    /// Contains the keys of screens.
    pub api_keys: Arc<ApiKeys>,
    pub hashing: Arc<PasswordHashing>,
    /// Limits failed logins and wrong secrets of claims.
    pub login_limiter: Arc<LoginLimiter>,
    pub counters: Arc<ApiCounters>,
    /// Limit of concurrent requests of all tenants.
    pub requests_max: usize,
    /// Whether the port accepts only HTTPS.
    pub is_https: bool,
    /// Version of the server.
    pub version: Arc<str>,
}

/// The state of all endpoints. Cloning increments a reference count.
#[derive(Clone)]
pub struct ServiceState {
    services: Arc<Services>,
}

pub type Endpoint = web::endpoint::Endpoint<ServiceState>;

impl ServiceState {
    pub fn new(services: Services) -> ServiceState {
        ServiceState {
            services: Arc::new(services),
        }
    }

    /// Returns a part of the state.
    pub fn part<T: FromRef<ServiceState>>(&self) -> T {
        T::from_ref(self)
    }
}

/// Limit of concurrent requests of all tenants.
#[derive(Clone, Copy)]
pub struct RequestsMax(pub usize);

/// Whether the port accepts only HTTPS.
#[derive(Clone, Copy)]
pub struct IsHttps(pub bool);

/// Version of the server.
#[derive(Clone)]
pub struct ServerVersion(pub Arc<str>);

/// Makes parts of the state available to handlers.
macro_rules! parts {
    ($($part:ty = |$services:ident| $value:expr;)+) => {
        $(
            impl FromRef<ServiceState> for $part {
                fn from_ref(state: &ServiceState) -> $part {
                    let $services = &state.services;
                    $value
                }
            }
        )+
    };
}

parts! {
    Arc<PlatformAccess> = |services| services.platform_access.clone();
    Arc<Admins> = |services| services.admins.clone();
    Arc<ApiKeys> = |services| services.api_keys.clone();
    Arc<PasswordHashing> = |services| services.hashing.clone();
    Arc<LoginLimiter> = |services| services.login_limiter.clone();
    Arc<ApiCounters> = |services| services.counters.clone();
    RequestsMax = |services| RequestsMax(services.requests_max);
    IsHttps = |services| IsHttps(services.is_https);
    ServerVersion = |services| ServerVersion(services.version.clone());
}
