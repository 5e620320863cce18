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

    /// Begins to verify one and to copy it beside the data; when that is done, the next start of the server restores it.
    fn restore(&self, name: &str) -> Result<(), BackupError>;

    /// Nothing will be restored.
    fn cancel_restore(&self) -> Result<(), BackupError>;

    /// The server starts anew, with what is prepared.
    fn restore_now(&self) -> Result<(), BackupError>;

    /// Deletes the data that was in force before a restore.
    fn remove_set_aside(&self, name: &str) -> Result<(), BackupError>;
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
    pub restoring: Option<Restoring>,
    /// What became of the last restore.
    pub restored: Option<RestoreOutcome>,
    /// The newest first.
    pub set_aside: Vec<SetAside>,
}

/// A backup that is on its way to be restored.
#[derive(Clone, Debug)]
pub enum Restoring {
    /// It is verified and copied.
    Preparing(RunningBackup),
    /// The next start restores it.
    Prepared { name: String, at: SystemTime },
}

#[derive(Clone, Debug)]
pub struct RestoreOutcome {
    pub name: String,
    pub at: SystemTime,
    /// Without one it was restored.
    pub failure: Option<String>,
    /// Where the data of before is.
    pub set_aside: Option<String>,
}

/// Data that was in force before a restore.
#[derive(Clone, Debug)]
pub struct SetAside {
    pub name: String,
    pub at: SystemTime,
    pub bytes: u64,
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
    /// Of restores, too.
    Restoring,
    NotPrepared,
    /// The server is starting with what was restored, and may yet go back.
    OnTrial,
    /// Data of before restores.
    TooMuchSetAside {
        max: usize,
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
            BackupError::Restoring => {
                f.write_str("a backup waits to be restored, or is being prepared for that; cancel that first")
            }
            BackupError::NotPrepared => f.write_str("no backup is prepared to be restored"),
            BackupError::OnTrial => {
                f.write_str("the server is starting with a backup that was restored; wait until it is ready")
            }
            BackupError::TooMuchSetAside { max } => write!(
                f,
                "the data of before {max} restores is still set aside, which is the limit; delete some first"
            ),
            BackupError::Files { because } => f.write_str(because),
        }
    }
}

impl std::error::Error for BackupError {}
