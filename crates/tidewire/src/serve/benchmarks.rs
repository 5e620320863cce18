//! Benchmarks of this node that the API starts: `tidewire bench` in a process of its own, so that the load is made by other threads than
//! the server's, watched by what it prints, and kept in `benchmarks/` of the data directory.
//!
//! The process ends when its standard input does: with a stop, and with this server, however that ends. One that goes on for too long is killed.

use std::fs;
use std::io::{self, BufRead, BufReader, Read};
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use api::{
    BenchAdmin, BenchError, BenchErrors, BenchMeasure, BenchOrder, BenchResult, BenchScenario, BenchSecond, BenchState,
    BenchVerdict, FailedBench, FinishedBench, RunningBench,
};
use bench::report::measure::{Better, MEASURES, Unit};
use bench::result::RunResult;
use bench::scenario::{Scenario, presets};
use serde::{Deserialize, Serialize};

use crate::config::options::server::Benchmark;

const DIRECTORY: &str = "benchmarks";
const REPORTS_MAX: usize = 200;
/// Of a name that has no report yet.
const UNFINISHED: &str = ".";
const RESULT_FILE: &str = "result.json";
const PAGE_FILE: &str = "report.html";
/// What the list shows, so that it need not read results.
const SUMMARY_FILE: &str = "run.json";
/// Kept of a run that goes on.
const SECONDS_MAX: usize = 1000;
/// Of what the load tool complains about.
const COMPLAINTS_BYTES_MAX: u64 = 4096;
/// Connecting, warm-up, waiting for what is missing.
const GRACE: Duration = Duration::from_secs(120);
const POLL: Duration = Duration::from_millis(50);

pub struct Benchmarks {
    directory: PathBuf,
    limits: Limits,
    /// Where clients connect.
    target: Option<SocketAddr>,
    state: Arc<Mutex<State>>,
}

struct Limits {
    off_because: Option<String>,
    clients_max: u64,
    duration_max: Duration,
}

#[derive(Default)]
struct State {
    running: Option<Running>,
    failure: Option<FailedBench>,
}

struct Running {
    shown: RunningBench,
    /// Dropped to stop it.
    stdin: Option<ChildStdin>,
}

#[derive(Serialize, Deserialize)]
struct Summary {
    order: BenchOrder,
    is_good: bool,
    is_interrupted: bool,
}

impl Benchmarks {
    /// `target`: a listener for plain TCP, if there is one.
    pub fn new(data_dir: &Path, options: &Benchmark, target: Option<SocketAddr>) -> Benchmarks {
        let directory = data_dir.join(DIRECTORY);
        for name in names(&directory).iter().filter(|name| name.starts_with(UNFINISHED)) {
            if let Err(error) = fs::remove_dir_all(directory.join(name)) {
                tracing::warn!(%error, name, "what is left of a benchmark stays");
            }
        }
        let off_because = match (options.enabled, target) {
            (false, _) => Some("benchmark.enabled is false".to_owned()),
            (true, None) => Some("there is no listener for MQTT over TCP without the PROXY protocol".to_owned()),
            (true, Some(_)) => None,
        };
        Benchmarks {
            directory,
            limits: Limits {
                off_because,
                clients_max: u64::from(options.max_clients),
                duration_max: options.max_duration,
            },
            target,
            state: Arc::default(),
        }
    }

