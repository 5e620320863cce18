//! Counters of the device platform.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

#[derive(Default)]
pub struct DeviceCounters {
    /// Records appended to the log, plus those found in it at the start.
    pub appended: AtomicU64,
    pub ingested: AtomicU64,
    /// The reader's position in the log.
    pub read_lsn: AtomicU64,
    /// Receive time of the last record read.
    pub read_received_ms: AtomicU64,
    pub refused_messages: AtomicU64,
    pub unknown_topics: AtomicU64,
    pub dropped_messages: AtomicU64,
    pub over_limit_messages: AtomicU64,
    pub dropped_downlinks: AtomicU64,
    pub sent_downlinks: AtomicU64,
    pub closed_sessions: AtomicU64,
    pub failed_batches: AtomicU64,
    pub unreadable_events: AtomicU64,
}

impl DeviceCounters {
    pub fn add(counter: &AtomicU64, count: u64) {
        counter.fetch_add(count, Relaxed);
    }
}

/// Messages that are not processed yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lag {
    pub messages: u64,
    pub bytes: u64,
    /// Age of the oldest, in milliseconds.
    pub age_ms: u64,
}

/// Counters begin at zero when the platform is opened.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DevicesStats {
    pub platform: platform::PlatformStats,
    pub store: timeseries::StoreStats,
    pub lag: Lag,
    pub devices: u64,
    pub directory_bytes: u64,
    pub sessions: u64,
    pub waiting_calls: u64,
    pub log_bytes: u64,
    pub log_health: journal::LogHealth,
    /// Stores whose last write failed, without the ingest log.
    pub failed_stores: u64,
    pub appended_records_total: u64,
    /// Messages that could not be decoded. Before MQTT 5 their connection was closed.
    pub refused_messages_total: u64,
    pub unknown_topics_total: u64,
    /// QoS 0 messages dropped because the log was full.
    pub dropped_messages_total: u64,
    /// Messages of devices over a rate or monthly limit of their tenant.
    pub over_limit_messages_total: u64,
    pub sent_downlinks_total: u64,
    /// Messages for disconnected devices, or for a shard that did not accept them.
    pub dropped_downlinks_total: u64,
    pub closed_sessions_total: u64,
    /// Batches that the store accepted only after a retry.
    pub failed_batches_total: u64,
    pub dropped_updates_total: u64,
    /// Connections of rule chains that were rejected because of their address.
    pub refused_targets_total: u64,
    /// Entities and rule nodes whose saved events could not be read.
    pub unreadable_events_total: u64,
}
