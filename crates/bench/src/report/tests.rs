//! Reports of a result that is built here.

use super::compare::{NamedResult, compare, warnings};
use super::threshold::Threshold;
use super::{csv, html, table};
use crate::driver::{LoadCounts, ReconciledCounts};
use crate::histogram::Histogram;
use crate::result::{
    BrokerCost, Ceiling, FORMAT, Generator, Latencies, Machine, MeasuredLatency, RunResult, Second, ThresholdVerdict,
    Throughput,
};
use crate::scenario::{ClientGroup, PublishSpec, Scenario};
use crate::target::LoadTarget;

fn measured(values_us: impl Iterator<Item = u64>) -> MeasuredLatency {
    let mut histogram = Histogram::default();
    values_us.for_each(|value| histogram.record(value * 1000));
    MeasuredLatency {
        summary: histogram.summary(),
        histogram,
    }
}

pub fn sample() -> RunResult {
    let publish = PublishSpec {
        topic: "t/%i".into(),
        rate: Some(10.0),
        ..PublishSpec::default()
    };
    let scenario = Scenario {
        name: "fanout <&\">".into(),
        about: "10 publishers to 1,000 subscribers".into(),
        published: Some("nothing".into()),
        group: vec![ClientGroup {
            name: "publishers".into(),
            clients: 10,
            publish: Some(publish),
            ..ClientGroup::default()
        }],
        ..Scenario::default()
    };
    let second = |n: u32| Second {
        at_s: f64::from(n),
        connected: 1010,
        published: 100.0,
        delivered: 100_000.0 + f64::from(n),
        end_to_end: measured(50..150).summary,
        broker_cores: Some(0.5),
        broker_resident_bytes: Some(9_000_000),
        generator_cores: 0.25,
        ..Second::default()
    };
    RunResult {
        format: FORMAT,
        tool: "tidewire bench".into(),
        started_at: "2026-01-02T03:04:05Z".into(),
        command: "tidewire bench run fanout".into(),
        scenario,
        target: LoadTarget::default(),
        machine: Machine {
            host: "host".into(),
            cpu: "cpu".into(),
            cores: 2,
            ..Machine::default()
        },
        measured_s: 10.0,
        is_interrupted: false,
        replay: None,
        counts: LoadCounts {
            published: 1000,
            received: 1_000_000,
            ..LoadCounts::default()
        },
        totals: LoadCounts {
            connects: 1010,
            subscribes: 1000,
            ..LoadCounts::default()
        },
        throughput: Throughput {
            published: 100.0,
            delivered: 100_000.0,
            connects: 9000.0,
            bytes_in: 8e6,
            ..Throughput::default()
        },
        latency: Latencies {
            end_to_end: measured(50..10_050),
            ..Latencies::default()
        },
        truth: ReconciledCounts {
            flows: 10_000,
            expected: 1_000_001,
            received: 1_000_000,
            lost: 1,
            ..ReconciledCounts::default()
        },
        examples: vec!["subscriber-17 missed 1 message of publishers-2: 100".into()],
        errors: vec![("the connection was reset".into(), 3)],
        generator: Generator {
            threads: 2,
            offered: 100.0,
            kept_up: 1.0,
            ..Generator::default()
        },
        broker: Some(BrokerCost {
            pid: Some(7),
            name: "broker".into(),
            cores_used: 0.5,
            cpu_s_per_million: 4.5,
            resident_before_bytes: Some(8_000_000),
            resident_bytes: Some(9_010_000),
            ..BrokerCost::default()
        }),
        kafka: None,
        fleet: None,
        ceiling: Some(Ceiling {
            sockets: 1000,
            ratio: 0.8,
            ..Ceiling::default()
        }),
        series: (0..12).map(second).collect(),
        agents: Vec::new(),
        verdicts: vec![ThresholdVerdict {
            rule: "nothing lost".into(),
            found: "1 of 1000001 lost".into(),
            is_met: false,
        }],
    }
}

fn require(text: &str) -> (bool, String) {
    let verdict = text.parse::<Threshold>().unwrap().verdict(&sample());
    (verdict.is_met, verdict.found)
}

