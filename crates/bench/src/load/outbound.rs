//! Messages of a publisher that were sent with QoS 1 or 2: what the session stores of each, and those that were not
//! accepted.

use std::ops::Range;

/// Packet identifiers of messages; SUBSCRIBE uses the last one.
pub const MESSAGE_IDS: u16 = u16::MAX - 1;

/// A message in flight. It is encoded again if it is sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PendingPublish {
    pub sequence: u32,
    pub due_ns: u64,
}

/// Sequence numbers of messages that were refused or never acknowledged.
#[derive(Debug, Default)]
pub struct UnacceptedMessages {
    ranges: Vec<Range<u32>>,
}

impl UnacceptedMessages {
    pub fn ranges(&self) -> &[Range<u32>] {
        &self.ranges
    }

    pub fn push(&mut self, sequence: u32) {
        match self.ranges.last_mut() {
            Some(last) if last.end == sequence => last.end += 1,
            _ => self.ranges.push(sequence..sequence + 1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adjacent_messages_are_one_range() {
        let mut unaccepted = UnacceptedMessages::default();
        for sequence in [1, 2, 4] {
            unaccepted.push(sequence);
        }
        assert_eq!(unaccepted.ranges(), [1..3, 4..5]);
    }
}
