//! The metrics as a document of OTLP: the families of `/metrics`, with the same names and labels.

use std::fmt::Display;
use std::time::SystemTime;

use serde_json::{Value, json};
use web::unix_ms;

use super::{attributes, scope, unix_ns};
use crate::metrics::{Family, Histogram, MetricKind, MetricsSnapshot, SampleWriter, write_families};

/// Totals since the start.
const CUMULATIVE: u8 = 2;

pub fn document(snapshot: &MetricsSnapshot<'_>, resource: &Value) -> Value {
    let mut writer = OtlpWriter {
        started_at: unix_ns(unix_ms(snapshot.sources.node.started_at)),
        now: unix_ns(unix_ms(SystemTime::now())),
        metrics: Vec::new(),
        points: Vec::new(),
    };
    write_families(snapshot, &mut writer);
    json!({"resourceMetrics": [{
        "resource": resource,
        "scopeMetrics": [{"scope": scope(), "metrics": writer.metrics}],
    }]})
}

struct OtlpWriter {
    started_at: String,
    now: String,
    metrics: Vec<Value>,
    /// Data points of the family that is being written.
    points: Vec<Value>,
}

impl OtlpWriter {
    fn put(&mut self, labels: &[(&str, &str)], mut point: Value) {
        point["attributes"] = attributes(labels).into();
        point["startTimeUnixNano"] = self.started_at.as_str().into();
        point["timeUnixNano"] = self.now.as_str().into();
        self.points.push(point);
    }
}

impl SampleWriter for OtlpWriter {
    fn sample(&mut self, _: &Family, labels: &[(&str, &str)], value: &dyn Display) {
        let text = value.to_string();
        let point = match text.parse::<i64>() {
            Ok(_) => json!({"asInt": text}),
            // Counters above i64::MAX, and numbers with a fraction.
            Err(_) => json!({"asDouble": text.parse::<f64>().unwrap_or_default()}),
        };
        self.put(labels, point);
    }

    fn histogram(&mut self, _: &Family, labels: &[(&str, &str)], histogram: &Histogram) {
        let (bounds, mut cumulative): (Vec<f64>, Vec<u64>) = histogram.buckets.iter().copied().unzip();
        cumulative.push(histogram.count);
        let mut below = 0;
        let buckets = cumulative.into_iter().map(|cumulative| {
            let count = cumulative.saturating_sub(below);
            below = cumulative;
            count.to_string()
        });
        let point = json!({
            "count": histogram.count.to_string(),
            "sum": histogram.sum,
            "bucketCounts": buckets.collect::<Vec<_>>(),
            "explicitBounds": bounds,
        });
        self.put(labels, point);
    }

    fn end_family(&mut self, family: &Family) {
        let points = std::mem::take(&mut self.points);
        if points.is_empty() {
            return;
        }
        let data = match family.kind {
            MetricKind::Counter => (
                "sum",
                json!({"aggregationTemporality": CUMULATIVE, "isMonotonic": true, "dataPoints": points}),
            ),
            MetricKind::Histogram => (
                "histogram",
                json!({"aggregationTemporality": CUMULATIVE, "dataPoints": points}),
            ),
            MetricKind::Gauge | MetricKind::Info => ("gauge", json!({"dataPoints": points})),
        };
        let unit = match family.unit() {
            "bytes" => "By",
            "seconds" => "s",
            _ => "1",
        };
        let mut metric = json!({"name": family.name, "description": family.help, "unit": unit});
        metric[data.0] = data.1;
        self.metrics.push(metric);
    }
}
