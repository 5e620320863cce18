//! What an action counts, and how it looks to whoever asks.
//!
//! Counters begin with the action and go on when its pump is started anew; whoever makes an action anew adds up ([`ActionStats::after`]). `matched = sent + failed + dropped + queued`, with what
//! the buffer had from an earlier process in `queued` only.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use schemars::JsonSchema;
use serde::Serialize;

use crate::buffer::BufferStats;
use crate::health::unix_ms;

/// Upper ends of the buckets of the latency histogram, in microseconds; there is one more for what is above.
pub const LATENCY_BOUNDS_US: [u64; 16] = [
    100,
    250,
    500,
    1_000,
    2_500,
    5_000,
    10_000,
    25_000,
    50_000,
    100_000,
    250_000,
    500_000,
    1_000_000,
    5_000_000,
    30_000_000,
    300_000_000,
];

#[derive(Debug, Default)]
pub(crate) struct Metrics {
    pub sent: AtomicU64,
    pub sent_bytes: AtomicU64,
    pub failed: AtomicU64,
    pub retried: AtomicU64,
    pub expired: AtomicU64,
    pub purged: AtomicU64,
    /// Read from the buffer and not done with.
    pub held: AtomicU64,
    pub in_flight: AtomicU64,
    pub fallen_back: AtomicU64,
    pub fallback_lost: AtomicU64,
    /// When the oldest arrived that is not done with; 0: there is none.
    pub oldest_unix_ms: AtomicU64,
    latency_us: [AtomicU64; LATENCY_BOUNDS_US.len() + 1],
    latency_sum_us: AtomicU64,
}

/// One bucket of the time from sending to confirmation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct LatencyBucket {
    /// None: no upper end.
    pub up_to_us: Option<u64>,
    /// Messages in this bucket alone.
    pub messages: u64,
}

/// Messages that were given up without having been refused by the target, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Dropped {
    /// The oldest, because the buffer was full.
    pub overflow_oldest: u64,
    /// As they came, because the buffer was full.
    pub overflow_newest: u64,
    /// As they came, because the disk took no more.
    pub disk: u64,
    /// They had waited longer than they may.
    pub expired: u64,
    /// An operator had the buffer emptied.
    pub purged: u64,
}

impl Dropped {
    pub fn total(&self) -> u64 {
        self.overflow_oldest + self.overflow_newest + self.disk + self.expired + self.purged
    }
}

/// The numbers of an action at one moment. Counters count from the start of the process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ActionStats {
    /// Messages that were given to the action.
    pub matched: u64,
    /// Messages that the target has confirmed.
    pub sent: u64,
    pub sent_bytes: u64,
    /// Messages that the target has refused for good, or that were tried too often.
    pub failed: u64,
    /// Of those that failed or were dropped, messages that fallback actions have taken; for each of these.
    pub fallen_back: u64,
    /// Of those that failed or were dropped, messages that a fallback action could not take; for each of these.
    pub fallback_lost: u64,
    /// Messages that were sent once more.
    pub retried: u64,
    pub dropped: Dropped,
    /// Messages that wait or are being sent.
    pub queued_messages: u64,
    pub queued_bytes: u64,
    /// Of the oldest message that was read from the buffer and is not confirmed.
    pub oldest_age_ms: u64,
    /// Messages that were sent and are not yet confirmed.
    pub in_flight: u64,
    /// How often publishers were held back because the buffer was full.
    pub held_back: u64,
    /// Of the buffer on the disk.
    pub file_bytes: u64,
    pub latency: Vec<LatencyBucket>,
    pub latency_sum_us: u64,
}

impl ActionStats {
    /// With what was counted by the same action before it was changed. What is there now, and not counted, is as it is now.
    #[must_use]
    pub fn after(mut self, before: &ActionStats) -> ActionStats {
        self.matched += before.matched;
        self.sent += before.sent;
        self.sent_bytes += before.sent_bytes;
        self.failed += before.failed;
        self.fallen_back += before.fallen_back;
        self.fallback_lost += before.fallback_lost;
        self.retried += before.retried;
        self.dropped.overflow_oldest += before.dropped.overflow_oldest;
        self.dropped.overflow_newest += before.dropped.overflow_newest;
        self.dropped.disk += before.dropped.disk;
        self.dropped.expired += before.dropped.expired;
        self.dropped.purged += before.dropped.purged;
        self.held_back += before.held_back;
        for (bucket, before) in self.latency.iter_mut().zip(&before.latency) {
            bucket.messages += before.messages;
        }
        self.latency_sum_us += before.latency_sum_us;
        self
    }
}

impl Metrics {
    pub fn add_latency(&self, us: u64, messages: u64) {
        let bucket = LATENCY_BOUNDS_US.partition_point(|&bound| bound < us);
        self.latency_us[bucket].fetch_add(messages, Relaxed);
        self.latency_sum_us.fetch_add(us.saturating_mul(messages), Relaxed);
    }

    pub fn stats(&self, buffer: &BufferStats) -> ActionStats {
        let oldest = self.oldest_unix_ms.load(Relaxed);
        let bounds = LATENCY_BOUNDS_US.iter().copied().map(Some).chain([None]);
        let latency = bounds.zip(&self.latency_us).map(|(up_to_us, messages)| LatencyBucket {
            up_to_us,
            messages: messages.load(Relaxed),
        });
        ActionStats {
            matched: buffer.appended_records + buffer.dropped_newest + buffer.dropped_disk,
            sent: self.sent.load(Relaxed),
            sent_bytes: self.sent_bytes.load(Relaxed),
            failed: self.failed.load(Relaxed),
            fallen_back: self.fallen_back.load(Relaxed),
            fallback_lost: self.fallback_lost.load(Relaxed) + buffer.undiverted,
            retried: self.retried.load(Relaxed),
            dropped: Dropped {
                overflow_oldest: buffer.dropped_oldest,
                overflow_newest: buffer.dropped_newest,
                disk: buffer.dropped_disk,
                expired: self.expired.load(Relaxed),
                purged: self.purged.load(Relaxed),
            },
            queued_messages: buffer.unread_records + self.held.load(Relaxed),
            queued_bytes: buffer.queued_bytes,
            oldest_age_ms: if oldest == 0 {
                0
            } else {
                unix_ms().saturating_sub(oldest)
            },
            in_flight: self.in_flight.load(Relaxed),
            held_back: buffer.refused_appends,
            file_bytes: buffer.file_bytes,
            latency: latency.collect(),
            latency_sum_us: self.latency_sum_us.load(Relaxed),
        }
    }
}
