//! Runs scripts in processes that can be killed (docs/adr/0018-scripts-run-in-processes.md).
//!
//! ```text
//! rule chains ──► inline process (idle) ── answer within 5 ms of CPU time ──► rule chains
//!      │                 │ takes longer: the process is handed over
//!      └──► queues ──► supervisor thread ──► background processes ──► answers
//! ```
//!
//! The thread of the rule chains itself talks to the inline process, which costs two context switches. A script that
//! takes longer goes on in its process, which the supervisor thread watches from now on. The supervisor starts waiting
//! calls, and kills a process whose script could not be interrupted.

use std::collections::HashMap;
use std::fmt;
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};

use super::script::{ScriptAnswer, ScriptCall, ScriptError, ScriptRunner, ScriptUsage, TIME_MAX};
use super::script_budget::{QueuedCall, TenantQueues};
use super::script_process::{ScriptProcess, ScriptProgram, wait};
use crate::ids::TenantId;

/// CPU time for which the rule chains wait for a script.
const INLINE_CPU: Duration = Duration::from_millis(5);
/// As [`INLINE_CPU`], for the first call of a tenant in a process, which creates the tenant's realm.
const FIRST_INLINE_CPU: Duration = Duration::from_millis(50);
/// Longest time for which the rule chains wait, if the process gets too little CPU time.
const INLINE_TIME: Duration = Duration::from_millis(250);
/// Interval of checks while a script runs.
const CHECK: Duration = Duration::from_millis(5);
const SLOW_CHECK: Duration = Duration::from_millis(50);

/// A process is killed when a call has used this CPU time. QuickJS interrupts a script before, unless it is within a
/// built-in function.
const KILL_CPU: Duration = Duration::from_secs(1);
/// A process is killed after this time, whatever CPU time its call has used.
const KILL_TIME: Duration = Duration::from_secs(30);
/// Processes that may end while they run a call, or are found to have ended: a signal to all processes of a service
/// ends the inline process and the idle ones together. Then the call fails.
const LOST_MAX: u32 = 4;
/// A background process without a call ends after this time.
const IDLE_MAX: Duration = Duration::from_secs(60);
/// Pause after a process could not be started.
const START_PAUSE: Duration = Duration::from_secs(1);
/// Longest time for which [`ScriptRunner::run_blocking`] waits.
const BLOCKING_MAX: Duration = Duration::from_secs(10);
/// Numbers from here on belong to callers that wait.
const BLOCKING_NUMBERS: u64 = 1 << 63;

#[derive(Clone, Debug)]
pub struct ScriptWorkersOptions {
    pub program: ScriptProgram,
    /// CPU time of a tenant's scripts, in percent of one core.
    pub cpu_percent: u32,
    /// Maximum number of concurrent scripts in background processes.
    pub processes_max: usize,
}

/// Runs scripts until it is dropped, which kills the processes.
pub struct ScriptWorkers {
    shared: Arc<WorkersShared>,
    supervisor: Option<JoinHandle<()>>,
}

struct WorkersShared {
    options: ScriptWorkersOptions,
    state: Mutex<WorkersState>,
    /// Called when answers arrive.
    waker: OnceLock<Box<dyn Fn() + Send + Sync>>,
    /// Wakes the supervisor.
    wakes: PipeWriter,
}

#[derive(Debug)]
struct WorkersState {
    queues: TenantQueues,
    inline: InlineProcess,
    /// Calls that took longer than the rule chains wait.
    handed_over: Vec<RunningCall>,
    answers: Vec<(u64, ScriptAnswer)>,
    blocking: HashMap<u64, SyncSender<ScriptAnswer>>,
    next_blocking: u64,
    killed_total: u64,
    is_stopping: bool,
}

/// The process for calls of the rule chains.
#[derive(Debug)]
enum InlineProcess {
    Idle(ScriptProcess),
    /// The rule chains wait for it.
    InUse,
    /// It was handed over or ended, and is not replaced yet.
    Missing,
}

impl InlineProcess {
    fn take(&mut self) -> Option<ScriptProcess> {
        match std::mem::replace(self, InlineProcess::InUse) {
            InlineProcess::Idle(process) => Some(process),
            other => {
                *self = other;
                None
            }
        }
    }
}

#[derive(Debug)]
struct RunningCall {
    process: ScriptProcess,
    queued: QueuedCall,
    started: Instant,
}

impl fmt::Debug for ScriptProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ScriptProcess")
    }
}

impl fmt::Debug for ScriptWorkers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ScriptWorkers({:?})", self.shared.options)
    }
}

