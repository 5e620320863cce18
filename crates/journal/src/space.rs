//! Space for the next segment, had before it is needed: a file `spare`, preallocated, that becomes the next segment by renaming.
//!
//! As long as there is one, a roll needs no new space. When none can be had the log is full, and says so: its owner appends only
//! what tidies up. That is written beyond quota and reserve, which are ours: a log that stops at them could never make room again. Only
//! the disk itself can refuse. Once full, the log asks for some more space than it needs, so that it does not change its mind
//! with every segment.

use std::fmt;
use std::sync::Arc;

use crate::config::LogConfig;
use storage::{Storage, StorageFile};

pub(crate) const SPARE_NAME: &str = "spare";

pub(crate) struct Space {
    storage: Arc<dyn Storage>,
    segment_bytes: u64,
    max_bytes: u64,
    reserve_bytes: u64,
    spare: Option<Spare>,
    shortage: Option<Shortage>,
    /// Of the disk, when it was last asked.
    free_bytes: u64,
}

pub(crate) struct Spare {
    pub file: Box<dyn StorageFile>,
    pub bytes: u64,
}

/// Why there is no space.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Shortage {
    Quota { max_bytes: u64 },
    Reserve { free_bytes: u64, reserve_bytes: u64 },
    Disk { because: String },
}

impl fmt::Display for Shortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Shortage::Quota { max_bytes } => write!(f, "the journal has reached its limit of {max_bytes} bytes"),
            Shortage::Reserve {
                free_bytes,
                reserve_bytes,
            } => write!(
                f,
                "the disk has {free_bytes} bytes free, and {reserve_bytes} are to be left alone"
            ),
            Shortage::Disk { because } => write!(f, "no space for the next segment: {because}"),
        }
    }
}

impl Space {
    pub fn new(storage: Arc<dyn Storage>, config: &LogConfig) -> Space {
        Space {
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

    /// What can still be written behind the segments: the spare one, and what the disk had left when it was last measured.
    pub fn room_bytes(&self) -> u64 {
        self.free_bytes.saturating_add(self.spare_bytes())
    }

    /// Others take space, too.
    pub fn measure(&mut self) {
        if let Ok(free_bytes) = self.storage.free_bytes() {
            self.free_bytes = free_bytes;
        }
    }

    pub fn spare_bytes(&self) -> u64 {
        self.spare.as_ref().map_or(0, |spare| spare.bytes)
    }

    /// Sees to a spare segment, if the log may have one. `used_bytes`: of all segments.
    pub fn prepare(&mut self, used_bytes: u64) {
        if self.spare.is_some() {
            return;
        }
        self.shortage = match self.permit(self.segment_bytes, used_bytes) {
            Ok(()) => self.make_spare(self.segment_bytes).err(),
            Err(shortage) => Some(shortage),
        };
    }

    /// Sees to a spare segment of at least `bytes`, for what has been appended: whether the log may have one or not.
    pub fn obtain(&mut self, bytes: u64, used_bytes: u64) -> Result<(), Shortage> {
        if self.spare_bytes() >= bytes {
            return Ok(());
        }
        if self.spare.take().is_some() {
            // Its space counts for the longer one. If it stays, `create` replaces it.
            let _ = self.storage.remove(SPARE_NAME);
        }
        let forbidden = self.permit(bytes, used_bytes).err();
        // A whole segment if there is space, so that what little is appended now does not make a file each time.
        let made = match self.segment_bytes > bytes {
            true => self.make_spare(self.segment_bytes).or_else(|_| self.make_spare(bytes)),
            false => self.make_spare(bytes),
        };
        self.shortage = made.as_ref().err().cloned().or(forbidden);
        made
    }

    fn make_spare(&mut self, bytes: u64) -> Result<(), Shortage> {
        let file = self.storage.create(SPARE_NAME, bytes).map_err(Shortage::disk)?;
        self.spare = Some(Spare { file, bytes });
        Ok(())
    }

    /// Whether the log may take so many bytes more.
    pub fn permit(&self, bytes: u64, used_bytes: u64) -> Result<(), Shortage> {
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
                reserve_bytes: self.reserve_bytes,
            });
        }
        Ok(())
    }

    pub fn take(&mut self) -> Option<Spare> {
        self.spare.take()
    }

    pub fn put_back(&mut self, spare: Spare) {
        self.spare = Some(spare);
    }
}

impl Shortage {
    pub fn disk(error: std::io::Error) -> Shortage {
        Shortage::Disk {
            because: error.to_string(),
        }
    }
}
