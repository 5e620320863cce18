//! Authentication and authorization of a request before its endpoint runs.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use axum::extract::Request;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use schemars::{Schema, SchemaGenerator};

use crate::admins::{Admins, Role};
use crate::api_keys::{ApiKeys, KEY_PREFIX};
use crate::audit::{Audit, AuditEntry, AuditedOperation, SentBody};
use crate::audit_body::{KnownFields, OptionSchemas};
use crate::blocking::block;
use crate::endpoint::BoundHandler;
use crate::logins::Logins;
use crate::problem::HttpProblem;
use crate::sub_protocols::sub_protocols;
use crate::unix_ms;

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
    /// The handler authenticates a user of another kind. The text describes these users in the OpenAPI document.
    OtherUser(&'static str),
}

/// Address of the client, for limits per address. Unspecified if the client is this server.
#[derive(Clone, Copy, Debug)]
pub struct PeerAddress(pub IpAddr);

/// The authenticated user. Endpoints receive it as an extension.
#[derive(Clone, Debug)]
pub struct AuthenticatedUser {
    pub user: Arc<str>,
    pub role: Role,
}

/// Authenticates console users and API keys, and records their changes in the audit log. Cloning increments reference
/// counts.
#[derive(Clone)]
pub struct Guard {
    pub admins: Arc<Admins>,
    pub api_keys: Arc<ApiKeys>,
    pub logins: Arc<Logins>,
    pub audit: Arc<Audit>,
    /// For the audit log.
    pub option_schemas: OptionSchemas,
    pub metrics: MetricsAccess,
}

/// Peers that may read metrics and statistics without a login.
#[derive(Clone, Copy, Debug)]
pub struct MetricsAccess {
    /// All peers.
    pub is_public: bool,
    /// Peers on loopback, because the port is on loopback.
    pub is_on_loopback: bool,
}

impl MetricsAccess {
    /// Connections of the server itself do not come from loopback ([`PeerAddress`]).
    pub fn is_open_for(self, peer: IpAddr) -> bool {
        self.is_public || (self.is_on_loopback && peer.to_canonical().is_loopback())
    }
}

/// Checks whether the login of a finished request is still valid, for a connection that outlives the request.
pub struct LoginRecheck {
    guard: Guard,
    need: RequiredAccess,
    headers: HeaderMap,
}

impl LoginRecheck {
    pub fn is_valid(&self) -> bool {
        let is_enough = |login: AuthenticatedUser| {
            !self.guard.admins.has_one_time_password(&login.user)
                && (self.need != RequiredAccess::Admin || login.role == Role::Admin)
        };
        self.guard.login(&self.headers).is_ok_and(is_enough)
    }
}

impl Guard {
    /// `audited`: the operation, if the audit log records it.
    pub async fn admit(
        &self,
        need: RequiredAccess,
        audited: Option<&AuditedOperation>,
        mut request: Request,
        handler: BoundHandler,
    ) -> Response {
        let is_open = match need {
            RequiredAccess::OtherUser(_) => return handler(request).await,
            RequiredAccess::Nothing => true,
            RequiredAccess::Metrics => {
                let peer = request.extensions().get::<PeerAddress>();
                peer.is_some_and(|peer| self.metrics.is_open_for(peer.0))
            }
            RequiredAccess::OneTime | RequiredAccess::Viewer | RequiredAccess::Admin => false,
        };
        match self.login(request.headers()) {
            Err(problem) if !is_open => return problem.into_response(),
            // A client that sends a token expects it to be valid.
            Err(problem) if need == RequiredAccess::Metrics && bearer(request.headers()).is_some() => {
                return problem.into_response();
            }
            Err(_) => {}
            Ok(login) if need != RequiredAccess::OneTime && self.admins.has_one_time_password(&login.user) => {
                if !is_open {
                    return HttpProblem::password_change_required().into_response();
                }
            }
            Ok(login) if need == RequiredAccess::Admin && login.role != Role::Admin => {
                let refused = HttpProblem::forbidden("this needs a login with the role `admin`").into_response();
                if let Some(operation) = audited {
                    let change = AuditedChange::new(operation, &login, &mut request);
                    change.record(self.audit.clone(), refused.status()).await;
                }
                return refused;
            }
            Ok(login) => {
                let change = audited.map(|operation| AuditedChange::new(operation, &login, &mut request));
                request.extensions_mut().insert(login);
                if request.headers().contains_key(header::UPGRADE) {
                    let pass = LoginRecheck {
                        guard: self.clone(),
                        need,
                        headers: request.headers().clone(),
                    };
                    request.extensions_mut().insert(Arc::new(pass));
                }
                return match change {
                    None => handler(request).await,
                    Some(change) => run_to_completion(self.audit.clone(), change, request, handler).await,
                };
            }
        }
        handler(request).await
    }

    /// Looks the role up for each request, so that a change applies at once.
    fn login(&self, headers: &HeaderMap) -> Result<AuthenticatedUser, HttpProblem> {
        let token = bearer(headers).ok_or_else(|| {
            HttpProblem::unauthorized("send `Authorization: Bearer <token>`; POST /api/v1/login returns a token")
        })?;
        if ApiKeys::is_key(token) {
            let found = self.api_keys.find(token, unix_ms(SystemTime::now()));
            let key =
                found.ok_or_else(|| HttpProblem::unauthorized("the API key is unknown, disabled or has expired"))?;
            let of_issuer = self
                .admins
                .role(&key.issuer)
                .ok_or_else(|| HttpProblem::unauthorized("the user who issued the API key was deleted"))?;
            let user = format!("{KEY_PREFIX}{}", key.name).into();
            let role = key.role.min(of_issuer);
            return Ok(AuthenticatedUser { user, role });
        }
        let user = self.logins.find(token, Instant::now());
        let user = user.ok_or_else(|| HttpProblem::unauthorized("the token is unknown or has expired"))?;
        let role = self
            .admins
            .role(&user)
            .ok_or_else(|| HttpProblem::unauthorized("this user was deleted"))?;
        Ok(AuthenticatedUser { user, role })
    }

    /// Returns the fields of a body or a query that the audit log may show.
    pub fn known_fields(&self, schema: Option<fn(&mut SchemaGenerator) -> Schema>) -> KnownFields {
        KnownFields::of(schema, self.option_schemas)
    }
}

/// Completes a change and its audit log entry even if the client disconnects.
async fn run_to_completion(
    audit: Arc<Audit>,
    change: AuditedChange,
    request: Request,
    handler: BoundHandler,
) -> Response {
    let work = tokio::spawn(async move {
        let response = handler(request).await;
        change.record(audit, response.status()).await;
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
    async fn record(mut self, audit: Arc<Audit>, status: StatusCode) {
        self.entry.body = self.sent.take();
        self.entry.status = status.as_u16();
        // `write` reports failures in the server log.
        let _ = block(move || audit.write(self.entry)).await;
    }
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
