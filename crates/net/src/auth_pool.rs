//! Threads for authentication that takes time: password hashes, and later remote services.
//!
//! A worker hands over a job and goes on; the outcome comes back through the worker's mailbox. The queue is bounded: what
//! does not fit is refused at once with Server busy, so that a flood of logins costs neither memory nor the workers' time.
//! Threads of the pool may wait for space in a mailbox, workers never wait for the pool.

use std::io;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};

use broker::{AuthOutcome, ConnSlot, Credentials};

use crate::letter::Letter;
use crate::mailbox::Address;

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
}

impl AuthQueue {
    /// False when the queue is full.
    pub(crate) fn submit(&self, job: AuthJob) -> bool {
        self.jobs.try_send(job).is_ok()
    }
}

pub(crate) fn start(
    authenticator: Arc<dyn Authenticator>,
    threads: usize,
    queue_max: usize,
) -> io::Result<(AuthQueue, Vec<JoinHandle<()>>)> {
    let (sender, receiver) = sync_channel(queue_max.max(1));
    let receiver = Arc::new(Mutex::new(receiver));
    let threads = (0..threads.max(1))
        .map(|index| {
            let (authenticator, receiver) = (authenticator.clone(), receiver.clone());
            Builder::new()
                .name(format!("auth-{index}"))
                .spawn(move || work(&*authenticator, &receiver))
        })
        .collect::<io::Result<Vec<_>>>()?;
    Ok((AuthQueue { jobs: sender }, threads))
}

fn work(authenticator: &dyn Authenticator, jobs: &Mutex<Receiver<AuthJob>>) {
    loop {
        // One idle thread waits inside the channel with the lock, the others wait for the lock.
        let job = jobs.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(job) = job else { return };
        let outcome = authenticator.authenticate(&job.credentials);
        // A worker that is gone needs no answer.
        let _ = job.reply_to.send(Letter::Authenticated {
            ticket: job.ticket,
            outcome,
        });
    }
}