impl RunningCall {
    fn start(mut process: ScriptProcess, queued: QueuedCall) -> Result<RunningCall, Box<(io::Error, QueuedCall)>> {
        match process.send(&queued.call) {
            Ok(()) => Ok(RunningCall {
                process,
                queued,
                started: Instant::now(),
            }),
            Err(error) => Err(Box::new((error, queued))),
        }
    }

    /// CPU time of the call. The time since its start if the system does not report CPU time.
    fn cpu(&self) -> Duration {
        self.process.cpu_of_call().unwrap_or_else(|| self.started.elapsed())
    }
}

impl WorkersShared {
    fn state(&self) -> MutexGuard<'_, WorkersState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(&self) {
        // A full pipe wakes the supervisor as well.
        let _ = (&self.wakes).write(&[0]);
    }
}

impl ScriptWorkers {
    pub fn start(options: ScriptWorkersOptions) -> io::Result<ScriptWorkers> {
        let (woken, wakes) = io::pipe()?;
        rustix::io::ioctl_fionbio(&woken, true)?;
        rustix::io::ioctl_fionbio(&wakes, true)?;
        let state = WorkersState {
            queues: TenantQueues::new(options.cpu_percent),
            inline: InlineProcess::Idle(ScriptProcess::start(&options.program)?),
            handed_over: Vec::new(),
            answers: Vec::new(),
            blocking: HashMap::new(),
            next_blocking: BLOCKING_NUMBERS,
            killed_total: 0,
            is_stopping: false,
        };
        let shared = Arc::new(WorkersShared {
            options,
            state: Mutex::new(state),
            waker: OnceLock::new(),
            wakes,
        });
        let supervisor = Supervisor {
            shared: Arc::clone(&shared),
            woken,
            idle: Vec::new(),
            running: Vec::new(),
            start_again_at: None,
        };
        let supervisor = thread::Builder::new()
            .name("scripts".to_owned())
            .spawn(move || supervisor.run())?;
        Ok(ScriptWorkers {
            shared,
            supervisor: Some(supervisor),
        })
    }

    /// `waker` is called when answers arrive. Only the first call has an effect.
    pub fn set_waker(&self, waker: Box<dyn Fn() + Send + Sync>) {
        let _ = self.shared.waker.set(waker);
    }

    /// Returns a number for a call whose answer goes to the receiver.
    fn expect_answer(&self) -> (u64, Receiver<ScriptAnswer>) {
        let (done, answer) = sync_channel(1);
        let mut state = self.shared.state();
        let number = state.next_blocking;
        state.next_blocking += 1;
        state.blocking.insert(number, done);
        (number, answer)
    }

    fn push(&self, queued: QueuedCall) {
        self.shared.state().queues.push(queued);
        self.shared.wake();
    }

    /// Runs a call in the inline process. Returns the answer, or hands the call over.
    fn run_inline(&self, process: ScriptProcess, queued: QueuedCall) -> Option<ScriptAnswer> {
        let tenant = queued.call.tenant;
        let is_first = !process.knows(tenant);
        let cpu_max = if is_first { FIRST_INLINE_CPU } else { INLINE_CPU };
        let mut running = match RunningCall::start(process, queued) {
            Ok(running) => running,
            Err(failure) => {
                self.lost_inline(failure.1);
                return None;
            }
        };
        loop {
            match running.process.wait_for_answer(tenant, CHECK) {
                Ok(Some(answer)) => {
                    let mut state = self.shared.state();
                    state.queues.end_inline(tenant, answer.cpu, is_first, Instant::now());
                    state.inline = InlineProcess::Idle(running.process);
                    return Some(answer);
                }
                Ok(None) if running.cpu() < cpu_max && running.started.elapsed() < INLINE_TIME => {}
                Ok(None) => {
                    let mut state = self.shared.state();
                    state.queues.mark_slow(tenant, Instant::now());
                    state.handed_over.push(running);
                    state.inline = InlineProcess::Missing;
                    drop(state);
                    self.shared.wake();
                    return None;
                }
                Err(_) => {
                    self.lost_inline(running.queued);
                    return None;
                }
            }
        }
    }

    /// The inline process ended by itself. The call runs once more.
    fn lost_inline(&self, mut queued: QueuedCall) {
        queued.lost_processes += 1;
        let mut state = self.shared.state();
        state.inline = InlineProcess::Missing;
        // The script may be the reason. It must not end the next inline process.
        state.queues.mark_slow(queued.call.tenant, Instant::now());
        state.queues.push_again(queued);
        drop(state);
        self.shared.wake();
    }
}

