//! A thread that reads records for threads that must not wait for the disk.

use std::io;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};

use crate::lsn::Lsn;
use crate::reader::{LogReader, ReadError};

/// Requests that wait; one more is refused.
pub const FETCHES_MAX: usize = 1024;

/// What one request may hold in memory, and how many records are read before that is looked at.
const FETCH_BYTES: usize = 1024 * 1024;
const GROUP: usize = 16;

pub(crate) type Fetched = Vec<Result<Vec<u8>, ReadError>>;

struct Request {
    positions: Vec<Lsn>,
    done: Box<dyn FnOnce(Fetched) + Send>,
}

pub(crate) struct Fetcher {
    running: Mutex<Option<Running>>,
}

struct Running {
    requests: SyncSender<Request>,
    thread: JoinHandle<()>,
}

impl Fetcher {
    pub fn start(reader: LogReader) -> io::Result<Fetcher> {
        let (requests, waiting) = sync_channel(FETCHES_MAX);
        let thread = Builder::new()
            .name("journal-read".to_owned())
            .spawn(move || serve(&reader, &waiting))?;
        Ok(Fetcher {
            running: Mutex::new(Some(Running { requests, thread })),
        })
    }

    /// Never waits. When too much is waiting already, `done` is called at once, with errors.
    pub fn fetch(&self, positions: Vec<Lsn>, done: impl FnOnce(Fetched) + Send + 'static) {
        let request = Request {
            positions,
            done: Box::new(done),
        };
        let refused = match &*self.running.lock().unwrap_or_else(PoisonError::into_inner) {
            None => Some(request),
            Some(running) => running.requests.try_send(request).err().map(|error| match error {
                TrySendError::Full(request) | TrySendError::Disconnected(request) => request,
            }),
        };
        if let Some(request) = refused {
            (request.done)(request.positions.iter().map(|_| Err(ReadError::Busy)).collect());
        }
    }

    /// What was asked for before is still answered.
    pub fn stop(&self) {
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(Running { requests, thread }) = running else {
            return;
        };
        drop(requests);
        if thread.thread().id() != std::thread::current().id() {
            // A panic of a callback has been reported by its own thread.
            let _ = thread.join();
        }
    }
}

/// Reads from the first position on, until that is enough memory for one request; `Busy` stands for the rest.
fn read_some(reader: &LogReader, positions: &[Lsn]) -> Fetched {
    let mut fetched: Fetched = positions.iter().map(|_| Err(ReadError::Busy)).collect();
    let mut bytes = 0;
    for (group, results) in positions.chunks(GROUP).zip(fetched.chunks_mut(GROUP)) {
        reader.read_many(group, |index, payload| {
            // They come in the order of positions; who asks goes on from the first that was asked for.
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

fn serve(reader: &LogReader, waiting: &Receiver<Request>) {
    for request in waiting {
        (request.done)(read_some(reader, &request.positions));
    }
}
