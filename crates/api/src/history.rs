//! The node's metrics over time, for the console's charts. `sampler.rs` adds rates and levels once a second. Ring
//! buffers with
//! decreasing resolution store them, from ten minutes to thirty days.
//!
//! A coarse point is the mean of its samples. A restart loses the finest points; `history_store.rs` persists the
//! others. The memory is bounded: `TIERS` times the number of series times four bytes, about 600 KB when full.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

/// Step in milliseconds and number of points of each tier: 10 minutes, 6 hours, 24 hours, 7 days, 30 days.
pub const TIERS: [(u64, usize); 5] = [
    (1_000, 600),
    (15_000, 1_440),
    (120_000, 720),
    (900_000, 672),
    (3_600_000, 720),
];

/// Samples per point of the finest tier with means.
const SAMPLES_PER_POINT: u32 = (TIERS[1].0 / TIERS[0].0) as u32;

/// The longest stored time.
pub const WINDOW_S_MAX: u64 = 30 * 24 * 3600;

/// The values of all series at one time, in the order of `sampler.rs`. NaN: unknown.
#[derive(Debug, PartialEq)]
pub struct Sample {
    pub at_unix_ms: u64,
    pub values: Box<[f32]>,
}

/// A complete coarse point and its index in `TIERS`.
pub type CompletePoint = (usize, Arc<Sample>);

/// Shared by the sampler and the readers.
pub struct History {
    tiers: Mutex<Vec<Tier>>,
    latest: watch::Sender<Option<Arc<Sample>>>,
}

/// A part of the history at one resolution.
pub struct HistoryWindow {
    pub step_ms: u64,
    /// Oldest first.
    pub points: Vec<Arc<Sample>>,
}

struct Tier {
    step_ms: u64,
    points_max: usize,
    points: VecDeque<Arc<Sample>>,
    /// Mean of the incomplete point.
    pending: Mean,
}

#[derive(Default)]
struct Mean {
    step: u64,
    sums: Vec<(f64, u32)>,
}

impl Default for History {
    fn default() -> History {
        let tier = |(step_ms, points_max)| Tier {
            step_ms,
            points_max,
            points: VecDeque::new(),
            pending: Mean::default(),
        };
        History {
            tiers: Mutex::new(TIERS.into_iter().map(tier).collect()),
            latest: watch::Sender::new(None),
        }
    }
}

impl History {
    /// Adds a sample and returns the coarse points that it completes.
    pub fn push(&self, sample: Sample) -> Vec<CompletePoint> {
        let sample = Arc::new(sample);
        let mut ended = Vec::new();
        for (index, tier) in self.lock().iter_mut().enumerate() {
            ended.extend(tier.push(&sample, 1).map(|point| (index, point)));
        }
        self.latest.send_replace(Some(sample));
        ended
    }

    /// Restores the coarse points of the previous process; `load` returns those of one tier, oldest first. An
    /// incomplete step starts with the points of the finest tier. Returns the points that this completes.
    pub fn restore(&self, load: impl Fn(usize) -> Vec<Sample>) -> Vec<CompletePoint> {
        let mut tiers = self.lock();
        let mut ended = Vec::new();
        for (index, tier) in tiers.iter_mut().enumerate().skip(1) {
            load(index)
                .into_iter()
                .for_each(|point| tier.add_point(Arc::new(point)));
        }
        let finest: Vec<Arc<Sample>> = tiers[1].points.iter().cloned().collect();
        for (index, tier) in tiers.iter_mut().enumerate().skip(2) {
            let last = tier.points.back().map_or(0, |point| point.at_unix_ms);
            for point in finest.iter().filter(|point| point.at_unix_ms > last) {
                // A point has the time of its end, which already belongs to the next step.
                let sample = Arc::new(Sample {
                    at_unix_ms: point.at_unix_ms - 1,
                    values: point.values.clone(),
                });
                ended.extend(tier.push(&sample, SAMPLES_PER_POINT).map(|point| (index, point)));
            }
        }
        ended
    }

    /// Returns a receiver of samples. A slow receiver only sees the newest one.
    pub fn subscribe(&self) -> watch::Receiver<Option<Arc<Sample>>> {
        self.latest.subscribe()
    }

