//! Benchmarks over the API: permissions and validation. The binary runs them.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use api::{BenchAdmin, BenchError, BenchOrder, BenchResult, Benchmarks, RunningBenchmark};
use serde_json::json;

use super::node::Node;

#[derive(Default)]
struct Bench {
    running: Mutex<Option<BenchOrder>>,
}

impl BenchAdmin for Bench {
    fn state(&self) -> Benchmarks {
        let running = self.running.lock().unwrap().clone();
        Benchmarks {
            disabled_reason: None,
            clients_max: 10,
            duration_max_s: 60.0,
            scenarios: Vec::new(),
            running: running.map(|order| RunningBenchmark {
                name: "one".into(),
                scenario: order.scenario,
                scale: order.scale,
                duration_s: order.duration_s,
                started_at_unix_ms: 1000,
                phase: "measuring".into(),
                is_stopping: false,
                seconds: Vec::new(),
            }),
            failure: None,
            items: Vec::new(),
        }
    }

    fn start(&self, order: BenchOrder) -> Result<String, BenchError> {
        if order.scenario == "off" {
            let reason = "benchmark.enabled is false".into();
            return Err(BenchError::Off { reason });
        }
        let mut running = self.running.lock().unwrap();
        if running.is_some() {
            return Err(BenchError::Running);
        }
        *running = Some(order);
        Ok("one".into())
    }

    fn stop(&self) -> Result<(), BenchError> {
        let running = self.running.lock().unwrap().take();
        running.map(drop).ok_or(BenchError::NotRunning)
    }

    fn result(&self, _: &str) -> Result<BenchResult, BenchError> {
        Err(BenchError::Unknown)
    }

    fn page(&self, _: &str) -> Result<PathBuf, BenchError> {
        Err(BenchError::Unknown)
    }

    fn remove(&self, _: &str) -> Result<(), BenchError> {
        Err(BenchError::Unknown)
    }
}

const ALL: &str = "/api/v1/benchmarks";

#[test]
fn confirmed_benchmark_starts_and_stops_one_at_a_time() {
    let node = Node::start_with(1, |config| config.benchmarks = Some(Arc::new(Bench::default()))).with_login();
    let start = |scenario: &str, duration_s: f64, confirmed: bool| {
        let order = json!({ "scenario": scenario, "duration_s": duration_s, "confirmed": confirmed });
        node.send("POST", ALL, &order)
    };
    assert_eq!(start("fanout", 5.0, false).problem(422)["field"], "confirmed");
    assert_eq!(start("fanout", 0.0, true).problem(422)["field"], "duration_s");
    assert_eq!(
        start("off", 5.0, true).problem(409)["type"],
        "urn:tidewire:problem:benchmarks-off"
    );
    node.send("POST", "/api/v1/benchmarks/stop", &json!(null)).problem(409);
    let started = start("fanout", 5.0, true);
    assert_eq!((started.status, &started.json()["name"]), (202, &json!("one")));
    start("fanout", 5.0, true).problem(409);
    let state = node.get(ALL).ok().json();
    assert_eq!(
        (&state["running"]["scenario"], &state["running"]["scale"]),
        (&json!("fanout"), &json!(1.0))
    );
    assert_eq!(node.send("POST", "/api/v1/benchmarks/stop", &json!(null)).status, 204);
    for target in ["/api/v1/benchmarks/missing", "/api/v1/benchmarks/missing/report"] {
        node.get(target).problem(404);
    }
    node.delete("/api/v1/benchmarks/missing").problem(404);
    assert_eq!(node.all_pages("/api/v1/audit?operation=start_benchmark", 10).len(), 5);
}

#[test]
fn viewer_and_server_without_load_tool_run_no_benchmark() {
    let node = Node::start(1).with_login();
    let order = json!({ "scenario": "fanout", "duration_s": 5, "confirmed": true });
    node.send("POST", ALL, &order).problem(409);
    let node = Node::start(1).with_viewer("eve", "only looking");
    node.send("POST", ALL, &order).problem(403);
    node.get(ALL).problem(403);
    node.send("POST", "/api/v1/benchmarks/stop", &json!(null)).problem(403);
    node.delete("/api/v1/benchmarks/x").problem(403);
}