impl ScriptRunner for ScriptWorkers {
    fn run(&self, call: ScriptCall, number: u64) -> Option<ScriptAnswer> {
        let queued = QueuedCall {
            call,
            number,
            lost_processes: 0,
        };
        let mut state = self.shared.state();
        let is_idle = matches!(state.inline, InlineProcess::Idle(_));
        if is_idle
            && state.queues.begin_inline(queued.call.tenant, Instant::now())
            && let Some(process) = state.inline.take()
        {
            drop(state);
            return self.run_inline(process, queued);
        }
        drop(state);
        self.push(queued);
        None
    }

    fn run_in_replay(&self, call: ScriptCall) -> ScriptAnswer {
        let (number, answer) = self.expect_answer();
        match self.run(call, number) {
            Some(answer) => {
                self.shared.state().blocking.remove(&number);
                answer
            }
            None => answer
                .recv()
                .unwrap_or_else(|_| ScriptAnswer::failed("the server is stopping")),
        }
    }

    fn run_blocking(&self, call: ScriptCall) -> ScriptAnswer {
        let tenant = call.tenant;
        let (number, answer) = self.expect_answer();
        self.push(QueuedCall {
            call,
            number,
            lost_processes: 0,
        });
        let result = answer.recv_timeout(BLOCKING_MAX);
        if result.is_err() {
            self.shared.state().blocking.remove(&number);
            self.cancel(tenant, number);
        }
        result.unwrap_or_else(|error| match error {
            RecvTimeoutError::Timeout => ScriptAnswer::failed(
                "the script did not run within 10 s: the scripts of this tenant use all of its CPU time",
            ),
            RecvTimeoutError::Disconnected => ScriptAnswer::failed("the server is stopping"),
        })
    }

    fn cancel(&self, tenant: TenantId, number: u64) {
        self.shared.state().queues.cancel(tenant, number);
    }

    fn add_node_time(&self, tenant: TenantId, took: Duration) {
        self.shared.state().queues.add_node_time(tenant, took, Instant::now());
    }

    fn tenant_deleted(&self, tenant: TenantId) {
        self.shared.state().queues.remove(tenant);
    }

    fn budget_pause(&self, tenant: TenantId) -> Duration {
        self.shared.state().queues.budget_pause(tenant, Instant::now())
    }

    fn take_answers(&self) -> Vec<(u64, ScriptAnswer)> {
        std::mem::take(&mut self.shared.state().answers)
    }

    fn usage(&self) -> ScriptUsage {
        let state = self.shared.state();
        ScriptUsage {
            tenants: state.queues.usage(Instant::now()),
            killed_total: state.killed_total,
            waiting: state.queues.waiting() as u64,
        }
    }
}

impl Drop for ScriptWorkers {
    fn drop(&mut self) {
        self.shared.state().is_stopping = true;
        self.shared.wake();
        // The waker runs in this thread, and may hold the last reference.
        let is_other = |thread: &JoinHandle<()>| thread.thread().id() != thread::current().id();
        if let Some(supervisor) = self.supervisor.take().filter(is_other) {
            // A panic has been reported already.
            let _ = supervisor.join();
        }
    }
}

/// The thread that watches the processes.
struct Supervisor {
    shared: Arc<WorkersShared>,
    woken: PipeReader,
    /// Background processes without a call, and since when.
    idle: Vec<(ScriptProcess, Instant)>,
    running: Vec<RunningCall>,
    /// Set after a process could not be started.
    start_again_at: Option<Instant>,
}

impl Supervisor {
    fn run(mut self) {
        loop {
            let is_inline_missing = {
                let mut state = self.shared.state();
                if state.is_stopping {
                    state.inline = InlineProcess::Missing;
                    state.handed_over.clear();
                    state.blocking.clear();
                    return;
                }
                for running in state.handed_over.drain(..) {
                    running.process.lower_priority();
                    self.running.push(running);
                }
                matches!(state.inline, InlineProcess::Missing)
            };
            // While many calls were handed over, the rule chains wait for no further ones.
            if is_inline_missing
                && self.running.len() <= self.processes_max()
                && let Some(process) = self.start_process()
            {
                self.shared.state().inline = InlineProcess::Idle(process);
            }
            self.idle.retain(|(_, since)| since.elapsed() < IDLE_MAX);
            self.start_waiting();
            self.wait();
            self.take_answers();
            self.kill_endless();
        }
    }

    fn processes_max(&self) -> usize {
        self.shared.options.processes_max.max(1)
    }

    fn start_process(&mut self) -> Option<ScriptProcess> {
        if self.start_again_at.is_some_and(|at| Instant::now() < at) {
            return None;
        }
        match ScriptProcess::start(&self.shared.options.program) {
            Ok(process) => {
                self.start_again_at = None;
                Some(process)
            }
            Err(_) => {
                self.start_again_at = Some(Instant::now() + START_PAUSE);
                None
            }
        }
    }

