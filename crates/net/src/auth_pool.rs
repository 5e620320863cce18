//! Threads for authentication that may block: password hashes and remote services.
//!
//! A worker submits a job and continues. The outcome arrives in the worker's mailbox. The queue is bounded, and serves
//! addresses in turn: further jobs fail immediately with Server busy, so that a flood of logins uses neither memory nor
//! the workers' time. Logins from addresses with many failures have a queue of their own with lower priority. The
//! threads have a low priority themselves, so that hashes do not delay messages. The threads of the pool may wait for
//! space in a mailbox; workers never wait for the pool.

use std::io;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::Instant;

use broker::{AuthAttempt, AuthOutcome, ConnSlot, ConnectCredentials};

use crate::failed_logins::{FailedLogins, client_network};
use crate::fair_queue::FairQueue;
use crate::mailbox::MailboxSender;
use crate::mailbox_item::MailboxItem;
use crate::slots::ConnGeneration;

/// On Linux, a thread with this nice value gets a tenth of a core that a worker needs as well.
#[cfg(target_os = "linux")]
const NICE: i32 = 10;

/// Authenticates a client. Called on a thread of the pool, so it may block. At most `auth_threads` calls run at a time.
pub trait Authenticator: Send + Sync {
    fn authenticate(&self, credentials: &ConnectCredentials) -> AuthOutcome;
}

/// The connection that a decision is for. The generation distinguishes it from a later connection in the same slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AuthTicket {
    pub(crate) conn: ConnSlot,
    pub(crate) generation: ConnGeneration,
    pub(crate) attempt: AuthAttempt,
}

pub(crate) struct AuthJob {
    pub(crate) ticket: AuthTicket,
    pub(crate) credentials: Box<ConnectCredentials>,
    pub(crate) reply_to: MailboxSender<MailboxItem>,
}

/// The workers' side. The threads stop when the last clone is dropped.
#[derive(Clone)]
pub(crate) struct AuthQueue {
    jobs: Arc<Mutex<JobQueues>>,
    /// One for each job in either queue.
    tokens: SyncSender<()>,
    failed_logins: Arc<FailedLogins>,
}

/// Locked for a few map operations only.
struct JobQueues {
    normal: FairQueue<AuthJob>,
    low_priority: FairQueue<AuthJob>,
}

impl AuthQueue {
    /// Submits a job. Returns `false` if the queue is full.
    pub(crate) fn submit(&self, job: AuthJob) -> bool {
        let address = job.credentials.address;
        let has_many_failures = self.failed_logins.has_many_failures(address, Instant::now());
        let mut jobs = lock(&self.jobs);
        let queue = match has_many_failures {
            true => &mut jobs.low_priority,
            false => &mut jobs.normal,
        };
        // The token channel has capacity for the jobs of both queues.
        queue.push(client_network(address), job) && self.tokens.try_send(()).is_ok()
    }
}

pub(crate) fn start(
    authenticator: Arc<dyn Authenticator>,
    threads: usize,
    queue_max: usize,
) -> io::Result<(AuthQueue, Vec<JoinHandle<()>>)> {
    let queue_max = queue_max.max(1);
    let jobs = Arc::new(Mutex::new(JobQueues {
        normal: FairQueue::new(queue_max),
        low_priority: FairQueue::new(queue_max),
    }));
    // A token is received before its job, so for a moment there may be one more job than tokens per thread.
    let (token_sender, tokens) = sync_channel(2 * queue_max + threads);
    let tokens = Arc::new(Mutex::new(tokens));
    let failed_logins = Arc::new(FailedLogins::default());
    let threads = (0..threads.max(1))
        .map(|index| {
            let worker = AuthWorker {
                authenticator: authenticator.clone(),
                jobs: jobs.clone(),
                tokens: tokens.clone(),
                failed_logins: failed_logins.clone(),
            };
            Builder::new()
                .name(format!("auth-{index}"))
                .spawn(move || worker.work())
        })
        .collect::<io::Result<Vec<_>>>()?;
    let queue = AuthQueue {
        jobs,
        tokens: token_sender,
        failed_logins,
    };
    Ok((queue, threads))
}

/// One thread of the pool.
struct AuthWorker {
    authenticator: Arc<dyn Authenticator>,
    jobs: Arc<Mutex<JobQueues>>,
    tokens: Arc<Mutex<Receiver<()>>>,
    failed_logins: Arc<FailedLogins>,
}

impl AuthWorker {
    fn work(&self) {
        lower_priority();
        while let Some(job) = self.next_job() {
            let outcome = self.authenticator.authenticate(&job.credentials);
            if matches!(outcome, AuthOutcome::Deny { .. }) {
                self.failed_logins.record(job.credentials.address, Instant::now());
            }
            // If the worker has stopped, the outcome is not needed.
            let _ = job.reply_to.send(MailboxItem::Authenticated {
                ticket: job.ticket,
                outcome,
            });
        }
    }

    /// Returns the next job. One idle thread waits in the channel with its lock, the others wait for the lock. Low
    /// priority jobs come last.
    fn next_job(&self) -> Option<AuthJob> {
        let tokens = self.tokens.lock().unwrap_or_else(PoisonError::into_inner);
        tokens.recv().ok()?;
        let mut jobs = lock(&self.jobs);
        let job = jobs.normal.pop().or_else(|| jobs.low_priority.pop());
        Some(job.expect("a job is queued before its token, and only the holder of the token lock takes jobs"))
    }
}

// Every update leaves the queues valid, so a panic cannot leave them inconsistent.
fn lock(jobs: &Mutex<JobQueues>) -> MutexGuard<'_, JobQueues> {
    jobs.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Lowers the priority of the current thread. After a failure it competes with the workers at equal priority.
fn lower_priority() {
    // On other systems this would change the priority of the whole process.
    #[cfg(target_os = "linux")]
    let _ = rustix::process::setpriority_process(None, NICE);
}
