//! Long polling: a device waits over HTTP for its next RPC call or attribute update. Also the calls in both directions.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use devices::{DownlinkKind, EntryKind};
use platform::decode::RpcRequest;
use schemars::JsonSchema;
use serde::Deserialize;
use web::guard::RequiredAccess;
use web::problem::HttpProblem;

use super::messages::{check_call, json};
use super::{AuthenticatedDevice, DeviceServices, Endpoint, RPC_BODY_MAX, RawPayload, TAG, full, refused};

/// How long a device waits without `timeout`.
const TIMEOUT_DEFAULT: Duration = Duration::from_secs(60);

/// Time reserved for the answer before the request's own limit.
const MARGIN: Duration = Duration::from_secs(1);

#[derive(Debug, Deserialize, JsonSchema)]
struct WaitQuery {
    /// Milliseconds, limited by the request timeout of this API.
    timeout: Option<u64>,
}

impl WaitQuery {
    fn time(&self, services: &DeviceServices) -> Duration {
        let asked = self
            .timeout
            .filter(|ms| *ms > 0)
            .map_or(TIMEOUT_DEFAULT, Duration::from_millis);
        asked.min(services.request_timeout.saturating_sub(MARGIN))
    }
}

#[derive(Deserialize)]
struct CallPath {
    id: i32,
}

fn of_device(endpoint: Endpoint) -> Endpoint {
    endpoint
        .tag(TAG)
        .path_parameter("token", "Access token of the device.")
        .fails(StatusCode::UNAUTHORIZED)
        .fails(StatusCode::TOO_MANY_REQUESTS)
}

pub fn endpoints() -> Vec<Endpoint> {
    vec![
        of_device(Endpoint::get(
            "/api/v1/{token}/attributes/updates",
            "wait_for_attributes",
            RequiredAccess::Nothing,
            wait_for_attributes,
        ))
        .describe(
            "Wait for shared attributes",
            "Answers with the next update of shared attributes, or with 408 if none arrives in time.",
        )
        .query::<WaitQuery>()
        .fails(StatusCode::REQUEST_TIMEOUT)
        .returns::<serde_json::Value>("The changed attributes; `deleted` lists deleted keys."),
        of_device(Endpoint::get(
            "/api/v1/{token}/rpc",
            "wait_for_call",
            RequiredAccess::Nothing,
            wait_for_call,
        ))
        .describe(
            "Wait for a call",
            "Answers with the next call of the server, or with 408 if none arrives in time.",
        )
        .query::<WaitQuery>()
        .fails(StatusCode::REQUEST_TIMEOUT)
        .returns::<serde_json::Value>("`id`, `method` and `params`."),
        of_device(Endpoint::post(
            "/api/v1/{token}/rpc/{id}",
            "answer_call",
            RequiredAccess::Nothing,
            answer_call,
        ))
        .describe("Answer a call", "The answer to the call with this ID, as JSON.")
        .path_parameter("id", "ID of the call.")
        .takes::<serde_json::Value>(RPC_BODY_MAX)
        .returns_empty("The answer was accepted."),
        of_device(Endpoint::post(
            "/api/v1/{token}/rpc",
            "call_server",
            RequiredAccess::Nothing,
            call_server,
        ))
        .describe(
            "Call the server",
            "A rule chain of the tenant answers; 408 if it does not answer in time.",
        )
        .takes::<serde_json::Value>(RPC_BODY_MAX)
        .fails(StatusCode::REQUEST_TIMEOUT)
        .returns::<serde_json::Value>("Answer of the rule chain."),
    ]
}

async fn wait_for_attributes(
    State(services): State<Arc<DeviceServices>>,
    caller: AuthenticatedDevice,
    Query(wait): Query<WaitQuery>,
) -> Result<Response, HttpProblem> {
    next(&services, &caller, DownlinkKind::Attributes, &wait).await
}

async fn wait_for_call(
    State(services): State<Arc<DeviceServices>>,
    caller: AuthenticatedDevice,
    Query(wait): Query<WaitQuery>,
) -> Result<Response, HttpProblem> {
    next(&services, &caller, DownlinkKind::RpcRequest, &wait).await
}

async fn next(
    services: &DeviceServices,
    caller: &AuthenticatedDevice,
    wanted: DownlinkKind,
    wait: &WaitQuery,
) -> Result<Response, HttpProblem> {
    let receiver = caller.devices.poll_next(caller.device, wanted);
    let receiver = receiver.ok_or_else(|| HttpProblem::unavailable("too many devices are waiting"))?;
    match tokio::time::timeout(wait.time(services), receiver).await {
        Ok(Ok(body)) => Ok(json(body)),
        Ok(Err(_)) => Err(HttpProblem::unavailable("the server is stopping")),
        Err(_) => Err(wait_timed_out()),
    }
}

fn wait_timed_out() -> HttpProblem {
    HttpProblem::of_status(
        StatusCode::REQUEST_TIMEOUT,
        "no call or update arrived in time".to_owned(),
    )
}

async fn answer_call(
    caller: AuthenticatedDevice,
    Path(CallPath { id }): Path<CallPath>,
    RawPayload(body): RawPayload,
) -> Result<StatusCode, HttpProblem> {
    RpcRequest::check_response(&body).map_err(refused)?;
    caller.check(EntryKind::RpcResponse)?;
    let AuthenticatedDevice { devices, device } = caller;
    // The answer may continue in a rule chain, which may wait for a disk.
    web::block(move || devices.handle_response(device, id, &body)).await?;
    Ok(StatusCode::OK)
}

async fn call_server(
    State(services): State<Arc<DeviceServices>>,
    caller: AuthenticatedDevice,
    RawPayload(body): RawPayload,
) -> Result<Response, HttpProblem> {
    check_call(&body)?;
    caller.check(EntryKind::RpcRequest)?;
    let timeout = WaitQuery { timeout: None }.time(&services);
    match caller.devices.ask(caller.device, &body, timeout).await.map_err(full)? {
        Some(answer) => Ok(json(answer)),
        None => Ok(wait_timed_out().into_response()),
    }
}
