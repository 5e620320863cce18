//! One HTML file with everything about a run. It needs no script and no request, and supports light and dark, wide and
//! narrow screens.

use std::fmt::Write as _;

use super::chart::{Chart, ChartLine, escaped};
use super::measure::{MeasureUnit, bytes, format_value, milliseconds, whole};
use super::table;
use crate::result::{MeasuredLatency, RunResult, Second};

const STYLE: &str = include_str!("report.css");
/// Percentiles of the latency chart, by the number of nines.
const QUANTILES: [(f64, &str); 9] = [
    (0.0, "0"),
    (0.5, "50 %"),
    (0.75, "75 %"),
    (0.9, "90 %"),
    (0.95, "95 %"),
    (0.99, "99 %"),
    (0.999, "99.9 %"),
    (0.9999, "99.99 %"),
    (1.0, "max"),
];

pub fn render(result: &RunResult) -> String {
    let name = escaped(&result.scenario.name);
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
         <title>{name} · tidewire bench</title><style>{STYLE}</style></head><body><main>\n"
    );
    header(&mut page, result);
    headlines(&mut page, result);
    verdicts(&mut page, result);
    page.push_str("<section><h2>Over time</h2>");
    for chart in over_time(result) {
        page.push_str(&chart.render());
    }
    page.push_str("</section>\n<section><h2>Latency</h2>");
    distributions(&mut page, result);
    latency_model(&mut page, result);
    page.push_str("</section>\n");
    details(&mut page, result);
    page.push_str("</main></body></html>\n");
    page
}

fn header(page: &mut String, result: &RunResult) {
    let machine = &result.machine;
    let _ = write!(
        page,
        "<header><h1>{}</h1><p>{}</p><p class=\"dim\">{} · {} · {} · {} cores · {} · {}</p>",
        escaped(&result.scenario.name),
        escaped(&result.scenario.about),
        escaped(&result.started_at),
        escaped(&machine.host),
        escaped(&machine.cpu),
        machine.cores,
        bytes(machine.memory_bytes as f64),
        escaped(&machine.kernel),
    );
    if result.is_interrupted {
        page.push_str("<p class=\"fail\">This run was interrupted; the figures cover the time until then.</p>");
    }
    if let Some(published) = &result.scenario.published {
        let _ = write!(page, "<p>Published elsewhere: {}</p>", escaped(published));
    }
    page.push_str("</header>\n");
}

/// Writes the most important figures.
fn headlines(page: &mut String, result: &RunResult) {
    let mut cards: Vec<(&str, String)> = Vec::new();
    let rate = &result.throughput;
    for (name, value) in [
        ("delivered", rate.delivered),
        ("published", rate.published),
        ("connects", rate.connects),
        ("full TLS handshakes", rate.tls_full),
        ("resumed TLS handshakes", rate.tls_resumed),
    ] {
        if value > 0.0 {
            cards.push((name, format_value(MeasureUnit::PerSecond, value)));
        }
    }
    let latency = &result.latency.end_to_end.summary;
    if latency.count > 0 {
        cards.push(("end to end p50", milliseconds(latency.p50_ms)));
        cards.push(("end to end p99", milliseconds(latency.p99_ms)));
    }
    let acknowledgement = &result.latency.acknowledgement.summary;
    if acknowledgement.count > 0 {
        cards.push(("acknowledged p99", milliseconds(acknowledgement.p99_ms)));
    }
    if result.truth.expected > 0 {
        cards.push(("lost", whole(result.truth.lost as f64)));
    }
    if let Some(broker) = &result.broker {
        cards.push(("broker CPU per million", format!("{:.3} s", broker.cpu_s_per_million)));
        if let Some(resident) = broker.resident_bytes {
            cards.push(("broker memory", bytes(resident as f64)));
        }
    }
    if let Some(ceiling) = &result.ceiling {
        cards.push(("ratio to bare sockets", format!("{:.0} %", ceiling.ratio * 100.0)));
    }
    page.push_str("<section class=\"cards\">");
    for (name, value) in cards {
        let _ = write!(
            page,
            "<div><b>{}</b><span>{}</span></div>",
            escaped(&value),
            escaped(name)
        );
    }
    page.push_str("</section>\n");
}

fn verdicts(page: &mut String, result: &RunResult) {
    page.push_str("<section><h2>Verdicts</h2><ul class=\"verdicts\">");
    for verdict in &result.verdicts {
        let (class, mark) = if verdict.is_met {
            ("ok", "met")
        } else {
            ("fail", "not met")
        };
        let (rule, found) = (escaped(&verdict.rule), escaped(&verdict.found));
        let _ = write!(
            page,
            "<li class=\"{class}\"><b>{mark}</b> {rule} <span class=\"dim\">{found}</span></li>"
        );
    }
    page.push_str("</ul>");
    for example in &result.examples {
        let _ = write!(page, "<p class=\"fail\">{}</p>", escaped(example));
    }
    for (reason, count) in &result.errors {
        let _ = write!(page, "<p class=\"fail\">{count} × {}</p>", escaped(reason));
    }
    page.push_str("</section>\n");
}

/// Formats the label of an axis: 10 ms rather than 10.00 ms.
fn decade(value: f64) -> String {
    match value {
        v if v < 1.0 => format!("{:.0} µs", v * 1000.0),
        v if v < 1000.0 => format!("{v:.0} ms"),
        v => format!("{:.0} s", v / 1000.0),
    }
}

