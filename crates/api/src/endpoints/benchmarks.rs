//! Benchmarks of this node by the load tool: started, watched, stopped, kept. For administrators, within limits, and off when the
//! configuration says so.

use std::fs;
use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use schemars::JsonSchema;
use serde::Serialize;
use tracing::info;

use crate::app::{App, unix_ms};
use crate::bench_admin::{
    BenchAdmin, BenchError, BenchOrder, BenchResult, BenchScenario, BenchSecond, BenchState, FinishedBench,
};
use crate::body;
use crate::endpoint::Endpoint;
use crate::guard::Need;
use crate::problem::Problem;

const BODY_MAX: usize = 4096;

/// What can be run, what runs, and what came of it.
#[derive(Serialize, JsonSchema)]
pub struct Benchmarks {
    /// Why none can be run here.
    pub off_because: Option<String>,
    pub clients_max: u64,
    pub duration_max_s: f64,
    pub scenarios: Vec<BenchScenario>,
    pub running: Option<RunningBenchmark>,
    /// Of the last one that gave no report.
    pub failure: Option<FailedBenchmark>,
    /// The newest first.
    pub items: Vec<Benchmark>,
}

#[derive(Serialize, JsonSchema)]
pub struct RunningBenchmark {
    pub name: String,
    pub scenario: String,
    pub scale: f64,
    pub duration_s: f64,
    pub started_at_unix_ms: u64,
    /// `connecting`, `warm_up`, `measuring`, `returning` or `comparing`.
    pub phase: String,
    pub is_stopping: bool,
    pub seconds: Vec<BenchSecond>,
}

#[derive(Serialize, JsonSchema)]
pub struct FailedBenchmark {
    pub name: String,
    pub at_unix_ms: u64,
    pub because: String,
}

#[derive(Serialize, JsonSchema)]
pub struct Benchmark {
    pub name: String,
    pub at_unix_ms: u64,
    pub scenario: String,
    pub scale: f64,
    pub duration_s: f64,
    /// Nothing was lost, nothing came twice, and the rest of what the load tool asks for by itself.
    pub is_good: bool,
    /// It was stopped before its time.
    pub is_interrupted: bool,
}

#[derive(Serialize, JsonSchema)]
pub struct StartedBenchmark {
    pub name: String,
}

pub fn endpoints() -> Vec<Endpoint> {
    const ALL: &str = "/api/v1/benchmarks";
    const ONE: &str = "/api/v1/benchmarks/{name}";
    const NAME: &str = "As in the list.";
    vec![
        Endpoint::get(ALL, "benchmarks", list)
            .tag("Benchmarks")
            .says(
                "Benchmarks of this node",
                "The scenarios that can be run, the limits, the run that goes on with its last seconds, and the reports.",
            )
            .needs(Need::Admin)
            .returns::<Benchmarks>("All of it."),
        Endpoint::post(ALL, "start_benchmark", start)
            .tag("Benchmarks")
            .says(
                "Run a benchmark against this node",
                "By `tidewire bench` in a process of its own on this machine, whose clients connect without a password. It slows down \
                 whatever else the node does: `confirmed` has to say that this is known. One at a time, within `benchmark.max_clients` \
                 and `benchmark.max_duration`; `benchmark.enabled` turns it off.",
            )
            .takes::<BenchOrder>(BODY_MAX)
            .fails(StatusCode::CONFLICT)
            .fails(StatusCode::UNPROCESSABLE_ENTITY)
            .answers_with::<StartedBenchmark>(StatusCode::ACCEPTED, "It has begun."),
        Endpoint::post("/api/v1/benchmarks/stop", "stop_benchmark", stop)
            .tag("Benchmarks")
            .says("Stop the benchmark that runs", "It ends soon, and reports what it has measured.")
            .fails(StatusCode::CONFLICT)
            .returns_nothing("Asked to end."),
        Endpoint::get(ONE, "benchmark", result)
            .tag("Benchmarks")
            .says("What came of a benchmark", "Numbers by name, in the same order for all, so that two can be compared.")
            .needs(Need::Admin)
            .path_parameter("name", NAME)
            .fails(StatusCode::CONFLICT)
            .returns::<BenchResult>("The result."),
        Endpoint::get("/api/v1/benchmarks/{name}/report", "benchmark_report", report)
            .tag("Benchmarks")
            .says("The report of a benchmark as a page", "With charts, to be kept or passed on.")
            .needs(Need::Admin)
            .path_parameter("name", NAME)
            .fails(StatusCode::CONFLICT)
            .returns_text("text/html", "The page."),
        Endpoint::delete(ONE, "remove_benchmark", remove)
            .tag("Benchmarks")
            .says("Delete a report", "It is gone for good.")
            .path_parameter("name", NAME)
            .fails(StatusCode::CONFLICT)
            .returns_nothing("Deleted."),
    ]
}

