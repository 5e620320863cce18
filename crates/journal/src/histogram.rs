//! A histogram with fixed buckets, in the form that Prometheus expects. One thread writes, any thread reads.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// Upper bounds of the buckets, in microseconds. Larger values count only in the total.
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

/// Aligned to its own cache lines, because each histogram has a different writer.
#[derive(Debug)]
#[repr(align(128))]
pub struct AtomicHistogram {
    bounds: &'static [u64; BUCKETS],
    counts: [AtomicU64; BUCKETS],
    count: AtomicU64,
    sum: AtomicU64,
}

/// A snapshot of a histogram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HistogramCounts {
    pub bounds: &'static [u64; BUCKETS],
    /// Number of values at or below each bound (cumulative).
    pub cumulative: [u64; BUCKETS],
    pub count: u64,
    pub sum: u64,
}

impl AtomicHistogram {
    pub fn new(bounds: &'static [u64; BUCKETS]) -> AtomicHistogram {
        AtomicHistogram {
            bounds,
            counts: Default::default(),
            count: AtomicU64::new(0),
            sum: AtomicU64::new(0),
        }
    }

    pub fn add(&self, value: u64) {
        self.add_many(value, 1);
    }

    /// Adds `times` values of the same size.
    pub fn add_many(&self, value: u64, times: u64) {
        let bucket = self.bounds.partition_point(|bound| *bound < value);
        if let Some(count) = self.counts.get(bucket) {
            count.fetch_add(times, Relaxed);
        }
        self.count.fetch_add(times, Relaxed);
        self.sum.fetch_add(value.saturating_mul(times), Relaxed);
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
            // A value added between the loads must not make the last bucket larger than the total.
            count: self.count.load(Relaxed).max(below),
            sum: self.sum.load(Relaxed),
        }
    }
}

impl HistogramCounts {
    /// Adds the counts of another histogram with the same bounds.
    #[must_use]
    pub fn and(mut self, other: &HistogramCounts) -> HistogramCounts {
        for (own, other) in self.cumulative.iter_mut().zip(other.cumulative) {
            *own += other;
        }
        self.count += other.count;
        self.sum += other.sum;
        self
    }

    /// Returns the values that were added after `before`.
    #[must_use]
    pub fn since(mut self, before: &HistogramCounts) -> HistogramCounts {
        for (own, before) in self.cumulative.iter_mut().zip(before.cumulative) {
            *own = own.saturating_sub(before);
        }
        self.count = self.count.saturating_sub(before.count);
        self.sum = self.sum.saturating_sub(before.sum);
        self
    }

    /// Returns the value that the given share of all values does not exceed, interpolated within its bucket. `None`
    /// without values. Values beyond the last bound are reported as that bound.
    pub fn quantile(&self, share: f64) -> Option<f64> {
        if self.count == 0 {
            return None;
        }
        let wanted = share * self.count as f64;
        let bucket = self
            .cumulative
            .iter()
            .position(|below| *below > 0 && *below as f64 >= wanted);
        let Some(bucket) = bucket else {
            return self.bounds.last().map(|bound| *bound as f64);
        };
        let (lower, below) = match bucket.checked_sub(1) {
            Some(before) => (self.bounds[before] as f64, self.cumulative[before] as f64),
            None => (0.0, 0.0),
        };
        let part = (wanted - below) / (self.cumulative[bucket] as f64 - below);
        Some(lower + part * (self.bounds[bucket] as f64 - lower))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_and_differences_match_the_added_values() {
        let histogram = AtomicHistogram::new(&COMMIT_LATENCY_BOUNDS_US);
        assert_eq!(histogram.counts().quantile(0.5), None);
        histogram.add_many(300, 90);
        let before = histogram.counts();
        histogram.add_many(3_000, 10);
        let counts = histogram.counts();
        assert!((250.0..=500.0).contains(&counts.quantile(0.5).unwrap()));
        assert!((2_000.0..=4_000.0).contains(&counts.quantile(0.99).unwrap()));
        let between = counts.since(&before);
        assert_eq!((between.count, between.sum), (10, 30_000));
        assert!((2_000.0..=4_000.0).contains(&between.quantile(0.01).unwrap()));
        assert_eq!(between.and(&before), counts);
        histogram.add(u64::MAX / 2);
        assert_eq!(histogram.counts().quantile(1.0), Some(4_000_000.0));
    }

    #[test]
    fn value_counts_in_each_bucket_at_or_above_it() {
        let histogram = AtomicHistogram::new(&COMMIT_BYTES_BOUNDS);
        for value in [1, 256, 257, 16 << 20, 1 << 40] {
            histogram.add(value);
        }
        let counts = histogram.counts();
        assert_eq!((counts.cumulative[0], counts.cumulative[1]), (2, 3));
        assert_eq!((counts.cumulative[BUCKETS - 1], counts.count), (4, 5));
        assert_eq!(counts.sum, 1 + 256 + 257 + (16 << 20) + (1 << 40));
    }
}
