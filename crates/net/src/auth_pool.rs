//! Threads for authentication that may block: password hashes and remote services.
//!
//! A worker submits a job and continues. The outcome arrives in the worker's mailbox. The queue is bounded: further
//! jobs fail immediately with Server busy, so that a flood of logins uses neither memory nor the workers' time. Logins
//! from mailboxes with many failures have a queue of their own with lower priority. The threads of the pool may wait
//! for space in a mailbox; workers never wait for the pool.

use std::io;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::Instant;

use broker::{AuthAttempt, AuthOutcome, ConnSlot, ConnectCredentials};

use crate::failed_logins::FailedLogins;
use crate::mailbox::MailboxSender;
use crate::mailbox_item::MailboxItem;
use crate::slots::ConnGeneration;

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
    jobs: SyncSender<AuthJob>,
    low_priority_jobs: SyncSender<AuthJob>,
    /// One for each job in either queue.
    tokens: SyncSender<()>,
    failed_logins: Arc<FailedLogins>,
}

/// The threads' side.
struct JobReceivers {
    tokens: Receiver<()>,
    jobs: Receiver<AuthJob>,
    low_priority_jobs: Receiver<AuthJob>,
}

impl AuthQueue {
    /// Submits a job. Returns `false` if the queue is full.
    pub(crate) fn submit(&self, job: AuthJob) -> bool {
        let has_many_failures = self
            .failed_logins
            .has_many_failures(job.credentials.address, Instant::now());
        let queue = if has_many_failures {
            &self.low_priority_jobs
        } else {
            &self.jobs
        };
        // The token channel has capacity for the jobs of both queues.
        queue.try_send(job).is_ok() && self.tokens.try_send(()).is_ok()
    }
}

pub(crate) fn start(
    authenticator: Arc<dyn Authenticator>,
    threads: usize,
    queue_max: usize,
) -> io::Result<(AuthQueue, Vec<JoinHandle<()>>)> {
    let queue_max = queue_max.max(1);
    let (job_sender, jobs) = sync_channel(queue_max);
    let (low_priority_sender, low_priority_jobs) = sync_channel(queue_max);
    // A token is received before its job, so for a moment there may be one more job than tokens per thread.
    let (token_sender, tokens) = sync_channel(2 * queue_max + threads);
    let failed_logins = Arc::new(FailedLogins::default());
    let waiting = Arc::new(Mutex::new(JobReceivers {
        tokens,
        jobs,
        low_priority_jobs,
    }));
    let threads = (0..threads.max(1))
        .map(|index| {
            let (authenticator, waiting, failed_logins) =
                (authenticator.clone(), waiting.clone(), failed_logins.clone());
            Builder::new()
                .name(format!("auth-{index}"))
                .spawn(move || work(&*authenticator, &waiting, &failed_logins))
        })
        .collect::<io::Result<Vec<_>>>()?;
    let queue = AuthQueue {
        jobs: job_sender,
        low_priority_jobs: low_priority_sender,
        tokens: token_sender,
        failed_logins,
    };
    Ok((queue, threads))
}

fn work(authenticator: &dyn Authenticator, waiting: &Mutex<JobReceivers>, failed_logins: &FailedLogins) {
    while let Some(job) = next_job(waiting) {
        let outcome = authenticator.authenticate(&job.credentials);
        if matches!(outcome, AuthOutcome::Deny { .. }) {
            failed_logins.record(job.credentials.address, Instant::now());
        }
        // If the worker has stopped, the outcome is not needed.
        let _ = job.reply_to.send(MailboxItem::Authenticated {
            ticket: job.ticket,
            outcome,
        });
    }
}

/// Returns the next job. One idle thread waits in the channel with the lock, the others wait for the lock. Low priority
/// jobs come last.
fn next_job(waiting: &Mutex<JobReceivers>) -> Option<AuthJob> {
    let waiting = waiting.lock().unwrap_or_else(PoisonError::into_inner);
    waiting.tokens.recv().ok()?;
    let job = waiting
        .jobs
        .try_recv()
        .or_else(|_| waiting.low_priority_jobs.try_recv());
    Some(job.expect("a job is sent before its token, and only the holder of the lock takes jobs"))
}
