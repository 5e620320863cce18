//! Admits the requests of users: authenticates the user, checks the authority, and applies the limits of the tenant.

use std::sync::Arc;
use std::time::SystemTime;

use axum::extract::{Request, State};
use axum::handler::Handler;
use axum::http::{HeaderMap, Method};
use axum::response::IntoResponse;
use platform::ids::Uuid;
use web::api_keys::ApiKeys;
use web::guard::RequiredAccess;
use web::unix_ms;

use super::authorities::Authorities;
use super::call::now_ms;
use super::failure::ThingsboardError;
use super::principal::Principal;
use super::quotas::RequestPermit;
use crate::services::{Endpoint, Services};

/// Returns an endpoint whose handler runs only for users with one of the authorities. The handler receives the user as
/// an extension of the request.
pub fn for_users<H: Handler<T, Arc<Services>>, T: 'static>(
    method: Method,
    path: &'static str,
    id: &'static str,
    who: Authorities,
    handler: H,
) -> Endpoint {
    let run = move |State(services): State<Arc<Services>>, mut request: Request| {
        let handler = handler.clone();
        async move {
            match admit(&services, who, &mut request).await {
                Ok(_permit) => handler.call(request, services).await,
                Err(failure) => failure.into_response(),
            }
        }
    };
    Endpoint::of(method, path, id, run).needs(RequiredAccess::OtherUser(who.describe()))
}

/// Authenticates and authorizes a user before an operation.
async fn admit(
    services: &Arc<Services>,
    who: Authorities,
    request: &mut Request,
) -> Result<Option<RequestPermit>, ThingsboardError> {
    let principal = principal(services, request.headers()).await?;
    if !who.has(principal.authority) || (principal.screen.is_some() && !who.has_screens()) {
        return Err(ThingsboardError::permission());
    }
    let permit = reserve_quota(services, &principal, request)?;
    request.extensions_mut().insert(principal);
    Ok(permit)
}

/// Reserves the tenant's resources for this request.
fn reserve_quota(
    services: &Services,
    principal: &Principal,
    request: &Request,
) -> Result<Option<RequestPermit>, ThingsboardError> {
    let world = &services.platform_access;
    let limits = world.devices().entities().directory().limits(principal.tenant).cloned();
    if let Some(limits) = limits {
        world.quotas().check_rates(principal, &limits, now_ms())?;
    }
    // The request waits for a device and needs no resources.
    if super::may_wait(request.uri().path()) {
        return Ok(None);
    }
    world.quotas().admit(principal.tenant, services.requests_max)
}

async fn principal(services: &Arc<Services>, headers: &HeaderMap) -> Result<Principal, ThingsboardError> {
    let header = headers.get("x-authorization").or_else(|| headers.get("authorization"));
    let header = header
        .and_then(|value| value.to_str().ok())
        .ok_or_else(ThingsboardError::unauthorized)?;
    let (scheme, token) = header.split_once(' ').ok_or_else(ThingsboardError::unauthorized)?;
    let is_key = scheme.eq_ignore_ascii_case("apikey");
    if !is_key && !scheme.eq_ignore_ascii_case("bearer") {
        return Err(ThingsboardError::unauthorized());
    }
    principal_of(services, token.trim().to_owned(), is_key).await
}

pub async fn principal_of(
    services: &Arc<Services>,
    token: String,
    is_key: bool,
) -> Result<Principal, ThingsboardError> {
    let world = services.platform_access.clone();
    let screen = ApiKeys::is_key(&token).then(|| services.api_keys.find_screen(&token, unix_ms(SystemTime::now())));
    if let Some(screen) = screen {
        let (key, issuer, dashboard) = screen.ok_or_else(ThingsboardError::unauthorized)?;
        let dashboard = Uuid::parse(&dashboard).ok_or_else(ThingsboardError::unauthorized)?;
        if services.admins.role(&issuer).is_none() {
            return Err(ThingsboardError::unauthorized());
        }
        return web::block(move || world.principal_of_screen(&key, dashboard)).await?;
    }
    let looked_up = web::block({
        let services = services.clone();
        move || match is_key {
            true => world.principal_of_key(&services.admins, &token, now_ms()),
            false => world.principal_of_token(&services.admins, &token, now_ms()),
        }
    });
    looked_up.await?
}
