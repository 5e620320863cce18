//! Admits the requests of users: authenticates the user, checks the authority, and applies the limits of the tenant.

use std::sync::Arc;
use std::time::SystemTime;

use axum::extract::{FromRef, Request, State};
use axum::handler::Handler;
use axum::http::{HeaderMap, Method};
use axum::response::IntoResponse;
use platform::ids::Uuid;
use web::admins::Admins;
use web::api_keys::ApiKeys;
use web::guard::RequiredAccess;
use web::unix_ms;

use super::authorities::Authorities;
use super::call::now_ms;
use super::failure::ThingsboardError;
use super::platform_access::PlatformAccess;
use super::principal::Principal;
use super::quotas::RequestPermit;
use crate::services::{Endpoint, RequestsMax, ServiceState};

/// Returns an endpoint whose handler runs only for users with one of the authorities. The handler receives the user as
/// an extension of the request.
pub fn for_users<H: Handler<T, ServiceState>, T: 'static>(
    method: Method,
    path: &'static str,
    id: &'static str,
    who: Authorities,
    handler: H,
) -> Endpoint {
    let run = move |State(admission): State<Admission>, State(state): State<ServiceState>, mut request: Request| {
        let handler = handler.clone();
        async move {
            match admission.admit(who, &mut request).await {
                Ok(_permit) => handler.call(request, state).await,
                Err(failure) => failure.into_response(),
            }
        }
    };
    Endpoint::of(method, path, id, RequiredAccess::OtherUser(who.describe()), run)
}

/// Authenticates users and applies the limits of their tenants.
#[derive(Clone)]
pub struct Admission {
    platform_access: Arc<PlatformAccess>,
    api_keys: Arc<ApiKeys>,
    admins: Arc<Admins>,
    requests_max: usize,
}

impl FromRef<ServiceState> for Admission {
    fn from_ref(state: &ServiceState) -> Admission {
        let RequestsMax(requests_max) = state.part();
        Admission {
            platform_access: state.part(),
            api_keys: state.part(),
            admins: state.part(),
            requests_max,
        }
    }
}

impl Admission {
    /// Authenticates and authorizes a user before an operation.
    async fn admit(&self, who: Authorities, request: &mut Request) -> Result<Option<RequestPermit>, ThingsboardError> {
        let principal = self.principal(request.headers()).await?;
        if !who.has(principal.authority) || (principal.screen.is_some() && !who.has_screens()) {
            return Err(ThingsboardError::permission());
        }
        let permit = self.reserve_quota(&principal, request)?;
        request.extensions_mut().insert(principal);
        Ok(permit)
    }

    /// Reserves the tenant's resources for this request.
    fn reserve_quota(
        &self,
        principal: &Principal,
        request: &Request,
    ) -> Result<Option<RequestPermit>, ThingsboardError> {
        let access = &self.platform_access;
        let limits = access
            .devices()
            .entities()
            .directory()
            .limits(principal.tenant)
            .cloned();
        if let Some(limits) = limits {
            access.quotas().check_rates(principal, &limits, now_ms())?;
        }
        // The request waits for a device and needs no resources.
        if super::may_wait(request.uri().path()) {
            return Ok(None);
        }
        access.quotas().admit(principal.tenant, self.requests_max)
    }

    async fn principal(&self, headers: &HeaderMap) -> Result<Principal, ThingsboardError> {
        let header = headers.get("x-authorization").or_else(|| headers.get("authorization"));
        let header = header
            .and_then(|value| value.to_str().ok())
            .ok_or_else(ThingsboardError::unauthorized)?;
        let (scheme, token) = header.split_once(' ').ok_or_else(ThingsboardError::unauthorized)?;
        let is_key = scheme.eq_ignore_ascii_case("apikey");
        if !is_key && !scheme.eq_ignore_ascii_case("bearer") {
            return Err(ThingsboardError::unauthorized());
        }
        self.principal_of(token.trim().to_owned(), is_key).await
    }

    /// Returns the user of an access token or an API key.
    pub async fn principal_of(&self, token: String, is_key: bool) -> Result<Principal, ThingsboardError> {
        let access = self.platform_access.clone();
        let screen = ApiKeys::is_key(&token).then(|| self.api_keys.find_screen(&token, unix_ms(SystemTime::now())));
        if let Some(screen) = screen {
            let (key, issuer, dashboard) = screen.ok_or_else(ThingsboardError::unauthorized)?;
            let dashboard = Uuid::parse(&dashboard).ok_or_else(ThingsboardError::unauthorized)?;
            // A role in a namespace gives no right to the platform.
            if self.admins.role(&issuer).is_none_or(|role| role.namespace.is_some()) {
                return Err(ThingsboardError::unauthorized());
            }
            return web::block(move || access.principal_of_screen(&key, dashboard)).await?;
        }
        let looked_up = web::block({
            let admins = self.admins.clone();
            move || match is_key {
                true => access.principal_of_key(&admins, &token, now_ms()),
                false => access.principal_of_token(&admins, &token, now_ms()),
            }
        });
        looked_up.await?
    }
}
