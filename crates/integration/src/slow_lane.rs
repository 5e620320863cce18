//! The slow lane: threads that evaluate expensive rules, so that no shard waits for them.
//!
//! A shard submits a [`EvaluationJob`] per message and slow rule (`offload.rs`). A thread of the lane evaluates the
//! rule, renders the templates of its actions and puts a [`FinishedJob`] into the shard's [`ResultInbox`]. The shard
//! then appends the records to the buffers of actions and publishes republished messages. The threads of the lane
//! therefore need no access to buffers, receipts and sessions.
//!
//! # Order
//!
//! There is one queue per rule and shard, and at most one thread works on it. A rule therefore sees the messages of a
//! shard in their order, as on the fast path. This also preserves the order per client, because a session belongs to
//! one shard. A rule uses at most one thread per shard, as on the fast path. Queues are served in turn, one job at a
//! time.
//!
//! # Limits
//!
//! A rule may have [`MESSAGES_MAX`] messages or [`BYTES_MAX`] bytes queued. All rules together may have
//! [`ALL_BYTES_MAX`] bytes queued. Above these limits, a shard holds back publishers at QoS 1 and 2, and drops other
//! messages. To save time, a shard checks the limits for each message only in ticks that begin with a queue that is at
//! least half full.
//!
//! The threads start with the first slow rule. They have a lower priority than the shards, if the operating system
//! supports this per thread.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

use broker::tap::TapPublication;
use connectors::Records;
use rules::{Column, Evaluator, EventKind, Map, RuleEvent, Value};

use crate::cause::{EventCause, OutputContext, OwnedEventCause};
use crate::clock::{cpu_time, unix_ms};
use crate::environment::{LiveEnvironment, RuleTime, SharedStore};
use crate::metrics::RuleCounts;
use crate::output::{OutputLoss, OutputWriter, RuleEvaluation, RuleOutlet, render_diverted, render_record};
use crate::set::{LiveAction, LiveRule};
use crate::timing::SlowLaneLoad;

/// Limit of queued messages and events per rule.
pub const MESSAGES_MAX: usize = 1000;

/// Limit of queued bytes per rule. An empty queue accepts a message of any size.
pub const BYTES_MAX: usize = 16 << 20;

/// Limit of queued bytes of all rules.
pub(crate) const ALL_BYTES_MAX: usize = 64 << 20;

/// Republished messages have no publisher that the shard could hold back. They are dropped only above this multiple of
/// the limits.
const MADE_TIMES: usize = 2;

/// Approximate memory of a queued message in addition to its columns and payload.
const JOB_BYTES: usize = 1024;

/// Nice value of the lane's threads. Shards run at 0.
const NICE: i32 = 10;

const THREADS_MAX: usize = 16;

/// A copy of an event, which outlives its tick.
pub struct EventSnapshot {
    kind: EventKind,
    columns: Vec<(Column, Value)>,
    payload: Vec<u8>,
}

impl EventSnapshot {
    pub fn of(event: &dyn RuleEvent) -> EventSnapshot {
        let kind = event.kind();
        let columns = kind.columns().filter(|column| *column != Column::Payload);
        EventSnapshot {
            kind,
            columns: columns.map(|column| (column, event.column(column))).collect(),
            payload: event.payload().to_vec(),
        }
    }

    pub fn bytes(&self) -> usize {
        let columns = self.columns.iter().map(|(_, value)| value.size());
        JOB_BYTES + self.payload.len() + columns.sum::<usize>()
    }
}

impl RuleEvent for EventSnapshot {
    fn kind(&self) -> EventKind {
        self.kind
    }

    fn column(&self, column: Column) -> Value {
        let mut columns = self.columns.iter();
        let found = columns.find(|(known, _)| *known == column);
        found.map_or(Value::Undefined, |(_, value)| value.clone())
    }

    fn payload(&self) -> &[u8] {
        &self.payload
    }
}

/// One evaluation.
pub struct EvaluationJob {
    pub live: Arc<LiveRule>,
    /// The actions that the rule's outputs refer to by index.
    pub actions: Arc<[LiveAction]>,
    pub event: Arc<EventSnapshot>,
    pub bytes: usize,
    pub cause: OwnedEventCause,
    pub unix_ms: u64,
    pub rule_time: RuleTime,
    /// The shard sets it when everything that the publisher waits for is durable. `None` if no publisher waits.
    pub is_durable: Option<Arc<AtomicBool>>,
}

/// A job with its result.
pub struct FinishedJob {
    pub job: EvaluationJob,
    pub counts: RuleCounts,
    pub outputs: RenderedOutputs,
}

