//! The result as text: measurements, correctness of the deliveries, cost, and load of the generator. At most 100
//! columns.

use std::fmt::Write as _;

use super::measure::{bytes, milliseconds, whole};
use crate::histogram::Latency;
use crate::result::{BrokerCost, FleetResult, KafkaResult, RunResult};

const LATENCY_COLUMNS: [&str; 9] = ["min", "mean", "stdev", "p50", "p90", "p95", "p99", "p99.99", "max"];

pub fn render(result: &RunResult) -> String {
    let mut text = String::new();
    headline(&mut text, result);
    rates(&mut text, result);
    latencies(&mut text, result);
    write_figures(&mut text, result);
    verdicts(&mut text, result);
    text
}

fn headline(text: &mut String, result: &RunResult) {
    let scenario = &result.scenario;
    let ended = if result.is_interrupted { ", interrupted" } else { "" };
    let _ = writeln!(text, "\n{}: {:.1} s measured{ended}", scenario.name, result.measured_s);
    if let Some(published) = &scenario.published {
        let _ = writeln!(text, "published elsewhere: {published}");
    }
}

/// Writes one row per kind of operation: count, share that succeeded, rate, bytes per second.
fn rates(text: &mut String, result: &RunResult) {
    let (counts, totals, rate) = (&result.counts, &result.totals, &result.throughput);
    let rows = [
        ("connect", totals.connects, totals.connects_failed, rate.connects, None),
        ("full TLS", totals.tls_full, 0, rate.tls_full, None),
        ("TLS resumed", totals.tls_resumed, 0, rate.tls_resumed, None),
        ("subscribe", totals.subscribes, totals.subscribes_failed, 0.0, None),
        (
            "publish",
            counts.published,
            counts.refused,
            rate.published,
            Some(rate.bytes_out),
        ),
        ("acknowledge", counts.acknowledged, 0, rate.acknowledged, None),
        (
            "receive",
            counts.received,
            result.truth.corrupt,
            rate.delivered,
            Some(rate.bytes_in),
        ),
    ];
    let _ = writeln!(
        text,
        "\n{:<16}{:>16}{:>12}{:>18}{:>20}",
        "", "count", "success", "per second", "bytes per second"
    );
    for (name, count, failed, per_s, bytes_per_s) in rows.into_iter().filter(|row| row.1 + row.2 > 0) {
        let success = 100.0 * count as f64 / (count + failed) as f64;
        let per_s = if per_s > 0.0 { whole(per_s) } else { String::new() };
        let bytes_per_s = bytes_per_s.map(bytes).unwrap_or_default();
        let _ = writeln!(
            text,
            "{name:<16}{:>16}{success:>10.2} %{per_s:>18}{bytes_per_s:>20}",
            whole(count as f64)
        );
    }
}

fn latencies(text: &mut String, result: &RunResult) {
    let latency = &result.latency;
    let rows = [
        ("end to end", &latency.end_to_end.summary),
        ("acknowledge", &latency.acknowledgement.summary),
        ("connect", &latency.connect.summary),
        ("handshake", &latency.handshake.summary),
        ("subscribe", &latency.subscribe.summary),
    ];
    let rows: Vec<_> = rows.into_iter().filter(|(_, summary)| summary.count > 0).collect();
    if rows.is_empty() {
        return;
    }
    let _ = write!(text, "\n{:<12}", "latency");
    for column in LATENCY_COLUMNS {
        let _ = write!(text, "{column:>9}");
    }
    text.push('\n');
    for (name, summary) in rows {
        let _ = write!(text, "{name:<12}");
        for value in columns(summary) {
            let _ = write!(text, "{:>9}", milliseconds(value));
        }
        text.push('\n');
    }
}

fn columns(l: &Latency) -> [f64; LATENCY_COLUMNS.len()] {
    [
        l.min_ms, l.mean_ms, l.stdev_ms, l.p50_ms, l.p90_ms, l.p95_ms, l.p99_ms, l.p9999_ms, l.max_ms,
    ]
}

/// Writes the other figures that the run has, one line each.
fn write_figures(text: &mut String, result: &RunResult) {
    let mut fact = |name: &str, words: String| {
        let _ = writeln!(text, "{name:<16}{words}");
    };
    fact("", String::new());
    let truth = &result.truth;
    if truth.flows > 0 || truth.unverified > 0 {
        let [expected, received, lost] = [truth.expected, truth.received, truth.lost].map(|n| whole(n as f64));
        let [again, late, corrupt] = [truth.duplicated, truth.reordered, truth.corrupt].map(|n| whole(n as f64));
        fact(
            "truth",
            format!("{received} of {expected} messages received, {lost} lost, {again} duplicated,"),
        );
        let unverified = whole(truth.unverified as f64);
        fact(
            "",
            format!(
                "{late} reordered, {corrupt} corrupt; {unverified} not verified ({} flows)",
                truth.flows
            ),
        );
    }
    if let Some(replay) = &result.replay {
        let [delivered, rate] = [replay.delivered as f64, replay.delivered_per_s].map(whole);
        fact(
            "replay",
            format!(
                "{delivered} messages to {} clients in {:.2} s: {rate}/s",
                replay.clients, replay.seconds
            ),
        );
    }
    if let Some(broker) = &result.broker {
        for (place, words) in describe_broker(broker).into_iter().enumerate() {
            fact(if place == 0 { "broker" } else { "" }, words);
        }
    }
    if let Some(kafka) = &result.kafka {
        for (place, words) in describe_kafka(kafka).into_iter().enumerate() {
            fact(if place == 0 { "Kafka" } else { "" }, words);
        }
    }
    if let Some(fleet) = &result.fleet {
        for (place, words) in describe_fleet(fleet).into_iter().enumerate() {
            fact(if place == 0 { "platform" } else { "" }, words);
        }
    }
    if let Some(ceiling) = &result.ceiling {
        let cost = format!(
            "{:.3} CPU s per million, {}/s",
            ceiling.cpu_s_per_million,
            whole(ceiling.deliveries_per_s)
        );
        fact(
            "bare sockets",
            format!(
                "{cost}, writes of {:.0} bytes on {} sockets",
                ceiling.write_bytes, ceiling.sockets
            ),
        );
        fact(
            "",
            format!(
                "the broker delivers {:.0} % of that per CPU second",
                ceiling.ratio * 100.0
            ),
        );
    }
    let generator = &result.generator;
    let busiest = generator.busiest_thread * 100.0;
    fact(
        "generator",
        format!(
            "{:.2} cores, busiest of {} threads {busiest:.0} %, waited for a core up to {:.0} % of the time",
            generator.cores_used,
            generator.threads,
            generator.longest_wait * 100.0
        ),
    );
    if generator.lateness.count > 0 {
        let late = milliseconds(generator.lateness.p99_ms);
        fact(
            "",
            format!(
                "{:.2} % of messages sent over 1 ms late, p99 {late}",
                generator.late_share * 100.0
            ),
        );
    }
    for agent in &result.agents {
        let clock = format!(
            "clock offset {:+.3} ms, error at most {:.3} ms",
            agent.clock_offset_ms, agent.clock_error_ms
        );
        fact("agent", format!("{}: {} clients, {clock}", agent.name, agent.clients));
    }
}

