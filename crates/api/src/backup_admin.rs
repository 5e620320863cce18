//! Backups at run time. The binary implements this trait, because it knows the contents of the data directory.

use std::fmt;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::Serialize;

/// Called on threads that may block (disk), never on a shard's thread.
pub trait BackupAdmin: Send + Sync + 'static {
    fn state(&self) -> Result<Backups, BackupAdminError>;

    /// Starts a backup in the background and returns its name.
    fn start(&self) -> Result<String, BackupAdminError>;

    /// Returns the directory of a finished backup.
    fn path(&self, name: &str) -> Result<PathBuf, BackupAdminError>;

    /// Deletes a backup. Cancels it if it is in progress.
    fn remove(&self, name: &str) -> Result<(), BackupAdminError>;

    /// Starts to verify a backup and to copy it next to the data. After that, the next start of the server restores it.
    fn restore(&self, name: &str) -> Result<(), BackupAdminError>;

    /// Cancels the prepared restore.
    fn cancel_restore(&self) -> Result<(), BackupAdminError>;

    /// Restarts the server with the prepared data.
    fn restore_now(&self) -> Result<(), BackupAdminError>;

    /// Deletes data that a restore has replaced.
    fn remove_replaced_data(&self, name: &str) -> Result<(), BackupAdminError>;
}

/// Finished backups and the backup in progress.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Backups {
    /// Directory of the backups on the server's machine.
    pub directory: String,
    pub running: Option<RunningBackup>,
    /// The last backup that failed.
    pub failure: Option<FailedBackup>,
    /// Newest first.
    pub items: Vec<Backup>,
    /// The restore that is being prepared or waits for a restart.
    pub restore: Option<Restore>,
    /// Result of the last restore.
    pub restored: Option<RestoreOutcome>,
    /// Data directories that a restore replaced, newest first.
    pub replaced_data: Vec<ReplacedData>,
}

#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Restore {
    /// Name of the backup.
    pub name: String,
    pub state: RestoreState,
    /// Time of the last change of the state.
    pub since_unix_ms: u64,
    pub copied_bytes: u64,
    pub total_bytes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RestoreState {
    /// The backup is being verified and copied.
    Preparing,
    /// The next start of the server restores the backup.
    Prepared,
}

#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct RestoreOutcome {
    /// Name of the backup.
    pub name: String,
    pub at_unix_ms: u64,
    /// Why the restore failed and the previous data is in force. Absent if the restore succeeded.
    pub failure: Option<String>,
    /// Name of the entry in `replaced_data` that contains the previous data.
    pub previous_data: Option<String>,
}

#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct ReplacedData {
    pub name: String,
    pub at_unix_ms: u64,
    pub bytes: u64,
}

#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct RunningBackup {
    pub name: String,
    pub started_at_unix_ms: u64,
    pub copied_bytes: u64,
    /// An estimate.
    pub total_bytes: u64,
}

#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct FailedBackup {
    pub name: String,
    pub at_unix_ms: u64,
    pub reason: String,
}

/// A finished backup.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Backup {
    pub name: String,
    pub created_at_unix_ms: u64,
    pub bytes: u64,
    /// Summary of the contents.
    pub contents: String,
}

#[derive(Debug)]
pub enum BackupAdminError {
    Unknown,
    /// Another backup is in progress.
    Running,
    /// The limit of backups is reached.
    TooMany {
        max: usize,
    },
    Space {
        needed_bytes: u64,
        free_bytes: u64,
    },
    /// A restore is being prepared or waits for a restart.
    Restoring,
    NotPrepared,
    /// The server is starting with restored data, and may still return to the previous data.
    RestoreUnconfirmed,
    /// The limit of replaced data directories is reached.
    TooMuchReplacedData {
        max: usize,
    },
    Files {
        reason: String,
    },
}

impl fmt::Display for BackupAdminError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BackupAdminError::Unknown => f.write_str("no backup has this name"),
            BackupAdminError::Running => f.write_str("another backup is in progress; wait until it has finished"),
            BackupAdminError::TooMany { max } => {
                write!(f, "the limit of {max} backups is reached; delete a backup first")
            }
            BackupAdminError::Space {
                needed_bytes,
                free_bytes,
            } => write!(
                f,
                "the backup may need {needed_bytes} bytes, but the disk has only {free_bytes} bytes available"
            ),
            BackupAdminError::Restoring => f.write_str("a restore is prepared or being prepared; cancel it first"),
            BackupAdminError::NotPrepared => f.write_str("no restore is prepared"),
            BackupAdminError::RestoreUnconfirmed => {
                f.write_str("the server is starting with a restored backup; wait until it is ready")
            }
            BackupAdminError::TooMuchReplacedData { max } => write!(
                f,
                "the replaced data of {max} restores is still stored, which is the limit; delete some of it first"
            ),
            BackupAdminError::Files { reason } => f.write_str(reason),
        }
    }
}

impl std::error::Error for BackupAdminError {}