async fn list(State(app): State<App>) -> Result<Json<Benchmarks>, Problem> {
    Ok(Json(view(with(&app, |admin| Ok(admin.state())).await?)))
}

async fn start(
    State(app): State<App>,
    body::Json(order): body::Json<BenchOrder>,
) -> Result<(StatusCode, Json<StartedBenchmark>), Problem> {
    if !order.confirmed {
        let detail = "a benchmark slows down whatever else this node does";
        return Err(Problem::invalid("confirmed", detail).expected("true"));
    }
    for (field, number) in [("scale", order.scale), ("duration_s", order.duration_s)] {
        if !(number.is_finite() && number > 0.0) {
            return Err(Problem::invalid(field, format!("{number} is no size")).expected("a number above 0"));
        }
    }
    let scenario = order.scenario.clone();
    let name = with(&app, move |admin| admin.start(order)).await?;
    info!(name, scenario, "a benchmark has begun");
    Ok((StatusCode::ACCEPTED, Json(StartedBenchmark { name })))
}

async fn stop(State(app): State<App>) -> Result<StatusCode, Problem> {
    with(&app, |admin| admin.stop()).await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn result(State(app): State<App>, Path(name): Path<String>) -> Result<Json<BenchResult>, Problem> {
    Ok(Json(with(&app, move |admin| admin.result(&name)).await?))
}

async fn report(State(app): State<App>, Path(name): Path<String>) -> Result<Response, Problem> {
    let page = with(&app, move |admin| {
        let path = admin.page(&name)?;
        fs::read_to_string(&path).map_err(|error| BenchError::Failed {
            because: format!("{} cannot be read: {error}", path.display()),
        })
    })
    .await?;
    // To be saved, not shown: it brings styles of its own.
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static("text/html")),
        (header::CONTENT_DISPOSITION, HeaderValue::from_static("attachment")),
    ];
    Ok((headers, page).into_response())
}

async fn remove(State(app): State<App>, Path(name): Path<String>) -> Result<StatusCode, Problem> {
    with(&app, move |admin| admin.remove(&name)).await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn with<R: Send + 'static>(
    app: &App,
    work: impl FnOnce(&dyn BenchAdmin) -> Result<R, BenchError> + Send + 'static,
) -> Result<R, Problem> {
    let admin: Option<Arc<dyn BenchAdmin>> = app.config().benchmarks.clone();
    let admin = admin.ok_or_else(|| {
        problem(&BenchError::Off {
            because: "this server has no load tool".into(),
        })
    })?;
    app.block(move || work(&*admin)).await?.map_err(|error| problem(&error))
}

fn problem(error: &BenchError) -> Problem {
    let detail = error.to_string();
    match error {
        BenchError::Unknown => Problem::not_found(detail),
        BenchError::Order { field, .. } => Problem::invalid(*field, detail),
        BenchError::Off { .. } => Problem::conflict("benchmarks-off", "No benchmark can be run here", detail),
        BenchError::Running | BenchError::NotRunning | BenchError::TooMany { .. } | BenchError::Failed { .. } => {
            Problem::conflict("benchmark", "That cannot be done now", detail)
        }
    }
}

fn view(state: BenchState) -> Benchmarks {
    Benchmarks {
        off_because: state.off_because,
        clients_max: state.clients_max,
        duration_max_s: state.duration_max_s,
        scenarios: state.scenarios,
        running: state.running.map(|running| RunningBenchmark {
            name: running.name,
            scenario: running.order.scenario,
            scale: running.order.scale,
            duration_s: running.order.duration_s,
            started_at_unix_ms: unix_ms(running.started_at),
            phase: running.phase,
            is_stopping: running.is_stopping,
            seconds: running.seconds,
        }),
        failure: state.failure.map(|failed| FailedBenchmark {
            name: failed.name,
            at_unix_ms: unix_ms(failed.at),
            because: failed.because,
        }),
        items: state.finished.into_iter().map(finished).collect(),
    }
}

fn finished(one: FinishedBench) -> Benchmark {
    Benchmark {
        name: one.name,
        at_unix_ms: unix_ms(one.at),
        scenario: one.order.scenario,
        scale: one.order.scale,
        duration_s: one.order.duration_s,
        is_good: one.is_good,
        is_interrupted: one.is_interrupted,
    }
}
