//! What devices say and ask over HTTP without waiting for anybody.

use axum::extract::{Query, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use devices::{Entry, Kind, OtaError};
use platform::decode::{
    AttributesRequest, Form, Format, Limits, OtaKind, Provision, RpcRequest, Telemetry, attributes,
};
use schemars::JsonSchema;
use serde::Deserialize;

use super::{BODY_MAX, Caller, RPC_BODY_MAX, Raw, TAG, full, now_ms, over_limit, platform_of, refused};
use crate::app::App;
use crate::endpoint::Endpoint;
use crate::guard::Need;
use crate::problem::Problem;

/// Which attributes a device asks for; all of them without keys.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct Keys {
    /// With commas between them.
    client_keys: Option<String>,
    /// With commas between them.
    shared_keys: Option<String>,
}

fn post<H, T>(path: &'static str, id: &'static str, handler: H) -> Endpoint
where
    H: axum::handler::Handler<T, App>,
    T: 'static,
{
    Endpoint::post(path, id, handler)
        .tag(TAG)
        .needs(Need::Nothing)
        .path_parameter("token", "Access token of the device.")
        .fails(StatusCode::UNAUTHORIZED)
        .fails(StatusCode::TOO_MANY_REQUESTS)
}

pub fn endpoints() -> Vec<Endpoint> {
    vec![
        post("/api/v1/{token}/telemetry", "post_device_telemetry", telemetry)
            .says(
                "Send telemetry",
                "As over MQTT: an object of values, or with `ts` and `values`, or an array of both. Answered when it is kept.",
            )
            .takes::<serde_json::Value>(BODY_MAX)
            .returns_empty("It is kept."),
        post("/api/v1/{token}/attributes", "post_device_attributes", client_attributes)
            .says(
                "Send attributes",
                "Client attributes of the device, as an object. Answered when they are kept.",
            )
            .takes::<serde_json::Value>(BODY_MAX)
            .returns_empty("They are kept."),
        Endpoint::get("/api/v1/{token}/attributes", "get_device_attributes", get_attributes)
            .tag(TAG)
            .says(
                "Ask for attributes",
                "Client and shared attributes; all of them if no keys are given. What was acknowledged before is in them; 503 if the \
                 processing is more than 10 seconds behind.",
            )
            .needs(Need::Nothing)
            .path_parameter("token", "Access token of the device.")
            .fails(StatusCode::UNAUTHORIZED)
            .fails(StatusCode::TOO_MANY_REQUESTS)
            .fails(StatusCode::SERVICE_UNAVAILABLE)
            .query::<Keys>()
            .returns::<serde_json::Value>("`client` and `shared`; an empty one is left out."),
        post("/api/v1/{token}/claim", "claim_device", claim)
            .says(
                "Allow to be claimed",
                "A user who knows the secret may claim the device for `durationMs`. The body may be empty.",
            )
            .takes::<serde_json::Value>(RPC_BODY_MAX)
            .returns_empty("It may be claimed."),
        package(
            "/api/v1/{token}/firmware",
            "get_device_firmware",
            firmware,
        )
        .says(
            "Fetch firmware",
            "That of the device, which its shared attributes `fw_title` and `fw_version` name; a chunk of it, or all.",
        ),
        package(
            "/api/v1/{token}/software",
            "get_device_software",
            software,
        )
        .says(
            "Fetch software",
            "That of the device, which its shared attributes `sw_title` and `sw_version` name; a chunk of it, or all.",
        ),
        Endpoint::post("/api/v1/provision", "provision_device", provision)
            .tag(TAG)
            .says(
                "Provision a device",
                "With key and secret of a device profile. The answer has `status`: SUCCESS with credentials, NOT_FOUND or FAILURE.",
            )
            .needs(Need::Nothing)
            .takes::<serde_json::Value>(RPC_BODY_MAX)
            .fails(StatusCode::NOT_FOUND)
            .returns::<serde_json::Value>("What came of it."),
    ]
}

async fn telemetry(caller: Caller, Raw(body): Raw) -> Result<StatusCode, Problem> {
    Telemetry::decode(&body, now_ms(), &Limits::default()).map_err(refused)?;
    keep(&caller, Kind::Telemetry, &body).await
}

async fn client_attributes(caller: Caller, Raw(body): Raw) -> Result<StatusCode, Problem> {
    attributes(&body, &Limits::default()).map_err(refused)?;
    keep(&caller, Kind::Attributes, &body).await
}

