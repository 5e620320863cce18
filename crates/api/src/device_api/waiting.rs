//! Long polling: a device waits over HTTP for its next call or for a change of its attributes; and calls in both directions.

use std::time::Duration;

use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use devices::{Kind, Wanted};
use platform::decode::RpcRequest;
use schemars::JsonSchema;
use serde::Deserialize;

use super::messages::{check_call, json};
use super::{Caller, RPC_BODY_MAX, Raw, TAG, full, refused};
use crate::app::App;
use crate::endpoint::Endpoint;
use crate::guard::Need;
use crate::problem::Problem;

/// How long a device waits if it does not say.
const TIMEOUT_DEFAULT: Duration = Duration::from_secs(60);

/// What is left of the time for a request to say that there was nothing.
const MARGIN: Duration = Duration::from_secs(1);

#[derive(Debug, Deserialize, JsonSchema)]
struct Wait {
    /// Milliseconds; no longer than this API lets requests take.
    timeout: Option<u64>,
}

impl Wait {
    fn time(&self, app: &App) -> Duration {
        let asked = self
            .timeout
            .filter(|ms| *ms > 0)
            .map_or(TIMEOUT_DEFAULT, Duration::from_millis);
        asked.min(app.config().limits.request_timeout.saturating_sub(MARGIN))
    }
}

#[derive(Deserialize)]
struct CallOf {
    id: i32,
}

fn of_device(endpoint: Endpoint) -> Endpoint {
    endpoint
        .tag(TAG)
        .needs(Need::Nothing)
        .path_parameter("token", "Access token of the device.")
        .fails(StatusCode::UNAUTHORIZED)
        .fails(StatusCode::TOO_MANY_REQUESTS)
}

pub fn endpoints() -> Vec<Endpoint> {
    vec![
        of_device(Endpoint::get(
            "/api/v1/{token}/attributes/updates",
            "wait_for_attributes",
            wait_for_attributes,
        ))
        .says(
            "Wait for shared attributes",
            "Answers with the next change of shared attributes, or with 408 when none came in time.",
        )
        .query::<Wait>()
        .fails(StatusCode::REQUEST_TIMEOUT)
        .returns::<serde_json::Value>("What has changed; `deleted` has keys that are gone."),
        of_device(Endpoint::get("/api/v1/{token}/rpc", "wait_for_call", wait_for_call))
            .says(
                "Wait for a call",
                "Answers with the next call of the server, or with 408 when none came in time.",
            )
            .query::<Wait>()
            .fails(StatusCode::REQUEST_TIMEOUT)
            .returns::<serde_json::Value>("`id`, `method` and `params`."),
        of_device(Endpoint::post("/api/v1/{token}/rpc/{id}", "answer_call", answer_call))
            .says("Answer a call", "The answer to the call of this number, as JSON.")
            .path_parameter("id", "Number of the call.")
            .takes::<serde_json::Value>(RPC_BODY_MAX)
            .returns_empty("It is on its way."),
        of_device(Endpoint::post("/api/v1/{token}/rpc", "call_server", call_server))
            .says(
                "Call the server",
                "A rule chain of the tenant answers; 408 when it does not in time.",
            )
            .takes::<serde_json::Value>(RPC_BODY_MAX)
            .fails(StatusCode::REQUEST_TIMEOUT)
            .returns::<serde_json::Value>("What the rule chain answers."),
    ]
}

async fn wait_for_attributes(
    State(app): State<App>,
    caller: Caller,
    Query(wait): Query<Wait>,
) -> Result<Response, Problem> {
    next(&app, &caller, Wanted::Attributes, &wait).await
}

async fn wait_for_call(State(app): State<App>, caller: Caller, Query(wait): Query<Wait>) -> Result<Response, Problem> {
    next(&app, &caller, Wanted::RpcRequest, &wait).await
}

async fn next(app: &App, caller: &Caller, wanted: Wanted, wait: &Wait) -> Result<Response, Problem> {
    let receiver = caller.devices.next_for(caller.device, wanted);
    let receiver = receiver.ok_or_else(|| Problem::unavailable("too many devices wait"))?;
    match tokio::time::timeout(wait.time(app), receiver).await {
        Ok(Ok(body)) => Ok(json(body)),
        Ok(Err(_)) => Err(Problem::unavailable("the server stops")),
        Err(_) => Err(nothing_came()),
    }
}

fn nothing_came() -> Problem {
    Problem::of_status(StatusCode::REQUEST_TIMEOUT, "nothing came in time".to_owned())
}

async fn answer_call(
    State(app): State<App>,
    caller: Caller,
    Path(CallOf { id }): Path<CallOf>,
    Raw(body): Raw,
) -> Result<StatusCode, Problem> {
    RpcRequest::check_response(&body).map_err(refused)?;
    caller.check(Kind::RpcResponse)?;
    let Caller { devices, device } = caller;
    // A rule chain may go on with it, which may wait for a disk.
    app.block(move || devices.answered(device, id, &body)).await?;
    Ok(StatusCode::OK)
}

async fn call_server(State(app): State<App>, caller: Caller, Raw(body): Raw) -> Result<Response, Problem> {
    check_call(&body)?;
    caller.check(Kind::RpcRequest)?;
    let timeout = Wait { timeout: None }.time(&app);
    match caller.devices.ask(caller.device, &body, timeout).await.map_err(full)? {
        Some(answer) => Ok(json(answer)),
        None => Ok(nothing_came().into_response()),
    }
}
