//! Authentication and authorization of a request before its endpoint runs.

use std::sync::Arc;
use std::time::{Instant, SystemTime};

use axum::extract::Request;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};

use platform::model::Authority;

use crate::admins::Role;
use crate::api_keys::{ApiKeys, KEY_PREFIX};
use crate::app::{App, unix_ms};
use crate::audit::{AuditEntry, AuditedOperation, SentBody};
use crate::endpoint::AdmittedRequest;
use crate::problem::HttpProblem;
use crate::server::PeerAddress;
use crate::websocket::sub_protocols;

/// Limit of a request's path and query in the audit log.
const TARGET_CHARACTERS_MAX: usize = 1000;

/// The login that an endpoint requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequiredAccess {
    Nothing,
    /// A login, unless metrics are public.
    Metrics,
    /// A login; a one-time password is sufficient.
    OneTime,
    Viewer,
    Admin,
    /// Part of the device platform's interface that needs no login.
    NoPrincipal,
    /// A user of the device platform.
    Principal(Authorities),
}

/// A set of authorities of the device platform.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Authorities(u8);

/// Bit of `Authorities` for screens.
const SCREENS: u8 = 8;

impl Authorities {
    pub const SYS_ADMIN: Authorities = Authorities(1);
    pub const TENANT_ADMIN: Authorities = Authorities(2);
    pub const CUSTOMER_USER: Authorities = Authorities(4);
    /// Authorities with devices.
    pub const TENANT: Authorities = Authorities(2 | 4);
    /// Authorities that administer.
    pub const ADMINS: Authorities = Authorities(1 | 2);
    pub const ANY: Authorities = Authorities(1 | 2 | 4);

    /// Also allows a screen, which has a key for one dashboard and no user.
    pub const fn and_screens(self) -> Authorities {
        Authorities(self.0 | SCREENS)
    }

    pub fn has_screens(self) -> bool {
        self.0 & SCREENS != 0
    }

    /// Text for the OpenAPI document.
    pub fn describe(self) -> &'static str {
        match Authorities(self.0 & !SCREENS) {
            Authorities::SYS_ADMIN => "For system administrators.",
            Authorities::TENANT_ADMIN => "For tenant administrators.",
            Authorities::CUSTOMER_USER => "For users of customers.",
            Authorities::TENANT => "For tenant administrators and users of customers.",
            Authorities::ADMINS => "For system and tenant administrators.",
            _ => "For all logged-in users.",
        }
    }

    pub fn has(self, authority: Authority) -> bool {
        let flag = match authority {
            Authority::SysAdmin => Authorities::SYS_ADMIN,
            Authority::TenantAdmin => Authorities::TENANT_ADMIN,
            Authority::CustomerUser => Authorities::CUSTOMER_USER,
        };
        self.0 & flag.0 != 0
    }
}

/// Limit of the request's body in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BodyLimit(pub usize);

impl Default for BodyLimit {
    fn default() -> BodyLimit {
        BodyLimit(64 * 1024)
    }
}

/// The authenticated user. Endpoints receive it as an extension.
#[derive(Clone, Debug)]
pub struct AuthenticatedUser {
    pub user: Arc<str>,
    pub role: Role,
}

/// Checks whether the login of a finished request is still valid, for a connection that outlives the request.
pub struct LoginRecheck {
    app: App,
    need: RequiredAccess,
    headers: HeaderMap,
}

impl LoginRecheck {
    pub fn is_valid(&self) -> bool {
        let is_enough = |login: AuthenticatedUser| {
            !self.app.admins().has_one_time_password(&login.user)
                && (self.need != RequiredAccess::Admin || login.role == Role::Admin)
        };
        login(&self.app, &self.headers).is_ok_and(is_enough)
    }
}

