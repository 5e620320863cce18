//! The measures of a result by name: for `--require`, comparisons and the summary CSV.

use crate::histogram::Latency;
use crate::result::RunResult;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MeasureUnit {
    Count,
    PerSecond,
    Milliseconds,
    Seconds,
    Bytes,
    /// A share; 1 is 100 %.
    Share,
    Cores,
}

/// Which direction is better; for `Neither` the value is only shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BetterDirection {
    More,
    Less,
    Neither,
}

pub struct Measure {
    pub name: &'static str,
    pub about: &'static str,
    pub unit: MeasureUnit,
    pub better: BetterDirection,
    /// Returns the value; `None` if the run did not measure it.
    pub of: fn(&RunResult) -> Option<f64>,
}

/// Row: name, unit, better direction, value, meaning.
macro_rules! measures {
    ($($name:literal $unit:ident $better:ident $of:expr, $about:literal;)*) => {
        pub const MEASURES: &[Measure] = &[$(Measure {
            name: $name,
            about: $about,
            unit: MeasureUnit::$unit,
            better: BetterDirection::$better,
            of: $of,
        }),*];
    };
}

measures! {
    "published" PerSecond More |r| some(r.throughput.published), "messages published per second";
    "acknowledged" PerSecond More |r| some(r.throughput.acknowledged), "QoS 1 and 2 messages acknowledged per second";
    "delivered" PerSecond More |r| some(r.throughput.delivered), "messages received per second";
    "connects" PerSecond More |r| some(r.throughput.connects), "connects per second";
    "tls_full" PerSecond More |r| some(r.throughput.tls_full), "full TLS handshakes per second";
    "tls_resumed" PerSecond More |r| some(r.throughput.tls_resumed), "resumed TLS handshakes per second";
    "p50" Milliseconds Less |r| latency(r, |l| l.p50_ms), "end-to-end latency, median";
    "p90" Milliseconds Less |r| latency(r, |l| l.p90_ms), "end-to-end latency, 90th percentile";
    "p95" Milliseconds Less |r| latency(r, |l| l.p95_ms), "end-to-end latency, 95th percentile";
    "p99" Milliseconds Less |r| latency(r, |l| l.p99_ms), "end-to-end latency, 99th percentile";
    "p99.9" Milliseconds Less |r| latency(r, |l| l.p999_ms), "end-to-end latency, 99.9th percentile";
    "p99.99" Milliseconds Less |r| latency(r, |l| l.p9999_ms), "end-to-end latency, 99.99th percentile";
    "max" Milliseconds Less |r| latency(r, |l| l.max_ms), "end-to-end latency, longest";
    "mean" Milliseconds Less |r| latency(r, |l| l.mean_ms), "end-to-end latency, mean";
    "ack_p50" Milliseconds Less |r| acknowledgement(r, |l| l.p50_ms), "PUBACK or PUBCOMP, median";
    "ack_p99" Milliseconds Less |r| acknowledgement(r, |l| l.p99_ms), "PUBACK or PUBCOMP, 99th percentile";
    "ack_max" Milliseconds Less |r| acknowledgement(r, |l| l.max_ms), "PUBACK or PUBCOMP, longest";
    "connect_p99" Milliseconds Less |r| connect(r, |l| l.p99_ms), "first SYN to CONNACK, 99th percentile";
    "expected" Count Neither |r| Some(r.truth.expected as f64), "messages that should have been received";
    "lost" Count Less |r| Some(r.truth.lost as f64), "messages that were not received";
    "duplicated" Count Less |r| Some(r.truth.duplicated as f64), "messages received again";
    "reordered" Count Less |r| Some(r.truth.reordered as f64), "messages received after later ones";
    "corrupt" Count Less |r| Some(r.truth.corrupt as f64), "messages that differ from the published ones";
    "disconnects" Count Less |r| Some(r.totals.disconnects as f64), "connections lost";
    "failed_connects" Count Less |r| Some(r.totals.connects_failed as f64), "connects that failed";
    "cpu_per_million" Seconds Less |r| r.broker.as_ref().map(|b| b.cpu_s_per_million),
        "broker CPU seconds per million deliveries";
    "broker_cores" Cores Neither |r| r.broker.as_ref().map(|b| b.cores_used), "cores that the broker used";
    "rss" Bytes Less |r| r.broker.as_ref()?.resident_bytes.map(|n| n as f64), "broker's resident memory at the end";
    "rss_peak" Bytes Less |r| r.broker.as_ref()?.resident_peak_bytes.map(|n| n as f64),
        "broker's resident memory, peak";
    "rss_per_client" Bytes Less rss_per_client, "resident memory that each client has added";
    "ceiling" Share More |r| r.ceiling.as_ref().map(|c| c.ratio),
        "deliveries per broker CPU second, divided by those of bare sockets";
    "kept_up" Share More |r| (r.generator.offered > 0.0).then_some(r.generator.kept_up),
        "share of the offered messages that was sent";
    "generator_busy" Share Neither |r| Some(r.generator.busiest_thread), "busiest thread of the generator";
    "kafka_missing" Count Less |r| r.kafka.as_ref().map(|k| k.acknowledged.saturating_sub(k.records) as f64),
        "acknowledged messages that are not in Kafka";
    "kafka_more" Count Less |r| r.kafka.as_ref().map(|k| k.records.saturating_sub(k.acknowledged) as f64),
        "records in Kafka in excess of the acknowledged messages";
    "points_lost" Count Less |r| r.fleet.as_ref().map(|fleet| fleet.expected_points.saturating_sub(fleet.stored_points) as f64),
        "points of acknowledged messages that the platform has not stored";
    "replayed" PerSecond More |r| r.replay.map(|replay| replay.delivered_per_s),
        "retained or queued messages received per second";
}

