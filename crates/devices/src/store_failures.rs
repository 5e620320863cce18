//! The stores of the platform whose last write failed. The node shows them as an alarm, in `/readyz` and as a metric
//! until a write succeeds.

use std::sync::Mutex;

use platform::repository::Repository;

use crate::mutex::lock;

/// Work of the platform that writes to its stores and is retried after a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreWork {
    Messages,
    PeriodicWork,
    TimeSeriesFlush,
    TimeSeriesMaintenance,
    DatabaseCheckpoint,
}

impl StoreWork {
    fn text(self) -> &'static str {
        match self {
            StoreWork::Messages => "storing device messages",
            StoreWork::PeriodicWork => "periodic work",
            StoreWork::TimeSeriesFlush => "flushing time series",
            StoreWork::TimeSeriesMaintenance => "maintenance of time series",
            StoreWork::DatabaseCheckpoint => "emptying the write-ahead log of the entity database",
        }
    }
}

#[derive(Default)]
pub struct StoreFailures(Mutex<Vec<(StoreWork, String)>>);

impl StoreFailures {
    pub fn failed(&self, work: StoreWork, error: String) {
        let mut failures = lock(&self.0);
        failures.retain(|(other, _)| *other != work);
        failures.push((work, error));
    }

    pub fn succeeded(&self, work: StoreWork) {
        lock(&self.0).retain(|(other, _)| *other != work);
    }

    pub fn has(&self, work: StoreWork) -> bool {
        lock(&self.0).iter().any(|(other, _)| *other == work)
    }

    /// Notes whether the work failed. Returns the result.
    pub fn note<T>(&self, work: StoreWork, result: Result<T, String>) -> Result<T, String> {
        match &result {
            Ok(_) => self.succeeded(work),
            Err(error) => self.failed(work, error.clone()),
        }
        result
    }

    /// Returns a sentence for each failure, with the error. Includes the entity database.
    pub fn list(&self, repository: &dyn Repository) -> Vec<String> {
        let sentence = |(work, error): &(StoreWork, String)| format!("{} failed: {error}", work.text());
        let mut failures: Vec<String> = lock(&self.0).iter().map(sentence).collect();
        failures.extend(repository.write_failure());
        failures
    }
}
