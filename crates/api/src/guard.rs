//! Before an endpoint runs: who is asking, and may they.

use std::sync::Arc;
use std::time::{Instant, SystemTime};

use axum::extract::Request;
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use platform::model::Authority;

use crate::admins::Role;
use crate::api_keys::ApiKeys;
use crate::app::{App, unix_ms};
use crate::audit::{AuditEntry, SentBody};
use crate::problem::Problem;
use crate::server::PeerAddress;
use crate::websocket::sub_protocols;

/// Before the name of an API key, where a user's name would stand: no user has a colon in its name.
pub const KEY_PREFIX: &str = "key:";

/// Of a request's path and query, in the audit log.
const TARGET_CHARACTERS_MAX: usize = 1000;

/// What an endpoint asks of the one who calls it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    Nothing,
    /// A login, unless metrics are open.
    Metrics,
    /// A login, also with a password that has to be changed first.
    OneTime,
    Viewer,
    Admin,
    /// Part of the device platform's interface, without a login.
    NoPerson,
    /// A user of the device platform.
    Person(Who),
}

/// Users of the device platform, by what they may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Who(u8);

/// Of `Who`.
const SCREENS: u8 = 8;

impl Who {
    pub const SYS_ADMIN: Who = Who(1);
    pub const TENANT_ADMIN: Who = Who(2);
    pub const CUSTOMER_USER: Who = Who(4);
    /// Those that have devices.
    pub const TENANT: Who = Who(2 | 4);
    /// Those that administer.
    pub const ADMINS: Who = Who(1 | 2);
    pub const ANY: Who = Who(1 | 2 | 4);

    /// Also a screen, which has a key for one dashboard and no user.
    pub const fn and_screens(self) -> Who {
        Who(self.0 | SCREENS)
    }

    pub fn has_screens(self) -> bool {
        self.0 & SCREENS != 0
    }

    /// For documentation.
    pub fn describe(self) -> &'static str {
        match Who(self.0 & !SCREENS) {
            Who::SYS_ADMIN => "For system administrators.",
            Who::TENANT_ADMIN => "For tenant administrators.",
            Who::CUSTOMER_USER => "For users of customers.",
            Who::TENANT => "For tenant administrators and users of customers.",
            Who::ADMINS => "For system and tenant administrators.",
            _ => "For everybody who is logged in.",
        }
    }

    pub fn has(self, authority: Authority) -> bool {
        let flag = match authority {
            Authority::SysAdmin => Who::SYS_ADMIN,
            Authority::TenantAdmin => Who::TENANT_ADMIN,
            Authority::CustomerUser => Who::CUSTOMER_USER,
        };
        self.0 & flag.0 != 0
    }
}

/// Bytes that the body of this request may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BodyLimit(pub usize);

impl Default for BodyLimit {
    fn default() -> BodyLimit {
        BodyLimit(64 * 1024)
    }
}

/// Who is asking; endpoints take it as an extension.
#[derive(Clone, Debug)]
pub struct Login {
    pub user: Arc<str>,
    pub role: Role,
}

/// For what outlives its request: whether who sent it still may.
pub struct Pass {
    app: App,
    need: Need,
    headers: HeaderMap,
}

impl Pass {
    pub fn is_good(&self) -> bool {
        let is_enough = |login: Login| {
            !self.app.admins().has_one_time_password(&login.user)
                && (self.need != Need::Admin || login.role == Role::Admin)
        };
        login(&self.app, &self.headers).is_ok_and(is_enough)
    }
}

