//! Metrics of rules, actions, sources and connectors, with their names as labels. To limit the output, only the first
//! of each kind are listed; a metric counts the others.

use integration::{ActionStats, MeasuredDefinition, RuleCounts, RuleTiming};

use super::{Histogram, MetricsSnapshot, Samples, metric_families, samples};

/// Listed items of each kind.
const LISTED_MAX: usize = 1000;

type ReadActionCount = fn(&ActionStats) -> u64;
type ReadRuleCount = fn(&RuleCounts) -> u64;

metric_families! {
    Counter "tidewire_rule_matched" "Messages and events that a rule received." rules |it| it.matched;
    Counter "tidewire_rule_passed" "Messages and events for which a rule had an output." rules |it| it.passed;
    Counter "tidewire_rule_failed" "Messages and events for which a rule failed." rules |it| it.failed;
    Counter "tidewire_rule_failed_at_limit"
        "Messages and events for which a rule failed because of a limit for time, steps or memory."
        rules |it| it.failed_at_limit;
    Counter "tidewire_rule_outputs"
        "Outputs of a rule, by outcome: accepted by an action, failed (templates), discarded (the buffer was full)."
        samples |s, out| {
            for it in listed(&s.integration.rules) {
                let counts = &it.value;
                for (outcome, count) in [
                    ("accepted", counts.actions_success),
                    ("failed", counts.actions_failed),
                    ("discarded", counts.actions_discarded),
                ] {
                    out.put(&[("rule", &it.name), ("outcome", outcome)], count);
                }
            }
        };
    Gauge "tidewire_rule_slow" "1 for a rule that is evaluated on separate threads because it is slow."
        slow_rules |it| u64::from(it.is_slow);
    Gauge "tidewire_rule_queued" "Messages and events in the queue of a slow rule." slow_rules |it| it.queued;
    Gauge "tidewire_rule_queue_full"
        "1 while the queue of a slow rule is full: its publishers at QoS 1 and 2 wait or are rejected."
        slow_rules |it| u64::from(it.is_queue_full);
    Counter "tidewire_rule_dropped"
        "Messages and events that a slow rule did not process because its queue was full and no publisher could be rejected."
        rules |it| it.dropped_queue_full;
    Gauge "tidewire_action_state"
        "1 for the current state of an action: connected, connecting, disconnected, paused, disabled, broken (it cannot be started), buffer_failed (publishers wait until its buffer can be opened again)."
        samples |s, out| states(&s.integration.actions, "action", out);
    Counter "tidewire_action_received" "Messages that an action received." actions |it| it.matched;
    Counter "tidewire_action_sent" "Messages that the action's target has acknowledged." actions |it| it.sent;
    Counter "tidewire_action_sent_bytes" "Bytes of the messages that the action's target has acknowledged."
        actions |it| it.sent_bytes;
    Counter "tidewire_action_failed"
        "Messages that the action's target has rejected permanently, or that reached the retry limit."
        actions |it| it.failed;
    Counter "tidewire_action_fallback"
        "Messages that an action passed to a fallback action, by outcome: stored in its buffer, or lost."
        samples |s, out| {
            for (name, stats) in running(s) {
                for (outcome, count) in [("stored", stats.fallback_stored), ("lost", stats.fallback_lost)] {
                    out.put(&[("action", name), ("outcome", outcome)], count);
                }
            }
        };
    Counter "tidewire_action_retried" "Messages that were sent again." actions |it| it.retried;
    Counter "tidewire_action_skipped_echoes"
        "Messages that an action did not send because a source of its connector had received them from its target."
        actions |it| it.skipped_echoes;
    Counter "tidewire_action_dropped" "Messages that an action dropped, by reason." samples |s, out| {
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
    };
    Gauge "tidewire_action_queued_messages" "Messages in the buffer or in flight." actions |it| it.queued_messages;
    Gauge "tidewire_action_queued_bytes" "Bytes of the messages in the buffer or in flight."
        actions |it| it.queued_bytes;
    Gauge "tidewire_action_oldest_age_seconds"
        "Age of the oldest message that was read from the buffer and is not acknowledged."
        samples |s, out| {
            for (name, stats) in running(s) {
                out.put(&[("action", name)], stats.oldest_age_ms as f64 / 1000.0);
            }
        };
    Gauge "tidewire_action_inflight_messages" "Messages sent and not acknowledged." actions |it| it.in_flight;
    Counter "tidewire_action_publishers_held_back"
        "Messages that had to wait because the buffer was full, without retries. Publishers that wait with messages that the buffer has not received count once."
        actions |it| it.publishers_held_back;
    Counter "tidewire_action_abandoned"
        "Accepted outputs of rules that were lost because their action was unavailable for 30 s: disabled or deleted."
        samples |s, out| out.put(&[], s.integration.discarded);
    Gauge "tidewire_action_file_bytes" "Size of the buffer's files." actions |it| it.file_bytes;
    Histogram "tidewire_action_latency_seconds" "Time from sending a message to its acknowledgement."
        samples |s, out| running(s).for_each(|(name, stats)| latency(out, name, stats));
    Gauge "tidewire_source_state"
        "1 for the current state of a source: connected, connecting, disconnected, disabled, broken (it cannot be started)."
        samples |s, out| states(&s.integration.sources, "source", out);
    Counter "tidewire_source_received" "Messages that a source received." samples |s, out| {
        for it in listed(&s.integration.sources) {
            out.put(&[("source", &it.name)], it.value.received);
        }
    };
    Counter "tidewire_source_failed" "Messages of a source that could not be published." samples |s, out| {
        for it in listed(&s.integration.sources) {
            out.put(&[("source", &it.name)], it.value.failed);
        }
    };
    Counter "tidewire_source_refused_batches"
        "How often messages of a source could not be accepted yet and will be redelivered."
        samples |s, out| {
            for it in listed(&s.integration.sources) {
                out.put(&[("source", &it.name)], it.value.refused_batches);
            }
        };
    Gauge "tidewire_connector_state"
        "1 for the current state of a connector: enabled, disabled, broken (it cannot be started)."
        samples |s, out| states(&s.integration.connectors, "connector", out);
    Gauge "tidewire_integration_unlisted"
        "Rules, actions, sources and connectors that the metrics omit, beyond the first 1000 of each kind."
        samples |s, out| {
            let all = &s.integration;
            for (kind, count) in [
                ("rule", all.rules.len()),
                ("action", all.actions.len()),
                ("source", all.sources.len()),
                ("connector", all.connectors.len()),
            ] {
                out.put(&[("kind", kind)], count.saturating_sub(LISTED_MAX));
            }
        };
}

