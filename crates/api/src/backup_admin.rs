//! The seam through which backups are made and looked at while the server runs. The binary implements it: it knows what is in the
//! data directory.

use std::fmt;
use std::path::PathBuf;
use std::time::SystemTime;

/// Called on threads that may block (disk), never on a shard's thread.
pub trait BackupAdmin: Send + Sync + 'static {
    fn state(&self) -> Result<BackupState, BackupError>;

    /// Begins one and returns its name; it goes on meanwhile.
    fn start(&self) -> Result<String, BackupError>;

    /// The directory of a finished one.
    fn path(&self, name: &str) -> Result<PathBuf, BackupError>;

    /// Also of the one that is being made, which ends.
    fn remove(&self, name: &str) -> Result<(), BackupError>;
}

#[derive(Clone, Debug)]
pub struct BackupState {
    /// Where they are.
    pub directory: PathBuf,
    pub running: Option<RunningBackup>,
    /// Of the last one that did not come to its end.
    pub failure: Option<FailedBackup>,
    /// The newest first.
    pub finished: Vec<Backup>,
}

#[derive(Clone, Debug)]
pub struct RunningBackup {
    pub name: String,
    pub started_at: SystemTime,
    pub copied_bytes: u64,
    /// As far as can be told beforehand.
    pub total_bytes: u64,
}

#[derive(Clone, Debug)]
pub struct FailedBackup {
    pub name: String,
    pub at: SystemTime,
    pub because: String,
}

#[derive(Clone, Debug)]
pub struct Backup {
    pub name: String,
    pub made_at: SystemTime,
    pub bytes: u64,
    /// What is in it, in words.
    pub holds: String,
}

#[derive(Debug)]
pub enum BackupError {
    Unknown,
    /// One at a time.
    Running,
    /// There are as many as may be kept.
    TooMany {
        max: usize,
    },
    Space {
        needed_bytes: u64,
        free_bytes: u64,
    },
    Files {
        because: String,
    },
}

impl fmt::Display for BackupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BackupError::Unknown => f.write_str("there is no backup of that name"),
            BackupError::Running => f.write_str("a backup is being made; it has to end first"),
            BackupError::TooMany { max } => write!(f, "there are {max} backups, which is the limit; delete some first"),
            BackupError::Space {
                needed_bytes,
                free_bytes,
            } => write!(
                f,
                "a backup may need {needed_bytes} bytes, and the disk has {free_bytes} that may be used"
            ),
            BackupError::Files { because } => f.write_str(because),
        }
    }
}

impl std::error::Error for BackupError {}
