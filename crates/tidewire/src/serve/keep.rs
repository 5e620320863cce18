//! Opening the journal: what the process before left, replayed, with a word about what takes long and what was found.

use std::sync::Arc;
use std::time::Instant;

use broker::durable::record::Position;
use broker::durable::recovery::Recovery;
use broker::durable::restore::Restored;
use journal::{DIRECTORY_NAME, Directory, Log, LogConfig, OpenError, Opened, Policy, ReplayError};

use crate::config::Config;
use crate::config::files::chain;
use crate::config::options::server::DurabilityPolicy;

/// How often start-up says how far it is.
const TELL_EVERY_BYTES: u64 = 256 * 1024 * 1024;

/// What the server goes on with; nothing under `durability.policy = "memory"`. `told` hears how much has been read, in percent.
pub fn open(config: &Config, told: &dyn Fn(u8)) -> Result<Option<net::Restart>, String> {
    let durability = &config.durability;
    let policy = match durability.policy {
        DurabilityPolicy::Fsync => Policy::Fsync,
        DurabilityPolicy::Os => Policy::Os,
        DurabilityPolicy::Memory => return Ok(None),
    };
    let log_config = LogConfig {
        policy,
        segment_bytes: durability.segment_bytes.0,
        max_bytes: durability.max_bytes.0,
        reserve_bytes: durability.reserve_bytes.0,
    };
    let begun = Instant::now();
    let storage = Directory::open(&config.data_dir, DIRECTORY_NAME).map_err(|error| chain(&error))?;
    let mut recovery = Recovery::new();
    let replayed = replay(Arc::new(storage), log_config, &mut recovery, told);
    let (log, opened) = replayed.map_err(|error| chain(&error))?;
    let recovered = recovery.finish();
    tell(&opened, recovered.sessions.len(), recovered.retained.len(), begun);
    Ok(Some(net::Restart {
        log,
        recovered,
        quota_bytes: durability.max_bytes.0,
        segment_bytes: durability.segment_bytes.0,
    }))
}

fn replay(
    storage: Arc<Directory>,
    config: LogConfig,
    recovery: &mut Recovery,
    told: &dyn Fn(u8),
) -> Result<(Log, Opened), OpenError> {
    let mut next_word = TELL_EVERY_BYTES;
    let mut progress = |done: u64, total: u64| {
        told(percent_of(done, total));
        if done >= next_word {
            next_word = done + TELL_EVERY_BYTES;
            tracing::info!(done_bytes = done, total_bytes = total, "reading the journal");
        }
    };
    let mut record = |position: journal::Lsn, bytes: &[u8]| {
        let result = recovery.record(Position(position.0), bytes);
        result.map_err(|error| ReplayError { because: chain(&error) })
    };
    Log::open(storage, config, &mut record, &mut progress)
}

fn percent_of(done: u64, total: u64) -> u8 {
    (done * 100).checked_div(total).unwrap_or(0).min(100) as u8
}

fn tell(opened: &Opened, sessions: usize, retained: usize, begun: Instant) {
    if opened.is_new {
        return;
    }
    let took_ms = begun.elapsed().as_millis() as u64;
    tracing::info!(
        sessions,
        retained,
        records = opened.records,
        took_ms,
        "read the journal"
    );
    if opened.torn_bytes_cut > 0 {
        let bytes = opened.torn_bytes_cut;
        tracing::info!(
            bytes,
            "the end of the journal was unfinished and has been cut; nothing says that any of it had been acknowledged"
        );
    }
}

/// What has come back, and what could not.
pub fn tell_restored(restored: &Restored) {
    let Restored {
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
            "the journal could not give these back; `tidewire journal verify` says where it is damaged"
        );
    }
}
