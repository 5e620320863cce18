//! Directories, waiting, and small servers.

use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use certificates::{Task, Worker};

/// A busy machine takes long.
const WAIT: Duration = Duration::from_secs(60);

/// A directory that is deleted with the value.
pub struct Directory(PathBuf);

impl Directory {
    pub fn new() -> Directory {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("tidewire-certificates-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Directory(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    pub fn file(&self, name: &str, text: impl AsRef<[u8]>) -> PathBuf {
        let path = self.0.join(name);
        std::fs::write(&path, text).unwrap();
        path
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Waits until there is a value.
pub fn until<T>(what: &str, mut value: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + WAIT;
    loop {
        if let Some(value) = value() {
            return value;
        }
        assert!(Instant::now() < end, "{what}: not within {WAIT:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Tasks that end with the value.
pub struct Running(Option<Worker>);

impl Running {
    pub fn start(task: Task) -> Running {
        Running(Some(Worker::start(vec![task]).unwrap()))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(worker) = self.0.take() {
            worker.stop();
        }
    }
}

/// Runs a future to its end on a thread of its own.
pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.unwrap().block_on(future)
}
