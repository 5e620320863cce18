//! A thread that reads records for threads that must not wait for the disk.

use std::io;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};

use crate::lsn::Lsn;
use crate::reader::{LogReader, ReadError};

/// Maximum number of queued requests. Further requests fail with [`ReadError::Busy`].
pub const FETCHES_MAX: usize = 1024;

/// Maximum payload bytes that one request holds in memory, checked after each group of records.
const FETCH_BYTES: usize = 1024 * 1024;
/// Number of records that are read together.
const GROUP: usize = 16;

pub(crate) type Fetched = Vec<Result<Vec<u8>, ReadError>>;

struct FetchRequest {
    positions: Vec<Lsn>,
    done: Box<dyn FnOnce(Fetched) + Send>,
}

pub(crate) struct Fetcher {
    running: Mutex<Option<RunningFetcher>>,
}

struct RunningFetcher {
    requests: SyncSender<FetchRequest>,
    thread: JoinHandle<()>,
}

impl Fetcher {
    pub fn start(reader: LogReader) -> io::Result<Fetcher> {
        let (requests, waiting) = sync_channel(FETCHES_MAX);
        let thread = Builder::new()
            .name("journal-read".to_owned())
            .spawn(move || serve(&reader, &waiting))?;
        Ok(Fetcher {
            running: Mutex::new(Some(RunningFetcher { requests, thread })),
        })
    }

    /// Queues a request; never blocks. If the queue is full, `done` is called immediately with [`ReadError::Busy`] for
    /// each position.
    pub fn fetch(&self, positions: Vec<Lsn>, done: impl FnOnce(Fetched) + Send + 'static) {
        let request = FetchRequest {
            positions,
            done: Box::new(done),
        };
        let rejected = match &*self.running.lock().unwrap_or_else(PoisonError::into_inner) {
            None => Some(request),
            Some(running) => running.requests.try_send(request).err().map(|error| match error {
                TrySendError::Full(request) | TrySendError::Disconnected(request) => request,
            }),
        };
        if let Some(request) = rejected {
            (request.done)(request.positions.iter().map(|_| Err(ReadError::Busy)).collect());
        }
    }

    /// Stops the thread after it has answered the queued requests.
    pub fn stop(&self) {
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(RunningFetcher { requests, thread }) = running else {
            return;
        };
        drop(requests);
        if thread.thread().id() != std::thread::current().id() {
            // A panic of a callback has been reported by its own thread.
            let _ = thread.join();
        }
    }
}

/// Reads records until the memory limit of one request is reached. The remaining results are `Busy`.
fn read_some(reader: &LogReader, positions: &[Lsn]) -> Fetched {
    let mut fetched: Fetched = positions.iter().map(|_| Err(ReadError::Busy)).collect();
    let mut bytes = 0;
    for (group, results) in positions.chunks(GROUP).zip(fetched.chunks_mut(GROUP)) {
        reader.read_many(group, |index, payload| {
            // Records arrive in ascending order of positions. The first requested one is always read, so that a retry
            // makes progress.
            if index == 0 || bytes < FETCH_BYTES {
                results[index] = payload.map(<[u8]>::to_vec);
                bytes += results[index].as_ref().map_or(0, Vec::len);
            }
        });
        if bytes >= FETCH_BYTES {
            break;
        }
    }
    fetched
}

fn serve(reader: &LogReader, waiting: &Receiver<FetchRequest>) {
    for request in waiting {
        (request.done)(read_some(reader, &request.positions));
    }
}
