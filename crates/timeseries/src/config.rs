//! What an operator can choose about the embedded store.

/// Limits of memory and the layout of files. The defaults are for one machine with tens of thousands of devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// New points in memory, half of it being written to disk and half being filled. More memory makes larger blocks and
    /// fewer merges.
    pub head_bytes_max: usize,
    /// Points of further series are refused and counted.
    pub series_max: usize,
    /// Series of one entity.
    pub keys_max: u16,
    /// Merged files hold points of one such stretch of time, so that old ones can be removed as a whole.
    pub window_ms: i64,
    /// So many files from memory are merged at once.
    pub fresh_segments_max: usize,
    /// For the hash tables; random, except in tests.
    pub hash_seed: u64,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            head_bytes_max: 64 << 20,
            series_max: 10_000_000,
            keys_max: 10_000,
            window_ms: 7 * 24 * 3600 * 1000,
            fresh_segments_max: 4,
            hash_seed: 0,
        }
    }
}

/// Windows beyond these share the first and the last: 1970 to some 200 years later with a window of a week.
const WINDOW_MIN: i64 = 0;
const WINDOW_MAX: i64 = 12_000;

impl Config {
    pub(crate) fn window_of(&self, ts_ms: i64) -> i64 {
        ts_ms.div_euclid(self.window_ms.max(1)).clamp(WINDOW_MIN, WINDOW_MAX)
    }

    /// First and last time of a window.
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
