//! `/metrics` for Prometheus and all who read OpenMetrics.

use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};

use crate::app::App;
use crate::endpoint::Endpoint;
use crate::guard::Need;
use crate::metrics::{CONTENT_TYPE, Snapshot, expose};
use crate::problem::Problem;

pub fn endpoints() -> Vec<Endpoint> {
    vec![
        Endpoint::get("/metrics", "metrics", metrics)
            .tag("Node")
            .says(
                "Metrics",
                "OpenMetrics 1.0. Needs no login on loopback, or where the configuration says so.",
            )
            .needs(Need::Metrics)
            .returns_text("application/openmetrics-text", "All metrics."),
    ]
}

async fn metrics(State(app): State<App>) -> Result<Response, Problem> {
    let stats = app.stats().await?;
    let reader = app.clone();
    // /proc is a file system: it may wait.
    let text = app.block(move || expose(&Snapshot::new(&reader, stats))).await?;
    Ok(([(header::CONTENT_TYPE, CONTENT_TYPE)], text).into_response())
}
