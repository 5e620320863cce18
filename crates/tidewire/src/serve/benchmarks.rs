//! Benchmarks of this node that the API starts. `tidewire bench` runs in a process of its own, so that other threads
//! than those of the server create the load. The server reads its output and stores results in `benchmarks/` of the
//! data directory.
//!
//! The process ends when its standard input is closed: at a stop request, and whenever this server ends. A benchmark
//! that runs too long is killed.

use std::fs;
use std::io::{self, BufRead, BufReader, Read};
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use api::{
    BenchAdmin, BenchError, BenchErrors, BenchMeasure, BenchOrder, BenchResult, BenchScenario, BenchSecond,
    BenchVerdict, Benchmarks, FailedBenchmark, RunningBenchmark,
};
use bench::report::measure::{BetterDirection, MEASURES, MeasureUnit};
use bench::result::RunResult;
use bench::scenario::{Scenario, presets};
use serde::{Deserialize, Serialize};
use web::unix_ms;

use super::backups::{names, unused_name};
use crate::config::options::server::Benchmark;

const DIRECTORY: &str = "benchmarks";
const REPORTS_MAX: usize = 200;
/// Prefix of the name of a benchmark without a report.
const UNFINISHED: &str = ".";
const RESULT_FILE: &str = "result.json";
const PAGE_FILE: &str = "report.html";
/// Summary for the list, so that the list need not read results.
const SUMMARY_FILE: &str = "run.json";
/// Maximum number of stored lines of a running benchmark.
const SECONDS_MAX: usize = 1000;
/// Maximum size of the error output of the load tool.
const COMPLAINTS_BYTES_MAX: u64 = 4096;
/// Additional time for connecting, warm-up and waiting for missing messages.
const GRACE: Duration = Duration::from_secs(120);
const POLL: Duration = Duration::from_millis(50);

pub struct NodeBenchmarks {
    directory: PathBuf,
    limits: BenchmarkLimits,
    /// Address that clients connect to.
    target: Option<SocketAddr>,
    state: Arc<Mutex<BenchmarksState>>,
}

struct BenchmarkLimits {
    disabled_reason: Option<String>,
    clients_max: u64,
    duration_max: Duration,
}

#[derive(Default)]
struct BenchmarksState {
    running: Option<ActiveBenchmark>,
    failure: Option<FailedBenchmark>,
}

struct ActiveBenchmark {
    shown: RunningBenchmark,
    /// Closing it stops the process.
    stdin: Option<ChildStdin>,
}

#[derive(Serialize, Deserialize)]
struct BenchmarkSummary {
    order: BenchOrder,
    is_good: bool,
    is_interrupted: bool,
}

impl NodeBenchmarks {
    /// `target` is a TCP listener without TLS, if there is one.
    pub fn new(data_dir: &Path, options: &Benchmark, target: Option<SocketAddr>) -> NodeBenchmarks {
        let directory = data_dir.join(DIRECTORY);
        for name in names(&directory).iter().filter(|name| name.starts_with(UNFINISHED)) {
            if let Err(error) = fs::remove_dir_all(directory.join(name)) {
                tracing::warn!(%error, name, "cannot delete the files of a benchmark");
            }
        }
        let disabled_reason = match (options.enabled, target) {
            (false, _) => Some("benchmark.enabled is false".to_owned()),
            (true, None) => Some("there is no listener for MQTT over TCP without the PROXY protocol".to_owned()),
            (true, Some(_)) => None,
        };
        NodeBenchmarks {
            directory,
            limits: BenchmarkLimits {
                disabled_reason,
                clients_max: u64::from(options.max_clients),
                duration_max: options.max_duration,
            },
            target,
            state: Arc::default(),
        }
    }

    /// Returns the scenario of a request, if it is within the limits.
    fn check(&self, order: &BenchOrder) -> Result<(), BenchError> {
        let wrong = |field, reason: String| Err(BenchError::Order { field, reason });
        let Some(scenario) = scenarios().find(|scenario| scenario.name == order.scenario) else {
            return wrong(
                "scenario",
                format!("unknown scenario `{}`, or it cannot run here", order.scenario),
            );
        };
        let max_s = self.limits.duration_max.as_secs_f64();
        if order.duration_s > max_s {
            return wrong(
                "duration_s",
                format!("at most {max_s} seconds (benchmark.max_duration)"),
            );
        }
        let clients: f64 = scenario
            .group
            .iter()
            .map(|group| f64::from(group.clients) * if group.scales { order.scale } else { 1.0 })
            .sum();
        if clients > self.limits.clients_max as f64 {
            let max = self.limits.clients_max;
            return wrong(
                "scale",
                format!("{clients:.0} clients are more than {max} (benchmark.max_clients)"),
            );
        }
        Ok(())
    }

