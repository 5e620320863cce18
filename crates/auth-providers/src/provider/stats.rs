//! Counters of a provider.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use auth::ProviderOutcome;

/// A provider whose counters can be read.
pub trait WatchedProvider: Send + Sync {
    /// Name in options, metrics and logs.
    fn name(&self) -> &'static str;

    /// Deletes all cached answers.
    fn clear_cache(&self);

    fn stats(&self) -> SourceStats;
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
    /// The last question failed.
    pub is_failing: bool,
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
    pub answer_time: Counter,
}

impl Counters {
    pub fn answered(&self, outcome: &ProviderOutcome) -> &Counter {
        match outcome {
            ProviderOutcome::Allow(_) => &self.allowed,
            ProviderOutcome::Deny(_) => &self.denied,
            ProviderOutcome::Ignore => &self.ignored,
        }
    }

    pub fn stats(&self, is_failing: bool) -> SourceStats {
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
