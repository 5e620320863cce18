//! Options of the embedded store.

/// Memory limits and file layout. The defaults suit one machine with tens of thousands of devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreConfig {
    /// Memory for new points, in bytes. Half of it is written to disk while the other half is filled. More memory makes
    /// larger blocks and fewer merges.
    pub head_bytes_max: usize,
    /// Maximum number of series. Points of further series are rejected and counted.
    pub series_max: usize,
    /// Maximum number of series per entity.
    pub keys_max: u16,
    /// Length of the time window of a merged file. Expired files can be removed as a whole.
    pub window_ms: i64,
    /// Number of fresh segments that starts a merge.
    pub fresh_segments_max: usize,
    /// Seed of the hash tables: random, except in tests.
    pub hash_seed: u64,
}

impl Default for StoreConfig {
    fn default() -> StoreConfig {
        StoreConfig {
            head_bytes_max: 64 << 20,
            series_max: 10_000_000,
            keys_max: 10_000,
            window_ms: 7 * 24 * 3600 * 1000,
            fresh_segments_max: 4,
            hash_seed: 0,
        }
    }
}

/// First and last window. Times outside share them: 1970 to about 2200 with windows of one week.
const WINDOW_MIN: i64 = 0;
const WINDOW_MAX: i64 = 12_000;

impl StoreConfig {
    pub(crate) fn window_of(&self, ts_ms: i64) -> i64 {
        ts_ms.div_euclid(self.window_ms.max(1)).clamp(WINDOW_MIN, WINDOW_MAX)
    }

    /// Returns the first and last time of a window.
    pub(crate) fn window_span(&self, window: i64) -> (i64, i64) {
        let start = window.saturating_mul(self.window_ms.max(1));
        let first = if window == WINDOW_MIN { i64::MIN } else { start };
        let last = if window == WINDOW_MAX {
            i64::MAX
        } else {
            start + self.window_ms.max(1) - 1
        };
        (first, last)
    }
}
