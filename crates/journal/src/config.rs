//! Settings of a log, chosen by its owner, and their validation.

use std::fmt;
use std::time::Duration;

/// When a record counts as committed and may be acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlushPolicy {
    /// After `fdatasync`: survives a power failure.
    Fsync,
    /// After the write to the operating system: survives the end of the process. The background sync follows within
    /// about a second, or the commit interval if that is longer.
    Os,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogConfig {
    pub policy: FlushPolicy,
    /// Size of a segment file, in bytes. A longer batch gets a segment of its own size.
    pub segment_bytes: u64,
    /// Quota for all files of the log, in bytes: at least [`SEGMENTS_MIN`] segments.
    pub max_bytes: u64,
    /// Free disk space that the log does not use, in bytes.
    pub reserve_bytes: u64,
    /// Minimum time between the starts of two commits that sync, so that more records share a write to flash memory. A
    /// [`RecordLog`](crate::RecordLog) without threads ignores it. Under [`FlushPolicy::Os`] only the background sync
    /// waits.
    pub commit_interval: Duration,
    /// Version of the owner's record kinds, written to each block. A log with blocks of a later version does not open.
    pub record_version: u32,
}

/// Smallest quota, in segments: one that is written, one spare, and at least one that can be reclaimed.
pub const SEGMENTS_MIN: u64 = 4;
/// Smallest segment, in bytes. A smaller one would hold little more than headers.
pub const SEGMENT_BYTES_MIN: u64 = 256;

impl Default for LogConfig {
    fn default() -> LogConfig {
        LogConfig {
            policy: FlushPolicy::Fsync,
            segment_bytes: 64 << 20,
            max_bytes: 16 << 30,
            reserve_bytes: 256 << 20,
            commit_interval: Duration::ZERO,
            record_version: 1,
        }
    }
}

/// Invalid setting of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConfigError {
    SegmentTooSmall { segment_bytes: u64 },
    QuotaTooSmall { max_bytes: u64, segment_bytes: u64 },
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConfigError::SegmentTooSmall { segment_bytes } => {
                write!(
                    f,
                    "segment size of {segment_bytes} bytes is too small: use at least {SEGMENT_BYTES_MIN}"
                )
            }
            ConfigError::QuotaTooSmall {
                max_bytes,
                segment_bytes,
            } => write!(
                f,
                "journal quota of {max_bytes} bytes is too small: use at least {SEGMENTS_MIN} segments of {segment_bytes} bytes"
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