    fn spawn(&self, order: &BenchOrder, directory: &Path) -> Result<Child, String> {
        let target = self.target.ok_or("there is no listener")?;
        let program =
            std::env::current_exe().map_err(|error| format!("cannot find the program file of the server: {error}"))?;
        let threads = thread::available_parallelism().map_or(1, usize::from).div_ceil(2);
        Command::new(program)
            .args(["bench", "run", &order.scenario, "--progress", "json"])
            .args([
                "--scale",
                &order.scale.to_string(),
                "--duration",
                &order.duration_s.to_string(),
            ])
            .args(["--host", &target.ip().to_string(), "--port", &target.port().to_string()])
            .args([
                "--threads",
                &threads.to_string(),
                "--broker-pid",
                &std::process::id().to_string(),
            ])
            .arg("--json")
            .arg(directory.join(RESULT_FILE))
            .arg("--html")
            .arg(directory.join(PAGE_FILE))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| format!("cannot start the load tool: {error}"))
    }

    fn path(&self, name: &str) -> Result<PathBuf, BenchError> {
        let known = names(&self.directory).into_iter().find(|known| known == name);
        let known = known.filter(|name| !name.starts_with(UNFINISHED));
        Ok(self.directory.join(known.ok_or(BenchError::Unknown)?))
    }

    fn lock(&self) -> MutexGuard<'_, BenchmarksState> {
        lock(&self.state)
    }
}

fn lock(state: &Mutex<BenchmarksState>) -> MutexGuard<'_, BenchmarksState> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns scenarios that need only a broker.
fn scenarios() -> impl Iterator<Item = Scenario> {
    presets::all().filter(|scenario| scenario.kafka.is_none() && scenario.platform.is_none())
}

/// Changes the address for clients on this machine.
pub fn reachable(mut address: SocketAddr) -> SocketAddr {
    if address.ip().is_unspecified() {
        address.set_ip(match address.ip() {
            IpAddr::V4(_) => std::net::Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(_) => std::net::Ipv6Addr::LOCALHOST.into(),
        });
    }
    address
}

impl BenchAdmin for NodeBenchmarks {
    fn state(&self) -> Benchmarks {
        let (running, failure) = {
            let state = self.lock();
            (
                state.running.as_ref().map(|running| running.shown.clone()),
                state.failure.clone(),
            )
        };
        let finished = names(&self.directory).into_iter();
        let mut items: Vec<api::Benchmark> = finished
            .filter_map(|name| describe(&self.directory.join(&name), name))
            .collect();
        items.sort_by_key(|one| std::cmp::Reverse(one.at_unix_ms));
        Benchmarks {
            disabled_reason: self.limits.disabled_reason.clone(),
            clients_max: self.limits.clients_max,
            duration_max_s: self.limits.duration_max.as_secs_f64(),
            scenarios: scenarios().map(|scenario| view(&scenario)).collect(),
            running,
            failure,
            items,
        }
    }

    fn start(&self, order: BenchOrder) -> Result<String, BenchError> {
        if let Some(reason) = self.limits.disabled_reason.clone() {
            return Err(BenchError::Off { reason });
        }
        self.check(&order)?;
        let mut state = self.lock();
        if state.running.is_some() {
            return Err(BenchError::Running);
        }
        if names(&self.directory).len() >= REPORTS_MAX {
            return Err(BenchError::TooMany { max: REPORTS_MAX });
        }
        let now = jiff::Timestamp::now().strftime("%Y%m%d-%H%M%S");
        let name = unused_name(&self.directory, format!("{now}-{}", order.scenario));
        let unfinished = self.directory.join(format!("{UNFINISHED}{name}"));
        let failed = |reason: String| BenchError::Failed { reason };
        fs::create_dir_all(&unfinished).map_err(|error| failed(format!("{}: {error}", unfinished.display())))?;
        let mut child = self.spawn(&order, &unfinished).map_err(failed)?;
        let stdin = child.stdin.take();
        let run = BenchmarkProcess {
            stdout: child.stdout.take(),
            stderr: child.stderr.take(),
            child,
            deadline: Instant::now() + Duration::from_secs_f64(order.duration_s) + GRACE,
            state: self.state.clone(),
            unfinished,
            finished: self.directory.join(&name),
            order: order.clone(),
        };
        let work = move || run.watch();
        thread::Builder::new()
            .name("benchmark".into())
            .spawn(work)
            .map_err(|error| failed(format!("cannot start a thread: {error}")))?;
        state.failure = None;
        state.running = Some(ActiveBenchmark {
            stdin,
            shown: RunningBenchmark {
                name: name.clone(),
                scenario: order.scenario,
                scale: order.scale,
                duration_s: order.duration_s,
                started_at_unix_ms: unix_ms(SystemTime::now()),
                phase: "connecting".into(),
                is_stopping: false,
                seconds: Vec::new(),
            },
        });
        Ok(name)
    }

