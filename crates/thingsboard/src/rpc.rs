//! RPC calls to devices: one-way, two-way and persistent. The two paths differ in the status for a device that does not
//! answer.

use axum::Json;
use axum::extract::{FromRequestParts, Path, Request, State};
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Response};
use devices::{Persistence, RpcError};
use platform::PageData;
use platform::decode::compact;
use platform::ids::{DeviceId, RpcId, Uuid};
use platform::model::{Device, Rpc, RpcStatus};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;
use web::body;
use web::limits::BodyLimits;

use super::admission::for_users;
use super::authorities::Authorities;
use super::call::{ApiCall, CallServices, Verb, missing};
use super::failure::{ThingsboardError, ThingsboardErrorCode};
use super::lists::list_query;
use super::operation::{self, FromBody, FromParameter, HandlerResult, JsonBody, NoQuery};
use super::operation_log::log_operation;
use super::principal::Principal;
use crate::services::Endpoint;

const TAG: &str = "RPC";
/// ThingsBoard's limit of a device message.
const BODY_MAX: usize = 64 * 1024;
const TIMEOUT_MS: i64 = 10_000;
/// Shorter timeouts are raised to this value, as in ThingsBoard.
const TIMEOUT_MS_MIN: i64 = 5_000;
const TIMEOUT_MS_MAX: i64 = 300_000;

pub fn endpoints() -> Vec<Endpoint> {
    let call = |path, id, name: &'static str, description| {
        let handler = move |state: State<CallServices>, request: Request| async move {
            let kind = RpcOptions {
                is_one_way: path_is_one_way(path),
                is_old: path_is_old(path),
            };
            call_device(state, request, kind)
                .await
                .unwrap_or_else(ThingsboardError::into_response)
        };
        for_users(Method::POST, path, id, Authorities::ANY, handler)
            .tag(TAG)
            .describe(name, description)
            .path_parameter("deviceId", "The device.")
            .takes_limited_json(BODY_MAX)
    };
    const ONE_WAY: &str = "The call passes the device's rule chain. The answer is sent after the call was sent to the device. 504 if, before the \
         timeout, the device is not connected or no rule node calls it. A persistent call returns its rpcId after it is stored.";
    const TWO_WAY: &str = "The call passes the device's rule chain. Returns the device's answer. 504 if, before the timeout, the device is not \
         connected or does not answer, or no rule node calls it. A persistent call returns its rpcId after it is stored.";
    const TWO_WAY_OLD: &str = "Like the newer path, but 409 if the device is not connected, and 408 if it does not answer or is not called before the timeout.";
    vec![
        call("/api/rpc/oneway/{deviceId}", "call_one_way", "Call a device", ONE_WAY)
            .fails(StatusCode::GATEWAY_TIMEOUT)
            .returns_empty("The call was sent."),
        call(
            "/api/rpc/twoway/{deviceId}",
            "call_two_way",
            "Call a device and wait for its answer",
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
        .returns_empty("The call was sent."),
        call(
            "/api/plugins/rpc/twoway/{deviceId}",
            "call_two_way_v1",
            "Call a device and wait for its answer",
            TWO_WAY_OLD,
        )
        .fails(StatusCode::CONFLICT)
        .returns_json("The device's answer."),
        operation::get("/api/rpc/persistent/{rpcId}", "get_rpc", Authorities::TENANT, get)
            .tag(TAG)
            .describe("Read a persistent call", "Its status, and the device's answer.")
            .fails(StatusCode::NOT_FOUND)
            .returns_json("The call."),
        operation::delete(
            "/api/rpc/persistent/{rpcId}",
            "delete_rpc",
            Authorities::TENANT_ADMIN,
            delete,
        )
        .tag(TAG)
        .describe(
            "Delete a persistent call",
            "A call that the device has not received yet will not be sent.",
        )
        .fails(StatusCode::NOT_FOUND)
        .returns_empty("Deleted."),
        operation::get(
            "/api/rpc/persistent/device/{deviceId}",
            "list_rpcs",
            Authorities::TENANT,
            list,
        )
        .tag(TAG)
        .describe(
            "List persistent calls of a device",
            "The last 1,000 calls of a device are stored.",
        )
        .fails(StatusCode::NOT_FOUND)
        .returns_json("A page of calls."),
    ]
}

list_query!(RpcsQuery {
    /// QUEUED, SENT, DELIVERED, SUCCESSFUL, TIMEOUT, EXPIRED or FAILED. Default: all.
    rpc_status: Option<String>,
});

fn get(call: &ApiCall, id: Uuid, _: NoQuery, (): ()) -> HandlerResult<Rpc> {
    Ok(Json(stored_call(call, id)?))
}

fn delete(call: &ApiCall, id: Uuid, _: NoQuery, (): ()) -> Result<(), ThingsboardError> {
    let rpc = stored_call(call, id)?;
    Ok(call.platform_access.devices().delete_call(&rpc)?)
}

/// Returns a call, if the user may call the device.
fn stored_call(call: &ApiCall, id: Uuid) -> Result<Rpc, ThingsboardError> {
    let not_found = || missing(RpcId(id).entity());
    let rpc: Rpc = call.entities().find(id)?.ok_or_else(not_found)?;
    if rpc.tenant_id != call.tenant() {
        return Err(not_found());
    }
    call.entity::<Device>(rpc.device_id.0, Verb::Rpc)?;
    Ok(rpc)
}

