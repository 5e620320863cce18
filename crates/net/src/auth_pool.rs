//! Threads for authentication that may block: password hashes and remote services.
//!
//! A worker submits a job and continues. The outcome arrives in the worker's mailbox. The queue is bounded, and serves
//! addresses in turn: further jobs fail immediately with Server busy, so that a flood of logins uses neither memory nor
//! the workers' time. Logins from addresses with many failures have a queue of their own with lower priority. The
//! threads have a low priority themselves, so that hashes do not delay messages. The threads of the pool may wait for
//! space in a mailbox; workers never wait for the pool.
//!
//! A question to another system does not occupy a thread: the authenticator keeps the [`AuthQuestion`] and answers it
//! later, or gives it back to the pool.

use std::fmt;
use std::io;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::{Builder, JoinHandle};
use std::time::Instant;

use broker::{AuthAttempt, AuthOutcome, ConnSlot, ConnectCredentials, client_network};
use mqtt::ReasonCode;

use crate::access_question::OpenAccessQuestion;
use crate::client_presence::ClientPresence;
use crate::failed_logins::FailedLogins;
use crate::fair_queue::{FairQueue, QueueLimits};
use crate::mailbox::MailboxSender;
use crate::mailbox_item::MailboxItem;
use crate::slots::ConnGeneration;

/// On Linux, a thread with this nice value gets a tenth of a core that a worker needs as well.
#[cfg(target_os = "linux")]
const NICE: i32 = 10;

/// Authenticates clients.
pub trait Authenticator: Send + Sync {
    /// Called on a thread of the pool, so it may block. At most `auth_threads` calls run at a time. The question may be
    /// answered after the call returns.
    fn authenticate(&self, question: AuthQuestion);

    /// Asks another system about the access rules of a client. Called on the thread of a worker, so it must not block:
    /// the question is answered later, on another thread. Returns a question that it does not ask; its client is
    /// disconnected.
    fn authorize(&self, question: OpenAccessQuestion) -> Result<(), OpenAccessQuestion> {
        Err(question)
    }
}

/// The question whether a client may connect. A question that is dropped without an answer rejects the client.
pub struct AuthQuestion {
    job: Option<AuthJob>,
    /// Weak, so that an open question does not keep the threads of a stopped server.
    queue: Weak<QueueState>,
}

impl AuthQuestion {
    pub fn credentials(&self) -> &ConnectCredentials {
        &self.job().credentials
    }

    /// Returns the step with which the authenticator continues: 0, or that of [`AuthQuestion::continue_at`].
    pub fn step(&self) -> usize {
        self.job().step
    }

    /// Returns whether the client has closed its connection, so that the answer has no effect.
    pub fn is_client_gone(&self) -> bool {
        self.job().presence.is_gone()
    }

    /// Calls back when the client has closed its connection. The callback must not block: it runs on the thread of a
    /// worker.
    pub fn on_gone(&self, callback: impl FnOnce() + Send + 'static) {
        self.job().presence.on_gone(Box::new(callback));
    }

    /// Answers. May wait until the mailbox of the worker has space.
    pub fn answer(mut self, outcome: AuthOutcome) {
        self.answer_once(outcome);
    }

    /// Gives the question back to the pool, which calls the authenticator again.
    pub fn continue_at(mut self, step: usize) {
        if let Some(queue) = self.queue.upgrade()
            && let Some(job) = self.job.take()
        {
            self.job = AuthQueue(queue).submit(AuthJob { step, ..job }).err();
        }
        self.answer_once(QUEUE_FULL);
    }

    fn answer_once(&mut self, outcome: AuthOutcome) {
        let Some(job) = self.job.take() else { return };
        let is_failure = |reason| !matches!(reason, ReasonCode::ServerUnavailable | ReasonCode::ServerBusy);
        if matches!(outcome, AuthOutcome::Deny { reason, .. } if is_failure(reason))
            && let Some(queue) = self.queue.upgrade()
        {
            queue.failed_logins.record(job.credentials.address, Instant::now());
        }
        if job.presence.is_gone() {
            return;
        }
        // If the worker has stopped, the outcome is not needed.
        let _ = job.reply_to.send(MailboxItem::Authenticated {
            ticket: job.ticket,
            outcome,
        });
    }

    fn job(&self) -> &AuthJob {
        self.job
            .as_ref()
            .expect("the methods that take the job also take the question")
    }
}

impl Drop for AuthQuestion {
    fn drop(&mut self) {
        self.answer_once(AuthOutcome::Deny {
            reason: ReasonCode::ServerUnavailable,
            detail: "the authentication was interrupted",
        });
    }
}