pub fn find(name: &str) -> Option<&'static Measure> {
    MEASURES.iter().find(|measure| measure.name == name)
}

/// Returns the measures as text, for `--help`.
pub fn list() -> String {
    let lines = MEASURES
        .iter()
        .map(|measure| format!("  {:<16} {}\n", measure.name, measure.about));
    lines.collect()
}

fn some(rate: f64) -> Option<f64> {
    (rate > 0.0).then_some(rate)
}

fn latency(result: &RunResult, of: fn(&Latency) -> f64) -> Option<f64> {
    counted(&result.latency.end_to_end.summary, of)
}

fn acknowledgement(result: &RunResult, of: fn(&Latency) -> f64) -> Option<f64> {
    counted(&result.latency.acknowledgement.summary, of)
}

fn connect(result: &RunResult, of: fn(&Latency) -> f64) -> Option<f64> {
    counted(&result.latency.connect.summary, of)
}

fn counted(summary: &Latency, of: fn(&Latency) -> f64) -> Option<f64> {
    (summary.count > 0).then(|| of(summary))
}

fn rss_per_client(result: &RunResult) -> Option<f64> {
    let broker = result.broker.as_ref()?;
    let clients: u64 = result.scenario.group.iter().map(|group| u64::from(group.clients)).sum();
    let added = broker.resident_bytes?.saturating_sub(broker.resident_before_bytes?);
    (clients > 0).then(|| added as f64 / clients as f64)
}

/// Formats a value with its unit.
pub fn format_value(unit: MeasureUnit, value: f64) -> String {
    match unit {
        MeasureUnit::Count => whole(value),
        MeasureUnit::PerSecond => format!("{}/s", whole(value)),
        MeasureUnit::Milliseconds => milliseconds(value),
        MeasureUnit::Seconds => format!("{value:.3} s"),
        MeasureUnit::Bytes => bytes(value),
        MeasureUnit::Share => format!("{:.1} %", value * 100.0),
        MeasureUnit::Cores => format!("{value:.2} cores"),
    }
}

/// Formats a number with separators: 4,500,000.
pub fn whole(value: f64) -> String {
    let digits = format!("{:.0}", value.abs());
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    if value < 0.0 { format!("-{text}") } else { text }
}

/// Formats milliseconds with three digits, in a suitable unit.
pub fn milliseconds(value: f64) -> String {
    match value {
        0.0 => "0".into(),
        v if v < 1.0 => format!("{:.0} µs", v * 1000.0),
        v if v < 100.0 => format!("{v:.2} ms"),
        v if v < 10_000.0 => format!("{v:.0} ms"),
        v => format!("{:.1} s", v / 1000.0),
    }
}

pub fn bytes(value: f64) -> String {
    match value.abs() {
        v if v < 10_000.0 => format!("{value:.0} B"),
        v if v < 1_048_576.0 => format!("{:.1} KiB", value / 1024.0),
        v if v < 10_000_000_000.0 => format!("{:.1} MiB", value / 1_048_576.0),
        _ => format!("{:.1} GiB", value / 1_073_741_824.0),
    }
}
