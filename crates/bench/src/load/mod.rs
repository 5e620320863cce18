//! The driver of this process: worker threads, each with a poll loop, generate the load of a job.
//!
//! ```text
//! LocalDriver ──orders──► worker (thread) ── clients ── links ──► broker
//!       ▲                    │ plan (read-only), a few shared counters
//!       └──────notes─────────┘
//! ```
//! A worker owns its connections and all their state; workers share the plan and counters, but no lock. The driver
//! itself has no thread: it combines the workers' reports when it is asked for events.
//!
//! With several machines, each driver knows only what arrived in its own process. A window of QoS 0 messages counts the
//! deliveries in this process. For a shared subscription whose members are on several machines, a driver reports what
//! arrived here, and [`conclude_shares`] combines the reports.

mod client;
mod clock;
mod context;
mod flow;
mod lifecycle;
mod link;
mod meter;
mod others;
mod outbound;
mod pattern;
mod payload;
mod plan;
mod publish;
mod quic_link;
mod receive;
mod reconcile;
mod schedule;
mod shares;
mod sources;
mod stages;
mod tcp_info;
mod tls;
mod traffic;
mod truth;
mod worker;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use mio::{Poll, Waker};

use crate::driver::{
    ClientIndex, Driver, DriverCommand, DriverEvent, DriverJob, GroupIndex, LoadInterval, ReconcileOutcome, SentCounts,
    Unaccepted,
};
use plan::LoadPlan;
use reconcile::{Findings, SentTable};
use worker::{LoadWorker, WAKER, WorkerOrder, WorkerReport};

pub(crate) use meter::thread_cpu_ns;
pub(crate) use meter::{add_counts, add_parallel};
pub(crate) use pattern::TopicTemplate;
pub(crate) use pattern::random_bound;
pub use pattern::{PatternValues, expand};
pub(crate) use payload::random_length;
pub use shares::conclude_shares;
pub(crate) use sources::TopicTree;
pub(crate) use truth::{SENDERS_MAX, SenderNumber};

/// Descriptors besides the connections: polls, timers, logs.
const OTHER_DESCRIPTORS: u64 = 100;

pub struct LocalDriver {
    name: String,
    origin: Instant,
    workers: Option<JobWorkers>,
    ready: VecDeque<DriverEvent>,
}

/// The workers of a job and the parts of their answers.
struct JobWorkers {
    plan: Arc<LoadPlan>,
    orders: Vec<Sender<WorkerOrder>>,
    threads: Vec<JoinHandle<()>>,
    notes: Receiver<(u32, WorkerReport)>,
    /// Intervals by their end that some workers have not yet reported, and the time until which each worker has
    /// reported.
    intervals: BTreeMap<u64, LoadInterval>,
    reported_ns: Vec<u64>,
    /// Parts of answers, until all workers have sent theirs.
    settled: u32,
    cuts: Vec<LoadInterval>,
    sent: Vec<(GroupIndex, ClientIndex, u64)>,
    unaccepted: Vec<(GroupIndex, Unaccepted)>,
    sent_parts: u32,
    findings: Vec<Findings>,
    table: Option<Arc<SentTable>>,
}

impl LocalDriver {
    /// Creates a driver. `origin` is time 0 of its clock; in the orchestrator's process that is time 0 of the run
    /// clock.
    pub fn new(name: impl Into<String>, origin: Instant) -> LocalDriver {
        LocalDriver {
            name: name.into(),
            origin,
            workers: None,
            ready: VecDeque::new(),
        }
    }
}

impl Driver for LocalDriver {
    fn name(&self) -> &str {
        &self.name
    }

    fn command(&mut self, command: DriverCommand) -> Result<(), String> {
        let command = match command {
            DriverCommand::Connect(job) => {
                let team = self.workers.insert(JobWorkers::start(*job, self.origin)?);
                return team.order(&WorkerOrder::Connect);
            }
            other => other,
        };
        let Some(team) = &mut self.workers else {
            return Err("the first command must be `Connect`".into());
        };
        match command {
            DriverCommand::Connect(_) => Ok(()),
            DriverCommand::Publish { start_ns } => team.order(&WorkerOrder::Publish { start_ns }),
            DriverCommand::Return => team.order(&WorkerOrder::Return),
            DriverCommand::Stop => team.order(&WorkerOrder::Stop),
            DriverCommand::Reconcile { sent } => {
                let table = Arc::new(SentTable::new(&team.plan, &sent));
                team.table = Some(table.clone());
                team.order(&WorkerOrder::Reconcile(table))
            }
        }
    }