/// `audited`: the operation, if it belongs into the audit log.
pub async fn guard(app: &App, need: Need, audited: Option<&'static str>, mut request: Request, next: Next) -> Response {
    if let Need::Person(who) = need {
        return crate::thingsboard::admit(app, who, request, next).await;
    }
    let is_open = matches!(need, Need::Nothing | Need::NoPerson) || (need == Need::Metrics && app.is_metrics_open());
    match login(app, request.headers()) {
        Err(problem) if !is_open => return problem.into_response(),
        // Who sends a key thinks that it is good.
        Err(problem) if need == Need::Metrics && bearer(request.headers()).is_some() => return problem.into_response(),
        Err(_) => {}
        Ok(login) if need != Need::OneTime && app.admins().has_one_time_password(&login.user) => {
            if !is_open {
                return Problem::password_change_required().into_response();
            }
        }
        Ok(login) if need == Need::Admin && login.role != Role::Admin => {
            let refused = Problem::forbidden("this needs a login with the role `admin`").into_response();
            if let Some(operation) = audited {
                let change = Change::new(operation, &login, &mut request);
                change.record(app, refused.status()).await;
            }
            return refused;
        }
        Ok(login) => {
            let change = audited.map(|operation| Change::new(operation, &login, &mut request));
            request.extensions_mut().insert(login);
            if request.headers().contains_key(header::UPGRADE) {
                let pass = Pass {
                    app: app.clone(),
                    need,
                    headers: request.headers().clone(),
                };
                request.extensions_mut().insert(Arc::new(pass));
            }
            return match change {
                None => next.run(request).await,
                Some(change) => to_its_end(app, change, request, next).await,
            };
        }
    }
    next.run(request).await
}

/// With all that belongs to it and the entry in the audit log, also when whoever asked has gone.
async fn to_its_end(app: &App, change: Change, request: Request, next: Next) -> Response {
    let app = app.clone();
    let work = tokio::spawn(async move {
        let response = next.run(request).await;
        change.record(&app, response.status()).await;
        response
    });
    let done = work.await;
    done.unwrap_or_else(|_| Problem::internal("the request failed unexpectedly").into_response())
}

/// A change on its way into the audit log.
struct Change {
    entry: AuditEntry,
    sent: SentBody,
}

impl Change {
    fn new(operation: &'static str, login: &Login, request: &mut Request) -> Change {
        let sent = SentBody::default();
        let address = request.extensions().get::<PeerAddress>().map(|peer| peer.0.to_string());
        let target = request.uri().path_and_query().map_or("", |target| target.as_str());
        let entry = AuditEntry {
            number: 0,
            at_unix_ms: unix_ms(SystemTime::now()),
            user: login.user.to_string(),
            address: address.unwrap_or_default(),
            operation: operation.to_owned(),
            method: request.method().to_string(),
            path: target.chars().take(TARGET_CHARACTERS_MAX).collect(),
            body: None,
            status: 0,
        };
        request.extensions_mut().insert(sent.clone());
        Change { entry, sent }
    }

    /// On disk when it returns.
    async fn record(mut self, app: &App, status: StatusCode) {
        self.entry.body = self.sent.take();
        self.entry.status = status.as_u16();
        let (own, entry) = (app.clone(), self.entry);
        // What fails there is in the ordinary log.
        let _ = app.block(move || own.audit().write(entry)).await;
    }
}

/// The role is looked up anew each time, so that a change of it holds at once.
fn login(app: &App, headers: &HeaderMap) -> Result<Login, Problem> {
    let token = bearer(headers)
        .ok_or_else(|| Problem::unauthorized("send `Authorization: Bearer <token>`; POST /api/v1/login gives one"))?;
    if ApiKeys::is_key(token) {
        let found = app.api_keys().find(token, unix_ms(SystemTime::now()));
        let (name, role) =
            found.ok_or_else(|| Problem::unauthorized("the API key is unknown, disabled or has expired"))?;
        let user = format!("{KEY_PREFIX}{name}").into();
        return Ok(Login { user, role });
    }
    let user = app.logins().find(token, Instant::now());
    let user = user.ok_or_else(|| Problem::unauthorized("the token is unknown or has expired"))?;
    let role = app
        .admins()
        .role(&user)
        .ok_or_else(|| Problem::unauthorized("this user is gone"))?;
    Ok(Login { user, role })
}

/// In the header, or where a page has no other place for it: among the sub-protocols that it offers for a WebSocket.
pub fn bearer(headers: &HeaderMap) -> Option<&str> {
    let Some(header) = headers.get(header::AUTHORIZATION) else {
        return sub_protocols(headers).find_map(|offered| offered.strip_prefix("bearer."));
    };
    let (scheme, token) = header.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}