fn over_time(result: &RunResult) -> Vec<Chart<'_>> {
    let series = |of: fn(&Second) -> f64| result.series.iter().map(|second| (second.at_s, of(second))).collect();
    let line = |name, of: fn(&Second) -> f64| ChartLine {
        name,
        points: series(of),
    };
    let chart = |title, is_log, y_words, lines| Chart {
        title,
        summary: format!("{title} per second of the run; the figures are in the CSV file"),
        x_label: "seconds since publishing began",
        is_log,
        lines,
        x_ticks: Vec::new(),
        format_y: y_words,
    };
    let rate = |value: f64| short(value) + "/s";
    let mut charts = vec![
        chart(
            "Messages",
            false,
            rate,
            vec![
                line("delivered", |s| s.delivered),
                line("published", |s| s.published),
                line("acknowledged", |s| s.acknowledged),
            ],
        ),
        chart(
            "End-to-end latency",
            true,
            decade,
            vec![
                line("p50", |s| s.end_to_end.p50_ms),
                line("p99", |s| s.end_to_end.p99_ms),
                line("max", |s| s.end_to_end.max_ms),
            ],
        ),
        chart(
            "Latency of acknowledgements",
            true,
            decade,
            vec![
                line("p50", |s| s.acknowledgement.p50_ms),
                line("p99", |s| s.acknowledgement.p99_ms),
                line("max", |s| s.acknowledgement.max_ms),
            ],
        ),
        chart(
            "Cores",
            false,
            |value| format!("{value:.2}"),
            vec![
                line("broker", |s| s.broker_cores.unwrap_or(f64::NAN)),
                line("generator", |s| s.generator_cores),
            ],
        ),
        chart(
            "Broker memory",
            false,
            bytes,
            vec![line("resident", |s| {
                s.broker_resident_bytes.map_or(f64::NAN, |bytes| bytes as f64)
            })],
        ),
        chart(
            "Connections",
            false,
            short,
            vec![line("connected", |s| s.connected as f64)],
        ),
    ];
    for chart in &mut charts {
        // A line that is always zero or unknown is omitted.
        chart.lines.retain(|line| line.points.iter().any(|(_, y)| *y > 0.0));
    }
    charts
}

/// Formats 4,500,000 as 4.5M.
fn short(value: f64) -> String {
    match value {
        v if v >= 1e6 => format!("{}M", (v / 1e4).round() / 100.0),
        v if v >= 1e4 => format!("{}k", (v / 100.0).round() / 10.0),
        v => whole(v),
    }
}

fn distributions(page: &mut String, result: &RunResult) {
    let latency = &result.latency;
    let all = [
        ("end to end", &latency.end_to_end),
        ("acknowledged", &latency.acknowledgement),
        ("connect", &latency.connect),
        ("subscribe", &latency.subscribe),
    ];
    let line = |(name, measured): (&'static str, &MeasuredLatency)| ChartLine {
        name,
        points: (0..QUANTILES.len())
            .map(|place| (place as f64, measured.histogram.quantile_ms(QUANTILES[place].0)))
            .collect(),
    };
    let lines: Vec<_> = all.into_iter().filter(|(_, m)| m.summary.count > 0).map(line).collect();
    let ticks = QUANTILES
        .iter()
        .enumerate()
        .map(|(place, (_, words))| (place as f64, (*words).to_string()));
    let chart = Chart {
        title: "Distribution",
        summary: "Latency by percentile; the table below has the figures".into(),
        x_label: "",
        is_log: true,
        lines,
        x_ticks: ticks.collect(),
        format_y: decade,
    };
    page.push_str(&chart.render());
}

/// Writes how the latencies were measured.
fn latency_model(page: &mut String, result: &RunResult) {
    let publishes = result.scenario.group.iter().filter_map(|group| group.publish.as_ref());
    let is_open = publishes.clone().any(|publish| publish.rate.is_some());
    let words = if publishes.count() == 0 {
        "Nothing was published."
    } else if is_open {
        "Open model: messages were due on a schedule that does not wait for the broker. Each latency counts from the time at which its message \
         was due, not from when it was sent. Waiting for a slow broker is therefore part of the latency (no coordinated omission)."
    } else {
        "Closed model: a new message was sent when the broker had handled an earlier one. Throughput is the main figure; the latencies \
         are those at the rate that the broker itself sets, and do not apply to a fixed rate."
    };
    let _ = write!(page, "<p class=\"dim\">{words}</p>");
    if result.generator.is_saturated {
        page.push_str("<p class=\"fail\">The generator was at its own limit: the broker may be faster, and the generator may have caused part of the latencies.</p>");
    }
}

fn details(page: &mut String, result: &RunResult) {
    let scenario = toml::to_string(&result.scenario).unwrap_or_default();
    let target = toml::to_string(&result.target).unwrap_or_default();
    let _ = write!(
        page,
        "<section><h2>All numbers</h2><pre>{}</pre></section>\n\
         <section><h2>Configuration</h2><p><code>{}</code></p>\
         <details><summary>Scenario</summary><pre>{}</pre></details>\
         <details><summary>Target</summary><pre>{}</pre></details></section>\n",
        escaped(&table::render(result)),
        escaped(&result.command),
        escaped(&scenario),
        escaped(&target),
    );
}
