//! The HTTP device API of ThingsBoard. The access token in the path authenticates the device.
//!
//! Status codes and bodies are the same as ThingsBoard's. Errors have a body (the problem details of this API), where
//! ThingsBoard has none.

mod messages;
mod waiting;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use auth::{LoginAttempt, LoginKind, LoginLimiter};
use axum::extract::{FromRequest, FromRequestParts, Path, Request};
use axum::http::StatusCode;
use devices::{Devices, EntryKind, IngestEntry};
use platform::ids::DeviceId;
use serde::Deserialize;
use web::body::read;
use web::limits::BodyLimits;
use web::problem::HttpProblem;
use web::unix_ms;

use web::guard::PeerAddress;

type Endpoint = web::endpoint::Endpoint<Arc<DeviceServices>>;

const TAG: &str = "Device API";

/// Limit of a body with telemetry or attributes.
pub const BODY_MAX: usize = 16 << 20;

/// Limit of a body with a call or its answer.
const RPC_BODY_MAX: usize = 65_536;

/// The parts of the node that requests of devices use.
pub struct DeviceServices {
    /// `None`: the device platform is disabled.
    pub devices: Option<Arc<Devices>>,
    /// Limits wrong tokens and provisioning secrets.
    pub login_limiter: Arc<LoginLimiter>,
    /// Limit of the time from the header of a request to the start of its answer.
    pub request_timeout: Duration,
}

pub fn endpoints() -> Vec<Endpoint> {
    let mut all = messages::endpoints();
    all.extend(waiting::endpoints());
    all
}

/// Devices wait for their next call, their next attributes, or the answer of a rule chain.
pub(crate) fn may_wait(path: &str) -> bool {
    let of_device = path.strip_prefix("/api/v1/").and_then(|rest| rest.split_once('/'));
    of_device.is_some_and(|(_, rest)| ["rpc", "attributes/updates"].contains(&rest))
}

fn platform_of(services: &DeviceServices) -> Result<Arc<Devices>, HttpProblem> {
    let devices = services.devices.clone();
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

impl FromRequestParts<Arc<DeviceServices>> for AuthenticatedDevice {
    type Rejection = HttpProblem;

    async fn from_request_parts(
        parts: &mut axum::http::request::Parts,
        services: &Arc<DeviceServices>,
    ) -> Result<Self, HttpProblem> {
        let devices = platform_of(services)?;
        let Path(TokenPath { token }) = Path::from_request_parts(parts, services)
            .await
            .map_err(|_| HttpProblem::bad_request("the path contains no access token"))?;
        let address = parts.extensions.get::<PeerAddress>().map(|peer| peer.0);
        let find = || devices.entities().directory().device_of_token(&token);
        let device = match address {
            Some(address) => check_token(services, address, &token, find)?,
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
    services: &DeviceServices,
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
    let limiter = &services.login_limiter;
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

impl<S: Send + Sync> FromRequest<S> for RawPayload {
    type Rejection = HttpProblem;

    async fn from_request(request: Request, _: &S) -> Result<Self, HttpProblem> {
        let limits = BodyLimits::of(request.extensions());
        read(request.into_body(), limits).await.map(RawPayload)
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
