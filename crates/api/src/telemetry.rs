//! Telemetry for other systems: the collector and the counters of exports.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The body of the collector's answer.
pub type ExportAnswer<'a> = Pin<Box<dyn Future<Output = Result<Vec<u8>, ExportError>> + Send + 'a>>;

/// A collector with an OTLP receiver for HTTP.
pub trait TelemetryCollector: Send + Sync {
    /// Posts a JSON document to a path below the endpoint.
    fn post(&self, path: &'static str, document: Vec<u8>) -> ExportAnswer<'_>;
}

/// Why the collector has not accepted a document. The texts contain no secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExportError {
    /// Another attempt may succeed: no answer, or one of the codes 429, 502, 503 and 504.
    Unavailable(String),
    Rejected(String),
}

/// Where telemetry is sent, and which.
#[derive(Clone)]
pub struct TelemetryConfig {
    pub collector: Arc<dyn TelemetryCollector>,
    /// Time limit of a request, with the wait for a connection.
    pub timeout: Duration,
    /// The attribute `service.name`.
    pub service_name: String,
    /// `None`: metrics are not exported.
    pub metrics_interval: Option<Duration>,
    /// Export spans of messages with a `traceparent`.
    pub traces: bool,
}

/// Number of exports by their result, for metrics.
#[derive(Default)]
pub struct ExportCounters {
    /// By [`Signal`], sent and failed.
    exports: [[AtomicU64; 2]; 2],
    /// Spans that were not sent, because the queue was full or the collector rejected them.
    pub dropped_spans: AtomicU64,
}

/// The kinds of exported data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    Metrics,
    Traces,
}

impl Signal {
    pub const ALL: [Signal; 2] = [Signal::Metrics, Signal::Traces];

    pub fn name(self) -> &'static str {
        match self {
            Signal::Metrics => "metrics",
            Signal::Traces => "traces",
        }
    }
}

impl ExportCounters {
    /// The counters of successful and failed exports.
    pub(crate) fn counts(&self, signal: Signal) -> &[AtomicU64; 2] {
        &self.exports[signal as usize]
    }

    /// Returns how many exports succeeded, and how many failed.
    pub fn of(&self, signal: Signal) -> [u64; 2] {
        self.counts(signal)
            .each_ref()
            .map(|count| count.load(Ordering::Relaxed))
    }
}
