//! Is the process alive, and should traffic come here. For load balancers and supervisors: no login, no numbers.

use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use broker::ShardId;
use schemars::JsonSchema;
use serde::Serialize;
use tokio::time::Instant;

use crate::app::App;
use crate::endpoint::Endpoint;
use crate::guard::Need;

/// How long the shards may take, all together, to show that they live.
const SHARDS_TIMEOUT: Duration = Duration::from_secs(2);

/// Whether traffic should come to this node.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Health {
    pub status: HealthStatus,
    /// Why not, if not.
    pub reasons: Vec<String>,
}

#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum HealthStatus {
    Ready,
    NotReady,
}

pub fn endpoints() -> Vec<Endpoint> {
    const READY: &str = "503 with the reasons until the server has started, with how much of the journal has been read, while it shuts down, when a shard does not answer, and from when \
         the journal has failed until the next start. A full journal is no reason: delivering is what makes room.";
    let readiness = |path, id, summary| {
        Endpoint::get(path, id, readyz)
            .tag("Health")
            .says(summary, READY)
            .needs(Need::Nothing)
            .returns::<Health>("Traffic may come.")
            .answers_with::<Health>(StatusCode::SERVICE_UNAVAILABLE, "Traffic should go elsewhere.")
    };
    vec![
        Endpoint::get("/livez", "livez", livez)
            .tag("Health")
            .says(
                "Is the process alive",
                "Answers as long as the process runs; says nothing about its work.",
            )
            .needs(Need::Nothing)
            .returns_text("text/plain", "It is."),
        readiness("/readyz", "readyz", "Should traffic come here"),
        readiness(
            "/status",
            "status",
            "Should traffic come here: another name for `/readyz`",
        ),
    ]
}

async fn livez() -> &'static str {
    "ok\n"
}

async fn readyz(State(app): State<App>) -> Response {
    let mut reasons = app.readiness().reasons();
    reasons.extend(failed_journal(&app));
    // Before that they do not run, and answer nobody.
    if app.readiness().is_started() {
        reasons.extend(silent_shards(&app).await);
    }
    let (code, status) = match reasons.is_empty() {
        true => (StatusCode::OK, HealthStatus::Ready),
        false => (StatusCode::SERVICE_UNAVAILABLE, HealthStatus::NotReady),
    };
    (code, axum::Json(Health { status, reasons })).into_response()
}

/// Its clients are better off with a node that can keep what they say.
fn failed_journal(app: &App) -> Option<String> {
    match app.net().journal()?.state {
        journal::State::Failed { because } => Some(format!("the journal has failed: {because}")),
        journal::State::Ok | journal::State::Full { .. } => None,
    }
}

async fn silent_shards(app: &App) -> Vec<String> {
    let replies: Vec<_> = (0..app.net().shards())
        .map(|shard| app.net().ask(ShardId(shard), |_, _| ()))
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
