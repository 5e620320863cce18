//! Selects the partition of a message.

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

use super::config::PartitionStrategy;

/// The partition selection of one producer.
pub(super) struct PartitionSelector {
    strategy: PartitionStrategy,
    next: AtomicU32,
}

impl PartitionSelector {
    pub fn new(strategy: PartitionStrategy) -> PartitionSelector {
        PartitionSelector {
            strategy,
            // A random start avoids that many producers begin with the same partition.
            next: AtomicU32::new(getrandom::u32().unwrap_or(0)),
        }
    }

    /// Returns the partition for a key or its substitute. `partitions` is the number of partitions, at least one.
    /// Without a fixed partition, the next one is chosen for which `is_open` is true, if there is one.
    pub fn choose(&self, key: Option<&[u8]>, partitions: u32, is_open: impl Fn(i32) -> bool) -> i32 {
        let chosen = match (self.strategy, key) {
            (PartitionStrategy::KeyHash | PartitionStrategy::Client | PartitionStrategy::Topic, Some(key)) => {
                return ((murmur2(key) & 0x7fff_ffff) % partitions) as i32;
            }
            (PartitionStrategy::RoundRobin, _) => self.next.fetch_add(1, Relaxed) % partitions,
            _ => mix_bits(self.next.fetch_add(1, Relaxed)) % partitions,
        };
        let mut candidates =
            (0..partitions).map(|step| ((u64::from(chosen) + u64::from(step)) % u64::from(partitions)) as i32);
        candidates
            .find(|partition| is_open(*partition))
            .unwrap_or(chosen as i32)
    }
}

/// Spreads consecutive numbers over the whole range.
fn mix_bits(number: u32) -> u32 {
    let mixed = (number ^ (number >> 16)).wrapping_mul(0x7feb_352d);
    let mixed = (mixed ^ (mixed >> 15)).wrapping_mul(0x846c_a68b);
    mixed ^ (mixed >> 16)
}

/// Kafka's hash of keys as in its Java client: MurmurHash2 with Kafka's seed.
fn murmur2(bytes: &[u8]) -> u32 {
    const MULTIPLIER: u32 = 0x5bd1_e995;
    const SEED: u32 = 0x9747_b28c;
    let mut hash = SEED ^ bytes.len() as u32;
    let (words, rest) = bytes.as_chunks::<4>();
    for word in words {
        let mut word = u32::from_le_bytes(*word).wrapping_mul(MULTIPLIER);
        word ^= word >> 24;
        hash = hash.wrapping_mul(MULTIPLIER) ^ word.wrapping_mul(MULTIPLIER);
    }
    for (index, byte) in rest.iter().enumerate() {
        hash ^= u32::from(*byte) << (8 * index);
    }
    if !rest.is_empty() {
        hash = hash.wrapping_mul(MULTIPLIER);
    }
    hash ^= hash >> 13;
    hash = hash.wrapping_mul(MULTIPLIER);
    hash ^ (hash >> 15)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The values of Kafka's own `UtilsTest.testMurmur2`.
    #[test]
    fn hashes_keys_as_kafka_does() {
        let cases: [(&[u8], i32); 7] = [
            (b"21", -973_932_308),
            (b"foobar", -790_332_482),
            (b"a-little-bit-long-string", -985_981_536),
            (b"a-little-bit-longer-string", -1_486_304_829),
            (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58_897_971),
            (b"abc", 479_470_107),
            (b"", 275_646_681),
        ];
        for (key, expected) in cases {
            assert_eq!(murmur2(key) as i32, expected, "{}", String::from_utf8_lossy(key));
        }
    }

    #[test]
    fn strategies_select_the_expected_partitions() {
        let in_turn = PartitionSelector::new(PartitionStrategy::RoundRobin);
        let first = in_turn.choose(None, 4, |_| true);
        let chosen: Vec<i32> = (0..4).map(|_| in_turn.choose(Some(b"k"), 4, |_| true)).collect();
        let expected: Vec<i32> = (1..5).map(|step| (first + step) % 4).collect();
        assert_eq!(chosen, expected);
        let by_key = PartitionSelector::new(PartitionStrategy::Client);
        assert_eq!(
            by_key.choose(Some(b"client-1"), 16, |_| true),
            by_key.choose(Some(b"client-1"), 16, |_| false)
        );
        let random = PartitionSelector::new(PartitionStrategy::Random);
        let mut counts = [0; 4];
        for _ in 0..4000 {
            counts[random.choose(Some(b"k"), 4, |_| true) as usize] += 1;
        }
        assert!(counts.iter().all(|count| (800..1200).contains(count)), "{counts:?}");
        assert!((0..100).all(|_| random.choose(None, 4, |partition| partition == 2) == 2));
        assert!((0..4).contains(&random.choose(None, 4, |_| false)));
    }
}
