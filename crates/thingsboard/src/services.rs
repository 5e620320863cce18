//! The parts of the node that the operations use.

use std::sync::Arc;

use auth::LoginLimiter;
use web::PasswordHashing;
use web::admins::Admins;
use web::api_keys::ApiKeys;
use web::limits::ApiCounters;

use crate::platform_access::PlatformAccess;

/// The state of all operations.
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
    pub version: String,
}

pub type Endpoint = web::endpoint::Endpoint<Arc<Services>>;
