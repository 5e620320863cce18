//! The checks that the tool makes in every run: whether the broker delivered correctly, and whether the generator
//! produced the load that it was asked for.

use crate::driver::{LoadCounts, ReconciledCounts};
use crate::result::{Generator, ThresholdVerdict};
use crate::scenario::Scenario;

/// A thread that is on a core for more than this share of the measured time may limit the result.
const BUSY: f64 = 0.95;
/// A message that leaves this late or later has a latency that the broker does not cause alone.
const LATE_NS: u64 = 1_000_000;
/// If more than this share of the messages leaves late, the generator does not keep up. The scheduler delays a few per
/// cent in any program on a machine whose cores are all in use.
const LATE: f64 = 0.05;
const KEPT_UP: f64 = 0.99;

/// Describes the limits that the generator reached.
fn limits(generator: &Generator) -> Vec<String> {
    let mut limits = Vec::new();
    if generator.busiest_thread > BUSY {
        limits.push(format!(
            "a thread is on its core {:.0} % of the time (limit {:.0} %)",
            generator.busiest_thread * 100.0,
            BUSY * 100.0
        ));
    }
    if generator.late_share > LATE {
        let without_core = match generator.longest_wait {
            0.0 => String::new(),
            wait => format!("; a thread was ready without a core {:.0} % of the time", wait * 100.0),
        };
        limits.push(format!(
            "{:.1} % of messages left over 1 ms late (limit {:.0} %), p99 {:.2} ms{without_core}",
            generator.late_share * 100.0,
            LATE * 100.0,
            generator.lateness.p99_ms
        ));
    }
    limits
}

pub fn is_open(scenario: &Scenario) -> bool {
    let mut publishes = scenario.group.iter().filter_map(|group| group.publish.as_ref());
    publishes.any(|publish| publish.rate.is_some())
}

/// Makes the verdicts of a run. `totals` covers the whole run.
pub fn of_run(
    scenario: &Scenario,
    totals: &LoadCounts,
    truth: &ReconciledCounts,
    generator: &Generator,
) -> Vec<ThresholdVerdict> {
    let mut verdicts = Vec::new();
    let mut add = |rule: &str, found: String, is_met: bool| {
        verdicts.push(ThresholdVerdict {
            rule: rule.into(),
            found,
            is_met,
        });
    };
    if totals.connects_failed > 0 {
        add(
            "every connect succeeds",
            format!("{} failed", totals.connects_failed),
            false,
        );
    }
    if totals.subscribes_failed > 0 {
        add(
            "every subscription is granted",
            format!("{} refused", totals.subscribes_failed),
            false,
        );
    }
    if totals.disconnects > 0 {
        add("no connection is lost", format!("{} lost", totals.disconnects), false);
    }
    if totals.refused > 0 {
        add("no message is refused", format!("{} refused", totals.refused), false);
    }
    if truth.expected > 0 || truth.lost > 0 {
        let found = format!("{} of {} lost", truth.lost, truth.expected);
        add("nothing lost", found, truth.lost == 0);
    }
    if truth.received > 0 {
        add(
            "nothing duplicated",
            format!("{} duplicates", truth.duplicated),
            truth.duplicated == 0,
        );
        add(
            "nothing out of order",
            format!("{} out of order", truth.reordered),
            truth.reordered == 0,
        );
    }
    if truth.received > 0 || truth.corrupt > 0 {
        add(
            "nothing corrupt",
            format!("{} corrupt", truth.corrupt),
            truth.corrupt == 0,
        );
    }
    if is_open(scenario) && generator.offered > 0.0 {
        let found = format!("{:.2} % of {:.0}/s left", generator.kept_up * 100.0, generator.offered);
        add("the offered rate is reached", found, generator.kept_up >= KEPT_UP);
    }
    if scenario.group.iter().any(|group| group.publish.is_some()) {
        let found = match generator.is_saturated {
            true => limits(generator).join("; "),
            false => describe_limits(generator),
        };
        add("the generator keeps up", found, !generator.is_saturated);
    }
    verdicts
}

fn describe_limits(generator: &Generator) -> String {
    let busiest = format!(
        "busiest of {} threads {:.0} % busy",
        generator.threads,
        generator.busiest_thread * 100.0
    );
    match generator.lateness.count {
        0 => busiest,
        _ => format!(
            "{busiest}, {:.2} % of messages over 1 ms late",
            generator.late_share * 100.0
        ),
    }
}

