//! The size of a queued message in one byte, for `mqtt.max_queued_bytes`.
//!
//! An entry of a queue whose message is only in the journal has no space for more. The size is rounded up to the next
//! of eight steps between two powers of two, so it is never too small, and at most an eighth too large. A message has
//! the same size while it is in memory, so eviction, reading and a restart do not change the size of a queue.

/// Size of a message, rounded up. The default is an unknown size, which counts 0: entries that a journal of record
/// version 1 or 2 has rewritten have it until their messages are read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct MessageSize(pub(crate) u8);

/// Steps between two powers of two.
const STEPS: u64 = 8;

/// The smallest size. Any message uses more memory.
const BYTES_MIN: u64 = 2 * STEPS;

impl MessageSize {
    pub const UNKNOWN: MessageSize = MessageSize(0);

    pub fn of(bytes: usize) -> MessageSize {
        let bytes = (bytes as u64).max(BYTES_MIN);
        let shift = (bytes / STEPS).ilog2();
        let steps = bytes.div_ceil(1 << shift) - STEPS;
        // Number 1 has shift 1 and no steps. Eight steps are the next power of two, which has the next number.
        let number = u64::from(shift - 1) * STEPS + steps + 1;
        MessageSize(u8::try_from(number).unwrap_or(u8::MAX))
    }

    /// Returns the bytes that the message counts for the limit of a queue.
    #[inline]
    pub fn bytes(self) -> usize {
        let Some(number) = self.0.checked_sub(1).map(u64::from) else {
            return 0;
        };
        let bytes = (STEPS + number % STEPS) << (number / STEPS + 1);
        usize::try_from(bytes).unwrap_or(usize::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn size_is_rounded_up_by_at_most_an_eighth() {
        let lengths = (16..5000).chain((13..28).flat_map(|shift| [-1, 0, 1].map(|more| (1 << shift) + more)));
        for bytes in lengths.map(|bytes: i64| bytes as usize) {
            let counted = MessageSize::of(bytes).bytes();
            assert!(counted >= bytes && counted - bytes <= bytes / 8, "{bytes}: {counted}");
        }
        assert_eq!(MessageSize::of(0).bytes(), 16);
        assert_eq!(MessageSize::UNKNOWN.bytes(), 0);
    }

    #[test]
    fn rounded_size_keeps_its_number() {
        for number in 1..=if size_of::<usize>() < 8 { 200 } else { 255 } {
            let size = MessageSize(number);
            assert_eq!(MessageSize::of(size.bytes()), size);
        }
    }

    #[test]
    fn sizes_of_all_packets_differ_from_the_largest_number() {
        // The largest MQTT packet.
        assert!(MessageSize::of(268_435_460) < MessageSize(u8::MAX));
    }
}
