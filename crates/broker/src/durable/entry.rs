//! One message of a session's queue, as it is kept in memory for the journal: 16 bytes. What only some carry is kept apart.

use mqtt::QoS;

use crate::durable::record::{Entry, Position, Seq};

/// Numbers of messages stay below: the rest of their 64 bits are flags.
pub(super) const SEQ_MAX: Seq = u64::MAX >> FLAG_BITS;

const FLAG_BITS: u32 = 8;
const QOS: u64 = 0b11;
const RETAIN: u64 = 1 << 2;
const RELEASED: u64 = 1 << 3;
const TAGGED: u64 = 1 << 4;
const GONE: u64 = 1 << 5;

/// What `StoredEntry::terms` has: all flags that say how the session gets the message.
const TERMS: u64 = QOS | RETAIN | RELEASED | TAGGED;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoredEntry {
    message: Position,
    /// The number, and below it the flags.
    packed: u64,
}

impl StoredEntry {
    pub(super) fn new(entry: &Entry) -> StoredEntry {
        let is_tagged = entry.group.is_some() || !entry.identifiers.is_empty();
        StoredEntry::of(entry.message, entry.seq, entry.qos, entry.retain)
            .with(RELEASED, entry.is_released)
            .with(TAGGED, is_tagged)
    }

    pub(crate) fn of(message: Position, seq: Seq, qos: QoS, retain: bool) -> StoredEntry {
        let packed = seq << FLAG_BITS | qos as u64;
        StoredEntry { message, packed }.with(RETAIN, retain)
    }

    /// PUBREC has come: no message is left.
    pub(super) fn released(seq: Seq) -> StoredEntry {
        StoredEntry::of(Position(0), seq, QoS::ExactlyOnce, false).with(RELEASED, true)
    }

    /// From what `terms` gave; `None` if no entry has such.
    pub(super) fn from_terms(message: Position, seq: Seq, terms: u8) -> Option<StoredEntry> {
        let packed = seq << FLAG_BITS | u64::from(terms);
        let is_known = u64::from(terms) & !TERMS == 0 && u64::from(terms) & QOS < 3;
        (is_known && seq < SEQ_MAX).then_some(StoredEntry { message, packed })
    }

    /// How the session gets the message, apart from what is kept elsewhere: five bits.
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

    pub fn message(&self) -> Position {
        self.message
    }

    pub fn seq(&self) -> Seq {
        self.packed >> FLAG_BITS
    }

    pub fn qos(&self) -> QoS {
        QoS::from_bits((self.packed & QOS) as u8).expect("made from a QoS")
    }

    pub fn retain(&self) -> bool {
        self.packed & RETAIN != 0
    }

    /// PUBREC has come: the message may be gone.
    pub fn is_released(&self) -> bool {
        self.packed & RELEASED != 0
    }

    /// Subscription identifiers or a shared subscription belong to it.
    pub fn is_tagged(&self) -> bool {
        self.packed & TAGGED != 0
    }

    pub(super) fn tagged(self, is_tagged: bool) -> StoredEntry {
        self.with(TAGGED, is_tagged)
    }

    /// Says nothing of where the message was.
    pub(super) fn without_message(self) -> StoredEntry {
        StoredEntry {
            message: Position(0),
            ..self
        }
    }

    /// The message stands elsewhere now.
    pub(crate) fn move_to(&mut self, message: Position) {
        self.message = message;
    }

    pub(super) fn release(&mut self) {
        self.packed |= RELEASED;
    }

    /// Only a mark in its place is left.
    pub(super) fn is_gone(&self) -> bool {
        self.packed & GONE != 0
    }

    pub(super) fn go(&mut self) {
        self.packed |= GONE;
    }
}
