//! Two CSV files: one row per second for plotting, and one row per measure.

use std::fmt::Write as _;

use super::measure::MEASURES;
use crate::result::{RunResult, Second};

/// Returns one row per second of the run.
pub fn seconds(result: &RunResult) -> String {
    let mut text = String::from(
        "at_s,connected,published_per_s,acknowledged_per_s,delivered_per_s,\
         p50_ms,p90_ms,p99_ms,p999_ms,max_ms,ack_p50_ms,ack_p99_ms,ack_max_ms,\
         broker_cores,broker_resident_bytes,generator_cores\n",
    );
    for second in &result.series {
        row(&mut text, second);
    }
    text
}

fn row(text: &mut String, second: &Second) {
    let Second {
        at_s,
        connected,
        published,
        acknowledged,
        delivered,
        end_to_end,
        acknowledgement,
        broker_cores,
        broker_resident_bytes,
        generator_cores,
    } = second;
    let optional = |value: Option<f64>| value.map(|value| format!("{value:.3}")).unwrap_or_default();
    let (e, a) = (end_to_end, acknowledgement);
    let _ = writeln!(
        text,
        "{at_s:.3},{connected},{published:.1},{acknowledged:.1},{delivered:.1},\
         {:.3},{:.3},{:.3},{:.3},{:.3},{:.3},{:.3},{:.3},{},{},{generator_cores:.3}",
        e.p50_ms,
        e.p90_ms,
        e.p99_ms,
        e.p999_ms,
        e.max_ms,
        a.p50_ms,
        a.p99_ms,
        a.max_ms,
        optional(*broker_cores),
        broker_resident_bytes.map(|bytes| bytes.to_string()).unwrap_or_default(),
    );
}

/// Returns one row per measure that the run has.
pub fn summary(result: &RunResult) -> String {
    let mut text = String::from("measure,value,about\n");
    for measure in MEASURES {
        if let Some(value) = (measure.of)(result) {
            let _ = writeln!(text, "{},{value},\"{}\"", measure.name, measure.about);
        }
    }
    text
}