    fn stop(&self) -> Result<(), BenchError> {
        let mut state = self.lock();
        let running = state.running.as_mut().ok_or(BenchError::NotRunning)?;
        running.shown.is_stopping = true;
        running.stdin = None;
        Ok(())
    }

    fn result(&self, name: &str) -> Result<BenchResult, BenchError> {
        let path = self.path(name)?.join(RESULT_FILE);
        let failed = |reason: String| BenchError::Failed {
            reason: format!("{}: {reason}", path.display()),
        };
        let bytes = fs::read(&path).map_err(|error| failed(error.to_string()))?;
        let result: RunResult = serde_json::from_slice(&bytes).map_err(|error| failed(input_errors::plain(&error)))?;
        Ok(to_bench_result(name, &result))
    }

    fn page(&self, name: &str) -> Result<PathBuf, BenchError> {
        Ok(self.path(name)?.join(PAGE_FILE))
    }

    fn remove(&self, name: &str) -> Result<(), BenchError> {
        let path = self.path(name)?;
        fs::remove_dir_all(&path).map_err(|error| BenchError::Failed {
            reason: format!("cannot remove {}: {error}", path.display()),
        })
    }
}

/// A running process, from its start to its report.
struct BenchmarkProcess {
    child: Child,
    stdout: Option<ChildStdout>,
    stderr: Option<ChildStderr>,
    deadline: Instant,
    state: Arc<Mutex<BenchmarksState>>,
    unfinished: PathBuf,
    finished: PathBuf,
    order: BenchOrder,
}

impl BenchmarkProcess {
    fn watch(mut self) {
        let (stdout, stderr, state) = (self.stdout.take(), self.stderr.take(), self.state.clone());
        let progress = thread::spawn(move || stdout.map(|stdout| follow(stdout, &state)));
        let complaints = thread::spawn(move || stderr.map(read_error_output).unwrap_or_default());
        let ended = self.wait();
        let _ = progress.join();
        let complaints = complaints.join().unwrap_or_default();
        let result = ended.and_then(|()| self.keep());
        let mut state = lock(&self.state);
        let running = state.running.take();
        let Err(reason) = result else { return };
        let reason = match complaints.trim() {
            "" => reason,
            complaints => complaints.to_owned(),
        };
        tracing::warn!(reason, "a benchmark ended without a report");
        let _ = fs::remove_dir_all(&self.unfinished);
        state.failure = running.map(|running| FailedBenchmark {
            name: running.shown.name,
            at_unix_ms: unix_ms(SystemTime::now()),
            reason,
        });
    }

    fn wait(&mut self) -> Result<(), String> {
        loop {
            match self.child.try_wait() {
                Ok(Some(_)) => return Ok(()),
                Ok(None) if Instant::now() < self.deadline => thread::sleep(POLL),
                Ok(None) => {
                    let _ = self.child.kill();
                    let _ = self.child.wait();
                    return Err("the benchmark ran for too long and was stopped".into());
                }
                Err(error) => return Err(error.to_string()),
            }
        }
    }

    /// Adds the report to the list.
    fn keep(&self) -> Result<(), String> {
        let bytes = fs::read(self.unfinished.join(RESULT_FILE)).map_err(|error| error.to_string())?;
        let result: RunResult =
            serde_json::from_slice(&bytes).map_err(|_| "the load tool wrote no report".to_owned())?;
        let summary = BenchmarkSummary {
            order: self.order.clone(),
            is_good: result.verdicts.iter().all(|verdict| verdict.is_met),
            is_interrupted: result.is_interrupted,
        };
        let text = serde_json::to_vec(&summary).map_err(|error| error.to_string())?;
        let moved = fs::write(self.unfinished.join(SUMMARY_FILE), text);
        let moved = moved.and_then(|()| fs::rename(&self.unfinished, &self.finished));
        moved.map_err(|error: io::Error| error.to_string())
    }
}