fn list(call: &ApiCall, device: Uuid, query: RpcsQuery, (): ()) -> HandlerResult<PageData<Rpc>> {
    let status = query.rpc_status.as_deref().filter(|name| !name.is_empty()).map(|name| {
        let status = RpcStatus::parse(name).filter(|status| *status != RpcStatus::Deleted);
        status.ok_or_else(|| ThingsboardError::bad_request(format!("RpcStatus: {name}")))
    });
    let status = status.transpose()?;
    call.entity::<Device>(device, Verb::Rpc)?;
    Ok(Json(call.entities().rpcs(DeviceId(device), status, &query.link()?)?))
}

fn path_is_one_way(path: &str) -> bool {
    path.contains("/oneway/")
}

fn path_is_old(path: &str) -> bool {
    path.starts_with("/api/plugins/")
}

/// Calls wait for their device.
pub fn may_wait(path: &str) -> bool {
    let rest = path.strip_prefix("/api/plugins").or_else(|| path.strip_prefix("/api"));
    rest.is_some_and(|rest| rest.starts_with("/rpc/oneway/") || rest.starts_with("/rpc/twoway/"))
}

#[derive(Clone, Copy)]
struct RpcOptions {
    is_one_way: bool,
    is_old: bool,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct CallBody {
    method: String,
    params: Option<Box<RawValue>>,
    timeout: Option<i64>,
    expiration_time: Option<i64>,
    #[serde(default)]
    persistent: Option<bool>,
    retries: Option<u32>,
    #[serde(default)]
    additional_info: Value,
}

impl CallBody {
    /// Returns the call, and the time until which the request waits for an answer.
    fn call(self, is_one_way: bool, now_ms: i64) -> (devices::DeviceRpc, i64) {
        let is_persistent = self.persistent == Some(true);
        let timeout_ms = self.timeout.unwrap_or(TIMEOUT_MS).max(TIMEOUT_MS_MIN);
        let expires_ms = self.expiration_time.unwrap_or(now_ms.saturating_add(timeout_ms));
        // Limits the time of a request. A persistent call may expire later.
        let latest_ms = match is_persistent {
            true => i64::MAX,
            false => now_ms.saturating_add(TIMEOUT_MS_MAX),
        };
        let expires_ms = expires_ms.min(latest_ms);
        let answer_by_ms = match is_persistent {
            true => now_ms.saturating_add(timeout_ms.min(TIMEOUT_MS_MAX)),
            false => expires_ms,
        };
        let call = devices::DeviceRpc {
            method: self.method,
            params: self
                .params
                .map_or_else(|| "null".to_owned(), |params| compact(params.get())),
            is_one_way,
            expires_ms,
            persistence: is_persistent.then_some(Persistence {
                retries: self.retries,
                additional_info: self.additional_info,
            }),
        };
        (call, answer_by_ms)
    }
}

async fn call_device(
    State(services): State<CallServices>,
    request: Request,
    kind: RpcOptions,
) -> Result<Response, ThingsboardError> {
    let (mut parts, request_body) = request.into_parts();
    let Path(id) = Path::<String>::from_request_parts(&mut parts, &())
        .await
        .map_err(|rejection| ThingsboardError::bad_request(rejection.body_text()))?;
    let id = Uuid::from_parameter(&id)?;
    let principal = parts
        .extensions
        .remove::<Principal>()
        .ok_or_else(ThingsboardError::unauthorized)?;
    let bytes = body::read(request_body, BodyLimits::of(&parts.extensions)).await?;
    let JsonBody(wanted) = JsonBody::<CallBody>::from_body(&bytes)?;
    let call = services.call(principal, &parts.headers);
    let (rpc, answer_by_ms) = wanted.call(kind.is_one_way, call.now_ms);
    let turn = call.wait_for_thread().await;
    let begun = web::block(move || {
        let _turn = turn;
        let called = call
            .entity::<Device>(id, Verb::Rpc)
            .map(|_| call.platform_access.devices().call_device(DeviceId(id), &rpc));
        let parameters = [id.to_string()];
        log_operation(
            &call,
            &Method::POST,
            "/api/rpc/{deviceId}",
            &parameters,
            called.as_ref().err(),
        );
        called
    });
    match begun.await??.answer(answer_by_ms).await {
        Ok(None) => Ok(StatusCode::OK.into_response()),
        Ok(Some(answer)) => {
            Ok(Json(serde_json::from_str::<Value>(&answer).unwrap_or(Value::String(answer))).into_response())
        }
        Err(error) => Err(rpc_error(error, kind)),
    }
}

fn rpc_error(error: RpcError, kind: RpcOptions) -> ThingsboardError {
    let status = match error {
        RpcError::NoActiveConnection if kind.is_old => StatusCode::CONFLICT,
        RpcError::Timeout | RpcError::NotSent if kind.is_old => StatusCode::REQUEST_TIMEOUT,
        RpcError::NoActiveConnection | RpcError::Timeout | RpcError::NotSent => StatusCode::GATEWAY_TIMEOUT,
        RpcError::TooMany => StatusCode::TOO_MANY_REQUESTS,
        RpcError::NotStored | RpcError::Stopped => StatusCode::SERVICE_UNAVAILABLE,
    };
    let code = match error {
        RpcError::TooMany => ThingsboardErrorCode::TooManyRequests,
        _ => ThingsboardErrorCode::General,
    };
    ThingsboardError::new(code, error.to_string()).with_status(status)
}
