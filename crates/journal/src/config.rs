//! What the owner of a log decides.

use std::fmt;

/// When a record is committed: when it may be acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// On the disk: survives a power cut.
    Fsync,
    /// With the operating system: survives the end of the process. The disk follows within about a second.
    Os,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogConfig {
    pub policy: Policy,
    /// Of a segment file; a longer batch gets a segment of its own size.
    pub segment_bytes: u64,
    /// Quota for all files of the log, at least [`SEGMENTS_MIN`] segments.
    pub max_bytes: u64,
    /// Free space of the disk that is left alone.
    pub reserve_bytes: u64,
}

/// Fewer could not hold one that is written, a spare one and something to take back.
pub const SEGMENTS_MIN: u64 = 4;
/// Less would be headers.
pub const SEGMENT_BYTES_MIN: u64 = 256;

impl Default for LogConfig {
    fn default() -> LogConfig {
        LogConfig {
            policy: Policy::Fsync,
            segment_bytes: 64 << 20,
            max_bytes: 16 << 30,
            reserve_bytes: 256 << 20,
        }
    }
}

/// A value that no log can work with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConfigError {
    SegmentTooSmall { segment_bytes: u64 },
    QuotaTooSmall { max_bytes: u64, segment_bytes: u64 },
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConfigError::SegmentTooSmall { segment_bytes } => {
                write!(f, "a segment of {segment_bytes} bytes: at least {SEGMENT_BYTES_MIN}")
            }
            ConfigError::QuotaTooSmall {
                max_bytes,
                segment_bytes,
            } => write!(
                f,
                "{max_bytes} bytes for the whole journal: at least {SEGMENTS_MIN} segments of {segment_bytes} bytes"
            ),
        }
    }
}

impl std::error::Error for ConfigError {}

impl LogConfig {
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        let &LogConfig {
            segment_bytes,
            max_bytes,
            ..
        } = self;
        if segment_bytes < SEGMENT_BYTES_MIN {
            return Err(ConfigError::SegmentTooSmall { segment_bytes });
        }
        if max_bytes / SEGMENTS_MIN < segment_bytes {
            return Err(ConfigError::QuotaTooSmall {
                max_bytes,
                segment_bytes,
            });
        }
        Ok(())
    }
}
