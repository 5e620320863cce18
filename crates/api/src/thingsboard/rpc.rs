//! Calls to devices: one-way and two-way. The two paths differ in the status that a device has which does not answer.

use std::time::Duration;

use axum::Json;
use axum::extract::{FromRequestParts, Path, Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use devices::CallError;
use platform::ids::{DeviceId, Uuid};
use platform::model::Device;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::call::{Call, Person, Verb};
use super::failure::{Code, Failure};
use super::operation::{Body, FromBody, FromParameter};
use crate::app::App;
use crate::body;
use crate::endpoint::Endpoint;
use crate::guard::{Need, Who};

const TAG: &str = "RPC";
/// ThingsBoard's limit of a device's messages.
const BODY_MAX: usize = 64 * 1024;
const TIMEOUT_MS: u64 = 10_000;
/// Shorter ones are as long as this, as ThingsBoard has it.
const TIMEOUT_MS_MIN: u64 = 5_000;
const TIMEOUT_MS_MAX: u64 = 300_000;

pub fn endpoints() -> Vec<Endpoint> {
    let call = |path, id, name: &'static str, description| {
        let handler = move |state: State<App>, request: Request| async move {
            let kind = Kind {
                is_one_way: path_is_one_way(path),
                is_old: path_is_old(path),
            };
            call_device(state, request, kind)
                .await
                .unwrap_or_else(Failure::into_response)
        };
        Endpoint::of(axum::http::Method::POST, path, id, handler)
            .tag(TAG)
            .says(name, description)
            .needs(Need::Person(Who::ANY))
            .path_parameter("deviceId", "The device.")
            .takes_limited_json(BODY_MAX)
    };
    const ONE_WAY: &str = "Answered when the call is on its way.";
    const TWO_WAY: &str =
        "Answered with what the device answers, or 504 if it is not connected or does not answer in time.";
    const TWO_WAY_OLD: &str =
        "As the newer path, but 409 if the device is not connected and 408 if it does not answer in time.";
    vec![
        call("/api/rpc/oneway/{deviceId}", "call_one_way", "Call a device", ONE_WAY)
            .fails(StatusCode::GATEWAY_TIMEOUT)
            .returns_empty("On its way."),
        call(
            "/api/rpc/twoway/{deviceId}",
            "call_two_way",
            "Call a device and wait",
            TWO_WAY,
        )
        .fails(StatusCode::GATEWAY_TIMEOUT)
        .returns_json("The device's answer."),
        call(
            "/api/plugins/rpc/oneway/{deviceId}",
            "call_one_way_v1",
            "Call a device",
            ONE_WAY,
        )
        .fails(StatusCode::CONFLICT)
        .returns_empty("On its way."),
        call(
            "/api/plugins/rpc/twoway/{deviceId}",
            "call_two_way_v1",
            "Call a device and wait",
            TWO_WAY_OLD,
        )
        .fails(StatusCode::CONFLICT)
        .returns_json("The device's answer."),
    ]
}

fn path_is_one_way(path: &str) -> bool {
    path.contains("/oneway/")
}

fn path_is_old(path: &str) -> bool {
    path.starts_with("/api/plugins/")
}

/// Whether a request may wait for long: these are no work for the server.
pub fn is_waiting(path: &str) -> bool {
    path.starts_with("/api/rpc/twoway/") || path.starts_with("/api/plugins/rpc/twoway/")
}

#[derive(Clone, Copy)]
struct Kind {
    is_one_way: bool,
    is_old: bool,
}

#[derive(Deserialize)]
struct CallBody {
    method: String,
    params: Option<Box<RawValue>>,
    timeout: Option<u64>,
    #[serde(default)]
    persistent: Option<bool>,
}

async fn call_device(State(app): State<App>, request: Request, kind: Kind) -> Result<Response, Failure> {
    let (mut parts, request_body) = request.into_parts();
    let Path(id) = Path::<String>::from_request_parts(&mut parts, &())
        .await
        .map_err(|rejection| Failure::bad_request(rejection.body_text()))?;
    let id = Uuid::from_parameter(&id)?;
    let person = parts.extensions.remove::<Person>().ok_or_else(Failure::unauthorized)?;
    let bytes = body::read(request_body, BODY_MAX, &app).await?;
    let Body(wanted) = Body::<CallBody>::from_body(&bytes)?;
    if wanted.persistent == Some(true) {
        return Err(Failure::bad_request("Persistent RPC is not supported"));
    }
    let call = Call::new(&app, person, &parts.headers)?;
    let world = call.world.clone();
    app.block(move || call.entity::<Device>(id, Verb::Rpc).map(drop))
        .await??;
    let timeout_ms = wanted
        .timeout
        .unwrap_or(TIMEOUT_MS)
        .clamp(TIMEOUT_MS_MIN, TIMEOUT_MS_MAX);
    let rpc = devices::Call {
        method: wanted.method,
        params: wanted
            .params
            .map_or_else(|| "null".to_owned(), |params| params.get().to_owned()),
        is_one_way: kind.is_one_way,
        timeout: Duration::from_millis(timeout_ms),
    };
    match world.devices().call_device(DeviceId(id), &rpc).await {
        Ok(None) => Ok(StatusCode::OK.into_response()),
        Ok(Some(answer)) => {
            Ok(Json(serde_json::from_str::<Value>(&answer).unwrap_or(Value::String(answer))).into_response())
        }
        Err(error) => Err(explain(error, kind)),
    }
}

fn explain(error: CallError, kind: Kind) -> Failure {
    let status = match error {
        CallError::NoActiveConnection if kind.is_old => StatusCode::CONFLICT,
        CallError::Timeout if kind.is_old => StatusCode::REQUEST_TIMEOUT,
        CallError::NoActiveConnection | CallError::Timeout => StatusCode::GATEWAY_TIMEOUT,
        CallError::TooMany => StatusCode::TOO_MANY_REQUESTS,
        CallError::Stopped => StatusCode::SERVICE_UNAVAILABLE,
    };
    let code = match error {
        CallError::TooMany => Code::TooManyRequests,
        _ => Code::General,
    };
    Failure::new(code, error.to_string()).with_status(status)
}
