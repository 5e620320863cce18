//! The stores of the platform whose last write failed. The node shows them as an alarm, in `/readyz` and as a metric
//! until a write succeeds.

use std::error::Error;
use std::sync::Mutex;

use crate::hub::lock;
use crate::ingest::error_chain;

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
    pub fn failed(&self, work: StoreWork, error: &dyn Error) {
        let mut failures = lock(&self.0);
        failures.retain(|(other, _)| *other != work);
        failures.push((work, error_chain(error)));
    }

    pub fn succeeded(&self, work: StoreWork) {
        lock(&self.0).retain(|(other, _)| *other != work);
    }

    /// Returns a sentence for each failure: the work and the error.
    pub fn list(&self) -> Vec<String> {
        let failures = lock(&self.0);
        let sentence = |(work, error): &(StoreWork, String)| format!("{} failed: {error}", work.text());
        failures.iter().map(sentence).collect()
    }
}
