//! Calls to devices: one-way and two-way, and those that are kept. The two paths differ in the status that a device has which does not
//! answer.

use axum::Json;
use axum::extract::{FromRequestParts, Path, Request, State};
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Response};
use devices::{CallError, Keeping};
use platform::Page;
use platform::decode::compact;
use platform::ids::{DeviceId, RpcId, Uuid};
use platform::model::{Device, Rpc, RpcStatus};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::audit_logs;
use super::call::{Call, Person, Verb, missing};
use super::failure::{Code, Failure};
use super::lists::list_query;
use super::operation::{self, Body, FromBody, FromParameter, NoQuery, Outcome};
use crate::app::App;
use crate::body;
use crate::endpoint::Endpoint;
use crate::guard::{Need, Who};

const TAG: &str = "RPC";
/// ThingsBoard's limit of a device's messages.
const BODY_MAX: usize = 64 * 1024;
const TIMEOUT_MS: i64 = 10_000;
/// Shorter ones are as long as this, as ThingsBoard has it.
const TIMEOUT_MS_MIN: i64 = 5_000;
const TIMEOUT_MS_MAX: i64 = 300_000;

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
    const ONE_WAY: &str = "Goes along the device's rule chain. Answered when the call is on its way to the device, or 504 if the device is \
         not connected, or no rule node has called it, before the timeout. A persistent call is answered with its rpcId when it is kept.";
    const TWO_WAY: &str = "Goes along the device's rule chain. Answered with what the device answers, or 504 if it is not connected, does \
         not answer, or no rule node has called it, before the timeout. A persistent call is answered with its rpcId when it is kept.";
    const TWO_WAY_OLD: &str = "As the newer path, but 409 if the device is not connected, and 408 if it does not answer or is not called before the timeout.";
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
        operation::get("/api/rpc/persistent/{rpcId}", "get_rpc", Who::TENANT, get)
            .tag(TAG)
            .says("A persistent call", "How far it is, and what the device answered.")
            .fails(StatusCode::NOT_FOUND)
            .returns_json("The call."),
        operation::delete("/api/rpc/persistent/{rpcId}", "delete_rpc", Who::TENANT_ADMIN, delete)
            .tag(TAG)
            .says(
                "Delete a persistent call",
                "One that the device has not got is not sent to it any more.",
            )
            .fails(StatusCode::NOT_FOUND)
            .returns_empty("Deleted."),
        operation::get("/api/rpc/persistent/device/{deviceId}", "list_rpcs", Who::TENANT, list)
            .tag(TAG)
            .says(
                "Persistent calls of a device",
                "Page by page. The last 1,000 of a device are kept.",
            )
            .fails(StatusCode::NOT_FOUND)
            .returns_json("A page of calls."),
    ]
}

list_query!(RpcsQuery {
    /// QUEUED, SENT, DELIVERED, SUCCESSFUL, TIMEOUT, EXPIRED or FAILED; all without it.
    rpc_status: Option<String>,
});

fn get(call: &Call, id: Uuid, _: NoQuery, (): ()) -> Outcome<Rpc> {
    Ok(Json(kept(call, id)?))
}

fn delete(call: &Call, id: Uuid, _: NoQuery, (): ()) -> Result<(), Failure> {
    let rpc = kept(call, id)?;
    Ok(call.world.devices().delete_call(&rpc)?)
}

/// Whoever may call the device sees its calls.
fn kept(call: &Call, id: Uuid) -> Result<Rpc, Failure> {
    let not_found = || missing(RpcId(id).entity());
    let rpc: Rpc = call.entities().find(id)?.ok_or_else(not_found)?;
    if rpc.tenant_id != call.tenant() {
        return Err(not_found());
    }
    call.entity::<Device>(rpc.device_id.0, Verb::Rpc)?;
    Ok(rpc)
}

fn list(call: &Call, device: Uuid, query: RpcsQuery, (): ()) -> Outcome<Page<Rpc>> {
    let status = query.rpc_status.as_deref().filter(|name| !name.is_empty()).map(|name| {
        let status = RpcStatus::parse(name).filter(|status| *status != RpcStatus::Deleted);
        status.ok_or_else(|| Failure::bad_request(format!("RpcStatus: {name}")))
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

/// Calls, which wait for their device.
pub fn is_waiting(path: &str) -> bool {
    let rest = path.strip_prefix("/api/plugins").or_else(|| path.strip_prefix("/api"));
    rest.is_some_and(|rest| rest.starts_with("/rpc/oneway/") || rest.starts_with("/rpc/twoway/"))
}

#[derive(Clone, Copy)]
struct Kind {
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
    /// And until when an answer is waited for.
    fn call(self, is_one_way: bool, now_ms: i64) -> (devices::Call, i64) {
        let is_persistent = self.persistent == Some(true);
        let timeout_ms = self.timeout.unwrap_or(TIMEOUT_MS).max(TIMEOUT_MS_MIN);
        let expires_ms = self.expiration_time.unwrap_or(now_ms.saturating_add(timeout_ms));
        // A request does not wait for longer; what is kept may.
        let latest_ms = match is_persistent {
            true => i64::MAX,
            false => now_ms.saturating_add(TIMEOUT_MS_MAX),
        };
        let expires_ms = expires_ms.min(latest_ms);
        let answer_by_ms = match is_persistent {
            true => now_ms.saturating_add(timeout_ms.min(TIMEOUT_MS_MAX)),
            false => expires_ms,
        };
        let call = devices::Call {
            method: self.method,
            params: self
                .params
                .map_or_else(|| "null".to_owned(), |params| compact(params.get())),
            is_one_way,
            expires_ms,
            keeping: is_persistent.then_some(Keeping {
                retries: self.retries,
                additional_info: self.additional_info,
            }),
        };
        (call, answer_by_ms)
    }
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
    let call = Call::new(&app, person, &parts.headers)?;
    let (rpc, answer_by_ms) = wanted.call(kind.is_one_way, call.now_ms);
    let turn = call.turn().await;
    let begun = app.block(move || {
        let _turn = turn;
        let called = call
            .entity::<Device>(id, Verb::Rpc)
            .map(|_| call.world.devices().call_device(DeviceId(id), &rpc));
        let parameters = [id.to_string()];
        audit_logs::note(
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
        Err(error) => Err(explain(error, kind)),
    }
}

fn explain(error: CallError, kind: Kind) -> Failure {
    let status = match error {
        CallError::NoActiveConnection if kind.is_old => StatusCode::CONFLICT,
        CallError::Timeout | CallError::NotCalled if kind.is_old => StatusCode::REQUEST_TIMEOUT,
        CallError::NoActiveConnection | CallError::Timeout | CallError::NotCalled => StatusCode::GATEWAY_TIMEOUT,
        CallError::TooMany => StatusCode::TOO_MANY_REQUESTS,
        CallError::NotKept | CallError::Stopped => StatusCode::SERVICE_UNAVAILABLE,
    };
    let code = match error {
        CallError::TooMany => Code::TooManyRequests,
        _ => Code::General,
    };
    Failure::new(code, error.to_string()).with_status(status)
}
