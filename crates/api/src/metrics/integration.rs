//! Metrics of rules, actions, sources and connectors. Their names are labels; so that a node with very many of them stays readable,
//! the first ones of each sort are listed, and how many are not is told.

use std::fmt::Write;

use integration::{ActionStats, Measured, RuleCounts};

use super::{Family, Samples, Snapshot, counter, gauge, histogram};

/// Of each sort.
const LISTED_MAX: usize = 1000;

type Actions = fn(&ActionStats) -> u64;
type Rules = fn(&RuleCounts) -> u64;

pub const FAMILIES: &[Family] = &[
    counter(
        "tidewire_rule_matched",
        "Messages and events from the sources of a rule.",
        |s, out| {
            rules(s, out, |it| it.matched);
        },
    ),
    counter(
        "tidewire_rule_passed",
        "Of them, those that had an output.",
        |s, out| {
            rules(s, out, |it| it.passed);
        },
    ),
    counter(
        "tidewire_rule_failed",
        "Of them, those on which the rule could not be evaluated.",
        |s, out| rules(s, out, |it| it.failed),
    ),
    counter(
        "tidewire_rule_outputs",
        "Outputs of a rule, by outcome: taken by an action, failed (templates), discarded (its buffer was full).",
        |s, out| {
            for it in listed(&s.integration.rules) {
                let counts = &it.value;
                for (outcome, count) in [
                    ("taken", counts.actions_success),
                    ("failed", counts.actions_failed),
                    ("discarded", counts.actions_discarded),
                ] {
                    out.put(&[("rule", &it.name), ("outcome", outcome)], count);
                }
            }
        },
    ),
    gauge(
        "tidewire_action_state",
        "1 for the state of an action: connected, connecting, disconnected, paused, disabled, broken (it cannot be started).",
        |s, out| states(&s.integration.actions, "action", out),
    ),
    counter(
        "tidewire_action_received",
        "Messages that were given to an action.",
        |s, out| {
            actions(s, out, |it| it.matched);
        },
    ),
    counter(
        "tidewire_action_sent",
        "Messages that its target has confirmed.",
        |s, out| {
            actions(s, out, |it| it.sent);
        },
    ),
    counter("tidewire_action_sent_bytes", "What they weigh.", |s, out| {
        actions(s, out, |it| it.sent_bytes);
    })
    .bytes(),
    counter(
        "tidewire_action_failed",
        "Messages that its target has refused for good, or that were tried too often.",
        |s, out| actions(s, out, |it| it.failed),
    ),
    counter(
        "tidewire_action_fallback",
        "Messages that an action has given up, by what became of them: taken or lost by one of its fallback actions.",
        |s, out| {
            for (name, stats) in running(s) {
                for (outcome, count) in [("taken", stats.fallen_back), ("lost", stats.fallback_lost)] {
                    out.put(&[("action", name), ("outcome", outcome)], count);
                }
            }
        },
    ),
    counter(
        "tidewire_action_retried",
        "Messages that were sent once more.",
        |s, out| {
            actions(s, out, |it| it.retried);
        },
    ),
    counter(
        "tidewire_action_dropped",
        "Messages that an action gave up, by reason.",
        |s, out| {
            for (name, stats) in running(s) {
                let dropped = &stats.dropped;
                for (reason, count) in [
                    ("overflow_oldest", dropped.overflow_oldest),
                    ("overflow_newest", dropped.overflow_newest),
                    ("disk", dropped.disk),
                    ("expired", dropped.expired),
                    ("purged", dropped.purged),
                ] {
                    out.put(&[("action", name), ("reason", reason)], count);
                }
            }
        },
    ),
    gauge(
        "tidewire_action_queued_messages",
        "Messages that wait or are on their way.",
        |s, out| {
            actions(s, out, |it| it.queued_messages);
        },
    ),
    gauge("tidewire_action_queued_bytes", "What they weigh.", |s, out| {
        actions(s, out, |it| it.queued_bytes);
    })
    .bytes(),
    gauge(
        "tidewire_action_oldest_age_seconds",
        "Age of the oldest message that was read from the buffer and is not confirmed.",
        |s, out| {
            for (name, stats) in running(s) {
                out.put(&[("action", name)], stats.oldest_age_ms as f64 / 1000.0);
            }
        },
    )
    .seconds(),
    gauge(
        "tidewire_action_inflight_messages",
        "Messages sent and not confirmed.",
        |s, out| {
            actions(s, out, |it| it.in_flight);
        },
    ),
    counter(
        "tidewire_action_publishers_held_back",
        "Times that publishers had to wait because the buffer was full.",
        |s, out| actions(s, out, |it| it.held_back),
    ),
    counter(
        "tidewire_action_abandoned",
        "Outputs of rules that were accepted for an action and reached none: it was disabled or deleted, or its buffer could not be opened, and was not back after 30 s.",
        |s, out| out.put(&[], s.integration.abandoned),
    ),
    gauge(
        "tidewire_action_file_bytes",
        "What the buffer takes on the disk.",
        |s, out| {
            actions(s, out, |it| it.file_bytes);
        },
    )
    .bytes(),
    histogram(
        "tidewire_action_latency_seconds",
        "From sending a message to its confirmation.",
        |s, out| running(s).for_each(|(name, stats)| latency(out, name, stats)),
    )
    .seconds(),
    gauge(
        "tidewire_source_state",
        "1 for the state of a source: connected, connecting, disconnected, disabled, broken (it cannot be started).",
        |s, out| states(&s.integration.sources, "source", out),
    ),
    counter(
        "tidewire_source_received",
        "Messages that a source has brought.",
        |s, out| {
            for it in listed(&s.integration.sources) {
                out.put(&[("source", &it.name)], it.value.received);
            }
        },
    ),
    counter(
        "tidewire_source_failed",
        "Of them, those that could not be published as the source says.",
        |s, out| {
            for it in listed(&s.integration.sources) {
                out.put(&[("source", &it.name)], it.value.failed);
            }
        },
    ),
    counter(
        "tidewire_source_refused_batches",
        "Times that what a source brought was not taken yet, so that it comes again.",
        |s, out| {
            for it in listed(&s.integration.sources) {
                out.put(&[("source", &it.name)], it.value.refused_batches);
            }
        },
    ),
    gauge(
        "tidewire_connector_state",
        "1 for the state of a connector: enabled, disabled, broken (it cannot be started).",
        |s, out| states(&s.integration.connectors, "connector", out),
    ),
    gauge(
        "tidewire_integration_unlisted",
        "Rules, actions, sources and connectors beyond the first 1000 of each, which the metrics above leave out.",
        |s, out| {
            let all = &s.integration;
            for (kind, count) in [
                ("rule", all.rules.len()),
                ("action", all.actions.len()),
                ("source", all.sources.len()),
                ("connector", all.connectors.len()),
            ] {
                out.put(&[("kind", kind)], count.saturating_sub(LISTED_MAX));
            }
        },
    ),
];

