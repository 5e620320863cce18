//! Opens the journal, replays it, and logs progress and results.

use std::sync::Arc;
use std::time::Instant;

use broker::durable::record::{RECORD_VERSION, RecordPosition};
use broker::durable::recovery::Recovery;
use broker::durable::restore::RestoreCounts;
use journal::{
    DIRECTORY_NAME, FlushPolicy, LogConfig, OpenError, OpenReport, RecordLog, ReplayError, StorageDirectory, StoreKind,
};

use crate::config::Config;
use crate::config::files::chain;
use crate::config::options::server::DurabilityPolicy;

/// Interval of progress messages at the start.
const LOG_PROGRESS_EVERY_BYTES: u64 = 256 * 1024 * 1024;

/// Returns the recovered journal; `None` with `durability.policy = "memory"`. Reports the progress in percent.
pub fn open(config: &Config, report_percent: &dyn Fn(u8)) -> Result<Option<net::RestartState>, String> {
    let durability = &config.durability;
    let policy = match durability.policy {
        DurabilityPolicy::Fsync => FlushPolicy::Fsync,
        DurabilityPolicy::Os => FlushPolicy::Os,
        DurabilityPolicy::Memory => return Ok(None),
    };
    let log_config = LogConfig {
        policy,
        segment_bytes: durability.segment_bytes.0,
        max_bytes: durability.max_bytes.0,
        reserve_bytes: durability.reserve_bytes.0,
        commit_interval: durability.commit_interval,
        record_version: RECORD_VERSION,
    };
    let begun = Instant::now();
    let storage = StorageDirectory::open(&config.data_dir, DIRECTORY_NAME).map_err(|error| chain(&error))?;
    let mut recovery = Recovery::new();
    let storage = Arc::new(storage.counted_as(StoreKind::Journal));
    let replayed = replay(storage, log_config, &mut recovery, report_percent);
    let (log, opened) = replayed.map_err(|error| chain(&error))?;
    let mut recovered = recovery.finish();
    if opened.lost_records > 0 {
        let ended = recovered.end_replaced_sessions();
        tracing::warn!(
            lost_records = opened.lost_records,
            ended_sessions = ended,
            "the journal was repaired and lacks records: messages, acknowledgements or changes of sessions"
        );
    }
    log_opened(&opened, recovered.sessions.len(), recovered.retained.len(), begun);
    Ok(Some(net::RestartState {
        log,
        recovered,
        quota_bytes: durability.max_bytes.0,
        segment_bytes: durability.segment_bytes.0,
    }))
}

fn replay(
    storage: Arc<StorageDirectory>,
    config: LogConfig,
    recovery: &mut Recovery,
    report_percent: &dyn Fn(u8),
) -> Result<(RecordLog, OpenReport), OpenError> {
    let mut next_log_bytes = LOG_PROGRESS_EVERY_BYTES;
    let mut progress = |done: u64, total: u64| {
        report_percent(percent_of(done, total));
        if done >= next_log_bytes {
            next_log_bytes = done + LOG_PROGRESS_EVERY_BYTES;
            tracing::info!(done_bytes = done, total_bytes = total, "reading the journal");
        }
    };
    let mut record = |position: journal::Lsn, bytes: &[u8]| {
        let result = recovery.record(RecordPosition(position.0), bytes);
        // The log names the position.
        result.map_err(|error| ReplayError {
            reason: error.source.to_string(),
        })
    };
    RecordLog::open(storage, config, &mut record, &mut progress)
}

fn percent_of(done: u64, total: u64) -> u8 {
    (done * 100).checked_div(total).unwrap_or(0).min(100) as u8
}

fn log_opened(opened: &OpenReport, sessions: usize, retained: usize, begun: Instant) {
    if opened.is_new {
        return;
    }
    let took_ms = begun.elapsed().as_millis() as u64;
    tracing::info!(sessions, retained, records = opened.records, took_ms, "journal read");
    if opened.torn_bytes_cut > 0 {
        let bytes = opened.torn_bytes_cut;
        tracing::info!(
            bytes,
            "removed an incomplete record at the end of the journal; it was not acknowledged"
        );
    }
}

/// Logs recovered and lost messages.
pub fn log_restored(restored: &RestoreCounts) {
    let RestoreCounts {
        sessions,
        queued_messages,
        retained_messages,
        damaged,
    } = *restored;
    if sessions + retained_messages > 0 {
        tracing::info!(sessions, queued_messages, retained_messages, "restored");
    }
    if damaged > 0 {
        tracing::error!(
            messages = damaged,
            "cannot read messages from the journal; `tidewire journal verify` shows where it is damaged"
        );
    }
}