/// Lines for programs begin with a brace. The other lines are the report for people.
fn follow(stdout: ChildStdout, state: &Mutex<BenchmarksState>) {
    #[derive(Deserialize)]
    struct PhaseLine {
        phase: String,
    }
    for line in BufReader::new(stdout).lines().map_while(Result::ok) {
        let mut state = lock(state);
        let Some(running) = state.running.as_mut() else {
            continue;
        };
        if let Ok(second) = serde_json::from_str::<BenchSecond>(&line) {
            running.shown.phase.clone_from(&second.phase);
            if running.shown.seconds.len() == SECONDS_MAX {
                running.shown.seconds.remove(0);
            }
            running.shown.seconds.push(second);
        } else if let Ok(PhaseLine { phase }) = serde_json::from_str(&line) {
            running.shown.phase = phase;
        }
    }
}

/// Keeps the first lines and discards the rest.
fn read_error_output(mut stderr: ChildStderr) -> String {
    let mut text = Vec::new();
    let _ = stderr.by_ref().take(COMPLAINTS_BYTES_MAX).read_to_end(&mut text);
    let _ = io::copy(&mut stderr, &mut io::sink());
    String::from_utf8_lossy(&text).into_owned()
}

fn view(scenario: &Scenario) -> BenchScenario {
    let clients = |is_wanted: &dyn Fn(&bench::scenario::ClientGroup) -> bool| {
        let groups = scenario.group.iter().filter(|group| is_wanted(group));
        groups.map(|group| u64::from(group.clients)).sum()
    };
    BenchScenario {
        name: scenario.name.clone(),
        about: scenario.about.clone(),
        clients: clients(&|_| true),
        publishers: clients(&|group| group.publish.is_some()),
        duration_s: scenario.duration_s,
    }
}

fn describe(path: &Path, name: String) -> Option<api::Benchmark> {
    if name.starts_with(UNFINISHED) {
        return None;
    }
    let file = path.join(SUMMARY_FILE);
    let summary: BenchmarkSummary = serde_json::from_slice(&fs::read(&file).ok()?).ok()?;
    Some(api::Benchmark {
        name,
        at_unix_ms: fs::metadata(&file)
            .and_then(|there| there.modified())
            .map(unix_ms)
            .ok()?,
        scenario: summary.order.scenario,
        scale: summary.order.scale,
        duration_s: summary.order.duration_s,
        is_good: summary.is_good,
        is_interrupted: summary.is_interrupted,
    })
}

fn to_bench_result(name: &str, result: &RunResult) -> BenchResult {
    BenchResult {
        name: name.to_owned(),
        started_at: result.started_at.clone(),
        scenario: result.scenario.name.clone(),
        about: result.scenario.about.clone(),
        clients: result.scenario.group.iter().map(|group| u64::from(group.clients)).sum(),
        measured_s: result.measured_s,
        is_interrupted: result.is_interrupted,
        measures: MEASURES
            .iter()
            .map(|measure| BenchMeasure {
                name: measure.name.into(),
                about: measure.about.into(),
                unit: unit(measure.unit).into(),
                better: better_direction_name(measure.better).into(),
                value: (measure.of)(result).filter(|value| value.is_finite()),
            })
            .collect(),
        verdicts: result
            .verdicts
            .iter()
            .map(|verdict| BenchVerdict {
                rule: verdict.rule.clone(),
                found: verdict.found.clone(),
                is_met: verdict.is_met,
            })
            .collect(),
        errors: result
            .errors
            .iter()
            .map(|(error, count)| BenchErrors {
                error: error.clone(),
                count: *count,
            })
            .collect(),
    }
}

fn unit(unit: MeasureUnit) -> &'static str {
    match unit {
        MeasureUnit::Count => "count",
        MeasureUnit::PerSecond => "per_second",
        MeasureUnit::Milliseconds => "milliseconds",
        MeasureUnit::Seconds => "seconds",
        MeasureUnit::Bytes => "bytes",
        MeasureUnit::Share => "share",
        MeasureUnit::Cores => "cores",
    }
}

fn better_direction_name(better: BetterDirection) -> &'static str {
    match better {
        BetterDirection::More => "more",
        BetterDirection::Less => "less",
        BetterDirection::Neither => "neither",
    }
}
