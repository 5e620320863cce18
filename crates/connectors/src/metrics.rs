//! Counters of an action and their public form.
//!
//! Counters continue when the pump restarts or the action changes. `matched = sent + failed + dropped + queued`;
//! records that the buffer had at the start of the process count in `queued` only.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use schemars::JsonSchema;
use serde::Serialize;

use crate::buffer::BufferStats;
use crate::health::unix_ms;

/// Upper bounds of the latency histogram's buckets, in microseconds. A further bucket has no bound.
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
    pub skipped_echoes: AtomicU64,
    pub expired: AtomicU64,
    pub purged: AtomicU64,
    pub in_flight: AtomicU64,
    pub fallback_stored: AtomicU64,
    pub fallback_lost: AtomicU64,
    /// Arrival time of the oldest unfinished record in Unix milliseconds; 0 if there is none.
    pub oldest_unix_ms: AtomicU64,
    latency_us: [AtomicU64; LATENCY_BOUNDS_US.len() + 1],
    latency_sum_us: AtomicU64,
    /// Counters of this action before it was changed.
    earlier: ActionStats,
}

/// One bucket of the histogram of the time from sending to confirmation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct LatencyBucket {
    /// Upper bound in microseconds. Null: no bound.
    pub up_to_us: Option<u64>,
    /// Messages in this bucket, without lower buckets.
    pub messages: u64,
}

/// Messages that were dropped before the target rejected them, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(rename = "ActionDrops")]
pub struct Dropped {
    /// Oldest messages dropped because the buffer was full.
    pub overflow_oldest: u64,
    /// New messages dropped because the buffer was full.
    pub overflow_newest: u64,
    /// New messages dropped because the disk was full, failing or too slow.
    pub disk: u64,
    /// Messages dropped because they exceeded `request_ttl_ms`.
    pub expired: u64,
    /// Messages dropped because an operator purged the buffer.
    pub purged: u64,
}

impl Dropped {
    pub fn total(&self) -> u64 {
        self.overflow_oldest + self.overflow_newest + self.disk + self.expired + self.purged
    }
}

/// Counters and gauges of an action. Counters start with the process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ActionStats {
    /// Messages that rules sent to the action.
    pub matched: u64,
    /// Messages that the target confirmed.
    pub sent: u64,
    pub sent_bytes: u64,
    /// Messages that the target rejected, or that ran out of attempts.
    pub failed: u64,
    /// Failed or dropped messages that fallback actions stored, counted once per fallback action.
    pub fallback_stored: u64,
    /// Failed or dropped messages that a fallback action could not store, counted once per fallback action.
    pub fallback_lost: u64,
    /// Messages that were sent again.
    pub retried: u64,
    /// Messages that were not sent because a source of the same connector had received them from the action's target.
    /// They also count as sent.
    pub skipped_echoes: u64,
    pub dropped: Dropped,
    /// Messages that wait or are in flight.
    pub queued_messages: u64,
    pub queued_bytes: u64,
    /// Age of the oldest unconfirmed message that the pump has read from the buffer, in milliseconds.
    pub oldest_age_ms: u64,
    /// Messages that were sent and are not yet confirmed.
    pub in_flight: u64,
    /// Messages that had to wait because the buffer was full, without retries. Publishers that wait with messages that
    /// the buffer has not received count once.
    pub publishers_held_back: u64,
    /// Size of the buffer's files on the disk.
    pub file_bytes: u64,
    pub latency: Vec<LatencyBucket>,
    pub latency_sum_us: u64,
}

impl ActionStats {
    /// Adds the counters of the action that this one replaces.
    fn add_counters(&mut self, earlier: &ActionStats) {
        self.matched += earlier.matched;
        self.sent += earlier.sent;
        self.sent_bytes += earlier.sent_bytes;
        self.failed += earlier.failed;
        self.fallback_stored += earlier.fallback_stored;
        self.fallback_lost += earlier.fallback_lost;
        self.retried += earlier.retried;
        self.skipped_echoes += earlier.skipped_echoes;
        self.dropped.overflow_oldest += earlier.dropped.overflow_oldest;
        self.dropped.overflow_newest += earlier.dropped.overflow_newest;
        self.dropped.disk += earlier.dropped.disk;
        self.dropped.expired += earlier.dropped.expired;
        self.dropped.purged += earlier.dropped.purged;
        self.publishers_held_back += earlier.publishers_held_back;
        for (bucket, earlier) in self.latency.iter_mut().zip(&earlier.latency) {
            bucket.messages += earlier.messages;
        }
        self.latency_sum_us += earlier.latency_sum_us;
    }
}

impl Metrics {
    /// Creates counters that continue from `earlier`.
    pub fn continuing(earlier: ActionStats) -> Metrics {
        Metrics {
            earlier,
            ..Metrics::default()
        }
    }

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
        let mut stats = ActionStats {
            matched: buffer.appended_records + buffer.dropped_newest + buffer.dropped_disk,
            sent: self.sent.load(Relaxed),
            sent_bytes: self.sent_bytes.load(Relaxed),
            failed: self.failed.load(Relaxed),
            fallback_stored: self.fallback_stored.load(Relaxed),
            fallback_lost: self.fallback_lost.load(Relaxed) + buffer.not_diverted,
            retried: self.retried.load(Relaxed),
            skipped_echoes: self.skipped_echoes.load(Relaxed),
            dropped: Dropped {
                overflow_oldest: buffer.dropped_oldest,
                overflow_newest: buffer.dropped_newest,
                disk: buffer.dropped_disk,
                expired: self.expired.load(Relaxed),
                purged: self.purged.load(Relaxed),
            },
            queued_messages: buffer.unread_records + buffer.held_records,
            queued_bytes: buffer.queued_bytes,
            oldest_age_ms: if oldest == 0 {
                0
            } else {
                unix_ms().saturating_sub(oldest)
            },
            in_flight: self.in_flight.load(Relaxed),
            publishers_held_back: buffer.held_back,
            file_bytes: buffer.file_bytes,
            latency: latency.collect(),
            latency_sum_us: self.latency_sum_us.load(Relaxed),
        };
        stats.add_counters(&self.earlier);
        stats
    }
}
