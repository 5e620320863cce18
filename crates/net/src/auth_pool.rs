//! Threads for authentication that takes time: password hashes, and later remote services.
//!
//! A worker hands over a job and goes on; the outcome comes back through the worker's mailbox. The queue is bounded: what
//! does not fit is refused at once with Server busy, so that a flood of logins costs neither memory nor the workers' time. Logins
//! from addresses that keep failing have a queue of their own, behind everybody else's.
//! Threads of the pool may wait for space in a mailbox, workers never wait for the pool.

use std::io;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::Instant;

use broker::{AuthOutcome, ConnSlot, Credentials};

use crate::letter::Letter;
use crate::mailbox::Address;
use crate::suspects::Suspects;

/// Decides who a client is. Called on a thread of its own, so it may block; at most `auth_threads` calls at a time.
pub trait Authenticator: Send + Sync {
    fn authenticate(&self, credentials: &Credentials) -> AuthOutcome;
}

/// Which connection a decision is for. The generation tells a connection from a later one in the same slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AuthTicket {
    pub(crate) conn: ConnSlot,
    pub(crate) generation: u32,
    pub(crate) attempt: u32,
}

pub(crate) struct AuthJob {
    pub(crate) ticket: AuthTicket,
    pub(crate) credentials: Box<Credentials>,
    pub(crate) reply_to: Address<Letter>,
}

/// The workers' end. The threads end when the last one is dropped.
#[derive(Clone)]
pub(crate) struct AuthQueue {
    jobs: SyncSender<AuthJob>,
    of_suspects: SyncSender<AuthJob>,
    /// One for each job in either queue.
    tokens: SyncSender<()>,
    suspects: Arc<Suspects>,
}

/// The threads' end.
struct Waiting {
    tokens: Receiver<()>,
    jobs: Receiver<AuthJob>,
    of_suspects: Receiver<AuthJob>,
}

impl AuthQueue {
    /// False when the queue is full.
    pub(crate) fn submit(&self, job: AuthJob) -> bool {
        let is_suspect = self.suspects.is_suspect(job.credentials.address, Instant::now());
        let queue = if is_suspect { &self.of_suspects } else { &self.jobs };
        // There is room for as many tokens as for jobs.
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
    let (suspect_sender, of_suspects) = sync_channel(queue_max);
    // A token is taken before its job, so that for a moment there may be one job more than tokens for each thread.
    let (token_sender, tokens) = sync_channel(2 * queue_max + threads);
    let suspects = Arc::new(Suspects::default());
    let waiting = Arc::new(Mutex::new(Waiting {
        tokens,
        jobs,
        of_suspects,
    }));
    let threads = (0..threads.max(1))
        .map(|index| {
            let (authenticator, waiting, suspects) = (authenticator.clone(), waiting.clone(), suspects.clone());
            Builder::new()
                .name(format!("auth-{index}"))
                .spawn(move || work(&*authenticator, &waiting, &suspects))
        })
        .collect::<io::Result<Vec<_>>>()?;
    let queue = AuthQueue {
        jobs: job_sender,
        of_suspects: suspect_sender,
        tokens: token_sender,
        suspects,
    };
    Ok((queue, threads))
}

fn work(authenticator: &dyn Authenticator, waiting: &Mutex<Waiting>, suspects: &Suspects) {
    while let Some(job) = next_job(waiting) {
        let outcome = authenticator.authenticate(&job.credentials);
        if matches!(outcome, AuthOutcome::Deny { .. }) {
            suspects.failed(job.credentials.address, Instant::now());
        }
        // A worker that is gone needs no answer.
        let _ = job.reply_to.send(Letter::Authenticated {
            ticket: job.ticket,
            outcome,
        });
    }
}

/// One idle thread waits inside the channel with the lock, the others wait for the lock. Suspects come last.
fn next_job(waiting: &Mutex<Waiting>) -> Option<AuthJob> {
    let waiting = waiting.lock().unwrap_or_else(PoisonError::into_inner);
    waiting.tokens.recv().ok()?;
    let job = waiting.jobs.try_recv().or_else(|_| waiting.of_suspects.try_recv());
    Some(job.expect("a job is sent before its token, and taken by who has the lock"))
}
