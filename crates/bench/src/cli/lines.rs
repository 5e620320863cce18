//! Output of one line per second, for pipes and in the format of emqtt-bench.

use crate::driver::LoadCounts;
use crate::observe::{RunObserver, RunPhase, RunSecond};
use crate::output;
use crate::result::RunResult;

/// The format of emqtt-bench: a line for every counter that has changed, `3s recv total=37 rate=37.00/sec`.
#[derive(Debug, Default)]
pub struct CounterLines {
    last: LoadCounts,
    last_s: f64,
}

impl RunObserver for CounterLines {
    fn phase(&mut self, _: RunPhase) {}

    fn second(&mut self, moment: &RunSecond<'_>) {
        let seconds = moment.elapsed_s - self.last_s;
        let time = duration(moment.elapsed_s as u64);
        let latency = moment.interval.end_to_end.summary();
        if latency.count > 0 {
            output::line(format_args!("{time} publish_latency avg={:.0}ms", latency.mean_ms));
        }
        for (name, total, before) in counters(moment.totals, &self.last) {
            if total != before && seconds > 0.0 {
                let rate = (total - before) as f64 / seconds;
                output::line(format_args!("{time} {name} total={total} rate={rate:.2}/sec"));
            }
        }
        (self.last, self.last_s) = (*moment.totals, moment.elapsed_s);
    }

    fn end(&mut self, result: &RunResult) {
        let publishes = result.scenario.group.iter().any(|group| group.publish.is_some());
        if publishes && !result.is_interrupted {
            output::line("publish complete");
        }
    }
}

/// Returns the counters with the names and in the order of emqtt-bench.
fn counters(now: &LoadCounts, before: &LoadCounts) -> [(&'static str, u64, u64); 8] {
    [
        ("recv", now.received, before.received),
        ("sub", now.subscribes, before.subscribes),
        ("sub_fail", now.subscribes_failed, before.subscribes_failed),
        ("pub", now.published, before.published),
        ("pub_fail", now.refused, before.refused),
        ("pub_succ", now.acknowledged, before.acknowledged),
        ("connect_succ", now.connects, before.connects),
        ("connect_fail", now.connects_failed, before.connects_failed),
    ]
}

/// Formats seconds as emqtt-bench does: 63 is "1m3s".
fn duration(seconds: u64) -> String {
    let mut text = String::new();
    let mut rest = seconds;
    for (factor, unit) in [(60, "s"), (60, "m"), (24, "h"), (u64::MAX, "d")] {
        if rest == 0 {
            break;
        }
        text.insert_str(0, &format!("{}{unit}", rest % factor));
        rest /= factor;
    }
    text
}

/// The plain-text progress of `run`.
#[derive(Debug, Default)]
pub struct TextProgress;

impl RunObserver for TextProgress {
    fn phase(&mut self, phase: RunPhase) {
        output::line(match phase {
            RunPhase::Connecting => "connecting",
            RunPhase::WarmUp => "warming up",
            RunPhase::Measuring => "measuring",
            RunPhase::Returning => "publishing has ended; connecting the absent clients",
            RunPhase::Comparing => "waiting for missing messages",
        });
    }

    fn second(&mut self, moment: &RunSecond<'_>) {
        let second = moment.second;
        let rest = moment
            .remaining_s
            .map_or(String::new(), |rest| format!(", {rest:.0} s to go"));
        output::line(format_args!(
            "{:>5.0} s  {} of {} connected, {:.0} published/s, {:.0} delivered/s, p50 {:.2} ms, p99 {:.2} ms{rest}",
            moment.elapsed_s,
            second.connected,
            moment.clients,
            second.published,
            second.delivered,
            second.end_to_end.p50_ms,
            second.end_to_end.p99_ms,
        ));
    }

    fn end(&mut self, _: &RunResult) {}
}

/// A JSON line per second for programs. Lines that do not begin with a brace are other output.
#[derive(Debug, Default)]
pub struct JsonLines;

impl RunObserver for JsonLines {
    fn phase(&mut self, phase: RunPhase) {
        output::line(serde_json::json!({ "phase": word(phase) }));
    }

    fn second(&mut self, moment: &RunSecond<'_>) {
        let (second, totals) = (moment.second, moment.totals);
        output::line(serde_json::json!({
            "phase": word(moment.phase),
            "elapsed_s": moment.elapsed_s,
            "remaining_s": moment.remaining_s,
            "clients": moment.clients,
            "connected": second.connected,
            "published_per_s": second.published,
            "delivered_per_s": second.delivered,
            "p50_ms": second.end_to_end.p50_ms,
            "p99_ms": second.end_to_end.p99_ms,
            "errors": totals.connects_failed + totals.subscribes_failed + totals.disconnects + totals.refused,
        }));
    }

    fn end(&mut self, _: &RunResult) {}
}

fn word(phase: RunPhase) -> &'static str {
    match phase {
        RunPhase::Connecting => "connecting",
        RunPhase::WarmUp => "warm_up",
        RunPhase::Measuring => "measuring",
        RunPhase::Returning => "returning",
        RunPhase::Comparing => "comparing",
    }
}

#[cfg(test)]
mod tests {
    use super::duration;

    #[test]
    fn duration_has_format_of_emqtt_bench() {
        for (seconds, text) in [
            (0, ""),
            (1, "1s"),
            (60, "1m0s"),
            (63, "1m3s"),
            (3661, "1h1m1s"),
            (90_061, "1d1h1m1s"),
        ] {
            assert_eq!(duration(seconds), text);
        }
    }
}
