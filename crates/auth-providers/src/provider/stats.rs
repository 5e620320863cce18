//! Counters of a provider.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use auth::{Credentials, ProviderOutcome};

use super::SourceLimits;
use super::examined::ExaminedFuture;
use super::failures::SourceFailure;

/// Upper bounds of the buckets of answer times. The time limit of a question is at most the last one.
const ANSWER_TIME_BOUNDS_MS: [u64; BUCKETS] = [1, 2, 3, 5, 10, 20, 30, 50, 100, 200, 500, 1000, 5000, 60_000];
const BUCKETS: usize = 14;

/// A provider whose counters can be read.
pub trait WatchedProvider: Send + Sync {
    /// Name in options, metrics and logs.
    fn name(&self) -> &'static str;

    /// Deletes all cached answers.
    fn clear_cache(&self);

    fn stats(&self) -> SourceStats;

    fn limits(&self) -> SourceLimits;

    /// Returns the last failure since the start of the server.
    fn last_failure(&self) -> Option<SourceFailure>;

    /// Asks like a client, and reports how the outcome came about. Counts and caches like the question of a client.
    fn examine(self: Arc<Self>, credentials: Arc<Credentials>) -> ExaminedFuture;
}

/// Counters of a provider since the start of the server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SourceStats {
    /// Questions that the source answered with allow.
    pub allowed: u64,
    pub denied: u64,
    pub ignored: u64,
    /// Questions without a usable answer.
    pub failures: u64,
    /// Questions without an answer in time.
    pub timeouts: u64,
    /// Questions that were denied because too many were waiting.
    pub overloaded: u64,
    /// Clients that were answered from the cache.
    pub cache_hits: u64,
    /// Clients that got the answer to an equal question of another client.
    pub shared: u64,
    /// Questions that wait for a free one now.
    pub waiting: u64,
    /// Questions without an answer now.
    pub in_progress: u64,
    /// Sum of the times of all questions that were asked.
    pub answer_time: Duration,
    /// Number of questions by their time, in the buckets of `answer_time_of`.
    pub answer_times: [u64; BUCKETS],
    /// Cached answers now.
    pub cached: u64,
    /// The last question failed.
    pub is_failing: bool,
}

impl SourceStats {
    /// Returns a time within which this share of the questions was answered or ended. `None` without questions.
    pub fn answer_time_of(&self, percent: u64) -> Option<Duration> {
        let total: u64 = self.answer_times.iter().sum();
        let wanted = (total * percent).div_ceil(100);
        let mut counted = 0;
        let buckets = self.answer_times.iter().zip(ANSWER_TIME_BOUNDS_MS);
        let mut reached = buckets.filter(|(count, _)| {
            counted += **count;
            counted >= wanted
        });
        let (_, bound_ms) = reached.next().filter(|_| total > 0)?;
        Some(Duration::from_millis(bound_ms))
    }
}

#[derive(Default)]
pub(super) struct Counters {
    pub allowed: Counter,
    pub denied: Counter,
    pub ignored: Counter,
    pub failures: Counter,
    pub timeouts: Counter,
    pub overloaded: Counter,
    pub cache_hits: Counter,
    pub shared: Counter,
    pub waiting: Gauge,
    pub in_progress: Gauge,
    /// Nanoseconds.
    answer_time: Counter,
    answer_times: [Counter; BUCKETS],
}

impl Counters {
    pub fn answered(&self, outcome: &ProviderOutcome) -> &Counter {
        match outcome {
            ProviderOutcome::Allow(_) => &self.allowed,
            ProviderOutcome::Deny(_) => &self.denied,
            ProviderOutcome::Ignore => &self.ignored,
        }
    }

    /// Counts the time of a question.
    pub fn answer_took(&self, time: Duration) {
        self.answer_time.add(time.as_nanos() as u64);
        let is_within = |bound_ms: &u64| time <= Duration::from_millis(*bound_ms);
        let bucket = ANSWER_TIME_BOUNDS_MS.iter().position(is_within);
        self.answer_times[bucket.unwrap_or(BUCKETS - 1)].add(1);
    }

    pub fn stats(&self, is_failing: bool, cached: usize) -> SourceStats {
        SourceStats {
            allowed: self.allowed.get(),
            denied: self.denied.get(),
            ignored: self.ignored.get(),
            failures: self.failures.get(),
            timeouts: self.timeouts.get(),
            overloaded: self.overloaded.get(),
            cache_hits: self.cache_hits.get(),
            shared: self.shared.get(),
            waiting: self.waiting.0.get(),
            in_progress: self.in_progress.0.get(),
            answer_time: Duration::from_nanos(self.answer_time.get()),
            answer_times: self.answer_times.each_ref().map(Counter::get),
            cached: cached as u64,
            is_failing,
        }
    }
}

#[derive(Default)]
pub(super) struct Counter(AtomicU64);

impl Counter {
    pub fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Number of questions in a state.
#[derive(Default)]
pub(super) struct Gauge(Counter);

/// A question in this state, until it is dropped.
pub(super) struct Entered<'a>(&'a Gauge);

impl Gauge {
    pub fn enter(&self) -> Entered<'_> {
        self.0.add(1);
        Entered(self)
    }

    /// `None` if `max` questions are in this state.
    pub fn enter_below(&self, max: usize) -> Option<Entered<'_>> {
        let below = |count: u64| (count < max as u64).then_some(count + 1);
        let result = self.0.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, below);
        result.is_ok().then(|| Entered(self))
    }
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        self.0.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answer_times_are_upper_bounds_of_their_buckets() {
        let counters = Counters::default();
        let time_of = |percent| counters.stats(false, 0).answer_time_of(percent);
        assert_eq!(time_of(50), None);
        for _ in 0..98 {
            counters.answer_took(Duration::from_micros(1500));
        }
        counters.answer_took(Duration::from_millis(150));
        counters.answer_took(Duration::from_secs(3600));
        let ms = Duration::from_millis;
        assert_eq!(
            (time_of(50), time_of(99), time_of(100)),
            (Some(ms(2)), Some(ms(200)), Some(ms(60_000)))
        );
    }
}