    fn event(&mut self, timeout: Duration) -> Result<Option<DriverEvent>, String> {
        let deadline = Instant::now() + timeout;
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Ok(Some(event));
            }
            let Some(team) = &mut self.workers else { return Ok(None) };
            match team
                .notes
                .recv_timeout(deadline.saturating_duration_since(Instant::now()))
            {
                Ok((worker, note)) => team.take(worker, note, &mut self.ready)?,
                Err(RecvTimeoutError::Timeout) => return Ok(None),
                Err(RecvTimeoutError::Disconnected) if team.table.is_some() => return Ok(None),
                Err(RecvTimeoutError::Disconnected) => return Err("all worker threads have ended".into()),
            }
        }
    }
}

impl JobWorkers {
    fn start(job: DriverJob, origin: Instant) -> Result<JobWorkers, String> {
        let wanted: u64 = job
            .clients
            .iter()
            .map(|clients| u64::from(clients.end.saturating_sub(clients.start)))
            .sum();
        permit_descriptors(wanted)?;
        let threads = u32::from(job.threads.max(1));
        let failed = |error: std::io::Error| format!("cannot start a worker thread: {error}");
        let polls: Vec<Poll> = (0..threads)
            .map(|_| Poll::new())
            .collect::<Result<_, _>>()
            .map_err(failed)?;
        let wakers: Result<Vec<Waker>, _> = polls.iter().map(|poll| Waker::new(poll.registry(), WAKER)).collect();
        let plan = Arc::new(LoadPlan::new(job, origin, wakers.map_err(failed)?)?);
        let (note_sender, notes) = channel();
        let (mut orders, mut handles) = (Vec::new(), Vec::new());
        for (thread, poll) in polls.into_iter().enumerate() {
            let (sender, receiver) = channel();
            orders.push(sender);
            let worker =
                LoadWorker::new(plan.clone(), thread as u32, poll, receiver, note_sender.clone()).map_err(failed)?;
            let builder = std::thread::Builder::new().name(format!("load-{thread}"));
            handles.push(builder.spawn(move || worker.run()).map_err(failed)?);
        }
        Ok(JobWorkers {
            orders,
            threads: handles,
            notes,
            intervals: BTreeMap::new(),
            reported_ns: vec![0; threads as usize],
            settled: 0,
            cuts: Vec::new(),
            sent: Vec::new(),
            unaccepted: Vec::new(),
            sent_parts: 0,
            findings: Vec::new(),
            table: None,
            plan,
        })
    }

    fn order(&self, order: &WorkerOrder) -> Result<(), String> {
        for (sender, signal) in self.orders.iter().zip(&self.plan.shared.signals) {
            sender
                .send(order.clone())
                .map_err(|_| "a worker thread has ended".to_string())?;
            signal
                .waker
                .wake()
                .map_err(|error| format!("cannot wake a worker thread: {error}"))?;
        }
        Ok(())
    }

    fn size(&self) -> u32 {
        self.threads.len() as u32
    }

    fn take(&mut self, worker: u32, note: WorkerReport, ready: &mut VecDeque<DriverEvent>) -> Result<(), String> {
        match note {
            WorkerReport::Interval(interval) => self.take_interval(worker, *interval, ready),
            WorkerReport::Cut(interval) => {
                self.cuts.push(*interval);
                if self.cuts.len() as u32 == self.size() {
                    ready.push_back(DriverEvent::Ready(Box::new(merged(self.cuts.drain(..)))));
                }
            }
            WorkerReport::Settled { given_up } => return self.take_settled(given_up),
            WorkerReport::NoneAccepted(reason) => {
                ready.push_back(DriverEvent::Failed(format!(
                    "no connection was accepted; the last reason was: {reason}"
                )));
            }
            WorkerReport::Sent(counts, unaccepted) => {
                self.sent.extend(counts);
                self.unaccepted.extend(unaccepted);
                self.sent_parts += 1;
                if self.sent_parts == self.size() {
                    ready.push_back(DriverEvent::Sent { sent: self.take_sent() });
                }
            }
            WorkerReport::Outcome(findings) => {
                self.findings.push(*findings);
                self.reported_ns[worker as usize] = u64::MAX;
                if self.findings.len() as u32 == self.size() {
                    self.end(ready);
                }
            }
            WorkerReport::Failed(reason) => ready.push_back(DriverEvent::Failed(reason)),
        }
        Ok(())
    }