fn listed<T>(all: &[Measured<T>]) -> impl Iterator<Item = &Measured<T>> {
    all.iter().take(LISTED_MAX)
}

fn rules(snapshot: &Snapshot<'_>, out: &mut Samples<'_>, count: Rules) {
    for it in listed(&snapshot.integration.rules) {
        out.put(&[("rule", &it.name)], count(&it.value));
    }
}

fn running<'s>(snapshot: &'s Snapshot<'_>) -> impl Iterator<Item = (&'s str, &'s ActionStats)> {
    let all = listed(&snapshot.integration.actions);
    all.filter_map(|it| Some((it.name.as_str(), it.value.as_ref()?)))
}

fn actions(snapshot: &Snapshot<'_>, out: &mut Samples<'_>, count: Actions) {
    for (name, stats) in running(snapshot) {
        out.put(&[("action", name)], count(stats));
    }
}

fn states<T>(all: &[Measured<T>], label: &str, out: &mut Samples<'_>) {
    for it in listed(all) {
        out.put(&[(label, &it.name), ("state", it.state)], 1);
    }
}

fn latency(out: &mut Samples<'_>, action: &str, stats: &ActionStats) {
    let name = out.family.name;
    let mut count = 0;
    for bucket in &stats.latency {
        count += bucket.messages;
        let bound = bucket
            .up_to_us
            .map_or("+Inf".to_owned(), |bound| (bound as f64 / 1e6).to_string());
        writeln!(out.text, "{name}_bucket{{action=\"{action}\",le=\"{bound}\"}} {count}")
            .expect("a String takes everything");
    }
    let sum = stats.latency_sum_us as f64 / 1e6;
    writeln!(
        out.text,
        "{name}_count{{action=\"{action}\"}} {count}\n{name}_sum{{action=\"{action}\"}} {sum}"
    )
    .expect("a String takes everything");
}
