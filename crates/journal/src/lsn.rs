//! Positions in the log.

use std::fmt;

/// A position in the log: bytes from its very beginning, segment headers not counted. Contiguous over segments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lsn(pub u64);

impl fmt::Display for Lsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Where the record stands that [`crate::Batch::record`] put at `offset`, in a batch that was appended at `base`.
pub fn position(base: Lsn, offset: u32) -> Lsn {
    Lsn(base.0 + u64::from(offset))
}
