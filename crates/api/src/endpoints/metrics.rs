//! `/metrics` for Prometheus and other OpenMetrics readers.

use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use web::guard::RequiredAccess;
use web::problem::HttpProblem;

use crate::app::{App, Endpoint};
use crate::metrics::{CONTENT_TYPE, MetricsSnapshot, expose};

pub fn endpoints() -> Vec<Endpoint> {
    vec![
        Endpoint::get("/metrics", "metrics", metrics)
            .tag("Node")
            .describe(
                "Metrics",
                "OpenMetrics 1.0. Needs no login on loopback, or if `api.metrics_without_login` is set.",
            )
            .needs(RequiredAccess::Metrics)
            .returns_text("application/openmetrics-text", "All metrics."),
    ]
}

async fn metrics(State(app): State<App>) -> Result<Response, HttpProblem> {
    let stats = app.stats().await?;
    let reader = app.clone();
    // Reading /proc may block.
    let text = web::block(move || expose(&MetricsSnapshot::new(&reader, stats))).await?;
    Ok(([(header::CONTENT_TYPE, CONTENT_TYPE)], text).into_response())
}
