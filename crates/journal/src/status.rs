//! Positions, counters and state of the log, readable from any thread without waiting for the disk.
//!
//! Each half of the log writes its own fields: the tail `next` and `appended_bytes`, the writer the rest. Invariant:
//! `first <= synced <= written <= next`, `committed` equals `synced` or `written`, and no position decreases.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU8, AtomicU64};
use std::sync::{Mutex, PoisonError};

use crate::lsn::Lsn;

/// State of the log: whether appended records will be committed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogState {
    Ok,
    /// No space for a further segment. Appended records use the remaining space, then wait. Clears when space is
    /// available.
    Full {
        reason: String,
    },
    /// A write or sync failed. Nothing is committed until the log is opened again.
    Failed {
        reason: String,
    },
}

/// A [`LogState`] without the reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum LogHealth {
    #[default]
    Ok,
    Full,
    Failed,
}

impl LogHealth {
    fn of(byte: u8) -> LogHealth {
        match byte {
            0 => LogHealth::Ok,
            1 => LogHealth::Full,
            _ => LogHealth::Failed,
        }
    }
}

/// Counters and positions of one log. Counters start at zero when the log is opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogStats {
    /// Start of the oldest segment.
    pub first: Lsn,
    /// Position of the next batch.
    pub next: Lsn,
    pub committed: Lsn,
    pub synced: Lsn,
    /// Position from which the next start would replay.
    pub replay_from: Lsn,
    pub segments: u64,
    /// Size of all segments and the spare, including preallocated space.
    pub file_bytes: u64,
    /// Bytes that can still be written, regardless of limits: free space in the segments, and free disk space at the
    /// last flush.
    pub available_bytes: u64,
    pub appended_bytes: u64,
    pub written_bytes: u64,
    /// Flushes that had something to write.
    pub flushes: u64,
    pub syncs: u64,
    /// Bytes of an unfinished write that opening the log truncated.
    pub torn_bytes_cut: u64,
}

#[derive(Default)]
pub(crate) struct LogStatus {
    pub first: AtomicU64,
    pub next: AtomicU64,
    pub written: AtomicU64,
    pub synced: AtomicU64,
    pub committed: AtomicU64,
    pub replay_from: AtomicU64,
    pub segments: AtomicU64,
    pub file_bytes: AtomicU64,
    pub available_bytes: AtomicU64,
    pub appended_bytes: AtomicU64,
    pub written_bytes: AtomicU64,
    pub flushes: AtomicU64,
    pub syncs: AtomicU64,
    pub torn_bytes_cut: AtomicU64,
    health: AtomicU8,
    reason: Mutex<String>,
}

impl LogStatus {
    pub fn lsn(&self, of: impl FnOnce(&LogStatus) -> &AtomicU64) -> Lsn {
        Lsn(of(self).load(Acquire))
    }

    pub fn health(&self) -> LogHealth {
        LogHealth::of(self.health.load(Acquire))
    }

    pub fn is_failed(&self) -> bool {
        self.health() == LogHealth::Failed
    }

    pub fn state(&self) -> LogState {
        if self.health() == LogHealth::Ok {
            return LogState::Ok;
        }
        let reason = self.reason.lock().unwrap_or_else(PoisonError::into_inner);
        match self.health() {
            LogHealth::Ok => LogState::Ok,
            LogHealth::Full => LogState::Full { reason: reason.clone() },
            LogHealth::Failed => LogState::Failed { reason: reason.clone() },
        }
    }

    /// Sets the state. `Failed` is final.
    pub fn set_state(&self, state: LogState) {
        let mut text = self.reason.lock().unwrap_or_else(PoisonError::into_inner);
        if self.is_failed() {
            return;
        }
        let (health, reason) = match state {
            LogState::Ok => (LogHealth::Ok, String::new()),
            LogState::Full { reason } => (LogHealth::Full, reason),
            LogState::Failed { reason } => (LogHealth::Failed, reason),
        };
        *text = reason;
        self.health.store(health as u8, Release);
    }

    /// Returns the number of bytes that are appended and not yet committed.
    pub fn backlog_bytes(&self) -> u64 {
        // Loaded in this order so that the difference is never negative.
        let committed = self.committed.load(Acquire);
        self.next.load(Acquire) - committed
    }

    pub fn stats(&self) -> LogStats {
        LogStats {
            first: self.lsn(|status| &status.first),
            replay_from: self.lsn(|status| &status.replay_from),
            synced: self.lsn(|status| &status.synced),
            committed: self.lsn(|status| &status.committed),
            next: self.lsn(|status| &status.next),
            segments: self.segments.load(Relaxed),
            file_bytes: self.file_bytes.load(Relaxed),
            available_bytes: self.available_bytes.load(Relaxed),
            appended_bytes: self.appended_bytes.load(Relaxed),
            written_bytes: self.written_bytes.load(Relaxed),
            flushes: self.flushes.load(Relaxed),
            syncs: self.syncs.load(Relaxed),
            torn_bytes_cut: self.torn_bytes_cut.load(Relaxed),
        }
    }
}
