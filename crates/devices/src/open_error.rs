//! Why the device platform cannot be opened.

use std::fmt;
use std::io;
use std::path::PathBuf;

use crate::options::DIRECTORY_NAME;

#[derive(Debug)]
pub enum DevicesOpenError {
    Directory(Box<dyn std::error::Error + Send + Sync>),
    Log(Box<dyn std::error::Error + Send + Sync>),
    /// The log ends before the position that the stores have already applied.
    LogIsOlder {
        ends_at: u64,
        needed: u64,
        data_dir: PathBuf,
    },
    Repository(Box<dyn std::error::Error + Send + Sync>),
    Store(Box<dyn std::error::Error + Send + Sync>),
    /// A file of the time series is damaged or missing.
    SeriesLost {
        problem: String,
        data_dir: PathBuf,
    },
    Platform(platform::PlatformOpenError),
    Thread(io::Error),
}

impl fmt::Display for DevicesOpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DevicesOpenError::Directory(_) => f.write_str("cannot use the platform's directory"),
            DevicesOpenError::Log(_) => f.write_str("cannot open the device log"),
            DevicesOpenError::LogIsOlder {
                ends_at,
                needed,
                data_dir,
            } => write!(
                f,
                "the device log ends at {ends_at}, but the platform's data includes position {needed}: \
                 the end of {DIRECTORY_NAME}/log is missing, or the log is older than the rest of {DIRECTORY_NAME}. Restore a \
                 backup of the whole data directory, or accept the loss: tidewire journal repair --accept-loss --data-dir {}",
                data_dir.display()
            ),
            DevicesOpenError::Repository(_) => f.write_str("cannot read the platform's entities"),
            DevicesOpenError::Store(_) => f.write_str("cannot open the time series"),
            DevicesOpenError::SeriesLost { problem, data_dir } => write!(
                f,
                "a file of the time series is damaged or missing: {problem}. Restore a backup of the whole data directory, or \
                 accept the loss: tidewire journal repair --accept-loss --data-dir {}",
                data_dir.display()
            ),
            DevicesOpenError::Platform(_) => f.write_str("cannot open the platform"),
            DevicesOpenError::Thread(_) => f.write_str("cannot start a thread of the platform"),
        }
    }
}

impl std::error::Error for DevicesOpenError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(match self {
            DevicesOpenError::Directory(error)
            | DevicesOpenError::Log(error)
            | DevicesOpenError::Repository(error)
            | DevicesOpenError::Store(error) => &**error,
            DevicesOpenError::LogIsOlder { .. } | DevicesOpenError::SeriesLost { .. } => return None,
            DevicesOpenError::Platform(error) => error,
            DevicesOpenError::Thread(error) => error,
        })
    }
}
