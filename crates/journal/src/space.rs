//! Space for the next segment, reserved before it is needed: the preallocated file `spare` is renamed to become the
//! next segment.
//!
//! While a spare exists, starting a new segment needs no new space. If none can be created, the log reports that it is
//! full, and its owner appends only records that free space (acknowledgements, compaction). Those may exceed quota and
//! reserve, because otherwise the log could never free space again. Only a full disk stops them. The state clears at a
//! lower threshold than it is set (hysteresis), so that it does not change with every segment.

use std::fmt;
use std::sync::Arc;

use crate::config::LogConfig;
use storage::{Storage, StorageFile};

pub(crate) const SPARE_NAME: &str = "spare";

pub(crate) struct DiskSpace {
    storage: Arc<dyn Storage>,
    segment_bytes: u64,
    max_bytes: u64,
    reserve_bytes: u64,
    spare: Option<SpareSegment>,
    shortage: Option<Shortage>,
    /// Free bytes of the disk when last measured.
    free_bytes: u64,
}

pub(crate) struct SpareSegment {
    pub file: Box<dyn StorageFile>,
    pub bytes: u64,
}

/// Reason why no further segment can be created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Shortage {
    Quota {
        max_bytes: u64,
    },
    Reserve {
        free_bytes: u64,
        reserve_bytes: u64,
        needed_bytes: u64,
    },
    Disk {
        reason: String,
    },
}

impl fmt::Display for Shortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Shortage::Quota { max_bytes } => write!(f, "the journal has reached its limit of {max_bytes} bytes"),
            Shortage::Reserve {
                free_bytes,
                reserve_bytes,
                needed_bytes,
            } => write!(
                f,
                "the disk has {free_bytes} bytes free, but the next segment needs {needed_bytes} bytes besides the \
                 {reserve_bytes} bytes that are reserved"
            ),
            Shortage::Disk { reason } => write!(f, "cannot create the next segment: {reason}"),
        }
    }
}

impl DiskSpace {
    pub fn new(storage: Arc<dyn Storage>, config: &LogConfig) -> DiskSpace {
        DiskSpace {
            storage,
            segment_bytes: config.segment_bytes,
            max_bytes: config.max_bytes,
            reserve_bytes: config.reserve_bytes,
            spare: None,
            shortage: None,
            free_bytes: 0,
        }
    }

    pub fn shortage(&self) -> Option<&Shortage> {
        self.shortage.as_ref()
    }

    /// Returns the number of bytes that can be written behind the segments: the spare, and the disk space when last
    /// measured.
    pub fn available_bytes(&self) -> u64 {
        self.free_bytes.saturating_add(self.spare_bytes())
    }

    /// Measures the free disk space. Other processes use it too.
    pub fn measure(&mut self) {
        if let Ok(free_bytes) = self.storage.free_bytes() {
            self.free_bytes = free_bytes;
        }
    }

    pub fn spare_bytes(&self) -> u64 {
        self.spare.as_ref().map_or(0, |spare| spare.bytes)
    }

    /// Creates a spare segment unless there is one, if quota and reserve allow it. `used_bytes` is the size of all
    /// segments.
    pub fn prepare(&mut self, used_bytes: u64) {
        if self.spare.is_some() {
            return;
        }
        self.shortage = match self.check_limits(self.segment_bytes, used_bytes) {
            Ok(()) => self.make_spare(self.segment_bytes).err(),
            Err(shortage) => Some(shortage),
        };
    }

    /// Creates a spare segment of at least `bytes` for batches that are already appended, even beyond quota and
    /// reserve.
    pub fn obtain_spare(&mut self, bytes: u64, used_bytes: u64) -> Result<(), Shortage> {
        if self.spare_bytes() >= bytes {
            return Ok(());
        }
        if self.spare.take().is_some() {
            // Its space is needed for the longer one. If removal fails, `create` replaces the file.
            let _ = self.storage.remove(SPARE_NAME);
        }
        let forbidden = self.check_limits(bytes, used_bytes).err();
        // Prefer a segment of full size, so that the few records appended now do not create a file each time.
        let made = match self.segment_bytes > bytes {
            true => self.make_spare(self.segment_bytes).or_else(|_| self.make_spare(bytes)),
            false => self.make_spare(bytes),
        };
        self.shortage = made.as_ref().err().cloned().or(forbidden);
        made
    }

    fn make_spare(&mut self, bytes: u64) -> Result<(), Shortage> {
        let file = self.storage.create(SPARE_NAME, bytes).map_err(Shortage::disk)?;
        self.spare = Some(SpareSegment { file, bytes });
        Ok(())
    }

    /// Checks that quota and reserve allow `bytes` more.
    pub fn check_limits(&self, bytes: u64, used_bytes: u64) -> Result<(), Shortage> {
        let max_bytes = match self.shortage {
            Some(Shortage::Quota { .. }) => self.max_bytes / 10 * 9,
            _ => self.max_bytes,
        };
        if used_bytes.saturating_add(bytes) > max_bytes {
            return Err(Shortage::Quota {
                max_bytes: self.max_bytes,
            });
        }
        let reserve_bytes = match self.shortage {
            Some(Shortage::Reserve { .. }) => self.reserve_bytes.saturating_add(self.reserve_bytes / 10),
            _ => self.reserve_bytes,
        };
        let free_bytes = self.storage.free_bytes().map_err(Shortage::disk)?;
        if free_bytes < reserve_bytes.saturating_add(bytes) {
            return Err(Shortage::Reserve {
                free_bytes,
                reserve_bytes,
                needed_bytes: bytes,
            });
        }
        Ok(())
    }

    pub fn take(&mut self) -> Option<SpareSegment> {
        self.spare.take()
    }

    pub fn put_back(&mut self, spare: SpareSegment) {
        self.spare = Some(spare);
    }
}

impl Shortage {
    pub fn disk(error: std::io::Error) -> Shortage {
        Shortage::Disk {
            reason: error.to_string(),
        }
    }
}