    fn start_waiting(&mut self) {
        while self.running.len() < self.processes_max() {
            let Some(queued) = self.shared.state().queues.pop(Instant::now()) else {
                return;
            };
            let idle = self.idle.pop().map(|(process, _)| process);
            let process = idle.or_else(|| {
                let process = self.start_process()?;
                process.lower_priority();
                Some(process)
            });
            let Some(process) = process else {
                self.shared.state().queues.push_again(queued);
                return;
            };
            match RunningCall::start(process, queued) {
                Ok(running) => self.running.push(running),
                Err(failure) => {
                    let (error, queued) = *failure;
                    self.lost(queued, &error);
                }
            }
        }
    }

    /// Waits until something happens, or a check is due.
    fn wait(&self) {
        let now = Instant::now();
        let checks = self.running.iter().map(|running| {
            let age = now.saturating_duration_since(running.started);
            if age < TIME_MAX { TIME_MAX - age } else { SLOW_CHECK }
        });
        let has_capacity = self.running.len() < self.processes_max();
        let pause = has_capacity
            .then(|| self.shared.state().queues.next_pause_end(now))
            .flatten();
        let retry = self.start_again_at.map(|at| at.saturating_duration_since(now));
        let idle = self
            .idle
            .iter()
            .map(|(_, since)| IDLE_MAX.saturating_sub(since.elapsed()));
        let within = checks.chain(pause).chain(retry).chain(idle).min();
        // A short wait would be a busy loop, for example while a process cannot be started.
        let within = within.map(|within| within.max(CHECK));
        let mut files = vec![PollFd::new(&self.woken, PollFlags::IN)];
        let running = self.running.iter();
        files.extend(running.map(|running| PollFd::new(running.process.output(), PollFlags::IN)));
        if wait(&mut files, within).is_err() {
            thread::sleep(SLOW_CHECK);
        }
        let mut wakes = [0; 64];
        while matches!((&self.woken).read(&mut wakes), Ok(count) if count > 0) {}
    }

    fn take_answers(&mut self) {
        let mut index = 0;
        while index < self.running.len() {
            let running = &mut self.running[index];
            let tenant = running.queued.call.tenant;
            match running.process.take_answer(tenant) {
                Ok(None) => index += 1,
                Ok(Some(answer)) => {
                    let running = self.running.swap_remove(index);
                    if self.idle.len() + self.running.len() < self.processes_max() {
                        self.idle.push((running.process, Instant::now()));
                    }
                    self.finish(&running.queued, answer);
                }
                Err(error) => {
                    let running = self.running.swap_remove(index);
                    self.lost(running.queued, &error);
                }
            }
        }
    }

    fn kill_endless(&mut self) {
        let mut index = 0;
        while index < self.running.len() {
            let running = &self.running[index];
            let age = running.started.elapsed();
            let cpu = if age >= TIME_MAX { running.cpu() } else { Duration::ZERO };
            if cpu < KILL_CPU && age < KILL_TIME {
                index += 1;
                continue;
            }
            let RunningCall { process, queued, .. } = self.running.swap_remove(index);
            // Dropping it kills the process, and waits for its end.
            drop(process);
            self.shared.state().killed_total += 1;
            if cpu < KILL_CPU {
                // The system gave it no CPU time, as while the server is suspended.
                self.lost(queued, &io::Error::from(io::ErrorKind::TimedOut));
                continue;
            }
            let answer = ScriptAnswer {
                result: Err(ScriptError::Killed),
                cpu,
            };
            self.finish(&queued, answer);
        }
    }

    /// A process ended by itself. The call runs once more.
    fn lost(&self, mut queued: QueuedCall, error: &io::Error) {
        queued.lost_processes += 1;
        if queued.lost_processes <= LOST_MAX {
            return self.shared.state().queues.push_again(queued);
        }
        let answer = ScriptAnswer::failed(format!("the process of the script ended: {error}"));
        self.finish(&queued, answer);
    }

    fn finish(&self, queued: &QueuedCall, answer: ScriptAnswer) {
        let mut state = self.shared.state();
        state.queues.end_queued(queued.call.tenant, answer.cpu, Instant::now());
        if queued.number >= BLOCKING_NUMBERS {
            if let Some(caller) = state.blocking.remove(&queued.number) {
                // The channel has capacity for one answer. The caller may be gone.
                let _ = caller.send(answer);
            }
            return;
        }
        state.answers.push((queued.number, answer));
        drop(state);
        if let Some(waker) = self.shared.waker.get() {
            waker();
        }
    }
}
