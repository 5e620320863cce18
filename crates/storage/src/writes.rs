//! Bytes written and syncs of this process, by kind of store, for metrics.
//!
//! The counters are global, because a metric of the process must not decrease when an action with its buffer is
//! deleted. They include headers, checkpoints and zeros that the journal writes ahead, and exclude what the file system
//! writes for itself.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// Kind of the store in a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreKind {
    Journal,
    /// Buffers of actions.
    Buffers,
    /// Log of messages of devices that the platform processes.
    IngestLog,
    /// Telemetry of devices.
    Timeseries,
    /// Charts of the console.
    History,
}

#[derive(Debug)]
pub(crate) struct WriteCounters {
    bytes: AtomicU64,
    syncs: AtomicU64,
}

static COUNTERS: [WriteCounters; StoreKind::ALL.len()] = [const {
    WriteCounters {
        bytes: AtomicU64::new(0),
        syncs: AtomicU64::new(0),
    }
}; StoreKind::ALL.len()];

impl StoreKind {
    pub const ALL: [StoreKind; 5] = [
        StoreKind::Journal,
        StoreKind::Buffers,
        StoreKind::IngestLog,
        StoreKind::Timeseries,
        StoreKind::History,
    ];

    /// Returns the name in metrics.
    pub fn name(self) -> &'static str {
        match self {
            StoreKind::Journal => "journal",
            StoreKind::Buffers => "buffers",
            StoreKind::IngestLog => "ingest_log",
            StoreKind::Timeseries => "timeseries",
            StoreKind::History => "history",
        }
    }

    /// Returns the number of bytes written since the start of the process.
    pub fn written_bytes(self) -> u64 {
        self.counters().bytes.load(Relaxed)
    }

    /// Returns the number of syncs of files and directories since the start of the process.
    pub fn syncs(self) -> u64 {
        self.counters().syncs.load(Relaxed)
    }

    pub(crate) fn counters(self) -> &'static WriteCounters {
        &COUNTERS[self as usize]
    }
}

impl WriteCounters {
    pub fn add_write(&self, bytes: usize) {
        self.bytes.fetch_add(bytes as u64, Relaxed);
    }

    pub fn add_sync(&self) {
        self.syncs.fetch_add(1, Relaxed);
    }
}