/// The rendered outputs of one evaluation.
#[derive(Default)]
pub struct RenderedOutputs {
    pub items: Vec<RenderedOutput>,
    scratch: Vec<u8>,
}

pub enum RenderedOutput {
    /// A record for the action with this index.
    Record {
        action: usize,
        records: Records,
    },
    /// A record that carries data for the fallbacks only, because the templates of the action could not be rendered.
    Diverted {
        action: usize,
        records: Records,
    },
    Republish(TapPublication),
}

impl RuleOutlet for RenderedOutputs {
    fn record(
        &mut self,
        actions: &[LiveAction],
        action: usize,
        output: &Map,
        cause: EventCause<'_>,
        stamp: OutputContext<'_>,
    ) -> Result<(), OutputLoss> {
        let live = &actions[action];
        if live.bridge.has_own_mark(stamp.bridges) {
            return Err(OutputLoss::Loop);
        }
        let mut records = Records::new();
        match render_record(&mut records, live, output, cause, stamp, &mut self.scratch) {
            Ok(()) => {
                self.items.push(RenderedOutput::Record { action, records });
                Ok(())
            }
            Err(lost) => {
                if !live.fallbacks.is_empty() {
                    render_diverted(&mut records, live, output, cause, stamp);
                    self.items.push(RenderedOutput::Diverted { action, records });
                }
                Err(lost)
            }
        }
    }

    /// The shard's runner checks the limits.
    fn publish(&mut self, made: TapPublication) -> Result<(), OutputLoss> {
        self.items.push(RenderedOutput::Republish(made));
        Ok(())
    }
}

/// Results for one shard. The results of a rule are in the order of its messages. The limits of the queues bound the
/// size of the inbox, because the shard empties it in every tick.
#[derive(Default)]
pub struct ResultInbox {
    number: u64,
    finished: Mutex<VecDeque<FinishedJob>>,
}

impl ResultInbox {
    pub fn take(&self) -> VecDeque<FinishedJob> {
        std::mem::take(&mut self.lock())
    }