    /// Returns the last `window_ms` before `now_unix_ms`, at the finest resolution that covers them.
    pub fn window(&self, window_ms: u64, now_unix_ms: u64) -> HistoryWindow {
        let tiers = self.lock();
        let reaches = |tier: &&Tier| tier.step_ms * tier.points_max as u64 >= window_ms;
        let tier = tiers
            .iter()
            .find(reaches)
            .unwrap_or_else(|| tiers.last().expect("TIERS is not empty"));
        let from = now_unix_ms.saturating_sub(window_ms);
        HistoryWindow {
            step_ms: tier.step_ms,
            points: tier
                .points
                .iter()
                .filter(|point| point.at_unix_ms >= from)
                .cloned()
                .collect(),
        }
    }

    // Each update leaves the rings consistent, so a panic in another thread cannot break them.
    fn lock(&self) -> MutexGuard<'_, Vec<Tier>> {
        self.tiers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Tier {
    /// Adds a sample, and returns the coarse point that it completes. `weight`: number of samples of which it is the
    /// mean.
    fn push(&mut self, sample: &Arc<Sample>, weight: u32) -> Option<Arc<Sample>> {
        if self.step_ms == TIERS[0].0 {
            self.add_point(sample.clone());
            return None;
        }
        let step = sample.at_unix_ms / self.step_ms;
        let last = self.pending.step;
        let mut ended = None;
        if step != last
            && let Some(values) = self.pending.take(step)
        {
            let at_unix_ms = (last + 1) * self.step_ms;
            let point = Arc::new(Sample { at_unix_ms, values });
            self.add_point(point.clone());
            ended = Some(point);
        }
        self.pending.add(&sample.values, weight);
        ended
    }

    fn add_point(&mut self, point: Arc<Sample>) {
        if self.points.len() == self.points_max {
            self.points.pop_front();
        }
        self.points.push_back(point);
    }
}

impl Mean {
    /// Returns the mean so far, if any, and starts `step`.
    fn take(&mut self, step: u64) -> Option<Box<[f32]>> {
        self.step = step;
        if self.sums.is_empty() {
            return None;
        }
        let mean = |(sum, count): (f64, u32)| (sum / f64::from(count)) as f32;
        Some(self.sums.drain(..).map(mean).collect())
    }

    fn add(&mut self, values: &[f32], weight: u32) {
        self.sums.resize(values.len(), (0.0, 0));
        for ((sum, count), value) in self.sums.iter_mut().zip(values) {
            if !value.is_nan() {
                *sum += f64::from(*value) * f64::from(weight);
                *count += weight;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const T0: u64 = 1_800_000_000_000;

    fn sample(second: u64, value: f32) -> Sample {
        Sample {
            at_unix_ms: T0 + second * 1000,
            values: [value, f32::NAN].into(),
        }
    }

    #[test]
    fn ten_minutes_have_seconds_and_longer_windows_means() {
        let history = History::default();
        for second in 0..3600 {
            history.push(sample(second, second as f32));
        }
        let now = T0 + 3_600_000;
        let fine = history.window(600_000, now);
        assert_eq!((fine.step_ms, fine.points.len()), (1000, 600));
        assert_eq!(fine.points[0].values[0], 3000.0);
        let coarse = history.window(3_600_000, now);
        assert_eq!((coarse.step_ms, coarse.points.len()), (15_000, 239));
        assert_eq!(coarse.points[0].values[0], 7.0);
        assert!(coarse.points[0].values[1].is_nan());
    }

    #[test]
    fn rings_are_bounded_and_long_windows_get_the_longest() {
        let history = History::default();
        for second in (0..10_000_000).step_by(900) {
            history.push(sample(second, 1.0));
        }
        for (tier, (_, points_max)) in history.lock().iter().zip(TIERS) {
            assert_eq!(tier.points.len(), points_max);
        }
        let longest = history.window(u64::MAX, T0 + 10_000_000_000);
        assert_eq!(longest.step_ms, 3_600_000);
    }

    #[test]
    fn slow_receiver_sees_the_newest_sample() {
        let history = History::default();
        let mut viewer = history.subscribe();
        history.push(sample(0, 1.0));
        history.push(sample(1, 2.0));
        assert_eq!(viewer.borrow_and_update().as_ref().unwrap().values[0], 2.0);
        assert!(!viewer.has_changed().unwrap());
    }
}
