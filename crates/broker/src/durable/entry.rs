//! One queue entry of a session in memory: 16 bytes, with the size of its message. Subscription identifiers and share
//! groups, which few entries have, are stored separately.

use mqtt::QoS;

use crate::durable::record::{RecordPosition, Seq, SessionEntry, SizedMessage};
use crate::message_size::MessageSize;

/// Upper bound of entry numbers. The remaining bits of the 64 are the size of the message and flags.
pub(super) const SEQ_MAX: Seq = u64::MAX >> SEQ_SHIFT;

const SEQ_SHIFT: u32 = SIZE_SHIFT + u8::BITS;
const SIZE_SHIFT: u32 = 8;
const QOS: u64 = 0b11;
const RETAIN: u64 = 1 << 2;
const RELEASED: u64 = 1 << 3;
const TAGGED: u64 = 1 << 4;
const TOMBSTONE: u64 = 1 << 5;

/// Flags that `StoredEntry::terms` returns: how the session receives the message.
const TERMS: u64 = QOS | RETAIN | RELEASED | TAGGED;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoredEntry {
    message: RecordPosition,
    /// Entry number, shifted left by `SEQ_SHIFT`, the size of the message, shifted left by `SIZE_SHIFT`, and flags.
    packed: u64,
}

impl StoredEntry {
    pub(super) fn new(entry: &SessionEntry) -> StoredEntry {
        let is_tagged = entry.group.is_some() || !entry.identifiers.is_empty();
        StoredEntry::of(entry.message, entry.seq, entry.qos, entry.retain)
            .sized(entry.size)
            .with(RELEASED, entry.is_released)
            .with(TAGGED, is_tagged)
    }

    /// Builds an entry whose message has an unknown size.
    pub(crate) fn of(message: RecordPosition, seq: Seq, qos: QoS, retain: bool) -> StoredEntry {
        let packed = seq << SEQ_SHIFT | qos as u64;
        StoredEntry { message, packed }.with(RETAIN, retain)
    }

    /// Entry of a QoS 2 message after PUBREC. It has no message.
    pub(super) fn released(seq: Seq) -> StoredEntry {
        StoredEntry::of(RecordPosition(0), seq, QoS::ExactlyOnce, false).with(RELEASED, true)
    }

    /// Builds an entry from the flags that `terms` returned. `None` if the flags are invalid.
    pub(super) fn from_terms(message: RecordPosition, seq: Seq, terms: u8) -> Option<StoredEntry> {
        let packed = seq << SEQ_SHIFT | u64::from(terms);
        let is_known = u64::from(terms) & !TERMS == 0 && u64::from(terms) & QOS < 3;
        (is_known && seq < SEQ_MAX).then_some(StoredEntry { message, packed })
    }

    /// Returns the flags that say how the session receives the message (five bits).
    pub(super) fn terms(&self) -> u8 {
        (self.packed & TERMS) as u8
    }

    fn with(self, flag: u64, is_set: bool) -> StoredEntry {
        let packed = if is_set {
            self.packed | flag
        } else {
            self.packed & !flag
        };
        StoredEntry { packed, ..self }
    }

    pub fn message(&self) -> RecordPosition {
        self.message
    }

    pub fn seq(&self) -> Seq {
        self.packed >> SEQ_SHIFT
    }

    pub(crate) fn sized(self, size: MessageSize) -> StoredEntry {
        let others = self.packed & !(u64::from(u8::MAX) << SIZE_SHIFT);
        let packed = others | u64::from(size.0) << SIZE_SHIFT;
        StoredEntry { packed, ..self }
    }

    /// Returns the size of the message. It is unknown after PUBREC, and for entries of old journals.
    pub fn size(&self) -> MessageSize {
        MessageSize((self.packed >> SIZE_SHIFT) as u8)
    }

    pub(crate) fn sized_message(&self) -> SizedMessage {
        SizedMessage {
            position: self.message,
            size: self.size(),
        }
    }

    pub fn qos(&self) -> QoS {
        QoS::from_bits((self.packed & QOS) as u8).expect("made from a QoS")
    }

    pub fn retain(&self) -> bool {
        self.packed & RETAIN != 0
    }

    /// True after PUBREC: the message may have been deleted.
    pub fn is_released(&self) -> bool {
        self.packed & RELEASED != 0
    }

    /// True if the entry has subscription identifiers or a share group, which are stored separately.
    pub fn is_tagged(&self) -> bool {
        self.packed & TAGGED != 0
    }

    pub(super) fn tagged(self, is_tagged: bool) -> StoredEntry {
        self.with(TAGGED, is_tagged)
    }

    /// Returns the entry without the message position.
    pub(super) fn without_message(self) -> StoredEntry {
        StoredEntry {
            message: RecordPosition(0),
            ..self
        }
    }

    /// Sets the position of the message after compaction has moved it.
    pub(crate) fn move_to(&mut self, message: RecordPosition) {
        self.message = message;
    }

    pub(super) fn release(&mut self) {
        *self = self.sized(MessageSize::UNKNOWN).with(RELEASED, true);
    }

    /// True if the entry was removed and only its slot is left.
    pub(super) fn is_tombstone(&self) -> bool {
        self.packed & TOMBSTONE != 0
    }

    pub(super) fn make_tombstone(&mut self) {
        self.packed |= TOMBSTONE;
    }
}
