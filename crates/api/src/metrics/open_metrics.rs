//! The text of `/metrics`, in the format OpenMetrics 1.0.

use std::fmt::{Arguments, Display};

use super::{Family, Histogram, MetricsSnapshot, SampleWriter, write_families};

pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Returns all metrics.
pub fn expose(snapshot: &MetricsSnapshot<'_>) -> String {
    let mut text = OpenMetrics(String::with_capacity(32 * 1024));
    write_families(snapshot, &mut text);
    text.line(format_args!("# EOF"));
    text.0
}

struct OpenMetrics(String);

impl OpenMetrics {
    fn line(&mut self, line: Arguments<'_>) {
        std::fmt::Write::write_fmt(&mut self.0, line).expect("writing to a String cannot fail");
        self.0.push('\n');
    }
}

impl SampleWriter for OpenMetrics {
    fn begin_family(&mut self, family: &Family) {
        let Family { name, kind, help, .. } = family;
        self.line(format_args!("# TYPE {name} {}", kind.name()));
        let unit = family.unit();
        if !unit.is_empty() {
            self.line(format_args!("# UNIT {name} {unit}"));
        }
        self.line(format_args!("# HELP {name} {help}"));
    }

    fn sample(&mut self, family: &Family, labels: &[(&str, &str)], value: &dyn Display) {
        let (name, suffix, labels) = (family.name, family.kind.suffix(), label_set(labels));
        self.line(format_args!("{name}{suffix}{labels} {value}"));
    }

    fn histogram(&mut self, family: &Family, labels: &[(&str, &str)], histogram: &Histogram) {
        let (name, Histogram { buckets, count, sum }) = (family.name, histogram);
        let mut bucket = |bound: &str, count: u64| {
            let labels = label_set(&[labels, &[("le", bound)]].concat());
            self.line(format_args!("{name}_bucket{labels} {count}"));
        };
        for (bound, count) in buckets {
            bucket(&bound.to_string(), *count);
        }
        bucket("+Inf", *count);
        let labels = label_set(labels);
        self.line(format_args!("{name}_count{labels} {count}"));
        self.line(format_args!("{name}_sum{labels} {sum}"));
    }
}

/// Returns `{name="value",…}`, or an empty text.
fn label_set(labels: &[(&str, &str)]) -> String {
    let escaped = |value: &str| value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    let label = |(name, value): &(&str, &str)| format!("{name}=\"{}\"", escaped(value));
    let all: Vec<String> = labels.iter().map(label).collect();
    match all.is_empty() {
        true => String::new(),
        false => format!("{{{}}}", all.join(",")),
    }
}