    fn take_settled(&mut self, _given_up: u32) -> Result<(), String> {
        self.settled += 1;
        if self.settled < self.size() {
            return Ok(());
        }
        self.settled = 0;
        self.order(&WorkerOrder::Cut)
    }

    /// Adds an interval of a worker. It is complete when every worker has reported until its end or later.
    fn take_interval(&mut self, worker: u32, interval: LoadInterval, ready: &mut VecDeque<DriverEvent>) {
        self.reported_ns[worker as usize] = interval.end_ns;
        match self.intervals.get_mut(&interval.end_ns) {
            Some(sum) => add_parallel(sum, &interval),
            None => drop(self.intervals.insert(interval.end_ns, interval)),
        }
        let whole_ns = self.reported_ns.iter().copied().min().unwrap_or(0);
        while let Some(first) = self.intervals.first_entry().filter(|first| *first.key() <= whole_ns) {
            ready.push_back(DriverEvent::Progress(Box::new(first.remove())));
        }
    }

    fn take_sent(&mut self) -> Vec<SentCounts> {
        self.sent.sort_unstable();
        let mut sent: Vec<SentCounts> = Vec::new();
        for (group, client, count) in self.sent.drain(..) {
            match sent.last_mut().filter(|last| last.group == group) {
                Some(last) => last.counts.push(count),
                None => sent.push(SentCounts {
                    group,
                    first: client,
                    counts: vec![count],
                    unaccepted: Vec::new(),
                }),
            }
        }
        for (group, range) in self.unaccepted.drain(..) {
            if let Some(part) = sent.iter_mut().find(|part| part.group == group) {
                part.unaccepted.push(range);
            }
        }
        sent
    }

    /// Reports the remaining intervals, then the outcome.
    fn end(&mut self, ready: &mut VecDeque<DriverEvent>) {
        let rest = std::mem::take(&mut self.intervals);
        if !rest.is_empty() {
            ready.push_back(DriverEvent::Progress(Box::new(merged(rest.into_values()))));
        }
        let Some(table) = &self.table else { return };
        let whole = reconcile::conclude(&self.plan, table, std::mem::take(&mut self.findings));
        let mut errors: Vec<(String, u64)> = whole.errors.into_iter().collect();
        errors.sort_by(|one, other| other.1.cmp(&one.1).then_with(|| one.0.cmp(&other.0)));
        let outcome = ReconcileOutcome {
            truth: whole.truth,
            examples: whole.examples,
            errors,
            last_arrival_ns: self.plan.shared.last_arrival_ns.load(Relaxed),
            shares: whole.receipts,
        };
        ready.push_back(DriverEvent::Outcome(Box::new(outcome)));
    }
}

impl Drop for JobWorkers {
    fn drop(&mut self) {
        // Fails for workers that have ended, which need no order.
        let _ = self.order(&WorkerOrder::Quit);
        self.orders.clear();
        for (thread, signal) in self.threads.drain(..).zip(&self.plan.shared.signals) {
            let _ = signal.waker.wake();
            let _ = thread.join();
        }
    }
}

fn merged(intervals: impl Iterator<Item = LoadInterval>) -> LoadInterval {
    let mut sum = LoadInterval::default();
    for interval in intervals {
        add_parallel(&mut sum, &interval);
    }
    sum
}

/// Raises the soft limit of open files to the number that this run needs; fails if the hard limit is lower.
fn permit_descriptors(connections: u64) -> Result<(), String> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let wanted = connections + OTHER_DESCRIPTORS;
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_none_or(|current| current >= wanted) {
        return Ok(());
    }
    if limit.maximum.is_some_and(|maximum| maximum < wanted) {
        let maximum = limit.maximum.unwrap_or(0);
        return Err(format!(
            "{connections} connections need {wanted} open files; the hard limit is {maximum}; raise it (`ulimit -Hn`)"
        ));
    }
    let raised = Rlimit {
        current: Some(wanted),
        maximum: limit.maximum,
    };
    setrlimit(Resource::Nofile, raised)
        .map_err(|error| format!("cannot raise the limit of open files to {wanted}: {error}"))
}