#[test]
fn threshold_verdict_compares_with_measure() {
    for text in [
        "p50<6ms",
        "p50 < 6000us",
        "p99<=0.01s",
        "lost==1",
        "delivered>=1e5/s",
        "delivered>=100k/s",
        "delivered >= 0.1M",
        "cpu_per_million<4.6",
        "rss<9.1MB",
        "rss>8.5MiB",
        "ceiling>=75%",
        "kept_up==100%",
        "rss_per_client==101000",
    ] {
        assert!(require(text).0, "{text}: {}", require(text).1);
    }
    for text in ["p99<1ms", "lost==0", "delivered>1M/s", "rss<8MB", "ceiling>0.8"] {
        assert!(!require(text).0, "{text}");
    }
    assert_eq!(require("ack_p99<1ms"), (false, "not measured in this run".into()));
}

#[test]
fn wrong_threshold_fails_with_position() {
    for (text, expected) in [
        ("p99.5<1ms", "p99.5<1ms\n^ unknown measure `p99.5`; did you mean `p99`?"),
        ("p99", "p99\n   ^ expected <, <=, >, >= or =="),
        ("p99<", "p99<\n    ^ expected a number"),
        ("p99<fast", "p99<fast\n    ^ expected a number"),
        ("p99<1MB", "p99<1MB\n     ^ expected us, ms or s for p99"),
        (
            "rss<60MBs",
            "rss<60MBs\n      ^ expected B, kB, KiB, MB, MiB, GB or GiB for rss",
        ),
        ("lost==0%", "lost==0%\n       ^ expected no unit for lost"),
    ] {
        assert_eq!(text.parse::<Threshold>().unwrap_err().to_string(), expected);
    }
}

#[test]
fn table_fits_100_columns_and_has_figures() {
    let text = table::render(&sample());
    assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
    for words in [
        "receive                1,000,000    100.00 %           100,000",
        "end to end      50 µs  5.05 ms",
        "1,000,000 of 1,000,001 messages received, 1 lost",
        "0.50 cores, 4.500 CPU s per million",
        "the broker delivers 80 % of that",
        "FAIL nothing lost: 1 of 1000001 lost",
        "3 × the connection was reset",
    ] {
        assert!(text.contains(words), "`{words}` is not in\n{text}");
    }
}

#[test]
fn csv_has_row_per_second_and_per_measure() {
    let text = csv::seconds(&sample());
    let columns = |line: &str| line.split(',').count();
    assert_eq!(text.lines().count(), 13);
    assert!(
        text.lines()
            .all(|line| columns(line) == columns(text.lines().next().unwrap())),
        "{text}"
    );
    assert!(
        csv::summary(&sample()).contains("\nlost,1,"),
        "{}",
        csv::summary(&sample())
    );
}

#[test]
fn html_is_escaped_and_needs_no_requests() {
    let page = html::render(&sample());
    assert!(page.contains("<h1>fanout &lt;&amp;&quot;&gt;</h1>"));
    for forbidden in ["http://", "https://", "<script", "@import", "url(", "src=", "<link"] {
        assert!(!page.contains(forbidden), "{forbidden}");
    }
    for tag in ["section", "figure", "svg", "div", "ul", "li", "pre", "details", "main"] {
        let opened = page.matches(&format!("<{tag}>")).count() + page.matches(&format!("<{tag} ")).count();
        assert_eq!(opened, page.matches(&format!("</{tag}>")).count(), "{tag}");
    }
    assert!(page.matches("<path class=\"line").count() >= 7);
}

#[test]
fn compare_marks_better_values_and_warns() {
    let (first, mut second) = (sample(), sample());
    second.throughput.delivered = 200_000.0;
    second.broker.as_mut().unwrap().cpu_s_per_million = 9.0;
    second.generator.is_saturated = true;
    second.machine.cores = 4;
    let named = [
        NamedResult {
            name: "a.json",
            result: &first,
        },
        NamedResult {
            name: "b.json",
            result: &second,
        },
    ];
    let text = compare(&named);
    assert!(text.contains("200,000/s ×2.00 +"), "{text}");
    assert!(text.contains("9.000 s ×2.00 -"), "{text}");
    assert!(text.contains("×1.00 ≈"), "{text}");
    assert_eq!(warnings(&named).len(), 2, "{text}");
}