impl fmt::Debug for AuthQuestion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AuthQuestion")
            .field("credentials", &self.job.as_ref().map(|job| &job.credentials))
            .finish_non_exhaustive()
    }
}

/// The answer if a queue of the pool is full.
pub(crate) const QUEUE_FULL: AuthOutcome = AuthOutcome::Deny {
    reason: ReasonCode::ServerBusy,
    detail: "too many authentications are queued",
};

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
    /// Where the authenticator continues.
    pub(crate) step: usize,
    pub(crate) presence: ClientPresence,
}

/// The workers' side. The threads stop when the last clone is dropped.
#[derive(Clone)]
pub(crate) struct AuthQueue(Arc<QueueState>);

struct QueueState {
    jobs: Arc<Mutex<JobQueues>>,
    /// One for each job in either queue.
    tokens: SyncSender<()>,
    failed_logins: FailedLogins,
    authenticator: Arc<dyn Authenticator>,
}

/// Locked for a few map operations only.
struct JobQueues {
    normal: FairQueue<AuthQuestion>,
    low_priority: FairQueue<AuthQuestion>,
}

impl AuthQueue {
    /// Submits a job. Returns it if the queue is full.
    pub(crate) fn submit(&self, job: AuthJob) -> Result<(), AuthJob> {
        let address = job.credentials.address;
        let has_many_failures = self.0.failed_logins.has_many_failures(address, Instant::now());
        let mut jobs = lock(&self.0.jobs);
        let queue = match has_many_failures {
            true => &mut jobs.low_priority,
            false => &mut jobs.normal,
        };
        let bytes = job.credentials.memory_bytes() + job.credentials.packet_bytes;
        let question = AuthQuestion {
            job: Some(job),
            queue: Arc::downgrade(&self.0),
        };
        if let Err(mut question) = queue.push(client_network(address), bytes, question) {
            return Err(question.job.take().expect("the question was not answered"));
        }
        // The channel has capacity for the jobs of both queues.
        let _ = self.0.tokens.try_send(());
        Ok(())
    }

    /// Passes a question about access rules to the authenticator. Does not block.
    pub(crate) fn authorize(&self, question: OpenAccessQuestion) -> Result<(), OpenAccessQuestion> {
        self.0.authenticator.authorize(question)
    }
}

pub(crate) fn start(
    authenticator: Arc<dyn Authenticator>,
    threads: usize,
    limits: QueueLimits,
) -> io::Result<(AuthQueue, Vec<JoinHandle<()>>)> {
    let jobs = Arc::new(Mutex::new(JobQueues {
        normal: FairQueue::new(limits),
        low_priority: FairQueue::new(limits),
    }));
    // A token is received before its job, so for a moment there may be one more job than tokens per thread.
    let (token_sender, tokens) = sync_channel(2 * limits.jobs + threads);
    let tokens = Arc::new(Mutex::new(tokens));
    let threads = (0..threads.max(1))
        .map(|index| {
            let worker = AuthWorker {
                authenticator: authenticator.clone(),
                jobs: jobs.clone(),
                tokens: tokens.clone(),
            };
            Builder::new()
                .name(format!("auth-{index}"))
                .spawn(move || worker.work())
        })
        .collect::<io::Result<Vec<_>>>()?;
    let queue = QueueState {
        jobs,
        tokens: token_sender,
        failed_logins: FailedLogins::default(),
        authenticator,
    };
    Ok((AuthQueue(Arc::new(queue)), threads))
}

/// One thread of the pool.
struct AuthWorker {
    authenticator: Arc<dyn Authenticator>,
    jobs: Arc<Mutex<JobQueues>>,
    tokens: Arc<Mutex<Receiver<()>>>,
}

impl AuthWorker {
    fn work(&self) {
        lower_priority();
        while let Some(question) = self.next_question() {
            // Nothing was verified for this client. A later step is needed: it can count a failed login, for which an
            // earlier provider has asked another system.
            if question.step() == 0 && question.is_client_gone() {
                continue;
            }
            self.authenticator.authenticate(question);
        }
    }

    /// Returns the next question. One idle thread waits in the channel with its lock, the others wait for the lock. Low
    /// priority questions come last.
    fn next_question(&self) -> Option<AuthQuestion> {
        let tokens = self.tokens.lock().unwrap_or_else(PoisonError::into_inner);
        tokens.recv().ok()?;
        let mut jobs = lock(&self.jobs);
        let question = jobs.normal.pop().or_else(|| jobs.low_priority.pop());
        Some(question.expect("a question is queued before its token, and only the holder of the token lock takes it"))
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
