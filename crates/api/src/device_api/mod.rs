//! The HTTP device API of ThingsBoard. The access token in the path authenticates the device.
//!
//! Status codes and bodies are the same as ThingsBoard's. Errors have a body (the problem details of this API), where
//! ThingsBoard has none.

mod messages;
mod waiting;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use auth::{LoginAttempt, LoginKind};
use axum::extract::{FromRequest, FromRequestParts, Path, Request};
use axum::http::StatusCode;
use devices::{Devices, EntryKind, IngestEntry};
use platform::ids::DeviceId;
use serde::Deserialize;

use crate::app::{App, unix_ms};
use crate::body::read;
use crate::endpoint::Endpoint;
use crate::guard::BodyLimit;
use crate::problem::HttpProblem;
use crate::server::PeerAddress;

const TAG: &str = "Device API";

/// Limit of a body with telemetry or attributes.
pub(crate) const BODY_MAX: usize = 16 << 20;

/// Limit of a body with a call or its answer.
const RPC_BODY_MAX: usize = 65_536;

pub fn endpoints() -> Vec<Endpoint> {
    let mut all = messages::endpoints();
    all.extend(waiting::endpoints());
    all
}

fn platform_of(app: &App) -> Result<Arc<Devices>, HttpProblem> {
    let devices = app.config().devices.clone();
    devices.ok_or_else(|| HttpProblem::not_found("the device platform is disabled; set platform.enabled = true"))
}

/// The device whose token is in the path.
struct AuthenticatedDevice {
    devices: Arc<Devices>,
    device: DeviceId,
}

impl AuthenticatedDevice {
    /// Checks the tenant's limits for a request other than telemetry and attributes.
    fn check(&self, kind: EntryKind) -> Result<(), HttpProblem> {
        let entry = IngestEntry::new(kind, self.device.0, now_ms(), &[]);
        self.devices.check_limits(&entry).map_err(over_limit)
    }
}

fn now_ms() -> i64 {
    unix_ms(std::time::SystemTime::now()) as i64
}

#[derive(Deserialize)]
struct TokenPath {
    token: String,
}

impl FromRequestParts<App> for AuthenticatedDevice {
    type Rejection = HttpProblem;

    async fn from_request_parts(parts: &mut axum::http::request::Parts, app: &App) -> Result<Self, HttpProblem> {
        let devices = platform_of(app)?;
        let Path(TokenPath { token }) = Path::from_request_parts(parts, app)
            .await
            .map_err(|_| HttpProblem::bad_request("the path contains no access token"))?;
        let address = parts.extensions.get::<PeerAddress>().map(|peer| peer.0);
        let find = || devices.entities().directory().device_of_token(&token);
        let device = match address {
            Some(address) => check_token(app, address, &token, find)?,
            None => find(),
        };
        let device = device.ok_or_else(|| {
            HttpProblem::of_status(StatusCode::UNAUTHORIZED, "no device has this access token".to_owned())
        })?;
        devices.record_activity(device);
        Ok(AuthenticatedDevice { devices, device })
    }
}

/// Returns the device with a token, unless the address has sent too many wrong tokens.
fn check_token(
    app: &App,
    address: IpAddr,
    token: &str,
    find: impl FnOnce() -> Option<DeviceId>,
) -> Result<Option<DeviceId>, HttpProblem> {
    let attempt = LoginAttempt {
        kind: LoginKind::DeviceToken,
        address,
        user_name: None,
        secret: token.as_bytes(),
    };
    let limiter = app.login_limiter();
    limiter
        .admit(&attempt, Instant::now())
        .map_err(|wait| HttpProblem::too_many_failures("too many wrong access tokens from this address", wait))?;
    let device = find();
    match device {
        Some(_) => limiter.record_success(&attempt),
        None => limiter.record_failure(&attempt, Instant::now()),
    }
    Ok(device)
}

/// The raw body, independent of its content type.
struct RawPayload(axum::body::Bytes);

impl FromRequest<App> for RawPayload {
    type Rejection = HttpProblem;

    async fn from_request(request: Request, app: &App) -> Result<Self, HttpProblem> {
        let BodyLimit(limit) = request.extensions().get().copied().unwrap_or_default();
        read(request.into_body(), limit, app).await.map(RawPayload)
    }
}

fn full(error: devices::LogFull) -> HttpProblem {
    HttpProblem::unavailable(error.to_string())
}

/// ThingsBoard answers with status 500 instead.
fn over_limit(error: devices::OverLimit) -> HttpProblem {
    HttpProblem::of_status(StatusCode::TOO_MANY_REQUESTS, error.to_string())
}

fn refused(error: impl std::fmt::Display) -> HttpProblem {
    HttpProblem::bad_request(error.to_string())
}
