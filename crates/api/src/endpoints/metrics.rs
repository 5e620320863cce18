//! `/metrics` for Prometheus and other OpenMetrics readers.

use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use web::guard::RequiredAccess;
use web::problem::HttpProblem;

use crate::app::Endpoint;
use crate::metrics::{CONTENT_TYPE, MetricSources, MetricsSnapshot, expose};
use crate::shards::Shards;

pub fn endpoints() -> Vec<Endpoint> {
    vec![
        Endpoint::get("/metrics", "metrics", RequiredAccess::Metrics, metrics)
            .tag("Node")
            .describe(
                "Metrics",
                "OpenMetrics 1.0. Needs no login on loopback, or if `api.metrics_without_login` is set.",
            )
            .returns_text("application/openmetrics-text", "All metrics."),
    ]
}

async fn metrics(State(shards): State<Shards>, State(sources): State<MetricSources>) -> Result<Response, HttpProblem> {
    let stats = shards.stats().await?;
    // Reading /proc may block.
    let text = web::block(move || expose(&MetricsSnapshot::new(&sources, stats))).await?;
    Ok(([(header::CONTENT_TYPE, CONTENT_TYPE)], text).into_response())
}
