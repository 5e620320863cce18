//! What the tool says about a run by itself: whether the broker kept its promises, and whether the load was what it claims to be.

use crate::driver::{Counts, Truth};
use crate::result::{Generator, Verdict};
use crate::scenario::Scenario;

/// Above this share of one core a thread may be what limits the result.
const BUSY: f64 = 0.95;
/// Later than this at the 99th percentile, the generator itself adds to the latencies.
const LATE_MS: f64 = 1.0;
const KEPT_UP: f64 = 0.99;

pub fn is_saturated(generator: &Generator, is_open: bool) -> bool {
    generator.busiest_thread > BUSY || (is_open && generator.lateness.p99_ms > LATE_MS)
}

pub fn is_open(scenario: &Scenario) -> bool {
    let mut publishes = scenario.group.iter().filter_map(|group| group.publish.as_ref());
    publishes.any(|publish| publish.rate.is_some())
}

/// `totals` over the whole run.
pub fn of_run(scenario: &Scenario, totals: &Counts, truth: &Truth, generator: &Generator) -> Vec<Verdict> {
    let mut verdicts = Vec::new();
    let mut say = |rule: &str, found: String, is_met: bool| {
        verdicts.push(Verdict {
            rule: rule.into(),
            found,
            is_met,
        });
    };
    if totals.connects_failed > 0 {
        say(
            "every connect succeeds",
            format!("{} failed", totals.connects_failed),
            false,
        );
    }
    if totals.subscribes_failed > 0 {
        say(
            "every subscription is granted",
            format!("{} refused", totals.subscribes_failed),
            false,
        );
    }
    if totals.disconnects > 0 {
        say("no connection is lost", format!("{} lost", totals.disconnects), false);
    }
    if totals.refused > 0 {
        say("no message is refused", format!("{} refused", totals.refused), false);
    }
    if truth.expected > 0 || truth.lost > 0 {
        let found = format!("{} of {} lost", truth.lost, truth.expected);
        say("nothing lost", found, truth.lost == 0);
    }
    if truth.received > 0 {
        say(
            "nothing duplicated",
            format!("{} duplicates", truth.duplicated),
            truth.duplicated == 0,
        );
        say(
            "nothing out of order",
            format!("{} out of order", truth.reordered),
            truth.reordered == 0,
        );
    }
    if truth.received > 0 || truth.corrupt > 0 {
        say(
            "nothing corrupt",
            format!("{} corrupt", truth.corrupt),
            truth.corrupt == 0,
        );
    }
    if is_open(scenario) && generator.offered > 0.0 {
        let found = format!("{:.2} % of {:.0}/s left", generator.kept_up * 100.0, generator.offered);
        say("the offered rate is kept", found, generator.kept_up >= KEPT_UP);
    }
    if scenario.group.iter().any(|group| group.publish.is_some()) {
        say("the generator keeps up", in_words(generator), !generator.is_saturated);
    }
    verdicts
}

fn in_words(generator: &Generator) -> String {
    format!(
        "busiest of {} threads {:.0} % busy, p99 {:.2} ms late",
        generator.threads,
        generator.busiest_thread * 100.0,
        generator.lateness.p99_ms
    )
}

/// What is known of the generator after a run.
pub struct Measured<'a> {
    pub threads: u32,
    pub seconds: f64,
    pub counts: &'a Counts,
    pub lateness: &'a crate::histogram::Histogram,
}

pub fn generator(scenario: &Scenario, measured: &Measured<'_>) -> Generator {
    let Measured {
        threads,
        seconds,
        counts,
        lateness,
    } = *measured;
    let per_s = |count: f64| if seconds > 0.0 { count / seconds } else { 0.0 };
    let mut generator = Generator {
        threads,
        cores_used: per_s(counts.cpu_ns as f64 / 1e9),
        busiest_thread: per_s(counts.busiest_thread_cpu_ns as f64 / 1e9),
        offered: per_s(counts.due as f64),
        kept_up: if counts.due > 0 {
            (counts.published as f64 / counts.due as f64).min(1.0)
        } else {
            1.0
        },
        lateness: lateness.summary(),
        is_saturated: false,
    };
    generator.is_saturated = is_saturated(&generator, is_open(scenario));
    generator
}
