//! How far the log is and how it does: what any thread may ask at any time without waiting for the disk.
//!
//! Written by the two halves of the log, each its own fields: `next` and `appended_bytes` by the tail, the rest by the writer.
//! Invariant: `first <= synced <= written <= next`, `committed` is one of `synced` and `written`, and none of them goes back.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU8, AtomicU64};
use std::sync::{Mutex, PoisonError};

use crate::lsn::Lsn;

/// Whether what is appended will be committed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    Ok,
    /// No space for a further segment. What is appended goes to the space that is left, then waits. Passes by itself.
    Full {
        because: String,
    },
    /// The disk refused to keep what it was given. Nothing is committed any more, until the log is opened again.
    Failed {
        because: String,
    },
}

/// A [`State`] without the reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Health {
    #[default]
    Ok,
    Full,
    Failed,
}

impl Health {
    fn of(byte: u8) -> Health {
        match byte {
            0 => Health::Ok,
            1 => Health::Full,
            _ => Health::Failed,
        }
    }
}

/// Numbers of one log since it was opened, except where it says otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogStats {
    /// Beginning of the oldest segment that is kept.
    pub first: Lsn,
    /// Where the next batch goes.
    pub next: Lsn,
    pub committed: Lsn,
    pub synced: Lsn,
    /// Where the next start would replay from.
    pub replay_from: Lsn,
    pub segments: u64,
    /// Of all segments and the spare one, as preallocated.
    pub file_bytes: u64,
    /// That can be written, whether it may or not: what is left of them, and what the disk had free at the last flush.
    pub room_bytes: u64,
    pub appended_bytes: u64,
    pub written_bytes: u64,
    /// Flushes that had something to write.
    pub flushes: u64,
    pub syncs: u64,
    /// Bytes of an unfinished write that were cut off when the log was opened.
    pub torn_bytes_cut: u64,
}

#[derive(Default)]
pub(crate) struct Status {
    pub first: AtomicU64,
    pub next: AtomicU64,
    pub written: AtomicU64,
    pub synced: AtomicU64,
    pub committed: AtomicU64,
    pub replay_from: AtomicU64,
    pub segments: AtomicU64,
    pub file_bytes: AtomicU64,
    pub room_bytes: AtomicU64,
    pub appended_bytes: AtomicU64,
    pub written_bytes: AtomicU64,
    pub flushes: AtomicU64,
    pub syncs: AtomicU64,
    pub torn_bytes_cut: AtomicU64,
    health: AtomicU8,
    because: Mutex<String>,
}

impl Status {
    pub fn lsn(&self, of: impl FnOnce(&Status) -> &AtomicU64) -> Lsn {
        Lsn(of(self).load(Acquire))
    }

    pub fn health(&self) -> Health {
        Health::of(self.health.load(Acquire))
    }

    pub fn is_failed(&self) -> bool {
        self.health() == Health::Failed
    }

    pub fn state(&self) -> State {
        if self.health() == Health::Ok {
            return State::Ok;
        }
        let because = self.because.lock().unwrap_or_else(PoisonError::into_inner);
        match self.health() {
            Health::Ok => State::Ok,
            Health::Full => State::Full {
                because: because.clone(),
            },
            Health::Failed => State::Failed {
                because: because.clone(),
            },
        }
    }

    /// Failed is for good.
    pub fn set_state(&self, state: State) {
        let mut text = self.because.lock().unwrap_or_else(PoisonError::into_inner);
        if self.is_failed() {
            return;
        }
        let (health, because) = match state {
            State::Ok => (Health::Ok, String::new()),
            State::Full { because } => (Health::Full, because),
            State::Failed { because } => (Health::Failed, because),
        };
        *text = because;
        self.health.store(health as u8, Release);
    }

    /// Appended and not yet committed.
    pub fn backlog_bytes(&self) -> u64 {
        // In this order: the difference is never negative.
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
            room_bytes: self.room_bytes.load(Relaxed),
            appended_bytes: self.appended_bytes.load(Relaxed),
            written_bytes: self.written_bytes.load(Relaxed),
            flushes: self.flushes.load(Relaxed),
            syncs: self.syncs.load(Relaxed),
            torn_bytes_cut: self.torn_bytes_cut.load(Relaxed),
        }
    }
}
