//! Counts by size in fixed buckets, in the form that Prometheus takes. Written by one thread, read by any.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// Upper bounds of the buckets, in microseconds; what is longer counts only in the total.
pub const COMMIT_LATENCY_BOUNDS_US: [u64; BUCKETS] = [
    250, 500, 1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 64_000, 125_000, 250_000, 500_000, 1_000_000, 4_000_000,
];
/// Upper bounds of the buckets, in bytes.
pub const COMMIT_BYTES_BOUNDS: [u64; BUCKETS] = [
    256,
    1 << 10,
    4 << 10,
    8 << 10,
    16 << 10,
    32 << 10,
    64 << 10,
    128 << 10,
    256 << 10,
    512 << 10,
    1 << 20,
    2 << 20,
    4 << 20,
    16 << 20,
];

const BUCKETS: usize = 14;

pub(crate) struct Histogram {
    bounds: &'static [u64; BUCKETS],
    counts: [AtomicU64; BUCKETS],
    count: AtomicU64,
    sum: AtomicU64,
}

/// A histogram as it was at one time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HistogramCounts {
    pub bounds: &'static [u64; BUCKETS],
    /// How many values were at most as large as each bound: cumulative.
    pub cumulative: [u64; BUCKETS],
    pub count: u64,
    pub sum: u64,
}

impl Histogram {
    pub fn new(bounds: &'static [u64; BUCKETS]) -> Histogram {
        Histogram {
            bounds,
            counts: Default::default(),
            count: AtomicU64::new(0),
            sum: AtomicU64::new(0),
        }
    }

    pub fn add(&self, value: u64) {
        let bucket = self.bounds.partition_point(|bound| *bound < value);
        if let Some(count) = self.counts.get(bucket) {
            count.fetch_add(1, Relaxed);
        }
        self.count.fetch_add(1, Relaxed);
        self.sum.fetch_add(value, Relaxed);
    }

    pub fn counts(&self) -> HistogramCounts {
        let mut below = 0;
        let cumulative = self.counts.each_ref().map(|count| {
            below += count.load(Relaxed);
            below
        });
        HistogramCounts {
            bounds: self.bounds,
            cumulative,
            // A value that comes in between must not make the last bucket larger than the total.
            count: self.count.load(Relaxed).max(below),
            sum: self.sum.load(Relaxed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_counts_in_every_bucket_that_is_not_below_it() {
        let histogram = Histogram::new(&COMMIT_BYTES_BOUNDS);
        for value in [1, 256, 257, 16 << 20, 1 << 40] {
            histogram.add(value);
        }
        let counts = histogram.counts();
        assert_eq!((counts.cumulative[0], counts.cumulative[1]), (2, 3));
        assert_eq!((counts.cumulative[BUCKETS - 1], counts.count), (4, 5));
        assert_eq!(counts.sum, 1 + 256 + 257 + (16 << 20) + (1 << 40));
    }
}