/// Describes the broker's cost, and names the figures that are missing.
fn describe_broker(broker: &BrokerCost) -> Vec<String> {
    let mut absent = Vec::new();
    let source = broker.pid.map_or(broker.name.clone(), |pid| format!("process {pid}"));
    let mut cpu = format!(
        "{:.2} cores, {:.3} CPU s per million",
        broker.cores_used, broker.cpu_s_per_million
    );
    match broker.user_s.zip(broker.system_s) {
        Some((user_s, system_s)) => {
            let _ = write!(cpu, " ({user_s:.1} s user, {system_s:.1} s system)");
        }
        None => absent.push("separate user and system time"),
    }
    let mut words = vec![format!("{cpu}, {source}")];
    let memory = [
        broker.resident_bytes,
        broker.resident_before_bytes,
        broker.resident_peak_bytes,
    ];
    match memory.map(|size| size.map(|n| bytes(n as f64))) {
        [Some(now), Some(before), Some(peak)] => {
            words.push(format!("{now} resident ({before} before, {peak} at most)"));
        }
        _ => absent.push("resident memory"),
    }
    match broker.voluntary_switches.zip(broker.involuntary_switches) {
        Some((voluntary, involuntary)) => words.push(format!(
            "{} voluntary and {} involuntary context switches",
            whole(voluntary as f64),
            whole(involuntary as f64)
        )),
        None => absent.push("context switches"),
    }
    if !absent.is_empty() {
        words.push(format!("not reported: {}", absent.join(", ")));
    }
    words
}

fn describe_fleet(fleet: &FleetResult) -> Vec<String> {
    let arrived = match fleet.all_there_s {
        Some(seconds) => format!("complete {seconds:.1} s after the end"),
        None => "incomplete".to_owned(),
    };
    let [stored, expected, devices, alarms] =
        [fleet.stored_points, fleet.expected_points, fleet.devices, fleet.alarms].map(|count| whole(count as f64));
    let counted = fleet
        .counted_points
        .map(|count| format!("{} counted as usage, ", whole(count as f64)));
    let counted = counted.unwrap_or_default();
    vec![
        format!("{stored} points stored of {expected} expected, {counted}{arrived};"),
        format!("{devices} devices, {alarms} new alarms"),
    ]
}

fn describe_kafka(kafka: &KafkaResult) -> Vec<String> {
    let arrived = match kafka.all_there_s {
        Some(seconds) => format!("complete {seconds:.1} s after the end"),
        None => "incomplete".to_owned(),
    };
    let [records, acknowledged] = [kafka.records, kafka.acknowledged].map(|count| whole(count as f64));
    let (least, most) = (kafka.by_partition.iter().min(), kafka.by_partition.iter().max());
    let spread = least.zip(most).map(|(least, most)| {
        let [least, most] = [*least, *most].map(|count| whole(count as f64));
        format!("{least} to {most} in each of {} partitions", kafka.by_partition.len())
    });
    let mut words = vec![format!("{records} records of {acknowledged} acknowledged, {arrived};")];
    words.extend(spread);
    let counters = ["sent", "retried", "failed"].map(|name| Some((name, kafka.action.get(name)?)));
    let counters: Vec<String> = counters
        .into_iter()
        .flatten()
        .map(|(name, count)| format!("{} {name}", whole(*count as f64)))
        .collect();
    if !counters.is_empty() {
        words.push(format!("action: {}", counters.join(", ")));
    }
    if let Some(producer) = kafka.producer {
        let rate = whole(producer.records_per_s);
        words.push(format!(
            "plain producer: {rate}/s, {:.3} CPU s per million",
            producer.cpu_s_per_million
        ));
    }
    words
}

fn verdicts(text: &mut String, result: &RunResult) {
    text.push('\n');
    for verdict in &result.verdicts {
        let mark = if verdict.is_met { "ok  " } else { "FAIL" };
        let _ = writeln!(text, "{mark} {}: {}", verdict.rule, verdict.found);
    }
    for example in &result.examples {
        let _ = writeln!(text, "     {example}");
    }
    for (reason, count) in &result.errors {
        let _ = writeln!(text, "     {count} × {reason}");
    }
}
