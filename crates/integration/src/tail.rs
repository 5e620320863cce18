//! The live tail of a rule: what goes in, what comes out, what goes wrong, for whoever debugs it.
//!
//! Nobody listening costs one relaxed load per message. Whoever listens gets a sample: no more than so many a second, and what
//! a slow listener does not take is counted and left out.

use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use serde::Serialize;
use tokio::sync::broadcast;

/// Entries a second, of each thread that evaluates.
const PER_SECOND_MAX: u32 = 50;
const QUEUE: usize = 256;

/// One message or event that a rule looked at.
#[derive(Clone, Debug, Serialize)]
pub struct Entry {
    pub unix_ms: u64,
    pub input: serde_json::Value,
    /// Empty if the rule did not match.
    pub outputs: Vec<serde_json::Value>,
    pub error: Option<String>,
    /// Left out of the sample since the entry before.
    pub left_out: u64,
}

#[derive(Debug)]
pub struct Tail {
    listeners: AtomicUsize,
    left_out: AtomicU64,
    second: Mutex<(u64, u32)>,
    sender: broadcast::Sender<Entry>,
}

impl Default for Tail {
    fn default() -> Tail {
        Tail {
            listeners: AtomicUsize::new(0),
            left_out: AtomicU64::new(0),
            second: Mutex::default(),
            sender: broadcast::channel(QUEUE).0,
        }
    }
}

/// Ends when it is dropped.
pub struct Listener {
    tail: std::sync::Arc<Tail>,
    pub receiver: broadcast::Receiver<Entry>,
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.tail.listeners.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Tail {
    pub fn listen(self: &std::sync::Arc<Self>) -> Listener {
        self.listeners.fetch_add(1, Ordering::Relaxed);
        Listener {
            tail: self.clone(),
            receiver: self.sender.subscribe(),
        }
    }

    #[inline]
    pub fn is_heard(&self) -> bool {
        self.listeners.load(Ordering::Relaxed) > 0
    }

    /// Tells of one, if it is in the sample.
    pub fn tell(&self, unix_ms: u64, entry: impl FnOnce() -> Entry) {
        {
            let mut second = self.second.lock().unwrap_or_else(PoisonError::into_inner);
            if second.0 != unix_ms / 1000 {
                *second = (unix_ms / 1000, 0);
            }
            second.1 += 1;
            if second.1 > PER_SECOND_MAX {
                self.left_out.fetch_add(1, Ordering::Relaxed);
                return;
            }
        }
        let left_out = self.left_out.swap(0, Ordering::Relaxed);
        // An error: the last listener has just gone.
        let _ = self.sender.send(Entry { left_out, ..entry() });
    }
}
