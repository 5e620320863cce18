//! Results of writing a connection, which the shard learns at the start of the next tick.

use broker::CloseCause;

use crate::slots::SlotRef;

/// Result of a flush that the shard must know before any other input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FlushNotice {
    Drained(SlotRef),
    Closed { conn: SlotRef, cause: CloseCause },
}