/// Measurements of the generator over a run.
pub struct GeneratorLoad<'a> {
    pub threads: u32,
    pub seconds: f64,
    pub counts: &'a LoadCounts,
    pub lateness: &'a crate::histogram::Histogram,
}

pub fn generator(measured: &GeneratorLoad<'_>) -> Generator {
    let GeneratorLoad {
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
        longest_wait: per_s(counts.longest_wait_ns as f64 / 1e9),
        offered: per_s(counts.due as f64),
        kept_up: if counts.due > 0 {
            (counts.published as f64 / counts.due as f64).min(1.0)
        } else {
            1.0
        },
        lateness: lateness.summary(),
        late_share: lateness.share_above(LATE_NS),
        is_saturated: false,
    };
    generator.is_saturated = !limits(&generator).is_empty();
    generator
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::histogram::Histogram;

    /// Returns a generator of two threads after ten seconds: the busiest thread's share of a core, its wait, and how
    /// late messages left.
    fn after(busiest: f64, waited: f64, late_ms: &[(u64, u64)]) -> Generator {
        let mut lateness = Histogram::default();
        for (count, ms) in late_ms {
            (0..*count).for_each(|_| lateness.record(ms * 1_000_000 + 20_000));
        }
        let counts = LoadCounts {
            due: lateness.count(),
            published: lateness.count(),
            cpu_ns: (busiest * 1.5e10) as u64,
            busiest_thread_cpu_ns: (busiest * 1e10) as u64,
            longest_wait_ns: (waited * 1e10) as u64,
            ..LoadCounts::default()
        };
        generator(&GeneratorLoad {
            threads: 2,
            seconds: 10.0,
            counts: &counts,
            lateness: &lateness,
        })
    }

    fn verdict(generator: &Generator) -> ThresholdVerdict {
        let scenario = Scenario {
            group: vec![crate::scenario::ClientGroup {
                publish: Some(Default::default()),
                ..Default::default()
            }],
            ..Scenario::default()
        };
        let verdicts = of_run(
            &scenario,
            &LoadCounts::default(),
            &ReconciledCounts::default(),
            generator,
        );
        verdicts
            .into_iter()
            .find(|verdict| verdict.rule == "the generator keeps up")
            .unwrap()
    }

    #[test]
    fn few_late_messages_are_not_saturation() {
        // Once 200 ms without a core in ten seconds; and frequent preemption.
        for late_ms in [&[(9_800, 0), (200, 100)][..], &[(9_600, 0), (300, 4), (100, 30)]] {
            let generator = after(0.3, 0.4, late_ms);
            let verdict = verdict(&generator);
            assert!(verdict.is_met && !generator.is_saturated, "{verdict:?}");
            assert!(generator.lateness.p99_ms > 1.0, "{generator:?}");
            assert!(
                verdict.found.starts_with("busiest of 2 threads 30 % busy, "),
                "{verdict:?}"
            );
        }
    }

    #[test]
    fn verdict_of_saturated_generator_names_limits() {
        let busy = verdict(&after(0.97, 0.0, &[(1_000, 0)]));
        assert_eq!(
            (busy.is_met, &*busy.found),
            (false, "a thread is on its core 97 % of the time (limit 95 %)")
        );
        let late = verdict(&after(0.2, 0.31, &[(900, 0), (100, 7)]));
        assert!(!late.is_met);
        assert!(
            late.found
                .starts_with("10.0 % of messages left over 1 ms late (limit 5 %), p99 7.0"),
            "{}",
            late.found
        );
        assert!(
            late.found
                .ends_with("; a thread was ready without a core 31 % of the time")
        );
        let both = verdict(&after(0.99, 0.0, &[(10, 9)]));
        assert!(
            both.found.contains("99 %") && both.found.contains("100.0 % of messages"),
            "{}",
            both.found
        );
    }

    #[test]
    fn verdict_of_closed_model_ignores_lateness() {
        let verdict = verdict(&after(0.94, 0.5, &[]));
        assert_eq!(
            (verdict.is_met, &*verdict.found),
            (true, "busiest of 2 threads 94 % busy")
        );
    }
}
