//! Liveness and readiness for load balancers and supervisors. Needs no login and returns no statistics.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use broker::ShardId;
use integration::Engine;
use schemars::JsonSchema;
use serde::Serialize;
use tokio::time::Instant;
use web::guard::RequiredAccess;

use crate::app::Endpoint;
use crate::device_platform::DevicePlatform;
use crate::readiness::Readiness;

/// How long all shards together may take to answer.
const SHARDS_TIMEOUT: Duration = Duration::from_secs(2);

/// Whether the node accepts traffic.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "NodeHealth")]
pub struct NodeHealth {
    pub status: HealthStatus,
    /// Why the node is not ready.
    pub reasons: Vec<String>,
}

#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "Readiness")]
pub enum HealthStatus {
    Ready,
    NotReady,
}

pub fn endpoints() -> Vec<Endpoint> {
    const READY: &str = "200 if the node accepts traffic. 503 with the reasons while the server starts (with the share of the journal that has been \
         read), while it shuts down, if a shard does not answer, after the journal or the ingest log of the device platform has failed, \
         while another store of the device platform fails, \
         and while the buffer of an action has failed, unless the action drops messages that its buffer does not accept. A full journal does not make the node unready, because deliveries free its space.";
    let readiness = |path, id, summary| {
        Endpoint::get(path, id, RequiredAccess::Nothing, readyz)
            .tag("Health")
            .describe(summary, READY)
            .returns::<NodeHealth>("The node is ready.")
            .answers_with::<NodeHealth>(StatusCode::SERVICE_UNAVAILABLE, "The node is not ready.")
    };
    vec![
        Endpoint::get("/livez", "livez", RequiredAccess::Nothing, livez)
            .tag("Health")
            .describe(
                "Liveness of the process",
                "Answers while the process runs. Does not check whether the server works.",
            )
            .returns_text("text/plain", "The process runs."),
        readiness("/readyz", "readyz", "Readiness of the node"),
        readiness("/status", "status", "Readiness of the node: same as `/readyz`"),
    ]
}

async fn livez() -> &'static str {
    "ok\n"
}

async fn readyz(
    State(readiness): State<Arc<Readiness>>,
    State(net): State<net::ServerHandle>,
    State(platform): State<Option<DevicePlatform>>,
    State(engine): State<Option<Engine>>,
) -> Response {
    let mut reasons = readiness.not_ready_reasons();
    reasons.extend(failed_journal(&net));
    if let Some(platform) = &platform {
        reasons.extend(failed_ingest_log(platform));
        reasons.extend(failed_platform_stores(platform));
    }
    if let Some(engine) = &engine {
        reasons.extend(engine.readiness_problems());
    }
    // The shards do not run before the start is complete.
    if readiness.is_started() {
        reasons.extend(unresponsive_shards(&net).await);
    }
    let (code, status) = match reasons.is_empty() {
        true => (StatusCode::OK, HealthStatus::Ready),
        false => (StatusCode::SERVICE_UNAVAILABLE, HealthStatus::NotReady),
    };
    (code, axum::Json(NodeHealth { status, reasons })).into_response()
}

/// A node with a failed journal is not ready, because it cannot store what its clients publish.
fn failed_journal(net: &net::ServerHandle) -> Option<String> {
    match net.journal()?.state {
        journal::LogState::Failed { reason } => Some(format!("the journal has failed: {reason}")),
        journal::LogState::Ok | journal::LogState::Full { .. } => None,
    }
}

/// Without its ingest log, a node acknowledges no message of a device.
fn failed_ingest_log(platform: &DevicePlatform) -> Option<String> {
    match platform.log_state() {
        journal::LogState::Failed { reason } => {
            Some(format!("the ingest log of the device platform has failed: {reason}"))
        }
        journal::LogState::Ok | journal::LogState::Full { .. } => None,
    }
}

/// While a store fails, messages of devices collect in the ingest log and changes of entities are refused.
fn failed_platform_stores(platform: &DevicePlatform) -> Vec<String> {
    let reason = |failure| format!("a store of the device platform fails: {failure}");
    platform.failed_stores().into_iter().map(reason).collect()
}

async fn unresponsive_shards(net: &net::ServerHandle) -> Vec<String> {
    let replies: Vec<_> = (0..net.shards())
        .map(|shard| net.call_async(ShardId(shard), |_, _| ()))
        .collect();
    let deadline = Instant::now() + SHARDS_TIMEOUT;
    let mut reasons = Vec::new();
    for (shard, reply) in replies.into_iter().enumerate() {
        let is_alive = match reply {
            Ok(reply) => matches!(tokio::time::timeout_at(deadline, reply).await, Ok(Ok(()))),
            Err(_) => false,
        };
        if !is_alive {
            reasons.push(format!("shard {shard} does not answer"));
        }
    }
    reasons
}
