//! Counters of the platform at work.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

#[derive(Default)]
pub struct Counters {
    /// Records that the log was given, and that were found in it at the start.
    pub appended: AtomicU64,
    pub ingested: AtomicU64,
    /// Where the reader is in the log.
    pub read_lsn: AtomicU64,
    /// When what was read last had come.
    pub read_received_ms: AtomicU64,
    pub refused_messages: AtomicU64,
    pub unknown_topics: AtomicU64,
    pub dropped_messages: AtomicU64,
    pub over_limit_messages: AtomicU64,
    pub dropped_downlinks: AtomicU64,
    pub sent_downlinks: AtomicU64,
    pub closed_sessions: AtomicU64,
    pub failed_batches: AtomicU64,
    pub dropped_alive: AtomicU64,
    pub failed_rules: AtomicU64,
    pub unreadable_events: AtomicU64,
}

impl Counters {
    pub fn add(counter: &AtomicU64, count: u64) {
        counter.fetch_add(count, Relaxed);
    }
}

/// What was said and is not processed yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lag {
    pub messages: u64,
    pub bytes: u64,
    /// Of the oldest, in milliseconds.
    pub age_ms: u64,
}

/// Counters begin at zero when the platform is opened.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stats {
    pub platform: platform::Stats,
    pub store: timeseries::Stats,
    pub lag: Lag,
    pub devices: u64,
    pub directory_bytes: u64,
    pub sessions: u64,
    pub waiting_calls: u64,
    pub watched_entities: u64,
    pub log_bytes: u64,
    pub appended_records_total: u64,
    pub ingested_records_total: u64,
    /// Not understood; their connection was closed where the protocol cannot say so.
    pub refused_messages_total: u64,
    pub unknown_topics_total: u64,
    /// At QoS 0, while the log took nothing.
    pub dropped_messages_total: u64,
    /// Of devices over a limit of their tenant.
    pub over_limit_messages_total: u64,
    pub sent_downlinks_total: u64,
    /// For devices that were gone, or whose shard took nothing.
    pub dropped_downlinks_total: u64,
    pub closed_sessions_total: u64,
    /// Batches that the store took only when asked again.
    pub failed_batches_total: u64,
    pub dropped_updates_total: u64,
    pub dropped_alive_total: u64,
    /// Messages that failed in a rule chain.
    pub failed_rules_total: u64,
    /// Entities and rule nodes whose events of the process before could not be read.
    pub unreadable_events_total: u64,
}
