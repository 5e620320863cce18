//! Requests of devices over HTTP that are answered without waiting for another party.

use std::sync::Arc;
use std::time::Instant;

use auth::{LoginAttempt, LoginKind};
use axum::Extension;
use axum::extract::{Query, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use devices::{EntryKind, IngestEntry, OtaError};
use platform::decode::{
    AttributesRequest, DecodeLimits, OtaKind, PayloadFormat, Provision, RpcRequest, Telemetry, TopicForm, attributes,
};
use schemars::JsonSchema;
use serde::Deserialize;
use web::guard::{PeerAddress, RequiredAccess};
use web::problem::HttpProblem;

use super::{
    AuthenticatedDevice, BODY_MAX, DeviceServices, Endpoint, RPC_BODY_MAX, RawPayload, TAG, full, now_ms, over_limit,
    platform_of, refused,
};

/// The requested attributes; without keys, all attributes.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct AttributeKeysQuery {
    /// Client attributes: keys, separated by commas.
    client_keys: Option<String>,
    /// Shared attributes: keys, separated by commas.
    shared_keys: Option<String>,
}

fn post<H, T>(path: &'static str, id: &'static str, handler: H) -> Endpoint
where
    H: axum::handler::Handler<T, Arc<DeviceServices>>,
    T: 'static,
{
    Endpoint::post(path, id, RequiredAccess::Nothing, handler)
        .tag(TAG)
        .path_parameter("token", "Access token of the device.")
        .fails(StatusCode::UNAUTHORIZED)
        .fails(StatusCode::TOO_MANY_REQUESTS)
}

pub fn endpoints() -> Vec<Endpoint> {
    vec![
        post("/api/v1/{token}/telemetry", "post_device_telemetry", telemetry)
            .describe(
                "Send telemetry",
                "As over MQTT: an object of values, or with `ts` and `values`, or an array of both. The answer is sent after it is stored.",
            )
            .takes::<serde_json::Value>(BODY_MAX)
            .returns_empty("The telemetry is stored."),
        post("/api/v1/{token}/attributes", "post_device_attributes", client_attributes)
            .describe(
                "Send attributes",
                "Client attributes of the device, as an object. The answer is sent after they are stored.",
            )
            .takes::<serde_json::Value>(BODY_MAX)
            .returns_empty("The attributes are stored."),
        Endpoint::get("/api/v1/{token}/attributes", "get_device_attributes", RequiredAccess::Nothing, get_attributes)
            .tag(TAG)
            .describe(
                "Get attributes",
                "Client and shared attributes; all of them without keys. Includes all attributes that were acknowledged before. 503 if \
                 processing is delayed by more than 10 seconds.",
            )
            .path_parameter("token", "Access token of the device.")
            .fails(StatusCode::UNAUTHORIZED)
            .fails(StatusCode::TOO_MANY_REQUESTS)
            .fails(StatusCode::SERVICE_UNAVAILABLE)
            .query::<AttributeKeysQuery>()
            .returns::<serde_json::Value>("`client` and `shared`; empty objects are omitted."),
        post("/api/v1/{token}/claim", "claim_device", claim)
            .describe(
                "Allow claiming",
                "A user with the secret key may claim the device for `durationMs`. The body may be empty.",
            )
            .takes::<serde_json::Value>(RPC_BODY_MAX)
            .returns_empty("The device may be claimed."),
        package(
            "/api/v1/{token}/firmware",
            "get_device_firmware",
            firmware,
        )
        .describe(
            "Download firmware",
            "The firmware that the shared attributes `fw_title` and `fw_version` of the device name: one chunk, or all.",
        ),
        package(
            "/api/v1/{token}/software",
            "get_device_software",
            software,
        )
        .describe(
            "Download software",
            "The software that the shared attributes `sw_title` and `sw_version` of the device name: one chunk, or all.",
        ),
        Endpoint::post("/api/v1/provision", "provision_device", RequiredAccess::Nothing, provision)
            .tag(TAG)
            .describe(
                "Provision a device",
                "With the key and secret of a device profile. The answer has a `status`: SUCCESS with credentials, NOT_FOUND or FAILURE.",
            )
            .takes::<serde_json::Value>(RPC_BODY_MAX)
            .fails(StatusCode::NOT_FOUND)
            .fails(StatusCode::TOO_MANY_REQUESTS)
            .returns::<serde_json::Value>("Result of the provisioning."),
    ]
}

async fn telemetry(caller: AuthenticatedDevice, RawPayload(body): RawPayload) -> Result<StatusCode, HttpProblem> {
    Telemetry::decode(&body, now_ms(), &DecodeLimits::default()).map_err(refused)?;
    store(&caller, EntryKind::Telemetry, &body).await
}

async fn client_attributes(
    caller: AuthenticatedDevice,
    RawPayload(body): RawPayload,
) -> Result<StatusCode, HttpProblem> {
    attributes(&body, &DecodeLimits::default()).map_err(refused)?;
    store(&caller, EntryKind::Attributes, &body).await
}

