//! Runs the load tool against this node, and serves its reports. Only for administrators, within limits, and only if
//! `benchmark.enabled` is set.

use std::fs;
use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use schemars::JsonSchema;
use serde::Serialize;
use tracing::info;
use web::body;
use web::guard::RequiredAccess;
use web::problem::HttpProblem;

use crate::app::Endpoint;
use crate::bench_admin::{BenchAdmin, BenchError, BenchOrder, BenchResult, Benchmarks};

const BODY_MAX: usize = 4096;

#[derive(Serialize, JsonSchema)]
pub struct StartedBenchmark {
    pub name: String,
}

pub fn endpoints() -> Vec<Endpoint> {
    const ALL: &str = "/api/v1/benchmarks";
    const ONE: &str = "/api/v1/benchmarks/{name}";
    const NAME: &str = "Name from the list.";
    vec![
        Endpoint::get(ALL, "benchmarks", RequiredAccess::Admin, list)
            .tag("Benchmarks")
            .describe(
                "Benchmarks of this node",
                "The scenarios, the limits, the running benchmark with its last seconds, and the reports.",
            )
            .returns::<Benchmarks>("Scenarios, limits and reports."),
        Endpoint::post(ALL, "start_benchmark", RequiredAccess::Admin, start)
            .tag("Benchmarks")
            .describe(
                "Run a benchmark against this node",
                "Starts `tidewire bench` as a separate process on this machine; its clients connect without a password. It slows down all other work \
                 of the node, so `confirmed` must be `true`. Only one benchmark runs at a time, within `benchmark.max_clients` and \
                 `benchmark.max_duration`. `benchmark.enabled` turns benchmarks off.",
            )
            .takes::<BenchOrder>(BODY_MAX)
            .fails(StatusCode::CONFLICT)
            .fails(StatusCode::UNPROCESSABLE_ENTITY)
            .answers_with::<StartedBenchmark>(StatusCode::ACCEPTED, "The benchmark has started."),
        Endpoint::post("/api/v1/benchmarks/stop", "stop_benchmark", RequiredAccess::Admin, stop)
            .tag("Benchmarks")
            .describe("Stop the running benchmark", "It ends soon and writes a report of its results so far.")
            .fails(StatusCode::CONFLICT)
            .returns_nothing("The benchmark is stopping."),
        Endpoint::get(ONE, "benchmark", RequiredAccess::Admin, result)
            .tag("Benchmarks")
            .describe("Result of a benchmark", "Named numbers in a fixed order, so that two results can be compared.")
            .path_parameter("name", NAME)
            .fails(StatusCode::CONFLICT)
            .returns::<BenchResult>("The result."),
        Endpoint::get("/api/v1/benchmarks/{name}/report", "benchmark_report", RequiredAccess::Admin, report)
            .tag("Benchmarks")
            .describe("Report of a benchmark as a page", "HTML with charts, in one file.")
            .path_parameter("name", NAME)
            .fails(StatusCode::CONFLICT)
            .returns_text("text/html", "The page."),
        Endpoint::delete(ONE, "remove_benchmark", RequiredAccess::Admin, remove)
            .tag("Benchmarks")
            .describe("Delete a report", "Cannot be undone.")
            .path_parameter("name", NAME)
            .fails(StatusCode::CONFLICT)
            .returns_nothing("Deleted."),
    ]
}

async fn list(State(admin): State<Option<Arc<dyn BenchAdmin>>>) -> Result<Json<Benchmarks>, HttpProblem> {
    Ok(Json(with(admin, |admin| Ok(admin.state())).await?))
}

async fn start(
    State(admin): State<Option<Arc<dyn BenchAdmin>>>,
    body::Json(order): body::Json<BenchOrder>,
) -> Result<(StatusCode, Json<StartedBenchmark>), HttpProblem> {
    if !order.confirmed {
        let detail = "a benchmark slows down all other work of this node: set `confirmed` to true";
        return Err(HttpProblem::invalid("confirmed", detail).expected("true"));
    }
    for (field, number) in [("scale", order.scale), ("duration_s", order.duration_s)] {
        if !(number.is_finite() && number > 0.0) {
            return Err(
                HttpProblem::invalid(field, format!("{number} is not a valid value")).expected("a number above 0")
            );
        }
    }
    let scenario = order.scenario.clone();
    let name = with(admin, move |admin| admin.start(order)).await?;
    info!(name, scenario, "benchmark started");
    Ok((StatusCode::ACCEPTED, Json(StartedBenchmark { name })))
}

async fn stop(State(admin): State<Option<Arc<dyn BenchAdmin>>>) -> Result<StatusCode, HttpProblem> {
    with(admin, |admin| admin.stop()).await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn result(
    State(admin): State<Option<Arc<dyn BenchAdmin>>>,
    Path(name): Path<String>,
) -> Result<Json<BenchResult>, HttpProblem> {
    Ok(Json(with(admin, move |admin| admin.result(&name)).await?))
}

async fn report(
    State(admin): State<Option<Arc<dyn BenchAdmin>>>,
    Path(name): Path<String>,
) -> Result<Response, HttpProblem> {
    let page = with(admin, move |admin| {
        let path = admin.page(&name)?;
        fs::read_to_string(&path).map_err(|error| BenchError::Failed {
            reason: format!("cannot read {}: {error}", path.display()),
        })
    })
    .await?;
    // Download the page instead of showing it: the console's content security policy does not allow its inline styles.
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static("text/html")),
        (header::CONTENT_DISPOSITION, HeaderValue::from_static("attachment")),
    ];
    Ok((headers, page).into_response())
}

async fn remove(
    State(admin): State<Option<Arc<dyn BenchAdmin>>>,
    Path(name): Path<String>,
) -> Result<StatusCode, HttpProblem> {
    with(admin, move |admin| admin.remove(&name)).await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn with<R: Send + 'static>(
    admin: Option<Arc<dyn BenchAdmin>>,
    work: impl FnOnce(&dyn BenchAdmin) -> Result<R, BenchError> + Send + 'static,
) -> Result<R, HttpProblem> {
    let admin = admin.ok_or_else(|| {
        problem(&BenchError::Off {
            reason: "this server runs without the load tool".into(),
        })
    })?;
    web::block(move || work(&*admin))
        .await?
        .map_err(|error| problem(&error))
}

fn problem(error: &BenchError) -> HttpProblem {
    let detail = error.to_string();
    match error {
        BenchError::Unknown => HttpProblem::not_found(detail),
        BenchError::Order { field, .. } => HttpProblem::invalid(*field, detail),
        BenchError::Off { .. } => HttpProblem::conflict("benchmarks-off", "Benchmarks are disabled", detail),
        BenchError::Running | BenchError::NotRunning | BenchError::TooMany { .. } | BenchError::Failed { .. } => {
            HttpProblem::conflict("benchmark", "Not possible now", detail)
        }
    }
}
