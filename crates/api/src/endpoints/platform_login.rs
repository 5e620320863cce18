//! The login of an administrator of the node to the device platform, without another password or code.

use std::sync::Arc;
use std::time::SystemTime;

use axum::extract::State;
use axum::http::StatusCode;
use axum::{Extension, Json};
use schemars::JsonSchema;
use serde::Serialize;
use web::admins::Admins;
use web::guard::{AuthenticatedUser, RequiredAccess};
use web::problem::HttpProblem;
use web::unix_ms;

use crate::app::Endpoint;
use crate::device_platform::DevicePlatform;

/// Tokens of the device platform, as from `POST /api/auth/login`.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PlatformTokens {
    /// Access token.
    pub token: String,
    pub refresh_token: String,
}

pub fn endpoints() -> Vec<Endpoint> {
    vec![
        Endpoint::post("/api/v1/platform-login", "log_in_to_platform", RequiredAccess::Admin, log_in)
            .tag("Login")
            .describe(
                "Log in to the device platform",
                "Returns tokens of a system administrator, for the console. They end with the login of the request, which must be that \
                 of a console user, not an API key.",
            )
            .fails(StatusCode::NOT_FOUND)
            .returns::<PlatformTokens>("The tokens."),
    ]
}

async fn log_in(
    State(admins): State<Arc<Admins>>,
    State(platform): State<Option<DevicePlatform>>,
    Extension(login): Extension<AuthenticatedUser>,
) -> Result<Json<PlatformTokens>, HttpProblem> {
    let platform = platform.ok_or_else(|| HttpProblem::not_found("the device platform is off (platform.enabled)"))?;
    let login_id = login.login_id.filter(|_| admins.role(&login.user).is_some());
    let login_id = login_id.ok_or_else(|| HttpProblem::forbidden("this needs the login of a console user"))?;
    let now_ms = i64::try_from(unix_ms(SystemTime::now())).unwrap_or(i64::MAX);
    let tokens = web::block(move || platform.tokens_of_administrator(&admins, (&*login.user, login_id), now_ms));
    let (token, refresh_token) = tokens.await??;
    Ok(Json(PlatformTokens { token, refresh_token }))
}