    /// The scenario of an order, if it is within the limits.
    fn check(&self, order: &BenchOrder) -> Result<(), BenchError> {
        let wrong = |field, because: String| Err(BenchError::Order { field, because });
        let Some(scenario) = scenarios().find(|scenario| scenario.name == order.scenario) else {
            return wrong(
                "scenario",
                format!("there is no scenario `{}` that can be run here", order.scenario),
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
        let program = std::env::current_exe().map_err(|error| format!("this program cannot be found: {error}"))?;
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
            .map_err(|error| format!("the load tool cannot be started: {error}"))
    }

    fn path(&self, name: &str) -> Result<PathBuf, BenchError> {
        let known = names(&self.directory).into_iter().find(|known| known == name);
        let known = known.filter(|name| !name.starts_with(UNFINISHED));
        Ok(self.directory.join(known.ok_or(BenchError::Unknown)?))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Those that need nothing but a broker.
fn scenarios() -> impl Iterator<Item = Scenario> {
    presets::all().filter(|scenario| scenario.kafka.is_none() && scenario.platform.is_none())
}

/// For clients on this machine.
pub fn reachable(mut address: SocketAddr) -> SocketAddr {
    if address.ip().is_unspecified() {
        address.set_ip(match address.ip() {
            IpAddr::V4(_) => std::net::Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(_) => std::net::Ipv6Addr::LOCALHOST.into(),
        });
    }
    address
}

impl BenchAdmin for Benchmarks {
    fn state(&self) -> BenchState {
        let (running, failure) = {
            let state = self.lock();
            (
                state.running.as_ref().map(|running| running.shown.clone()),
                state.failure.clone(),
            )
        };
        let finished = names(&self.directory).into_iter();
        let mut finished: Vec<FinishedBench> = finished
            .filter_map(|name| describe(&self.directory.join(&name), name))
            .collect();
        finished.sort_by_key(|one| std::cmp::Reverse(one.at));
        BenchState {
            off_because: self.limits.off_because.clone(),
            clients_max: self.limits.clients_max,
            duration_max_s: self.limits.duration_max.as_secs_f64(),
            scenarios: scenarios().map(|scenario| view(&scenario)).collect(),
            running,
            failure,
            finished,
        }
    }

    fn start(&self, order: BenchOrder) -> Result<String, BenchError> {
        if let Some(because) = self.limits.off_because.clone() {
            return Err(BenchError::Off { because });
        }
        self.check(&order)?;
        let mut state = self.lock();
        if state.running.is_some() {
            return Err(BenchError::Running);
        }
        if names(&self.directory).len() >= REPORTS_MAX {
            return Err(BenchError::TooMany { max: REPORTS_MAX });
        }
        let name = unused_name(&self.directory, &order.scenario);
        let unfinished = self.directory.join(format!("{UNFINISHED}{name}"));
        let failed = |because: String| BenchError::Failed { because };
        fs::create_dir_all(&unfinished).map_err(|error| failed(format!("{}: {error}", unfinished.display())))?;
        let mut child = self.spawn(&order, &unfinished).map_err(failed)?;
        let stdin = child.stdin.take();
        let run = Run {
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
            .map_err(|error| failed(format!("no thread for it: {error}")))?;
        state.failure = None;
        state.running = Some(Running {
            stdin,
            shown: RunningBench {
                name: name.clone(),
                order,
                started_at: SystemTime::now(),
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
        let failed = |because: String| BenchError::Failed {
            because: format!("{}: {because}", path.display()),
        };
        let bytes = fs::read(&path).map_err(|error| failed(error.to_string()))?;
        let result: RunResult = serde_json::from_slice(&bytes).map_err(|error| failed(error.to_string()))?;
        Ok(told(name, &result))
    }

    fn page(&self, name: &str) -> Result<PathBuf, BenchError> {
        Ok(self.path(name)?.join(PAGE_FILE))
    }

    fn remove(&self, name: &str) -> Result<(), BenchError> {
        let path = self.path(name)?;
        fs::remove_dir_all(&path).map_err(|error| BenchError::Failed {
            because: format!("{} cannot be removed: {error}", path.display()),
        })
    }
}

/// A process that runs, from its start to its report.
struct Run {
    child: Child,
    stdout: Option<ChildStdout>,
    stderr: Option<ChildStderr>,
    deadline: Instant,
    state: Arc<Mutex<State>>,
    unfinished: PathBuf,
    finished: PathBuf,
    order: BenchOrder,
}

impl Run {
    fn watch(mut self) {
        let (stdout, stderr, state) = (self.stdout.take(), self.stderr.take(), self.state.clone());
        let progress = thread::spawn(move || stdout.map(|stdout| follow(stdout, &state)));
        let complaints = thread::spawn(move || stderr.map(complaints).unwrap_or_default());
        let ended = self.wait();
        let _ = progress.join();
        let complaints = complaints.join().unwrap_or_default();
        let kept = ended.and_then(|()| self.keep());
        let mut state = lock(&self.state);
        let running = state.running.take();
        let Err(because) = kept else { return };
        let because = match complaints.trim() {
            "" => because,
            complaints => complaints.to_owned(),
        };
        tracing::warn!(because, "a benchmark gave no report");
        let _ = fs::remove_dir_all(&self.unfinished);
        state.failure = running.map(|running| FailedBench {
            name: running.shown.name,
            at: SystemTime::now(),
            because,
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
                    return Err("it went on for too long and was ended".into());
                }
                Err(error) => return Err(error.to_string()),
            }
        }
    }

    /// The report becomes one of those that are listed.
    fn keep(&self) -> Result<(), String> {
        let bytes = fs::read(self.unfinished.join(RESULT_FILE)).map_err(|error| error.to_string())?;
        let result: RunResult =
            serde_json::from_slice(&bytes).map_err(|_| "the load tool gave no report".to_owned())?;
        let summary = Summary {
            order: self.order.clone(),
            is_good: result.verdicts.iter().all(|verdict| verdict.is_met),
            is_interrupted: result.is_interrupted,
        };
        let text = serde_json::to_vec(&summary).map_err(|error| error.to_string())?;
        let kept = fs::write(self.unfinished.join(SUMMARY_FILE), text);
        let kept = kept.and_then(|()| fs::rename(&self.unfinished, &self.finished));
        kept.map_err(|error: io::Error| error.to_string())
    }
}

/// Lines for programs begin with a brace; others are the report for people.
fn follow(stdout: ChildStdout, state: &Mutex<State>) {
    #[derive(Deserialize)]
    struct Phase {
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
        } else if let Ok(Phase { phase }) = serde_json::from_str(&line) {
            running.shown.phase = phase;
        }
    }
}

/// The beginning of them; the rest is read and forgotten.
fn complaints(mut stderr: ChildStderr) -> String {
    let mut text = Vec::new();
    let _ = stderr.by_ref().take(COMPLAINTS_BYTES_MAX).read_to_end(&mut text);
    let _ = io::copy(&mut stderr, &mut io::sink());
    String::from_utf8_lossy(&text).into_owned()
}

fn view(scenario: &Scenario) -> BenchScenario {
    let clients = |is_wanted: &dyn Fn(&bench::scenario::Group) -> bool| {
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

fn describe(path: &Path, name: String) -> Option<FinishedBench> {
    if name.starts_with(UNFINISHED) {
        return None;
    }
    let file = path.join(SUMMARY_FILE);
    let summary: Summary = serde_json::from_slice(&fs::read(&file).ok()?).ok()?;
    Some(FinishedBench {
        name,
        at: fs::metadata(&file).and_then(|there| there.modified()).ok()?,
        order: summary.order,
        is_good: summary.is_good,
        is_interrupted: summary.is_interrupted,
    })
}

fn told(name: &str, result: &RunResult) -> BenchResult {
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
                better: better(measure.better).into(),
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
            .map(|(what, count)| BenchErrors {
                what: what.clone(),
                count: *count,
            })
            .collect(),
    }
}

fn unit(unit: Unit) -> &'static str {
    match unit {
        Unit::Count => "count",
        Unit::PerSecond => "per_second",
        Unit::Milliseconds => "milliseconds",
        Unit::Seconds => "seconds",
        Unit::Bytes => "bytes",
        Unit::Share => "share",
        Unit::Cores => "cores",
    }
}

fn better(better: Better) -> &'static str {
    match better {
        Better::More => "more",
        Better::Less => "less",
        Better::Neither => "neither",
    }
}

/// By time and scenario; two within a second are told apart.
fn unused_name(directory: &Path, scenario: &str) -> String {
    let base = format!("{}-{scenario}", chrono::Utc::now().format("%Y%m%d-%H%M%S"));
    let is_free = |name: &String| !directory.join(name).exists();
    let numbered = (2..).map(|number| format!("{base}-{number}"));
    std::iter::once(base.clone())
        .chain(numbered)
        .find(is_free)
        .unwrap_or(base)
}

/// Of the directories in a directory.
fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let directories = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    directories
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect()
}
