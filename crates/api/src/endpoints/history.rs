//! The node's metrics over time, and live over a WebSocket.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::SystemTime;

use axum::Json;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::sync::{OwnedSemaphorePermit, watch};
use web::guard::RequiredAccess;
use web::problem::HttpProblem;
use web::query::Params;
use web::unix_ms;
use web::websocket::{PendingUpgrade, ServerWebSocket, WaitResult, upgrade_guarded};

use crate::app::Endpoint;
use crate::concurrency::Viewers;
use crate::history::{History, HistoryWindow, Sample, WINDOW_S_MAX};
use crate::sampler;

const WINDOW_S: u64 = 600;
/// Prefix of series per reason. They are left out where they are zero.
const BY_REASON: &str = "dropped_per_s.";

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HistoryQuery {
    /// Seconds before now. Default: 600. Longer windows have larger steps.
    #[schemars(range(min = 1, max = 2592000))]
    window_s: Option<u64>,
}

/// Columns of equal length: times, and the values of each series at these times.
#[derive(Debug, Serialize, JsonSchema)]
pub struct HistoryView {
    /// Time between two points.
    pub step_ms: u64,
    pub at_unix_ms: Vec<u64>,
    /// Values by series name, which ends in the unit. `null`: the value is unknown. Dropped messages also have a series
    /// per reason, if any were dropped: `dropped_per_s.<reason>`.
    pub series: BTreeMap<String, Vec<Option<f32>>>,
}

/// A WebSocket frame.
#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum HistoryFrame {
    Sample {
        at_unix_ms: u64,
        series: BTreeMap<String, Option<f32>>,
    },
}

pub fn endpoints() -> Vec<Endpoint> {
    vec![
        Endpoint::get("/api/v1/history", "history", RequiredAccess::Viewer, history)
            .tag("Node")
            .describe(
                "The node's metrics over time",
                "Since the start, from memory: seconds for 10 minutes, means of 15 seconds for 6 hours, of 2 minutes for 24 hours, \
                 of 15 minutes for 7 days, of one hour for 30 days.",
            )
            .query::<HistoryQuery>()
            .returns::<HistoryView>("Oldest first."),
        Endpoint::get("/api/v1/live", "live", RequiredAccess::Viewer, live)
            .tag("Node")
            .describe(
                "The node's metrics, live",
                "A WebSocket: once a second the newest values of the series of `/api/v1/history`, as JSON in a text frame. A slow client misses \
                 values. Clients that cannot set headers offer the sub-protocols `tidewire` and `bearer.<token>`.",
            )
            .fails(StatusCode::UPGRADE_REQUIRED)
            .fails(StatusCode::BAD_REQUEST)
            .upgrades("The WebSocket is open."),
    ]
}

async fn history(
    State(history): State<Arc<History>>,
    Params(query): Params<HistoryQuery>,
) -> Result<Json<HistoryView>, HttpProblem> {
    let window_s = query.window_s.unwrap_or(WINDOW_S);
    if !(1..=WINDOW_S_MAX).contains(&window_s) {
        let problem = HttpProblem::bad_request("the window is out of range").at("window_s");
        return Err(problem.expected(format!("1 to {WINDOW_S_MAX}")));
    }
    let window = history.window(window_s * 1000, unix_ms(SystemTime::now()));
    Ok(Json(view(&window)))
}

fn view(window: &HistoryWindow) -> HistoryView {
    let column = |index: usize| -> Vec<Option<f32>> {
        let values = window.points.iter().map(|point| point.values[index]);
        values.map(finite).collect()
    };
    let columns = sampler::names().enumerate().map(|(index, name)| (name, column(index)));
    let is_wanted = |(name, values): &(String, Vec<Option<f32>>)| {
        !name.starts_with(BY_REASON) || values.iter().any(|value| value.is_some_and(|value| value > 0.0))
    };
    HistoryView {
        step_ms: window.step_ms,
        at_unix_ms: window.points.iter().map(|point| point.at_unix_ms).collect(),
        series: columns.filter(is_wanted).collect(),
    }
}

fn finite(value: f32) -> Option<f32> {
    Some(value).filter(|value| value.is_finite())
}

async fn live(
    State(history): State<Arc<History>>,
    State(viewers): State<Viewers>,
    mut request: Request,
) -> Result<Response, HttpProblem> {
    let Some(permit) = viewers.admit() else {
        return Err(HttpProblem::unavailable("too many WebSockets are open"));
    };
    let samples = history.subscribe();
    let (response, upgrading) = upgrade_guarded(&mut request)?;
    tokio::spawn(serve(permit, upgrading, samples));
    Ok(response)
}

async fn serve(
    _permit: OwnedSemaphorePermit,
    upgrading: PendingUpgrade,
    mut samples: watch::Receiver<Option<Arc<Sample>>>,
) {
    let Some(mut socket) = ServerWebSocket::new(upgrading).await else {
        return;
    };
    while let WaitResult::Ready(Ok(())) = socket.wait_for(samples.changed()).await {
        let sample = samples.borrow_and_update().clone();
        let Some(sample) = sample else { continue };
        if socket.send(&text(&sample)).await.is_err() {
            break;
        }
    }
    socket.close().await;
}

fn text(sample: &Sample) -> String {
    let values = sample.values.iter().map(|value| finite(*value));
    let series = sampler::names().zip(values);
    let frame = HistoryFrame::Sample {
        at_unix_ms: sample.at_unix_ms,
        series: series
            .filter(|(name, value)| !name.starts_with(BY_REASON) || value.is_some_and(|value| value > 0.0))
            .collect(),
    };
    serde_json::to_string(&frame).expect("a frame can be serialized")
}
