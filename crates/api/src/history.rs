//! The node's numbers over time: what the console's charts begin with. Rates and levels, sampled once a second by
//! `sampler.rs`, kept in rings of falling resolution from ten minutes to thirty days.
//!
//! A coarse point is the mean of its samples. A restart forgets the finest points; `history_store.rs` keeps the others. Bounded by construction: `TIERS` times the
//! number of series times four bytes, some 600 KB when all is full.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

/// Length of a step in milliseconds and number of points: 10 minutes, 6 hours, 24 hours, 7 days, 30 days.
pub const TIERS: [(u64, usize); 5] = [
    (1_000, 600),
    (15_000, 1_440),
    (120_000, 720),
    (900_000, 672),
    (3_600_000, 720),
];

/// Samples in a point of the finest means.
const SAMPLES_PER_POINT: u32 = (TIERS[1].0 / TIERS[0].0) as u32;

/// The longest time that is remembered.
pub const WINDOW_S_MAX: u64 = 30 * 24 * 3600;

/// The values of all series at a time, in the order that `sampler.rs` has for them. NaN is not known.
#[derive(Debug, PartialEq)]
pub struct Sample {
    pub at_unix_ms: u64,
    pub values: Box<[f32]>,
}

/// A coarse point that is complete, and the index of its resolution in `TIERS`.
pub type Ended = (usize, Arc<Sample>);

/// Shared by the one who samples and those who look.
pub struct History {
    tiers: Mutex<Vec<Tier>>,
    latest: watch::Sender<Option<Arc<Sample>>>,
}

/// A part of the past at one resolution.
pub struct Window {
    pub step_ms: u64,
    /// From old to new.
    pub points: Vec<Arc<Sample>>,
}

struct Tier {
    step_ms: u64,
    points_max: usize,
    points: VecDeque<Arc<Sample>>,
    /// What the point in the making has so far.
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
    /// Gives back the coarse points that have ended with it.
    pub fn push(&self, sample: Sample) -> Vec<Ended> {
        let sample = Arc::new(sample);
        let mut ended = Vec::new();
        for (index, tier) in self.lock().iter_mut().enumerate() {
            ended.extend(tier.push(&sample, 1).map(|point| (index, point)));
        }
        self.latest.send_replace(Some(sample));
        ended
    }

    /// Takes over coarse points of the process before, each resolution from old to new. Of a step that was under way, what the
    /// finest of them has is its beginning. Gives back the points that have ended in doing so.
    pub fn restore(&self, load: impl Fn(usize) -> Vec<Sample>) -> Vec<Ended> {
        let mut tiers = self.lock();
        let mut ended = Vec::new();
        for (index, tier) in tiers.iter_mut().enumerate().skip(1) {
            load(index).into_iter().for_each(|point| tier.keep(Arc::new(point)));
        }
        let finest: Vec<Arc<Sample>> = tiers[1].points.iter().cloned().collect();
        for (index, tier) in tiers.iter_mut().enumerate().skip(2) {
            let last = tier.points.back().map_or(0, |point| point.at_unix_ms);
            for point in finest.iter().filter(|point| point.at_unix_ms > last) {
                // It stands at its end, which is in the next step already.
                let sample = Arc::new(Sample {
                    at_unix_ms: point.at_unix_ms - 1,
                    values: point.values.clone(),
                });
                ended.extend(tier.push(&sample, SAMPLES_PER_POINT).map(|point| (index, point)));
            }
        }
        ended
    }

    /// Each new sample; who is slow sees the newest only.
    pub fn subscribe(&self) -> watch::Receiver<Option<Arc<Sample>>> {
        self.latest.subscribe()
    }

    /// The last `window_ms` before `now_unix_ms`, at the finest resolution that reaches so far.
    pub fn window(&self, window_ms: u64, now_unix_ms: u64) -> Window {
        let tiers = self.lock();
        let reaches = |tier: &&Tier| tier.step_ms * tier.points_max as u64 >= window_ms;
        let tier = tiers
            .iter()
            .find(reaches)
            .unwrap_or_else(|| tiers.last().expect("there are tiers"));
        let from = now_unix_ms.saturating_sub(window_ms);
        Window {
            step_ms: tier.step_ms,
            points: tier
                .points
                .iter()
                .filter(|point| point.at_unix_ms >= from)
                .cloned()
                .collect(),
        }
    }

    // Every update leaves the rings valid, so a panic elsewhere cannot have broken them.
    fn lock(&self) -> MutexGuard<'_, Vec<Tier>> {
        self.tiers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Tier {
    /// Gives back the point that has ended with it, if it is a mean. `weight`: of how many samples this is the mean.
    fn push(&mut self, sample: &Arc<Sample>, weight: u32) -> Option<Arc<Sample>> {
        if self.step_ms == TIERS[0].0 {
            self.keep(sample.clone());
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
            self.keep(point.clone());
            ended = Some(point);
        }
        self.pending.add(&sample.values, weight);
        ended
    }

    fn keep(&mut self, point: Arc<Sample>) {
        if self.points.len() == self.points_max {
            self.points.pop_front();
        }
        self.points.push_back(point);
    }
}

impl Mean {
    /// What there was, if there was anything; `step` begins.
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
    fn ten_minutes_are_kept_to_the_second_and_longer_as_means() {
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
    fn every_ring_is_bounded_and_a_longer_window_gets_the_longest() {
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
    fn who_is_slow_sees_the_newest() {
        let history = History::default();
        let mut viewer = history.subscribe();
        history.push(sample(0, 1.0));
        history.push(sample(1, 2.0));
        assert_eq!(viewer.borrow_and_update().as_ref().unwrap().values[0], 2.0);
        assert!(!viewer.has_changed().unwrap());
    }
}