fn listed<T>(all: &[MeasuredDefinition<T>]) -> impl Iterator<Item = &MeasuredDefinition<T>> {
    all.iter().take(LISTED_MAX)
}

fn rules(snapshot: &MetricsSnapshot<'_>, out: &mut Samples<'_>, count: ReadRuleCount) {
    for it in listed(&snapshot.integration.rules) {
        out.put(&[("rule", &it.name)], count(&it.value));
    }
}

fn slow_rules(snapshot: &MetricsSnapshot<'_>, out: &mut Samples<'_>, value: fn(&RuleTiming) -> u64) {
    for it in listed(&snapshot.integration.slow_rules) {
        out.put(&[("rule", &it.name)], value(&it.value));
    }
}

fn running<'s>(snapshot: &'s MetricsSnapshot<'_>) -> impl Iterator<Item = (&'s str, &'s ActionStats)> {
    let all = listed(&snapshot.integration.actions);
    all.filter_map(|it| Some((it.name.as_str(), it.value.as_ref()?)))
}

fn actions(snapshot: &MetricsSnapshot<'_>, out: &mut Samples<'_>, count: ReadActionCount) {
    for (name, stats) in running(snapshot) {
        out.put(&[("action", name)], count(stats));
    }
}

fn states<T>(all: &[MeasuredDefinition<T>], label: &str, out: &mut Samples<'_>) {
    for it in listed(all) {
        out.put(&[(label, &it.name), ("state", it.state)], 1);
    }
}

fn latency(out: &mut Samples<'_>, action: &str, stats: &ActionStats) {
    let mut histogram = Histogram {
        buckets: Vec::with_capacity(stats.latency.len()),
        count: 0,
        sum: stats.latency_sum_us as f64 / 1e6,
    };
    for bucket in &stats.latency {
        histogram.count += bucket.messages;
        if let Some(bound) = bucket.up_to_us {
            histogram.buckets.push((bound as f64 / 1e6, histogram.count));
        }
    }
    out.writer.histogram(out.family, &[("action", action)], &histogram);
}