    /// Adds a result. Returns whether the inbox was empty.
    fn put(&self, finished: FinishedJob) -> bool {
        let mut all = self.lock();
        all.push_back(finished);
        all.len() == 1
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<FinishedJob>> {
        self.finished.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The lane. Dropping it ends its threads after their current evaluation.
pub struct SlowLane {
    shared: Arc<SlowLaneShared>,
    inboxes: AtomicU64,
    threads: usize,
}

struct SlowLaneShared {
    threshold_ns: AtomicU64,
    /// Number of rules whose queue is at least half full.
    half_full_rules: AtomicUsize,
    /// Queued bytes of all rules.
    bytes: AtomicUsize,
    store: SharedStore,
    net: Arc<OnceLock<net::ServerHandle>>,
    queues: Mutex<JobQueues>,
    has_job: Condvar,
}

/// Identifies a queue: number of the shard's inbox, mark of the rule.
type JobQueueKey = (u64, u32);

#[derive(Default)]
struct JobQueues {
    /// A queue exists from its first job until its last one is done. It is in `ready` unless a thread works on it.
    jobs: HashMap<JobQueueKey, VecDeque<(EvaluationJob, Arc<ResultInbox>)>>,
    /// Queues with a job and without a thread, in the order of service.
    ready: VecDeque<JobQueueKey>,
    /// Number of running threads.
    threads: usize,
    is_stopping: bool,
}

impl SlowLane {
    pub fn new(store: SharedStore, net: Arc<OnceLock<net::ServerHandle>>) -> SlowLane {
        let cores = thread::available_parallelism().map_or(1, |cores| cores.get());
        SlowLane {
            shared: Arc::new(SlowLaneShared {
                threshold_ns: AtomicU64::new(u64::MAX),
                half_full_rules: AtomicUsize::new(0),
                bytes: AtomicUsize::new(0),
                store,
                net,
                queues: Mutex::default(),
                has_job: Condvar::new(),
            }),
            inboxes: AtomicU64::new(0),
            threads: cores.min(THREADS_MAX),
        }
    }

    /// Sets the threshold. With `None`, all rules are evaluated on the shards' threads.
    pub fn set_threshold(&self, threshold: Option<Duration>) {
        let threshold_ns = threshold.map_or(u64::MAX, |it| u64::try_from(it.as_nanos()).unwrap_or(u64::MAX));
        self.shared.threshold_ns.store(threshold_ns, Relaxed);
    }

    pub fn threshold(&self) -> Duration {
        self.shared.threshold()
    }

    /// Creates the inbox of a shard.
    pub fn inbox(&self) -> Arc<ResultInbox> {
        Arc::new(ResultInbox {
            number: self.inboxes.fetch_add(1, Relaxed),
            finished: Mutex::default(),
        })
    }

    /// Adds the measured time of an evaluation. Starts the threads before the first rule becomes slow.
    pub fn measure(&self, live: &LiveRule, took: Duration, now_ms: u64) {
        if took < self.threshold() || live.timing.is_slow() || self.start() {
            self.shared.measure(live, took, now_ms);
        }
    }

    /// Returns whether shards must check queues before they accept messages for slow rules.
    pub fn has_half_full_queue(&self) -> bool {
        self.shared.half_full_rules.load(Relaxed) > 0 || self.shared.bytes.load(Relaxed) >= ALL_BYTES_MAX / 2
    }

    /// Returns whether a rule's queue is full. `unsubmitted` are the messages and bytes that the shard has not
    /// submitted yet.
    pub fn is_full(&self, load: &SlowLaneLoad, unsubmitted: (usize, usize)) -> bool {
        self.exceeds(load, unsubmitted, 1)
    }

    /// Like [`Self::is_full`], for messages that another rule made.
    pub fn is_full_for_republished(&self, load: &SlowLaneLoad, unsubmitted: (usize, usize)) -> bool {
        self.exceeds(load, unsubmitted, MADE_TIMES)
    }

    fn exceeds(&self, load: &SlowLaneLoad, (messages, bytes): (usize, usize), times: usize) -> bool {
        load.messages.load(Relaxed) + messages >= times * MESSAGES_MAX
            || load.bytes.load(Relaxed) + bytes >= times * BYTES_MAX
            || self.shared.bytes.load(Relaxed) + bytes >= times * ALL_BYTES_MAX
    }

    /// Submits jobs.
    pub fn submit(&self, jobs: &mut Vec<EvaluationJob>, inbox: &Arc<ResultInbox>) {
        let mut queues = self.shared.lock();
        for job in jobs.drain(..) {
            let key = (inbox.number, job.live.mark);
            self.shared.add(&job);
            let job = (job, Arc::clone(inbox));
            match queues.jobs.entry(key) {
                Entry::Occupied(mut queue) => queue.get_mut().push_back(job),
                Entry::Vacant(entry) => {
                    entry.insert(VecDeque::from([job]));
                    queues.ready.push_back(key);
                    self.shared.has_job.notify_one();
                }
            }
        }
    }

    /// Starts the threads. Returns false if no thread could be started. Rules then stay on the shards' threads.
    pub fn start(&self) -> bool {
        let mut queues = self.shared.lock();
        while queues.threads < self.threads {
            let shared = Arc::clone(&self.shared);
            let seed = unix_ms() ^ ((queues.threads as u64) << 32);
            let started = thread::Builder::new()
                .name("slow rules".to_owned())
                .spawn(move || shared.work(seed));
            match started {
                Ok(_) => queues.threads += 1,
                Err(error) => {
                    tracing::error!(%error, "cannot start a thread for slow rules");
                    break;
                }
            }
        }
        queues.threads > 0
    }
}

impl Drop for SlowLane {
    fn drop(&mut self) {
        self.shared.lock().is_stopping = true;
        self.shared.has_job.notify_all();
    }
}

impl SlowLaneShared {
    fn lock(&self) -> MutexGuard<'_, JobQueues> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn threshold(&self) -> Duration {
        Duration::from_nanos(self.threshold_ns.load(Relaxed))
    }

    fn measure(&self, live: &LiveRule, took: Duration, now_ms: u64) {
        let (rule, threshold) = (&live.id, self.threshold());
        match live.timing.measure(took, threshold, now_ms) {
            Some(true) => {
                tracing::warn!(%rule, ?took, ?threshold, "rule is slow, evaluating it on separate threads");
            }
            Some(false) => tracing::info!(%rule, "rule is fast again, evaluating it on the workers' threads"),
            None => {}
        }
    }

    fn work(&self, seed: u64) {
        lower_priority();
        let mut evaluator = JobEvaluator {
            evaluator: Evaluator::new(),
            environment: LiveEnvironment::new(seed, self.store.clone()),
            outputs: Vec::new(),
        };
        while let Some((key, job, inbox)) = self.next_job() {
            let before = cpu_time();
            let finished = evaluator.evaluate(job);
            let (live, bytes) = (Arc::clone(&finished.job.live), finished.job.bytes);
            self.measure(&live, cpu_time().saturating_sub(before), unix_ms());
            // The result must be in the inbox before another thread may take the queue's next job.
            let was_empty = inbox.put(finished);
            self.done(key, &live, bytes);
            // If the inbox was not empty, the shard has already been woken.
            if was_empty && let Some(net) = self.net.get() {
                net.wake_tap_waiters();
            }
        }
    }

    /// Waits for a job. Returns `None` when the lane ends.
    fn next_job(&self) -> Option<(JobQueueKey, EvaluationJob, Arc<ResultInbox>)> {
        let mut queues = self.lock();
        loop {
            if queues.is_stopping {
                return None;
            }
            if let Some(key) = queues.ready.pop_front()
                && let Some((job, inbox)) = queues.jobs.get_mut(&key).and_then(VecDeque::pop_front)
            {
                return Some((key, job, inbox));
            }
            queues = self.has_job.wait(queues).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn done(&self, key: JobQueueKey, live: &LiveRule, bytes: usize) {
        let mut queues = self.lock();
        let load = &live.timing.load;
        load.messages.fetch_sub(1, Relaxed);
        load.bytes.fetch_sub(bytes, Relaxed);
        self.bytes.fetch_sub(bytes, Relaxed);
        self.check_load(live);
        match queues.jobs.get(&key).is_none_or(VecDeque::is_empty) {
            true => _ = queues.jobs.remove(&key),
            false => {
                queues.ready.push_back(key);
                self.has_job.notify_one();
            }
        }
    }

    fn add(&self, job: &EvaluationJob) {
        let load = &job.live.timing.load;
        load.messages.fetch_add(1, Relaxed);
        load.bytes.fetch_add(job.bytes, Relaxed);
        self.bytes.fetch_add(job.bytes, Relaxed);
        self.check_load(&job.live);
    }

    /// Compares a rule's load with its limits. The lock must be held.
    fn check_load(&self, live: &LiveRule) {
        let (rule, load) = (&live.id, &live.timing.load);
        let (messages, bytes) = (load.messages.load(Relaxed), load.bytes.load(Relaxed));
        let is_pressed = messages >= MESSAGES_MAX / 2 || bytes >= BYTES_MAX / 2;
        match (load.is_half_full.swap(is_pressed, Relaxed), is_pressed) {
            (false, true) => _ = self.half_full_rules.fetch_add(1, Relaxed),
            (true, false) => _ = self.half_full_rules.fetch_sub(1, Relaxed),
            _ => {}
        }
        if messages >= MESSAGES_MAX || bytes >= BYTES_MAX {
            if !load.is_full.swap(true, Relaxed) {
                tracing::warn!(%rule, messages, bytes, "queue of a slow rule is full; its publishers wait or are rejected");
            }
        } else if !is_pressed && load.is_full.swap(false, Relaxed) {
            tracing::info!(%rule, messages, bytes, "queue of a slow rule has space again");
        }
    }
}

/// Evaluation state of one thread.
struct JobEvaluator {
    evaluator: Evaluator,
    environment: LiveEnvironment,
    outputs: Vec<Map>,
}

impl JobEvaluator {
    fn evaluate(&mut self, job: EvaluationJob) -> FinishedJob {
        let (live, event) = (&*job.live, &*job.event);
        let mut counts = RuleCounts::default();
        let mut outputs = RenderedOutputs::default();
        self.environment.unix_ms = job.unix_ms;
        self.environment.rule_time = job.rule_time;
        let mut message = self.evaluator.message(event, &mut self.environment);
        let result = message.run(&live.rule, &mut self.outputs);
        counts.count(live, &result);
        live.tail.show(event, &self.outputs, &result);
        let bridges = job.cause.bridges();
        let evaluation = RuleEvaluation {
            live: &job.live,
            actions: &job.actions,
            cause: job.cause.with(&bridges),
            unix_ms: job.unix_ms,
        };
        let mut writer = OutputWriter::new(evaluation, &mut counts, &mut outputs);
        self.outputs.drain(..).for_each(|output| writer.write(&output));
        FinishedJob { job, counts, outputs }
    }
}

/// Lowers the priority of the current thread. After a failure the threads compete with the shards at equal priority.
fn lower_priority() {
    // On other systems this would change the priority of the whole process.
    #[cfg(target_os = "linux")]
    if let Err(error) = rustix::process::setpriority_process(None, NICE) {
        tracing::debug!(%error, "lowering the priority of a slow-rule thread failed");
    }
}
