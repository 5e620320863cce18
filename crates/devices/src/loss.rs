//! Finds missing data of the platform: its stores record positions of each other. An operator can accept the loss. The
//! platform then opens with the remaining data.

use std::path::Path;

use journal::Lsn;
use journal::inspect::{InspectError, extend_to, inspect_log};
use platform::SqliteRepository;
use platform::ids::Uuid;
use platform::repository::StateKind;

use crate::log::begin;
use crate::{DIRECTORY_NAME, LOG_NAME};
use timeseries::LogPosition;

/// Data that is missing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MissingData {
    /// Path within the data directory.
    pub path: String,
    pub what: String,
}

/// Returns the missing data. With `is_accepted`, the platform opens without it from now on.
pub fn missing_data(
    data_dir: &Path,
    is_accepted: bool,
) -> Result<Vec<MissingData>, Box<dyn std::error::Error + Send + Sync>> {
    let directory = data_dir.join(DIRECTORY_NAME);
    let mut all = Vec::new();
    if !directory.is_dir() {
        return Ok(all);
    }
    let of_series = timeseries::accept_loss(&directory, timeseries::DIRECTORY_NAME, is_accepted)?;
    let path = format!("{DIRECTORY_NAME}/{}", timeseries::DIRECTORY_NAME);
    all.extend(of_series.losses().map(|what| MissingData {
        path: path.clone(),
        what,
    }));
    if let Some(count) = SqliteRepository::missing_transactions(&directory, is_accepted)? {
        all.push(MissingData {
            path: format!("{DIRECTORY_NAME}/{}", platform::FILE_NAME),
            what: format!("the last {count} transactions: changes of devices, users, attributes and alarms"),
        });
    }
    let applied = SqliteRepository::stored_state(&directory, StateKind::Position, Uuid::NULL)?;
    let applied = applied.and_then(|bytes| Some(u64::from_le_bytes(bytes.try_into().ok()?)));
    let stored = match of_series.is_total {
        true => None,
        false => timeseries::durable_position_of(&directory, timeseries::DIRECTORY_NAME)?,
    };
    let needed = LogPosition(applied.unwrap_or(0)).max(stored.unwrap_or(LogPosition(0)));
    let end = match inspect_log(&directory, LOG_NAME, &mut |_, _| {}) {
        Ok(report) => report.next,
        Err(InspectError::NoJournal { .. } | InspectError::Directory(_)) => Lsn(0),
        Err(error) => return Err(error.into()),
    };
    if end < begin(needed) {
        all.push(MissingData {
            path: format!("{DIRECTORY_NAME}/{LOG_NAME}"),
            what: format!(
                "messages of devices between the positions {end} and {needed}",
                needed = needed.0
            ),
        });
        if is_accepted {
            // New messages must not get positions that the stores have already processed.
            extend_to(&directory, LOG_NAME, Lsn(needed.0))?;
        }
    }
    Ok(all)
}