async fn store(caller: &AuthenticatedDevice, kind: EntryKind, body: &[u8]) -> Result<StatusCode, HttpProblem> {
    // Over HTTP payloads are always JSON, independent of the device profile.
    let entry = IngestEntry {
        form: TopicForm::Short(PayloadFormat::Json),
        ..IngestEntry::new(kind, caller.device.0, now_ms(), body)
    };
    caller.devices.check_limits(&entry).map_err(over_limit)?;
    caller.devices.append(&entry).map_err(full)?.await.map_err(full)?;
    Ok(StatusCode::OK)
}

async fn get_attributes(
    caller: AuthenticatedDevice,
    Query(keys): Query<AttributeKeysQuery>,
) -> Result<Response, HttpProblem> {
    caller.check(EntryKind::AttributesRequest)?;
    let request =
        AttributesRequest::from_query(keys.client_keys.as_deref(), keys.shared_keys.as_deref()).map_err(refused)?;
    if !caller.devices.wait_until_processed().await {
        return Err(HttpProblem::unavailable(
            "processing of device messages is delayed by more than 10 seconds; try again later",
        ));
    }
    let AuthenticatedDevice { devices, device } = caller;
    let found = web::block(move || devices.attributes_of(device, &request)).await?;
    let body = found.map_err(|error| HttpProblem::internal(error.to_string()))?;
    Ok(json(body))
}

/// The package and the chunk that a device requests.
#[derive(Debug, Deserialize, JsonSchema)]
struct OtaChunkQuery {
    /// Value of the device's title attribute.
    title: String,
    /// Value of the device's version attribute.
    version: String,
    /// Bytes of a chunk; 0 or absent: the whole package.
    size: Option<usize>,
    /// Index of the chunk, from 0.
    chunk: Option<usize>,
}

fn package<H, T>(path: &'static str, id: &'static str, handler: H) -> Endpoint
where
    H: axum::handler::Handler<T, Arc<DeviceServices>>,
    T: 'static,
{
    Endpoint::get(path, id, RequiredAccess::Nothing, handler)
        .tag(TAG)
        .path_parameter("token", "Access token of the device.")
        .fails(StatusCode::UNAUTHORIZED)
        .fails(StatusCode::NOT_FOUND)
        .query::<OtaChunkQuery>()
        .returns_text(
            "application/octet-stream",
            "The bytes; empty after the end of the package.",
        )
}

async fn firmware(caller: AuthenticatedDevice, part: Query<OtaChunkQuery>) -> Result<Response, HttpProblem> {
    fetch(caller, part, OtaKind::Firmware).await
}

async fn software(caller: AuthenticatedDevice, part: Query<OtaChunkQuery>) -> Result<Response, HttpProblem> {
    fetch(caller, part, OtaKind::Software).await
}

async fn fetch(
    caller: AuthenticatedDevice,
    Query(part): Query<OtaChunkQuery>,
    kind: OtaKind,
) -> Result<Response, HttpProblem> {
    let AuthenticatedDevice { devices, device } = caller;
    let found = web::block(move || {
        let which = (part.title.as_str(), part.version.as_str());
        let range = (part.size.unwrap_or(0), part.chunk.unwrap_or(0));
        devices.ota_chunk(device, kind, which, range)
    })
    .await?;
    match found {
        Ok((package, bytes)) => Ok(crate::ota::file(&package, bytes)),
        Err(OtaError::ChunkSize(size)) => Err(refused(OtaError::ChunkSize(size))),
        Err(OtaError::Entity(error)) => Err(HttpProblem::internal(error.to_string())),
        Err(error) => Err(HttpProblem::of_status(StatusCode::NOT_FOUND, error.to_string())),
    }
}

async fn claim(caller: AuthenticatedDevice, RawPayload(body): RawPayload) -> Result<StatusCode, HttpProblem> {
    caller.check(EntryKind::Claim)?;
    let AuthenticatedDevice { devices, device } = caller;
    web::block(move || devices.claim(device, &body))
        .await?
        .map_err(refused)?;
    Ok(StatusCode::OK)
}

async fn provision(
    State(services): State<Arc<DeviceServices>>,
    Extension(PeerAddress(address)): Extension<PeerAddress>,
    RawPayload(body): RawPayload,
) -> Result<Response, HttpProblem> {
    let devices = platform_of(&services)?;
    // A valid request gets its result as a status in the answer's body.
    let request = Provision::decode(&body).map_err(refused)?;
    let secret = request.key_and_secret();
    let attempt = LoginAttempt {
        kind: LoginKind::Provisioning,
        address,
        user_name: None,
        secret: &secret,
    };
    let limiter = &services.login_limiter;
    limiter.admit(&attempt, Instant::now()).map_err(|wait| {
        HttpProblem::too_many_failures("too many wrong provisioning secrets from this address", wait)
    })?;
    let (answer, is_known) = web::block(move || devices.provision(&request)).await?;
    match is_known {
        Some(true) => limiter.record_success(&attempt),
        Some(false) => limiter.record_failure(&attempt, Instant::now()),
        None => {}
    }
    Ok(json(answer))
}

/// An answer from serialized JSON.
pub fn json(body: String) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], body).into_response()
}

/// Checks that a body is a call of a device.
pub fn check_call(body: &[u8]) -> Result<(), HttpProblem> {
    RpcRequest::decode(body).map(drop).map_err(refused)
}
