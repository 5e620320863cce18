//! Export of metrics and traces to an OpenTelemetry collector: OTLP over HTTP, in JSON.
//!
//! `telemetry` describes the collector, which only the binary knows. This file decides when something is sent, and what
//! happens after a failure. Metrics are totals since the start, so a lost export loses nothing: the next one has them.
//! Spans wait in a queue of bounded length.

mod metrics;
mod spans;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};
use tracing::{info, warn};

use crate::app::App;
use crate::config::NodeInfo;
use crate::metrics::{MetricSources, MetricsSnapshot};
use crate::shards::Shards;
use crate::telemetry::{ExportCounters, ExportError, Signal, TelemetryConfig};
use spans::{Span, SpanQueue};

const METRICS_PATH: &str = "/v1/metrics";
const TRACES_PATH: &str = "/v1/traces";

/// How long spans wait for others before they are sent.
const SPANS_WAIT: Duration = Duration::from_secs(2);
/// Maximum number of spans per request.
const SPANS_MAX: usize = 512;
/// Pauses after a failure. They double.
const RETRY_FIRST: Duration = Duration::from_secs(1);
const RETRY_LONGEST: Duration = Duration::from_secs(30);

/// Sends the documents of one signal. It logs the first failure after a success, and each failure for another reason.
struct Exporter {
    signal: Signal,
    config: TelemetryConfig,
    counters: Arc<ExportCounters>,
    resource: Value,
    failure: Option<ExportError>,
}

/// Starts the exports in the current runtime. They end with `stopped`.
pub fn start(app: &App, config: &TelemetryConfig, stopped: &watch::Receiver<bool>) {
    let exporter = |signal| Exporter {
        signal,
        config: config.clone(),
        counters: app.part(),
        resource: resource(&config.service_name, &app.part::<Arc<NodeInfo>>()),
        failure: None,
    };
    let (shards, sources) = (app.part::<Shards>(), Arc::new(app.part::<MetricSources>()));
    if let Some(every) = config.metrics_interval {
        let export = exporter(Signal::Metrics).export_metrics(every, shards.clone(), sources, stopped.clone());
        tokio::spawn(export);
    }
    if config.traces {
        tokio::spawn(exporter(Signal::Traces).export_spans(shards, stopped.clone()));
    }
}

impl Exporter {
    async fn export_metrics(
        mut self,
        every: Duration,
        shards: Shards,
        sources: Arc<MetricSources>,
        mut stopped: watch::Receiver<bool>,
    ) {
        let mut ticks = interval(every);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = ticks.tick() => {}
                _ = stopped.changed() => return,
            }
            // The shards do not answer during the start.
            let Ok(stats) = shards.stats().await else { continue };
            let (sources, resource) = (sources.clone(), self.resource.clone());
            let document =
                web::block(move || metrics::document(&MetricsSnapshot::new(&sources, stats), &resource)).await;
            if let Ok(document) = document {
                self.send(METRICS_PATH, document).await;
            }
        }
    }

    async fn export_spans(mut self, shards: Shards, mut stopped: watch::Receiver<bool>) {
        let mut queue = SpanQueue::new(self.counters.clone());
        tokio::select! {
            () = queue.attach(&shards) => {}
            _ = stopped.changed() => return,
        }
        loop {
            let batch = tokio::select! {
                batch = queue.batch(SPANS_MAX, SPANS_WAIT) => batch,
                _ = stopped.changed() => return,
            };
            tokio::select! {
                () = self.deliver(&batch) => {}
                _ = stopped.changed() => return,
            }
        }
    }

    /// Sends spans until the collector accepts or rejects them.
    async fn deliver(&mut self, batch: &[Span]) {
        let mut pause = RETRY_FIRST;
        while !self.send(TRACES_PATH, spans::document(batch, &self.resource)).await {
            sleep(pause).await;
            pause = (pause * 2).min(RETRY_LONGEST);
        }
        if let Some(ExportError::Rejected(_)) = self.failure {
            self.counters
                .dropped_spans
                .fetch_add(batch.len() as u64, Ordering::Relaxed);
        }
    }

    /// Sends a document. Returns false if another attempt may succeed.
    async fn send(&mut self, path: &'static str, document: Value) -> bool {
        let (time_max, document) = (self.config.timeout, document.to_string().into_bytes());
        let answer = timeout(time_max, self.config.collector.post(path, document)).await;
        let result = match answer {
            Ok(Ok(body)) => match rejection(&body) {
                Some(reason) => Err(ExportError::Rejected(reason)),
                None => Ok(()),
            },
            Ok(Err(error)) => Err(error),
            Err(_) => {
                let reason = format!("no answer within {} ms", time_max.as_millis());
                Err(ExportError::Unavailable(reason))
            }
        };
        let [sent, failed] = self.counters.counts(self.signal);
        let signal = self.signal.name();
        match result {
            Ok(()) => {
                sent.fetch_add(1, Ordering::Relaxed);
                if self.failure.take().is_some() {
                    info!(signal, "the OpenTelemetry collector accepts data again");
                }
                true
            }
            Err(error) => {
                failed.fetch_add(1, Ordering::Relaxed);
                let is_final = matches!(error, ExportError::Rejected(_));
                if self.failure.as_ref() != Some(&error) {
                    let (ExportError::Unavailable(reason) | ExportError::Rejected(reason)) = &error;
                    warn!(
                        signal,
                        path, reason, "the OpenTelemetry collector has not accepted the data"
                    );
                }
                self.failure = Some(error);
                is_final
            }
        }
    }
}

/// Returns the reason in an answer that rejects a part of the data.
fn rejection(body: &[u8]) -> Option<String> {
    let answer: Value = serde_json::from_slice(body).ok()?;
    let partial = answer.get("partialSuccess")?;
    let is_positive = |count: &Value| match count {
        Value::String(text) => text.parse::<u64>().is_ok_and(|count| count > 0),
        count => count.as_u64().is_some_and(|count| count > 0),
    };
    let rejected = [partial.get("rejectedSpans"), partial.get("rejectedDataPoints")];
    rejected.into_iter().flatten().find(|count| is_positive(count))?;
    let reason = partial["errorMessage"]
        .as_str()
        .unwrap_or("a part of the data was rejected");
    Some(reason.chars().take(1000).collect())
}

/// Returns the description of this server.
fn resource(service_name: &str, node: &NodeInfo) -> Value {
    json!({"attributes": attributes(&[
        ("service.name", service_name),
        ("service.version", &node.version),
        ("service.instance.id", &node.name),
        ("host.name", &node.name),
    ])})
}

/// Returns attributes with texts.
fn attributes(pairs: &[(&str, &str)]) -> Vec<Value> {
    let attribute = |(key, value): &(&str, &str)| json!({"key": key, "value": {"stringValue": value}});
    pairs.iter().map(attribute).collect()
}

/// The name and version of the program that creates the data.
fn scope() -> Value {
    json!({"name": "tidewire", "version": env!("CARGO_PKG_VERSION")})
}

/// OTLP writes 64-bit integers as texts.
fn unix_ns(ms: u64) -> String {
    format!("{ms}000000")
}
