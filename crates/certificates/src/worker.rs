//! The thread on which certificates and lists are obtained.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::thread::{self, JoinHandle};

use futures_util::future::join_all;
use tokio::runtime;
use tokio::sync::oneshot;

/// Work that runs until the server stops.
pub type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The running thread.
#[derive(Debug)]
pub struct Worker {
    stop: oneshot::Sender<()>,
    thread: JoinHandle<()>,
}

impl Worker {
    pub fn start(tasks: Vec<Task>) -> io::Result<Worker> {
        let (stop, stopped) = oneshot::channel();
        let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
        let run = async move {
            tokio::select! {
                _ = join_all(tasks) => {}
                _ = stopped => {}
            }
        };
        let thread = thread::Builder::new().name("certificates".to_owned()).spawn(move || {
            runtime.block_on(run);
            // A question to a name server can take many seconds, and cannot be ended.
            runtime.shutdown_background();
        })?;
        Ok(Worker { stop, thread })
    }

    /// Ends the tasks at their next waiting point.
    pub fn stop(self) {
        // Without a receiver, all tasks have ended.
        let _ = self.stop.send(());
        // A panic has been reported already.
        let _ = self.thread.join();
    }
}