/// `audited`: the operation, if the audit log records it.
pub async fn guard(
    app: &App,
    need: RequiredAccess,
    audited: Option<&AuditedOperation>,
    mut request: Request,
    next: AdmittedRequest,
) -> Response {
    if let RequiredAccess::Principal(who) = need {
        return crate::thingsboard::admit(app, who, request, next).await;
    }
    let is_open = match need {
        RequiredAccess::Nothing | RequiredAccess::NoPrincipal => true,
        RequiredAccess::Metrics => {
            let peer = request.extensions().get::<PeerAddress>();
            peer.is_some_and(|peer| app.is_metrics_open(peer.0))
        }
        _ => false,
    };
    match login(app, request.headers()) {
        Err(problem) if !is_open => return problem.into_response(),
        // A client that sends a token expects it to be valid.
        Err(problem) if need == RequiredAccess::Metrics && bearer(request.headers()).is_some() => {
            return problem.into_response();
        }
        Err(_) => {}
        Ok(login) if need != RequiredAccess::OneTime && app.admins().has_one_time_password(&login.user) => {
            if !is_open {
                return HttpProblem::password_change_required().into_response();
            }
        }
        Ok(login) if need == RequiredAccess::Admin && login.role != Role::Admin => {
            let refused = HttpProblem::forbidden("this needs a login with the role `admin`").into_response();
            if let Some(operation) = audited {
                let change = AuditedChange::new(operation, &login, &mut request);
                change.record(app, refused.status()).await;
            }
            return refused;
        }
        Ok(login) => {
            let change = audited.map(|operation| AuditedChange::new(operation, &login, &mut request));
            request.extensions_mut().insert(login);
            if request.headers().contains_key(header::UPGRADE) {
                let pass = LoginRecheck {
                    app: app.clone(),
                    need,
                    headers: request.headers().clone(),
                };
                request.extensions_mut().insert(Arc::new(pass));
            }
            return match change {
                None => next.run(request).await,
                Some(change) => run_to_completion(app, change, request, next).await,
            };
        }
    }
    next.run(request).await
}

/// Completes a change and its audit log entry even if the client disconnects.
async fn run_to_completion(app: &App, change: AuditedChange, request: Request, next: AdmittedRequest) -> Response {
    let app = app.clone();
    let work = tokio::spawn(async move {
        let response = next.run(request).await;
        change.record(&app, response.status()).await;
        response
    });
    let done = work.await;
    done.unwrap_or_else(|_| HttpProblem::internal("the request failed unexpectedly").into_response())
}

/// A change that will be written to the audit log.
struct AuditedChange {
    entry: AuditEntry,
    sent: SentBody,
}

impl AuditedChange {
    fn new(operation: &AuditedOperation, login: &AuthenticatedUser, request: &mut Request) -> AuditedChange {
        let sent = SentBody::new(operation.body.clone());
        let address = request.extensions().get::<PeerAddress>().map(|peer| peer.0.to_string());
        let target = request.uri().path_and_query().map_or("", |target| target.as_str());
        let entry = AuditEntry {
            number: 0,
            at_unix_ms: unix_ms(SystemTime::now()),
            user: login.user.to_string(),
            address: address.unwrap_or_default(),
            operation: operation.id.to_owned(),
            method: request.method().to_string(),
            path: operation
                .query
                .redact_target(target)
                .chars()
                .take(TARGET_CHARACTERS_MAX)
                .collect(),
            body: None,
            status: 0,
        };
        request.extensions_mut().insert(sent.clone());
        AuditedChange { entry, sent }
    }

    /// The entry is on disk when this returns.
    async fn record(mut self, app: &App, status: StatusCode) {
        self.entry.body = self.sent.take();
        self.entry.status = status.as_u16();
        let (own, entry) = (app.clone(), self.entry);
        // `write` reports failures in the server log.
        let _ = app.block(move || own.audit().write(entry)).await;
    }
}

/// Looks the role up for each request, so that a change applies at once.
fn login(app: &App, headers: &HeaderMap) -> Result<AuthenticatedUser, HttpProblem> {
    let token = bearer(headers).ok_or_else(|| {
        HttpProblem::unauthorized("send `Authorization: Bearer <token>`; POST /api/v1/login returns a token")
    })?;
    if ApiKeys::is_key(token) {
        let found = app.api_keys().find(token, unix_ms(SystemTime::now()));
        let key = found.ok_or_else(|| HttpProblem::unauthorized("the API key is unknown, disabled or has expired"))?;
        let of_issuer = app
            .admins()
            .role(&key.issuer)
            .ok_or_else(|| HttpProblem::unauthorized("the user who issued the API key was deleted"))?;
        let user = format!("{KEY_PREFIX}{}", key.name).into();
        let role = key.role.min(of_issuer);
        return Ok(AuthenticatedUser { user, role });
    }
    let user = app.logins().find(token, Instant::now());
    let user = user.ok_or_else(|| HttpProblem::unauthorized("the token is unknown or has expired"))?;
    let role = app
        .admins()
        .role(&user)
        .ok_or_else(|| HttpProblem::unauthorized("this user was deleted"))?;
    Ok(AuthenticatedUser { user, role })
}

/// Returns the token of the header. Web pages that open a WebSocket cannot set headers; they offer it as a
/// sub-protocol.
pub fn bearer(headers: &HeaderMap) -> Option<&str> {
    let Some(header) = headers.get(header::AUTHORIZATION) else {
        return sub_protocols(headers).find_map(|offered| offered.strip_prefix("bearer."));
    };
    let (scheme, token) = header.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}