async fn keep(caller: &Caller, kind: Kind, body: &[u8]) -> Result<StatusCode, Problem> {
    // Over HTTP payloads are JSON, whatever the profile says.
    let entry = Entry {
        form: Form::Short(Format::Json),
        ..Entry::new(kind, caller.device.0, now_ms(), body)
    };
    caller.devices.check_limits(&entry).map_err(over_limit)?;
    caller.devices.append(&entry).map_err(full)?.await.map_err(full)?;
    Ok(StatusCode::OK)
}

async fn get_attributes(State(app): State<App>, caller: Caller, Query(keys): Query<Keys>) -> Result<Response, Problem> {
    caller.check(Kind::AttributesRequest)?;
    let request =
        AttributesRequest::from_query(keys.client_keys.as_deref(), keys.shared_keys.as_deref()).map_err(refused)?;
    if !caller.devices.catch_up().await {
        return Err(Problem::unavailable(
            "what devices said is processed with a delay of more than 10 seconds; try again later",
        ));
    }
    let Caller { devices, device } = caller;
    let found = app.block(move || devices.attributes_of(device, &request)).await?;
    let body = found.map_err(|error| Problem::internal(error.to_string()))?;
    Ok(json(body))
}

/// Which package, and which part of it.
#[derive(Debug, Deserialize, JsonSchema)]
struct Part {
    /// As the device's attribute says.
    title: String,
    /// As the device's attribute says.
    version: String,
    /// Bytes of a chunk; 0 or nothing is the whole package.
    size: Option<usize>,
    /// Its number, from 0.
    chunk: Option<usize>,
}

fn package<H, T>(path: &'static str, id: &'static str, handler: H) -> Endpoint
where
    H: axum::handler::Handler<T, App>,
    T: 'static,
{
    Endpoint::get(path, id, handler)
        .tag(TAG)
        .needs(Need::Nothing)
        .path_parameter("token", "Access token of the device.")
        .fails(StatusCode::UNAUTHORIZED)
        .fails(StatusCode::NOT_FOUND)
        .query::<Part>()
        .returns_text("application/octet-stream", "The bytes; none behind the end.")
}

async fn firmware(state: State<App>, caller: Caller, part: Query<Part>) -> Result<Response, Problem> {
    fetch(state, caller, part, OtaKind::Firmware).await
}

async fn software(state: State<App>, caller: Caller, part: Query<Part>) -> Result<Response, Problem> {
    fetch(state, caller, part, OtaKind::Software).await
}

async fn fetch(
    State(app): State<App>,
    caller: Caller,
    Query(part): Query<Part>,
    kind: OtaKind,
) -> Result<Response, Problem> {
    let Caller { devices, device } = caller;
    let found = app
        .block(move || {
            let which = (part.title.as_str(), part.version.as_str());
            let range = (part.size.unwrap_or(0), part.chunk.unwrap_or(0));
            devices.ota_chunk(device, kind, which, range)
        })
        .await?;
    match found {
        Ok((package, bytes)) => Ok(crate::thingsboard::ota_file(&package, bytes)),
        Err(OtaError::ChunkSize(size)) => Err(refused(OtaError::ChunkSize(size))),
        Err(OtaError::Entity(error)) => Err(Problem::internal(error.to_string())),
        Err(error) => Err(Problem::of_status(StatusCode::NOT_FOUND, error.to_string())),
    }
}

async fn claim(State(app): State<App>, caller: Caller, Raw(body): Raw) -> Result<StatusCode, Problem> {
    caller.check(Kind::Claim)?;
    let Caller { devices, device } = caller;
    app.block(move || devices.claim(device, &body))
        .await?
        .map_err(refused)?;
    Ok(StatusCode::OK)
}

async fn provision(State(app): State<App>, Raw(body): Raw) -> Result<Response, Problem> {
    let devices = platform_of(&app)?;
    // What is JSON is answered with a status of its own.
    Provision::decode(&body).map_err(refused)?;
    Ok(json(app.block(move || devices.provision(&body)).await?))
}

/// JSON that is text already.
pub fn json(body: String) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], body).into_response()
}

/// Whether a body is a call of a device.
pub fn check_call(body: &[u8]) -> Result<(), Problem> {
    RpcRequest::decode(body).map(drop).map_err(refused)
}
