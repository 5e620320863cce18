//! Positions in the log.

use std::fmt;

/// A position in the log: bytes of blocks since the log was created. Segment headers are not counted, so positions are
/// contiguous over segments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lsn(pub u64);

impl fmt::Display for Lsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Returns the position of a record. `base` is the position of its batch, `offset` the result of
/// [`crate::Batch::record`].
pub fn position(base: Lsn, offset: u32) -> Lsn {
    Lsn(base.0 + u64::from(offset))
}
