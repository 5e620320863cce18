//! The device interface over HTTP, as ThingsBoard has it: the token in the path is all that a device logs in with.
//!
//! Answers are the same statuses and bodies; an error has a body here, the problem of all of this API, where ThingsBoard has none.

mod messages;
mod waiting;

use std::sync::Arc;

use axum::extract::{FromRequest, FromRequestParts, Path, Request};
use axum::http::StatusCode;
use devices::{Devices, Entry, Kind};
use platform::ids::DeviceId;
use serde::Deserialize;

use crate::app::{App, unix_ms};
use crate::body::read;
use crate::endpoint::Endpoint;
use crate::guard::BodyLimit;
use crate::problem::Problem;

const TAG: &str = "Device API";

/// Longest body of telemetry and attributes.
const BODY_MAX: usize = 16 << 20;

/// Longest body of calls and their answers.
const RPC_BODY_MAX: usize = 65_536;

pub fn endpoints() -> Vec<Endpoint> {
    let mut all = messages::endpoints();
    all.extend(waiting::endpoints());
    all
}

fn platform_of(app: &App) -> Result<Arc<Devices>, Problem> {
    let devices = app.config().devices.clone();
    devices.ok_or_else(|| Problem::not_found("the device platform is off; platform.enabled turns it on"))
}

/// The device whose token is in the path.
struct Caller {
    devices: Arc<Devices>,
    device: DeviceId,
}

impl Caller {
    /// Something else than telemetry and attributes, by the limits of the tenant.
    fn check(&self, kind: Kind) -> Result<(), Problem> {
        let entry = Entry::new(kind, self.device.0, now_ms(), &[]);
        self.devices.check_limits(&entry).map_err(over_limit)
    }
}

fn now_ms() -> i64 {
    unix_ms(std::time::SystemTime::now()) as i64
}

#[derive(Deserialize)]
struct TokenOf {
    token: String,
}

impl FromRequestParts<App> for Caller {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut axum::http::request::Parts, app: &App) -> Result<Self, Problem> {
        let devices = platform_of(app)?;
        let Path(TokenOf { token }) = Path::from_request_parts(parts, app)
            .await
            .map_err(|_| Problem::bad_request("the path has no token"))?;
        let device = devices.entities().directory().device_of_token(&token);
        let device = device
            .ok_or_else(|| Problem::of_status(StatusCode::UNAUTHORIZED, "no device has this token".to_owned()))?;
        devices.heard(device);
        Ok(Caller { devices, device })
    }
}

/// A body as it came, whatever its content type says.
struct Raw(axum::body::Bytes);

impl FromRequest<App> for Raw {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &App) -> Result<Self, Problem> {
        let BodyLimit(limit) = request.extensions().get().copied().unwrap_or_default();
        read(request.into_body(), limit, app).await.map(Raw)
    }
}

fn full(error: devices::Full) -> Problem {
    Problem::unavailable(error.to_string())
}

/// ThingsBoard's status is 500.
fn over_limit(error: devices::OverLimit) -> Problem {
    Problem::of_status(StatusCode::TOO_MANY_REQUESTS, error.to_string())
}

fn refused(error: impl std::fmt::Display) -> Problem {
    Problem::bad_request(error.to_string())
}
