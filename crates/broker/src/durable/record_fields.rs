//! Fields of records beyond their message, and the commits that an acknowledgement waits for.

use mqtt::QoS;

use crate::durable::record::{RetainedTerms, Seq, SessionKey};
use crate::message::RecordLocation;
use crate::message_size::MessageSize;
use crate::tap::Receipt;

/// Fields of a message record beyond the message and its recipients.
#[derive(Clone, Copy, Debug, Default)]
pub struct RecordFields {
    /// Bit set of the shards that have not routed or retained the message yet.
    pub pending_shards: u64,
    /// Publication time of a `$delayed` message, in Unix milliseconds.
    pub due_unix_ms: Option<u64>,
    pub retained: Option<RetainedTerms>,
    /// Session and packet identifier of a QoS 2 publisher.
    pub publisher: Option<(SessionKey, u16)>,
    /// Write a record even if this shard has no recipient.
    pub is_required: bool,
}

/// A message that a session returns to its group.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReturnedEntry {
    pub seq: Seq,
    pub qos: QoS,
    pub place: RecordLocation,
    pub size: MessageSize,
}

/// Commits that an acknowledgement waits for.
#[derive(Clone, Copy, Debug, Default)]
pub struct PendingCommits {
    /// Wait for the records that have been written so far.
    pub journal: bool,
    /// Wait until the tap has stored the message.
    pub tap: Option<Receipt>,
}

impl PendingCommits {
    pub fn for_journal(is_recorded: bool) -> PendingCommits {
        PendingCommits {
            journal: is_recorded,
            tap: None,
        }
    }
}
