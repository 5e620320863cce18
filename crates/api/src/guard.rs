//! Before an endpoint runs: who is asking, and may they.

use std::sync::Arc;
use std::time::Instant;

use axum::extract::Request;
use axum::http::{HeaderMap, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use platform::model::Authority;

use crate::admins::Role;
use crate::app::App;
use crate::problem::Problem;
use crate::websocket::sub_protocols;

/// What an endpoint asks of the one who calls it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    Nothing,
    /// A login, unless metrics are open.
    Metrics,
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

impl Who {
    pub const SYS_ADMIN: Who = Who(1);
    pub const TENANT_ADMIN: Who = Who(2);
    pub const CUSTOMER_USER: Who = Who(4);
    /// Those that have devices.
    pub const TENANT: Who = Who(2 | 4);
    /// Those that administer.
    pub const ADMINS: Who = Who(1 | 2);
    pub const ANY: Who = Who(1 | 2 | 4);

    /// For documentation.
    pub fn describe(self) -> &'static str {
        match self {
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

pub async fn guard(app: &App, need: Need, mut request: Request, next: Next) -> Response {
    if let Need::Person(who) = need {
        return crate::thingsboard::admit(app, who, request, next).await;
    }
    let is_open = matches!(need, Need::Nothing | Need::NoPerson) || (need == Need::Metrics && app.is_metrics_open());
    match login(app, request.headers()) {
        Err(problem) if !is_open => return problem.into_response(),
        Err(_) => {}
        Ok(login) if need == Need::Admin && login.role != Role::Admin => {
            return Problem::forbidden("this needs a login with the role `admin`").into_response();
        }
        Ok(login) => {
            request.extensions_mut().insert(login);
        }
    }
    next.run(request).await
}

/// The role is looked up anew each time, so that a change of it holds at once.
fn login(app: &App, headers: &HeaderMap) -> Result<Login, Problem> {
    let token = bearer(headers)
        .ok_or_else(|| Problem::unauthorized("send `Authorization: Bearer <token>`; POST /api/v1/login gives one"))?;
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
